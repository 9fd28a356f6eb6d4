//! What is remembered of a wanted image from one attempt to the next.

use std::time::Duration;

use jiff::Timestamp;

use super::backoff;
use super::refresh::Refresh;
use super::registries::Credentials;
use super::timing::Timing;
use super::world::{Now, PresentImage};
use crate::api::Reason;

/// A failed attempt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failed {
    /// The cause's class.
    pub reason: Reason,
    /// The cause in a sentence.
    pub message: String,
}

/// What is remembered of an image while it is wanted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// Attempts that failed since the image was last there.
    pub failures: u32,
    /// The last one of them.
    pub last: Option<Failed>,
    /// When it may be tried again, and the same for people.
    pub retry: Option<(Duration, Timestamp)>,
    /// Whose credentials it is asked for with, as the last pull of it has found. `None`: not known.
    pub asked_as: Option<Credentials>,
    /// It was there.
    pub seen: bool,
    /// When something else removed it, as far as that is remembered.
    pub evictions: Vec<Duration>,
    /// How far the image filesystem was used when it was last seen before that.
    pub disk: Option<String>,
    /// When it was last asked for, and when it is to be asked for again.
    pub refresh: Refresh,
}

impl Memory {
    pub(super) fn arrived(&mut self, image: &PresentImage) {
        self.seen = true;
        // One for another platform is pulled again, and how often that failed is remembered.
        if image.foreign_platform.is_none() {
            self.failures = 0;
            self.last = None;
            self.retry = None;
        }
    }

    /// The last attempt to pull the image, or to ask for it again, failed.
    pub(super) fn is_failing(&self) -> bool {
        self.last.is_some() || self.refresh.last.is_some()
    }

    /// Something changed that the failures so far say nothing about. Returns whether there were any.
    pub(super) fn start_anew(&mut self) -> bool {
        let has_failed = self.last.is_some();
        if has_failed {
            self.failures = 0;
            self.retry = None;
        }
        let refresh_failed = self.refresh.last.is_some();
        if refresh_failed {
            (self.refresh.failures, self.refresh.retry) = (0, None);
        }
        has_failed || refresh_failed
    }

    /// What failed for want of space need not wait any longer.
    pub(super) fn room_came_back(&mut self) {
        if self.is_for_want_of_space() {
            self.retry = None;
        }
    }

    /// The last attempt to pull the image filled the disk.
    pub(super) fn is_for_want_of_space(&self) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|last| last.reason == Reason::NoSpace)
    }

    pub(super) fn try_again(&mut self, delay: Duration, now: Now) {
        self.retry = Some(later(now, delay));
    }

    /// Pulled again at once the first time, later and later when it keeps happening.
    pub(super) fn evicted(&mut self, disk: Option<String>, now: Now, timing: &Timing, chance: f64) {
        self.disk = disk;
        self.evictions
            .retain(|at| now.monotonic.saturating_sub(*at) < timing.eviction_memory);
        let before = u32::try_from(self.evictions.len()).unwrap_or(u32::MAX);
        self.evictions.push(now.monotonic);
        if before > 0 {
            self.try_again(backoff::delay(Reason::Evicted, before, timing, chance), now);
        }
    }
}

/// This much later, on both clocks. The one for people has whole seconds: the API server keeps no others.
pub(super) fn later(now: Now, delay: Duration) -> (Duration, Timestamp) {
    let wall = now.wall.as_second().saturating_add(ceil_seconds(delay));
    let wall = Timestamp::from_second(wall).unwrap_or(now.wall);
    (now.monotonic + delay, wall)
}

fn ceil_seconds(delay: Duration) -> i64 {
    let whole = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
    if delay.subsec_nanos() > 0 {
        whole.saturating_add(1)
    } else {
        whole
    }
}
