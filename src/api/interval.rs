//! A length of time in a spec, as in `90s`, `5m` or `1h30m`.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Hours, minutes, seconds and milliseconds, in this order, each as a whole number: what Go's `time.ParseDuration` and the API
/// server's CEL read as well.
const PATTERN: &str = "^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?([0-9]{1,8}ms)?$";

/// A length of time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Interval(pub Duration);

impl Interval {
    /// Reads `90s`, `5m` or `1h30m`.
    fn parse(text: &str) -> Option<Self> {
        let is_plain = |c: char| c.is_ascii_digit() || matches!(c, 'h' | 'm' | 's');
        let length = text
            .chars()
            .all(is_plain)
            .then(|| text.parse::<SignedDuration>().ok())??;
        Duration::try_from(length).ok().map(Self)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ms) = (self.0.as_secs(), u64::from(self.0.subsec_millis()));
        let parts = [
            (seconds / 3600, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
            (ms, "ms"),
        ];
        let mut text = String::new();
        for (count, unit) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(text, "{count}{unit}")?;
        }
        f.write_str(if text.is_empty() { "0s" } else { &text })
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is not a length of time such as 90s, 5m or 1h30m"
            ))
        })
    }
}

impl JsonSchema for Interval {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Interval".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 2, "maxLength": 32, "pattern": PATTERN})
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_length_of_time_reads_as_go_reads_it_and_is_written_in_one_way() {
        for (text, ms, written) in [
            ("90s", 90_000, "1m30s"),
            ("5m", 300_000, "5m"),
            ("1h30m", 5_400_000, "1h30m"),
            ("250ms", 250, "250ms"),
            ("0s", 0, "0s"),
        ] {
            let interval: Interval = serde_json::from_value(text.into()).unwrap();
            assert_eq!(interval.0, Duration::from_millis(ms), "{text}");
            assert_eq!(serde_json::to_value(interval).unwrap(), written);
        }
        for text in ["", "5", "5 m", "-5m", "PT5M", "soon", "1d", "5minutes"] {
            let read = serde_json::from_value::<Interval>(text.into());
            assert!(read.is_err(), "{text}");
        }
    }
}
