//! When what is written of a node's report: pure, on a monotonic clock.

use std::sync::Arc;
use std::time::Duration;

use super::own::Own;
use super::scale::Scale;
use super::trouble::Trouble;
use crate::api::node_image_cache::ImageReport;
use crate::api::{NodeImageCacheStatus, Reason};
use crate::decide::Timing;

/// What to ask of the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Make the object, owned by the Node with this uid.
    Make(String),
    /// Apply this status.
    Apply(Arc<NodeImageCacheStatus>),
    /// Look whether the object is still there, owned by the Node.
    Look,
}

/// What was written, and when.
#[derive(Debug, Default)]
pub struct Pace {
    /// The uid of the Node for which the object was made. `None`: it has to be made.
    owner: Option<String>,
    /// The status that the API server has.
    applied: Option<Arc<NodeImageCacheStatus>>,
    /// When it was applied.
    applied_at: Option<Duration>,
    /// When to look whether the object is still there.
    look_at: Duration,
    /// Nothing is asked before this time: the last request failed.
    not_before: Duration,
}

impl Pace {
    /// Begins with what the API server holds.
    #[must_use]
    pub fn new(own: Option<Own>, look_at: Duration) -> Self {
        let own = own.unwrap_or_default();
        Self {
            owner: own.owner,
            applied: own.status,
            look_at,
            ..Self::default()
        }
    }

    /// What to do next, and at what time. `owner` is the Node's uid; without a Node, or without a report, nothing is
    /// written: an object that is owned by nothing is deleted at once.
    #[must_use]
    pub fn next(
        &self,
        newest: Option<&Arc<NodeImageCacheStatus>>,
        owner: Option<&str>,
        scale: Scale,
        timing: &Timing,
    ) -> Option<(Duration, Act)> {
        let (newest, owner) = (newest?, owner?);
        let (at, act) = if self.owner.as_deref() != Some(owner) {
            (Duration::ZERO, Act::Make(owner.to_owned()))
        } else if self.applied.as_ref() != Some(newest) {
            (
                self.due(newest, scale, timing),
                Act::Apply(Arc::clone(newest)),
            )
        } else {
            (self.look_at, Act::Look)
        };
        Some((at.max(self.not_before), act))
    }

    /// When this status is due. The first and the last of a burst go out at once: the last is the one in which nothing moves
    /// any more.
    fn due(&self, newest: &NodeImageCacheStatus, scale: Scale, timing: &Timing) -> Duration {
        let Some(applied_at) = self.applied_at else {
            return Duration::ZERO;
        };
        let moved = self
            .applied
            .as_ref()
            .is_none_or(|before| !is_settled(before));
        match (is_settled(newest), moved) {
            (true, true) => Duration::ZERO,
            (true, false) => applied_at + timing.report.0,
            (false, _) => applied_at + scale.report(timing),
        }
    }

    /// The object was made for this Node.
    pub fn made(&mut self, owner: String, now: Duration, timing: &Timing) {
        self.owner = Some(owner);
        self.applied = None;
        self.applied_at = None;
        self.look_at = now + timing.own_object_made;
    }

    /// This status was applied.
    pub fn applied(&mut self, status: Arc<NodeImageCacheStatus>, now: Duration) {
        self.applied = Some(status);
        self.applied_at = Some(now);
    }

    /// This is the object now: `None` if it is not there. Says what somebody else has done to it, if anything.
    pub fn seen(&mut self, own: Option<Own>, next_look: Duration) -> Option<&'static str> {
        let is_there = own.is_some();
        let own = own.unwrap_or_default();
        let wrong = if !is_there {
            Some("the NodeImageCache is gone")
        } else if own.owner != self.owner {
            Some("the NodeImageCache is not owned by its Node any more")
        } else if own.status != self.applied {
            Some("somebody else wrote the status of the NodeImageCache")
        } else {
            None
        };
        (self.owner, self.applied, self.look_at) = (own.owner, own.status, next_look);
        wrong
    }

    /// The object is not there: it is made again at once.
    pub fn gone(&mut self) {
        self.owner = None;
    }

    /// The request failed: it waits as `trouble` says.
    pub fn failed(&mut self, trouble: &Trouble, now: Duration, timing: &Timing, chance: f64) {
        self.not_before = now + trouble.wait(&timing.api_retry, chance);
    }
}

