//! A real containerd of one of three versions, with its own root, state, socket and mounts.

use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::process::{Process, lock};
use crate::registry::{Registry, Tls};
use crate::servers::{program, server};
use crate::wait::wait_for;

/// Where a node has its containerd's content and snapshots.
pub const ROOT: &str = "/var/lib/containerd";

/// A release line of containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 1.6: no transfer service, events and limits of its own.
    V1_6,
    /// 1.7.
    V1_7,
    /// 2.4: pulls go through the transfer service.
    V2_4,
}

impl Version {
    /// All of them, the newest first.
    pub const ALL: [Self; 3] = [Self::V2_4, Self::V1_7, Self::V1_6];
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_6 => "1.6",
            Self::V1_7 => "1.7",
            Self::V2_4 => "2.4",
        })
    }
}

/// How a containerd shall be.
#[derive(Clone, Debug, Default)]
pub struct ContainerdOptions {
    /// The size of a small image filesystem of its own; without it the lab's folder is the limit.
    pub image_filesystem: Option<u64>,
    /// The image of the sandbox that every Pod has.
    pub sandbox_image: Option<String>,
    /// How long a pull may go without a byte before containerd cancels it (1.7 and later; its default is 5 minutes).
    pub pull_progress_timeout: Option<Duration>,
}

/// A containerd in a mount namespace; it can be killed and started again.
#[derive(Debug)]
pub struct Containerd {
    lab: Arc<Lab>,
    name: String,
    version: Version,
    namespace: Arc<Namespace>,
    process: Mutex<Option<Process>>,
}

/// An image as the runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RuntimeImage {
    /// The digest of its configuration.
    pub id: String,
    /// Its names by tag.
    #[serde(rename = "repoTags")]
    pub tags: Vec<String>,
    /// Its names by digest.
    #[serde(rename = "repoDigests")]
    pub digests: Vec<String>,
    /// Whether the kubelet's collector leaves it alone.
    pub pinned: bool,
}

#[derive(Deserialize)]
struct Images {
    images: Vec<RuntimeImage>,
}

impl Containerd {
    /// Starts one that shares the machine's network.
    pub async fn start(
        lab: &Arc<Lab>,
        name: &str,
        version: Version,
        options: ContainerdOptions,
    ) -> Result<Self> {
        let namespace = Namespace::make(lab, name, false).await?;
        Self::start_in(lab, name, version, Arc::new(namespace), options).await
    }

    /// Starts one inside a node.
    pub async fn start_in(
        lab: &Arc<Lab>,
        name: &str,
        version: Version,
        namespace: Arc<Namespace>,
        options: ContainerdOptions,
    ) -> Result<Self> {
        let dir = namespace.dir();
        for folder in ["root", "opt", "certs.d", "cni/bin"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let mut make = namespace.command("mkdir");
        crate::network::run(make.args(["-p", ROOT]))?;
        // Either goes with the namespace.
        let mut mount = namespace.command("mount");
        match options.image_filesystem {
            Some(bytes) => mount
                .args(["-t", "tmpfs", "-o"])
                .arg(format!("size={bytes}"))
                .arg("tmpfs"),
            None => mount.arg("--bind").arg(dir.join("root")),
        };
        crate::network::run(mount.arg(ROOT))?;
        // Pods on the node's own network need no other plugin, but the runtime wants to see one.
        fs::copy(server("cni", "loopback")?, dir.join("cni/bin/loopback"))?;
        let conflist =
            r#"{"cniVersion": "0.4.0", "name": "testbed", "plugins": [{"type": "loopback"}]}"#;
        fs::write(dir.join("cni/10-loopback.conflist"), conflist)?;
        fs::write(
            dir.join("config.toml"),
            configuration(dir, &program("runc")?, version, &options),
        )?;

        let containerd = Self {
            lab: lab.clone(),
            name: name.to_owned(),
            version,
            namespace,
            process: Mutex::default(),
        };
        containerd.start_again().await?;
        Ok(containerd)
    }

    /// Its release line.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its socket, seen from outside.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.namespace.dir().join("run/containerd.sock")
    }

