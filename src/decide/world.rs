//! The world of one node as decisions see it: what is wanted, what is there, what is under way, and
//! what is remembered of each image.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::brought::Brought;
use super::chores::Chores;
use super::desired::{Desired, ImageKey, Wanted};
use super::disk::Disk;
use super::holdings::Holdings;
use super::inputs::{Known, SecretName};
use super::leases::Leases;
use super::memory::{Failed, Memory, later};
use super::node_sources::NodeSources;
use super::pins::{Pins, pins};
use super::pull_secrets::PullSecrets;
use super::refresh::{Refresh, Refreshes, Resolved};
use super::registries::{Credentials, Hold, News, Registries, Scope};
use super::removal::Removals;
use super::timing::Timing;
use super::traffic::{Traffic, Yielding};
use super::{backoff, credentials};
use crate::api::{CredentialProblem, NodeImageCacheStatus, NodeSource, Reason};

/// The time, on the two clocks that there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Now {
    /// Monotonic, since the agent's start: what every delay is counted on.
    pub monotonic: Duration,
    /// The wall clock: for timestamps that people read, and for nothing else.
    pub wall: Timestamp,
}

/// An image that the runtime has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PresentImage {
    /// The image ID.
    pub id: String,
    /// The digest that the name was resolved to, where the runtime knows one.
    pub digest: Option<String>,
    /// Its size in bytes, as the runtime gives it.
    pub bytes: u64,
    /// The platform it is made for, if that is not this node's.
    pub foreign_platform: Option<String>,
}

/// What the runtime has under each name that it was asked for.
pub type Answers = BTreeMap<ImageKey, Option<Arc<PresentImage>>>;

/// Whether the runtime answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Runtime {
    /// It has not been asked yet.
    #[default]
    Starting,
    /// It answered the last time that it was asked.
    Ready,
    /// It did not, for this reason.
    Down(String),
    /// Another agent serves it, and reports what it has: this one neither pulls nor reports.
    Taken(String),
}

/// A pull that is under way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pull {
    /// When it began.
    pub since: Duration,
    /// It was told to stop, and has not ended yet.
    pub cancelled: bool,
    /// The runtime has the image, and is being asked what it is: the slot is free.
    pub landed: bool,
    /// It makes no progress, and why that is so in a sentence.
    pub stalled: Option<String>,
    /// The image was there when it began.
    pub is_refresh: bool,
    /// What has changed since it began.
    pub overtaken: Overtaken,
}

/// What has changed since a pull began, so that its end says nothing of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Overtaken {
    /// The image's pull secrets.
    pub by_secrets: bool,
    /// An annotation: it asks for the image anew.
    pub by_refresh: bool,
}

/// How a pull ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The runtime has the image.
    Pulled(PresentImage),
    /// The runtime had the image already, and no registry was asked.
    Found(PresentImage),
    /// It failed.
    Failed(Failed),
    /// The runtime went away: that is no attempt.
    RuntimeLost,
    /// It was cancelled by this agent: that is no attempt either.
    Cancelled,
    /// No registry was asked: there is a limit for whoever asks with the credentials that were found.
    Limited,
}

/// What the end of a pull comes to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// How it ended: one that was cancelled because it made no progress has failed.
    pub outcome: Outcome,
    /// The registry that is left alone from now on, or no more.
    pub news: Option<News>,
}

