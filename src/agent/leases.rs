//! Leases that end, and those that take their place.

use std::time::Duration;

use tracing::debug;

use super::Agent;
use crate::decide::Now;
use crate::decide::desired::ImageKey;
use crate::decide::leases::Leases;
use crate::runtime::{Containerd, Described, Lease, Runtime, RuntimeError};

/// What giving up a lease, or replacing it, came to.
pub(super) struct Released {
    id: String,
    /// The runtime does not have it any more.
    is_gone: bool,
    /// The one that keeps now what it kept, its image, and when it ends.
    successor: Option<(String, ImageKey, Duration)>,
}

impl Agent {
    pub(super) fn release(&mut self, id: String) {
        let Some(session) = &self.session else {
            return;
        };
        let (runtime, containerd) = (session.runtime.clone(), session.containerd.clone());
        let Some(containerd) = containerd else {
            return;
        };
        let image = self.world.leases.release(&id);
        let unmarked = image.filter(|key| !self.is_marked(key));
        self.releases.spawn(async move {
            if let Some(key) = unmarked
                && let Err(error) = adopt(&runtime, &containerd, &id, &key).await
            {
                debug!(image = %key, %error, "it could not be found out whether this image was pulled");
                return Released {
                    id,
                    is_gone: false,
                    successor: None,
                };
            }
            let deleted = containerd.delete_lease(&id).await;
            if let Err(error) = &deleted {
                debug!(%id, %error, "a lease could not be given up");
            }
            Released {
                id,
                is_gone: deleted.is_ok(),
                successor: None,
            }
        });
    }

    /// Replaces a lease that would not last for the next pull. What it keeps is lost if that fails, and nothing else.
    pub(super) fn renew(&mut self, id: String, now: Now) {
        let session = self.session.as_ref();
        let Some(containerd) = session.and_then(|session| session.containerd.clone()) else {
            return;
        };
        let Some(image) = self.world.leases.release(&id) else {
            return;
        };
        let length = self.settings.timing.lease;
        let new = Lease {
            id: Leases::successor(&id),
            image: image.to_string(),
            expires: now.wall.checked_add(length).ok(),
            removable: self.is_removable(&image),
            created: None,
            replaces: self.world.image(&image).map(|image| image.id.clone()),
        };
        self.releases.spawn(async move {
            let (mut is_gone, mut is_there) = (true, true);
            if let Err(error) = containerd.renew_lease(&id, &new).await {
                debug!(%id, %error, "a lease could not be replaced");
                is_gone = containerd.delete_lease(&id).await.is_ok();
                is_there = containerd.delete_lease(&new.id).await.is_err();
            }
            Released {
                id,
                is_gone,
                successor: is_there.then(|| (new.id, image, now.monotonic + length)),
            }
        });
    }

    /// Takes what came of it. What the runtime still has, or may have, is not forgotten: it would keep its downloads for a week.
    pub(super) fn take_released(&mut self, released: Released) {
        let leases = &mut self.world.leases;
        if released.is_gone {
            leases.released(&released.id);
        } else {
            let again = self.started.elapsed() + self.settings.timing.runtime_retry.most;
            leases.not_released(&released.id, again);
        }
        if let Some((id, image, expires)) = released.successor {
            leases.hold(id, image, expires);
        }
    }

    /// Whether an image is to be removed once nobody wants it.
    pub(super) fn is_removable(&self, key: &ImageKey) -> bool {
        let desired = self.world.desired.known();
        let wanted = desired.and_then(|desired| desired.images.get(key));
        wanted.is_some_and(|wanted| wanted.removable)
    }

    /// Whether it is known that an image of this name that is there is this agent's.
    fn is_marked(&self, key: &ImageKey) -> bool {
        let holding = self
            .world
            .image(key)
            .and_then(|image| self.world.holdings.get(&*image.id));
        holding.is_some_and(|holding| holding.pulled.contains_key(key))
    }
}

/// A pull that has unpacked all layers of the image under this lease was the agent's own, also if the agent ended before it wrote that
/// down: the lease says what it would have written.
async fn adopt(
    runtime: &Runtime,
    containerd: &Containerd,
    lease: &str,
    key: &ImageKey,
) -> Result<(), RuntimeError> {
    let Some(Described {
        image,
        chain_id: Some(chain_id),
        ..
    }) = runtime.describe(key).await?
    else {
        return Ok(());
    };
    if !containerd.lease_has_snapshot(lease, &chain_id).await? {
        return Ok(());
    }
    let mut leases = containerd.leases().await?.into_iter();
    let Some(lease) = leases.find(|known| known.id == lease) else {
        return Ok(());
    };
    // containerd 1.7 and 2 add what a pull finds to the lease too.
    let record = containerd.id_record(&image.id).await?;
    let is_own = record.zip(lease.created).is_some_and(|(record, created)| {
        !record.is_foreign_since(created) && lease.replaces.as_ref() != Some(&image.id)
    });
    if is_own {
        let removable = Some(lease.removable);
        containerd.mark_pulled(&image.id, key, removable).await?;
    }
    Ok(())
}
