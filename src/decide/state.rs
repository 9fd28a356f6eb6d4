//! The state of a wanted image as people are told it.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;

use super::desired::{ImageKey, Unwanted, Wanted};
use super::holdings::Holding;
use super::memory::{Failed, Memory};
use super::removal::Leaving;
use super::timing::Timing;
use super::traffic::Yielding;
use super::world::{Now, Runtime, World};
use crate::api::{ImageState, Reason};

/// The state of a wanted image, its reason, and the same in a sentence.
pub type State = (ImageState, Option<Reason>, Option<Cow<'static, str>>);

impl World {
    /// The state of a wanted image, its reason, and the same in a sentence.
    #[must_use]
    pub fn state(&self, key: &ImageKey, now: Now, timing: &Timing) -> State {
        let Some(wanted) = self
            .desired
            .known()
            .and_then(|desired| desired.images.get(key))
        else {
            return (ImageState::Waiting, Some(Reason::Queued), None);
        };
        if let Err(invalid) = &wanted.reference {
            return failed(Reason::InvalidReference, invalid.to_string());
        }
        let present = self.image(key);
        let memory = self.memory.get(key);
        if present.is_some_and(|image| image.foreign_platform.is_none()) {
            let refresh = memory.and_then(|memory| memory.refresh.failing(wanted.refresh));
            let last = refresh.and_then(|refresh| refresh.last.as_ref());
            let said = last.map(|Failed { reason, message }| format!("{reason}: {message}").into());
            if said.is_some() {
                return (ImageState::Ready, Some(Reason::RefreshFailed), said);
            }
            if self.pins.beyond.contains(key) {
                return kept(Reason::PinBudget, BEYOND);
            }
            if let Some(unwanted) = self.unwanted(key) {
                return contended(wanted, unwanted);
            }
            return (ImageState::Ready, None, None);
        }
        let last = memory.and_then(|memory| memory.last.as_ref());
        let evicted = memory.is_some_and(|memory| memory.seen && present.is_none());
        if let Some(pull) = self.pulls.get(key).filter(|pull| !pull.cancelled)
            && (!self.is_repetition(key)
                || now.monotonic.saturating_sub(pull.since) >= timing.retry_is_pulling_after)
        {
            let (reason, message) = evicted
                .then(|| (Reason::Evicted, self.evicted(key)))
                .unzip();
            return (ImageState::Pulling, reason, message);
        }
        if wanted.paused {
            let message = last.map_or_else(
                || Cow::Borrowed(PAUSED),
                |last| {
                    let (reason, message) = (last.reason, &last.message);
                    format!("spec.paused is set; the last attempt failed: {reason}: {message}")
                        .into()
                },
            );
            return (ImageState::Waiting, Some(Reason::Paused), Some(message));
        }
        if let Some(platform) = present.and_then(|image| image.foreign_platform.as_deref()) {
            return failed(
                Reason::NoMatchingPlatform,
                format!(
                    "the image is made for {platform}, not for this node: push one for this node's platform, or select other nodes"
                ),
            );
        }
        // It could not be pulled whatever the last attempt said.
        if let Some(why) = self.disk.no_room_for(key) {
            return waiting(Reason::DiskPressure, why.to_owned());
        }
        if let Some(last) = last {
            return failed(last.reason, last.message.clone());
        }
        if let Some((_, hold)) = self.hold(key, wanted) {
            let (image, Failed { reason, message }) = &hold.cause;
            return failed(
                *reason,
                format!("the registry is left alone since it was asked for {image}: {message}"),
            );
        }
        if let Runtime::Down(why) | Runtime::Taken(why) = &self.runtime {
            return waiting(Reason::RuntimeUnavailable, why.clone());
        }
        if let Some(why) = self.disk.obstacle(key) {
            return waiting(Reason::DiskPressure, why.to_owned());
        }
        if self.yielding == Yielding::Wholly {
            return waiting(Reason::Yielding, YIELDING);
        }
        if evicted {
            return waiting(Reason::Evicted, self.evicted(key));
        }
        (ImageState::Waiting, Some(Reason::Queued), None)
    }

    /// The state of an image that somebody wants gone, its reason, and the same in a sentence.
    #[must_use]
    pub fn state_of_unwanted(&self, key: &ImageKey, unwanted: &Unwanted) -> State {
        if let Err(invalid) = &unwanted.reference {
            return failed(Reason::InvalidReference, invalid.to_string());
        }
        let wanted = self
            .desired
            .known()
            .and_then(|desired| desired.images.get(key));
        if let Some(wanted) = wanted {
            return contended(wanted, unwanted);
        }
        if let Some((_, leaving)) = self.removals.of(key) {
            return leaving.state();
        }
        match self.asked.get(key) {
            Some(None) => (ImageState::Removed, None, None),
            Some(Some(_)) if unwanted.paused => waiting(Reason::Paused, PAUSED),
            Some(Some(image)) => {
                let is_own = |holding: &Holding| holding.pulled.contains_key(key);
                if self.holdings.get(&*image.id).is_some_and(is_own) {
                    // It was seen a moment ago.
                    return (ImageState::Removing, None, None);
                }
                let holding = self.holdings.get(&*image.id);
                let mut pulled = holding.into_iter().flat_map(|held| held.pulled.keys());
                match pulled.next() {
                    Some(name) => kept(
                        Reason::NotOwned,
                        format!(
                            "this agent has pulled it as {name}, and removes it under that name"
                        ),
                    ),
                    None => kept(Reason::NotOwned, NOT_OWNED),
                }
            }
            None => match &self.runtime {
                Runtime::Down(why) | Runtime::Taken(why) => {
                    waiting(Reason::RuntimeUnavailable, why.clone())
                }
                Runtime::Starting | Runtime::Ready => waiting(Reason::Queued, ""),
            },
        }
    }

    /// What became of an image that was there, and what to do.
    fn evicted(&self, key: &ImageKey) -> Cow<'static, str> {
        let Some(memory) = self
            .memory
            .get(key)
            .filter(|memory| memory.evictions.len() > 1)
        else {
            return EVICTED.into();
        };
        let times = memory.evictions.len();
        let disk = memory.disk.as_ref();
        let disk = disk.map_or_else(String::new, |disk| format!("; before that, {disk}"));
        format!("{EVICTED}; it was removed {times} times within an hour{disk}").into()
    }

    /// Who wants this image gone.
    fn unwanted(&self, key: &ImageKey) -> Option<&Unwanted> {
        let desired = self.desired.known()?;
        desired.absent.get(key).filter(|unwanted| !unwanted.paused)
    }

    /// How often an image, or its registry if that is being left alone, has failed in a row, and when it is tried again.
    #[must_use]
    pub fn failures(&self, key: &ImageKey) -> (u32, Option<Timestamp>) {
        let memory = self.memory.get(key);
        let wanted = self
            .desired
            .known()
            .and_then(|desired| desired.images.get(key));
        if self.is_ready(key) {
            let interval = wanted.and_then(|wanted| wanted.refresh);
            let refresh = memory.and_then(|memory| memory.refresh.failing(interval));
            let retry = refresh.and_then(|refresh| refresh.retry);
            return (
                refresh.map_or(0, |refresh| refresh.failures),
                retry.map(|(_, at)| at),
            );
        }
        let own = memory.map_or(0, |memory| memory.failures);
        let retry = memory.and_then(|memory| memory.retry);
        let last = memory.and_then(|memory| memory.last.as_ref());
        let hold = wanted.and_then(|wanted| self.hold(key, wanted));
        let (failures, until) = match hold {
            Some((_, hold)) if last.is_none_or(|last| last.reason == hold.cause.1.reason) => {
                (own.max(hold.failures), retry.max(Some(hold.until)))
            }
            Some((_, hold)) => (own, retry.max(Some(hold.until))),
            None => (own, retry),
        };
        (failures, until.map(|(_, at)| at))
    }

    /// When [`World::state`] of an image that is being pulled again turns from its last failure to `Pulling`.
    #[must_use]
    pub fn state_changes_at(&self, timing: &Timing, now: Now) -> Option<Duration> {
        self.pulls
            .iter()
            .filter(|(key, pull)| !pull.cancelled && self.is_repetition(key))
            .map(|(_, pull)| pull.since + timing.retry_is_pulling_after)
            .filter(|at| *at > now.monotonic)
            .min()
    }

    /// Whether a pull of this image repeats one that failed, or that brought an image for another platform.
    fn is_repetition(&self, key: &ImageKey) -> bool {
        let failed = |memory: &Memory| memory.last.is_some();
        self.memory.get(key).is_some_and(failed) || self.image(key).is_some()
    }
}