/// The world of one node.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// What is wanted.
    pub desired: Known<Desired>,
    /// Whether the runtime answers.
    pub runtime: Runtime,
    /// The wanted images that the runtime was asked for, and whether it had them when it last answered.
    pub asked: Answers,
    /// The pulls under way.
    pub pulls: BTreeMap<ImageKey, Pull>,
    /// What is remembered of wanted images.
    pub memory: BTreeMap<ImageKey, Memory>,
    /// The images that concern this agent, and whose they are, when the runtime last answered.
    pub holdings: Holdings,
    /// What this agent has pulled, where the runtime does not keep that.
    pub brought: Brought,
    /// The images that nobody wants any more.
    pub removals: Removals,
    /// The image filesystem, and what waits for it.
    pub disk: Disk,
    /// Which pins are to change.
    pub pins: Pins,
    /// Whether the runtime heeds pins, once one was tried.
    pub pinning: Option<bool>,
    /// What is being written into the runtime.
    pub chores: Chores,
    /// Our leases in the runtime.
    pub leases: Leases,
    /// What is known of pull secrets.
    pub secrets: PullSecrets,
    /// Registries that are being left alone.
    pub registries: Registries,
    /// What is known of the node's own credentials.
    pub node: NodeSources,
    /// The node's downloads.
    pub traffic: Traffic,
    /// How far pulls make way for the downloads of others.
    pub yielding: Yielding,
    /// The annotations that were acted on.
    pub refreshes: Refreshes,
    /// How far the pulls were when that was last reported: bytes on the disk, and in all.
    pub reported_bytes: BTreeMap<ImageKey, (u64, u64)>,
}

impl World {
    /// What is wanted has changed. Images that nobody wants any more are forgotten: wanted again, they start anew.
    ///
    /// An image for which other pull secrets are named now than before is tried again. Returns these, and those that were not wanted
    /// before: many nodes may have heard of them at the same time.
    pub fn wants(&mut self, desired: Known<Desired>) -> Vec<ImageKey> {
        let mut fresh = Vec::new();
        if let Known::Known(desired) = &desired {
            let before = self.desired.known();
            let is_new =
                |key: &&ImageKey| before.is_none_or(|before| !before.images.contains_key(*key));
            fresh.extend(desired.images.keys().filter(is_new).cloned());
            self.memory
                .retain(|key, _| desired.images.contains_key(key));
            for (key, memory) in &mut self.memory {
                let other = |before: &Desired| before.secrets(key) != desired.secrets(key);
                if before.is_some_and(other) {
                    memory.asked_as = None;
                    if memory.start_anew() {
                        fresh.push(key.clone());
                    }
                }
            }
            for (key, pull) in &mut self.pulls {
                pull.overtaken.by_secrets |=
                    before.is_some_and(|before| before.secrets(key) != desired.secrets(key));
            }
            self.asked.retain(|key, _| desired.concerns(key));
            self.secrets.keep_named(desired);
            self.node.keep_wanted(desired);
        }
        self.desired = desired;
        fresh
    }

    /// How often pull secrets were seen to change. What failed and could go better with one that changed is tried again, at once.
    pub fn secrets_changed(&mut self, changes: &BTreeMap<SecretName, u64>) {
        let news = self.secrets.news(changes);
        let Some(desired) = self.desired.known().filter(|_| !news.is_empty()) else {
            return;
        };
        self.registries.secrets_changed(&news);
        let has_news = |key: &ImageKey| {
            let mut secrets = desired.secrets(key).iter();
            secrets.any(|secret| news.contains(&**secret))
        };
        for (key, memory) in &mut self.memory {
            if has_news(key) {
                memory.asked_as = None;
                memory.start_anew();
            }
        }
        for (key, pull) in &mut self.pulls {
            pull.overtaken.by_secrets |= has_news(key);
        }
    }

    /// Returns the images that annotations ask for anew: `reported` is what the agent before this one has said. What failed is tried
    /// again, and what is there is asked for again.
    pub fn refreshes_asked(
        &mut self,
        reported: Option<&NodeImageCacheStatus>,
        now: Duration,
    ) -> Vec<ImageKey> {
        let Known::Known(desired) = &self.desired else {
            return Vec::new();
        };
        let asked = self.refreshes.wants(desired, reported);
        for key in &asked {
            let memory = self.memory.entry(key.clone()).or_default();
            memory.start_anew();
            (memory.failures, memory.retry) = (0, None);
            memory.refresh.asked = Some(now);
            if let Some(pull) = self.pulls.get_mut(key) {
                pull.overtaken.by_refresh = true;
            }
        }
        asked.into_iter().collect()
    }

