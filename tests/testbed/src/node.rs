//! A node: a network and a mount namespace with a containerd, and where asked for a kubelet.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::containerd::{Containerd, ContainerdOptions, Version};
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::network::Link;
use crate::process::{Process, lock};
use crate::servers::server;

/// A machine of the cluster.
#[derive(Debug)]
pub struct Node {
    lab: Arc<Lab>,
    name: String,
    address: Ipv4Addr,
    link: Link,
    kubeconfig: PathBuf,
    kubelet: Mutex<Option<Process>>,
    containerd: Containerd,
    namespace: Arc<Namespace>,
}

impl Node {
    /// `number` (from 1) chooses the name and the address; `kubeconfig` is the kubelet's.
    pub(crate) async fn start(
        lab: &Arc<Lab>,
        number: u8,
        version: Version,
        options: ContainerdOptions,
        kubeconfig: PathBuf,
    ) -> Result<Self> {
        let name = node_name(number);
        let namespace = Arc::new(Namespace::make(lab, &name, true).await?);
        let link = lab.network()?.plug(namespace.pid(), 10 + number)?;
        let address = lab.network()?.host(10 + number);
        let containerd =
            Containerd::start_in(lab, &name, version, namespace.clone(), options).await?;
        Ok(Self {
            lab: lab.clone(),
            name,
            address,
            link,
            kubeconfig,
            kubelet: Mutex::default(),
            containerd,
            namespace,
        })
    }

    /// The name of its Node object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address on the bridge.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its runtime.
    #[must_use]
    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// Its runtime's socket, seen from outside. Inside it is where runtimes have it, `/run/containerd/containerd.sock`.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.containerd.socket()
    }

    /// Takes its network cable out.
    pub fn cut(&self) -> Result<()> {
        self.link.set(false)
    }

    /// Puts its network cable back.
    pub fn join(&self) -> Result<()> {
        self.link.set(true)
    }

    /// A command that will run on this node; for [`Node::spawn`].
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }

    /// Starts a command of [`Node::command`]; its log is `NODE-NAME.log` in the lab's `log` folder.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        self.lab.spawn(&format!("{}-{name}", self.name), command)
    }

    /// Stops the kubelet; containers go on.
    pub async fn stop_kubelet(&self) -> Result<()> {
        let kubelet = self.kubelet().take();
        match kubelet {
            Some(kubelet) => kubelet.stop(Duration::from_secs(10)).await,
            None => Ok(()),
        }
    }

    /// Starts the kubelet, for the first time or again.
    pub fn start_kubelet(&self) -> Result<()> {
        self.start_kubelet_with(&json!({}))
    }

    /// The same with other values for fields of its configuration.
    pub fn start_kubelet_with(&self, other: &Value) -> Result<()> {
        let dir = self.namespace.dir();
        for folder in ["kubelet", "kubelet-pki", "pod-logs", "volume-plugins"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.lab.authority()?.certificate()},
            },
            "authorization": {"mode": "Webhook"},
            "readOnlyPort": 0,
            // A node that is cut off is known to be so within seconds.
            "nodeStatusUpdateFrequency": "1s",
            "nodeLeaseDurationSeconds": 8,
            // Works in a container and on a machine with cgroup v1 too.
            "failCgroupV1": false,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            // What it would write outside of its folders.
            "makeIPTablesUtilChains": false,
            "volumePluginDir": dir.join("volume-plugins"),
            "podLogsDir": dir.join("pod-logs"),
            "resolvConf": "",
            // A full disk of the machine is not this node's business; 100 turns the collection off.
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        });
        if let (Some(config), Some(other)) = (config.as_object_mut(), other.as_object()) {
            config.extend(other.clone());
        }
        let path = dir.join("kubelet.yaml");
        fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
        let mut command = self.command(server("kubernetes", "kubelet")?);
        command
            .arg(format!("--config={}", path.display()))
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--node-ip={}", self.address))
            .arg(format!("--root-dir={}", dir.join("kubelet").display()))
            .arg(format!("--cert-dir={}", dir.join("kubelet-pki").display()));
        *self.kubelet() = Some(self.spawn("kubelet", command)?);
        Ok(())
    }

    /// The last lines of the kubelet's log.
    #[must_use]
    pub fn kubelet_log_tail(&self, lines: usize) -> String {
        self.kubelet()
            .as_ref()
            .map_or_else(|| "(not running)".to_owned(), |p| p.log_tail(lines))
    }

    fn kubelet(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.kubelet)
    }
}

pub(crate) fn node_name(number: u8) -> String {
    format!("n{number}")
}
