//! The decision table: what to start and what to cancel now, and when to look again.

use std::collections::BTreeSet;
use std::time::Duration;

use super::desired::{ImageKey, Rank};
use super::registries::Scope;
use super::traffic::Yielding;
use super::world::{Now, Pull, Runtime, World};

/// Repetitions that keep the image's own place in the order of pulls. Later ones go after everything
/// that is tried for the first time: images that keep failing can hold up others only so often.
const REPETITIONS_IN_ORDER: u32 = 3;

/// What to do now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Pulls to start, the first one first.
    pub start: Vec<ImageKey>,
    /// Pulls to end: nobody wants them any more, they have stalled, or they make way for others.
    pub cancel: Vec<ImageKey>,
    /// Leases that nothing needs any more.
    pub release: Vec<String>,
    /// Leases to replace by longer ones, before their images are pulled.
    pub renew: Vec<String>,
    /// More is to be pulled than is started.
    pub more: bool,
    /// When, on the monotonic clock, to plan again even if nothing happens.
    pub wake: Option<Duration>,
}

/// An image that may be pulled now. The order of the fields is the order of pulls.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct Due<'a> {
    is_late: bool,
    after: u32,
    /// What is missing comes first.
    is_refresh: bool,
    rank: &'a Rank,
    key: &'a ImageKey,
    /// Its registry is being left alone, and may be asked for one image now.
    scope: Option<Scope<'a>>,
}

