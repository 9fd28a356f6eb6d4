//! What a node reports of each image.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{States, length};
use crate::api::condition::whole_seconds;
use crate::api::image_cache::RemovalPolicy;
use crate::api::node_image_cache::{
    ImageProgress, ImageReport, MAX_REPORTED_IMAGES, NodeImageCacheStatus, Origin,
};
use crate::api::{ImageState, Reason};
use crate::decide::desired::ImageKey;
use crate::decide::holdings::{Holding, Pin, repository};
use crate::decide::world::{Now, World};

/// What the entries of images may take together, in bytes: with everything else a report stays below 512 KiB, and so far below what the
/// API server stores.
const ROOM: usize = 400 << 10;

/// What an entry takes beside its texts, in bytes.
const AROUND: usize = 360;

/// One entry per image, those that are not ready first when there are too many.
pub(super) fn images(
    world: &World,
    [states, going]: [&States; 2],
    previous: Option<&NodeImageCacheStatus>,
    now: Now,
) -> (Vec<ImageReport>, i32) {
    let before: BTreeMap<&str, &ImageReport> = previous
        .iter()
        .flat_map(|report| &report.images)
        .map(|image| (image.image.as_str(), image))
        .collect();
    // What is gone is told where somebody asks for that, in `caches`.
    let going = going
        .iter()
        .filter(|(key, (state, ..))| *state != ImageState::Removed && !states.contains_key(*key));
    let mut keys: Vec<_> = states.iter().chain(going).collect();
    keys.sort_by_key(|(key, _)| *key);
    let mut images: Vec<_> = keys
        .into_iter()
        .map(|(key, (state, reason, message))| {
            let image = world.image(key);
            let id = image.map(|image| &*image.id);
            let leaves = || world.removals.of(key).map(|(id, _)| &**id);
            let id = id.or_else(leaves);
            let holding = id.and_then(|id| world.holdings.get(id));
            let (failures, next_attempt) = world.failures(key);
            let since = before
                .get(&**key)
                .filter(|before| before.state == *state)
                .map_or_else(
                    || whole_seconds(now.wall),
                    |before| before.last_transition_time.clone(),
                );
            ImageReport {
                image: key.to_string(),
                state: *state,
                digest: image
                    .and_then(|image| image.digest.clone())
                    .or_else(|| holding.and_then(|holding| digest(holding, key))),
                bytes: image
                    .map(|image| image.bytes)
                    .or(holding.map(|holding| holding.bytes))
                    .map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
                origin: holding.map(|holding| match holding.pulled.get(key) {
                    Some(_) => Origin::Agent,
                    None => Origin::Found,
                }),
                removal_policy: holding.and_then(|holding| holding.pulled.get(key)).map(
                    |removable| match removable {
                        true => RemovalPolicy::Remove,
                        false => RemovalPolicy::Keep,
                    },
                ),
                pinned: holding
                    .is_some_and(|holding| matches!(holding.pin, Pin::Ours | Pin::Foreign)),
                evictions: world
                    .memory
                    .get(key)
                    .map(|memory| length(memory.evictions.len()))
                    .filter(|evictions| *evictions > 0),
                attempts: (failures > 0).then(|| i32::try_from(failures).unwrap_or(i32::MAX)),
                next_attempt: (*state == ImageState::Failed || reason.is_some_and(is_told))
                    .then_some(next_attempt)
                    .flatten()
                    .map(Time),
                progress: world.reported_bytes.get(key).map(|(done, total)| {
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
    let all = images.len();
    if all > MAX_REPORTED_IMAGES || images.iter().map(size).sum::<usize>() > ROOM {
        images.sort_by_key(|image| image.state == ImageState::Ready);
        let mut room = ROOM;
        let fits = images.iter().take(MAX_REPORTED_IMAGES).take_while(|image| {
            let size = size(image);
            let fits = size <= room;
            room = room.saturating_sub(size);
            fits
        });
        images.truncate(fits.count());
    }
    let omitted = length(all.saturating_sub(images.len()));
    (images, omitted)
}

/// Reasons beside which it is said when the image is tried again, although it has not failed.
const fn is_told(reason: Reason) -> bool {
    matches!(reason, Reason::Evicted | Reason::RefreshFailed)
}

/// What an entry takes, in bytes, or a little more.
fn size(image: &ImageReport) -> usize {
    let texts = [&image.digest, &image.message].into_iter().flatten();
    AROUND + image.image.len() + texts.map(String::len).sum::<usize>()
}

/// The digest that an image has in the repository of this name.
fn digest(holding: &Holding, key: &ImageKey) -> Option<String> {
    let mut names = holding.names.iter();
    let name = names.find(|name| name.contains('@') && repository(name) == repository(key))?;
    name.split_once('@').map(|(_, digest)| digest.to_owned())
}
