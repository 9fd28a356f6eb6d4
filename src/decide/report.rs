//! What a node reports: per image, per `ImageCache`, and what stands in the way.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::bytes::of;
use super::desired::{Desired, ImageKey, SelectedCache};
use super::inputs::Known;
use super::refresh::Refreshes;
use super::state::State;
use super::timing::Timing;
use super::world::{Now, Runtime, World};
use crate::api::condition::{condition, whole_seconds};
use crate::api::image_cache::NodeState;
use crate::api::message::cut;
use crate::api::node_image_cache::{
    CacheReport, Failure, ImageProgress, ImageReport, ListReport, MAX_REPORTED_IMAGES,
    NodeImageCacheStatus, RuntimeStatus,
};
use crate::api::{ImageState, Reason};

/// The most failures that one entry of `caches` names.
const MAX_FAILURES: usize = 3;

/// Why the node's runtime does not answer, or that it does.
pub const RUNTIME_READY: &str = "RuntimeReady";

/// Which sources give no credentials, or that all do.
pub const CREDENTIALS_READY: &str = "CredentialsReady";

type States = BTreeMap<ImageKey, State>;

/// The report of this moment. `None` while it is not known what is wanted, or whether it is there: the last report stays.
/// So an agent that is restarted takes nothing back that the one before it has said, and a second one on a node does not contradict
/// the first.
///
/// `previous` is the last report, this process's or its predecessor's: a timestamp moves only when
/// the state beside it does, so a report that says nothing new equals the one before.
#[must_use]
pub fn report(
    world: &World,
    runtime: &RuntimeStatus,
    previous: Option<&NodeImageCacheStatus>,
    now: Now,
    timing: &Timing,
) -> Option<NodeImageCacheStatus> {
    let Known::Known(desired) = &world.desired else {
        return None;
    };
    let runtime_ready = match &world.runtime {
        Runtime::Starting | Runtime::Taken(_) => return None,
        Runtime::Ready if world.question_open(desired) => return None,
        Runtime::Ready => (true, "Ready", "the runtime answers"),
        Runtime::Down(why) => (false, Reason::RuntimeUnavailable.as_str(), why.as_str()),
    };
    let states: States = desired
        .images
        .keys()
        .map(|key| {
            let (state, reason, message) = world.state(key, now, timing);
            // Here and not where they are made: one message may quote another one.
            (key.clone(), (state, reason, message.map(cut)))
        })
        .collect();
    let count = |state| {
        length(
            states
                .values()
                .filter(|(other, ..)| *other == state)
                .count(),
        )
    };
    let (images, images_omitted) = images(world, &states, previous, now);
    let credentials = world.credentials();
    let bytes = |key: &ImageKey| bytes(world, key);
    let conditions = previous
        .map(|report| report.conditions.as_slice())
        .unwrap_or_default();
    Some(NodeImageCacheStatus {
        runtime: runtime.clone(),
        ready: count(ImageState::Ready),
        total: length(states.len()),
        pulling: count(ImageState::Pulling),
        failed: count(ImageState::Failed),
        progress: progress(world, &states),
        caches: caches(desired, &states, &world.refreshes, bytes),
        images,
        images_omitted,
        conditions: [
            (RUNTIME_READY, runtime_ready),
            (
                CREDENTIALS_READY,
                (credentials.0, credentials.1, &credentials.2),
            ),
        ]
        .map(|(kind, (status, reason, message))| {
            condition(conditions, kind, status, reason, message, None, now.wall)
        })
        .into(),
    })
}

/// Bytes of an image that the node has, and in all. Nothing of an image whose size is not known.
fn bytes(world: &World, key: &ImageKey) -> (u64, u64) {
    let present = world.image(key).map(|image| (image.bytes, image.bytes));
    let pulled = world.reported_bytes.get(key).copied();
    present.or(pulled).unwrap_or_default()
}

/// How far the images are that are being pulled, all together.
fn progress(world: &World, states: &States) -> Option<String> {
    let pulling = states
        .keys()
        .filter_map(|key| world.reported_bytes.get(key));
    let (done, total) = pulling.fold((0, 0), |(done, total), more| {
        (done + more.0, total + more.1)
    });
    (total > 0).then(|| of(done, total))
}

