//! An exec credential provider: whom it is asked for, and what it answers, now or before.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::Instant;

use super::docker_config::Entry;
use super::first_line::first_line;
use super::keyring;
use super::plugin::{self, PluginError};
use super::provider_answer::{self, Answer, InvalidAnswer};
use super::provider_cache::{ProviderCache, registry};
use super::provider_config::ProviderConfig;
use crate::api::{CredentialProblem, CredentialReason, NodeSource};

/// A provider of this node.
pub struct Provider {
    config: ProviderConfig,
    program: PathBuf,
    /// How long it may take to answer.
    limit: Duration,
    source: NodeSource,
    cache: Mutex<ProviderCache>,
    turns: Mutex<BTreeMap<String, Turn>>,
}

/// Whoever holds it asks for images of one registry; those that wait find its answer in the cache, if it is good for them too.
/// In it: when it last took all the time that it may without an answer. Those that waited for that do not wait once more.
type Turn = Arc<tokio::sync::Mutex<Option<Instant>>>;

/// What a provider has for an image.
#[derive(Debug)]
pub struct Provided {
    /// Its credentials, for whichever registries.
    pub entries: Result<Arc<Vec<Entry>>, CredentialProblem>,
    /// It was not asked now, but before.
    pub remembered: bool,
}

/// Why a provider gave no answer. It is shown to people.
#[derive(Debug, thiserror::Error)]
enum ProviderError {
    #[error(
        "it needs a token of the Pod's service account, which only the kubelet has: it is skipped"
    )]
    NeedsServiceAccount,
    #[error("{0}")]
    Invalid(#[from] InvalidAnswer),
    #[error("{0}")]
    Plugin(PluginError),
    #[error("{status}{}", said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Failed {
        status: String,
        said: Option<String>,
    },
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", self.config.name)
    }
}

impl Provider {
    /// Its program is in the folder, and has `limit` to answer.
    #[must_use]
    pub fn new(config: ProviderConfig, folder: &Path, limit: Duration) -> Self {
        Self {
            program: folder.join(&config.name),
            source: NodeSource::Provider(config.name.as_str().into()),
            config,
            limit,
            cache: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    /// Its name, as a source of credentials.
    #[must_use]
    pub const fn source(&self) -> &NodeSource {
        &self.source
    }

    /// Its program. `None`: it is skipped, and needs none.
    #[must_use]
    pub fn program(&self) -> Option<&Path> {
        (!self.config.needs_service_account).then_some(&self.program)
    }

    /// Whether it is to be asked for an image, which is named by registry and repository in full.
    #[must_use]
    pub fn is_for(&self, image: &str) -> bool {
        let mut patterns = self.config.match_images.iter();
        patterns.any(|pattern| keyring::is_for(pattern, image))
    }

    /// What it has for the image. If it is asked for a registry at this moment, that answer is waited for.
    pub async fn provide(&self, image: &str) -> Provided {
        let asked_at = Instant::now();
        let turn = self.turn(image);
        let mut given_up_at = turn.lock().await;
        if let Some(entries) = lock(&self.cache).get(image, Instant::now()) {
            return Provided {
                entries: Ok(entries),
                remembered: true,
            };
        }
        let answer = if given_up_at.is_some_and(|at| asked_at < at) {
            Err(ProviderError::Plugin(PluginError::TimedOut(self.limit)))
        } else {
            let answer = self.ask(image).await;
            if let Err(ProviderError::Plugin(PluginError::TimedOut(_))) = answer {
                *given_up_at = Some(Instant::now());
            }
            answer
        };
        let keep = |answer| {
            let default = self.config.default_cache_duration;
            lock(&self.cache).put(image, answer, default, Instant::now())
        };
        Provided {
            entries: answer.map(keep).map_err(|error| CredentialProblem {
                reason: Some(CredentialReason::ProviderFailed),
                message: error.to_string(),
            }),
            remembered: false,
        }
    }

    fn turn(&self, image: &str) -> Turn {
        let mut turns = lock(&self.turns);
        // Of those that nobody holds or waits for, nothing is to be known.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(registry(image).to_owned()).or_default())
    }

    /// What it answered for the image before is not good any more.
    pub fn forget(&self, image: &str) {
        lock(&self.cache).forget(image);
    }

    async fn ask(&self, image: &str) -> Result<Answer, ProviderError> {
        let config = &self.config;
        if config.needs_service_account {
            return Err(ProviderError::NeedsServiceAccount);
        }
        let mut command = Command::new(&self.program);
        let env = config.env.iter().map(|(name, value)| (name, value));
        command.args(&config.args).envs(env);
        let request = provider_answer::request(&config.api_version, image);
        let answer = plugin::answer(&mut command, &request, self.limit).await;
        let answer = answer.map_err(|error| self.explain(error))?;
        Ok(provider_answer::read(&answer, &config.api_version)?)
    }

    fn explain(&self, error: PluginError) -> ProviderError {
        match error {
            PluginError::Failed { status, said } => {
                let values = self.config.env.iter().map(|(_, value)| value.as_str());
                let values = values.chain(self.config.args.iter().map(String::as_str));
                ProviderError::Failed {
                    status: status.to_string(),
                    said: first_line(&said, values),
                }
            }
            other => ProviderError::Plugin(other),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
