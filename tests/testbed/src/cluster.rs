//! A cluster: a control plane, a registry, and nodes with or without kubelets.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::containerd::{ContainerdOptions, Version};
use crate::image::ImageSpec;
use crate::kubernetes::{ApiRequest, ControlPlane, by_certificate, kubeconfig};
use crate::lab::Lab;
use crate::node::{Node, node_name};
use crate::registry::{Listen, Mark, Registry, RegistryOptions};
use crate::servers::server;
use crate::wait::wait_for;

/// What a cluster shall have.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// One node for each, named `n1`, `n2`, ...
    pub nodes: Vec<Version>,
    /// Whether the nodes have kubelets. Without them the test makes the Node objects ([`Cluster::create_node`]), nobody
    /// judges their readiness, and no Pod runs.
    pub kubelets: bool,
    /// The size of a small filesystem for the images of each node; without it the lab's folder is the limit.
    pub image_filesystem: Option<u64>,
}

impl ClusterOptions {
    /// An API server and nothing that runs Pods.
    #[must_use]
    pub fn control_plane() -> Self {
        Self {
            nodes: Vec::new(),
            kubelets: false,
            image_filesystem: None,
        }
    }

    /// An API server, and nodes that have a runtime but no kubelet.
    #[must_use]
    pub fn runtimes(nodes: &[Version]) -> Self {
        Self {
            nodes: nodes.to_vec(),
            kubelets: false,
            image_filesystem: None,
        }
    }

    /// Three whole nodes, one for each version of containerd: `n1` 2.4, `n2` 1.7, `n3` 1.6.
    #[must_use]
    pub fn three_nodes() -> Self {
        Self {
            nodes: Version::ALL.to_vec(),
            kubelets: true,
            image_filesystem: None,
        }
    }
}

/// What a token is good for as long as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// As long as the service account exists.
    Not,
    /// As long as the Pod exists; it names the Pod's node too.
    Pod(String),
    /// As long as the Node exists; it names it.
    Node(String),
}

/// A cluster that runs. Dropping it ends everything.
pub struct Cluster {
    nodes: Vec<Node>,
    plane: ControlPlane,
    registry: Registry,
    client: kube::Client,
    lab: Arc<Lab>,
}

