//! Pull secrets: read when a pull needs them, and watched by name only while something waits for a change of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::client::Cluster;
use super::error::CallError;
use super::watch::{Event, Watch};
use crate::api::{CredentialProblem, CredentialReason, NamespacedName};
use crate::credentials::{Entry, Secrets, secret};
use crate::decide::{Inputs, SecretName};

/// A Secret that was read is not read again within this time: the images of one list mostly name the same one.
const FRESH: Duration = Duration::from_secs(10);

/// A Secret that was read so long ago is forgotten, and no longer good for the time in which the API server is away.
const KEPT: Duration = Duration::from_mins(10);

/// The `ClusterRole` to bind where pull secrets may be read.
const ROLE: &str = "imagecache-pull-secrets";

/// The pull secrets of a cluster.
pub struct ClusterSecrets {
    cluster: Cluster,
    /// The namespace of this agent's `ServiceAccount`.
    namespace: String,
    readings: Readings,
}

/// What was read within the last [`KEPT`].
#[derive(Default)]
struct Readings(Mutex<BTreeMap<SecretName, Slot>>);

/// One reader at a time: those that wait find what it read.
type Slot = Arc<tokio::sync::Mutex<Option<Reading>>>;

#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    seen: Seen,
    answer: Answer,
}

/// What the API server had under a Secret's name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
enum Seen {
    /// It did not say.
    #[default]
    Nothing,
    /// No such Secret.
    Absent,
    /// This version of it.
    Version(Option<String>),
}

type Answer = Result<Arc<Vec<Entry>>, CredentialProblem>;

impl fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecrets")
    }
}

impl Secrets for ClusterSecrets {
    fn read<'a>(&'a self, name: &'a NamespacedName) -> BoxFuture<'a, Answer> {
        self.read_shared(name).boxed()
    }
}

impl ClusterSecrets {
    /// Reads as the `ServiceAccount` in this namespace.
    #[must_use]
    pub fn new(cluster: &Cluster, namespace: &str) -> Self {
        Self {
            cluster: cluster.clone(),
            namespace: namespace.to_owned(),
            readings: Readings::default(),
        }
    }

    async fn read_shared(&self, name: &SecretName) -> Answer {
        let slot = self.readings.slot(name);
        let mut reading = slot.lock().await;
        if let Some(reading) = reading
            .as_ref()
            .filter(|reading| reading.at.elapsed() < FRESH)
        {
            return reading.answer.clone();
        }
        match self.ask(name).await {
            Ok(new) => reading.insert(new).answer.clone(),
            Err(error) => match reading.as_ref().filter(|last| last.at.elapsed() < KEPT) {
                Some(last) => {
                    debug!(secret = %name, %error, "taking the Secret as it was read last");
                    last.answer.clone()
                }
                None => Err(CredentialProblem {
                    reason: None,
                    message: format!("it could not be read: {error}"),
                }),
            },
        }
    }

    /// An error is one that says nothing about the Secret.
    async fn ask(&self, name: &SecretName) -> Result<Reading, CallError> {
        let api = Api::<Secret>::namespaced(self.cluster.client(), &name.namespace);
        let (seen, answer) = match self.cluster.call(api.get(&name.name)).await {
            Ok(secret) => (Seen::Version(secret.resource_version()), read(&secret)),
            Err(error) => match error.code() {
                403 => (Seen::Nothing, Err(self.forbidden(name))),
                404 => (
                    Seen::Absent,
                    Err(CredentialProblem {
                        reason: Some(CredentialReason::MissingSecret),
                        message: "it is not there".to_owned(),
                    }),
                ),
                _ => return Err(error),
            },
        };
        Ok(Reading {
            at: Instant::now(),
            seen,
            answer,
        })
    }

    fn forbidden(&self, name: &SecretName) -> CredentialProblem {
        let (here, there) = (&self.namespace, &name.namespace);
        CredentialProblem {
            reason: Some(CredentialReason::SecretForbidden),
            message: format!(
                "the agent may not read it; to let it read the Secrets of this namespace: kubectl create rolebinding {ROLE} --namespace={there} --clusterrole={ROLE} --serviceaccount={here}:imagecache-agent"
            ),
        }
    }
}

impl Readings {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<SecretName, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, name: &SecretName) -> Slot {
        Arc::clone(self.slots().entry(name.clone()).or_default())
    }

    /// What was seen when it was read last.
    fn seen(&self, name: &SecretName) -> Seen {
        let slot = self.slots().get(name).cloned();
        let reading = slot.and_then(|slot| slot.try_lock().ok()?.clone());
        reading.map(|reading| reading.seen).unwrap_or_default()
    }

    /// What was read is not good any more.
    fn forget(&self, name: &SecretName) {
        self.slots().remove(name);
    }

    /// Forgets what was read [`KEPT`] ago, and says when to come back: a password is not in memory for longer than that.
    fn forget_old(&self, now: Instant) -> Instant {
        let mut next = now + KEPT;
        self.slots().retain(|_, slot| {
            // One that is locked is being read anew.
            let Ok(reading) = slot.try_lock() else {
                return true;
            };
            let over = reading.as_ref().map_or(now, |reading| reading.at + KEPT);
            if over > now {
                next = next.min(over);
            }
            over > now
        });
        next
    }
}