    /// What came with one change waits this long before it is pulled, so that not every node asks the registries in the same second.
    pub fn wait_at_first(&mut self, fresh: Vec<ImageKey>, delay: Duration, now: Now) {
        if !delay.is_zero() {
            for key in fresh {
                let memory = self.memory.entry(key).or_default();
                memory.try_again(delay, now);
                memory.refresh.asked = memory.refresh.asked.map(|at| at + delay);
            }
        }
    }

    /// A pull of this image read these sources of credentials: why one gave none, if it did not.
    pub fn read_credentials(
        &mut self,
        key: &ImageKey,
        secrets: BTreeMap<Arc<SecretName>, Option<CredentialProblem>>,
        node: &BTreeMap<NodeSource, Option<CredentialProblem>>,
    ) {
        self.secrets.read(secrets);
        let memory = &self.memory;
        let is_failing = |image: &ImageKey| memory.get(image).is_some_and(Memory::is_failing);
        self.node.read(key, node, is_failing);
    }

    /// A pull of this image found credentials in these sources, and asked with them if there was no limit for that.
    pub fn asks_as(&mut self, key: &ImageKey, credentials: Credentials) {
        let desired = self.desired.known();
        if desired.is_some_and(|desired| desired.images.contains_key(key)) {
            self.memory.entry(key.clone()).or_default().asked_as = Some(credentials);
        }
    }

    /// Whose credentials an image is asked for with, as far as that is known.
    fn credentials_of(&self, key: &ImageKey, wanted: &Wanted) -> Option<&Credentials> {
        static NOBODY: Credentials = Credentials::new();
        // There is nothing that could have any.
        let is_nobody = wanted.secrets.is_empty() && self.node.names().is_none();
        let memory = self.memory.get(key);
        let found = memory.and_then(|memory| memory.asked_as.as_ref());
        found.or(is_nobody.then_some(&NOBODY))
    }

