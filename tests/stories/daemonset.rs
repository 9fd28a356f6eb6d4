//! The `DaemonSet` of the manifests on whole nodes: agents in containers, Pods from cached images, a rolling restart.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use imagecache_agent::api::NodeImageCache;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use testbed::{
    Bound, Cluster, ClusterOptions, ImageSpec, NAMESPACE, Node, ROLLOUT_STATUS, client, wait_for,
};

use super::fleet::{Fleet, SOON, is};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/");
const ACCOUNT: &str = "imagecache-agent";

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_daemonset_serves_every_node_and_a_rolling_restart_loses_nothing() -> Result<()> {
    let fleet = Fleet::without_agents(ClusterOptions::three_nodes()).await?;
    let played = async {
        let start = Instant::now();
        fleet.cluster.roll_out().await?;
        println!("rolled out after {:.1?}", start.elapsed());
        the_manifests_apply_without_a_warning(&fleet.cluster).await?;
        pods_start_from_what_was_cached(&fleet).await?;
        the_probes_and_the_logs_tell(&fleet.cluster).await?;
        every_agent_sees_the_disk(&fleet).await?;
        an_agent_has_the_rights_it_needs_and_no_others(&fleet.cluster).await?;
        mounts_go_with_their_pods(&fleet.cluster).await?;
        let start = Instant::now();
        a_rolling_restart_loses_nothing(&fleet).await?;
        println!("restarted after {:.1?}", start.elapsed());
        an_uninstall_leaves_the_images_and_nothing_else(&fleet).await
    };
    let result = played.await;
    if result.is_err() {
        eprintln!("{}", last_words(&fleet.cluster).await);
    }
    result
}

async fn the_manifests_apply_without_a_warning(cluster: &Cluster) -> Result<()> {
    for dry_run in ["--dry-run=client", "--dry-run=server"] {
        let apply = ["apply", dry_run, "--warnings-as-errors", "-k", MANIFESTS];
        cluster.kubectl(&apply).await.context(dry_run)?;
    }
    Ok(())
}

async fn pods_start_from_what_was_cached(fleet: &Fleet) -> Result<()> {
    let cluster = &fleet.cluster;
    let app = ImageSpec::busybox()?.layer(1, 1_000_000);
    cluster.registry().push("lab/app:1", &app).await?;
    let image = fleet.image("lab/app:1");
    let api = cluster.api_mark();
    fleet
        .set("app", json!({"cacheSpec": [{"images": [image]}]}))
        .await?;
    fleet.until_ready("app", SOON).await?;

    // It was the runtimes that pulled: nobody made a Pod or a Job, and the agents asked for nothing that they have no use for.
    for request in cluster.api_requests(api) {
        let made = request.verb == "create" && request.subresource.is_empty();
        ensure!(
            !(made && matches!(request.resource.as_str(), "pods" | "jobs" | "daemonsets")),
            "{request:?}"
        );
        let of_agents = ["imagecaches", "nodeimagecaches", "nodes", "leases"];
        ensure!(
            !request.user.ends_with(":imagecache-agent")
                || of_agents.contains(&request.resource.as_str()),
            "{request:?}"
        );
    }

    let mark = cluster.registry().mark();
    for node in cluster.nodes() {
        cluster
            .apply(&pod(&format!("app-{}", node.name()), node, &image))
            .await?;
    }
    for node in cluster.nodes() {
        until_running(cluster, &format!("app-{}", node.name()))
            .await
            .with_context(|| format!("containerd {}", node.containerd().version()))?;
    }
    let asked = cluster.registry().requests(mark);
    ensure!(asked.is_empty(), "{asked:?}");
    Ok(())
}

async fn the_probes_and_the_logs_tell(cluster: &Cluster) -> Result<()> {
    for agent in agents(cluster).await? {
        let node = cluster.node(&agent.node)?;
        for (path, answer) in [("livez", "alive"), ("readyz", "ready")] {
            let mut ask = node.command("busybox");
            let url = format!("http://127.0.0.1:19847/{path}");
            ask.args(["wget", "-q", "-O", "-", &url]);
            let said = stdout(ask)?;
            ensure!(said.trim() == answer, "{path} of {}: {said:?}", agent.node);
        }
        ensure!(agent.ready, "{} is not Ready", agent.pod);
        let log = cluster
            .kubectl(&["logs", "--namespace", NAMESPACE, &agent.pod])
            .await?;
        for fact in [
            "imagecache-agent starts",
            "the runtime answers",
            "the Node is known",
            "pulled",
        ] {
            ensure!(
                log.contains(fact),
                "{} does not say {fact:?}:\n{log}",
                agent.pod
            );
        }
    }
    Ok(())
}

