//! A machine within the machine: a mount namespace, and where asked for a network namespace, that a process holds.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::lab::Lab;
use crate::process::Process;
use crate::wait::wait_for;

/// `/run`, `/var/log` and what is new in `/var/lib` are the node's own: a runtime answers at its well-known socket, and nothing
/// that a node writes there stays. The kernel's settings that a kubelet insists on look as it wants them, so it changes none.
/// Mounts are shared within the namespace, as systemd does it (propagation into containers needs that), and with nobody
/// outside.
const SETUP: &str = r#"set -e
mount --make-rshared /
resolv=$(readlink -f /etc/resolv.conf || true)
if [ -f "$resolv" ]; then cp "$resolv" "$1/resolv.conf"; fi
mount -t tmpfs -o mode=755 tmpfs /run
if [ -f "$1/resolv.conf" ] && [ ! -f "$resolv" ]; then mkdir -p "${resolv%/*}"; cp "$1/resolv.conf" "$resolv"; fi
mkdir /run/containerd
mount --bind "$1/run" /run/containerd
mount -t tmpfs tmpfs /var/log
mkdir "$1/var-lib" "$1/var-lib-work"
mount -t overlay -o "lowerdir=/var/lib,upperdir=$1/var-lib,workdir=$1/var-lib-work" overlay /var/lib
mkdir /run/sysctl
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl/$(echo "${setting%=*}" | tr / .)
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
echo ready
exec sleep infinity"#;

/// Ends, with all its mounts and its network, when the process that holds it ends.
#[derive(Debug)]
pub struct Namespace {
    holder: Process,
    dir: PathBuf,
    own_network: bool,
}

impl Namespace {
    /// Makes one; `NAME/run` in the lab's folder is its `/run/containerd`, visible from outside.
    pub async fn make(lab: &Lab, name: &str, own_network: bool) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a namespace of its own needs root"
        );
        let dir = lab.folder(name)?;
        fs::create_dir_all(dir.join("run"))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        if own_network {
            command.arg("--net");
        }
        command.args(["sh", "-c", SETUP, "node"]).arg(&dir);
        let holder = lab.spawn(&format!("{name}-namespace"), command)?;
        wait_for(
            format!("the namespace of {name}"),
            Duration::from_secs(10),
            async || {
                holder
                    .log()
                    .contains("ready")
                    .then_some(())
                    .context("it is being made")
            },
        )
        .await
        .map_err(|e| holder.explain(e))?;
        Ok(Self {
            holder,
            dir,
            own_network,
        })
    }

    /// The folder that holds what the namespace sees as its own.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process that holds it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// A command that will run inside.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid().to_string(), "--mount"]);
        if self.own_network {
            command.arg("--net");
        }
        command.arg("--").arg(program);
        command
    }
}
