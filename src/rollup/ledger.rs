//! The summaries: what is written of each, what has to be looked at, what goes out next. Pure, on a monotonic clock.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::pace::{Change, Intervals, Urgency};
use crate::api::ImageCacheStatus;
use crate::decide::fleet::LabelSet;
use crate::decide::selector::selects;
use crate::decide::{Cache, CacheName, Caches, Fleet, Timing, summarize};

/// The summaries of all `ImageCache`s.
#[derive(Debug)]
pub struct Ledger {
    timing: Timing,
    caches: Arc<Caches>,
    pages: BTreeMap<CacheName, Page>,
    /// The `ImageCache`s to look at, oldest first, each once.
    stale: VecDeque<CacheName>,
    /// When the last round was.
    round: Option<Duration>,
}

/// The summary of one `ImageCache`.
#[derive(Debug, Default)]
struct Page {
    uid: String,
    /// What the API server has.
    written: Written,
    /// When it was written by this process.
    written_at: Option<Duration>,
    /// When its `Ready` turned.
    turned_at: Option<Duration>,
    /// Something is new that it depends on.
    is_stale: bool,
    /// When it changes by itself.
    wake: Option<Duration>,
    /// It differs from what is written.
    change: Option<Change>,
    /// The round that it is part of has begun.
    is_granted: bool,
    /// A write is under way.
    is_going_out: bool,
    /// Nothing is written before this time: the last write failed.
    not_before: Duration,
}

/// A summary that was written: what the next one needs of it, and how to tell whether that differs.
#[derive(Clone, Debug, Default)]
pub struct Written {
    previous: ImageCacheStatus,
    fingerprint: Option<u64>,
}

/// A summary to write.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The object.
    pub name: CacheName,
    /// The uid of the object that it is about.
    pub uid: String,
    /// What to write.
    pub status: ImageCacheStatus,
    /// Why now.
    pub urgency: Urgency,
}

/// What came of a write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It was written to the object with this uid.
    Written(String),
    /// The object is gone.
    Gone,
    /// Nobody knows; it is tried again after this time.
    Failed(Duration),
}

impl Written {
    /// What the API server has of an `ImageCache`. `whole` keeps all of it: needed where no spec was ever readable.
    #[must_use]
    pub fn new(status: ImageCacheStatus, whole: bool) -> Self {
        let fingerprint = fingerprint(&status);
        let previous = if whole {
            status
        } else {
            ImageCacheStatus {
                conditions: status.conditions,
                ..ImageCacheStatus::default()
            }
        };
        Self {
            previous,
            fingerprint,
        }
    }

    /// Nothing was ever written, or what was does not read.
    fn differs(&self, status: &ImageCacheStatus) -> bool {
        self.fingerprint.is_none() || self.fingerprint != fingerprint(status)
    }
}

impl Ledger {
    /// Begins with what the API server has, by name and uid.
    #[must_use]
    pub fn new(timing: &Timing, stored: BTreeMap<CacheName, (String, Written)>) -> Self {
        let page = |(name, (uid, written))| {
            let page = Page {
                uid,
                written,
                ..Page::default()
            };
            (name, page)
        };
        Self {
            timing: *timing,
            caches: Arc::default(),
            pages: stored.into_iter().map(page).collect(),
            stale: VecDeque::new(),
            round: None,
        }
    }

    /// Takes what the API server was asked for at `asked_at`, and returns the `ImageCache`s whose status somebody else has written:
    /// they are to be looked at. What went out since then is newer than the answer.
    pub fn found(
        &mut self,
        mut stored: BTreeMap<CacheName, (String, Written)>,
        asked_at: Duration,
    ) -> Vec<CacheName> {
        let mut edited = Vec::new();
        for (name, page) in &mut self.pages {
            // Without a status there is nothing in the answer.
            let found = stored.remove(name);
            let (uid, written) = found.unwrap_or_else(|| (page.uid.clone(), Written::default()));
            let is_newer = page.is_going_out || page.written_at.is_some_and(|at| at >= asked_at);
            if uid != page.uid || is_newer || written.fingerprint == page.written.fingerprint {
                continue;
            }
            page.written = written;
            page.stale(name, &mut self.stale);
            edited.push(name.clone());
        }
        edited
    }

