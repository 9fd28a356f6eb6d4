//! The API server's side of the agent, against a real API server and with the rights of its service account.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
// A story is told in one piece.
#![allow(clippy::too_many_lines)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imagecache_agent::api::{NodeImageCache, NodeImageCacheStatus};
use imagecache_agent::cluster::{self, Cluster, ClusterSecrets, Scale, lease};
use imagecache_agent::decide::{Inputs, IsCurrent, Node, Timing};
use imagecache_agent::telemetry::Metrics;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use testbed::{ApiRequest, ClusterOptions, Mark, wait_for};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "imagecache-system";
const ACCOUNT: &str = "imagecache-agent";
const SOON: Duration = Duration::from_secs(10);

fn manifests(part: &str) -> String {
    format!("{}/manifests/{part}", env!("CARGO_MANIFEST_DIR"))
}

/// The agent's side of one node, without an agent: the test reads what it is told, and reports in its place.
struct Side {
    inputs: watch::Receiver<Inputs>,
    reports: watch::Sender<Option<Arc<NodeImageCacheStatus>>>,
    _scale: watch::Sender<Scale>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Side {
    async fn of(node: &str, kubeconfig: &Path, timing: &Timing) -> Self {
        let cluster = Cluster::connect(Some(kubeconfig), timing, Metrics::default())
            .await
            .unwrap();
        let (inputs, told) = watch::channel(Inputs::default());
        let (reports, reported) = watch::channel(None);
        let (scale, scaled) = watch::channel(Scale { nodes: 3 });
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (node, stop) = (node.to_owned(), stop.clone());
            async move {
                let secrets = Arc::new(ClusterSecrets::new(&cluster, "imagecache-system"));
                let (_awaited, awaited) = watch::channel(BTreeSet::new());
                let watched = (secrets, awaited);
                cluster::serve(&cluster, &node, &inputs, reported, scaled, watched, &stop).await;
            }
        });
        Self {
            inputs: told,
            reports,
            _scale: scale,
            stop,
            task,
        }
    }

    /// Reports so many of ten images as ready, and the next one as being pulled.
    fn report(&self, ready: i32) {
        self.reports.send_replace(Some(Arc::new(status(ready))));
    }

    fn node(&self) -> Option<Node> {
        self.inputs.borrow().node.known().cloned()
    }

    /// The first image of each `ImageCache`, by its name. `None`: not known.
    fn images(&self) -> Option<Vec<(String, String)>> {
        let inputs = self.inputs.borrow();
        let caches = inputs.caches.known()?;
        let image = |(_, spec): &(i64, Arc<imagecache_agent::api::ImageCacheSpec>)| {
            spec.cache_spec[0].images[0].clone()
        };
        let named = caches
            .iter()
            .map(|(name, cache)| (name.name.clone(), cache.spec.as_ref().map(image).unwrap()));
        Some(named.collect())
    }

    async fn sees<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        is: T,
        look: impl Fn(&Self) -> T,
    ) {
        wait_for(what, SOON, async || {
            let seen = look(self);
            anyhow::ensure!(seen == is, "{seen:?}");
            Ok(())
        })
        .await
        .unwrap();
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(4), self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

fn status(ready: i32) -> NodeImageCacheStatus {
    NodeImageCacheStatus {
        total: 10,
        ready,
        pulling: i32::from(ready < 10),
        ..NodeImageCacheStatus::default()
    }
}

fn cache(name: &str, image: &str) -> String {
    json!({
        "apiVersion": "imagecache.dev/v1alpha1",
        "kind": "ImageCache",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"cacheSpec": [{"images": [image]}]},
    })
    .to_string()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
    pairs.iter().map(owned).collect()
}

