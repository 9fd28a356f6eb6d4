//! Whether what is pulled fits: what each image needs, and what is left for it.

use std::collections::BTreeMap;

use super::{Disk, Held, Seen};
use crate::decide::bytes::alone;
use crate::decide::desired::ImageKey;
use crate::decide::pins::UNPACKED;
use crate::decide::usage::Usage;
use crate::decide::world::Pull;

/// What is lacking until pulls can go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lack {
    /// So many bytes.
    Bytes(u64),
    /// Inodes: how many an image has, nobody says.
    Inodes,
}

impl Disk {
    /// Whether there is room for each image whose size is known: once for those that are being pulled, and again and again for those
    /// that wait.
    pub(super) fn judge(&mut self, usage: Usage, pulls: &BTreeMap<ImageKey, Pull>) {
        let mut reserved = self.reserved(pulls);
        let mut fresh: Vec<_> = pulls
            .iter()
            .filter(|(key, pull)| {
                self.sizes.contains_key(*key) && !self.admitted.contains(*key) && !is_over(pull)
            })
            .collect();
        fresh.sort_by_key(|(_, pull)| pull.since);
        for (key, _) in fresh {
            let need = self.need(key);
            if usage.is_beyond(self.limits.high_percent, reserved.saturating_add(need)) {
                self.hold(key, usage, reserved);
            } else {
                self.held.remove(key);
                self.admitted.insert(key.clone());
                reserved = reserved.saturating_add(need);
            }
        }
        let waiting: Vec<_> = self
            .sizes
            .keys()
            .filter(|key| !pulls.contains_key(*key))
            .cloned()
            .collect();
        for key in waiting {
            let held = self.held.get(&key);
            if held.is_some_and(|held| held.until.is_some()) {
                continue;
            }
            let is_held = held.is_some();
            let limit = if is_held {
                self.low()
            } else {
                self.limits.high_percent
            };
            match usage.is_beyond(limit, reserved.saturating_add(self.need(&key))) {
                true if !is_held => self.hold(&key, usage, reserved),
                false if is_held => drop(self.held.remove(&key)),
                _ => {}
            }
        }
    }

    fn hold(&mut self, key: &ImageKey, usage: Usage, reserved: u64) {
        let need = self.need(key);
        let (_, total) = self.sizes.get(key).copied().unwrap_or_default();
        let then = Usage {
            used: usage.used.saturating_add(reserved).saturating_add(need),
            ..usage
        };
        let others = if reserved > 0 {
            " and those that are being pulled"
        } else {
            ""
        };
        let message = format!(
            "{}; with this image{others}, which takes about {UNPACKED} times its {}, it would be {}; {}",
            usage.of_bytes(),
            alone(total),
            then.percent(),
            self.until()
        );
        let until = None;
        self.held.insert(key.clone(), Held { message, until });
    }

    /// What the pulls under way are still going to take.
    fn reserved(&self, pulls: &BTreeMap<ImageKey, Pull>) -> u64 {
        let running = pulls.iter().filter(|(_, pull)| !is_over(pull));
        running
            .filter(|(key, _)| self.admitted.contains(*key))
            .fold(0, |sum, (key, _)| sum.saturating_add(self.need(key)))
    }

    /// What an image is still going to take. Of what has come of it the filesystem knows. Nothing is said of how far it is unpacked, so
    /// it is taken to be not.
    fn need(&self, key: &ImageKey) -> u64 {
        let size = self.sizes.get(key).copied();
        size.map_or(0, |(done, total)| {
            total.saturating_mul(UNPACKED).saturating_sub(done)
        })
    }

    /// How many bytes more may be used. [`u64::MAX`]: nobody counts.
    #[must_use]
    pub(in crate::decide) fn room(&self, pulls: &BTreeMap<ImageKey, Pull>) -> u64 {
        match self.seen.filter(|_| self.guards()) {
            Some(Seen { usage, .. }) => {
                let used = usage.used.saturating_add(self.reserved(pulls));
                usage.at(self.limits.high_percent).saturating_sub(used)
            }
            None => u64::MAX,
        }
    }

    /// Takes what this image needs from the room that is left, if it is enough. An image whose size is not known takes nothing yet.
    pub(in crate::decide) fn fits(&self, key: &ImageKey, room: &mut u64) -> bool {
        match room.checked_sub(self.need(key)) {
            Some(left) if !self.held.contains_key(key) => {
                *room = left;
                true
            }
            _ => false,
        }
    }

    /// What is lacking until anything at all can be pulled; if there is room for that, until each image can that waits alone.
    pub(in crate::decide) fn lacks(
        &self,
        pulls: &BTreeMap<ImageKey, Pull>,
    ) -> Vec<(Option<&ImageKey>, Lack)> {
        let Some(Seen { usage, .. }) = self.seen.filter(|_| self.guards()) else {
            return Vec::new();
        };
        let low = usage.at(self.low());
        match &self.closed {
            Some(_) if usage.is_beyond(self.low(), 0) => {
                vec![(None, Lack::Bytes(usage.used.saturating_sub(low)))]
            }
            Some(_) if usage.inodes_are_beyond(self.low()) => vec![(None, Lack::Inodes)],
            Some(_) => Vec::new(),
            // What they have unpacked counts twice while they run.
            None if pulls.values().any(|pull| !is_over(pull)) => Vec::new(),
            None => {
                let used = usage.used.saturating_add(self.reserved(pulls));
                let held = self.held.iter().filter(|(_, held)| held.until.is_none());
                held.map(|(key, _)| {
                    let then = used.saturating_add(self.need(key));
                    (Some(key), Lack::Bytes(then.saturating_sub(low)))
                })
                .collect()
            }
        }
    }
}

/// A pull that takes no more: it was told to stop, or has the image.
const fn is_over(pull: &Pull) -> bool {
    pull.cancelled || pull.landed
}
