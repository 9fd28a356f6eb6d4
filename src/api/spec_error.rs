//! Reading a spec that may come from a newer version, or from a file that no API server has checked.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::MAX_IMAGES;
use super::image_cache::{ImageCacheSpec, ImageList, LocalSecret, MatchExpression, Operator};

/// Why a spec is not acted on.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// It does not read as this version's spec.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, such as `spec.cacheSpec[1].images`.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// It has a field that this version does not know, and that may turn its meaning round.
    #[error(
        "{field}: this version of imagecache-agent does not know this field: update the agent, or remove the field"
    )]
    Unsupported {
        /// The field, such as `spec.removalPolicy`.
        field: String,
    },
}

impl SpecError {
    fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl ImageCacheSpec {
    /// Reads a spec as the API server, or a file, holds it.
    pub fn read(spec: &Value) -> Result<Self, SpecError> {
        let mut unknown = None;
        let mut track = serde_path_to_error::Track::new();
        let read = serde_ignored::deserialize(
            serde_path_to_error::Deserializer::new(spec, &mut track),
            |path| {
                unknown.get_or_insert_with(|| path.to_string());
            },
        );
        let spec: Self = read.map_err(|error: serde_json::Error| {
            SpecError::invalid(field(&track.path().to_string()), error.to_string())
        })?;
        match unknown {
            Some(path) => Err(SpecError::Unsupported {
                field: field(&indexed(&path)),
            }),
            None => Ok(spec),
        }
    }

    /// Checks what the schema of the CRD checks, for specs that no API server has seen.
    pub fn check(&self) -> Result<(), SpecError> {
        let lists = self.cache_spec.len();
        if !(1..=64).contains(&lists) {
            return Err(SpecError::invalid(
                "spec.cacheSpec",
                format!("has {lists} lists, needs 1 to 64"),
            ));
        }
        check_secrets(&self.image_pull_secrets)?;
        if !(-1000..=1000).contains(&self.priority) {
            return Err(SpecError::invalid(
                "spec.priority",
                "must be from -1000 to 1000",
            ));
        }
        if self.pull_progress_timeout.0.0 < Duration::from_secs(1) {
            return Err(SpecError::invalid(
                "spec.pullProgressTimeout",
                "must be at least 1s, such as 90s or 5m",
            ));
        }
        let interval = self.refresh_interval.0.0;
        if !interval.is_zero() && interval < Duration::from_secs(1) {
            return Err(SpecError::invalid(
                "spec.refreshInterval",
                "must be 0s, or at least 1s",
            ));
        }
        for (index, list) in self.cache_spec.iter().enumerate() {
            check_list(list, &format!("spec.cacheSpec[{index}]"))?;
        }
        let images: usize = self.cache_spec.iter().map(|list| list.images.len()).sum();
        if images > MAX_IMAGES {
            return Err(SpecError::invalid(
                "spec.cacheSpec",
                format!(
                    "names {images} images, at most {MAX_IMAGES} are allowed: split them over several ImageCaches"
                ),
            ));
        }
        Ok(())
    }
}

fn check_secrets(secrets: &[LocalSecret]) -> Result<(), SpecError> {
    if secrets.len() > 32 {
        return Err(SpecError::invalid(
            "spec.imagePullSecrets",
            "has more than 32 entries",
        ));
    }
    let mut seen = BTreeSet::new();
    for (index, LocalSecret { name }) in secrets.iter().enumerate() {
        let field = format!("spec.imagePullSecrets[{index}].name");
        let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_name = (1..=253).contains(&name.len())
            && name.starts_with(is_edge)
            && name.ends_with(is_edge)
            && name.chars().all(|c| is_edge(c) || matches!(c, '-' | '.'));
        if !is_name {
            let message = format!("{name:?} is not the name of a Secret");
            return Err(SpecError::invalid(field, message));
        }
        if !seen.insert(name) {
            return Err(SpecError::invalid(field, format!("{name:?} stands twice")));
        }
    }
    Ok(())
}

fn check_list(list: &ImageList, at: &str) -> Result<(), SpecError> {
    let count = list.images.len();
    if !(1..=256).contains(&count) {
        return Err(SpecError::invalid(
            format!("{at}.images"),
            format!("has {count} images, needs 1 to 256"),
        ));
    }
    let mut seen = BTreeSet::new();
    for (index, image) in list.images.iter().enumerate() {
        let field = format!("{at}.images[{index}]");
        if image.is_empty() || image.chars().any(char::is_whitespace) {
            return Err(SpecError::invalid(
                field,
                format!("{image:?} is empty or has white space"),
            ));
        }
        if image.chars().count() > 512 {
            return Err(SpecError::invalid(field, "is longer than 512 characters"));
        }
        if !seen.insert(image) {
            return Err(SpecError::invalid(
                field,
                format!("{image:?} stands twice in this list"),
            ));
        }
    }
    if list.node_selector.len() > 64 {
        return Err(SpecError::invalid(
            format!("{at}.nodeSelector"),
            "has more than 64 labels",
        ));
    }
    for (key, value) in &list.node_selector {
        let field = format!("{at}.nodeSelector[{key}]");
        check_label_key(key, &field)?;
        check_label_value(value, &field)?;
    }
    if list.match_expressions.len() > 32 {
        return Err(SpecError::invalid(
            format!("{at}.matchExpressions"),
            "has more than 32 entries",
        ));
    }
    for (index, expression) in list.match_expressions.iter().enumerate() {
        check_expression(expression, &format!("{at}.matchExpressions[{index}]"))?;
    }
    Ok(())
}

fn check_expression(expression: &MatchExpression, at: &str) -> Result<(), SpecError> {
    check_label_key(&expression.key, &format!("{at}.key"))?;
    let values = format!("{at}.values");
    match expression.operator {
        Operator::In | Operator::NotIn if expression.values.is_empty() => Err(SpecError::invalid(
            values,
            "In and NotIn need at least one value",
        )),
        Operator::Exists | Operator::DoesNotExist if !expression.values.is_empty() => Err(
            SpecError::invalid(values, "Exists and DoesNotExist take no values"),
        ),
        Operator::Gt | Operator::Lt => match expression.values.as_slice() {
            [value] if value.parse::<i64>().is_ok() => Ok(()),
            _ => Err(SpecError::invalid(
                values,
                "Gt and Lt need exactly one value, an integer",
            )),
        },
        _ if expression.values.len() > 64 => {
            Err(SpecError::invalid(values, "has more than 64 values"))
        }
        _ => expression
            .values
            .iter()
            .try_for_each(|value| check_label_value(value, &values)),
    }
}

fn check_label_key(key: &str, field: &str) -> Result<(), SpecError> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let part = |part: &str| {
        is_bounded_by_alphanumerics(part)
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let prefix_is_valid =
        prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(part));
    if prefix_is_valid && is_label_name(name) {
        Ok(())
    } else {
        Err(SpecError::invalid(
            field,
            format!("{key:?} is not a label key"),
        ))
    }
}

