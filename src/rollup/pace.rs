//! When a summary that differs from the one that is written goes out: pure, on a monotonic clock.
//!
//! A `Ready` that turns goes out at once, and so does the last news of a burst. Everything else shares one budget over all `ImageCache`s: rounds, between which there is a
//! time that grows with the cluster. A burst, such as the first reports of a new `ImageCache`, is gathered for a moment first.

use std::time::Duration;

use crate::api::ImageCacheStatus;
use crate::api::condition::find;

/// A summary that differs from the one that is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Change {
    /// Since when it differs.
    pub since: Duration,
    /// How soon it has to go out.
    pub urgency: Urgency,
}

/// How soon a summary has to go out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Urgency {
    /// `Ready` turned.
    AtOnce,
    /// No node has anything left to do for now, though something failed: good images are not counted late because of a bad one.
    Settled,
    /// With the next round.
    Round,
}

/// The intervals between writes.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// How long a burst is gathered; also the shortest time between two turns of one object's `Ready`.
    pub gather: Duration,
    /// The shortest time between two rounds.
    pub round: Duration,
}

impl Urgency {
    /// The urgency of writing `after` where `before` is written.
    #[must_use]
    pub fn of(before: &ImageCacheStatus, after: &ImageCacheStatus) -> Self {
        match (ready_for(before), ready_for(after)) {
            // Ready, or ready for another generation: somebody waits for this.
            (before, Some(after)) if before != Some(after) => Self::AtOnce,
            // Not ready any more. If the spec was edited meanwhile, nobody believes the old condition anyway.
            (Some(generation), None) if generation == after.observed_generation => Self::AtOnce,
            _ if settled_for(after) > settled_for(before) => Self::Settled,
            _ => Self::Round,
        }
    }
}

impl Change {
    /// When it goes out. `turned` is when this object's `Ready` turned or settled last, `round` when the last round was; `None`:
    /// never yet.
    #[must_use]
    pub fn due(
        &self,
        turned: Option<Duration>,
        round: Option<Duration>,
        intervals: &Intervals,
    ) -> Duration {
        let gathered = self.since + intervals.gather;
        match self.urgency {
            Urgency::AtOnce => {
                // Whatever flaps is written a few times a second and not more.
                turned.map_or(self.since, |turned| {
                    self.since.max(turned + intervals.gather)
                })
            }
            // What fails again and again settles again and again.
            Urgency::Settled => turned.map_or(self.since, |turned| {
                self.since.max(turned + intervals.round)
            }),
            Urgency::Round => round.map_or(gathered, |round| gathered.max(round + intervals.round)),
        }
    }
}

/// The generation for which this status says `Ready`.
fn ready_for(status: &ImageCacheStatus) -> Option<i64> {
    says(status, "Ready", "True")
}

/// The generation for which this status says that nothing is under way.
fn settled_for(status: &ImageCacheStatus) -> Option<i64> {
    says(status, "Progressing", "False")
}

fn says(status: &ImageCacheStatus, kind: &str, value: &str) -> Option<i64> {
    let condition = find(&status.conditions, kind)?;
    (condition.status == value).then_some(condition.observed_generation?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::condition::condition;

    const INTERVALS: Intervals = Intervals {
        gather: Duration::from_millis(200),
        round: Duration::from_secs(1),
    };

    fn status(generation: i64, ready: bool) -> ImageCacheStatus {
        moving(generation, ready, true)
    }

    fn moving(generation: i64, ready: bool, progressing: bool) -> ImageCacheStatus {
        let make = |kind, status| {
            let now = jiff::Timestamp::UNIX_EPOCH;
            condition(&[], kind, status, "A", "a", Some(generation), now)
        };
        ImageCacheStatus {
            observed_generation: generation,
            conditions: vec![make("Ready", ready), make("Progressing", progressing)],
            ..ImageCacheStatus::default()
        }
    }

    #[test]
    fn a_ready_that_turns_goes_out_at_once() {
        let none = ImageCacheStatus::default();
        for (before, after, urgency) in [
            (&none, &status(1, false), Urgency::Round),
            (&none, &status(1, true), Urgency::AtOnce),
            (&status(1, false), &status(1, false), Urgency::Round),
            (&status(1, false), &status(1, true), Urgency::AtOnce),
            (&status(1, true), &status(1, true), Urgency::Round),
            (&status(1, true), &status(1, false), Urgency::AtOnce),
            // An edit: a waiting client does not accept the old generation.
            (&status(1, true), &status(2, false), Urgency::Round),
            (&status(1, true), &status(2, true), Urgency::AtOnce),
            (&status(1, false), &status(2, true), Urgency::AtOnce),
            // Something failed, and nothing is under way any more.
            (
                &status(1, false),
                &moving(1, false, false),
                Urgency::Settled,
            ),
            (
                &moving(1, false, false),
                &moving(1, false, false),
                Urgency::Round,
            ),
            (&moving(1, false, false), &status(1, false), Urgency::Round),
            (
                &moving(1, false, false),
                &moving(2, false, false),
                Urgency::Settled,
            ),
        ] {
            assert_eq!(Urgency::of(before, after), urgency, "{before:?} {after:?}");
        }
    }

    #[test]
    fn the_others_wait_for_the_next_round() {
        let ms = Duration::from_millis;
        let round = |since, last| {
            let change = Change {
                since: ms(since),
                urgency: Urgency::Round,
            };
            change.due(None, last, &INTERVALS)
        };
        assert_eq!(round(5000, None), ms(5200), "a burst is gathered");
        assert_eq!(
            round(5000, Some(ms(1000))),
            ms(5200),
            "the last round is long past"
        );
        assert_eq!(round(5000, Some(ms(4900))), ms(5900));
    }

    #[test]
    fn what_settles_goes_out_at_once_but_not_more_often_than_rounds() {
        let ms = Duration::from_millis;
        let change = Change {
            since: ms(5000),
            urgency: Urgency::Settled,
        };
        let due = |turned| change.due(turned, Some(ms(4990)), &INTERVALS);
        assert_eq!(due(None), ms(5000));
        assert_eq!(due(Some(ms(1000))), ms(5000));
        assert_eq!(due(Some(ms(4950))), ms(5950));
    }

    #[test]
    fn what_flaps_is_not_written_all_the_time() {
        let ms = Duration::from_millis;
        let at_once = |since, turned| {
            let change = Change {
                since: ms(since),
                urgency: Urgency::AtOnce,
            };
            change.due(turned, Some(ms(4990)), &INTERVALS)
        };
        assert_eq!(at_once(5000, None), ms(5000));
        assert_eq!(at_once(5000, Some(ms(1000))), ms(5000));
        assert_eq!(at_once(5000, Some(ms(4950))), ms(5150));
    }
}
