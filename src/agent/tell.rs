//! What the log and the metrics tell of pulls.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::Agent;
use crate::decide::desired::{Desired, ImageKey};
use crate::decide::memory::Failed;
use crate::decide::traffic::Yielding;
use crate::decide::world::Outcome;

/// What was known of an image before its pull ended.
pub(super) struct Before {
    /// The attempt before this one failed so.
    failed: Option<Failed>,
    /// The image that was there, if this was a refresh.
    id: Option<String>,
}

impl Agent {
    /// What was known of the image of a pull that ends now.
    pub(super) fn before(&self, key: &ImageKey) -> Before {
        let memory = self.world.memory.get(key);
        let pull = self.world.pulls.get(key);
        if pull.is_some_and(|pull| pull.is_refresh) {
            Before {
                failed: memory.and_then(|memory| memory.refresh.last.clone()),
                id: self.world.image(key).map(|image| image.id.clone()),
            }
        } else {
            Before {
                failed: memory.and_then(|memory| memory.last.clone()),
                id: None,
            }
        }
    }

    /// Counts what came of a pull, and says it. A failure that is like the one before is not said again, and neither is a refresh that
    /// found nothing new: nothing was pulled.
    pub(super) fn tell(&self, key: &ImageKey, outcome: &Outcome, took: Duration, before: &Before) {
        let (metrics, seconds) = (&self.channels.metrics, took.as_secs_f64());
        match outcome {
            Outcome::Found(_) => {
                debug!(image = %key, "the image is there already");
            }
            Outcome::Pulled(image) if before.id.as_ref() == Some(&image.id) => {
                debug!(image = %key, "the registry has no newer image");
            }
            Outcome::Pulled(image) => {
                metrics.pulled(took, image.bytes);
                info!(image = %key, bytes = image.bytes, seconds, "pulled");
            }
            Outcome::Limited => {
                info!(image = %key, "not asked for: the registry is left alone with these credentials");
            }
            Outcome::Cancelled => {
                let is_wanted = |desired: &Desired| desired.images.contains_key(key);
                let is_wanted = self.world.desired.known().is_some_and(is_wanted);
                if let Some(why) = self.world.disk.obstacle(key).filter(|_| is_wanted) {
                    info!(image = %key, why, "set aside: there is no room");
                } else if is_wanted {
                    info!(image = %key, "set aside: something else downloads images on this node");
                } else {
                    info!(image = %key, "cancelled: nobody wants this image here any more");
                }
            }
            Outcome::RuntimeLost => {
                debug!(image = %key, "the runtime went away during the pull");
            }
            Outcome::Failed(failed) => {
                metrics.pull_failed(failed.reason.as_str());
                let (attempt, next) = self.world.failures(key);
                let next = next.map_or_else(|| "at once".to_owned(), |at| at.to_string());
                let (reason, error) = (failed.reason, &failed.message);
                if before.failed.as_ref() == Some(failed) {
                    debug!(image = %key, %reason, error, attempt, next, "the pull failed again");
                } else {
                    warn!(image = %key, %reason, error, attempt, next, "the pull failed");
                }
            }
        }
    }

    pub(super) fn tell_yielding(&self, before: Yielding) {
        match (before, self.world.yielding) {
            (before, now) if before == now => {}
            (_, Yielding::Wholly) => {
                info!("something else downloads images on this node: pulls make way");
            }
            (_, Yielding::OneAtATime) => {
                info!(
                    "something else still downloads images on this node: one image at a time is pulled"
                );
            }
            (_, Yielding::No) => info!("the other downloads have ended: pulls go on"),
        }
    }
}