/// Plans for the world as it is.
///
/// Level-triggered: the plan follows from this moment's world alone, so planning twice gives the same
/// plan, and a restarted agent goes on where the last one was.
#[must_use]
pub fn plan(world: &World, max_parallel_pulls: usize, now: Now) -> Plan {
    let Some(desired) = world.desired.known() else {
        // What is wanted is not known: nothing is started, and nothing is cancelled either.
        return Plan::default();
    };
    let yields = world.yielding == Yielding::Wholly;
    let is_over = |key: &ImageKey, pull: &Pull| {
        let is_wanted = desired.images.contains_key(key);
        !pull.cancelled && (!is_wanted || pull.stalled.is_some() || (yields && !pull.landed))
    };
    let cancel = world
        .pulls
        .iter()
        .filter(|(key, pull)| is_over(key, pull))
        .map(|(key, _)| key.clone())
        .collect();
    if world.runtime != Runtime::Ready {
        return Plan {
            cancel,
            ..Plan::default()
        };
    }

    let (release, mut wake) = world.leases.due(now.monotonic);
    let renew: Vec<_> = world.leases.short().map(|(id, _)| id.clone()).collect();
    let short: BTreeSet<_> = world.leases.short().map(|(_, image)| image).collect();
    let mut due: Vec<Due> = Vec::new();
    for (key, wanted) in &desired.images {
        // Not asked for yet: it may be there.
        let is_unknown = !world.asked.contains_key(key);
        let idle = is_unknown
            || wanted.reference.is_err()
            || wanted.paused
            || world.pulls.contains_key(key)
            || world.leases.is_ending(key, now.monotonic)
            || short.contains(key);
        if idle {
            continue;
        }
        let memory = world.memory.get(key);
        let is_refresh = world.is_ready(key);
        let retry = if is_refresh {
            let due = memory.and_then(|memory| memory.refresh.due(wanted.refresh));
            let Some(due) = due else { continue };
            Some(due)
        } else {
            memory.and_then(|memory| memory.retry).map(|(at, _)| at)
        };
        let hold = world.registries.hold(wanted);
        let at = retry.max(hold.as_ref().map(|(_, hold)| hold.until.0));
        if let Some(at) = at.filter(|at| *at > now.monotonic) {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
            continue;
        }
        let failures = memory.map_or(0, |memory| {
            if is_refresh {
                memory.refresh.failures
            } else {
                memory.failures
            }
        });
        due.push(Due {
            is_refresh,
            // Of a registry that did not answer the next image is asked for: it may be only one that it cannot give.
            after: if hold.is_some() { failures } else { 0 },
            is_late: failures > REPETITIONS_IN_ORDER,
            rank: &wanted.rank,
            key,
            scope: hold.map(|(scope, _)| scope),
        });
    }
    due.sort_unstable();
    let busy = world.pulls.iter().filter(|(_, pull)| !pull.landed);
    let slots = match world.yielding {
        Yielding::No => max_parallel_pulls,
        Yielding::OneAtATime => 1,
        Yielding::Wholly => 0,
    };
    let slots = slots.saturating_sub(busy.clone().count());
    let mut asked: BTreeSet<Scope> = busy
        .filter_map(|(key, _)| world.registries.hold(desired.images.get(key)?))
        .map(|(scope, _)| scope)
        .collect();
    let waiting = due.len();
    let start: Vec<_> = due
        .into_iter()
        .filter_map(|due| {
            let is_first = due.scope.is_none_or(|scope| asked.insert(scope));
            is_first.then_some(due.key)
        })
        .take(slots)
        .cloned()
        .collect();
    Plan {
        more: waiting > start.len(),
        start,
        cancel,
        release,
        renew,
        wake,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::cmp::Reverse;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::api::Reason;
    use crate::decide::desired::{Desired, Wanted};
    use crate::decide::memory::Failed;
    use crate::decide::world::Outcome;
    use crate::decide::{Known, PresentImage, SecretName, Timing};
    use crate::image::Reference;

    fn at(seconds: u64) -> Now {
        Now {
            monotonic: Duration::from_secs(seconds),
            wall: Timestamp::from_second(1_000_000 + i64::try_from(seconds).unwrap()).unwrap(),
        }
    }

    fn key(name: &str) -> ImageKey {
        Reference::parse(name).map_or_else(|_| name.into(), |reference| reference.key().into())
    }

    /// Images in their order of pulls, each with its priority; `!` in front: paused.
    fn wanting(images: &[(&str, i32)]) -> Known<Desired> {
        let mut desired = Desired::default();
        for (position, (image, priority)) in images.iter().enumerate() {
            let name = image.trim_start_matches('!');
            desired.images.insert(
                key(name),
                Wanted {
                    reference: Reference::parse(name).map_err(Box::new),
                    rank: (Reverse(*priority), [0, 0, u32::try_from(position).unwrap()]),
                    paused: image.starts_with('!'),
                    secrets: Vec::new(),
                    patience: Duration::from_mins(5),
                    refresh: None,
                },
            );
        }
        Known::Known(desired)
    }

    fn world(images: &[(&str, i32)], present: &[(&str, Option<&str>)]) -> World {
        let mut world = World::default();
        world.wants(wanting(images));
        let mut answer: BTreeMap<_, _> =
            images.iter().map(|(image, _)| (key(image), None)).collect();
        answer.extend(
            present
                .iter()
                .map(|(image, foreign)| (key(image), Some(Arc::new(image_of(*foreign))))),
        );
        world.has(answer, at(0), &Timing::default(), 0.5);
        world
    }

    fn image_of(foreign: Option<&str>) -> PresentImage {
        PresentImage {
            id: "sha256:id".into(),
            digest: None,
            bytes: 1,
            foreign_platform: foreign.map(Into::into),
        }
    }

    fn fail(world: &mut World, image: &str, reason: Reason, now: Now) {
        world.started(key(image), false, now);
        let failed = Failed {
            reason,
            message: "no".into(),
        };
        world.ended(
            &key(image),
            Outcome::Failed(failed),
            now,
            &Timing::default(),
            0.5,
        );
    }

    fn keys(images: &[&str]) -> Vec<ImageKey> {
        images.iter().map(|image| key(image)).collect()
    }

    #[test]
    fn a_pull_that_began_before_its_secret_changed_says_nothing_of_the_new_one() {
        let secret = SecretName {
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
        };
        let mut desired = wanting(&[("a", 0)]).known().unwrap().clone();
        let wanted = desired.images.get_mut(&key("a")).unwrap();
        wanted.secrets = vec![Arc::new(secret.clone())];
        let mut world = world(&[("a", 0)], &[]);
        world.wants(Known::Known(desired));

        let failed = || Failed {
            reason: Reason::Unauthorized,
            message: "no".into(),
        };
        world.started(key("a"), false, at(0));
        world.secrets_changed(&[(secret, 1)].into());
        let outcome = Outcome::Failed(failed());
        world.ended(&key("a"), outcome, at(1), &Timing::default(), 0.5);
        let memory = &world.memory[&key("a")];
        assert_eq!((memory.last.clone(), memory.retry), (Some(failed()), None));

        fail(&mut world, "a", Reason::Unauthorized, at(2));
        assert!(world.memory[&key("a")].retry.is_some(), "once is enough");
    }

    #[test]
    fn the_decision_table() {
        struct Row {
            what: &'static str,
            world: World,
            start: &'static [&'static str],
            cancel: &'static [&'static str],
        }
        let row = |what, world, start, cancel| Row {
            what,
            world,
            start,
            cancel,
        };
        let mut down = world(&[("a", 0)], &[]);
        down.lost_runtime("gone".into());
        let mut unknown = world(&[("a", 0)], &[]);
        unknown.started(key("b"), false, at(0));
        unknown.desired = Known::Unknown;
        let mut unwanted = world(&[("a", 0)], &[]);
        unwanted.started(key("b"), false, at(0));
        let mut ending = unwanted.clone();
        ending.cancelled(&key("b"));
        let mut running = world(&[("a", 0), ("b", 0)], &[]);
        running.started(key("a"), false, at(0));
        let mut full = world(&[("a", 0), ("b", 0), ("c", 0)], &[]);
        full.started(key("a"), false, at(0));
        full.started(key("b"), false, at(0));
        let mut failed = world(&[("a", 0), ("b", 0)], &[]);
        fail(&mut failed, "a", Reason::NotFound, at(0));
        let mut never_asked = World::default();
        never_asked.wants(wanting(&[("a", 0)]));
        let mut newly_wanted = world(&[("a", 0)], &[]);
        newly_wanted.wants(wanting(&[("a", 0), ("new", 9)]));
        let rows = [
            row(
                "wanted and absent: pull",
                world(&[("a", 0)], &[]),
                &["a"],
                &[],
            ),
            row(
                "wanted and present: nothing",
                world(&[("a", 0)], &[("a", None)]),
                &[],
                &[],
            ),
            row(
                "present for another platform: pull again",
                world(&[("a", 0)], &[("a", Some("linux/arm64"))]),
                &["a"],
                &[],
            ),
            row(
                "present but not wanted: nothing",
                world(&[], &[("a", None)]),
                &[],
                &[],
            ),
            row(
                "higher priority first, then the order",
                world(&[("a", 0), ("b", 0), ("c", 7)], &[]),
                &["c", "a"],
                &[],
            ),
            row("as many as there are slots", full, &[], &[]),
            row("never twice", running, &["b"], &[]),
            row("paused", world(&[("!a", 0)], &[]), &[], &[]),
            row("does not parse", world(&[("UPPER", 0)], &[]), &[], &[]),
            row("runtime down", down, &[], &[]),
            row(
                "wanted since the runtime was asked: not before the next answer",
                newly_wanted,
                &["a"],
                &[],
            ),
            row("runtime never asked", never_asked, &[], &[]),
            row(
                "what is wanted is unknown: nothing is cancelled",
                unknown,
                &[],
                &[],
            ),
            row("nobody wants it any more: cancel", unwanted, &["a"], &["b"]),
            row("cancelled once", ending, &["a"], &[]),
            row("failed a moment ago: later", failed, &["b"], &[]),
        ];
        for Row {
            what,
            world,
            start,
            cancel,
        } in rows
        {
            let plan = plan(&world, 2, at(1));
            assert_eq!(plan.start, keys(start), "{what}");
            assert_eq!(plan.cancel, keys(cancel), "{what}");
        }
    }

    #[test]
    fn the_decision_table_of_pulls_that_stall_or_make_way() {
        let mut pulled = world(&[("a", 0), ("b", 0), ("c", 0)], &[]);
        let nothing_pulled = pulled.clone();
        pulled.started(key("a"), false, at(0));
        let (mut stalled, mut landed) = (pulled.clone(), pulled.clone());
        let pull = stalled.pulls.get_mut(&key("a")).unwrap();
        pull.stalled = Some("no byte has come".into());
        landed.landed(&key("a"));
        let (wholly, one) = (Yielding::Wholly, Yielding::OneAtATime);
        // What is there, how far pulls make way, what is started, what is cancelled.
        let rows: [(&World, Yielding, &[&str], &[&str]); 9] = [
            (&stalled, Yielding::No, &["b"], &["a"]),
            (&pulled, Yielding::No, &["b"], &[]),
            (&pulled, wholly, &[], &["a"]),
            (&pulled, one, &[], &[]),
            (&landed, Yielding::No, &["b", "c"], &[]),
            (&landed, wholly, &[], &[]),
            (&landed, one, &["b"], &[]),
            (&nothing_pulled, wholly, &[], &[]),
            (&nothing_pulled, one, &["a"], &[]),
        ];
        for (row, (world, yielding, start, cancel)) in rows.into_iter().enumerate() {
            let mut world = world.clone();
            world.yielding = yielding;
            let plan = plan(&world, 2, at(1));
            assert_eq!(plan.start, keys(start), "row {row}");
            assert_eq!(plan.cancel, keys(cancel), "row {row}");
            assert_eq!(
                plan.more,
                plan.start.len() < 3 - world.pulls.len(),
                "row {row}"
            );
        }
    }

    #[test]
    fn a_failed_image_is_tried_again_when_its_time_has_come() {
        let mut world = world(&[("a", 0)], &[]);
        fail(&mut world, "a", Reason::NotFound, at(100));
        let before = plan(&world, 2, at(159));
        assert_eq!(
            (before.start.len(), before.wake),
            (0, Some(Duration::from_secs(160)))
        );
        assert_eq!(plan(&world, 2, at(160)).start, keys(&["a"]));
        assert_eq!(
            world.memory[&key("a")].retry.unwrap().1.as_second(),
            1_000_160
        );
    }

    #[test]
    fn a_lease_is_given_up_when_nothing_needs_it_and_never_during_its_pull() {
        let timing = Timing::default();
        let mut world = world(&[("a", 0), ("b", 0)], &[("b", None)]);
        let expires = Duration::from_hours(100);
        for name in ["a", "b", "c"] {
            world.leases.hold(name.to_owned(), key(name), expires);
        }
        let plan_at = |world: &mut World, seconds| {
            world.tend(at(seconds).monotonic, &timing);
            plan(world, 0, at(seconds))
        };
        let first = plan_at(&mut world, 100);
        assert_eq!(first.release, ["b"], "it is present");
        assert_eq!(
            first.wake,
            Some(Duration::from_secs(700)),
            "c may be wanted again"
        );
        world.leases.release("b");
        assert_eq!(plan_at(&mut world, 699).release.len(), 0);
        world.started(key("c"), false, at(699));
        assert_eq!(
            plan_at(&mut world, 700).release.len(),
            0,
            "it is being pulled"
        );
        world.ended(&key("c"), Outcome::Cancelled, at(701), &timing, 0.5);
        assert_eq!(plan_at(&mut world, 701).release.len(), 0);
        assert_eq!(plan_at(&mut world, 1301).release, ["c"]);
        world.leases.release("c");
        // Of its hundred hours, less than 24 are left.
        let late = 76 * 3600 + 1;
        assert_eq!(plan_at(&mut world, late).renew, ["a"], "it would not last");
        world.desired = Known::Unknown;
        assert!(plan_at(&mut world, late).release.is_empty());
    }

    #[test]
    fn a_pull_that_was_cancelled_because_it_stalled_has_failed() {
        let (mut world, timing) = (world(&[("a", 0)], &[]), Timing::default());
        world.started(key("a"), false, at(1));
        world.pulls.get_mut(&key("a")).unwrap().stalled = Some("no byte has come".into());
        assert_eq!(plan(&world, 1, at(2)).cancel, keys(&["a"]));
        let ended = world.ended(&key("a"), Outcome::Cancelled, at(2), &timing, 0.5);
        let failed = Failed {
            reason: Reason::Stalled,
            message: "no byte has come".into(),
        };
        assert_eq!(ended.outcome, Outcome::Failed(failed));
    }

    #[test]
    fn an_image_that_has_landed_needs_its_slot_no_more_and_is_not_started_again() {
        let mut world = world(&[("a", 0), ("b", 0)], &[]);
        world.started(key("a"), false, at(1));
        assert_eq!(plan(&world, 1, at(2)).start, keys(&[]));
        world.landed(&key("a"));
        assert_eq!(plan(&world, 1, at(2)).start, keys(&["b"]));
    }

    #[test]
    fn what_a_pull_told_is_not_taken_for_the_next_one_of_its_image() {
        let (mut world, a) = (world(&[("a", 0)], &[]), key("a"));
        world.started(a.clone(), false, at(1));
        assert!(world.is_under_way(&a, at(1).monotonic));
        fail(&mut world, "a", Reason::Stalled, at(2));
        assert!(!world.is_under_way(&a, at(1).monotonic));
        world.started(a.clone(), true, at(2));
        assert!(!world.is_under_way(&a, at(1).monotonic));
    }

    #[test]
    fn an_image_that_keeps_failing_lets_others_pass() {
        let mut world = world(&[("a", 9), ("b", 0)], &[]);
        for n in 0..3 {
            fail(&mut world, "a", Reason::PullFailed, at(n * 1000));
            assert_eq!(plan(&world, 1, at(n * 1000 + 900)).start, keys(&["a"]));
        }
        fail(&mut world, "a", Reason::PullFailed, at(4000));
        assert_eq!(plan(&world, 1, at(4900)).start, keys(&["b"]));
    }

    #[test]
    fn an_evicted_image_is_pulled_at_once_and_the_next_time_later() {
        let mut world = world(&[("a", 0)], &[("a", None)]);
        let gone = || [(key("a"), None)].into();
        let timing = Timing::default();
        world.has(gone(), at(10), &timing, 0.5);
        assert_eq!(plan(&world, 2, at(10)).start, keys(&["a"]));
        assert_eq!(
            world.state(&key("a"), at(10), &timing).1,
            Some(Reason::Evicted)
        );
        world.started(key("a"), false, at(10));
        world.ended(
            &key("a"),
            Outcome::Pulled(image_of(None)),
            at(11),
            &timing,
            0.5,
        );
        world.has(gone(), at(20), &timing, 0.5);
        let second = plan(&world, 2, at(20));
        assert_eq!(
            (second.start.len(), second.wake),
            (0, Some(Duration::from_secs(620)))
        );
    }

    #[test]
    fn a_refresh_has_its_turn_at_a_registry_that_cannot_give_another_image() {
        let mut world = world(
            &[("r.io/broken", 9), ("r.io/app", 0)],
            &[("r.io/app", None)],
        );
        let Known::Known(desired) = &mut world.desired else {
            panic!("it is known");
        };
        let app = desired.images.get_mut(&key("r.io/app")).unwrap();
        app.refresh = Some(Duration::from_mins(1));
        fail(
            &mut world,
            "r.io/broken",
            Reason::RegistryUnavailable,
            at(1),
        );
        assert_eq!(plan(&world, 2, at(10)).start, keys(&[]));
        assert_eq!(plan(&world, 2, at(100)).start, keys(&["r.io/app"]));
        fail(&mut world, "r.io/app", Reason::RegistryUnavailable, at(100));
        assert_eq!(plan(&world, 2, at(200)).start, keys(&["r.io/broken"]));
    }

    #[test]
    fn an_annotation_that_comes_during_a_pull_asks_again_after_it() {
        let (mut world, timing) = (world(&[("a", 0)], &[]), Timing::default());
        let Known::Known(desired) = &mut world.desired else {
            panic!("it is known");
        };
        let spec = crate::api::ImageCacheSpec {
            cache_spec: vec![crate::api::ImageList {
                images: vec!["a".to_owned()],
                ..crate::api::ImageList::default()
            }],
            ..crate::api::ImageCacheSpec::default()
        };
        desired.caches.push(crate::decide::desired::SelectedCache {
            name: crate::decide::CacheName {
                namespace: "ns".into(),
                name: "c".into(),
            },
            uid: "uid".into(),
            generation: 1,
            spec: Arc::new(spec),
            refresh: None,
            lists: vec![crate::decide::desired::SelectedList {
                index: 0,
                images: vec![key("a")],
            }],
        });
        let annotate = |world: &mut World, value: &str, now: Now| {
            let Known::Known(desired) = &mut world.desired else {
                panic!("it is known");
            };
            desired.caches[0].refresh = Some(value.into());
            world.refreshes_asked(None, now.monotonic)
        };
        world.refreshes_asked(None, at(1).monotonic);
        world.started(key("a"), false, at(1));
        assert_eq!(annotate(&mut world, "now", at(2)), keys(&["a"]));
        let pulled = || Outcome::Pulled(image_of(None));
        world.ended(&key("a"), pulled(), at(3), &timing, 0.5);
        assert_eq!(world.refreshes.acted("uid"), None);
        assert_eq!(plan(&world, 2, at(3)).start, keys(&["a"]));
        world.started(key("a"), false, at(3));
        world.ended(&key("a"), pulled(), at(4), &timing, 0.5);
        assert_eq!(world.refreshes.acted("uid"), Some("now"));
        assert_eq!(plan(&world, 2, at(9999)).start, keys(&[]));
    }

    #[test]
    fn wanted_again_means_a_new_start() {
        let mut world = world(&[("a", 0)], &[]);
        fail(&mut world, "a", Reason::NotFound, at(0));
        world.wants(wanting(&[]));
        world.wants(wanting(&[("a", 0)]));
        world.has([(key("a"), None)].into(), at(1), &Timing::default(), 0.5);
        assert_eq!(plan(&world, 2, at(1)).start, keys(&["a"]));
    }

    #[test]
    fn an_image_for_another_platform_is_asked_for_again_after_a_while() {
        let mut world = world(&[("a", 0)], &[]);
        world.started(key("a"), false, at(0));
        let timing = Timing::default();
        world.ended(
            &key("a"),
            Outcome::Pulled(image_of(Some("linux/arm64"))),
            at(1),
            &timing,
            0.5,
        );
        let plan = plan(&world, 2, at(2));
        assert_eq!(
            (plan.start.len(), plan.wake),
            (0, Some(Duration::from_secs(1801)))
        );
        let (state, reason, message) = world.state(&key("a"), at(2), &timing);
        assert_eq!(
            (state, reason),
            (
                crate::api::ImageState::Failed,
                Some(Reason::NoMatchingPlatform)
            )
        );
        assert!(message.unwrap().contains("linux/arm64"));
    }

    #[test]
    fn a_lost_runtime_is_no_attempt() {
        let mut world = world(&[("a", 0)], &[]);
        world.started(key("a"), false, at(0));
        world.ended(
            &key("a"),
            Outcome::RuntimeLost,
            at(1),
            &Timing::default(),
            0.5,
        );
        assert_eq!(world.memory[&key("a")].failures, 0);
        assert_eq!(plan(&world, 2, at(1)).wake, Some(Duration::from_secs(2)));
        assert_eq!(plan(&world, 2, at(2)).start, keys(&["a"]));
    }
}
