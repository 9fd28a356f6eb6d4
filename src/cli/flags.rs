//! The flags that several subcommands have.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use jiff::SignedDuration;

use super::{UsageError, say};
use crate::credentials::{DockerFiles, NodeCredentials, NodeCredentialsError};
use crate::decide::Timing;
use crate::runtime::{Endpoint, NothingFound, discover};
use crate::telemetry::logs::{self, Format, Level};

/// Where this machine's container runtime is.
#[derive(Args, Clone, Debug)]
pub struct EndpointFlags {
    /// The runtime's socket, such as unix:///run/containerd/containerd.sock. Without it, the well-known sockets of
    /// containerd, CRI-O, cri-dockerd, k3s, k0s and MicroK8s are tried.
    #[arg(long, env = "IMAGECACHE_RUNTIME_ENDPOINT", value_name = "SOCKET")]
    pub runtime_endpoint: Option<Endpoint>,
}

impl EndpointFlags {
    /// The socket that is named, or else the first of the well-known ones that answers now, which is told.
    pub async fn find(&self, call_timeout: Duration) -> Result<Endpoint, NothingFound> {
        if let Some(endpoint) = &self.runtime_endpoint {
            return Ok(endpoint.clone());
        }
        let found = discover(call_timeout).await?;
        let (version, endpoint) = (found.version, found.runtime.endpoint());
        say(&format!(
            "using {} {} at {endpoint}",
            version.name, version.version
        ));
        Ok(endpoint.clone())
    }
}

/// How this machine's container runtime is used.
#[derive(Args, Clone, Debug)]
pub struct RuntimeFlags {
    #[command(flatten)]
    pub(super) endpoint: EndpointFlags,

    /// Pulls that run at the same time. A runtime shares its few download slots with the pods that start.
    #[arg(
        long,
        env = "IMAGECACHE_MAX_PARALLEL_PULLS",
        value_name = "N",
        default_value = "2"
    )]
    pub max_parallel_pulls: NonZeroUsize,

    /// Make way while something else downloads images on this node, such as a pod that starts. Seen on containerd only.
    #[arg(
        long,
        env = "IMAGECACHE_YIELD_TO_PODS",
        value_name = "BOOL",
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    pub yield_to_pods: bool,

    /// Divides every delay before a repeated pull, for tests that wait for repetitions.
    #[arg(
        long,
        env = "IMAGECACHE_DIVIDE_DELAYS",
        value_name = "N",
        default_value_t = 1,
        hide = true
    )]
    divide_delays: u32,
}

impl RuntimeFlags {
    /// The intervals that the agent works with.
    #[must_use]
    pub fn timing(&self) -> Timing {
        Timing::default().divided_by(self.divide_delays)
    }
}

/// Which credentials of the node itself are used, as its kubelet uses them.
#[derive(Args, Clone, Debug)]
pub struct NodeCredentialFlags {
    /// A folder with the node's docker configuration: config.json, else .dockercfg. Can be given several times, or as A:B; the first
    /// that has one counts. Without it, pull looks where this machine's kubelet does, and run nowhere.
    #[arg(
        long,
        env = "IMAGECACHE_NODE_DOCKER_CONFIG_DIR",
        value_name = "DIR",
        value_delimiter = ':'
    )]
    node_docker_config_dir: Vec<PathBuf>,

    /// The kubelet's configuration of exec credential providers, as the kubelet's flag of this name: a file, or a folder of
    /// *.json, *.yaml and *.yml.
    #[arg(
        long,
        env = "IMAGECACHE_IMAGE_CREDENTIAL_PROVIDER_CONFIG",
        value_name = "PATH"
    )]
    image_credential_provider_config: Option<PathBuf>,

    /// The folder with the programs of these providers, as the kubelet's flag of this name.
    #[arg(
        long,
        env = "IMAGECACHE_IMAGE_CREDENTIAL_PROVIDER_BIN_DIR",
        value_name = "DIR"
    )]
    image_credential_provider_bin_dir: Option<PathBuf>,
}

const DOCKER_CONFIG_DIR: &str = "--node-docker-config-dir";
const PROVIDER_CONFIG: &str = "--image-credential-provider-config";
const PROVIDER_BIN_DIR: &str = "--image-credential-provider-bin-dir";

/// What a flag names cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{flag} cannot be used")]
struct FlagError {
    flag: &'static str,
    source: NodeCredentialsError,
}

impl NodeCredentialFlags {
    /// The credentials that the flags name, with the docker configuration in `else_in` if they name none.
    pub fn read(
        &self,
        else_in: Option<DockerFiles>,
        timing: &Timing,
    ) -> Result<NodeCredentials, UsageError> {
        let mut credentials = NodeCredentials::default();
        if !self.node_docker_config_dir.is_empty() {
            credentials
                .read_docker_folders(&self.node_docker_config_dir, timing.docker_config)
                .map_err(|error| unusable(DOCKER_CONFIG_DIR, error))?;
        } else if let Some(files) = else_in {
            credentials.read_docker(files, timing.docker_config);
        }
        match (
            &self.image_credential_provider_config,
            &self.image_credential_provider_bin_dir,
        ) {
            (Some(config), Some(bin)) => credentials
                .ask_providers(config, bin, timing.provider)
                .map_err(|error| match error {
                    NodeCredentialsError::Folder { .. } => unusable(PROVIDER_BIN_DIR, error),
                    _ => unusable(PROVIDER_CONFIG, error),
                })?,
            (None, None) => {}
            (Some(_), None) => return Err(missing(PROVIDER_BIN_DIR, PROVIDER_CONFIG)),
            (None, Some(_)) => return Err(missing(PROVIDER_CONFIG, PROVIDER_BIN_DIR)),
        }
        Ok(credentials)
    }
}

fn unusable(flag: &'static str, source: NodeCredentialsError) -> UsageError {
    UsageError::new(FlagError { flag, source })
}

fn missing(flag: &str, other: &str) -> UsageError {
    UsageError::new(format!(
        "{flag} is missing: {other} is given, and one is of no use without the other"
    ))
}

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
pub struct LogFlags {
    /// How a line of the log looks.
    #[arg(
        long,
        env = "IMAGECACHE_LOG_FORMAT",
        value_enum,
        value_name = "FORMAT",
        default_value = "human"
    )]
    pub log_format: Format,

    /// What is logged: off, error, warn, info, debug, trace, or directives such as info,kube=debug.
    #[arg(long, env = "IMAGECACHE_LOG_LEVEL", value_name = "LEVEL", value_parser = Level::parse)]
    pub log_level: Option<Level>,
}

impl LogFlags {
    /// Starts logging, at this level if no other is asked for.
    pub fn start(&self, default: Level) {
        let level = self.log_level.clone().unwrap_or(default);
        logs::start(self.log_format, &level);
    }
}

/// Reads a length of time such as `90s`, `10m` or `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    duration_or_zero(text)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            "a length of time above zero is needed, such as 90s, 10m or 1h30m".to_owned()
        })
}

/// The same, and `0s` too.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| "a length of time is needed, such as 90s, 10m or 0s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit() {
        let rows = [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h 30m", 5400)];
        for (text, seconds) in rows {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "10", "-5s", "0s", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