async fn label(bed: &testbed::Cluster, node: &str, value: &str) {
    let patch = json!({"metadata": {"labels": {"tier": value}}});
    Api::<NodeObject>::all(bed.client())
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

/// What the agents wrote and read since then, watches left out.
fn calls(bed: &testbed::Cluster, since: Mark) -> Vec<ApiRequest> {
    let mut calls = bed.api_requests(since);
    calls.retain(|call| call.agent.starts_with("imagecache-agent/") && call.verb != "watch");
    calls
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn an_agent_is_told_what_is_wanted_through_every_trouble() {
    let bed = testbed::Cluster::start(ClusterOptions::control_plane())
        .await
        .unwrap();
    bed.kubectl(&["apply", "-k", &manifests("base")])
        .await
        .unwrap();
    bed.kubectl(&["delete", "-k", &manifests("crds")])
        .await
        .unwrap();
    let config = bed
        .agent_kubeconfig(NAMESPACE, ACCOUNT, "n1")
        .await
        .unwrap();
    // Neither the resource types nor the Node are there yet, and then the API server is not.
    bed.kill9_api_server().unwrap();
    let side = Side::of("n1", &config, &Timing::default()).await;
    bed.start_api_server().await.unwrap();
    bed.kubectl(&["wait", "--for=create", "namespace/default", "--timeout=20s"])
        .await
        .unwrap();
    assert_eq!((side.images(), side.node()), (None, None));

    bed.kubectl(&["apply", "-k", &manifests("crds")])
        .await
        .unwrap();
    side.sees("that nothing is wanted", Some(pairs(&[])), Side::images)
        .await;
    let uid = bed.create_node("n1").await.unwrap().metadata.uid.unwrap();
    side.sees("the Node", Some(uid), |side| {
        side.node().map(|node| node.uid)
    })
    .await;
    bed.apply(&cache("a", "one")).await.unwrap();
    side.sees("an ImageCache", Some(pairs(&[("a", "one")])), Side::images)
        .await;
    bed.apply(&cache("a", "two")).await.unwrap();
    bed.apply(&cache("b", "three")).await.unwrap();
    side.sees(
        "edits",
        Some(pairs(&[("a", "two"), ("b", "three")])),
        Side::images,
    )
    .await;

    // A label is news at once. A heartbeat and a status are none.
    let mut inputs = side.inputs.clone();
    inputs.mark_unchanged();
    let since = Instant::now();
    label(&bed, "n1", "backend").await;
    inputs.changed().await.unwrap();
    println!("a label is known after {:?}", since.elapsed());
    inputs.mark_unchanged();
    bed.set_node_ready("n1", false).await.unwrap();
    let patch = json!({"status": {"readyNodes": 3}});
    bed.kubectl(&[
        "patch",
        "ic",
        "a",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch.to_string(),
    ])
    .await
    .unwrap();
    bed.apply(&cache("c", "four")).await.unwrap();
    inputs.changed().await.unwrap();
    assert_eq!(
        inputs.borrow().caches.known().unwrap().len(),
        3,
        "only the new object is news"
    );
    assert!(!inputs.has_changed().unwrap());

    // A spec with a field of a later version is not acted on: what it asked for before stays, and the others go on.
    let newer = json!([{
        "op": "add",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/turnedRound",
        "value": {"type": "boolean"},
    }]);
    let crd = "crd/imagecaches.imagecache.dev";
    bed.kubectl(&["patch", crd, "--type=json", "-p", &newer.to_string()])
        .await
        .unwrap();
    wait_for("the API server to take the new field", SOON, async || {
        let edit = json!({"spec": {"turnedRound": true}});
        bed.kubectl(&["patch", "ic", "c", "--type=merge", "-p", &edit.to_string()])
            .await?;
        let inputs = side.inputs.borrow();
        let caches = inputs.caches.known().unwrap();
        let cache = caches.values().next_back().unwrap();
        anyhow::ensure!(cache.unreadable.is_some(), "{cache:?}");
        Ok(())
    })
    .await
    .unwrap();
    let edit = json!({"spec": {"cacheSpec": [{"images": ["other"]}]}}).to_string();
    bed.kubectl(&["patch", "ic", "c", "--type=merge", "-p", &edit])
        .await
        .unwrap();
    bed.apply(&cache("a", "six")).await.unwrap();
    let images = pairs(&[("a", "six"), ("b", "three"), ("c", "four")]);
    side.sees("the readable specs", Some(images), Side::images)
        .await;

    // The API server away: what is known stays, and what happened meanwhile is known afterwards.
    let known = side.inputs.borrow().clone();
    bed.kill9_api_server().unwrap();
    let is_current = |side: &Side| side.inputs.borrow().is_current;
    side.sees("that nobody tells", IsCurrent::default(), is_current)
        .await;
    bed.start_api_server().await.unwrap();
    let after = side.inputs.borrow().clone();
    assert_eq!((&after.caches, &after.node), (&known.caches, &known.node));
    bed.kubectl(&["delete", "ic", "c"]).await.unwrap();
    side.sees(
        "a deletion",
        Some(pairs(&[("a", "six"), ("b", "three")])),
        Side::images,
    )
    .await;
    let both = IsCurrent {
        caches: true,
        node: true,
    };
    side.sees("that it is told again", both, is_current).await;

    // The Node created anew is another one.
    let nodes = Api::<NodeObject>::all(bed.client());
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    side.sees("no Node", None, Side::node).await;
    let uid = bed.create_node("n1").await.unwrap().metadata.uid.unwrap();
    side.sees("another Node", Some(uid), |side| {
        side.node().map(|node| node.uid)
    })
    .await;

    // The resource types deleted: their objects go first, so nothing is wanted. Applied again, they are watched again.
    bed.kubectl(&["delete", "-k", &manifests("crds")])
        .await
        .unwrap();
    side.sees("nothing", Some(pairs(&[])), Side::images).await;
    bed.kubectl(&["apply", "-k", &manifests("crds")])
        .await
        .unwrap();
    bed.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/imagecaches.imagecache.dev",
    ])
    .await
    .unwrap();
    bed.apply(&cache("d", "five")).await.unwrap();
    let twice = 4 * SOON;
    wait_for("the watch of the new resource type", twice, async || {
        anyhow::ensure!(
            side.images() == Some(pairs(&[("d", "five")])),
            "{:?}",
            side.images()
        );
        Ok(())
    })
    .await
    .unwrap();
    side.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn a_report_costs_one_request_and_survives_what_is_done_to_its_object() {
    let bed = testbed::Cluster::start(ClusterOptions::control_plane())
        .await
        .unwrap();
    bed.kubectl(&["apply", "-k", &manifests("base")])
        .await
        .unwrap();
    let config = bed
        .agent_kubeconfig(NAMESPACE, ACCOUNT, "n1")
        .await
        .unwrap();
    let uid = bed.create_node("n1").await.unwrap().metadata.uid.unwrap();
    let timing = Timing {
        own_object: Duration::from_secs(2),
        own_object_made: Duration::from_millis(500),
        ..Timing::default()
    };
    let reports = Api::<NodeImageCache>::all(bed.client());
    let reported = async |what: &str, owner: &str, ready: i32| {
        wait_for(what, SOON, async || {
            let object = reports.get("n1").await?;
            let owners = object.metadata.owner_references.unwrap_or_default();
            let owners: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
            anyhow::ensure!(owners == [owner], "owned by {owners:?}");
            let seen = object.status.map(|status| status.ready);
            anyhow::ensure!(seen == Some(ready), "{seen:?} are ready");
            Ok(())
        })
        .await
        .unwrap();
    };

    let mark = bed.api_mark();
    let side = Side::of("n1", &config, &Timing::default()).await;
    side.sees("the Node", true, |side| side.node().is_some())
        .await;
    side.report(0);
    reported("the first report", &uid, 0).await;
    side.report(10);
    let since = Instant::now();
    reported("the last report", &uid, 10).await;
    println!(
        "the last report of a burst is there after {:?}",
        since.elapsed()
    );
    // The API server writes its log a little after it has answered.
    let first = wait_for("its log", SOON, async || {
        let calls = calls(&bed, mark);
        anyhow::ensure!(calls.len() >= 4, "{calls:?}");
        Ok(calls)
    })
    .await
    .unwrap();
    let verbs: Vec<(&str, &str)> = first
        .iter()
        .map(|call| (call.verb.as_str(), call.subresource.as_str()))
        .collect();
    let (get, make, apply) = (("get", ""), ("patch", ""), ("patch", "status"));
    assert_eq!(verbs, [get, make, apply, apply]);

    // A new process goes on from what the last one reported, and writes nothing that is there already.
    side.end().await;
    let mark = bed.api_mark();
    let side = Side::of("n1", &config, &timing).await;
    side.sees("the Node", true, |side| side.node().is_some())
        .await;
    let before = side.inputs.borrow().reported.clone();
    assert_eq!(before.as_deref(), Some(&status(10)));
    side.report(10);
    wait_for("a look at its own object", SOON, async || {
        let gets = calls(&bed, mark)
            .iter()
            .filter(|call| call.verb == "get")
            .count();
        anyhow::ensure!(gets >= 2, "{gets} looks");
        Ok(())
    })
    .await
    .unwrap();
    let writes: Vec<ApiRequest> = calls(&bed, mark)
        .into_iter()
        .filter(|call| call.verb != "get")
        .collect();
    assert_eq!(writes, []);

    // Deleted by hand: it is noticed by a look, or by the next write.
    reports
        .delete("n1", &DeleteParams::default())
        .await
        .unwrap();
    reported("the deleted report", &uid, 10).await;
    reports
        .delete("n1", &DeleteParams::default())
        .await
        .unwrap();
    side.report(9);
    reported("the deleted report", &uid, 9).await;

    // Somebody else wrote its status, or took its owner away: a look sets it right.
    for patch in [
        json!({"status": {"ready": 99}}),
        json!({"metadata": {"ownerReferences": []}}),
    ] {
        let (patch, params) = (Patch::Merge(patch), PatchParams::default());
        reports.patch_status("n1", &params, &patch).await.unwrap();
        reports.patch("n1", &params, &patch).await.unwrap();
        reported("the edited report", &uid, 9).await;
    }

    // The Node created anew owns it, and the deletion of the old one takes only what it owned.
    let nodes = Api::<NodeObject>::all(bed.client());
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    let uid = bed.create_node("n1").await.unwrap().metadata.uid.unwrap();
    reported("the new Node's report", &uid, 9).await;
    side.report(8);
    reported("another report", &uid, 8).await;
    wait_for("the garbage collector to be done", SOON, async || {
        let gets = calls(&bed, mark)
            .iter()
            .filter(|call| call.verb == "get")
            .count();
        anyhow::ensure!(gets >= 6, "{gets} looks");
        Ok(())
    })
    .await
    .unwrap();
    reported("it is still there", &uid, 8).await;

    // A Node that is gone: its report goes with it, as soon as the garbage collector has found the new resource type.
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    wait_for("the report to go", 6 * SOON, async || {
        anyhow::ensure!(reports.get_opt("n1").await?.is_none(), "it is there");
        Ok(())
    })
    .await
    .unwrap();
    side.report(7);

    // The API server away: the newest report is written when it is back.
    let uid = bed.create_node("n1").await.unwrap().metadata.uid.unwrap();
    reported("the report of a third Node", &uid, 7).await;
    bed.kill9_api_server().unwrap();
    for ready in 0..=10 {
        side.report(ready);
    }
    bed.start_api_server().await.unwrap();
    reported("the newest report", &uid, 10).await;
    // Another node's object is none of its business.
    let other = Side::of("n2", &config, &timing).await;
    bed.create_node("n2").await.unwrap();
    let mark = bed.api_mark();
    other.report(1);
    wait_for("a refusal", SOON, async || {
        let codes: Vec<u16> = calls(&bed, mark).iter().map(|call| call.code).collect();
        anyhow::ensure!(codes.contains(&403), "{codes:?}");
        Ok(())
    })
    .await
    .unwrap();
    other.end().await;
    side.end().await;
}

/// One process of an election.
struct Candidate {
    elected: watch::Receiver<Option<CancellationToken>>,
    scale: watch::Receiver<Scale>,
    nodes: watch::Sender<Option<u32>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Candidate {
    async fn of(kubeconfig: &Path, node: &str) -> Self {
        let timing = Timing::default();
        let cluster = Cluster::connect(Some(kubeconfig), &timing, Metrics::default())
            .await
            .unwrap();
        let (elected, elected_seen) = watch::channel(None);
        // As in a cluster whose size is known: until then nobody is in a hurry.
        let (scale, scale_seen) = watch::channel(Scale { nodes: 3 });
        let (nodes, nodes_seen) = watch::channel(None);
        let stop = CancellationToken::new();
        let seat = lease::Seat {
            nodes: nodes_seen,
            scale,
            elected,
        };
        let (identity, stopped) = (lease::identity(node), stop.clone());
        let task = tokio::spawn(async move {
            lease::run(&cluster, NAMESPACE, identity, seat, &stopped).await;
        });
        Self {
            elected: elected_seen,
            scale: scale_seen,
            nodes,
            stop,
            task,
        }
    }

    fn is_elected(&self) -> bool {
        !self.task.is_finished() && self.elected.borrow().is_some()
    }
}

async fn elected(candidates: &[Candidate], but: Option<usize>, within: Duration) -> usize {
    let started = Instant::now();
    let who = wait_for("somebody to be elected", within, async || {
        let elected: Vec<usize> = (0..candidates.len())
            .filter(|who| Some(*who) != but && candidates[*who].is_elected())
            .collect();
        anyhow::ensure!(elected.len() == 1, "{elected:?} are elected");
        Ok(elected[0])
    })
    .await
    .unwrap();
    println!("elected after {:?}", started.elapsed());
    who
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn one_agent_is_elected_and_followed_when_it_stops_or_is_killed() {
    let bed = testbed::Cluster::start(ClusterOptions::control_plane())
        .await
        .unwrap();
    bed.kubectl(&["apply", "-k", &manifests("base")])
        .await
        .unwrap();
    let mut candidates = Vec::new();
    for node in ["n1", "n2", "n3"] {
        let config = bed
            .agent_kubeconfig(NAMESPACE, ACCOUNT, node)
            .await
            .unwrap();
        candidates.push(Candidate::of(&config, node).await);
    }
    let first = elected(&candidates, None, SOON).await;
    candidates[first].nodes.send_replace(Some(7));
    for candidate in &mut candidates {
        let told = candidate.scale.wait_for(|scale| scale.nodes == 7);
        tokio::time::timeout(SOON, told).await.unwrap().unwrap();
    }
    let leases = Api::<Lease>::namespaced(bed.client(), NAMESPACE);
    let spec = leases.get(lease::NAME).await.unwrap().spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(15));
    let holder = spec.holder_identity.unwrap();
    assert!(holder.starts_with(&format!("n{}_", first + 1)), "{holder}");

    candidates[first].stop.cancel();
    let second = elected(&candidates, Some(first), Duration::from_secs(5)).await;
    candidates[second].task.abort();
    let third = elected(&candidates, Some(second), Duration::from_secs(30)).await;
    assert!(third != first && third != second);

    // An edit by hand costs no election, and a deleted Lease comes back.
    let patch = json!({"metadata": {"labels": {"edited": "by-hand"}}});
    leases
        .patch(lease::NAME, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    leases
        .delete(lease::NAME, &DeleteParams::default())
        .await
        .unwrap();
    wait_for("the Lease to come back", SOON, async || {
        Ok(leases.get(lease::NAME).await?)
    })
    .await
    .unwrap();
    assert!(candidates[third].is_elected());
    candidates[third].stop.cancel();
    wait_for(
        "the Lease to be nobody's",
        Duration::from_secs(4),
        async || {
            let holder = leases
                .get(lease::NAME)
                .await?
                .spec
                .and_then(|spec| spec.holder_identity);
            anyhow::ensure!(holder.is_none(), "{holder:?}");
            Ok(())
        },
    )
    .await
    .unwrap();
}
