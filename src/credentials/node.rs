//! The credentials of the node itself: its docker configuration and its exec credential providers, as the kubelet has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::docker_files::{BrokenFile, DockerFiles, Found};
use super::keyring::{Keyring, Named};
use super::provider::Provider;
use super::provider_config::{self, ConfigError};
use crate::api::{CredentialProblem, CredentialReason, NodeSource};

/// Where the credentials of a node are. Without anything, it has none.
#[derive(Debug, Default)]
pub struct NodeCredentials {
    docker: Option<DockerConfig>,
    providers: Vec<Provider>,
}

/// The docker configuration, and what was last read of it.
#[derive(Debug)]
struct DockerConfig {
    files: DockerFiles,
    kept: Duration,
    read: Mutex<Option<(Instant, Arc<Found>)>>,
}

/// The sources of the node that were read for an image, and why one gave nothing.
pub type NodeReading = BTreeMap<NodeSource, Option<CredentialProblem>>;

/// What the node has for an image.
#[derive(Debug, Default)]
pub struct NodeKeys {
    /// The credentials in the order in which to try them.
    pub found: Vec<Named>,
    /// The sources that were read.
    pub read: NodeReading,
    /// Those that were not read now but before: they may have newer ones.
    pub remembered: BTreeSet<NodeSource>,
}

/// Why the credentials of a node cannot be used from the start.
#[derive(Debug, thiserror::Error)]
pub enum NodeCredentialsError {
    /// A folder cannot be read.
    #[error("{}: it is no folder that can be read", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A docker configuration cannot be read.
    #[error(transparent)]
    Docker(#[from] BrokenFile),
    /// The configuration of the providers is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl NodeCredentials {
    /// With the docker configuration that stands in one of these files, which is read again when it was read so long ago.
    pub fn read_docker(&mut self, files: DockerFiles, kept: Duration) {
        self.docker = Some(DockerConfig {
            files,
            kept,
            read: Mutex::default(),
        });
    }

    /// With the docker configuration in the first of these folders that has one. Each has to be there; one that can be read need not.
    pub fn read_docker_folders(
        &mut self,
        folders: &[PathBuf],
        kept: Duration,
    ) -> Result<(), NodeCredentialsError> {
        for path in folders {
            is_folder(path)?;
        }
        let files = DockerFiles::in_folders(folders);
        if let Some(broken) = files.read().broken {
            return Err(broken.into());
        }
        self.read_docker(files, kept);
        Ok(())
    }

    /// With the providers of this configuration, whose programs are in the folder `bin`. Each has `limit` to answer.
    pub fn ask_providers(
        &mut self,
        config: &Path,
        bin: &Path,
        limit: Duration,
    ) -> Result<(), NodeCredentialsError> {
        is_folder(bin)?;
        for placed in provider_config::read(config)? {
            let provider = Provider::new(placed.provider, bin, limit);
            if let Some(program) = provider.program() {
                is_program(program).map_err(|why| {
                    let problem = format!("{} cannot be run: {why}", program.display());
                    ConfigError::field(placed.file, placed.field, problem)
                })?;
            }
            self.providers.push(provider);
        }
        Ok(())
    }

    /// Whether there are none, from any source.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.docker.is_none() && self.providers.is_empty()
    }

    /// What the node has for an image, which is named by registry and repository in full: first the docker configuration's, then the
    /// providers', whose answers make one keyring.
    pub async fn find(&self, image: &str) -> NodeKeys {
        let mut keys = NodeKeys::default();
        if let Some(docker) = &self.docker {
            docker.find(image, &mut keys);
        }
        let asked = self.providers.iter().filter(|one| one.is_for(image));
        let asked = asked.map(async |provider| (provider.source(), provider.provide(image).await));
        let mut keyring = Keyring::default();
        for (source, provided) in join_all(asked).await {
            if provided.remembered {
                keys.remembered.insert(source.clone());
            }
            let problem = match provided.entries {
                Ok(entries) => {
                    keyring.add(&source.to_string().into(), entries.iter().cloned());
                    None
                }
                Err(problem) => Some(problem),
            };
            keys.read.insert(source.clone(), problem);
        }
        keys.found.extend(keyring.lookup(image));
        keys
    }

    /// What these sources had for an image before is not good any more: a registry refused it.
    pub fn forget(&self, image: &str, sources: &BTreeSet<NodeSource>) {
        let docker = self.docker.iter();
        for docker in docker.filter(|_| sources.contains(&NodeSource::DockerConfig)) {
            docker.forget();
        }
        let providers = self.providers.iter();
        for provider in providers.filter(|one| sources.contains(one.source())) {
            provider.forget(image);
        }
    }
}

/// The sources, for people.
impl fmt::Display for NodeCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let docker = self.docker.iter().map(|_| NodeSource::DockerConfig);
        let providers = self.providers.iter().map(|one| one.source().clone());
        let sources: Vec<_> = docker
            .chain(providers)
            .map(|source| source.to_string())
            .collect();
        f.write_str(&sources.join(", "))
    }
}

impl DockerConfig {
    fn find(&self, image: &str, keys: &mut NodeKeys) {
        let (found, remembered) = self.read(Instant::now());
        let problem = found.broken.as_ref().map(|broken| CredentialProblem {
            reason: Some(CredentialReason::InvalidSecret),
            message: broken.to_string(),
        });
        keys.read.insert(NodeSource::DockerConfig, problem);
        if remembered {
            keys.remembered.insert(NodeSource::DockerConfig);
        }
        if let Some((path, entries)) = &found.file {
            let mut keyring = Keyring::default();
            keyring.add(&path.display().to_string().into(), entries.iter().cloned());
            keys.found.extend(keyring.lookup(image));
        }
    }

    /// What the files say, and whether that was read before. They are small and on this machine: reading them holds nobody up.
    fn read(&self, now: Instant) -> (Arc<Found>, bool) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |(at, _): &&(Instant, _)| now.saturating_duration_since(*at) < self.kept;
        if let Some((_, found)) = read.as_ref().filter(is_fresh) {
            return (Arc::clone(found), true);
        }
        let found = Arc::new(self.files.read());
        *read = Some((now, Arc::clone(&found)));
        (found, false)
    }

    fn forget(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn is_folder(path: &Path) -> Result<(), NodeCredentialsError> {
    fs::read_dir(path)
        .map(drop)
        .map_err(|source| NodeCredentialsError::Folder {
            path: path.to_owned(),
            source,
        })
}

/// The error says why it is none.
fn is_program(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err("it is not a file".to_owned()),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            Err("nobody may execute it".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
