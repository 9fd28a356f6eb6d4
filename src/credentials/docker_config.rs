//! Docker's configuration files: `config.json` and the older `.dockercfg`, as the kubelet reads them: the names of fields in any
//! case, as Go's parser takes them.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::Credential;

/// For padded and for unpadded text. The bits that a last digit has too many may be anything.
const PADDED: GeneralPurpose = GeneralPurpose::new(&STANDARD, lenient(true));
const UNPADDED: GeneralPurpose = GeneralPurpose::new(&STANDARD, lenient(false));

const fn lenient(padded: bool) -> GeneralPurposeConfig {
    use base64::engine::DecodePaddingMode::{RequireCanonical, RequireNone};
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(if padded {
            RequireCanonical
        } else {
            RequireNone
        })
}

/// Which registry, or part of one, a credential is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// As written: a host, a URL, a pattern.
    pub key: String,
    /// The credential.
    pub credential: Credential,
}

/// Why a configuration cannot be read. It never quotes the configuration.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidConfig {
    /// It is not JSON, or stops in the middle.
    #[error("it is not JSON: line {line}, column {column}")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// It is JSON, and something else than entries.
    #[error("it is not a JSON object of registries")]
    Shape,
    /// An entry is not an object with texts.
    #[error("entry {0} is not an object with the texts username, password and auth")]
    Entry(usize),
    /// The field `auth` is not base64.
    #[error("entry {0}: auth is not base64")]
    Base64(usize),
    /// The field `auth` decodes to something else than a user and a password.
    #[error("entry {0}: auth is not USER:PASSWORD in base64")]
    NoColon(usize),
    /// A user or a password is not UTF-8, and cannot be sent to a runtime.
    #[error("entry {0}: auth is not UTF-8 text in base64")]
    NoText(usize),
}

/// Reads a `config.json`, or the Secret of that kind: the entries stand under `auths`.
pub fn read_config_json(bytes: &[u8]) -> Result<Vec<Entry>, InvalidConfig> {
    let mut entries = Map::new();
    for (name, value) in object(bytes)? {
        match value {
            _ if !name.eq_ignore_ascii_case("auths") => {}
            Value::Null => {}
            Value::Object(more) => entries.extend(more),
            _ => return Err(InvalidConfig::Shape),
        }
    }
    read(entries)
}

/// Reads a `.dockercfg`, or the Secret of that kind: it is the entries.
pub fn read_dockercfg(bytes: &[u8]) -> Result<Vec<Entry>, InvalidConfig> {
    read(object(bytes)?)
}

/// The parser's own message can quote a password.
fn object(bytes: &[u8]) -> Result<Map<String, Value>, InvalidConfig> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err(InvalidConfig::Shape),
        Err(error) => Err(InvalidConfig::Json {
            line: error.line(),
            column: error.column(),
        }),
    }
}

fn read(entries: Map<String, Value>) -> Result<Vec<Entry>, InvalidConfig> {
    let read = |(index, (key, value))| {
        let credential = credential(index + 1, value)?;
        Ok(Entry { key, credential })
    };
    entries.into_iter().enumerate().map(read).collect()
}

