//! `run`: the agent of one node of a cluster, as a DaemonSet starts it.

mod daemon;
mod disk;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::disk::DiskFlags;
use super::flags::{LogFlags, NodeCredentialFlags, RuntimeFlags, duration_or_zero};
use super::{UsageError, block_on};
use crate::telemetry::logs::Level;

/// Where health and metrics are served unless another address is asked for.
const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 19847);

/// Run as the agent of one node of a cluster.
#[derive(Args, Debug)]
pub struct Flags {
    /// The Node that this agent works for. In a DaemonSet, the downward API's spec.nodeName.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,

    /// The namespace of the election. In a DaemonSet, the downward API's metadata.namespace.
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "imagecache-system"
    )]
    namespace: String,

    /// What this process does.
    #[arg(
        long,
        env = "IMAGECACHE_ROLE",
        value_enum,
        value_name = "ROLE",
        default_value = "all"
    )]
    role: Role,

    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "IMAGECACHE_ADMIN_ADDR", value_name = "ADDRESS", default_value_t = ADMIN_ADDRESS)]
    admin_addr: SocketAddr,

    /// The cluster and the rights, from this file. Without it, those of the Pod's service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The most that a node waits before it pulls what an edit, a label or a refresh asks for, such as 60s. It is 20 ms for each node of
    /// the cluster at most, and how much of that is made from the node's and the image's names.
    #[arg(long, env = "IMAGECACHE_MAX_START_JITTER", value_name = "TIME", default_value = "60s", value_parser = duration_or_zero)]
    max_start_jitter: Duration,

    /// How long an image that is to be removed stays after nobody wants it any more, such as 10m: an edit may be mended, and when the
    /// resource definitions are deleted, the images stay.
    #[arg(long, env = "IMAGECACHE_REMOVAL_DELAY", value_name = "TIME", default_value = "10m", value_parser = duration_or_zero)]
    removal_delay: Duration,

    #[command(flatten)]
    disk: DiskFlags,

    #[command(flatten)]
    runtime: RuntimeFlags,

    #[command(flatten)]
    credentials: NodeCredentialFlags,

    #[command(flatten)]
    log: LogFlags,
}

/// What a process does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Role {
    /// Pull onto this node and report, and take part in the election.
    All,
    /// Pull onto this node and report, but never be elected to write the summaries.
    Agent,
    /// Take part in the election alone: write the summaries, and pull nothing.
    Summary,
}

impl Role {
    /// Whether it pulls and reports.
    #[must_use]
    pub const fn pulls(self) -> bool {
        matches!(self, Self::All | Self::Agent)
    }

    /// Whether it may be elected.
    #[must_use]
    pub const fn summarizes(self) -> bool {
        matches!(self, Self::All | Self::Summary)
    }
}

impl Flags {
    /// Checks what clap cannot.
    fn check(&self) -> Result<(), UsageError> {
        let namespace = &self.namespace;
        if is_dns_name(namespace) && !namespace.contains('.') && namespace.len() <= 63 {
            return Ok(());
        }
        Err(UsageError::new(format!(
            "--namespace (or POD_NAMESPACE): {namespace:?} is no name of a namespace: it has at most 63 lower-case letters, digits and -"
        )))
    }

    /// The name of the Node. Who only writes summaries works for none.
    fn node(&self) -> Result<Option<&str>, UsageError> {
        match self.node_name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) if is_dns_name(name) => Ok(Some(name)),
            Some(name) => Err(UsageError::new(format!(
                "--node-name (or NODE_NAME): {name:?} is no name of a Node: it has lower-case letters, digits, - and ."
            ))),
            None if self.role.pulls() => Err(UsageError::new(
                "--node-name (or NODE_NAME) is missing: name the Node that this agent works for, as kubectl get nodes does",
            )),
            None => Ok(None),
        }
    }
}

fn is_dns_name(name: &str) -> bool {
    let is_edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(is_edge)
            && bytes.last().is_some_and(is_edge)
            && bytes.iter().all(|byte| is_edge(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Runs the agent until SIGTERM.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    flags.log.start(Level::info());
    let node = flags.node()?;
    flags.check()?;
    let credentials = flags.credentials.read(None, &flags.runtime.timing())?;
    block_on(daemon::serve(flags, node, credentials))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(arguments: &[&str]) -> Flags {
        Command::try_parse_from(std::iter::once(&"run").chain(arguments))
            .unwrap()
            .flags
    }

    #[test]
    fn an_agent_has_to_know_its_node() {
        let error = flags(&["--node-name="]).node().unwrap_err().to_string();
        assert!(
            error.contains("--node-name") && error.contains("NODE_NAME"),
            "{error}"
        );
        let error = flags(&["--node-name=Node_1"])
            .node()
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"Node_1\""), "{error}");
        assert_eq!(
            flags(&["--node-name=node-1.example"]).node().unwrap(),
            Some("node-1.example")
        );
        assert_eq!(
            flags(&["--node-name=", "--role=summary"]).node().unwrap(),
            None
        );
    }

    #[test]
    fn a_role_says_what_is_done() {
        assert!(flags(&[]).role.pulls() && flags(&[]).role.summarizes());
        assert!(!Role::Agent.summarizes() && !Role::Summary.pulls());
    }

    #[test]
    fn a_flag_that_makes_no_sense_is_refused() {
        for flag in [
            "--max-parallel-pulls=0",
            "--disk-high-percent=0",
            "--max-pinned-percent=101",
            "--role=leader",
            "--admin-addr=9847",
            "--runtime-endpoint=tcp://a:1",
            "--log-level=loud",
        ] {
            let Err(error) = Command::try_parse_from(["run", flag]) else {
                panic!("{flag}")
            };
            assert_eq!(error.exit_code(), 2);
            let name = flag.split('=').next().unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
