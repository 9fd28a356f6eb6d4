//! Our leases in the runtime: with one it keeps what a pull has downloaded, also between attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, ImageKey};
use super::memory::Memory;
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
    /// Not to be given up or replaced before: that has just failed.
    earliest: Duration,
    /// Its image is still to be pulled, and the next pull could outlast it.
    is_short: bool,
    /// The pull that it was made for may not have ended well, although an image is there: a refresh was interrupted, or the image is for
    /// another platform. The next attempt goes on from what it keeps.
    outlasts_presence: bool,
}

/// Our leases, by their ids.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    held: BTreeMap<String, Held>,
    /// Those that are being given up. A pull under one would fail, so its image waits for the end of that.
    releasing: BTreeMap<String, Held>,
}

impl Leases {
    /// These are all that the runtime has: their ids, their images, and when it may collect them. Those of the pulls under way it has too,
    /// or will have in a moment, and those that are being given up it will not.
    pub fn found(
        &mut self,
        leases: impl IntoIterator<Item = (String, ImageKey, Duration)>,
        pulls: &BTreeMap<ImageKey, Pull>,
    ) {
        self.held
            .retain(|_, lease| pulls.contains_key(&lease.image));
        for (id, image, expires) in leases {
            if !self.releasing.contains_key(&id) {
                self.hold(id, image, expires);
            }
        }
    }

    /// The runtime has this lease. One that it has already stays as it is, and so does its end.
    pub fn hold(&mut self, id: String, image: ImageKey, expires: Duration) {
        self.held.entry(id).or_insert(Held {
            image,
            expires,
            release: None,
            earliest: Duration::ZERO,
            is_short: false,
            // What has made one that is found is not known.
            outlasts_presence: true,
        });
    }

    /// A pull of this image begins. `is_present`: in place of one that is there.
    pub(super) fn began(&mut self, image: &ImageKey, is_present: bool) {
        self.all_of(image)
            .for_each(|lease| lease.outlasts_presence = is_present);
    }

    /// A pull of this image has ended well: nothing is left to go on from.
    pub(super) fn brought(&mut self, image: &ImageKey) {
        self.all_of(image)
            .for_each(|lease| lease.outlasts_presence = false);
    }

    fn all_of(&mut self, image: &ImageKey) -> impl Iterator<Item = &mut Held> {
        let held = self.held.values_mut();
        held.filter(move |lease| lease.image == *image)
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

    /// Says of each lease whether and when it is to be given up. Never while its pull runs, and not while its image is missing or will be
    /// asked for again from where an interrupted pull left it.
    pub(super) fn tend(
        &mut self,
        desired: &Desired,
        asked: &Answers,
        memory: &BTreeMap<ImageKey, Memory>,
        pulls: &BTreeMap<ImageKey, Pull>,
        now: Duration,
        timing: &Timing,
    ) {
        for lease in self.held.values_mut() {
            let wanted = desired.images.get(&lease.image);
            let answer = asked.get(&lease.image);
            let present = answer.and_then(Option::as_deref);
            if answer.is_some() && present.is_none() {
                // Whoever brings the missing image brings all that the lease keeps.
                lease.outlasts_presence = false;
            }
            let is_pulled_again = present.is_some_and(|image| {
                let memory = memory.get(&lease.image).zip(wanted);
                let due = memory.and_then(|(memory, wanted)| memory.refresh.due(wanted.refresh));
                image.foreign_platform.is_some() || due.is_some()
            });
            let is_needed = wanted.is_some()
                && (present.is_none() || (lease.outlasts_presence && is_pulled_again));
            let is_idle = !pulls.contains_key(&lease.image);
            let ends = lease.expires < now + timing.lease_spare;
            lease.is_short = is_idle && is_needed && ends && now >= lease.earliest;
            lease.release = if !is_idle || is_needed {
                None
            } else if present.is_some() || ends {
                Some(now.max(lease.earliest))
            } else {
                lease.release.or(Some(now + timing.lease_kept))
            };
        }
    }

    /// There is no room on the disk: what interrupted pulls of missing images have left goes now.
    pub(super) fn give_up_parts(&mut self, pulls: &BTreeMap<ImageKey, Pull>, now: Duration) {
        let idle = self.held.values_mut();
        for lease in idle.filter(|lease| !pulls.contains_key(&lease.image)) {
            lease.release = Some(now.max(lease.earliest));
            lease.is_short = false;
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
        let image = lease.image.clone();
        self.releasing.insert(id, lease);
        Some(image)
    }

    /// It is gone.
    pub fn released(&mut self, id: &str) {
        self.releasing.remove(id);
    }

    /// It could not be given up. That is tried again, not before `earliest`.
    pub fn not_released(&mut self, id: &str, earliest: Duration) {
        if let Some((id, lease)) = self.releasing.remove_entry(id) {
            self.held.entry(id).or_insert(Held { earliest, ..lease });
        }
    }

    /// Whether a lease for this image is being given up, or is to be now: a pull that began meanwhile would lose it.
    #[must_use]
    pub fn is_ending(&self, image: &ImageKey, now: Duration) -> bool {
        let is_due = |lease: &Held| lease.release.is_some_and(|at| at <= now);
        let mut held = self.held.values();
        let mut releasing = self.releasing.values();
        releasing.any(|lease| lease.image == *image)
            || held.any(|lease| lease.image == *image && is_due(lease))
    }
}

#[cfg(test)]
mod tests;
