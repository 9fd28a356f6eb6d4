//! Conditions, and the rule for their timestamps.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The longest message of a condition, in bytes (the API server's own limit for conditions is 32,768).
const MAX_MESSAGE: usize = 1024;

/// Makes a condition whose `lastTransitionTime` moves only when its status does.
#[must_use]
pub fn condition(
    previous: &[Condition],
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
    observed_generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = if status { "True" } else { "False" };
    let since = find(previous, kind)
        .filter(|before| before.status == status)
        .map_or_else(
            || whole_seconds(now),
            |before| before.last_transition_time.clone(),
        );
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: cut(&visible(message), MAX_MESSAGE).to_owned(),
        observed_generation,
        last_transition_time: since,
    }
}

/// The condition of this type, if it is there.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// The time as the API server keeps it: what is written has to equal what comes back.
#[must_use]
pub fn whole_seconds(wall: Timestamp) -> Time {
    Time(Timestamp::from_second(wall.as_second()).unwrap_or(wall))
}

/// The text with everything that a terminal would act on, or that turns the direction of writing, made visible: whoever may write an
/// `ImageCache` writes names that others read.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    let acts =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().map(|c| {
        if acts(c) {
            c.escape_unicode().to_string()
        } else {
            c.to_string()
        }
    });
    escaped.collect::<String>().into()
}

/// The beginning of a text: at most so many bytes, and whole characters.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_timestamp_moves_only_with_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = condition(&[], "Ready", false, "A", "a", Some(1), at(1));
        let same = condition(
            std::slice::from_ref(&first),
            "Ready",
            false,
            "B",
            "b",
            Some(2),
            at(2),
        );
        assert_eq!(same.last_transition_time, first.last_transition_time);
        let turned = condition(&[same], "Ready", true, "C", "c", Some(2), at(3));
        assert_eq!(turned.last_transition_time, Time(at(3)));
    }

    #[test]
    fn what_a_terminal_would_act_on_is_made_visible() {
        assert_eq!(visible("a/é:1 is 中"), "a/é:1 is 中");
        assert_eq!(
            visible("a\u{1b}[31m\u{202e}b\n"),
            r"a\u{1b}[31m\u{202e}b\u{a}"
        );
        let said = condition(
            &[],
            "Ready",
            true,
            "A",
            "\u{7}",
            None,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(said.message, r"\u{7}");
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let long = "é".repeat(MAX_MESSAGE);
        let cut = condition(&[], "Ready", true, "A", &long, None, Timestamp::UNIX_EPOCH).message;
        assert!(cut.len() <= MAX_MESSAGE && cut.chars().all(|c| c == 'é'));
    }
}