/// What to look at when images disappear.
const EVICTED: &str = "something else on the node removed this image: pin it (spec.pin), or look at the kubelet's imageGCHighThresholdPercent and imageMaximumGCAge, and at image cleaners";

/// Why nothing is pulled although nothing is wrong.
const YIELDING: &str =
    "something else is downloading images on this node, such as a pod that starts: it goes first";

/// Why nothing is done.
const PAUSED: &str = "spec.paused is set";

/// Why an image is not pinned.
const BEYOND: &str = "it is not pinned: the images that are pinned already take all that may be pinned on this node (--max-pinned-percent)";

/// Why an image is not removed.
const NOT_OWNED: &str = "this agent has not pulled it: it was there before, or something else has pulled it, and it stays";

impl Leaving {
    /// The state of an image that leaves.
    #[must_use]
    pub fn state(&self) -> State {
        if let Some((reason, why)) = &self.kept {
            return kept(*reason, why.clone());
        }
        let doubt = self.doubt.as_ref();
        let why = doubt.map(|doubt| format!("not yet: {doubt}").into());
        (ImageState::Removing, None, why)
    }
}

/// One wants it, and another wants it gone.
fn contended(wanted: &Wanted, unwanted: &Unwanted) -> State {
    let (by, other) = (&wanted.by, &unwanted.by);
    let message = format!("{other} wants it gone; it stays, because {by} wants it");
    kept(Reason::WantedElsewhere, message)
}

fn kept(reason: Reason, message: impl Into<Cow<'static, str>>) -> State {
    (ImageState::Ready, Some(reason), Some(message.into()))
}

fn failed(reason: Reason, message: impl Into<Cow<'static, str>>) -> State {
    (ImageState::Failed, Some(reason), Some(message.into()))
}

fn waiting(reason: Reason, message: impl Into<Cow<'static, str>>) -> State {
    (ImageState::Waiting, Some(reason), Some(message.into()))
}