/// The manifests mount it where containerd says that images are.
async fn every_agent_sees_the_disk(fleet: &Fleet) -> Result<()> {
    for node in fleet.cluster.nodes() {
        let report = fleet.report(node.name()).await?.context("no report")?;
        ensure!(report.runtime.disk, "{}: {:?}", node.name(), report.runtime);
    }
    Ok(())
}

async fn an_uninstall_leaves_the_images_and_nothing_else(fleet: &Fleet) -> Result<()> {
    let cluster = &fleet.cluster;
    cluster.clean_up().await?;
    let delete = ["delete", "-k", MANIFESTS, "--ignore-not-found"];
    cluster.kubectl(&delete).await?;
    for node in cluster.nodes() {
        let runtime = node.containerd();
        for kind in ["images", "leases"] {
            let left = runtime.ctr(&[kind, "ls"]).await?;
            ensure!(!left.contains("imagecache.dev/"), "{}: {left}", node.name());
        }
        ensure!(
            runtime.has(&fleet.image("lab/app:1")).await?,
            "{}",
            node.name()
        );
    }
    Ok(())
}

/// Asked with the token that is bound to the agent's own Pod, as the one inside of it is.
async fn an_agent_has_the_rights_it_needs_and_no_others(cluster: &Cluster) -> Result<()> {
    let all = agents(cluster).await?;
    let agent = all.iter().find(|agent| agent.node == "n1");
    let pod = Bound::Pod(agent.context("no agent on n1")?.pod.clone());
    let kubeconfig = cluster
        .kubeconfig_for_service_account(NAMESPACE, ACCOUNT, pod)
        .await?;
    let client = client(&kubeconfig).await?;

    let account = format!("--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    let rights = [
        "auth",
        "can-i",
        "--list",
        "--no-headers",
        &account,
        "--namespace",
        NAMESPACE,
    ];
    let rights = cluster.kubectl(&rights).await?;
    let mut resources = rights.lines().filter_map(|line| line.split(' ').next());
    ensure!(
        !resources
            .any(|resource| ["*", "*.*", "secrets", "pods", "configmaps"].contains(&resource)),
        "{rights}"
    );
    let secrets = Api::<Secret>::all(client.clone());
    refused(secrets.list(&ListParams::default()).await, "cannot list")?;

    let reports = Api::<NodeImageCache>::all(client);
    let patch = Patch::Merge(json!({"status": {"ready": 99}}));
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    reports.patch_status("n1", &dry_run, &patch).await?;
    refused(
        reports.patch_status("n2", &dry_run, &patch).await,
        "the report of its own node only",
    )
}

