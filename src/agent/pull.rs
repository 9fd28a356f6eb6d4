//! One pull: a task that the loop starts, may cancel, and hears from once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::keys::{self, Keys, Sources};
use super::look::{Looker, Question};
use crate::api::{CredentialProblem, Reason};
use crate::credentials::{Named, NodeReading};
use crate::decide::desired::ImageKey;
use crate::decide::memory::Failed;
use crate::decide::registries::Credentials;
use crate::decide::world::Outcome;
use crate::decide::{PresentImage, SecretName};
use crate::runtime::{Auth, Containerd, Lease, PullError, Runtime, RuntimeError};

/// What a pull needs.
#[derive(Debug)]
pub struct Pull {
    /// The runtime.
    pub runtime: Runtime,
    /// The image's identity.
    pub key: ImageKey,
    /// When it began.
    pub since: Duration,
    /// How it is asked for.
    pub question: Question,
    /// Finished when nobody wants the image any more.
    pub cancel: CancellationToken,
    /// What keeps the downloads, if the runtime is containerd.
    pub lease: Option<(Containerd, Lease)>,
    /// Where its credentials are looked for.
    pub sources: Sources,
    /// The registry is not to be asked with these credentials.
    pub limits: BTreeSet<Credentials>,
    /// Whether to ask first if the image is there: the runtime does not tell when others bring images.
    pub ask_first: bool,
    /// Where the pull tells how far it is.
    pub steps: Steps,
    /// The image's ID before, if this is a refresh.
    pub before: Option<String>,
    /// It is to be removed once nobody wants it.
    pub removable: bool,
    /// When the pull began.
    pub began: Timestamp,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// The runtime is asked for the image.
    Asked,
    /// The runtime has it: whatever waits for a slot need not wait for what follows.
    Landed,
}

/// A step of a pull.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Told {
    /// Its image.
    pub key: ImageKey,
    /// When the pull began: the image may be pulled again by the time that somebody listens.
    pub since: Duration,
    /// How far it is.
    pub step: Step,
}

/// Where pulls tell how far they are.
pub type Steps = mpsc::UnboundedSender<Told>;

/// What came of a pull.
#[derive(Debug)]
pub struct Pulled {
    /// How it ended.
    pub outcome: Outcome,
    /// The runtime's own name for the image.
    pub resolved: Option<String>,
    /// The pull secrets that were read, and why one gave no credentials.
    pub secrets: BTreeMap<Arc<SecretName>, Option<CredentialProblem>>,
    /// The same of the node's own sources.
    pub node: NodeReading,
    /// Those that gave credentials for the image. `None`: they were not read.
    pub asked_as: Option<Credentials>,
    /// The image was not there before: whether it is to be removed once nobody wants it.
    pub own: Option<bool>,
}

impl From<Outcome> for Pulled {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            resolved: None,
            secrets: BTreeMap::new(),
            node: NodeReading::new(),
            asked_as: None,
            own: None,
        }
    }
}

impl Pulled {
    fn after_reading(keys: Keys, outcome: Outcome) -> Self {
        Self {
            asked_as: Some(keys.sources()),
            secrets: keys.secrets,
            node: keys.node.read,
            ..outcome.into()
        }
    }
}