fn caches(
    desired: &Desired,
    states: &States,
    refreshes: &Refreshes,
    bytes: impl Fn(&ImageKey) -> (u64, u64),
) -> Vec<CacheReport> {
    let sum = |cache: &SelectedCache| {
        let keys: BTreeSet<_> = cache.images().map(|(_, key)| key).collect();
        let both = keys.into_iter().map(&bytes);
        let (done, total) = both.fold((0, 0), |sum, both| (sum.0 + both.0, sum.1 + both.1));
        [done, total].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
    };
    desired
        .caches
        .iter()
        .map(|cache| CacheReport {
            namespace: cache.name.namespace.clone(),
            name: cache.name.name.clone(),
            uid: cache.uid.clone(),
            observed_generation: cache.generation,
            state: node_state(cache, states),
            done_bytes: sum(cache)[0],
            total_bytes: sum(cache)[1],
            lists: cache
                .lists
                .iter()
                .map(|list| ListReport {
                    index: length(list.index),
                    ready: length(
                        list.images
                            .iter()
                            .filter(|key| is(states, key, ImageState::Ready))
                            .count(),
                    ),
                    total: length(list.images.len()),
                })
                .collect(),
            refresh: refreshes.acted(&cache.uid).map(str::to_owned),
            failures: failures(cache, states),
        })
        .collect()
}

fn is(states: &States, key: &ImageKey, state: ImageState) -> bool {
    states.get(key).is_some_and(|(other, ..)| *other == state)
}

/// The state of this node in one `ImageCache`: the first that applies.
fn node_state(cache: &SelectedCache, states: &States) -> NodeState {
    let any = |state| cache.images().any(|(_, key)| is(states, key, state));
    if any(ImageState::Failed) {
        NodeState::Failed
    } else if any(ImageState::Pulling) {
        NodeState::Pulling
    } else if any(ImageState::Waiting) {
        NodeState::Pending
    } else {
        NodeState::Ready
    }
}

fn failures(cache: &SelectedCache, states: &States) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for (written, key) in cache.images() {
        if failures.len() == MAX_FAILURES {
            break;
        }
        let Some((ImageState::Failed, Some(reason), message)) = states.get(key) else {
            continue;
        };
        if failures.iter().all(|failure| failure.image != written) {
            failures.push(Failure {
                image: written.to_owned(),
                reason: *reason,
                message: message.as_deref().unwrap_or_default().to_owned(),
            });
        }
    }
    failures
}

/// One entry per image, those that are not ready first when there are too many.
fn images(
    world: &World,
    states: &States,
    previous: Option<&NodeImageCacheStatus>,
    now: Now,
) -> (Vec<ImageReport>, i32) {
    let before: BTreeMap<&str, &ImageReport> = previous
        .iter()
        .flat_map(|report| &report.images)
        .map(|image| (image.image.as_str(), image))
        .collect();
    let mut keys: Vec<_> = states.iter().collect();
    if keys.len() > MAX_REPORTED_IMAGES {
        keys.sort_by_key(|(key, (state, ..))| (*state == ImageState::Ready, *key));
    }
    let images = keys
        .iter()
        .take(MAX_REPORTED_IMAGES)
        .map(|(key, (state, reason, message))| {
            let image = world.image(key);
            let (failures, next_attempt) = world.failures(key);
            let since = before
                .get(&***key)
                .filter(|before| before.state == *state)
                .map_or_else(
                    || whole_seconds(now.wall),
                    |before| before.last_transition_time.clone(),
                );
            ImageReport {
                image: key.to_string(),
                state: *state,
                digest: image.and_then(|image| image.digest.clone()),
                bytes: image.map(|image| i64::try_from(image.bytes).unwrap_or(i64::MAX)),
                attempts: (failures > 0).then(|| i32::try_from(failures).unwrap_or(i32::MAX)),
                next_attempt: (*state == ImageState::Failed || reason.is_some_and(is_told))
                    .then_some(next_attempt)
                    .flatten()
                    .map(Time),
                progress: world.reported_bytes.get(*key).map(|(done, total)| {
                    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
                    ImageProgress {
                        done_bytes: bytes(*done),
                        total_bytes: bytes(*total),
                    }
                }),
                last_transition_time: since,
                reason: *reason,
                message: message.as_deref().map(str::to_owned),
            }
        })
        .collect();
    (
        images,
        length(keys.len().saturating_sub(MAX_REPORTED_IMAGES)),
    )
}

/// Reasons beside which it is said when the image is tried again, although it has not failed.
const fn is_told(reason: Reason) -> bool {
    matches!(reason, Reason::Evicted | Reason::RefreshFailed)
}

