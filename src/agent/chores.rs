//! Writing into the runtime whose an image is and that it is pinned, and removing images.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Agent;
use crate::api::Reason;
use crate::decide::chores::Chore;
use crate::decide::desired::ImageKey;
use crate::decide::holdings::{Holding, ImageId, Own, names_with};
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
    /// The images that this agent has pulled and that are to go, with all names that they are to go under.
    pub leaving: BTreeMap<ImageId, BTreeSet<ImageKey>>,
    /// Something else is wanted by now: what was not begun is decided anew.
    pub overtaken: CancellationToken,
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
    failed: Option<String>,
}

impl Batch {
    /// Does one after the other, until the runtime is gone.
    pub async fn run(self) -> Done {
        let mut done = Done::default();
        for chore in &self.chores {
            if self.overtaken.is_cancelled() {
                break;
            }
            if let Err(error) = self.carry_out(chore, &mut done).await {
                let is_gone = matches!(error, RuntimeError::Unavailable(_));
                done.failed = Some(error.to_string());
                if is_gone {
                    break;
                }
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
                    let Own { key, id } = own;
                    containerd.mark_pulled(id, key, Some(*removable)).await?;
                } else {
                    done.marked.push((own.clone(), *removable));
                }
            }
            // To label all the others would help nobody.
            Chore::Pin(_) if done.pinning == Some(false) => {}
            Chore::Pin(id) => {
                if let Some(containerd) = &self.containerd {
                    if containerd.pin(id).await? {
                        done.pinning = Some(self.is_pinned(id).await?);
                    } else {
                        done.failed = Some(format!("containerd has no record of {id}"));
                    }
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
    async fn remove(&self, Own { key, id }: &Own) -> Result<Option<Kept>, RuntimeError> {
        let found = self.runtime.image(id).await?;
        let names = found
            .iter()
            .flat_map(|image| image.tags.iter().chain(&image.digests));
        let holding = Holding {
            names: names.map(|name| name.as_str().into()).collect(),
            ..Holding::default()
        };
        let is_there = found.is_some();
        if found.is_some_and(|image| image.pinned) && !self.is_own_pin(id).await? {
            let why = "something else has pinned it".to_owned();
            return Ok(Some((Reason::InUse, why)));
        }
        if let Some(user) = self.user(id, &holding).await? {
            let why = format!("the container {user} uses it");
            return Ok(Some((Reason::InUse, why)));
        }
        let go = names_with(&holding, key, |name| self.wanted.contains(name));
        let Some(containerd) = &self.containerd else {
            if !is_there {
                return Ok(None);
            }
            return self.remove_whole(id, &holding).await;
        };
        let is_last = holding.names.iter().all(|name| go.contains(name));
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

    /// Where a runtime removes all names of an image together: if each of them is to go.
    async fn remove_whole(
        &self,
        id: &ImageId,
        holding: &Holding,
    ) -> Result<Option<Kept>, RuntimeError> {
        let mut left = holding.clone();
        for key in self.leaving.get(id).into_iter().flatten() {
            for name in names_with(&left, key, |name| self.wanted.contains(name)) {
                left.names.remove(&name);
            }
        }
        if let Some(name) = left.names.first() {
            let why = format!("the runtime would remove {name} with it: both are one image");
            return Ok(Some((Reason::Shared, why)));
        }
        // By a name that it has at this moment: the one that it was pulled under may mean another image by now.
        let name = holding.names.first().unwrap_or(id);
        self.runtime.remove(name).await?;
        Ok(None)
    }

    /// Whether the pin on an image is this agent's.
    async fn is_own_pin(&self, id: &str) -> Result<bool, RuntimeError> {
        let Some(containerd) = &self.containerd else {
            return Ok(false);
        };
        let record = containerd.id_record(id).await?;
        Ok(record.is_some_and(|record| record.marks.pin_is_ours))
    }

    /// A container that uses the image, running or not: of several always the same.
    async fn user(&self, id: &str, holding: &Holding) -> Result<Option<String>, RuntimeError> {
        let containers = self.runtime.containers().await?;
        let users = containers.into_iter().filter(|container| {
            let of = |name: &str| name == id || holding.names.contains(name);
            of(&container.image_id) || of(&container.image)
        });
        Ok(users.map(|container| container.id).min())
    }
}

impl Agent {
    /// Begins a batch of chores.
    pub(super) fn begin(&mut self, chores: Vec<Chore>) {
        let Some(session) = self.session.as_ref().filter(|_| !chores.is_empty()) else {
            return;
        };
        let desired = self.world.desired.known();
        let mut leaving = self.world.removals.by_image(self.now().monotonic);
        for chore in &chores {
            if let Chore::Remove(Own { key, id }) = chore {
                leaving.entry(id.clone()).or_default().insert(key.clone());
            }
        }
        let batch = Batch {
            runtime: session.runtime.clone(),
            containerd: session.containerd.clone(),
            wanted: desired
                .map(|desired| desired.images.keys().cloned().collect())
                .unwrap_or_default(),
            leaving,
            overtaken: CancellationToken::new(),
            chores,
        };
        self.overtaken = Some(batch.overtaken.clone());
        self.world.chores.began(&batch.chores);
        self.chores.spawn(batch.run());
    }

    /// An image is this agent's own from now on.
    pub(super) fn take_own(&mut self, own: Own, removable: bool) {
        let session = self.session.as_ref();
        if session.is_some_and(|session| session.containerd.is_none()) {
            self.world.brought.mark(&own, removable);
        }
        self.owned_at = Instant::now();
        let Own { key, id } = own;
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
            let (key, removals) = (&own.key, &mut self.world.removals);
            match kept {
                None => {
                    self.channels.metrics.removed();
                    if removals.gone(&own) {
                        info!(image = %key, "removed: nobody wants this image here any more");
                    } else {
                        info!(image = %key, "removed to make room: nobody wants this image here any more");
                    }
                    self.world.disk.changed();
                }
                Some(kept) => {
                    let (reason, why) = kept.clone();
                    if removals.kept(&own, kept, now, timing) {
                        info!(image = %key, %reason, why, "nobody wants this image here any more, and it stays for now");
                    }
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
            if self.world.chores.have_failed() {
                debug!(
                    error,
                    "an image could not be labelled or removed; trying again"
                );
            } else {
                warn!(
                    error,
                    "an image could not be labelled or removed; trying again"
                );
            }
        }
        self.world.chores.ended(done.failed.is_none(), now, timing);
        self.chores_ended = Instant::now();
        self.look_now.notify_one();
    }
}