/// The folder of the socket holds the mounts of all containers of a node. Those that end leave the agent's view of it.
async fn mounts_go_with_their_pods(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let agent = process_of_agent(node).await?;
        let before = mounts(agent)?;
        let image = cluster.registry().reference("lab/app:1");
        let names = ["a", "b", "c"].map(|name| format!("mounts-{name}-{}", node.name()));
        for name in &names {
            cluster.apply(&pod(name, node, &image)).await?;
        }
        for name in &names {
            until_running(cluster, name).await?;
        }
        // Otherwise this would prove nothing.
        let during = mounts(agent)?;
        ensure!(during > before, "{during} mounts as before the Pods");
        let mut delete = vec!["delete", "pod", "--wait=false"];
        delete.extend(names.iter().map(String::as_str));
        cluster.kubectl(&delete).await?;
        wait_for("the mounts to go", SOON * 2, async || {
            let after = mounts(agent)?;
            ensure!(after <= before, "{after} mounts, {before} before the Pods");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn a_rolling_restart_loses_nothing(fleet: &Fleet) -> Result<()> {
    let cluster = &fleet.cluster;
    let before = agents(cluster).await?;
    let mark = cluster.registry().mark();
    cluster
        .kubectl(&[
            "rollout",
            "restart",
            "daemonset/imagecache-agent",
            "--namespace",
            NAMESPACE,
        ])
        .await?;
    let stays_ready = async {
        loop {
            let status = fleet.status("app").await?;
            is(&status, "Ready", "True", "AllNodesReady")?;
            ensure!(
                status.ready_nodes == 3,
                "{} nodes are ready",
                status.ready_nodes
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        done = cluster.kubectl(&ROLLOUT_STATUS) => done.map(drop)?,
        broken = stays_ready => return broken,
    }
    let after = agents(cluster).await?;
    ensure!(after.len() == 3, "{} agents", after.len());
    for agent in &after {
        ensure!(agent.ready, "{} is not Ready", agent.pod);
        ensure!(
            before.iter().all(|old| old.pod != agent.pod),
            "{} was not restarted",
            agent.pod
        );
    }
    // The new ones have reported: the summary holds with what they say.
    fleet.until_ready("app", SOON).await?;
    let asked = cluster.registry().requests(mark);
    ensure!(asked.is_empty(), "{asked:?}");
    Ok(())
}

struct Agent {
    pod: String,
    node: String,
    ready: bool,
}

/// The agents' Pods, without those that are ending.
async fn agents(cluster: &Cluster) -> Result<Vec<Agent>> {
    let pods = Api::<Pod>::namespaced(cluster.client(), NAMESPACE);
    let label = ListParams::default().labels("app.kubernetes.io/name=imagecache-agent");
    let live = pods.list(&label).await?.items.into_iter();
    let agents = live.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(agents
        .map(|pod| Agent {
            ready: condition(&pod, "Ready"),
            pod: pod.metadata.name.unwrap_or_default(),
            node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
        })
        .collect())
}

fn condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

fn pod(name: &str, node: &Node, image: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node.name(),
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": image, "imagePullPolicy": "Never"}],
        },
    })
    .to_string()
}

async fn until_running(cluster: &Cluster, name: &str) -> Result<()> {
    let pods = Api::<Pod>::default_namespaced(cluster.client());
    wait_for(format!("{name} to run"), SOON * 2, async || {
        let pod = pods.get(name).await?;
        ensure!(condition(&pod, "Ready"), "{:?}", pod.status);
        Ok(())
    })
    .await
}

/// The process of a node's agent, by its number outside of the container.
async fn process_of_agent(node: &Node) -> Result<u32> {
    let runtime = node.containerd();
    let container = runtime
        .crictl(&["ps", "--quiet", "--name", "agent"])
        .await?;
    let pid = [
        "inspect",
        "-o",
        "go-template",
        "--template",
        "{{.info.pid}}",
    ];
    let pid = runtime
        .crictl(&[&pid[..], &[container.trim()]].concat())
        .await?;
    pid.trim()
        .parse()
        .with_context(|| format!("{pid:?} is no process"))
}

/// How many mounts a process sees below the folder of the runtime's socket.
fn mounts(process: u32) -> Result<usize> {
    let table = fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points
        .filter(|point| point.starts_with("/run/containerd"))
        .count())
}

fn refused<T>(answer: kube::Result<T>, why: &str) -> Result<()> {
    match answer {
        Err(kube::Error::Api(refusal)) if refusal.code == 403 => {
            ensure!(refusal.message.contains(why), "{}", refusal.message);
            Ok(())
        }
        Err(error) => bail!("not refused, but failed: {error}"),
        Ok(_) => bail!("not refused: {why}"),
    }
}

fn stdout(mut command: Command) -> Result<String> {
    let done = command.output()?;
    ensure!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

async fn last_words(cluster: &Cluster) -> String {
    let mut words = String::new();
    for look in [
        &["get", "ic,nodeic,nodes,pods", "-A", "-o", "wide"][..],
        &["events", "-A", "--types=Warning"],
        &[
            "logs",
            "--namespace",
            NAMESPACE,
            "--selector=app.kubernetes.io/name=imagecache-agent",
            "--prefix",
            "--tail=30",
        ],
    ] {
        let said = cluster.kubectl(look).await;
        words += &said.unwrap_or_else(|error| format!("{error:#}"));
        words.push('\n');
    }
    words
}
