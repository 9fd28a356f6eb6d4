//! A cluster with an agent on each node, as the stories need it: the agents are processes with the rights of
//! their `ServiceAccount` and of nothing else.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use imagecache_agent::api::condition::find;
use imagecache_agent::api::{ImageCache, ImageCacheStatus, NodeImageCache, NodeImageCacheStatus};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Cluster, ClusterOptions, ImageSpec, Process, wait_for};

/// The agent under test.
pub const AGENT: &str = env!("CARGO_BIN_EXE_imagecache-agent");

/// Long enough for anything on a busy machine that takes a second on an idle one.
pub const SOON: Duration = Duration::from_secs(40);

const NAMESPACE: &str = "imagecache-system";

/// A cluster and its agents.
pub struct Fleet {
    pub cluster: Cluster,
    /// The program that runs on each node.
    pub program: PathBuf,
    agents: BTreeMap<String, Process>,
}

/// Plays a story on a fleet; when it fails, says what everybody saw last.
pub async fn story(
    options: ClusterOptions,
    play: impl AsyncFnOnce(&mut Fleet) -> Result<()>,
) -> Result<()> {
    story_with(options, &[], play).await
}

/// The same with flags for the agents.
pub async fn story_with(
    options: ClusterOptions,
    flags: &[&str],
    play: impl AsyncFnOnce(&mut Fleet) -> Result<()>,
) -> Result<()> {
    let mut fleet = Fleet::of(options, flags).await?;
    let result = play(&mut fleet).await;
    if result.is_err() {
        eprintln!("{}", fleet.last_words().await);
    }
    result
}

impl Fleet {
    /// A cluster with the manifests applied, and no agents yet.
    pub async fn without_agents(options: ClusterOptions) -> Result<Self> {
        let with_kubelets = options.kubelets;
        let cluster = Cluster::start(options).await?;
        if !with_kubelets {
            for node in cluster.nodes() {
                cluster.create_node(node.name()).await?;
            }
        }
        Ok(Self {
            cluster,
            program: AGENT.into(),
            agents: BTreeMap::new(),
        })
    }

    async fn of(options: ClusterOptions, flags: &[&str]) -> Result<Self> {
        let mut fleet = Self::without_agents(options).await?;
        fleet.apply_manifests().await?;
        fleet.start_agents(flags).await?;
        Ok(fleet)
    }

    /// Starts an agent on every node, and waits until each has reported.
    pub async fn start_agents(&mut self, flags: &[&str]) -> Result<()> {
        let nodes: Vec<_> = self
            .cluster
            .nodes()
            .iter()
            .map(|node| node.name().to_owned())
            .collect();
        for node in &nodes {
            self.start_agent(node, flags).await?;
        }
        for node in &nodes {
            self.until_ready_to_work(node).await?;
        }
        Ok(())
    }

    /// Namespace, resources and rights; the agents of the stories are processes, not the Pods of the `DaemonSet`.
    pub async fn apply_manifests(&self) -> Result<()> {
        let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/");
        self.cluster.kubectl(&["apply", "-k", manifests]).await?;
        self.cluster
            .kubectl(&[
                "-n",
                NAMESPACE,
                "delete",
                "daemonset",
                "imagecache-agent",
                "--wait=false",
            ])
            .await?;
        self.cluster
            .kubectl(&[
                "wait",
                "--for=condition=Established",
                "crd",
                "--all",
                "--timeout=30s",
            ])
            .await?;
        Ok(())
    }

    /// Starts the agent of a node. Its log goes on where that of the one before ended.
    pub async fn start_agent(&mut self, node: &str, flags: &[&str]) -> Result<()> {
        let kubeconfig = self
            .cluster
            .agent_kubeconfig(NAMESPACE, "imagecache-agent", node)
            .await?;
        self.start_agent_with(node, kubeconfig.as_os_str(), flags)
    }

    /// The same with rights that are there already, so that no API server is needed.
    pub fn start_agent_with(
        &mut self,
        node: &str,
        kubeconfig: &OsStr,
        flags: &[&str],
    ) -> Result<()> {
        let machine = self.cluster.node(node)?;
        let mut command = machine.command(&self.program);
        command
            .args([
                "run",
                "--runtime-endpoint=unix:///run/containerd/containerd.sock",
            ])
            .args(flags)
            .env("NODE_NAME", node)
            .env("POD_NAMESPACE", NAMESPACE)
            // A full disk of the machine is no story's business; a flag wins.
            .env("IMAGECACHE_DISK_HIGH_PERCENT", "100")
            .env("IMAGECACHE_LOG_LEVEL", "info,imagecache_agent=debug")
            .env("KUBECONFIG", kubeconfig);
        let process = machine.spawn("agent", command)?;
        self.agents.insert(node.to_owned(), process);
        Ok(())
    }

    /// The agent's process on a node.
    pub fn agent(&self, node: &str) -> Result<&Process> {
        self.agents
            .get(node)
            .with_context(|| format!("no agent runs on {node}"))
    }

