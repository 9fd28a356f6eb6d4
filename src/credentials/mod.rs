//! What registries are told about who asks: the credentials that a pod on this node would pull with, found by the kubelet's own rules.
//!
//! Whoever reads a Secret gives its content to [`secret::read`], puts what it says into a [`Keyring`], and takes out of it what
//! belongs to an image. [`NodeCredentials`] does the same with what the node has. This room asks nobody over a network: reading
//! Secrets is for whoever is [`Secrets`], and `plugin.rs` is the one file that runs a program.

mod docker_config;
mod docker_files;
mod duration;
mod first_line;
mod glob;
mod keyring;
mod node;
mod plugin;
mod provider;
mod provider_answer;
mod provider_cache;
mod provider_config;
pub mod secret;

pub use docker_config::{Entry, InvalidConfig};
pub use docker_files::{BrokenFile, DockerFiles};
pub use keyring::{Keyring, Named};
pub use node::{NodeCredentials, NodeCredentialsError, NodeKeys, NodeReading};
pub use provider_config::ConfigError;
pub use secret::InvalidSecret;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::api::{CredentialProblem, CredentialReason, NamespacedName};

/// Whoever can read pull secrets.
pub trait Secrets: fmt::Debug + Send + Sync {
    /// What a Secret of this name says.
    fn read<'a>(
        &'a self,
        name: &'a NamespacedName,
    ) -> BoxFuture<'a, Result<Arc<Vec<Entry>>, CredentialProblem>>;
}

/// Where there is no cluster, there are no Secrets.
#[derive(Debug)]
pub struct NoCluster;

impl Secrets for NoCluster {
    fn read<'a>(
        &'a self,
        _: &'a NamespacedName,
    ) -> BoxFuture<'a, Result<Arc<Vec<Entry>>, CredentialProblem>> {
        let problem = CredentialProblem {
            reason: Some(CredentialReason::MissingSecret),
            message: "there is no cluster to read it from".to_owned(),
        };
        Box::pin(std::future::ready(Err(problem)))
    }
}

/// A user's name and password. Neither is ever written anywhere: what is printed of it says only that it is there.
#[derive(Clone, Eq, PartialEq)]
pub struct Credential {
    /// The user's name.
    pub username: String,
    /// The password, or a token in its place.
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}
