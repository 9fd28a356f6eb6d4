//! Asking registries again for what is present: at intervals, and when an annotation says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::desired::{Desired, ImageKey};
use super::memory::Failed;
use crate::api::NodeImageCacheStatus;
use crate::image::hash;

/// When an image was last asked for, and when it is to be asked for again.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Refresh {
    /// When its name was last resolved, or when it was found.
    pub resolved: Option<Resolved>,
    /// An annotation asks for it, from this time on.
    pub asked: Option<Duration>,
    /// Attempts that failed since, and the last one of them.
    pub failures: u32,
    /// The last one of them.
    pub last: Option<Failed>,
    /// When the next attempt is due after a failure, and the same for people.
    pub retry: Option<(Duration, Timestamp)>,
}

/// A moment from which an interval is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resolved {
    /// The moment.
    pub at: Duration,
    /// The share of the interval after which it is over, in thousandths: nodes that pulled together do not ask together.
    pub share: u32,
}

impl Resolved {
    /// The registry has been asked. `chance` is a random number from 0 to 1.
    #[must_use]
    pub fn asked(at: Duration, chance: f64) -> Self {
        Self {
            at,
            share: 900 + thousandths(chance) / 5,
        }
    }

    /// The image was there already: when it was asked for is not known.
    #[must_use]
    pub fn found(at: Duration, key: &ImageKey, chance: f64) -> Self {
        let own = u32::try_from(hash(key) % 1000).unwrap_or(0);
        Self {
            at,
            share: (own + thousandths(chance)) % 1000,
        }
    }
}

/// A number from 0 to 1 in thousandths.
fn thousandths(chance: f64) -> u32 {
    let chance = Duration::from_secs(1).mul_f64(chance.clamp(0.0, 1.0));
    u32::try_from(chance.as_millis()).unwrap_or(0)
}

impl Refresh {
    /// The same, if it has failed and will be tried again.
    #[must_use]
    pub fn failing(&self, interval: Option<Duration>) -> Option<&Self> {
        (self.last.is_some() && self.due(interval).is_some()).then_some(self)
    }

    /// When a present image is to be asked for again. `interval`: how often; `None`: only when an annotation says so.
    #[must_use]
    pub fn due(&self, interval: Option<Duration>) -> Option<Duration> {
        let regular = interval
            .zip(self.resolved)
            .map(|(interval, from)| from.at + interval.mul_f64(f64::from(from.share) / 1000.0));
        let due = regular.into_iter().chain(self.asked).min()?;
        Some(self.retry.map_or(due, |(at, _)| at.max(due)))
    }
}

/// The annotations that were acted on.
#[derive(Clone, Debug, Default)]
pub struct Refreshes {
    /// By the uid of the `ImageCache`: the value that every image has been asked for because of.
    acted: BTreeMap<String, Option<Arc<str>>>,
    pending: BTreeMap<String, Pending>,
}

/// A value that is being acted on.
#[derive(Clone, Debug)]
struct Pending {
    value: Arc<str>,
    images: BTreeSet<ImageKey>,
}

impl Refreshes {
    /// Returns the images that an annotation asks for anew. `reported`: what the agent before this one had acted on.
    ///
    /// An annotation that an `ImageCache` has from the beginning asks for nothing that is not pulled anyway, and one that is taken
    /// away asks for nothing. A digest always means the same image.
    pub fn wants(
        &mut self,
        desired: &Desired,
        reported: Option<&NodeImageCacheStatus>,
    ) -> BTreeSet<ImageKey> {
        let uids: BTreeSet<&str> = desired
            .caches
            .iter()
            .map(|cache| cache.uid.as_str())
            .collect();
        self.acted.retain(|uid, _| uids.contains(uid.as_str()));
        self.pending.retain(|uid, _| uids.contains(uid.as_str()));
        let mut asked = BTreeSet::new();
        for cache in &desired.caches {
            let before = self.acted.entry(cache.uid.clone()).or_insert_with(|| {
                let mut reports = reported.into_iter().flat_map(|report| &report.caches);
                match reports.find(|report| report.uid == cache.uid) {
                    Some(report) => report.refresh.as_deref().map(Arc::from),
                    None => cache.refresh.clone(),
                }
            });
            let Some(value) = cache.refresh.clone().filter(|_| *before != cache.refresh) else {
                before.clone_from(&cache.refresh);
                self.pending.remove(&cache.uid);
                continue;
            };
            let can_move = |key: &&ImageKey| {
                let wanted = desired.images.get(*key);
                let reference = wanted.and_then(|wanted| wanted.reference.as_ref().ok());
                reference.is_some_and(|reference| reference.digest().is_none())
            };
            let images: BTreeSet<_> = cache
                .images()
                .map(|(_, key)| key)
                .filter(can_move)
                .cloned()
                .collect();
            if let Some(pending) = self.pending.get_mut(&cache.uid)
                && pending.value == value
            {
                // What is not listed any more need not be asked for.
                pending.images.retain(|key| images.contains(key));
                continue;
            }
            asked.extend(images.iter().cloned());
            self.pending
                .insert(cache.uid.clone(), Pending { value, images });
        }
        self.settle();
        asked
    }

    /// The registry was asked for this image, whatever it answered.
    pub fn asked(&mut self, key: &ImageKey) {
        for pending in self.pending.values_mut() {
            pending.images.remove(key);
        }
        self.settle();
    }

    /// The value that was last acted on.
    #[must_use]
    pub fn acted(&self, uid: &str) -> Option<&str> {
        self.acted.get(uid)?.as_deref()
    }

    fn settle(&mut self) {
        let acted = &mut self.acted;
        self.pending.retain(|uid, pending| {
            if pending.images.is_empty() {
                acted.insert(uid.clone(), Some(Arc::clone(&pending.value)));
            }
            !pending.images.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn an_interval_is_counted_from_the_last_question_and_nodes_drift_apart() {
        let minutes = |resolved| {
            let refresh = Refresh {
                resolved: Some(resolved),
                ..Refresh::default()
            };
            refresh.due(Some(HOUR)).map(|due| due.as_secs() / 60)
        };
        assert_eq!(minutes(Resolved::asked(HOUR, 0.0)), Some(60 + 54));
        assert_eq!(minutes(Resolved::asked(HOUR, 1.0)), Some(60 + 66));
        let found = |chance| minutes(Resolved::found(HOUR, &"r.io/a:1".into(), chance));
        assert!(found(0.1) != found(0.6) && found(0.1) < Some(120) && found(0.6) < Some(120));
    }

    #[test]
    fn without_an_interval_only_an_annotation_asks_and_a_failure_waits() {
        let mut refresh = Refresh {
            resolved: Some(Resolved::asked(HOUR, 0.5)),
            ..Refresh::default()
        };
        assert_eq!(refresh.due(None), None);
        refresh.asked = Some(2 * HOUR);
        assert_eq!(refresh.due(None), Some(2 * HOUR));
        refresh.retry = Some((3 * HOUR, Timestamp::UNIX_EPOCH));
        assert_eq!(refresh.due(None), Some(3 * HOUR));
        assert_eq!(refresh.due(Some(9 * HOUR)), Some(3 * HOUR));
    }
}
