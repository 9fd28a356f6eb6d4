//! The message of an image: what people read beside its reason.

use std::borrow::Cow;

/// No message of an image is longer, in characters: a report names up to 1,000 images, and etcd takes 1.5 MB.
pub const MAX_MESSAGE: usize = 512;

/// At most [`MAX_MESSAGE`] characters of a message; what was cut ends with `…`.
#[must_use]
pub fn cut(message: Cow<'_, str>) -> Cow<'_, str> {
    if message.chars().count() <= MAX_MESSAGE {
        return message;
    }
    let kept = message.chars().take(MAX_MESSAGE - 1);
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let whole = "ü".repeat(MAX_MESSAGE);
        assert_eq!(cut((&whole).into()), whole);
        let cut = cut(format!("{whole}ü").into());
        assert_eq!(cut.chars().count(), MAX_MESSAGE);
        assert!(cut.ends_with("ü…"));
    }
}