/// `auth` wins over a user and a password beside it. Tokens in such a file are read by nobody: the kubelet does not either.
fn credential(number: usize, value: Value) -> Result<Credential, InvalidConfig> {
    let fields = match value {
        Value::Null => Map::new(),
        Value::Object(fields) => fields,
        _ => return Err(InvalidConfig::Entry(number)),
    };
    let (mut username, mut password, mut auth) = (String::new(), String::new(), String::new());
    for (name, value) in fields {
        let field = match name.to_ascii_lowercase().as_str() {
            "username" => &mut username,
            "password" => &mut password,
            "auth" => &mut auth,
            _ => continue,
        };
        match value {
            Value::Null => {}
            Value::String(text) => *field = text,
            _ => return Err(InvalidConfig::Entry(number)),
        }
    }
    if auth.is_empty() {
        return Ok(Credential { username, password });
    }
    let base64 = if auth.trim().ends_with('=') {
        PADDED
    } else {
        UNPADDED
    };
    let digits: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let decoded = base64
        .decode(digits)
        .map_err(|_| InvalidConfig::Base64(number))?;
    let decoded = String::from_utf8(decoded).map_err(|_| InvalidConfig::NoText(number))?;
    let (username, password) = decoded
        .split_once(':')
        .ok_or(InvalidConfig::NoColon(number))?;
    Ok(Credential {
        username: username.to_owned(),
        password: password.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Expected<'a> = Result<&'a [(&'a str, &'a str, &'a str)], InvalidConfig>;

    fn check(text: &str, found: &Result<Vec<Entry>, InvalidConfig>, expected: &Expected<'_>) {
        let entry = |(key, username, password): &(&str, &str, &str)| Entry {
            key: (*key).to_owned(),
            credential: Credential {
                username: (*username).to_owned(),
                password: (*password).to_owned(),
            },
        };
        let expected = expected
            .clone()
            .map(|entries| entries.iter().map(entry).collect::<Vec<_>>());
        assert!(*found == expected, "{text}");
    }

    #[test]
    fn a_config_json_is_read_as_the_kubelet_reads_it() {
        let rows: &[(&str, Expected<'_>)] = &[
            ("{}", Ok(&[])),
            (r#"{"auths":null}"#, Ok(&[])),
            (r#"{"auths":{}, "credsStore":"x"}"#, Ok(&[])),
            (
                r#"{"auths":{"r.io":{"username":"u","password":"p","email":"e"}}}"#,
                Ok(&[("r.io", "u", "p")]),
            ),
            // "u:p:q": the first colon divides.
            (
                r#"{"auths":{"r.io":{"auth":"dTpwOnE="}}}"#,
                Ok(&[("r.io", "u", "p:q")]),
            ),
            (
                r#"{"auths":{"r.io":{"auth":"dTpwOnE"}}}"#,
                Ok(&[("r.io", "u", "p:q")]),
            ),
            (
                r#"{"auths":{"r.io":{"auth":"dTpw\nOnE=\n"}}}"#,
                Ok(&[("r.io", "u", "p:q")]),
            ),
            (
                r#"{"auths":{"r.io":{"username":"x","password":"y","auth":"dTpw"}}}"#,
                Ok(&[("r.io", "u", "p")]),
            ),
            (
                r#"{"auths":{"r.io":{"username":"x","password":"y","auth":""}}}"#,
                Ok(&[("r.io", "x", "y")]),
            ),
            (
                r#"{"auths":{"r.io":{"identitytoken":"t"}}}"#,
                Ok(&[("r.io", "", "")]),
            ),
            (r#"{"auths":{"r.io":null}}"#, Ok(&[("r.io", "", "")])),
            (
                r#"{"Auths":{"r.io":{"Username":"u","PASSWORD":"p"}}}"#,
                Ok(&[("r.io", "u", "p")]),
            ),
            (
                r#"{"auths":{"r.io":{"auth":"dTpw="}}}"#,
                Err(InvalidConfig::Base64(1)),
            ),
            (
                r#"{"auths":{"a":{},"r.io":{"auth":"?"}}}"#,
                Err(InvalidConfig::Base64(2)),
            ),
            (
                r#"{"auths":{"r.io":{"auth":"dXA"}}}"#,
                Err(InvalidConfig::NoColon(1)),
            ),
            (
                r#"{"auths":{"r.io":{"auth":"dTr/"}}}"#,
                Err(InvalidConfig::NoText(1)),
            ),
            (
                r#"{"auths":{"r.io":{"auth":7}}}"#,
                Err(InvalidConfig::Entry(1)),
            ),
            (
                r#"{"auths":{"r.io":"hunter2"}}"#,
                Err(InvalidConfig::Entry(1)),
            ),
            (r#"{"auths":[]}"#, Err(InvalidConfig::Shape)),
            ("[]", Err(InvalidConfig::Shape)),
            (
                "{\n\"auths\"",
                Err(InvalidConfig::Json { line: 2, column: 7 }),
            ),
        ];
        for (text, expected) in rows {
            check(text, &read_config_json(text.as_bytes()), expected);
        }
        let old = r#"{"r.io":{"auth":"dTpw"}}"#;
        check(
            old,
            &read_dockercfg(old.as_bytes()),
            &Ok(&[("r.io", "u", "p")]),
        );
    }

    #[test]
    fn nothing_that_is_printed_holds_a_secret() {
        for text in [
            r#"{"auths":{"r.io":{"auth":"hunter2"}}}"#,
            r#"{"auths":{"r.io":{"username":"hunter2","password":["hunter2"]}}}"#,
            r#"{"auths":{"r.io":"hunter2"}}"#,
            r#"{"auths":"hunter2"}"#,
            r#""hunter2""#,
            r#"{"auths":{"r.io":{"auth":"aHVudGVyMg"}}}"#,
            "hunter2",
        ] {
            let error = read_config_json(text.as_bytes()).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let entries =
            read_config_json(br#"{"auths":{"r.io":{"username":"hunter2","password":"hunter2"}}}"#);
        assert!(!format!("{entries:?}").contains("hunter2"));
    }
}
