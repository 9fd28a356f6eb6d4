//! How far a filesystem is used.

use super::bytes::of;

/// How far a filesystem is used. What is kept for root counts as used, as in the kubelet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Its bytes.
    pub capacity: u64,
    /// Its bytes that are used.
    pub used: u64,
    /// Its inodes. 0: it has no limit of them.
    pub inodes: u64,
    /// Its inodes that are used.
    pub used_inodes: u64,
}

impl Usage {
    /// Whether more than so many percent of the bytes are used, with these in addition.
    pub(super) fn is_beyond(self, percent: u8, more: u64) -> bool {
        self.used.saturating_add(more) > self.at(percent)
    }

    /// The same of its inodes.
    pub(super) fn inodes_are_beyond(self, percent: u8) -> bool {
        self.used_inodes > Self::part(self.inodes, percent)
    }

    /// So many percent of its bytes.
    pub(super) fn at(self, percent: u8) -> u64 {
        Self::part(self.capacity, percent)
    }

    /// As in "80.4 %".
    pub(super) fn percent(self) -> String {
        percent(self.used, self.capacity)
    }

    /// How far it is used, for people.
    pub(super) fn of_bytes(self) -> String {
        let (percent, figures) = (self.percent(), of(self.used, self.capacity));
        format!("the image filesystem is used to {percent} ({figures})")
    }

    /// The same of its inodes.
    pub(super) fn of_inodes(self) -> String {
        let (used, all) = (self.used_inodes, self.inodes);
        let percent = percent(used, all);
        format!("{percent} of the inodes of the image filesystem are used ({used} of {all})")
    }

    /// So many percent of this, rounded down.
    pub(super) fn part(whole: u64, percent: u8) -> u64 {
        let part = u128::from(whole) * u128::from(percent) / 100;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

fn percent(some: u64, all: u64) -> String {
    let tenths = u128::from(some) * 1000 / u128::from(all.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_passed_by_the_first_byte_and_the_first_inode_beyond_it() {
        let of = |used, used_inodes| Usage {
            capacity: 1000,
            used,
            inodes: 500,
            used_inodes,
        };
        assert!(!of(800, 0).is_beyond(80, 0) && of(801, 0).is_beyond(80, 0));
        assert!(of(800, 0).is_beyond(80, 1) && !of(0, 0).is_beyond(100, 1000));
        assert!(!of(0, 400).inodes_are_beyond(80) && of(0, 401).inodes_are_beyond(80));
        assert!(!Usage::default().inodes_are_beyond(80), "it has no limit");
        assert!(of(u64::MAX, 0).is_beyond(80, u64::MAX));
        assert_eq!(Usage::part(u64::MAX, 100), u64::MAX);
    }

    #[test]
    fn figures_are_for_people() {
        let usage = Usage {
            capacity: 80 << 30,
            used: 66 << 30,
            inodes: 1000,
            used_inodes: 907,
        };
        assert_eq!(
            usage.of_bytes(),
            "the image filesystem is used to 82.5 % (66.0 of 80.0 GiB)"
        );
        assert_eq!(
            usage.of_inodes(),
            "90.7 % of the inodes of the image filesystem are used (907 of 1000)"
        );
    }
}