    /// What holds for the registry of a wanted image.
    pub(super) fn hold<'a>(
        &'a self,
        key: &ImageKey,
        wanted: &'a Wanted,
    ) -> Option<(Scope<'a>, &'a Hold)> {
        let credentials = self.credentials_of(key, wanted);
        self.registries.hold(wanted, credentials)
    }

    /// With which credentials a pull of this image is not to ask its registry.
    #[must_use]
    pub fn limits(&self, key: &ImageKey) -> BTreeSet<Credentials> {
        let desired = self.desired.known();
        let wanted = desired.and_then(|desired| desired.images.get(key));
        wanted.map_or_else(BTreeSet::new, |wanted| {
            let own = self.credentials_of(key, wanted);
            self.registries.limits(wanted, own)
        })
    }

    /// Status, reason and message of the node's condition for credentials.
    #[must_use]
    pub fn credentials(&self) -> (bool, &'static str, String) {
        credentials::condition(&self.secrets, &self.node)
    }

    /// The pull secrets of images that fail, or are not asked for because of a limit: a change of one of them is worth to know at once.
    ///
    /// One that gave no credentials is not among them because of that alone: an image that came without them waits for nothing, and a
    /// watch of such a Secret would never end.
    #[must_use]
    pub fn awaited_secrets(&self) -> BTreeSet<Arc<SecretName>> {
        let images = self.desired.known().map(|desired| &desired.images);
        let waits = |key: &ImageKey, wanted: &Wanted| {
            let is_failing = self.memory.get(key).is_some_and(Memory::is_failing);
            let hold = self.hold(key, wanted).filter(|_| !self.is_ready(key));
            is_failing || hold.is_some_and(|(_, hold)| hold.cause.1.reason == Reason::RateLimited)
        };
        let waiting = images.into_iter().flatten();
        let waiting = waiting.filter(|(key, wanted)| waits(key, wanted));
        waiting
            .flat_map(|(_, wanted)| &wanted.secrets)
            .cloned()
            .collect()
    }

    /// The runtime answered: of the images that it was asked for, these are there. Returns those that were there before
    /// and that something else has removed.
    pub fn has(
        &mut self,
        answer: Answers,
        now: Now,
        timing: &Timing,
        chance: f64,
    ) -> Vec<ImageKey> {
        self.runtime = Runtime::Ready;
        let Known::Known(desired) = &self.desired else {
            return Vec::new();
        };
        let mut evicted = Vec::new();
        for (key, found) in answer {
            if !desired.concerns(&key) {
                continue;
            }
            let before = self.asked.insert(key.clone(), found.clone()).flatten();
            if !desired.images.contains_key(&key) {
                continue;
            }
            if before.is_none() && found.is_some() {
                self.disk.arrived(&key);
            }
            match (before, found) {
                (_, Some(image)) => {
                    let memory = self.memory.entry(key.clone()).or_default();
                    memory.arrived(&image);
                    let found = || Resolved::found(now.monotonic, &key, chance);
                    memory.refresh.resolved.get_or_insert_with(found);
                }
                (Some(_), None) if self.chores.removes(&key) => {}
                (Some(_), None) => {
                    let memory = self.memory.entry(key.clone()).or_default();
                    memory.evicted(self.disk.figures(), now, timing, chance);
                    evicted.push(key);
                }
                (None, None) => {}
            }
        }
        evicted
    }

    /// The runtime does not answer.
    pub fn lost_runtime(&mut self, why: String) {
        self.runtime = Runtime::Down(why);
    }

    /// Another agent serves the runtime.
    pub fn runtime_taken(&mut self, why: String) {
        self.runtime = Runtime::Taken(why);
    }

    /// Says which leases are to be given up and which pulls have stalled, once it is known what is wanted, and how far pulls make way.
    pub fn tend(&mut self, now: Duration, timing: &Timing) {
        self.yielding = self.traffic.yielding(now, timing);
        let Known::Known(desired) = &self.desired else {
            self.removals.hold(now);
            return;
        };
        if self.runtime == Runtime::Ready {
            let (asked, holdings) = (&self.asked, &self.holdings);
            self.removals.tend(desired, asked, holdings, now, timing);
            self.pins = pins(desired, asked, holdings, self.disk.pin_budget());
            if desired.doubt.is_some() {
                self.pins.unpin.clear();
            }
        }
        // Of a refresh most is there already: only what it really takes counts.
        let is_new = |key: &ImageKey| self.pulls.get(key).is_some_and(|pull| !pull.is_refresh);
        let new_bytes = self.traffic.bytes().filter(|(key, _)| is_new(key));
        let has_room_again = self.disk.tend(desired, &self.pulls, new_bytes, now, timing);
        if has_room_again {
            for memory in self.memory.values_mut() {
                memory.room_came_back();
            }
        }
        for (key, pull) in &mut self.pulls {
            let patience = desired.images.get(key).map(|wanted| wanted.patience);
            if let Some(patience) = patience
                && pull.stalled.is_none()
                && !pull.landed
            {
                pull.stalled = self.traffic.stalled(key, patience, now, timing);
            }
        }
        let (asked, memory, pulls) = (&self.asked, &self.memory, &self.pulls);
        self.leases.tend(desired, asked, memory, pulls, now, timing);
        if self.disk.gives_up_parts(now, timing) {
            self.leases.give_up_parts(pulls, now);
        }
    }

    /// From now on this is reported of how far the pulls are.
    pub fn report_bytes(&mut self) {
        let known = self.traffic.bytes().filter(|(_, (_, total))| *total > 0);
        self.reported_bytes = known.map(|(key, bytes)| (key.clone(), bytes)).collect();
    }

    /// A pull was started. `resumes`: an earlier attempt has left something.
    pub fn started(&mut self, key: ImageKey, resumes: bool, now: Now) {
        self.traffic.began(key.clone(), resumes, now.monotonic);
        self.leases.began(&key, self.image(&key).is_some());
        let is_refresh = self.is_ready(&key);
        self.pulls.insert(
            key,
            Pull {
                since: now.monotonic,
                cancelled: false,
                landed: false,
                stalled: None,
                is_refresh,
                overtaken: Overtaken::default(),
            },
        );
    }

    /// Whether the pull of this image that began at this time is still under way. It may have ended, and another one have begun.
    #[must_use]
    pub fn is_under_way(&self, key: &ImageKey, since: Duration) -> bool {
        let pull = self.pulls.get(key);
        pull.is_some_and(|pull| pull.since == since)
    }

    /// A pull has brought its image, and will end in a moment.
    pub fn landed(&mut self, key: &ImageKey) {
        if let Some(pull) = self.pulls.get_mut(key) {
            pull.landed = true;
        }
    }

    /// A pull was told to stop. Its slot is free once it has ended.
    pub fn cancelled(&mut self, key: &ImageKey) {
        if let Some(pull) = self.pulls.get_mut(key) {
            pull.cancelled = true;
        }
    }

    /// A pull ended. `chance` is a random number from 0 to 1.
    pub fn ended(
        &mut self,
        key: &ImageKey,
        outcome: Outcome,
        now: Now,
        timing: &Timing,
        chance: f64,
    ) -> Ended {
        let pull = self.pulls.remove(key);
        let is_unanswered = self.traffic.is_unanswered(key);
        self.traffic.ended(key);
        self.reported_bytes.remove(key);
        let began = pull.as_ref().map_or(now.monotonic, |pull| pull.since);
        let is_refresh = pull.as_ref().is_some_and(|pull| pull.is_refresh);
        let overtaken = pull.as_ref().map(|pull| pull.overtaken).unwrap_or_default();
        let is_old = overtaken.by_secrets || overtaken.by_refresh;
        let outcome = match (outcome, pull.and_then(|pull| pull.stalled)) {
            (Outcome::Cancelled, Some(message)) => Outcome::Failed(Failed {
                reason: Reason::Stalled,
                message,
            }),
            (outcome, _) => outcome,
        };
        self.disk.ended(key, &outcome, now.monotonic);
        let heard = heard(&outcome, is_unanswered);
        let news = self.registry_heard(key, &heard, began, now, timing, chance);
        let ended = Ended {
            news,
            outcome: outcome.clone(),
        };
        if matches!(outcome, Outcome::Pulled(_) | Outcome::Found(_)) {
            self.leases.brought(key);
        }
        if matches!(outcome, Outcome::Pulled(_) | Outcome::Failed(_)) && !overtaken.by_refresh {
            self.refreshes.asked(key);
        }
        let wanted = self
            .desired
            .known()
            .is_none_or(|desired| desired.images.contains_key(key));
        if !wanted {
            return ended;
        }
        let is_there = self.is_ready(key);
        match outcome {
            Outcome::Found(image) => {
                self.memory.entry(key.clone()).or_default().arrived(&image);
                self.asked.insert(key.clone(), Some(Arc::new(image)));
            }
            Outcome::Pulled(image) => {
                let memory = self.memory.entry(key.clone()).or_default();
                memory.arrived(&image);
                memory.refresh = Refresh {
                    resolved: Some(Resolved::asked(now.monotonic, chance)),
                    asked: memory.refresh.asked.filter(|_| overtaken.by_refresh),
                    ..Refresh::default()
                };
                // An image for another platform came without an error. It may be pushed anew under the same name.
                if image.foreign_platform.is_some() {
                    (memory.failures, memory.last) = (0, None);
                    memory.try_again(
                        backoff::delay(Reason::NoMatchingPlatform, 1, timing, chance),
                        now,
                    );
                }
                self.asked.insert(key.clone(), Some(Arc::new(image)));
            }
            // Somebody else has brought it meanwhile.
            Outcome::Failed(_) if is_there && !is_refresh => {}
            Outcome::Failed(failed) if is_there => {
                let memory = self.memory.entry(key.clone()).or_default();
                let refresh = &mut memory.refresh;
                refresh.failures = refresh.failures.saturating_add(1);
                let delay = backoff::delay(failed.reason, refresh.failures, timing, chance);
                (refresh.retry, refresh.last) = (Some(later(now, delay)), Some(failed));
                if is_old {
                    memory.start_anew();
                }
            }
            Outcome::Failed(failed) => {
                let memory = self.memory.entry(key.clone()).or_default();
                memory.failures = memory.failures.saturating_add(1);
                memory.try_again(
                    backoff::delay(failed.reason, memory.failures, timing, chance),
                    now,
                );
                memory.last = Some(failed);
                if is_old {
                    memory.start_anew();
                }
            }
            Outcome::RuntimeLost => {
                let memory = self.memory.entry(key.clone()).or_default();
                memory.try_again(timing.runtime_retry.first, now);
                if is_refresh {
                    memory.refresh.retry = Some(later(now, timing.runtime_retry.first));
                }
            }
            Outcome::Cancelled | Outcome::Limited => {}
        }
        if overtaken.by_secrets
            && let Some(memory) = self.memory.get_mut(key)
        {
            memory.asked_as = None;
        }
        ended
    }

    /// What the end of a pull says of the image's registry.
    fn registry_heard(
        &mut self,
        key: &ImageKey,
        outcome: &Outcome,
        began: Duration,
        now: Now,
        timing: &Timing,
        chance: f64,
    ) -> Option<News> {
        let desired = self.desired.known()?;
        let registries = &mut self.registries;
        registries.forget(desired.images.values(), now.monotonic);
        let wanted = desired.images.get(key)?;
        let memory = self.memory.get(key);
        let nobody = Credentials::new();
        let credentials = memory.and_then(|memory| memory.asked_as.as_ref());
        let credentials = credentials.unwrap_or(&nobody);
        match outcome {
            Outcome::Pulled(_) => registries.answered(wanted, credentials, true),
            Outcome::Failed(failed) => {
                let asked = (wanted, credentials);
                registries.failed(asked, failed, began, now, timing, chance)
            }
            Outcome::Found(_) | Outcome::RuntimeLost | Outcome::Cancelled | Outcome::Limited => {
                None
            }
        }
    }

    /// Whether there is a wanted image that the runtime was never asked for.
    pub(super) fn question_open(&self, desired: &Desired) -> bool {
        let wanted = desired
            .images
            .iter()
            .map(|(key, image)| (key, &image.reference));
        let unwanted = desired
            .absent
            .iter()
            .map(|(key, image)| (key, &image.reference));
        let mut all = wanted.chain(unwanted);
        all.any(|(key, reference)| reference.is_ok() && !self.asked.contains_key(key))
    }

    /// What the runtime has under this name, when it last answered.
    #[must_use]
    pub fn image(&self, key: &ImageKey) -> Option<&PresentImage> {
        self.asked.get(key)?.as_deref()
    }

    /// Whether the runtime has the image, for this node's platform.
    #[must_use]
    pub fn is_ready(&self, key: &ImageKey) -> bool {
        let image = self.image(key);
        image.is_some_and(|image| image.foreign_platform.is_none())
    }
}

/// What the end of a pull says of its registry. One that has not answered at all counts as one that refused: each pull would hold a
/// slot for as long, whoever else waits for it.
fn heard(outcome: &Outcome, is_unanswered: bool) -> Cow<'_, Outcome> {
    match outcome {
        Outcome::Failed(failed) if failed.reason == Reason::Stalled && is_unanswered => {
            Cow::Owned(Outcome::Failed(Failed {
                reason: Reason::RegistryUnavailable,
                message: failed.message.clone(),
            }))
        }
        outcome => Cow::Borrowed(outcome),
    }
}
