//! What the agent has noted on an image, as labels of containerd's record of its ID.
//!
//! That record's labels outlive every pull; those of a record that is named by a tag or a
//! digest are lost with the next pull of that name.

use std::collections::{BTreeMap, HashMap};

use crate::image::hash;

/// Every label of ours begins so.
const OURS: &str = "imagecache.dev/";

/// A label for each reference, so that nobody who writes one overwrites another. The rest of
/// the key is the reference's hash: a key must not hold what a reference may.
const PULLED: &str = "imagecache.dev/pulled.";

/// Our marker beside a pin of ours.
const OUR_PIN: &str = "imagecache.dev/pinned";
const TRUE: &str = "true";

/// containerd's CRI shows an image as pinned when one of its records has this label, and the
/// kubelet does not collect it then.
const PIN: &str = "io.cri-containerd.pinned";
const PINNED: &str = "pinned";

const KEEP: &str = "Keep";
const REMOVE: &str = "Remove";

/// The labels of a record.
pub(super) type Labels = HashMap<String, String>;

/// What is to become of labels: the values that they get. An empty one takes the label away.
pub(super) type Change = BTreeMap<String, String>;

/// What the labels of an image's record say.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Marks {
    /// The full references that we have pulled the image under, each with whether it is to be
    /// removed when nobody wants it any more.
    pub pulled: BTreeMap<String, bool>,
    /// There is a pin on this record, anybody's.
    pub pinned: bool,
    /// Our marker is there: the pin is ours. Without a pin, somebody has taken ours away.
    pub pin_is_ours: bool,
}

impl Marks {
    /// Reads them. A label that none of us would have written is passed over.
    pub(super) fn of(labels: &Labels) -> Self {
        Self {
            pulled: labels
                .iter()
                .filter_map(|(key, value)| pulled(key, value))
                .collect(),
            pinned: is(labels, PIN, PINNED),
            pin_is_ours: labels.contains_key(OUR_PIN),
        }
    }
}

/// Marks the image as pulled under this reference, to be removed or not; `None` takes the mark away.
pub(super) fn mark(reference: &str, removable: Option<bool>) -> Change {
    let value = match removable {
        Some(true) => format!("{REMOVE} {reference}"),
        Some(false) => format!("{KEEP} {reference}"),
        None => String::new(),
    };
    Change::from([(key(reference), value)])
}

/// Pins the image, if nobody else has.
pub(super) fn pin(labels: &Labels) -> Change {
    if is(labels, PIN, PINNED) {
        return Change::new();
    }
    Change::from([
        (PIN.to_owned(), PINNED.to_owned()),
        (OUR_PIN.to_owned(), TRUE.to_owned()),
    ])
}

/// Takes the pin away, if it is ours.
pub(super) fn unpin(labels: &Labels) -> Change {
    if !labels.contains_key(OUR_PIN) {
        return Change::new();
    }
    [PIN, OUR_PIN]
        .map(|key| (key.to_owned(), String::new()))
        .into()
}

/// Takes away all that is ours, also what cannot be read.
pub(super) fn clear(labels: &Labels) -> Change {
    let ours = labels.keys().filter(|key| key.starts_with(OURS));
    let mut change: Change = ours.map(|key| (key.clone(), String::new())).collect();
    change.append(&mut unpin(labels));
    change
}

/// What of a change is not the case yet.
pub(super) fn missing(labels: &Labels, mut change: Change) -> Change {
    change.retain(|key, value| labels.get(key).map_or("", String::as_str) != value);
    change
}

fn is(labels: &Labels, key: &str, value: &str) -> bool {
    labels.get(key).is_some_and(|found| found == value)
}

fn key(reference: &str) -> String {
    format!("{PULLED}{:016x}", hash(reference))
}