/// Nothing is pulling, and nothing waits for its turn. What waits for something else, as while `spec.paused` is set, can wait for
/// long.
#[must_use]
pub fn is_settled(status: &NodeImageCacheStatus) -> bool {
    let is_queued = |image: &ImageReport| image.reason == Some(Reason::Queued);
    status.pulling == 0 && !status.images.iter().any(is_queued)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::ImageState;
    use crate::api::condition::whole_seconds;

    const NODE: Option<&str> = Some("uid-1");

    fn status(ready: i32, pulling: i32) -> Arc<NodeImageCacheStatus> {
        Arc::new(NodeImageCacheStatus {
            total: 10,
            ready,
            pulling,
            ..NodeImageCacheStatus::default()
        })
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn next(pace: &Pace, newest: &Arc<NodeImageCacheStatus>, nodes: u32) -> (Duration, Act) {
        pace.next(Some(newest), NODE, Scale { nodes }, &Timing::default())
            .unwrap()
    }

    /// The object is there, and this was applied at this time.
    fn reported(before: &Arc<NodeImageCacheStatus>, at: Duration) -> Pace {
        let mut pace = Pace::default();
        pace.made("uid-1".to_owned(), at, &Timing::default());
        pace.applied(Arc::clone(before), at);
        pace
    }

    #[test]
    fn the_object_is_made_before_its_status_is_applied() {
        let mut pace = Pace::new(None, seconds(300));
        let newest = status(0, 2);
        assert_eq!(
            next(&pace, &newest, 3),
            (Duration::ZERO, Act::Make("uid-1".to_owned()))
        );
        pace.made("uid-1".to_owned(), seconds(1), &Timing::default());
        assert_eq!(
            next(&pace, &newest, 3),
            (Duration::ZERO, Act::Apply(Arc::clone(&newest)))
        );
        pace.applied(Arc::clone(&newest), seconds(1));
        assert_eq!(
            next(&pace, &newest, 3),
            (seconds(16), Act::Look),
            "soon: the one before may be on its way out"
        );
    }

    #[test]
    fn what_the_last_process_reported_is_not_written_again() {
        let newest = status(10, 0);
        let own = Own {
            owner: Some("uid-1".to_owned()),
            status: Some(Arc::clone(&newest)),
        };
        let pace = Pace::new(Some(own), seconds(300));
        assert_eq!(next(&pace, &newest, 3), (seconds(300), Act::Look));
        assert_eq!(next(&pace, &status(9, 1), 3).0, Duration::ZERO);
    }

    #[test]
    fn the_first_and_the_last_of_a_burst_go_out_at_once_and_those_between_at_intervals() {
        let pace = reported(&status(0, 2), seconds(100));
        for (nodes, wait) in [(3, 1), (1000, 10), (5000, 50)] {
            assert_eq!(next(&pace, &status(1, 2), nodes).0, seconds(100 + wait));
            assert_eq!(next(&pace, &status(10, 0), nodes).0, Duration::ZERO);
        }
        let pace = reported(&status(10, 0), seconds(100));
        assert_eq!(
            next(&pace, &status(9, 1), 3).0,
            seconds(101),
            "long past: at once"
        );
    }

    #[test]
    fn what_is_paused_does_not_keep_a_burst_open_and_what_is_queued_does() {
        let waiting = |reason| {
            let mut waiting = NodeImageCacheStatus::clone(&status(9, 0));
            waiting.images = vec![ImageReport {
                image: "r.io/a:1".to_owned(),
                state: ImageState::Waiting,
                digest: None,
                bytes: None,
                origin: None,
                removal_policy: None,
                pinned: false,
                evictions: None,
                attempts: None,
                next_attempt: None,
                progress: None,
                last_transition_time: whole_seconds(jiff::Timestamp::UNIX_EPOCH),
                reason: Some(reason),
                message: None,
            }];
            Arc::new(waiting)
        };
        let pace = reported(&status(0, 2), seconds(100));
        let due = |reason| next(&pace, &waiting(reason), 5000).0;
        assert_eq!(due(Reason::Paused), Duration::ZERO);
        assert_eq!(due(Reason::Queued), seconds(150));
    }

    #[test]
    fn what_settles_again_and_again_costs_a_write_a_second() {
        let pace = reported(&status(10, 0), seconds(100));
        let mut again = NodeImageCacheStatus::clone(&status(10, 0));
        again.failed = 10;
        again.ready = 0;
        assert_eq!(next(&pace, &Arc::new(again), 5000).0, seconds(101));
    }

    #[test]
    fn an_unchanged_report_is_not_written() {
        let pace = reported(&status(3, 1), seconds(100));
        assert_eq!(next(&pace, &status(3, 1), 3).1, Act::Look);
    }

    #[test]
    fn nothing_is_written_without_a_node_or_without_a_report() {
        let pace = reported(&status(3, 1), seconds(100));
        let (scale, timing) = (Scale::default(), Timing::default());
        assert_eq!(pace.next(Some(&status(4, 1)), None, scale, &timing), None);
        assert_eq!(pace.next(None, NODE, scale, &timing), None);
    }

    #[test]
    fn a_node_created_anew_gets_the_object_anew() {
        let mut pace = reported(&status(3, 1), seconds(100));
        let anew = |pace: &Pace| {
            pace.next(
                Some(&status(3, 1)),
                Some("uid-2"),
                Scale::default(),
                &Timing::default(),
            )
            .unwrap()
            .1
        };
        assert_eq!(anew(&pace), Act::Make("uid-2".to_owned()));
        pace.made("uid-2".to_owned(), seconds(101), &Timing::default());
        assert_eq!(anew(&pace), Act::Apply(status(3, 1)));
    }

    #[test]
    fn an_object_that_somebody_deleted_comes_back() {
        let mut pace = reported(&status(3, 1), seconds(100));
        let own = |owner: &str, status: Arc<NodeImageCacheStatus>| {
            Some(Own {
                owner: Some(owner.to_owned()),
                status: Some(status),
            })
        };
        assert_eq!(pace.seen(own("uid-1", status(3, 1)), seconds(400)), None);
        assert_eq!(next(&pace, &status(3, 1), 3), (seconds(400), Act::Look));
        assert!(
            pace.seen(own("uid-1", status(9, 0)), seconds(700))
                .is_some()
        );
        assert_eq!(next(&pace, &status(3, 1), 3).1, Act::Apply(status(3, 1)));
        assert!(
            pace.seen(own("uid-9", status(3, 1)), seconds(700))
                .is_some()
        );
        assert!(matches!(next(&pace, &status(3, 1), 3).1, Act::Make(_)));
        assert!(pace.seen(None, seconds(700)).is_some());
        assert!(matches!(next(&pace, &status(3, 1), 3).1, Act::Make(_)));
        let mut pace = reported(&status(3, 1), seconds(100));
        pace.gone();
        assert!(matches!(next(&pace, &status(4, 1), 3).1, Act::Make(_)));
    }

    #[test]
    fn after_a_failure_the_newest_report_waits_for_the_next_attempt() {
        let timing = Timing::default();
        let mut pace = reported(&status(0, 2), seconds(100));
        let mut trouble = Trouble::default();
        for wait in [1, 2, 4] {
            trouble.begins("refused");
            pace.failed(&trouble, seconds(200), &timing, 1.0);
            let (at, act) = next(&pace, &status(10, 0), 3);
            assert_eq!((at, act), (seconds(200 + wait), Act::Apply(status(10, 0))));
        }
    }
}