    /// Takes the `ImageCache`s as they are now. Those that changed, and new ones, are to be looked at.
    pub fn know(&mut self, caches: &Arc<Caches>) {
        if Arc::ptr_eq(&self.caches, caches) {
            return;
        }
        let before = std::mem::replace(&mut self.caches, Arc::clone(caches));
        self.pages
            .retain(|name, page| caches.get(name).is_some_and(|cache| cache.uid == page.uid));
        for (name, cache) in caches.iter() {
            let page = self.pages.entry(name.clone()).or_insert_with(|| Page {
                uid: cache.uid.clone(),
                ..Page::default()
            });
            if before
                .get(name)
                .is_none_or(|before| !Arc::ptr_eq(before, cache))
            {
                page.stale(name, &mut self.stale);
            }
        }
    }

    /// Notes that something is new about nodes with these labels.
    pub fn touch(&mut self, touched: &HashSet<LabelSet>) {
        if touched.is_empty() {
            return;
        }
        for (name, page) in &mut self.pages {
            let Some((_, spec)) = self.caches.get(name).and_then(|cache| cache.spec.as_ref())
            else {
                continue;
            };
            let mut lists = spec.cache_spec.iter();
            if !page.is_stale
                && lists.any(|list| touched.iter().any(|labels| selects(list, labels)))
            {
                page.stale(name, &mut self.stale);
            }
        }
    }

    /// Looks at one `ImageCache`, if there is one to look at: does its summary differ from what is written?
    pub fn look(&mut self, fleet: &Fleet, now: Duration, wall: Timestamp) -> bool {
        while let Some(name) = self.stale.pop_front() {
            // It may be gone, or have been looked at since.
            let Some(page) = self.pages.get_mut(&name).filter(|page| page.is_stale) else {
                continue;
            };
            page.is_stale = false;
            let Some(cache) = page.of(self.caches.get(&name)) else {
                continue;
            };
            page.look(cache, fleet, now, wall, &self.timing);
            return true;
        }
        false
    }

    /// Begins the next round if it is time, and wakes what changes by itself.
    pub fn tick(&mut self, now: Duration, intervals: &Intervals) {
        let is_due = |page: &Page| {
            page.due(self.round, intervals)
                .is_some_and(|due| due <= now)
        };
        let waits = |page: &Page| page.in_round() && !page.is_granted;
        let begins = self.pages.values().any(|page| waits(page) && is_due(page));
        for (name, page) in &mut self.pages {
            page.is_granted |= begins && page.in_round() && page.not_before <= now;
            if page.wake.is_some_and(|wake| wake <= now) {
                page.wake = None;
                page.stale(name, &mut self.stale);
            }
        }
        if begins {
            self.round = Some(now);
        }
    }

    /// When to look again, if nothing happens: now, if there is something to look at or to write.
    #[must_use]
    pub fn next(&self, intervals: &Intervals) -> Option<Duration> {
        let pages = self.pages.values();
        let next = pages.flat_map(|page| [page.wake, page.due(self.round, intervals)]);
        let stale = (!self.stale.is_empty()).then_some(Duration::ZERO);
        next.flatten().chain(stale).min()
    }

    /// The next summary to write now, as it is now.
    pub fn begin(
        &mut self,
        fleet: &Fleet,
        now: Duration,
        wall: Timestamp,
        intervals: &Intervals,
    ) -> Option<Outgoing> {
        loop {
            let pages = self.pages.iter().filter_map(|(name, page)| {
                let due = page.due(self.round, intervals).filter(|due| *due <= now)?;
                let waits = page.in_round();
                (page.is_granted || !waits).then_some((waits, due, name))
            });
            let name = pages.min()?.2.clone();
            let page = self.pages.get_mut(&name)?;
            let cache = page.of(self.caches.get(&name))?;
            // Reports may have come since it was looked at. It may even have become less urgent: then a round is early enough.
            let status = page.look(cache, fleet, now, wall, &self.timing);
            let Some(change) = page.change.filter(|_| page.is_granted || !page.in_round()) else {
                continue;
            };
            page.change = None;
            page.is_granted = false;
            page.is_going_out = true;
            return Some(Outgoing {
                name,
                uid: cache.uid.clone(),
                status,
                urgency: change.urgency,
            });
        }
    }

