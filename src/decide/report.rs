//! What a node reports: per image, per `ImageCache`, and what stands in the way.

mod images;

use std::collections::{BTreeMap, BTreeSet};

use self::images::images;
use super::bytes::of;
use super::desired::{Desired, ImageKey, SelectedCache};
use super::holdings::Own;
use super::inputs::Known;
use super::refresh::Refreshes;
use super::state::State;
use super::timing::Timing;
use super::world::{Now, Runtime, World};
use crate::api::condition::condition;
use crate::api::image_cache::{Ensure, NodeState};
use crate::api::message::cut;
use crate::api::node_image_cache::{
    CacheReport, Failure, ListReport, NodeImageCacheStatus, RuntimeStatus,
};
use crate::api::{ImageState, Reason};

/// What the failures of all entries of `caches` may take together, in bytes. `images` has them all.
const FAILURES: usize = 64 << 10;

/// The most failures that one entry of `caches` names.
const MAX_FAILURES: usize = 3;

/// Why the node's runtime does not answer, or that it does.
pub const RUNTIME_READY: &str = "RuntimeReady";

/// Why pulls wait for the disk, or that they do not.
pub const DISK_PRESSURE: &str = "DiskPressure";

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
        .map(|key| (key.clone(), brief(world.state(key, now, timing))))
        .collect();
    let going = going(world, desired);
    let count = |state| {
        length(
            states
                .values()
                .filter(|(other, ..)| *other == state)
                .count(),
        )
    };
    let (images, images_omitted) = images(world, [&states, &going], previous, now);
    let credentials = world.credentials();
    let disk = world.disk.condition();
    let bytes = |key: &ImageKey| bytes(world, key);
    let conditions = previous
        .map(|report| report.conditions.as_slice())
        .unwrap_or_default();
    Some(NodeImageCacheStatus {
        runtime: RuntimeStatus {
            pinning: runtime.pinning && world.pinning != Some(false),
            ..runtime.clone()
        },
        ready: count(ImageState::Ready),
        total: length(states.len()),
        pulling: count(ImageState::Pulling),
        failed: count(ImageState::Failed),
        progress: progress(world, &states),
        caches: caches(desired, [&states, &going], &world.refreshes, bytes),
        images,
        images_omitted,
        conditions: [
            (RUNTIME_READY, runtime_ready),
            (
                CREDENTIALS_READY,
                (credentials.0, credentials.1, &credentials.2),
            ),
            (DISK_PRESSURE, (disk.0, disk.1, &disk.2)),
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

/// The images that are to be gone: because somebody says so, or because nobody wants them any more.
fn going(world: &World, desired: &Desired) -> States {
    let absent = desired.absent.iter();
    let mut going: States = absent
        .map(|(key, unwanted)| (key.clone(), brief(world.state_of_unwanted(key, unwanted))))
        .collect();
    for (Own { key, .. }, leaving) in world.removals.iter() {
        if !desired.concerns(key) {
            going.insert(key.clone(), brief(leaving.state()));
        }
    }
    going
}

/// With its message cut: here and not where messages are made, as one may quote another one.
fn brief((state, reason, message): State) -> State {
    (state, reason, message.map(cut))
}

/// Whether nothing more is to be done for somebody who wants the image gone.
fn is_settled((state, reason, _): &State) -> bool {
    let stays = matches!(reason, Some(Reason::NotOwned | Reason::WantedElsewhere));
    *state == ImageState::Removed || (*state == ImageState::Ready && stays)
}

fn caches(
    desired: &Desired,
    [states, going]: [&States; 2],
    refreshes: &Refreshes,
    bytes: impl Fn(&ImageKey) -> (u64, u64),
) -> Vec<CacheReport> {
    let sum = |cache: &SelectedCache| {
        let keys: BTreeSet<_> = cache.images().map(|(_, key)| key).collect();
        let both = keys.into_iter().map(&bytes);
        let (done, total) = both.fold((0, 0), |sum, both| (sum.0 + both.0, sum.1 + both.1));
        [done, total].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
    };
    let mut room = FAILURES;
    desired
        .caches
        .iter()
        .map(|cache| CacheReport {
            namespace: cache.name.namespace.clone(),
            name: cache.name.name.clone(),
            uid: cache.uid.clone(),
            observed_generation: cache.generation,
            state: match cache.spec.ensure {
                Ensure::Present => node_state(cache, states),
                Ensure::Absent => state_of_going(cache, going),
            },
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
                            .filter(|key| match cache.spec.ensure {
                                Ensure::Present => is(states, key, ImageState::Ready),
                                Ensure::Absent => going.get(*key).is_some_and(is_settled),
                            })
                            .count(),
                    ),
                    total: length(list.images.len()),
                })
                .collect(),
            refresh: refreshes.acted(&cache.uid).map(str::to_owned),
            failures: match cache.spec.ensure {
                Ensure::Present => failures(cache, states, &mut room),
                Ensure::Absent => failures(cache, going, &mut room),
            },
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

/// The same in one that wants its images gone.
fn state_of_going(cache: &SelectedCache, going: &States) -> NodeState {
    let states: Vec<_> = cache
        .images()
        .filter_map(|(_, key)| going.get(key))
        .collect();
    if states
        .iter()
        .any(|(state, ..)| *state == ImageState::Failed)
    {
        NodeState::Failed
    } else if states.into_iter().all(is_settled) {
        NodeState::Ready
    } else {
        NodeState::Pending
    }
}

fn failures(cache: &SelectedCache, states: &States, room: &mut usize) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for (written, key) in cache.images() {
        if failures.len() == MAX_FAILURES {
            break;
        }
        let Some((ImageState::Failed, Some(reason), message)) = states.get(key) else {
            continue;
        };
        let takes = written.len() + message.as_ref().map_or(0, |message| message.len());
        let is_named = failures.iter().any(|failure| failure.image == written);
        if !is_named && takes <= *room {
            *room -= takes;
            failures.push(Failure {
                image: written.to_owned(),
                reason: *reason,
                message: message.as_deref().unwrap_or_default().to_owned(),
            });
        }
    }
    failures
}

fn length(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