impl Pull {
    /// Pulls the image.
    pub async fn run(self) -> Pulled {
        let containerd = self
            .lease
            .as_ref()
            .map(|(containerd, _)| containerd.clone());
        let looker = Looker::new(self.runtime.clone(), containerd);
        if self.ask_first {
            match looker.find(&self.key, &self.question).await {
                Ok(Some(image)) if image.foreign_platform.is_none() => {
                    return Outcome::Found(image).into();
                }
                Ok(_) => {}
                Err(error) => return lost_or_failed(&error).into(),
            }
        }
        let image = self.question.reference.name();
        let keys = self.sources.read(image);
        let Some(mut keys) = self.cancel.run_until_cancelled(keys).await else {
            return Outcome::Cancelled.into();
        };
        // What is there under another name is somebody else's, also under this one. containerd says when it came.
        let there = match &self.lease {
            Some(_) => BTreeSet::new(),
            None => match self.runtime.list().await {
                Ok(images) => images.into_iter().map(|image| image.id).collect(),
                Err(error) => return Pulled::after_reading(keys, lost_or_failed(&error)),
            },
        };
        if self.limits.contains(&keys.sources()) {
            return Pulled::after_reading(keys, Outcome::Limited);
        }
        let outcome = match self.pull_with(&mut keys, image).await {
            None => Err(Outcome::Cancelled),
            Some(Ok(name)) => Ok(name),
            Some(Err(PullError::Failed { reason, message })) => {
                let message = keys.explain(reason, message);
                Err(Outcome::Failed(Failed { reason, message }))
            }
            // Neither says anything about the image.
            Some(Err(PullError::Unavailable(_) | PullError::NoLease)) => Err(Outcome::RuntimeLost),
        };
        let name = match outcome {
            Ok(name) => name,
            Err(outcome) => return Pulled::after_reading(keys, outcome),
        };
        self.tell(Step::Landed);
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
            own: self.mark(&image, &there).await,
            resolved: Some(name),
            ..Pulled::after_reading(keys, Outcome::Pulled(image))
        }
    }

    fn tell(&self, step: Step) {
        let (key, since) = (self.key.clone(), self.since);
        // Nobody listens any more when the agent ends.
        let _ = self.steps.send(Told { key, since, step });
    }

    /// Writes down that this image is the agent's own, if it was not there before under any name of somebody else: its lease says so
    /// too for as long as it is there. Another runtime keeps no labels.
    async fn mark(&self, image: &PresentImage, there: &BTreeSet<String>) -> Option<bool> {
        if self.before.as_ref() == Some(&image.id) || there.contains(&image.id) {
            return None;
        }
        let Some((containerd, _)) = &self.lease else {
            return Some(self.removable);
        };
        let marked = async {
            let record = containerd.id_record(&image.id).await?;
            if record.is_none_or(|record| record.is_foreign_since(self.began)) {
                return Ok(false);
            }
            containerd
                .mark_pulled(&image.id, &self.key, Some(self.removable))
                .await
        };
        match marked.await {
            Ok(is_own) => is_own.then_some(self.removable),
            Err(error) => {
                debug!(image = %self.key, %error, "it could not be written down that this image was pulled");
                None
            }
        }
    }

    /// Tries one credential after the other, as the kubelet does. If a registry refuses what the
    /// node had remembered, what is newer is tried too, once. `None`: cancelled.
    async fn pull_with(&self, keys: &mut Keys, image: &str) -> Option<Result<String, PullError>> {
        let result = self.pull_with_each(&keys.found).await?;
        if !matches!(
            &result,
            Err(PullError::Failed {
                reason: Reason::Unauthorized,
                ..
            })
        ) {
            return Some(result);
        }
        let renew = keys.renew(&self.sources, image);
        let tried = self.cancel.run_until_cancelled(renew).await?;
        match tried.and_then(|tried| keys.found.get(tried..)) {
            None | Some([]) => Some(result),
            Some(newer) => self.pull_with_each(newer).await,
        }
    }

    /// With none, it asks as nobody. `None`: cancelled.
    async fn pull_with_each(&self, keys: &[Named]) -> Option<Result<String, PullError>> {
        let mut keys = keys.iter();
        let mut result = self.pull(keys.next()).await?;
        for key in keys {
            match &result {
                Err(PullError::Failed { reason, .. }) if keys::may_depend(*reason) => {}
                _ => break,
            }
            result = self.pull(Some(key)).await?;
        }
        Some(result)
    }

    /// `None`: cancelled.
    async fn pull(&self, key: Option<&Named>) -> Option<Result<String, PullError>> {
        self.tell(Step::Asked);
        let auth = key.map(|key| Auth {
            username: &key.credential.username,
            password: &key.credential.password,
        });
        let Some((containerd, lease)) = &self.lease else {
            return self.pull_plainly(auth).await;
        };
        // Without one all that is downloaded could be lost, and would be taken for the work of others.
        match containerd.create_lease(lease).await {
            Ok(()) => {}
            Err(RuntimeError::Unavailable(why)) => return Some(Err(why.into())),
            Err(error @ RuntimeError::Failed { .. }) => {
                return Some(Err(PullError::Failed {
                    reason: Reason::PullFailed,
                    message: error.to_string(),
                }));
            }
        }
        let name = self.question.reference.pull_form();
        let pull = self.runtime.pull_as(auth, &name, Some(&lease.id));
        let result = self.cancel.run_until_cancelled(pull).await;
        if let Some(Err(PullError::Failed { reason, .. })) = &result
            && let Err(error) = give_up(containerd, lease, *reason).await
        {
            debug!(image = %self.key, %error, "the lease is left until nothing needs it");
        }
        result
    }

    async fn pull_plainly(&self, auth: Option<Auth<'_>>) -> Option<Result<String, PullError>> {
        let name = self.question.reference.pull_form();
        let pull = self.runtime.pull_as(auth, &name, None);
        self.cancel.run_until_cancelled(pull).await
    }
}

/// After a failure for this reason: a lease stays if it keeps something that the next attempt can go on from.
async fn give_up(
    containerd: &Containerd,
    lease: &Lease,
    reason: Reason,
) -> Result<(), RuntimeError> {
    if reason == Reason::NoSpace {
        containerd.discard_all(lease).await
    } else if reason == Reason::Corrupt {
        containerd.discard_lease(&lease.id).await
    } else if containerd.is_empty_lease(&lease.id).await? {
        containerd.delete_lease(&lease.id).await
    } else {
        Ok(())
    }
}

fn lost_or_failed(error: &RuntimeError) -> Outcome {
    match error {
        RuntimeError::Unavailable(_) => Outcome::RuntimeLost,
        RuntimeError::Failed { .. } => Outcome::Failed(Failed {
            reason: Reason::PullFailed,
            message: error.to_string(),
        }),
    }
}