fn check_label_value(value: &str, field: &str) -> Result<(), SpecError> {
    if value.is_empty() || is_label_name(value) {
        Ok(())
    } else {
        Err(SpecError::invalid(
            field,
            format!("{value:?} is not a label value"),
        ))
    }
}

fn is_label_name(name: &str) -> bool {
    name.len() <= 63
        && is_bounded_by_alphanumerics(name)
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn is_bounded_by_alphanumerics(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn field(path: &str) -> String {
    match path {
        "" | "." | "?" => "spec".to_owned(),
        path => format!("spec.{path}"),
    }
}

/// `cacheSpec.1.images` as `cacheSpec[1].images`.
fn indexed(path: &str) -> String {
    path.split('.').fold(String::new(), |out, part| {
        let is_index = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        match (is_index, out.is_empty()) {
            (true, _) => out + "[" + part + "]",
            (false, true) => part.to_owned(),
            (false, false) => out + "." + part,
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn read(spec: &Value) -> Result<ImageCacheSpec, SpecError> {
        ImageCacheSpec::read(spec).and_then(|spec| spec.check().map(|()| spec))
    }

    #[test]
    fn a_field_of_a_newer_version_is_named() {
        let error =
            read(&json!({"cacheSpec": [{"images": ["a"]}], "turnedRound": true})).unwrap_err();
        assert_eq!(
            error,
            SpecError::Unsupported {
                field: "spec.turnedRound".into()
            }
        );
        let error =
            read(&json!({"cacheSpec": [{"images": ["a"]}, {"images": ["a"], "platform": "x"}]}))
                .unwrap_err();
        assert_eq!(
            error,
            SpecError::Unsupported {
                field: "spec.cacheSpec[1].platform".into()
            }
        );
    }

    #[test]
    fn an_error_names_the_field() {
        let long = "a".repeat(513);
        let rows = [
            (json!({}), "spec", "cacheSpec"),
            (json!({"cacheSpec": []}), "spec.cacheSpec", "1 to 64"),
            (
                json!({"cacheSpec": [{"images": 3}]}),
                "spec.cacheSpec[0].images",
                "sequence",
            ),
            (
                json!({"cacheSpec": [{"images": []}]}),
                "spec.cacheSpec[0].images",
                "1 to 256",
            ),
            (
                json!({"cacheSpec": [{"images": ["a", "b", "a"]}]}),
                "spec.cacheSpec[0].images[2]",
                "twice",
            ),
            (
                json!({"cacheSpec": [{"images": ["a b"]}]}),
                "spec.cacheSpec[0].images[0]",
                "white space",
            ),
            (
                json!({"cacheSpec": [{"images": [""]}]}),
                "spec.cacheSpec[0].images[0]",
                "empty",
            ),
            (
                json!({"cacheSpec": [{"images": [long]}]}),
                "spec.cacheSpec[0].images[0]",
                "512",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"], "nodeSelector": {"-": "x"}}]}),
                "spec.cacheSpec[0].nodeSelector[-]",
                "label key",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"], "nodeSelector": {"k": "a b"}}]}),
                "spec.cacheSpec[0].nodeSelector[k]",
                "label value",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"], "matchExpressions": [{"key": "k", "operator": "Like"}]}]}),
                "spec.cacheSpec[0].matchExpressions[0].operator",
                "Like",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"], "matchExpressions": [{"key": "k", "operator": "In"}]}]}),
                "spec.cacheSpec[0].matchExpressions[0].values",
                "at least one",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"], "matchExpressions": [{"key": "k", "operator": "Exists", "values": ["x"]}]}]}),
                "spec.cacheSpec[0].matchExpressions[0].values",
                "no values",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"], "matchExpressions": [{"key": "k", "operator": "Gt", "values": ["x"]}]}]}),
                "spec.cacheSpec[0].matchExpressions[0].values",
                "integer",
            ),
            (
                json!({"cacheSpec": [{"images": ["a"]}], "priority": 1001}),
                "spec.priority",
                "1000",
            ),
        ];
        for (spec, field, text) in rows {
            let message = read(&spec).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{field}: ")) && message.contains(text),
                "{spec}: {message}"
            );
        }
    }

    #[test]
    fn a_thousand_images_are_the_most() {
        let list = |from: usize, count: usize| json!({"images": (from..from + count).map(|n| format!("a:{n}")).collect::<Vec<_>>()});
        let lists = |last: usize| json!({"cacheSpec": [list(0, 256), list(256, 256), list(512, 256), list(768, last)]});
        assert!(read(&lists(232)).is_ok());
        assert!(read(&lists(233)).unwrap_err().to_string().contains("split"));
    }

    #[test]
    fn labels_are_checked_as_kubernetes_does() {
        for key in ["tier", "kubernetes.io/os", "a.b-c/D_e.f-G", &"a".repeat(63)] {
            assert!(check_label_key(key, "f").is_ok(), "{key}");
        }
        for key in [
            "",
            "/x",
            "x/",
            "a/b/c",
            "-a",
            "a-",
            "A.b/c",
            &"a".repeat(64),
            "ä",
        ] {
            assert!(check_label_key(key, "f").is_err(), "{key}");
        }
    }
}
