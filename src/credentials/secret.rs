//! Pull secrets: the two types of Secret that hold registry credentials.

use std::collections::BTreeMap;

use super::docker_config::{Entry, InvalidConfig, read_config_json, read_dockercfg};

const CONFIG_JSON: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
const DOCKERCFG: (&str, &str) = ("kubernetes.io/dockercfg", ".dockercfg");

/// Why a Secret gives no credentials. It never quotes the Secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidSecret {
    /// It is a Secret of another kind.
    #[error(
        "its type is {0:?}; a pull secret is a kubernetes.io/dockerconfigjson or a kubernetes.io/dockercfg"
    )]
    Type(String),
    /// The type's key is not among the data.
    #[error("it has no data under {0:?}")]
    NoData(&'static str),
    /// The data cannot be read.
    #[error("{0:?}: {1}")]
    Data(&'static str, InvalidConfig),
}

/// Reads what a Secret of this type with this data says.
pub fn read<B: AsRef<[u8]>>(
    kind: &str,
    data: &BTreeMap<String, B>,
) -> Result<Vec<Entry>, InvalidSecret> {
    let (key, read): (_, fn(&[u8]) -> _) = if kind == CONFIG_JSON.0 {
        (CONFIG_JSON.1, read_config_json)
    } else if kind == DOCKERCFG.0 {
        (DOCKERCFG.1, read_dockercfg)
    } else {
        return Err(InvalidSecret::Type(kind.to_owned()));
    };
    let bytes = data
        .get(key)
        .map(AsRef::as_ref)
        .filter(|bytes| !bytes.is_empty())
        .ok_or(InvalidSecret::NoData(key))?;
    read(bytes).map_err(|error| InvalidSecret::Data(key, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_types_are_read_and_everything_else_is_named() {
        let secret = |kind: &str, key: &str, data: &str| {
            read(kind, &[(key.to_owned(), data.as_bytes().to_vec())].into())
                .map(|entries| entries.len())
                .map_err(|error| error.to_string())
        };
        let new = r#"{"auths":{"r.io":{"auth":"dTpw"}}}"#;
        let old = r#"{"r.io":{"auth":"dTpw"},"q.io":{}}"#;
        assert_eq!(secret(CONFIG_JSON.0, CONFIG_JSON.1, new), Ok(1));
        assert_eq!(secret(DOCKERCFG.0, DOCKERCFG.1, old), Ok(2));
        for (kind, key, data, error) in [
            (
                "Opaque",
                CONFIG_JSON.1,
                new,
                "its type is \"Opaque\"; a pull secret is a kubernetes.io/dockerconfigjson or a kubernetes.io/dockercfg",
            ),
            (
                CONFIG_JSON.0,
                DOCKERCFG.1,
                new,
                "it has no data under \".dockerconfigjson\"",
            ),
            (
                CONFIG_JSON.0,
                CONFIG_JSON.1,
                "",
                "it has no data under \".dockerconfigjson\"",
            ),
            (
                CONFIG_JSON.0,
                CONFIG_JSON.1,
                "{",
                "\".dockerconfigjson\": it is not JSON: line 1, column 1",
            ),
            (
                DOCKERCFG.0,
                DOCKERCFG.1,
                r#"{"r.io":{"auth":"dTpw="}}"#,
                "\".dockercfg\": entry 1: auth is not base64",
            ),
        ] {
            assert_eq!(secret(kind, key, data), Err(error.to_owned()));
        }
    }
}
