//! `cleanup`: takes away what the agent has left in a runtime, for an uninstall.

use std::fmt;
use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;

use super::flags::EndpointFlags;
use super::{block_on, say, terminated};
use crate::decide::Timing;
use crate::runtime::{Containerd, LockError, Runtime, RuntimeError, lock};

/// Remove what the agent has left in this machine's container runtime, for an uninstall.
///
/// On containerd these are pins and marks of images, and the leases of pulls with what they have downloaded in part. Another
/// runtime holds nothing of the agent. No image is removed. The agent must have ended before: it would leave all of it again. The
/// exit code is 0 if nothing of it is left, also when nothing was there, 1 if something may be, and 2 if the command line is
/// wrong.
#[derive(Args, Debug)]
pub struct Flags {
    /// Keep running afterwards, until asked to end: the Pods of a DaemonSet do not end by themselves.
    #[arg(long)]
    stay: bool,

    #[command(flatten)]
    endpoint: EndpointFlags,
}

/// What was taken away.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Removed {
    pins: usize,
    marks: usize,
    leases: usize,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pins removed: {}", self.pins)?;
        writeln!(f, "marks removed: {}", self.marks)?;
        writeln!(f, "leases removed: {}", self.leases)
    }
}

/// Takes away what is there.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    block_on(clean_up(flags))
}

async fn clean_up(flags: &Flags) -> anyhow::Result<ExitCode> {
    let call_timeout = Timing::default().runtime_call;
    let endpoint = flags.endpoint.find(call_timeout).await?;
    let held = lock(&endpoint).map_err(|error| match error {
        LockError::Taken { .. } => anyhow!(error).context(
            "the agent has to end first: delete its DaemonSet, as in kubectl -n imagecache-system delete daemonset imagecache-agent",
        ),
        LockError::Io { .. } => anyhow!(error),
    })?;
    let runtime = Runtime::new(endpoint, call_timeout);
    if let Some(containerd) = Containerd::ask(&runtime).await? {
        let removed = clean(&containerd).await?;
        stdout()
            .write_all(removed.to_string().as_bytes())
            .context("cannot write the result")?;
    } else {
        let name = runtime.version().await?.name;
        say(&format!(
            "{name} at {} holds nothing of the agent: only containerd does",
            runtime.endpoint()
        ));
    }
    // Nothing is to be kept from the runtime any more, not even an agent.
    drop(held);
    if flags.stay {
        terminated().await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn clean(containerd: &Containerd) -> Result<Removed, RuntimeError> {
    let mut removed = Removed::default();
    for record in containerd.id_records().await? {
        if let Some(was) = containerd.clear_marks(&record.id).await? {
            removed.pins += usize::from(was.pinned && was.pin_is_ours);
            removed.marks += was.pulled.len();
        }
    }
    for lease in containerd.leases().await? {
        containerd.discard_lease(&lease.id).await?;
        removed.leases += 1;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_is_a_line_for_each_kind() {
        let removed = Removed {
            pins: 2,
            marks: 3,
            leases: 0,
        };
        assert_eq!(
            removed.to_string(),
            "pins removed: 2\nmarks removed: 3\nleases removed: 0\n"
        );
    }
}