    /// The folder of its content and snapshots, seen from outside, which what is in a small image filesystem is not. Inside it is where
    /// nodes have it, [`ROOT`].
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.namespace.dir().join("root")
    }

    /// Starts it again after a stop or a kill, with all that it had; returns when it answers.
    pub async fn start_again(&self) -> Result<()> {
        let module = format!("containerd-{}", self.version);
        let containerd = server(&module, "containerd")?;
        let mut path = containerd
            .parent()
            .unwrap_or(Path::new("/"))
            .as_os_str()
            .to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = self.namespace.command(&containerd);
        // The shim of the same version is found first.
        command
            .arg("--config")
            .arg(self.namespace.dir().join("config.toml"))
            .env("PATH", path);
        let process = self
            .lab
            .spawn(&format!("{}-containerd", self.name), command)?;
        let what = format!("containerd of {}", self.name);
        let answered = wait_for(what, Duration::from_secs(20), async || {
            ensure!(process.status().is_none(), "it ended");
            // Cheaper than a crictl that fails.
            UnixStream::connect(self.socket()).await?;
            self.crictl(&["version"]).await
        });
        answered.await.map_err(|e| process.explain(e))?;
        *self.process() = Some(process);
        Ok(())
    }

    /// SIGTERM, and waits for the end: the socket is removed, containers go on.
    pub async fn stop(&self) -> Result<()> {
        let process = self.process().take();
        match process {
            Some(process) => process.stop(Duration::from_secs(10)).await,
            None => Ok(()),
        }
    }

    /// SIGKILL: the socket file stays, nobody answers.
    pub fn kill9(&self) -> Result<()> {
        self.process().take().map_or(Ok(()), |p| p.kill9())
    }

    /// Sends references of `host` to `url` from the next pull on.
    pub fn mirror(&self, host: &str, url: &str, authority: Option<&Path>) -> Result<()> {
        let dir = self.namespace.dir().join("certs.d").join(host);
        fs::create_dir_all(&dir)?;
        // A table with the same URL and the right to pull would be a second host, asked again after each failure;
        // 1.6 ignores a file without any table.
        let authority = authority.map_or_else(String::new, |path| {
            format!(
                "ca = \"{}\"
",
                path.display()
            )
        });
        let file = format!(
            "server = \"{url}\"
{authority}[host.\"{url}\"]
capabilities = [\"push\"]
"
        );
        Ok(fs::write(dir.join("hosts.toml"), file)?)
    }

    /// Makes a registry known: plain HTTP, or the lab's authority. One that is self-signed stays untrusted.
    pub fn knows(&self, registry: &Registry) -> Result<()> {
        let authority = match registry.tls() {
            Tls::Trusted => Some(self.lab.authority()?.certificate()),
            Tls::Off | Tls::SelfSigned => None,
        };
        self.mirror(&registry.host(), &registry.url(), authority.as_deref())
    }

    /// Has this script asked about every image from the next pull on, or none. Only 2.x asks.
    pub fn verify_images_with(&self, script: Option<&str>) -> Result<()> {
        let folder = self.namespace.dir().join("verifiers");
        let Some(script) = script else {
            return Ok(fs::remove_dir_all(folder)?);
        };
        fs::create_dir_all(&folder)?;
        let verifier = folder.join("verifier");
        fs::write(&verifier, script)?;
        Ok(fs::set_permissions(
            verifier,
            Permissions::from_mode(0o755),
        )?)
    }

    /// Pulls with crictl.
    pub async fn pull(&self, reference: &str) -> Result<()> {
        self.crictl(&["pull", reference]).await.map(drop)
    }

    /// What the runtime has.
    pub async fn images(&self) -> Result<Vec<RuntimeImage>> {
        let list = self.crictl(&["images", "-o", "json"]).await?;
        Ok(serde_json::from_str::<Images>(&list)?.images)
    }

    /// Whether one of its images has this name, by tag or by digest.
    pub async fn has(&self, reference: &str) -> Result<bool> {
        Ok(self
            .images()
            .await?
            .iter()
            .any(|i| i.tags.iter().chain(&i.digests).any(|n| n == reference)))
    }

    /// Removes an image with all its names.
    pub async fn remove(&self, reference: &str) -> Result<()> {
        self.crictl(&["rmi", reference]).await.map(drop)
    }

    /// Runs crictl against its socket.
    pub async fn crictl(&self, args: &[&str]) -> Result<String> {
        let endpoint = format!("unix://{}", self.socket().display());
        let mut command = Command::new(server("crictl", "crictl")?);
        command
            .args([
                "--timeout",
                "120s",
                "--runtime-endpoint",
                &endpoint,
                "--image-endpoint",
                &endpoint,
            ])
            .args(args);
        output(command).await
    }

    /// Runs ctr, containerd's own client, in the namespace of the CRI.
    pub async fn ctr(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(server(&format!("containerd-{}", self.version), "ctr")?);
        command
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io"])
            .args(args);
        output(command).await
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.process()
            .as_ref()
            .map_or_else(|| "(not running)".to_owned(), |p| p.log_tail(lines))
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }
}

/// The form of version 2, which 2.x migrates by itself.
fn configuration(dir: &Path, runc: &Path, version: Version, options: &ContainerdOptions) -> String {
    let dir = dir.display();
    let runc = runc.display();
    let sandbox = options
        .sandbox_image
        .as_deref()
        .unwrap_or("testbed.invalid/pause:1");
    let timeout = match options.pull_progress_timeout {
        Some(timeout) if version != Version::V1_6 => format!(
            "image_pull_progress_timeout = \"{}ms\"",
            timeout.as_millis()
        ),
        _ => String::new(),
    };
    let verifiers = match version {
        Version::V2_4 => format!(
            "[plugins.\"io.containerd.image-verifier.v1.bindir\"]\nbin_dir = \"{dir}/verifiers\""
        ),
        Version::V1_6 | Version::V1_7 => String::new(),
    };
    // `restrict_oom_score_adj`: where the machine lacks CAP_SYS_RESOURCE no sandbox could be made.
    format!(
        r#"version = 2
root = "{ROOT}"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true
{verifiers}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
{timeout}
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{dir}/certs.d"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{dir}/cni/bin"
conf_dir = "{dir}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
"#
    )
}

/// What a command prints, or an error with what it says went wrong.
pub(crate) async fn output(command: Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let args: Vec<_> = command
        .get_args()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let mut command = tokio::process::Command::from(command);
    let done = command
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("run {name}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{name} {}: {}",
        args.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
