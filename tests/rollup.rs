//! The summaries that an elected agent writes, on a real API server, with the rights of its service account. The tests play the nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use imagecache_agent::api::condition::find;
use imagecache_agent::api::image_cache::NodeState;
use imagecache_agent::api::node_image_cache::{CacheReport, Failure, ImageReport, ListReport};
use imagecache_agent::api::{
    ImageCache, ImageCacheStatus, ImageState, NodeImageCacheStatus, Reason,
};
use imagecache_agent::cluster::{Cluster, inputs, own};
use imagecache_agent::decide::{Inputs, Timing};
use imagecache_agent::rollup::{self, FIELD_MANAGER, Seat};
use imagecache_agent::telemetry::Metrics;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::{Bound, ClusterOptions, Mark, wait_for};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(20);

/// A control plane without nodes, and one agent that can be elected.
struct Bed {
    cluster: testbed::Cluster,
    /// With all rights.
    admin: Cluster,
    elected: watch::Sender<Option<CancellationToken>>,
    counted: watch::Receiver<Option<u32>>,
    stop: CancellationToken,
}

impl Bed {
    async fn start() -> Self {
        Self::start_with(&Timing::default()).await
    }

    async fn start_with(timing: &Timing) -> Self {
        let cluster = testbed::Cluster::start(ClusterOptions::control_plane())
            .await
            .unwrap();
        let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
        for file in [
            "crds/imagecaches.yaml",
            "crds/nodeimagecaches.yaml",
            "base/namespace.yaml",
            "base/rbac.yaml",
        ] {
            let file = format!("{manifests}/{file}");
            cluster.kubectl(&["apply", "-f", &file]).await.unwrap();
        }
        let crds = ["wait", "--for=condition=Established", "crd", "--all"];
        cluster.kubectl(&crds).await.unwrap();
        let account = "imagecache-agent";
        let config = cluster
            .kubeconfig_for_service_account("imagecache-system", account, Bound::Not)
            .await
            .unwrap();
        let connect = async |config| {
            Cluster::connect(Some(config), timing, Metrics::default())
                .await
                .unwrap()
        };
        let agent = connect(config.as_path()).await;
        let admin = connect(cluster.kubeconfig_admin()).await;
        let (elected, seat_elected) = watch::channel(None);
        let (nodes, counted) = watch::channel(None);
        let stop = CancellationToken::new();
        let (inputs, seat_inputs) = watch::channel(Inputs::default());
        tokio::spawn({
            let (agent, stop) = (agent.clone(), stop.clone());
            async move { inputs::watch_caches(&agent, &inputs, &stop).await }
        });
        tokio::spawn({
            let (agent, stop) = (agent.clone(), stop.clone());
            let seat = Seat {
                inputs: seat_inputs,
                elected: seat_elected,
                nodes,
            };
            async move { rollup::run(&agent, seat, &stop).await }
        });
        Self {
            cluster,
            admin,
            elected,
            counted,
            stop,
        }
    }

    fn elect(&self) {
        self.elected.send_replace(Some(CancellationToken::new()));
    }

    fn depose(&self) {
        if let Some(token) = self.elected.send_replace(None) {
            token.cancel();
        }
    }

    fn caches(&self) -> Api<ImageCache> {
        Api::namespaced(self.cluster.client(), "default")
    }

    async fn cache(&self, name: &str, lists: serde_json::Value) -> ImageCache {
        let object = json!({
            "apiVersion": "imagecache.dev/v1alpha1", "kind": "ImageCache",
            "metadata": {"name": name}, "spec": {"cacheSpec": lists},
        });
        let params = PatchParams::apply("test").force();
        self.caches()
            .patch(name, &params, &Patch::Apply(object))
            .await
            .unwrap()
    }

