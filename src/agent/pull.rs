//! One pull: a task that the loop starts, may cancel, and hears from once.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::look::{Looker, Question};
use crate::decide::PresentImage;
use crate::decide::desired::ImageKey;
use crate::decide::world::{Failed, Outcome};
use crate::runtime::{Containerd, Lease, Progress, PullError, Runtime, RuntimeError};

/// The pulls under way, and how far each is.
pub type Downloads = BTreeMap<ImageKey, Progress>;

/// How often a pull's bytes are asked for.
const PROGRESS: Duration = Duration::from_millis(200);

/// containerd may collect a lease of ours after this time, should this process not delete it.
const LEASE_SECONDS: i64 = 24 * 60 * 60;

/// What a pull needs.
#[derive(Debug)]
pub struct Pull {
    /// The runtime.
    pub runtime: Runtime,
    /// The image's identity.
    pub key: ImageKey,
    /// How it is asked for.
    pub question: Question,
    /// Finished when nobody wants the image any more.
    pub cancel: CancellationToken,
    /// The runtime, if it is containerd.
    pub containerd: Option<Containerd>,
    /// Where the pull tells its progress, if somebody looks.
    pub downloads: Option<watch::Sender<Downloads>>,
}

/// What came of a pull.
#[derive(Debug)]
pub struct Pulled {
    /// How it ended.
    pub outcome: Outcome,
    /// The runtime's own name for the image.
    pub resolved: Option<String>,
    /// The image was there already: no request was made to the registry.
    pub found: bool,
}

impl From<Outcome> for Pulled {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            resolved: None,
            found: false,
        }
    }
}

impl Pull {
    /// Pulls the image, unless it is there already.
    pub async fn run(self) -> Pulled {
        let mut looker = Looker::new(self.runtime.clone(), self.containerd.is_some());
        match looker.find(&self.key, &self.question).await {
            Ok(Some(image)) if image.foreign_platform.is_none() => {
                return Pulled {
                    found: true,
                    ..Outcome::Pulled(image).into()
                };
            }
            Ok(_) => {}
            Err(error) => return lost_or_failed(&error).into(),
        }
        let name = match self.pull().await {
            None => return Outcome::Cancelled.into(),
            Some(Ok(name)) => name,
            Some(Err(PullError::Failed { reason, message })) => {
                return Outcome::Failed(Failed { reason, message }).into();
            }
            // Neither says anything about the image.
            Some(Err(PullError::Unavailable(_) | PullError::NoLease)) => {
                return Outcome::RuntimeLost.into();
            }
        };
        let image = match looker.find(&self.key, &self.question).await {
            Ok(Some(image)) => image,
            // The runtime keeps it under a name of its own.
            Ok(None) => PresentImage {
                id: name.clone(),
                digest: None,
                bytes: 0,
                foreign_platform: None,
            },
            Err(error) => return lost_or_failed(&error).into(),
        };
        Pulled {
            resolved: Some(name),
            ..Outcome::Pulled(image).into()
        }
    }

    /// `None`: cancelled.
    async fn pull(&self) -> Option<Result<String, PullError>> {
        let Some((containerd, downloads)) = self.containerd.as_ref().zip(self.downloads.as_ref())
        else {
            return tokio::select! {
                () = self.cancel.cancelled() => None,
                result = self.runtime.pull(&self.question.pull_form, None) => Some(result),
            };
        };
        let lease = Lease {
            id: format!("imagecache-agent-{:016x}", fastrand::u64(..)),
            image: self.key.to_string(),
            expires: Timestamp::from_second(Timestamp::now().as_second() + LEASE_SECONDS).ok(),
        };
        if let Err(error) = containerd.create_lease(&lease).await {
            debug!(image = %self.key, %error, "no lease: pulling without progress");
            return tokio::select! {
                () = self.cancel.cancelled() => None,
                result = self.runtime.pull(&self.question.pull_form, None) => Some(result),
            };
        }
        let result = self.pull_and_tell(containerd, downloads, &lease.id).await;
        if let Err(error) = containerd.delete_lease(&lease.id).await {
            debug!(image = %self.key, %error, "a lease is left behind; it expires by itself");
        }
        downloads.send_modify(|downloads| {
            downloads.remove(&self.key);
        });
        result
    }

    async fn pull_and_tell(
        &self,
        containerd: &Containerd,
        downloads: &watch::Sender<Downloads>,
        lease: &str,
    ) -> Option<Result<String, PullError>> {
        let mut progress = containerd.progress(lease);
        let mut tick = interval(PROGRESS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let pull = self.runtime.pull(&self.question.pull_form, Some(lease));
        tokio::pin!(pull);
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => return None,
                result = &mut pull => return Some(result),
                _ = tick.tick() => {
                    // The pull itself says what is wrong with the runtime, if anything is.
                    if let Ok(now) = progress.look().await {
                        downloads.send_modify(|downloads| {
                            downloads.insert(self.key.clone(), now);
                        });
                    }
                }
            }
        }
    }
}

fn lost_or_failed(error: &RuntimeError) -> Outcome {
    match error {
        RuntimeError::Unavailable(_) => Outcome::RuntimeLost,
        RuntimeError::Failed { .. } => Outcome::Failed(Failed {
            reason: crate::api::Reason::PullFailed,
            message: error.to_string(),
        }),
    }
}