impl Cluster {
    /// Starts one, and returns when the API server is ready and all nodes with kubelets are.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        let lab = Lab::new()?;
        let plane = ControlPlane::start(&lab).await?;
        // The API server takes the longest; the rest comes up meanwhile.
        let rest = async {
            let on_bridge = RegistryOptions {
                listen: Listen::Bridge,
                ..RegistryOptions::default()
            };
            let registry = Registry::start(&lab, "registry", on_bridge).await?;
            let nodes = (1_u8..)
                .zip(&options.nodes)
                .map(|(n, v)| start_node(&lab, &plane, &registry, n, *v, options.image_filesystem));
            let (nodes, ()) = tokio::try_join!(try_join_all(nodes), push_images(&registry))?;
            Ok((registry, nodes))
        };
        let (client, (registry, nodes)) = tokio::try_join!(plane.ready(options.kubelets), rest)?;
        let cluster = Self {
            nodes,
            plane,
            registry,
            client,
            lab,
        };
        if options.kubelets {
            for node in &cluster.nodes {
                node.start_kubelet()?;
            }
            cluster.wait_ready(Duration::from_mins(1)).await?;
        }
        Ok(cluster)
    }

    /// What owns all of it; for more registries.
    #[must_use]
    pub fn lab(&self) -> &Arc<Lab> {
        &self.lab
    }

    /// The registry that all nodes know, also as `docker.io`.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The registry, to stop it and start it again.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// The nodes in their order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|n| n.name() == name)
            .with_context(|| format!("no node {name}"))
    }

    /// A client with all rights.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Where nodes and Pods find the API server.
    #[must_use]
    pub fn api_server_address(&self) -> SocketAddr {
        self.plane.address()
    }

    /// Ends this process's part in it: the cluster runs on, until [`Lab::end_kept`].
    pub fn leave_running(self) -> Result<()> {
        self.lab.leave_running()?;
        // Nothing may be dropped: what is dropped ends.
        std::mem::forget(self);
        Ok(())
    }

    /// A kubeconfig file with all rights.
    #[must_use]
    pub fn kubeconfig_admin(&self) -> &Path {
        self.plane.admin()
    }

    /// Runs kubectl with all rights and returns what it prints.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, "").await
    }

    /// Applies objects in YAML.
    pub async fn apply(&self, yaml: &str) -> Result<String> {
        self.kubectl_with(&["apply", "-f", "-"], yaml).await
    }

    /// kubectl with all rights, for whoever wants to see its output as it comes.
    pub fn kubectl_command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(server("kubernetes", "kubectl")?);
        // The cache of what the server knows would go to the user's home folder.
        let cache = self.lab.dir().join("kubectl-cache");
        command
            .arg("--kubeconfig")
            .arg(self.plane.admin())
            .arg("--cache-dir")
            .arg(cache)
            .args(args);
        Ok(command)
    }

    /// Runs kubectl with something on its standard input.
    pub async fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = self.kubectl_command(args)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .context("run kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let done = child.wait_with_output().await?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(
            done.status.success(),
            "kubectl {}: {}",
            args.join(" "),
            said.trim()
        );
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// A kubeconfig file with the rights of a service account and nothing else, good for an hour.
    pub async fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
        bound: Bound,
    ) -> Result<PathBuf> {
        let (kind, object) = match bound {
            Bound::Not => (None, String::new()),
            Bound::Pod(pod) => (Some("Pod"), pod),
            Bound::Node(node) => (Some("Node"), node),
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(3600),
                bound_object_ref: kind.map(|kind| BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some(kind.to_owned()),
                    name: Some(object.clone()),
                    uid: None,
                }),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client(), namespace);
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let token = answer
            .status
            .context("a token request without an answer")?
            .token;
        let file = format!("{namespace}-{name}-{object}");
        kubeconfig(
            &self.lab,
            self.plane.address(),
            file.trim_end_matches('-'),
            &json!({"token": token}),
        )
    }

    /// A kubeconfig file as a Pod of a `DaemonSet` on `node` would have it: with the rights of the service account, and
    /// a token that is bound to a Pod there. Without kubelets that Pod is only an object; no Node object is needed.
    pub async fn agent_kubeconfig(
        &self,
        namespace: &str,
        service_account: &str,
        node: &str,
    ) -> Result<PathBuf> {
        let name = format!("{service_account}-{node}");
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": service_account,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "agent", "image": "agent"}],
            },
        });
        let pods = Api::<Pod>::namespaced(self.client(), namespace);
        if pods.get_opt(&name).await?.is_none() {
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
                .await?;
        }
        self.kubeconfig_for_service_account(namespace, service_account, Bound::Pod(name))
            .await
    }

    /// Makes a Node object that is Ready, as a kubelet would.
    pub async fn create_node(&self, name: &str) -> Result<NodeObject> {
        let node = json!({"metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": crate::architecture(),
        }}});
        let nodes = Api::<NodeObject>::all(self.client());
        nodes
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await?;
        self.set_node_ready(name, true).await
    }

    /// Sets the Ready condition of a Node object that has no kubelet.
    pub async fn set_node_ready(&self, name: &str, ready: bool) -> Result<NodeObject> {
        let (status, reason) = if ready {
            ("True", "KubeletReady")
        } else {
            ("Unknown", "NodeStatusUnknown")
        };
        let condition = json!({"type": "Ready", "status": status, "reason": reason});
        let patch = kube::api::Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let nodes = Api::<NodeObject>::all(self.client());
        Ok(nodes
            .patch_status(name, &kube::api::PatchParams::default(), &patch)
            .await?)
    }

    /// Whether the API server holds a node for Ready: `True`, `False`, `Unknown`, or empty without a word on it.
    pub async fn node_ready(&self, name: &str) -> Result<String> {
        let node = Api::<NodeObject>::all(self.client()).get(name).await?;
        let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
        Ok(conditions
            .into_iter()
            .find(|c| c.type_ == "Ready")
            .map(|c| c.status)
            .unwrap_or_default())
    }

    /// Waits until every node is Ready.
    pub async fn wait_ready(&self, deadline: Duration) -> Result<()> {
        for node in &self.nodes {
            wait_for(
                format!("node {} to be Ready", node.name()),
                deadline,
                async || {
                    let ready = self.node_ready(node.name()).await?;
                    ensure!(ready == "True", "Ready is {ready:?}");
                    Ok(())
                },
            )
            .await
            .map_err(|e| {
                e.context(format!(
                    "the kubelet said last:\n{}",
                    node.kubelet_log_tail(20)
                ))
            })?;
        }
        Ok(())
    }

    /// This moment in the API server's log of requests.
    #[must_use]
    pub fn api_mark(&self) -> Mark {
        self.plane.mark()
    }

    /// All requests that the API server has answered since a moment, watches at their start.
    #[must_use]
    pub fn api_requests(&self, since: Mark) -> Vec<ApiRequest> {
        self.plane.requests(since)
    }

    /// Stops the API server with SIGTERM.
    pub async fn stop_api_server(&self) -> Result<()> {
        match self.plane.take_api_server() {
            Some(process) => process.stop(Duration::from_secs(20)).await,
            None => Ok(()),
        }
    }

    /// Kills the API server with SIGKILL.
    pub fn kill9_api_server(&self) -> Result<()> {
        self.plane.take_api_server().map_or(Ok(()), |p| p.kill9())
    }

    /// Starts the API server again, at the same address and with all its objects, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.plane.start_api_server()?;
        self.plane.wait_ready().await.map(drop)
    }

    /// The last lines of what the control plane and the nodes have said.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let of_node = |n: &Node| {
            let (kubelet, containerd) = (n.kubelet_log_tail(lines), n.containerd().log_tail(lines));
            format!(
                "kubelet of {0}:\n{kubelet}\ncontainerd of {0}:\n{containerd}\n",
                n.name()
            )
        };
        std::iter::once(self.plane.log_tail(lines))
            .chain(self.nodes.iter().map(of_node))
            .collect()
    }
}

/// The image of every Pod's sandbox, and one that runs: `testbed/busybox:1`.
async fn push_images(registry: &Registry) -> Result<()> {
    let busybox = ImageSpec::busybox()?;
    registry.push("testbed/pause:1", &busybox).await?;
    registry.push("testbed/busybox:1", &busybox).await?;
    Ok(())
}

async fn start_node(
    lab: &Arc<Lab>,
    plane: &ControlPlane,
    registry: &Registry,
    number: u8,
    version: Version,
    image_filesystem: Option<u64>,
) -> Result<Node> {
    let name = node_name(number);
    let file = format!("kubelet-{name}");
    let identity =
        lab.authority()?
            .client(&file, &format!("system:node:{name}"), "system:nodes")?;
    let config = kubeconfig(lab, plane.address(), &file, &by_certificate(&identity)?)?;
    let sandbox_image = Some(registry.reference("testbed/pause:1"));
    let options = ContainerdOptions {
        image_filesystem,
        sandbox_image,
        ..ContainerdOptions::default()
    };
    let node = Node::start(lab, number, version, options, config).await?;
    node.containerd().knows(registry)?;
    node.containerd()
        .mirror("docker.io", &registry.url(), None)?;
    Ok(node)
}
