//! When no image at all is pulled any more, and when pulls go on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Disk, Held, ROOM, Seen};
use crate::api::Reason;
use crate::decide::desired::{Desired, ImageKey};
use crate::decide::timing::Timing;
use crate::decide::usage::Usage;
use crate::decide::world::{Outcome, Pull};

/// Why no image at all is pulled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Closed {
    pub(super) cause: Cause,
    /// With the figures from when it closed: those that move would be written all the time.
    pub(super) message: String,
    /// What was seen before this says nothing of it.
    since: Duration,
    /// It was beyond its limit although nothing was pulled any more.
    was_over: bool,
    /// The pulls that it has stopped.
    stopped: BTreeSet<ImageKey>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cause {
    Bytes,
    Inodes,
    /// The disk filled up.
    NoSpace,
}

impl Cause {
    /// The same for the node's condition.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Bytes => "AboveLimit",
            Self::Inodes => "InodesAboveLimit",
            Self::NoSpace => Reason::NoSpace.as_str(),
        }
    }
}

impl Disk {
    /// A pull has ended.
    pub(in crate::decide) fn ended(&mut self, key: &ImageKey, outcome: &Outcome, now: Duration) {
        self.admitted.remove(key);
        match outcome {
            Outcome::Pulled(_) | Outcome::Found(_) => {
                self.sizes.remove(key);
                self.stops.remove(key);
            }
            Outcome::Failed(failed) => {
                // What had come was thrown away.
                if matches!(failed.reason, Reason::NoSpace | Reason::Corrupt)
                    && let Some((done, _)) = self.sizes.get_mut(key)
                {
                    *done = 0;
                }
                if failed.reason == Reason::NoSpace && self.guards() {
                    let before = self.closed.take();
                    self.closed = Some(Closed {
                        cause: Cause::NoSpace,
                        message: format!(
                            "the disk filled up while {key} was pulled; {}",
                            self.until()
                        ),
                        since: now,
                        was_over: false,
                        stopped: before.map(|before| before.stopped).unwrap_or_default(),
                    });
                }
            }
            Outcome::Cancelled => {
                if let Some(closed) = &mut self.closed {
                    closed.stopped.insert(key.clone());
                }
            }
            Outcome::RuntimeLost | Outcome::Limited => {}
        }
        if let Some(closed) = &mut self.closed {
            closed.since = now;
        }
    }

    /// Whether pulls have waited for room for so long that what interrupted ones have left may be what takes it. It is given up then, and
    /// counts as what these pulls had taken.
    pub(in crate::decide) fn gives_up_parts(&mut self, now: Duration, timing: &Timing) -> bool {
        match &mut self.closed {
            Some(closed) if closed.was_over && now >= closed.since + timing.lease_kept => {
                (closed.was_over, closed.since) = (false, now);
                true
            }
            _ => false,
        }
    }

    /// Something else has brought this image.
    pub(in crate::decide) fn arrived(&mut self, key: &ImageKey) {
        self.sizes.remove(key);
    }

    /// Closes and opens, by the newest look. `bytes`: how far the pulls under way are. True if there is room again where there was none.
    pub(in crate::decide) fn tend<'a>(
        &mut self,
        desired: &Desired,
        pulls: &BTreeMap<ImageKey, Pull>,
        bytes: impl Iterator<Item = (&'a ImageKey, (u64, u64))>,
        now: Duration,
        timing: &Timing,
    ) -> bool {
        let known = bytes.filter(|(_, (_, total))| *total > 0);
        self.sizes
            .extend(known.map(|(key, bytes)| (key.clone(), bytes)));
        let is_wanted = |key: &ImageKey| desired.images.contains_key(key);
        self.sizes
            .retain(|key, _| is_wanted(key) || pulls.contains_key(key));
        self.admitted.retain(|key| pulls.contains_key(key));
        self.stops.retain(|key, _| is_wanted(key));
        self.held.retain(|key, held| {
            is_wanted(key)
                && match held.until {
                    Some(until) => now < until,
                    None => self.sizes.contains_key(key),
                }
        });
        let fresh = self.seen.filter(|seen| now <= seen.good_until);
        let Some(Seen { usage, at, .. }) = fresh.filter(|_| self.guards()) else {
            return false;
        };
        let opens = self.close_or_open(usage, at, pulls, timing);
        self.judge(usage, pulls);
        opens
    }

    fn close_or_open(
        &mut self,
        usage: Usage,
        at: Duration,
        pulls: &BTreeMap<ImageKey, Pull>,
        timing: &Timing,
    ) -> bool {
        let pulls_run = pulls.values().any(|pull| !pull.landed);
        let Some(closed) = &mut self.closed else {
            self.closed = self.closes(usage, at, pulls_run);
            return false;
        };
        // Of what pulls leave when they are stopped, and of what was thrown away, only a later look knows.
        if pulls_run || at <= closed.since {
            return false;
        }
        let low = self.limits.high_percent.saturating_sub(ROOM);
        if usage.is_beyond(low, 0) || usage.inodes_are_beyond(low) {
            closed.was_over = true;
            return false;
        }
        let Some(closed) = self.closed.take_if(|closed| !closed.was_over) else {
            self.closed = None;
            self.held.retain(|_, held| held.until.is_none());
            return true;
        };
        // It was the pulls themselves, with what they had unpacked. Started at once, they would do the same again.
        if closed.cause != Cause::NoSpace {
            for key in closed.stopped {
                let stops = self.stops.entry(key.clone()).or_default();
                *stops = stops.saturating_add(1);
                let until = Some(at + timing.no_space.after(*stops));
                let message = format!(
                    "{}; there is room since this image is not pulled any more, so it is tried again later",
                    closed.message
                );
                self.held.insert(key, Held { message, until });
            }
        }
        false
    }

    fn closes(&self, usage: Usage, since: Duration, pulls_run: bool) -> Option<Closed> {
        let high = self.limits.high_percent;
        let (cause, figures) = if usage.is_beyond(high, 0) {
            (Cause::Bytes, usage.of_bytes())
        } else if usage.inodes_are_beyond(high) {
            (Cause::Inodes, usage.of_inodes())
        } else {
            return None;
        };
        Some(Closed {
            cause,
            message: format!("{figures}; {}", self.until()),
            since,
            was_over: !pulls_run,
            stopped: BTreeSet::new(),
        })
    }
}