    /// Notes what came of a write.
    pub fn end(&mut self, sent: Outgoing, outcome: &Outcome, now: Duration) {
        let Some(page) = self.pages.get_mut(&sent.name) else {
            return;
        };
        let to = match outcome {
            Outcome::Written(to) => to.as_str(),
            Outcome::Gone | Outcome::Failed(_) => sent.uid.as_str(),
        };
        if page.uid == sent.uid && to != page.uid {
            *page = Page {
                uid: to.to_owned(),
                ..Page::default()
            };
        }
        if page.uid != to {
            return;
        }
        page.is_going_out &= sent.uid != to;
        match outcome {
            Outcome::Written(_) => {
                let cache = page.of(self.caches.get(&sent.name));
                let whole = cache.is_none_or(|cache| cache.spec.is_none());
                page.written = Written::new(sent.status, whole);
                page.written_at = Some(now);
                // The object was created anew under the same name, and now says what was meant for the old one: that is set right
                // as soon as possible, and at once if it says Ready.
                if sent.urgency != Urgency::Round && sent.uid == page.uid {
                    page.turned_at = Some(now);
                }
                page.not_before = Duration::ZERO;
            }
            // The watch tells what is there instead. If it does not, it is tried again, not all the time.
            Outcome::Gone => page.not_before = now + self.timing.api_retry.most,
            Outcome::Failed(wait) => page.not_before = now + *wait,
        }
        page.stale(&sent.name, &mut self.stale);
    }
}

impl Page {
    fn stale(&mut self, name: &CacheName, stale: &mut VecDeque<CacheName>) {
        if !self.is_stale {
            self.is_stale = true;
            stale.push_back(name.clone());
        }
    }

    /// The object that it is about, if this is it.
    fn of<'a>(&self, cache: Option<&'a Arc<Cache>>) -> Option<&'a Arc<Cache>> {
        cache.filter(|cache| cache.uid == self.uid)
    }

    fn look(
        &mut self,
        cache: &Cache,
        fleet: &Fleet,
        now: Duration,
        wall: Timestamp,
        timing: &Timing,
    ) -> ImageCacheStatus {
        let summary = summarize(cache, fleet, &self.written.previous, wall, timing);
        self.is_stale = false;
        self.wake = summary.wake.map(|wake| now + wake);
        self.change = self.written.differs(&summary.status).then(|| Change {
            since: self.change.map_or(now, |change| change.since),
            urgency: Urgency::of(&self.written.previous, &summary.status),
        });
        self.is_granted &= self.change.is_some();
        summary.status
    }

    /// It goes out with a round, and not at once.
    fn in_round(&self) -> bool {
        self.change
            .is_some_and(|change| change.urgency == Urgency::Round)
    }

    /// When it goes out, if it does.
    fn due(&self, round: Option<Duration>, intervals: &Intervals) -> Option<Duration> {
        let change = self.change.filter(|_| !self.is_going_out)?;
        let due = if self.is_granted {
            Duration::ZERO
        } else {
            change.due(self.turned_at, round, intervals)
        };
        Some(due.max(self.not_before))
    }
}

/// A number that is another one for another status.
fn fingerprint(status: &ImageCacheStatus) -> Option<u64> {
    struct Sink(DefaultHasher);
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sink = Sink(DefaultHasher::new());
    serde_json::to_writer(&mut sink, status).ok()?;
    Some(sink.0.finish())
}

#[cfg(test)]
mod tests;