fn read(object: &Secret) -> Answer {
    let kind = object.type_.as_deref().unwrap_or("Opaque");
    let data = object.data.iter().flatten();
    let data = data.map(|(key, value)| (key.clone(), &value.0)).collect();
    secret::read(kind, &data)
        .map(Arc::new)
        .map_err(|error| CredentialProblem {
            reason: Some(CredentialReason::InvalidSecret),
            message: error.to_string(),
        })
}

/// Watches each Secret in `awaited`, by name, for as long as it is there, and counts in `inputs` how often one changes; until `stop`.
/// Forgets meanwhile what was read long ago.
pub async fn watch(
    secrets: &Arc<ClusterSecrets>,
    mut awaited: watch::Receiver<BTreeSet<Arc<SecretName>>>,
    inputs: &watch::Sender<Inputs>,
    stop: &CancellationToken,
) {
    let mut watches = JoinSet::new();
    let mut running = BTreeMap::<Arc<SecretName>, CancellationToken>::new();
    loop {
        let forget_at = secrets.readings.forget_old(Instant::now());
        let wanted = awaited.borrow_and_update().clone();
        running.retain(|name, token| {
            let stays = wanted.contains(name);
            if !stays {
                token.cancel();
            }
            stays
        });
        for name in wanted {
            running.entry(name).or_insert_with_key(|name| {
                let token = stop.child_token();
                let (secrets, name, inputs) =
                    (Arc::clone(secrets), Arc::clone(name), inputs.clone());
                let stop = token.clone();
                watches.spawn(async move { watch_one(&secrets, &name, &inputs, &stop).await });
                token
            });
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = watches.join_next() => {}
            () = sleep_until(forget_at) => {}
            changed = awaited.changed() => if changed.is_err() {
                // Nobody waits for anything any more: the process ends.
                return stop.cancelled().await;
            },
        }
    }
}

async fn watch_one(
    secrets: &ClusterSecrets,
    name: &SecretName,
    inputs: &watch::Sender<Inputs>,
    stop: &CancellationToken,
) {
    let client = secrets.cluster.client();
    let api = Api::<PartialObjectMeta<Secret>>::namespaced(client, &name.namespace);
    // What a pull read may have changed before the watch began.
    let mut known = secrets.readings.seen(name);
    let (mut now, mut is_listing) = (Seen::Absent, false);
    Watch::new(&secrets.cluster, api)
        .fields(format!("metadata.name={}", name.name))
        .run(stop, |events| {
            for event in events {
                match event {
                    Event::Begin => (now, is_listing) = (Seen::Absent, true),
                    Event::Listed(object) | Event::Changed(object) => {
                        now = Seen::Version(object.resource_version());
                    }
                    Event::Deleted(_) => now = Seen::Absent,
                    Event::Complete => is_listing = false,
                    Event::Lost | Event::Resumed => continue,
                }
                if !is_listing && now != known {
                    known.clone_from(&now);
                    secrets.readings.forget(name);
                    info!(secret = %name, "the Secret changed: trying again what waits for it");
                    inputs.send_modify(|inputs| {
                        *inputs.secrets.entry(name.clone()).or_default() += 1;
                    });
                }
            }
        })
        .await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_read_is_forgotten_by_time_whether_or_not_anything_else_is_read() {
        let readings = Readings::default();
        let start = Instant::now();
        let name = |name: &str| SecretName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        let read = |secret: &str, at: Instant| {
            let slot = readings.slot(&name(secret));
            *slot.try_lock().unwrap() = Some(Reading {
                at,
                seen: Seen::Absent,
                answer: Ok(Arc::default()),
            });
        };
        let minute = Duration::from_mins(1);
        assert_eq!(readings.forget_old(start), start + KEPT);
        read("a", start + minute);
        read("b", start + 2 * minute);
        // Read after the last look, so it is looked for once more when its time has come.
        let second = readings.forget_old(start + KEPT);
        assert_eq!(second, start + minute + KEPT);
        let third = readings.forget_old(second);
        assert_eq!(third, start + 2 * minute + KEPT);
        assert_eq!(readings.slots().keys().collect::<Vec<_>>(), [&name("b")]);
        readings.forget_old(third);
        assert!(readings.slots().is_empty());
    }
}