/// The reference of one of our labels, and whether it is to be removed.
fn pulled(label: &str, value: &str) -> Option<(String, bool)> {
    let (word, reference) = value.split_once(' ')?;
    let removable = match word {
        KEEP => false,
        REMOVE => true,
        _ => return None,
    };
    // Under another key it could never be taken away.
    (key(reference) == label).then(|| (reference.to_owned(), removable))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = "docker.io/library/nginx:1.29";

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// What containerd does with a change.
    fn apply(labels: &mut Labels, change: Change) {
        labels.extend(change);
        labels.retain(|_, value| !value.is_empty());
    }

    fn keys(change: &Change) -> Vec<&str> {
        change.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_mark_is_one_label_with_its_reference_in_the_value() {
        let key = "imagecache.dev/pulled.da846933ae6566ce";
        for (removable, value) in [
            (Some(false), "Keep docker.io/library/nginx:1.29"),
            (Some(true), "Remove docker.io/library/nginx:1.29"),
            (None, ""),
        ] {
            let change = Change::from([(key.to_owned(), value.to_owned())]);
            assert_eq!(mark(REFERENCE, removable), change);
        }
    }

    #[test]
    fn what_is_marked_is_read_back_and_each_reference_has_its_own_mark() {
        let other = "r.example:5000/team/app@sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        let mut labels = labels(&[("io.cri-containerd.image", "managed")]);
        assert_eq!(Marks::of(&labels), Marks::default());
        apply(&mut labels, mark(REFERENCE, Some(true)));
        apply(&mut labels, mark(other, Some(true)));
        apply(&mut labels, mark(other, Some(false)));
        let both = [(REFERENCE.to_owned(), true), (other.to_owned(), false)];
        assert_eq!(Marks::of(&labels).pulled, BTreeMap::from(both));

        apply(&mut labels, mark(REFERENCE, None));
        let one = BTreeMap::from([(other.to_owned(), false)]);
        assert_eq!(Marks::of(&labels).pulled, one);
    }

    #[test]
    fn a_label_that_none_of_us_would_have_written_is_passed_over_and_cleared_all_the_same() {
        let key = key(REFERENCE);
        for (key, value) in [
            (key.as_str(), "Keep"),
            (key.as_str(), "keep docker.io/library/nginx:1.29"),
            (key.as_str(), "Keep  docker.io/library/nginx:1.29"),
            (key.as_str(), "Keep docker.io/library/nginx:1.30"),
            (
                "imagecache.dev/pulled.0",
                "Keep docker.io/library/nginx:1.29",
            ),
            ("imagecache.dev/pulled", "Keep docker.io/library/nginx:1.29"),
        ] {
            let labels = labels(&[(key, value), ("other.dev/pulled.0", value)]);
            assert_eq!(Marks::of(&labels), Marks::default(), "{key}={value}");
            assert_eq!(keys(&clear(&labels)), [key]);
        }
    }

    #[test]
    fn a_pin_is_taken_away_only_by_who_has_set_it() {
        let mut own = Labels::new();
        assert_eq!(unpin(&own), Change::new());
        let change = pin(&own);
        apply(&mut own, change);
        let marks = Marks::of(&own);
        assert!(marks.pinned && marks.pin_is_ours, "{own:?}");
        assert_eq!(pin(&own), Change::new());
        let change = unpin(&own);
        apply(&mut own, change);
        assert_eq!(own, Labels::new());

        let foreign = labels(&[(PIN, PINNED)]);
        let marks = Marks::of(&foreign);
        assert!(marks.pinned && !marks.pin_is_ours);
        for change in [pin(&foreign), unpin(&foreign), clear(&foreign)] {
            assert_eq!(change, Change::new());
        }
    }

    #[test]
    fn a_pin_of_ours_that_somebody_took_away_can_be_set_again_and_given_up() {
        let mut marked = labels(&[(OUR_PIN, TRUE)]);
        let marks = Marks::of(&marked);
        assert!(!marks.pinned && marks.pin_is_ours);
        assert_eq!(keys(&missing(&marked, unpin(&marked))), [OUR_PIN]);
        let change = missing(&marked, pin(&marked));
        assert_eq!(keys(&change), [PIN]);
        apply(&mut marked, change);
        assert!(Marks::of(&marked).pinned);
    }

    #[test]
    fn what_is_the_case_already_is_no_change() {
        let mut labels = Labels::new();
        apply(&mut labels, mark(REFERENCE, Some(true)));
        let again = mark(REFERENCE, Some(true));
        assert_eq!(missing(&labels, again), Change::new());
        assert_eq!(
            missing(&Labels::new(), mark(REFERENCE, None)),
            Change::new()
        );
        let other = mark(REFERENCE, Some(false));
        assert_eq!(missing(&labels, other.clone()), other);
    }

    #[test]
    fn the_longest_reference_fits_into_a_label() {
        let reference = format!(
            "{}/{}:{}",
            "h".repeat(255),
            "n".repeat(255),
            "t".repeat(128)
        );
        let change = mark(&reference, Some(true));
        assert!(
            change
                .iter()
                .all(|(key, value)| key.len() + value.len() < 4096)
        );
    }
}
