//! The images of this agent that nobody wants any more: since when, and what keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, Doubt, ImageKey};
use super::holdings::{Holdings, Own, is_wanted};
use super::timing::Timing;
use super::world::Answers;
use crate::api::Reason;

/// What keeps an image that is to be removed, and the same in a sentence.
pub type Kept = (Reason, String);

/// An image that is to be removed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leaving {
    /// Nobody has wanted it since.
    pub since: Duration,
    /// When it may be removed.
    pub due: Duration,
    /// What has kept it, when that was last looked at.
    pub kept: Option<Kept>,
}

/// The images that are to be removed, each under the name that it was pulled under.
#[derive(Clone, Debug, Default)]
pub struct Removals {
    leaving: BTreeMap<Own, Leaving>,
}

impl Removals {
    /// Nothing is known of what is wanted: whatever was about to go begins anew.
    pub fn forget(&mut self) {
        self.leaving.clear();
    }

    /// Sees what nobody wants now. What may still be wanted begins anew.
    pub(super) fn tend(
        &mut self,
        desired: &Desired,
        asked: &Answers,
        holdings: &Holdings,
        now: Duration,
        timing: &Timing,
    ) {
        if desired.doubt == Some(Doubt::NotCurrent) {
            self.forget();
            return;
        }
        let doubt = desired.doubt.as_ref().and_then(|doubt| match doubt {
            Doubt::NotCurrent => None,
            Doubt::Unreadable(cache) => Some((
                Reason::WantedElsewhere,
                format!("the spec of {cache} cannot be read, and may want it"),
            )),
        });
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
            let leaving = self.leaving.entry(own).or_insert_with(|| Leaving {
                since: now,
                due: now + timing.removal,
                kept: None,
            });
            if let Some(kept) = &doubt {
                (leaving.since, leaving.due) = (now, now + timing.removal);
                leaving.kept = Some(kept.clone());
            } else if leaving
                .kept
                .as_ref()
                .is_some_and(|kept| kept.0 == Reason::WantedElsewhere)
            {
                leaving.kept = None;
            }
        }
    }

    /// Those to remove now, and when the next one is.
    #[must_use]
    pub fn due(&self, now: Duration) -> (Vec<Own>, Option<Duration>) {
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