    async fn label(&self, node: &str, labels: serde_json::Value) {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let nodes = Api::<Node>::all(self.cluster.client());
        nodes
            .patch(node, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// What the agent of this node reports: for each list its images, and which of them it has.
    async fn report(
        &self,
        node: &Node,
        cache: &ImageCache,
        lists: &[(i32, i32, i32)],
        images: Vec<ImageReport>,
    ) {
        let failed = images
            .iter()
            .filter(|image| image.state == ImageState::Failed);
        let failures: Vec<_> = failed
            .map(|image| Failure {
                image: image.image.clone(),
                reason: image.reason.unwrap(),
                message: image.message.clone().unwrap_or_default(),
            })
            .collect();
        let state = match () {
            () if !failures.is_empty() => NodeState::Failed,
            () if lists.iter().all(|list| list.1 == list.2) => NodeState::Ready,
            () => NodeState::Pulling,
        };
        let list = |&(index, ready, total)| ListReport {
            index,
            ready,
            total,
        };
        let status = NodeImageCacheStatus {
            caches: vec![CacheReport {
                done_bytes: 0,
                total_bytes: 0,
                refresh: None,
                namespace: "default".to_owned(),
                name: cache.name_any(),
                uid: cache.uid().unwrap(),
                observed_generation: cache.metadata.generation.unwrap(),
                state,
                lists: lists.iter().map(list).collect(),
                failures,
            }],
            images,
            ..NodeImageCacheStatus::default()
        };
        let name = node.name_any();
        own::make(&self.admin, &name, &node.uid().unwrap())
            .await
            .unwrap();
        own::apply(&self.admin, &name, &status).await.unwrap();
    }

    async fn status(&self, name: &str) -> ImageCacheStatus {
        self.caches()
            .get_status(name)
            .await
            .unwrap()
            .status
            .unwrap_or_default()
    }

    /// Waits until the status is as `check` wants it.
    async fn until(
        &self,
        name: &str,
        check: impl Fn(&ImageCacheStatus) -> bool,
    ) -> ImageCacheStatus {
        let seen = wait_for(format!("the summary of {name}"), SOON, async || {
            let status = self.status(name).await;
            ensure!(check(&status), "{status:#?}");
            Ok(status)
        });
        seen.await.unwrap()
    }

    async fn until_ready(&self, name: &str, status: &str, reason: &str) -> ImageCacheStatus {
        self.until(name, |seen| {
            find(&seen.conditions, "Ready")
                .is_some_and(|ready| ready.status == status && ready.reason == reason)
        })
        .await
    }

    /// The answers to writes of summaries since then, by object.
    fn writes(&self, since: Mark) -> BTreeMap<String, Vec<u16>> {
        let mut writes = BTreeMap::<_, Vec<_>>::new();
        for request in self.cluster.api_requests(since) {
            if request.resource == "imagecaches"
                && request.subresource == "status"
                && request.verb != "get"
            {
                assert_eq!(request.verb, "patch");
                writes.entry(request.name).or_default().push(request.code);
            }
        }
        writes
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn image(name: &str, state: ImageState, digest: Option<&str>) -> ImageReport {
    ImageReport {
        image: name.to_owned(),
        state,
        digest: digest.map(str::to_owned),
        bytes: None,
        origin: None,
        removal_policy: None,
        pinned: false,
        evictions: None,
        attempts: None,
        next_attempt: None,
        progress: None,
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
        reason: (state == ImageState::Failed).then_some(Reason::NotFound),
        message: (state == ImageState::Failed).then(|| "no such tag".to_owned()),
    }
}

fn has(name: &str) -> Vec<ImageReport> {
    vec![image(name, ImageState::Ready, Some("sha256:1"))]
}

const A: &str = "r.example/a:1";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn a_pull_on_three_nodes_is_summed_up_in_few_writes() -> Result<()> {
    let bed = Bed::start().await;
    bed.elect();
    let mut nodes = Vec::new();
    for name in ["n1", "n2", "n3"] {
        nodes.push(bed.cluster.create_node(name).await?);
    }
    let mut counted = bed.counted.clone();
    counted.wait_for(|nodes| *nodes == Some(3)).await?;

    let mark = bed.cluster.api_mark();
    let cache = bed.cache("web", json!([{"images": [A]}])).await;
    let created = Instant::now();
    for node in &nodes {
        bed.report(
            node,
            &cache,
            &[(0, 0, 1)],
            vec![image(A, ImageState::Pulling, None)],
        )
        .await;
    }
    bed.until("web", |status| status.pulling_nodes == 3).await;
    println!("first summary {:?} after the ImageCache", created.elapsed());
    for node in &nodes {
        bed.report(node, &cache, &[(0, 1, 1)], has(A)).await;
    }
    let reported = Instant::now();
    let status = bed.until_ready("web", "True", "AllNodesReady").await;
    println!("Ready {:?} after the last report", reported.elapsed());
    ensure!(reported.elapsed() < Duration::from_secs(1), "late");
    assert_eq!(
        (
            status.desired_nodes,
            status.ready_nodes,
            status.observed_generation
        ),
        (3, 3, 1)
    );
    assert_eq!(status.images[0].digests, ["sha256:1"]);
    let said: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| condition.reason.as_str())
        .collect();
    assert_eq!(said, ["AllNodesReady", "Complete", "Healthy"]);
    let args = ["wait", "--for=condition=Ready", "ic/web", "--timeout=5s"];
    bed.cluster.kubectl(&args).await?;

    // Another ImageCache is written, one that nobody has to do anything for, and nothing else.
    bed.cache(
        "later",
        json!([{"images": [A], "nodeSelector": {"tier": "none"}}]),
    )
    .await;
    let later = bed.until_ready("later", "False", "NoMatchingNodes").await;
    assert_eq!(later.lists[0].matched_nodes, 0);
    let writes = bed.writes(mark);
    println!("writes: {writes:?}");
    assert!((1..=3).contains(&writes["web"].len()), "{writes:?}");
    assert_eq!(writes["later"], [200]);
    let managers = bed.caches().get("web").await?.managed_fields().to_vec();
    assert!(
        managers
            .iter()
            .any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn what_happens_to_nodes_is_in_the_summary_at_once() -> Result<()> {
    let bed = Bed::start().await;
    bed.elect();
    let n1 = bed.cluster.create_node("n1").await?;
    let n2 = bed.cluster.create_node("n2").await?;
    let lists = json!([{"images": [A]}, {"images": ["r.example/b:1"], "nodeSelector": {"tier": "backend"}}]);
    let cache = bed.cache("web", lists).await;
    for node in [&n1, &n2] {
        bed.report(node, &cache, &[(0, 1, 1)], has(A)).await;
    }
    let status = bed.until_ready("web", "True", "AllNodesReady").await;
    let message = &find(&status.conditions, "Ready").unwrap().message;
    assert_eq!(
        message,
        "2 of 2 nodes have all of their images; list cacheSpec[1] (tier=backend) matches no node"
    );

    // A label: the node is not ready for its new list before it says so.
    let labelled = Instant::now();
    bed.label("n2", json!({"tier": "backend"})).await;
    let status = bed.until_ready("web", "False", "NodesNotReady").await;
    println!("not Ready {:?} after the label", labelled.elapsed());
    assert_eq!(
        (
            status.ready_nodes,
            status.pending_nodes,
            status.lists[1].matched_nodes
        ),
        (1, 1, 1)
    );
    let failed = vec![
        image(A, ImageState::Ready, None),
        image("r.example/b:1", ImageState::Failed, None),
    ];
    bed.report(&n2, &cache, &[(0, 1, 1), (1, 0, 1)], failed)
        .await;
    let status = bed.until("web", |status| status.failed_nodes == 1).await;
    let degraded = find(&status.conditions, "Degraded").unwrap();
    assert_eq!(
        degraded.message,
        "r.example/b:1 failed on n2: NotFound: no such tag"
    );
    // The label goes: the list that it left counts it no more.
    bed.label("n2", json!({"tier": null})).await;
    bed.until("web", |status| {
        status.lists[1].matched_nodes == 0 && status.failed_nodes == 0
    })
    .await;
    bed.report(&n2, &cache, &[(0, 1, 1)], has(A)).await;
    bed.until_ready("web", "True", "AllNodesReady").await;

    // A node that is cut off before it reports a new generation blocks nobody.
    let cache = bed
        .cache("web", json!([{"images": ["r.example/c:1"]}]))
        .await;
    bed.cluster.set_node_ready("n2", false).await?;
    bed.report(&n1, &cache, &[(0, 1, 1)], has("r.example/c:1"))
        .await;
    let status = bed
        .until("web", |status| {
            status.observed_generation == 2 && status.ready_nodes == 1
        })
        .await;
    assert_eq!(find(&status.conditions, "Ready").unwrap().status, "True");
    assert_eq!(status.unreachable_nodes, 1);
    let degraded = find(&status.conditions, "Degraded").unwrap();
    assert_eq!(
        (degraded.reason.as_str(), status.nodes[1].name.as_str()),
        ("NodesUnreachable", "n2")
    );
    bed.cluster
        .kubectl(&["wait", "--for=condition=Ready", "ic/web", "--timeout=5s"])
        .await?;
    // It comes back.
    bed.cluster.set_node_ready("n2", true).await?;
    bed.report(&n2, &cache, &[(0, 1, 1)], has("r.example/c:1"))
        .await;
    bed.until("web", |status| status.ready_nodes == 2).await;

    // A Node is deleted, and created anew while its old report is still there.
    let nodes = Api::<Node>::all(bed.cluster.client());
    nodes.delete("n2", &DeleteParams::default()).await?;
    bed.until("web", |status| status.desired_nodes == 1).await;
    bed.cluster.create_node("n2").await?;
    let status = bed.until_ready("web", "False", "NodesNotReady").await;
    assert_eq!((status.ready_nodes, status.pending_nodes), (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn a_new_leader_goes_on_where_the_last_one_stopped() -> Result<()> {
    let bed = Bed::start().await;
    let node = bed.cluster.create_node("n1").await?;
    let cache = bed.cache("web", json!([{"images": [A]}])).await;
    bed.report(&node, &cache, &[(0, 1, 1)], has(A)).await;
    let mark = bed.cluster.api_mark();
    bed.elect();
    let first = bed.until_ready("web", "True", "AllNodesReady").await;
    bed.depose();
    let mut counted = bed.counted.clone();
    counted.wait_for(Option::is_none).await?;

    // While nobody is elected nothing is written; the next one writes what is new and nothing else.
    let other = bed
        .cache("other", json!([{"images": ["r.example/other:1"]}]))
        .await;
    bed.elect();
    let pending = bed.until_ready("other", "False", "NodesNotReady").await;
    assert_eq!(pending.pending_nodes, 1);
    assert_eq!(bed.writes(mark)["web"].len(), 1);
    assert_eq!(bed.status("web").await, first);

    // An object that is deleted and created anew: the new one has a summary of its own, whatever was under way.
    bed.caches()
        .delete("other", &DeleteParams::default())
        .await?;
    let anew = bed
        .cache("other", json!([{"images": ["r.example/anew:1"]}]))
        .await;
    assert_ne!(anew.uid(), other.uid());
    let status = bed
        .until("other", |status| {
            status
                .images
                .first()
                .is_some_and(|image| image.image == "r.example/anew:1")
        })
        .await;
    assert_eq!((status.observed_generation, status.pending_nodes), (1, 1));

    // An API server that is away for a moment: the summary catches up.
    bed.cluster.stop_api_server().await?;
    bed.cluster.start_api_server().await?;
    let images = vec![image("r.example/anew:1", ImageState::Ready, None)];
    bed.report(&node, &anew, &[(0, 1, 1)], images).await;
    bed.until_ready("other", "True", "AllNodesReady").await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn a_status_that_somebody_edits_by_hand_is_set_right() -> Result<()> {
    let bed = Bed::start_with(&Timing {
        own_object: Duration::from_secs(2),
        ..Timing::default()
    })
    .await;
    bed.elect();
    let node = bed.cluster.create_node("n1").await?;
    let cache = bed.cache("web", json!([{"images": [A]}])).await;
    let failed = vec![image(A, ImageState::Failed, None)];
    bed.report(&node, &cache, &[(0, 0, 1)], failed).await;
    let right = bed.until("web", |status| status.failed_nodes == 1).await;
    for lie in [
        json!({"readyNodes": 99, "conditions": [{
            "type": "Ready", "status": "True", "reason": "Hand", "message": "by hand", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}),
        json!(null),
    ] {
        let lie = json!({"status": lie}).to_string();
        let patch = [
            "patch",
            "ic",
            "web",
            "--subresource=status",
            "--type=merge",
            "-p",
            &lie,
        ];
        bed.cluster.kubectl(&patch).await?;
        assert_ne!(bed.status("web").await, right);
        let again = bed.until_ready("web", "False", "NodesNotReady").await;
        assert_eq!(
            (again.ready_nodes, again.failed_nodes, &again.nodes),
            (0, 1, &right.nodes)
        );
    }
    Ok(())
}
