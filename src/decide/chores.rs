//! What is to be written into the runtime about images: whose they are, what is pinned, and what goes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::desired::{Desired, Doubt, ImageKey};
use super::holdings::{ImageId, Own};
use super::reclaim::batch;
use super::timing::Timing;
use super::world::World;

/// One thing to do with an image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Chore {
    /// To write down that this agent has pulled it, and whether it is to be removed once nobody wants it.
    Mark {
        /// The image, and the name that it was pulled under.
        own: Own,
        /// Whether it is to be removed.
        removable: bool,
    },
    /// To protect it from the kubelet's garbage collection.
    Pin(ImageId),
    /// To take that protection away.
    Unpin(ImageId),
    /// To remove it, unless something keeps it.
    Remove(Own),
}

/// The chores under way, and how the last ones went. They are done one batch after the other: what is to be done next follows from
/// what the runtime says after the last.
#[derive(Clone, Debug, Default)]
pub struct Chores {
    /// A batch is under way.
    is_running: bool,
    /// The names that are being removed, or were since the runtime was last looked at.
    removed: BTreeSet<ImageKey>,
    /// The runtime has not been looked at since the last batch.
    unseen: bool,
    /// Batches that failed in a row.
    failures: u32,
    /// When the next one may begin.
    retry: Option<Duration>,
}

impl Chores {
    /// A batch begins.
    pub fn began(&mut self, chores: &[Chore]) {
        let removed = chores.iter().filter_map(|chore| match chore {
            Chore::Remove(own) => Some(own.key.clone()),
            Chore::Mark { .. } | Chore::Pin(_) | Chore::Unpin(_) => None,
        });
        self.removed.extend(removed);
        self.is_running = true;
    }

    /// The batch has ended.
    pub fn ended(&mut self, went_well: bool, now: Duration, timing: &Timing) {
        self.is_running = false;
        self.unseen = true;
        if went_well {
            (self.failures, self.retry) = (0, None);
        } else {
            self.failures = self.failures.saturating_add(1);
            self.retry = Some(now + timing.chore_retry.after(self.failures));
        }
    }

    /// Whether the last batch failed.
    #[must_use]
    pub const fn have_failed(&self) -> bool {
        self.failures > 0
    }

    /// The runtime was looked at.
    pub fn seen(&mut self) {
        if !self.is_running {
            self.unseen = false;
            self.removed.clear();
        }
    }

    /// Whether this name is being removed, or was a moment ago.
    #[must_use]
    pub fn removes(&self, key: &ImageKey) -> bool {
        self.removed.contains(key)
    }
}

/// The next batch, and when to look for one again.
pub(super) fn chores(
    world: &World,
    desired: &Desired,
    now: Duration,
) -> (Vec<Chore>, Option<Duration>) {
    let state = &world.chores;
    if state.is_running || state.unseen {
        return (Vec::new(), None);
    }
    if let Some(retry) = state.retry.filter(|retry| *retry > now) {
        return (Vec::new(), Some(retry));
    }
    let mut chores = Vec::new();
    for (id, holding) in &world.holdings {
        for (key, removable) in &holding.pulled {
            let is_here = world.image(key).is_some_and(|image| *image.id == **id);
            if let Some(wanted) = desired.images.get(key).filter(|_| is_here)
                && wanted.removable != *removable
            {
                chores.push(Chore::Mark {
                    own: Own {
                        key: key.clone(),
                        id: id.clone(),
                    },
                    removable: wanted.removable,
                });
            }
        }
    }
    let is_current = desired.doubt != Some(Doubt::NotCurrent);
    if is_current && world.pinning != Some(false) {
        chores.extend(world.pins.pin.iter().cloned().map(Chore::Pin));
    }
    chores.extend(world.pins.unpin.iter().cloned().map(Chore::Unpin));
    let (due, wake) = world.removals.due(now);
    chores.extend(due.into_iter().map(Chore::Remove));
    for own in reclaimed(world, desired, now) {
        let remove = Chore::Remove(own);
        if !chores.contains(&remove) {
            chores.push(remove);
        }
    }
    (chores, wake)
}

/// What is removed to make room for the first image in the order of pulls for which that helps.
fn reclaimed(world: &World, desired: &Desired, now: Duration) -> Vec<Own> {
    if !world.disk.limits().reclaim || desired.doubt.is_some() {
        return Vec::new();
    }
    let rank = |key: Option<&ImageKey>| {
        let wanted = key.and_then(|key| desired.images.get(key));
        wanted.map(|wanted| &wanted.rank)
    };
    let is_paused = |key: &ImageKey| desired.images.get(key).is_none_or(|wanted| wanted.paused);
    let mut lacks = world.disk.lacks(&world.pulls);
    lacks.retain(|(key, _)| !key.is_some_and(is_paused));
    lacks.sort_by_key(|(key, _)| rank(*key));
    let mut batches = lacks
        .into_iter()
        .map(|(_, lack)| batch(lack, &world.removals, desired, &world.holdings, now));
    batches.find(|batch| !batch.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