    /// Waits until the agent of a node has reported.
    pub async fn until_ready_to_work(&self, node: &str) -> Result<()> {
        wait_for(format!("a report of {node}"), SOON, async || {
            self.report(node)
                .await?
                .with_context(|| format!("{node} has not reported"))?;
            Ok(())
        })
        .await
    }

    /// Pushes small images under these names, each with content of its own.
    pub async fn push(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.cluster.registry().push(name, &image_of(name)).await?;
        }
        Ok(())
    }

    /// An image's name as the nodes pull it.
    pub fn image(&self, name: &str) -> String {
        self.cluster.registry().reference(name)
    }

    pub fn caches(&self) -> Api<ImageCache> {
        Api::namespaced(self.cluster.client(), "default")
    }

    /// Creates an `ImageCache`, or replaces its spec.
    pub async fn set(&self, name: &str, spec: Value) -> Result<ImageCache> {
        // By server-side apply: the summary may be written at the same time, and that is no conflict.
        let object = json!({
            "apiVersion": "imagecache.dev/v1alpha1", "kind": "ImageCache",
            "metadata": {"name": name}, "spec": spec,
        });
        let params = PatchParams::apply("story").force();
        Ok(self
            .caches()
            .patch(name, &params, &Patch::Apply(&object))
            .await?)
    }

    /// Sets a label of a Node, or takes it away.
    pub async fn label(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(self.cluster.client());
        let patch = json!({"metadata": {"labels": {key: value}}});
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// The status of an `ImageCache`, if it is about the newest generation.
    pub async fn status(&self, name: &str) -> Result<ImageCacheStatus> {
        let object = self.caches().get(name).await?;
        let status = object.status.context("no status yet")?;
        let newest = object.metadata.generation.unwrap_or_default();
        ensure!(
            status.observed_generation == newest,
            "the status is about generation {} of {newest}",
            status.observed_generation
        );
        Ok(status)
    }

    /// Waits until the status of an `ImageCache` is as `check` wants it.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        check: impl Fn(&ImageCacheStatus) -> Result<()>,
    ) -> Result<ImageCacheStatus> {
        wait_for(format!("{name}: {what}"), deadline, async || {
            let status = self.status(name).await?;
            check(&status).with_context(|| brief(&status))?;
            Ok(status)
        })
        .await
    }

    /// Waits until every reachable node has everything.
    pub async fn until_ready(&self, name: &str, deadline: Duration) -> Result<ImageCacheStatus> {
        self.until(name, "to be Ready", deadline, |status| {
            is(status, "Ready", "True", "AllNodesReady")
        })
        .await
    }

    /// What a node reports.
    pub async fn report(&self, node: &str) -> Result<Option<NodeImageCacheStatus>> {
        let reports = Api::<NodeImageCache>::all(self.cluster.client());
        Ok(reports
            .get_opt(node)
            .await?
            .and_then(|object| object.status))
    }

    /// Waits until an image is on a node, as its runtime says.
    pub async fn until_on(&self, node: &str, image: &str, deadline: Duration) -> Result<()> {
        let runtime = self.cluster.node(node)?.containerd();
        wait_for(format!("{image} on {node}"), deadline, async || {
            ensure!(runtime.has(image).await?, "it is not there");
            Ok(())
        })
        .await
    }

    async fn last_words(&self) -> String {
        let objects = ["get", "ic,nodeic,nodes", "-A", "-o", "wide"];
        let mut words = self
            .cluster
            .kubectl(&objects)
            .await
            .unwrap_or_else(|error| format!("{error:#}"));
        for (node, agent) in &self.agents {
            let tail = agent.log_tail(40);
            words += &["\n--- the agent of ", node, ", last:\n", &tail].concat();
        }
        words
    }
}

/// A small image that no other name has.
pub fn image_of(name: &str) -> ImageSpec {
    ImageSpec::small(name.bytes().fold(7_u64, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(byte.into())
    }))
}

/// Whether a condition is so, for this reason.
pub fn is(status: &ImageCacheStatus, kind: &str, value: &str, reason: &str) -> Result<()> {
    let Some(condition) = find(&status.conditions, kind) else {
        bail!("there is no condition {kind}");
    };
    ensure!(
        condition.status == value && condition.reason == reason,
        "{kind} is {} {}: {}",
        condition.status,
        condition.reason,
        condition.message
    );
    Ok(())
}

/// The message of a condition.
pub fn message<'a>(status: &'a ImageCacheStatus, kind: &str) -> &'a str {
    find(&status.conditions, kind).map_or("", |condition| &condition.message)
}

fn brief(status: &ImageCacheStatus) -> String {
    let nodes: Vec<_> = status
        .nodes
        .iter()
        .map(|node| {
            format!(
                "{} {:?} {}/{} {}",
                node.name, node.state, node.ready, node.total, node.message
            )
        })
        .collect();
    format!(
        "desired {}, ready {}; {nodes:?}",
        status.desired_nodes, status.ready_nodes
    )
}
