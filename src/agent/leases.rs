//! Leases that end, and those that take their place.

use std::time::Duration;

use tracing::debug;

use super::Agent;
use crate::decide::Now;
use crate::decide::desired::ImageKey;
use crate::decide::leases::Leases;
use crate::runtime::Lease;

/// A lease is gone.
pub(super) struct Released {
    pub(super) id: String,
    /// The one that keeps now what it kept, its image, and when it ends.
    pub(super) successor: Option<(String, ImageKey, Duration)>,
}

impl Agent {
    pub(super) fn release(&mut self, id: String) {
        let session = self.session.as_ref();
        let Some(containerd) = session.and_then(|session| session.containerd.clone()) else {
            return;
        };
        self.world.leases.release(&id);
        self.releases.spawn(async move {
            if let Err(error) = containerd.delete_lease(&id).await {
                debug!(%id, %error, "a lease is left until the next connection");
            }
            let successor = None;
            Released { id, successor }
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
        };
        self.releases.spawn(async move {
            let successor = match containerd.renew_lease(&id, &new).await {
                Ok(()) => Some((new.id, image, now.monotonic + length)),
                Err(error) => {
                    debug!(%id, %error, "a lease could not be replaced");
                    let _ = containerd.delete_lease(&id).await;
                    let _ = containerd.delete_lease(&new.id).await;
                    None
                }
            };
            Released { id, successor }
        });
    }
}