fn length(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::sync::Arc;
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::api::{ImageCacheSpec, ImageList};
    use crate::decide::memory::Failed;
    use crate::decide::world::Outcome;
    use crate::decide::{Cache, CacheName, Inputs, Node, PresentImage, desired};

    fn at(seconds: i64) -> Now {
        Now {
            monotonic: Duration::from_secs(seconds.unsigned_abs()),
            wall: Timestamp::from_millisecond(seconds * 1000 + 123).unwrap(),
        }
    }

    fn world(images: &[&str]) -> World {
        let spec = ImageCacheSpec {
            cache_spec: vec![ImageList {
                images: images.iter().map(ToString::to_string).collect(),
                ..ImageList::default()
            }],
            ..ImageCacheSpec::default()
        };
        let cache = Cache {
            uid: "uid".into(),
            generation: 4,
            spec: Some((4, Arc::new(spec))),
            unreadable: None,
            refresh: None,
        };
        let name = CacheName {
            namespace: "ns".into(),
            name: "c".into(),
        };
        let inputs = Inputs {
            caches: Known::Known(Arc::new([(name, Arc::new(cache))].into())),
            node: Known::Known(Node::default()),
            ..Inputs::default()
        };
        let mut world = World::default();
        world.wants(desired(&inputs));
        world
    }

    fn look(world: &mut World, images: &[&str], now: Now) {
        let keys = world.desired.known().unwrap().images.keys();
        let answer = keys
            .map(|key| {
                (
                    key.clone(),
                    images.contains(&&**key).then(|| Arc::new(image_of("d1"))),
                )
            })
            .collect();
        world.has(answer, now, &Timing::default(), 0.5);
    }

    fn image_of(digest: &str) -> PresentImage {
        PresentImage {
            id: "sha256:id".into(),
            digest: Some(digest.into()),
            bytes: 7,
            foreign_platform: None,
        }
    }

    fn say(
        world: &World,
        previous: Option<&NodeImageCacheStatus>,
        now: Now,
    ) -> NodeImageCacheStatus {
        report(
            world,
            &RuntimeStatus::default(),
            previous,
            now,
            &Timing::default(),
        )
        .unwrap()
    }

    const A: &str = "r.io/a:1";
    const B: &str = "r.io/b:1";

    #[test]
    fn nothing_is_reported_while_it_is_unknown_what_is_wanted() {
        let world = World::default();
        assert!(
            report(
                &world,
                &RuntimeStatus::default(),
                None,
                at(1),
                &Timing::default()
            )
            .is_none()
        );
    }

    #[test]
    fn nothing_is_reported_until_the_runtime_was_asked_for_every_image() {
        let mut asked = world(&[A, B, "UPPER"]);
        let say = |world: &World| {
            let (runtime, timing) = (RuntimeStatus::default(), Timing::default());
            report(world, &runtime, None, at(1), &timing)
        };
        assert!(say(&asked).is_none());
        asked.has([(A.into(), None)].into(), at(1), &Timing::default(), 0.5);
        assert!(say(&asked).is_none());
        asked.has([(B.into(), None)].into(), at(1), &Timing::default(), 0.5);
        assert!(say(&asked).is_some());
        // One that is away from the start is a fact.
        let mut away = world(&[A]);
        away.lost_runtime("no socket".into());
        assert!(say(&away).is_some());
    }

    #[test]
    fn a_report_that_says_nothing_new_is_the_same() {
        let mut world = world(&[A, B, "UPPER"]);
        look(&mut world, &[A], at(1));
        let first = say(&world, None, at(1));
        assert_eq!((first.ready, first.total, first.failed), (1, 3, 1));
        assert_eq!(say(&world, Some(&first), at(99)), first);
        let stored: NodeImageCacheStatus =
            serde_json::from_value(serde_json::to_value(&first).unwrap()).unwrap();
        assert_eq!(say(&world, Some(&stored), at(99)), first);
    }

    #[test]
    fn each_cache_says_which_lists_it_counts_and_what_failed() {
        let mut world = world(&[A, B, "UPPER"]);
        look(&mut world, &[A], at(1));
        let cache = &say(&world, None, at(1)).caches[0];
        assert_eq!(
            (cache.uid.as_str(), cache.observed_generation, cache.state),
            ("uid", 4, NodeState::Failed)
        );
        assert_eq!(
            (
                cache.lists[0].index,
                cache.lists[0].ready,
                cache.lists[0].total
            ),
            (0, 1, 3)
        );
        assert_eq!(
            (cache.failures[0].image.as_str(), cache.failures[0].reason),
            ("UPPER", Reason::InvalidReference)
        );
    }

    #[test]
    fn no_message_is_longer_than_etcd_bears_whatever_it_quotes() {
        let long = || Failed {
            reason: Reason::Unauthorized,
            message: "ü".repeat(600),
        };
        let timing = Timing::default();
        let mut world = world(&[A, B]);
        look(&mut world, &[A], at(0));
        for image in [A, B] {
            world.started(image.into(), false, at(0));
            world.ended(&image.into(), Outcome::Failed(long()), at(1), &timing, 0.5);
        }
        let failed = world.clone();
        let Known::Known(desired) = &mut world.desired else {
            panic!("it is known");
        };
        for wanted in desired.images.values_mut() {
            // A refresh and a pause quote the last failure.
            wanted.paused = true;
            wanted.refresh = Some(Duration::from_mins(1));
        }
        for world in [failed, world.clone()] {
            let report = say(&world, None, at(2));
            let images = report.images.iter().map(|image| image.message.as_ref());
            let failures = report.caches[0].failures.iter();
            let failures = failures.map(|failure| Some(&failure.message));
            let all: Vec<_> = images.chain(failures).flatten().collect();
            assert!(!all.is_empty());
            for message in all {
                assert!(message.chars().count() <= 512, "{message}");
            }
        }
        let (_, reason, message) = world.state(&A.into(), at(2), &timing);
        assert_eq!(reason, Some(Reason::RefreshFailed));
        assert!(message.unwrap().chars().count() > 600);
    }

    #[test]
    fn a_quick_repetition_stays_failed_and_a_long_one_is_pulling() {
        let timing = Timing::default();
        let mut world = world(&[A]);
        look(&mut world, &[], at(0));
        world.started(A.into(), false, at(0));
        let failed = Failed {
            reason: Reason::NotFound,
            message: "no such tag".into(),
        };
        world.ended(&A.into(), Outcome::Failed(failed), at(1), &timing, 0.5);
        let first = say(&world, None, at(1));
        assert_eq!(
            (first.images[0].attempts, first.images[0].state),
            (Some(1), ImageState::Failed)
        );
        assert!(first.images[0].next_attempt.is_some());
        world.started(A.into(), false, at(61));
        assert_eq!(say(&world, Some(&first), at(62)), first);
        assert_eq!(
            world.state_changes_at(&timing, at(62)),
            Some(Duration::from_secs(64))
        );
        assert_eq!(
            say(&world, Some(&first), at(64)).images[0].state,
            ImageState::Pulling
        );
    }

    #[test]
    fn an_image_for_another_platform_is_pulled_again_like_one_that_failed() {
        let timing = Timing::default();
        let mut world = world(&[A]);
        let foreign = PresentImage {
            foreign_platform: Some("linux/arm64".into()),
            ..image_of("d1")
        };
        let answer = [(A.into(), Some(Arc::new(foreign)))].into();
        world.has(answer, at(0), &timing, 0.5);
        world.started(A.into(), false, at(61));
        let state = |world: &World, at| world.state(&A.into(), at, &timing).0;
        assert_eq!(state(&world, at(62)), ImageState::Failed);
        let changes = world.state_changes_at(&timing, at(62));
        assert_eq!(changes, Some(Duration::from_secs(64)));
        assert_eq!(state(&world, at(64)), ImageState::Pulling);
        world.cancelled(&A.into());
        assert_eq!(world.state_changes_at(&timing, at(62)), None);
    }

    #[test]
    fn a_runtime_that_is_away_fails_nothing_and_keeps_what_was_there() {
        let mut world = world(&[A, B]);
        look(&mut world, &[A], at(1));
        world.lost_runtime("no socket".into());
        let report = say(&world, None, at(2));
        assert_eq!((report.ready, report.failed), (1, 0));
        assert_eq!(report.images[1].reason, Some(Reason::RuntimeUnavailable));
        assert_eq!(
            (
                report.conditions[0].status.as_str(),
                report.conditions[0].message.as_str()
            ),
            ("False", "no socket")
        );
    }

    #[test]
    fn images_that_are_not_ready_come_first_when_there_are_too_many() {
        let names: Vec<String> = (0..1005).map(|n| format!("r.io/a:{n:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut world = world(&names);
        look(&mut world, &names[..1004], at(1));
        let report = say(&world, None, at(1));
        assert_eq!((report.images.len(), report.images_omitted), (1000, 5));
        assert_eq!(report.images[0].image, "r.io/a:1004");
    }
}
