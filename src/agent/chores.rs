//! Writing into the runtime whose an image is and that it is pinned, and removing images.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::Agent;
use crate::api::Reason;
use crate::decide::chores::Chore;
use crate::decide::desired::ImageKey;
use crate::decide::holdings::{Holding, Own, names_with};
use crate::decide::removal::Kept;
use crate::runtime::{Containerd, Runtime, RuntimeError};

/// How long a runtime may take to say that an image is pinned after it was labelled so.
const PIN_LIMIT: Duration = Duration::from_secs(3);

/// How often it is asked meanwhile.
const PIN_POLL: Duration = Duration::from_millis(50);

/// A batch of chores, and what it is done with.
#[derive(Debug)]
pub struct Batch {
    pub runtime: Runtime,
    pub containerd: Option<Containerd>,
    pub chores: Vec<Chore>,
    /// The names that are wanted: none of them goes.
    pub wanted: BTreeSet<ImageKey>,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Done {
    /// Each removal, and what kept the image if something did.
    removed: Vec<(Own, Option<Kept>)>,
    /// The marks that the runtime does not keep.
    marked: Vec<(Own, bool)>,
    /// Whether the runtime heeds a pin, if one was tried.
    pinning: Option<bool>,
    /// What could not be done.
    failed: Option<RuntimeError>,
}

impl Batch {
    /// Does one after the other. What fails ends the batch: the runtime may be gone.
    pub async fn run(self) -> Done {
        let mut done = Done::default();
        for chore in &self.chores {
            if let Err(error) = self.carry_out(chore, &mut done).await {
                done.failed = Some(error);
                break;
            }
        }
        done
    }

    async fn carry_out(&self, chore: &Chore, done: &mut Done) -> Result<(), RuntimeError> {
        match chore {
            Chore::Remove(own) => {
                let kept = self.remove(own).await?;
                done.removed.push((own.clone(), kept));
            }
            Chore::Mark { own, removable } => {
                if let Some(containerd) = &self.containerd {
                    let (id, key) = own;
                    containerd.mark_pulled(id, key, Some(*removable)).await?;
                } else {
                    done.marked.push((own.clone(), *removable));
                }
            }
            Chore::Pin(id) => {
                if let Some(containerd) = &self.containerd
                    && containerd.pin(id).await?
                {
                    done.pinning = Some(self.is_pinned(id).await?);
                }
            }
            Chore::Unpin(id) => {
                if let Some(containerd) = &self.containerd {
                    containerd.unpin(id).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether the runtime heeds the pin on this image. containerd says so within 12 ms, and before 1.6.21 never.
    async fn is_pinned(&self, id: &str) -> Result<bool, RuntimeError> {
        let until = Instant::now() + PIN_LIMIT;
        loop {
            let image = self.runtime.image(id).await?;
            if image.is_none_or(|image| image.pinned) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(PIN_POLL).await;
        }
    }

    /// Removes an image under one of its names, or says what keeps it. Whatever the decision rested on is asked for once more.
    ///
    /// The mark that the image is ours goes last: killed at any point before, the next process goes on.
    async fn remove(&self, (id, key): &Own) -> Result<Option<Kept>, RuntimeError> {
        let found = self.runtime.image(id).await?;
        let holding = found.map(|image| Holding {
            names: image
                .tags
                .iter()
                .chain(&image.digests)
                .map(|name| name.as_str().into())
                .collect(),
            ..Holding::default()
        });
        let holding = holding.unwrap_or_default();
        if let Some(user) = self.user(id, &holding).await? {
            let why = format!("the container {user} uses it");
            return Ok(Some((Reason::InUse, why)));
        }
        let go = names_with(&holding, key, |name| self.wanted.contains(name));
        let mut stay = holding.names.iter().filter(|name| !go.contains(name));
        let Some(containerd) = &self.containerd else {
            if let Some(name) = stay.next() {
                let why = format!("the runtime would remove {name} with it: both are one image");
                return Ok(Some((Reason::Shared, why)));
            }
            self.runtime.remove(key).await?;
            return Ok(None);
        };
        let is_last = stay.next().is_none();
        for name in &go {
            containerd.delete_record(name, false).await?;
        }
        if is_last {
            containerd.delete_record(id, true).await?;
        } else {
            containerd.mark_pulled(id, key, None).await?;
        }
        Ok(None)
    }

    /// A container that uses the image, running or not.
    async fn user(&self, id: &str, holding: &Holding) -> Result<Option<String>, RuntimeError> {
        let containers = self.runtime.containers().await?;
        let mut users = containers.into_iter().filter(|container| {
            let of = |name: &str| name == id || holding.names.contains(name);
            of(&container.image_id) || of(&container.image)
        });
        Ok(users.next().map(|container| container.id))
    }
}

impl Agent {
    /// Begins a batch of chores.
    pub(super) fn begin(&mut self, chores: Vec<Chore>) {
        let Some(session) = self.session.as_ref().filter(|_| !chores.is_empty()) else {
            return;
        };
        let desired = self.world.desired.known();
        let batch = Batch {
            runtime: session.runtime.clone(),
            containerd: session.containerd.clone(),
            wanted: desired
                .map(|desired| desired.images.keys().cloned().collect())
                .unwrap_or_default(),
            chores,
        };
        self.world.chores.began(&batch.chores);
        self.chores.spawn(batch.run());
    }

    /// An image is this agent's own from now on.
    pub(super) fn take_own(&mut self, own: Own, removable: bool) {
        let session = self.session.as_ref();
        if session.is_some_and(|session| session.containerd.is_none()) {
            self.world.brought.mark(&own, removable);
        }
        let (id, key) = own;
        let holding = self.world.holdings.entry(id).or_default();
        holding.names.insert(key.clone());
        holding.pulled.insert(key, removable);
    }

    /// A batch has ended: what follows from it is seen by looking again.
    pub(super) fn take_done(&mut self, done: Done) {
        for (own, removable) in &done.marked {
            self.world.brought.mark(own, *removable);
        }
        let (now, timing) = (self.now().monotonic, &self.settings.timing);
        for (own, kept) in done.removed {
            let (_, key) = &own;
            match kept {
                None => {
                    self.channels.metrics.removed();
                    if self.world.removals.of(key).is_some() {
                        info!(image = %key, "removed: nobody wants this image here any more");
                    } else {
                        info!(image = %key, "removed to make room: nobody wants this image here any more");
                    }
                    self.world.removals.gone(&own);
                    self.world.disk.changed();
                }
                Some(kept) => {
                    let before = self.world.removals.of(key);
                    if before.is_none_or(|before| before.kept.as_ref() != Some(&kept)) {
                        let (reason, why) = &kept;
                        info!(image = %key, %reason, why, "nobody wants this image here any more, and it stays for now");
                    }
                    self.world.removals.kept(&own, kept, now, timing);
                    self.world.reclaim.kept(&own, now, timing);
                }
            }
        }
        if let Some(heeds) = done.pinning {
            if !heeds && self.world.pinning != Some(false) {
                warn!("the runtime does not protect images that are labelled as pinned");
            }
            self.world.pinning = Some(heeds);
        }
        if let Some(error) = &done.failed {
            debug!(%error, "an image could not be labelled or removed; trying again");
        }
        self.world.chores.ended(done.failed.is_none(), now, timing);
        self.chores_ended = Instant::now();
        self.look_now.notify_one();
    }
}
