//! The images of this agent that nobody wants any more: when they may go, which of them do, and what keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, Doubt, ImageKey};
use super::holdings::{Holdings, ImageId, Own, is_wanted};
use super::timing::Timing;
use super::world::Answers;
use crate::api::Reason;

/// What keeps an image that is to be removed, and the same in a sentence.
pub type Kept = (Reason, String);

/// An image that nobody wants any more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leaving {
    /// When it may be removed to make room.
    ripe: Duration,
    /// When it is to be removed. `None`: it stays, unless room is to be made.
    due: Option<Duration>,
    /// What has kept it, when that was last looked at.
    pub kept: Option<Kept>,
    /// When that is looked at again.
    look: Duration,
    /// Why it is not known whether anybody wants it.
    pub doubt: Option<String>,
}

/// The images that nobody wants any more, each under the name that it was pulled under.
#[derive(Clone, Debug, Default)]
pub struct Removals {
    unwanted: BTreeMap<Own, Leaving>,
    /// When it was last seen what is wanted.
    seen: Duration,
    /// It is not known now: nothing goes.
    is_held: bool,
}

impl Removals {
    /// It is not known what is wanted: nothing goes, and this time does not count.
    pub(super) fn hold(&mut self, now: Duration) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        for leaving in self.unwanted.values_mut() {
            leaving.ripe += passed;
            leaving.due = leaving.due.map(|due| due + passed);
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
        let mut unwanted = BTreeSet::new();
        for (id, holding) in holdings {
            for (key, removable) in &holding.pulled {
                if is_wanted(desired, asked, id, key) {
                    continue;
                }
                let own = Own {
                    key: key.clone(),
                    id: id.clone(),
                };
                let leaving = self.unwanted.entry(own.clone()).or_insert(Leaving {
                    ripe: now + timing.removal,
                    due: None,
                    kept: None,
                    look: Duration::ZERO,
                    doubt: None,
                });
                let absent = desired.absent.get(key);
                let goes = *removable || absent.is_some_and(|unwanted| !unwanted.paused);
                leaving.due = goes.then(|| leaving.due.unwrap_or(now + timing.removal));
                unwanted.insert(own);
            }
        }
        self.unwanted.retain(|own, _| unwanted.contains(own));
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
        for leaving in self.unwanted.values_mut() {
            leaving.doubt.clone_from(&doubt);
        }
    }

    /// Those to remove now, and when the next one is.
    #[must_use]
    pub fn due(&self, now: Duration) -> (Vec<Own>, Option<Duration>) {
        if self.is_held {
            return (Vec::new(), None);
        }
        let all = self.unwanted.iter();
        let all = all.filter_map(|(own, leaving)| Some((own, leaving.due?.max(leaving.look))));
        let (due, later): (Vec<_>, Vec<_>) = all.partition(|(_, at)| *at <= now);
        (
            due.into_iter().map(|(own, _)| own.clone()).collect(),
            later.into_iter().map(|(_, at)| at).min(),
        )
    }

    /// Whether this one may go to make room.
    pub(super) fn may_go(&self, own: &Own, now: Duration) -> bool {
        let leaving = self.unwanted.get(own).filter(|_| !self.is_held);
        leaving.is_some_and(|leaving| leaving.ripe.max(leaving.look) <= now)
    }

    /// Something keeps it: it is looked at again after a while. True if that is news.
    pub fn kept(&mut self, own: &Own, kept: Kept, now: Duration, timing: &Timing) -> bool {
        let Some(leaving) = self.unwanted.get_mut(own) else {
            return false;
        };
        leaving.look = now + timing.kept_look;
        let before = leaving.kept.replace(kept);
        before != leaving.kept
    }

    /// It is gone. True if it was to go, and did not only make room.
    pub fn gone(&mut self, own: &Own) -> bool {
        let leaving = self.unwanted.remove(own);
        leaving.is_some_and(|leaving| leaving.due.is_some())
    }

    /// The images whose time has come, each with its names: those too that something keeps.
    #[must_use]
    pub fn by_image(&self, now: Duration) -> BTreeMap<ImageId, BTreeSet<ImageKey>> {
        let mut images = BTreeMap::<_, BTreeSet<_>>::new();
        let is_due = |leaving: &Leaving| leaving.due.is_some_and(|due| due <= now);
        let due = self.unwanted.iter().filter(|(_, leaving)| is_due(leaving));
        for (Own { key, id }, _) in due {
            images.entry(id.clone()).or_default().insert(key.clone());
        }
        images
    }

    /// Under each name, the image that is to be removed.
    pub fn iter(&self) -> impl Iterator<Item = (&Own, &Leaving)> {
        self.unwanted
            .iter()
            .filter(|(_, leaving)| leaving.due.is_some())
    }

    /// The image that is to be removed under this name.
    #[must_use]
    pub fn of(&self, key: &ImageKey) -> Option<(&ImageId, &Leaving)> {
        let first = Own {
            key: key.clone(),
            id: "".into(),
        };
        let mut named = self.unwanted.range(first..);
        let (own, leaving) =
            named.find(|(own, leaving)| own.key != *key || leaving.due.is_some())?;
        (own.key == *key).then_some((&own.id, leaving))
    }
}
