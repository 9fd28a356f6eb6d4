//! Our leases in the runtime: with one it keeps what a pull has downloaded, also between attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, ImageKey};
use super::timing::Timing;
use super::world::{Answers, Pull};
use crate::image::hash;

/// The id of an image's first lease: the same in this process and the next. Two images that share one, by a chance of one in 2^64,
/// would share their downloads too.
fn lease_id(key: &ImageKey) -> String {
    format!("imagecache-agent-{:016x}", hash(key))
}

/// What the id of every second lease of an image ends with.
const SECOND: &str = "-b";

/// A lease that the runtime has.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Held {
    image: ImageKey,
    /// When the runtime may collect it.
    expires: Duration,
    /// When it is to be given up, as things stand.
    release: Option<Duration>,
    /// Its image is still to be pulled, and the next pull could outlast it.
    is_short: bool,
}

/// Our leases, by their ids.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    held: BTreeMap<String, Held>,
    /// Those that are being given up. A pull under one would fail, so its image waits for the end of that.
    releasing: BTreeMap<String, ImageKey>,
}

impl Leases {
    /// These are all that the runtime has: their ids, their images, and when it may collect them.
    pub fn found(&mut self, leases: impl IntoIterator<Item = (String, ImageKey, Duration)>) {
        self.held.clear();
        for (id, image, expires) in leases {
            self.hold(id, image, expires);
        }
    }

    /// The runtime has this lease. One that it has already stays as it is, and so does its end.
    pub fn hold(&mut self, id: String, image: ImageKey, expires: Duration) {
        self.held.entry(id).or_insert(Held {
            image,
            expires,
            release: None,
            is_short: false,
        });
    }

    /// The lease of an image: its id, and whether the runtime has it.
    #[must_use]
    pub fn of(&self, image: &ImageKey) -> (String, bool) {
        let held = self.held.iter().find(|(_, lease)| lease.image == *image);
        held.map_or_else(|| (lease_id(image), false), |(id, _)| (id.clone(), true))
    }

    /// The ids of those whose images are not being pulled.
    #[must_use]
    pub fn idle(&self, pulls: &BTreeMap<ImageKey, Pull>) -> BTreeSet<String> {
        let idle = self
            .held
            .iter()
            .filter(|(_, lease)| !pulls.contains_key(&lease.image));
        let held = idle.map(|(id, _)| id.clone());
        held.chain(self.releasing.keys().cloned()).collect()
    }

    /// Those to replace now: their ids, and their images.
    pub(super) fn short(&self) -> impl Iterator<Item = (&String, &ImageKey)> {
        let short = self.held.iter().filter(|(_, lease)| lease.is_short);
        short.map(|(id, lease)| (id, &lease.image))
    }

    /// The id of the lease that replaces this one. There are two of each image, in turns.
    #[must_use]
    pub fn successor(id: &str) -> String {
        id.strip_suffix(SECOND)
            .map_or_else(|| format!("{id}{SECOND}"), str::to_owned)
    }

    /// Says of each lease whether and when it is to be given up. Never while its pull runs.
    pub(super) fn tend(
        &mut self,
        desired: &Desired,
        asked: &Answers,
        pulls: &BTreeMap<ImageKey, Pull>,
        now: Duration,
        timing: &Timing,
    ) {
        for lease in self.held.values_mut() {
            let is_present = asked.get(&lease.image).is_some_and(Option::is_some);
            let is_wanted = desired.images.contains_key(&lease.image);
            let is_idle = !pulls.contains_key(&lease.image);
            let ends = lease.expires < now + timing.lease_spare;
            lease.is_short = is_idle && is_wanted && !is_present && ends;
            lease.release = if !is_idle || (is_wanted && !is_present) {
                None
            } else if is_present || ends {
                Some(now)
            } else {
                lease.release.or(Some(now + timing.lease_kept))
            };
        }
    }

    /// The ids of those to give up now, and when the next one is.
    #[must_use]
    pub fn due(&self, now: Duration) -> (Vec<String>, Option<Duration>) {
        let release = |(id, lease): (&String, &Held)| Some((lease.release?, id.clone()));
        let (due, later): (Vec<_>, Vec<_>) = self
            .held
            .iter()
            .filter_map(release)
            .partition(|(at, _)| *at <= now);
        let next = later.into_iter().map(|(at, _)| at).min();
        (due.into_iter().map(|(_, id)| id).collect(), next)
    }

    /// Giving this one up, or replacing it, has begun. Returns its image.
    pub fn release(&mut self, id: &str) -> Option<ImageKey> {
        let (id, lease) = self.held.remove_entry(id)?;
        self.releasing.insert(id, lease.image.clone());
        Some(lease.image)
    }

    /// Giving it up has ended.
    pub fn released(&mut self, id: &str) {
        self.releasing.remove(id);
    }

    /// Whether a lease for this image is being given up.
    #[must_use]
    pub fn is_releasing(&self, image: &ImageKey) -> bool {
        self.releasing.values().any(|releasing| releasing == image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn leases(images: &[&str]) -> Leases {
        let mut leases = Leases::default();
        leases.found(images.iter().map(|image| {
            let (id, image) = ((*image).to_owned(), ImageKey::from(*image));
            (id, image, 100 * HOUR)
        }));
        leases
    }

    #[test]
    fn what_is_being_given_up_is_held_no_more_and_blocks_its_image_until_it_is_gone() {
        let mut leases = leases(&["a", "b"]);
        leases.release("a");
        assert!(leases.is_releasing(&"a".into()) && !leases.is_releasing(&"b".into()));
        leases.released("a");
        assert!(!leases.is_releasing(&"a".into()));
        leases.release("gone");
        assert!(leases.releasing.is_empty());
    }

    #[test]
    fn an_image_has_two_leases_in_turns() {
        let image = ImageKey::from("a");
        let mut leases = Leases::default();
        let (first, is_held) = leases.of(&image);
        assert!(!is_held);
        let second = Leases::successor(&first);
        assert_eq!(Leases::successor(&second), first);
        leases.hold(second.clone(), image.clone(), HOUR);
        assert_eq!(leases.of(&image), (second, true));
    }

    #[test]
    fn a_lease_that_is_there_keeps_its_end() {
        let mut leases = leases(&["a"]);
        leases.hold("a".into(), "a".into(), 200 * HOUR);
        let (desired, timing) = (Desired::default(), Timing::default());
        leases.tend(
            &desired,
            &Answers::new(),
            &BTreeMap::new(),
            77 * HOUR,
            &timing,
        );
        assert_eq!(leases.due(77 * HOUR).0, ["a"]);
    }
}
