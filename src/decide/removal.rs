//! The images of this agent that nobody wants any more: since when, and what keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, Doubt, ImageKey};
use super::holdings::{Holdings, ImageId, Own, is_wanted};
use super::timing::Timing;
use super::world::Answers;
use crate::api::Reason;

/// What keeps an image that is to be removed, and the same in a sentence.
pub type Kept = (Reason, String);

/// An image that is to be removed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leaving {
    /// When it may be removed.
    pub due: Duration,
    /// What has kept it, when that was last looked at.
    pub kept: Option<Kept>,
    /// Why it is not known whether anybody wants it.
    pub doubt: Option<String>,
}

/// The images that are to be removed, each under the name that it was pulled under.
#[derive(Clone, Debug, Default)]
pub struct Removals {
    leaving: BTreeMap<Own, Leaving>,
    /// When it was last seen what is wanted.
    seen: Duration,
    /// It is not known now: nothing goes.
    is_held: bool,
}

impl Removals {
    /// It is not known what is wanted: nothing goes, and this time does not count.
    pub(super) fn hold(&mut self, now: Duration) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        for leaving in self.leaving.values_mut() {
            leaving.due += passed;
        }
        self.is_held = true;
    }

    /// Sees what nobody wants now.
    pub(super) fn tend(
        &mut self,
        desired: &Desired,
        asked: &Answers,
        holdings: &Holdings,
        now: Duration,
        timing: &Timing,
    ) {
        let leaving = holdings.iter().flat_map(|(id, holding)| {
            let names = holding.pulled.iter();
            let goes = names.filter(|(key, removable)| {
                let is_to_be_gone = desired
                    .absent
                    .get(*key)
                    .is_some_and(|unwanted| !unwanted.paused);
                (**removable || is_to_be_gone) && !is_wanted(desired, asked, id, key)
            });
            goes.map(|(key, _)| (id.clone(), key.clone()))
        });
        let leaving: BTreeSet<Own> = leaving.collect();
        self.leaving.retain(|own, _| leaving.contains(own));
        for own in leaving {
            self.leaving.entry(own).or_insert(Leaving {
                due: now + timing.removal,
                kept: None,
                doubt: None,
            });
        }
        match &desired.doubt {
            None => (self.seen, self.is_held) = (now, false),
            Some(_) => self.hold(now),
        }
        let doubt = desired.doubt.as_ref().map(|doubt| match doubt {
            Doubt::NotCurrent => "the API server does not tell who wants it".to_owned(),
            Doubt::Unreadable(cache) => {
                format!("the spec of {cache} cannot be read, and may want it")
            }
        });
        for leaving in self.leaving.values_mut() {
            leaving.doubt.clone_from(&doubt);
        }
    }

    /// Those to remove now, and when the next one is.
    #[must_use]
    pub fn due(&self, now: Duration) -> (Vec<Own>, Option<Duration>) {
        if self.is_held {
            return (Vec::new(), None);
        }
        let (due, later): (Vec<_>, Vec<_>) = self
            .leaving
            .iter()
            .partition(|(_, leaving)| leaving.due <= now);
        (
            due.into_iter().map(|(own, _)| own.clone()).collect(),
            later.into_iter().map(|(_, leaving)| leaving.due).min(),
        )
    }

    /// Something keeps it: it is looked at again after a while.
    pub fn kept(&mut self, own: &Own, kept: Kept, now: Duration, timing: &Timing) {
        if let Some(leaving) = self.leaving.get_mut(own) {
            leaving.due = now + timing.kept_look;
            leaving.kept = Some(kept);
        }
    }

    /// It is gone.
    pub fn gone(&mut self, own: &Own) {
        self.leaving.remove(own);
    }

    /// The images whose time has come, each with its names: those too that something keeps.
    #[must_use]
    pub fn by_image(&self, now: Duration) -> BTreeMap<ImageId, BTreeSet<ImageKey>> {
        let mut images = BTreeMap::<_, BTreeSet<_>>::new();
        let is_due = |leaving: &Leaving| leaving.due <= now || leaving.kept.is_some();
        let due = self.leaving.iter().filter(|(_, leaving)| is_due(leaving));
        for ((id, key), _) in due {
            images.entry(id.clone()).or_default().insert(key.clone());
        }
        images
    }

    /// Under each name, the image that leaves.
    pub fn iter(&self) -> impl Iterator<Item = (&Own, &Leaving)> {
        self.leaving.iter()
    }

    /// The image that leaves under this name.
    #[must_use]
    pub fn of(&self, key: &ImageKey) -> Option<&Leaving> {
        let mut all = self.leaving.iter();
        all.find(|((_, name), _)| name == key)
            .map(|(_, leaving)| leaving)
    }
}
