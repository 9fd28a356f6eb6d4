//! Leases that end, and those that take their place.

use std::time::Duration;

use tracing::debug;

use super::Agent;
use crate::decide::Now;
use crate::decide::desired::ImageKey;
use crate::decide::leases::Leases;
use crate::runtime::Lease;

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
        let session = self.session.as_ref();
        let Some(containerd) = session.and_then(|session| session.containerd.clone()) else {
            return;
        };
        self.world.leases.release(&id);
        self.releases.spawn(async move {
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
}
