//! Nodes with a small disk: pulls wait while there is no room, lose nothing by that, and go on when there is.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::condition::find;
use imagecache_agent::api::node_image_cache::ImageReport;
use imagecache_agent::api::{ImageState, Reason};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Node, ROOT, Version, wait_for};

use super::fleet::{Fleet, SOON, story_with};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const MB: u64 = 1_000_000;
const GUARD: &str = "--disk-high-percent=80";

/// Pulls stop at 160 MB, and go on at 156 MB.
fn small_disks() -> ClusterOptions {
    ClusterOptions {
        image_filesystem: Some(200 * MB),
        ..ClusterOptions::runtimes(&Version::ALL)
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_node_that_is_nearly_full_starts_nothing_until_there_is_room() -> Result<()> {
    story_with(small_disks(), &[GUARD], async |fleet| {
        fleet.push(&["lab/there:1", "lab/new:1"]).await?;
        let [there, new] = ["lab/there:1", "lab/new:1"].map(|name| fleet.image(name));
        fleet.set("there", cache(&[&there])).await?;
        fleet.until_ready("there", SOON).await?;
        everywhere(fleet, |node| fill(node, 170 * MB))?;
        a_look_is_over().await;

        let mark = fleet.cluster.registry().mark();
        fleet.set("new", cache(&[&new])).await?;
        for node in NODES {
            let image = until_it_waits(fleet, node, &new, "is used to 8").await?;
            ensure!(image.attempts.is_none(), "{image:?}");
            let said = image.message.unwrap_or_default();
            ensure!(
                said.ends_with("; pulls go on at 78 % (--disk-high-percent=80)"),
                "{said}"
            );
            let report = fleet.report(node).await?.context("no report")?;
            ensure!(report.runtime.disk, "{:?}", report.runtime);
            let condition = find(&report.conditions, "DiskPressure").context("no condition")?;
            ensure!(
                (condition.status.as_str(), condition.reason.as_str()) == ("True", "AboveLimit"),
                "{condition:?}"
            );
            ensure!(metric(fleet.cluster.node(node)?)? == "1", "{node}");
        }
        let api = fleet.cluster.api_mark();
        // Nothing moves, so nothing is said, and nobody is asked.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let asked = fleet.cluster.registry().requests(mark);
        ensure!(asked.is_empty(), "{asked:?}");
        let said: Vec<_> = fleet
            .cluster
            .api_requests(api)
            .into_iter()
            .filter(|request| request.resource == "nodeimagecaches" && request.verb == "patch")
            .collect();
        ensure!(said.is_empty(), "{said:?}");
        // Nothing that is there is affected.
        fleet.until_ready("there", SOON).await?;

        everywhere(fleet, |node| fill(node, 100 * MB))?;
        fleet.until_ready("new", SOON).await?;
        for node in NODES {
            wait_for(format!("{node} to have room"), SOON, async || {
                let report = fleet.report(node).await?.context("no report")?;
                let condition = find(&report.conditions, "DiskPressure").context("no condition")?;
                ensure!(condition.status == "False", "{condition:?}");
                ensure!(metric(fleet.cluster.node(node)?)? == "0");
                Ok(())
            })
            .await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_that_would_not_fit_is_stopped_early_and_goes_on_when_there_is_room() -> Result<()>
{
    story_with(small_disks(), &[GUARD], async |fleet| {
        let registry = fleet.cluster.registry();
        // With three times that it would be beyond the limit.
        let large = ImageSpec::scratch()
            .layer(1, 30_000_000)
            .layer(2, 30_000_000);
        registry.push("lab/large:1", &large).await?;
        fleet.push(&["lab/small:1"]).await?;
        let proxy = throttled(fleet).await?;
        let (large, small) = (proxy.reference("lab/large:1"), fleet.image("lab/small:1"));
        fleet.set("both", cache(&[&large, &small])).await?;
        for node in NODES {
            let image = until_it_waits(fleet, node, &large, "about 3 times its 57.2 MiB").await?;
            ensure!(image.attempts.is_none(), "{image:?}");
            fleet.until_on(node, &small, SOON).await?;
        }
        let stopped = downloaded(&proxy);
        println!("stopped after {stopped:?}");
        ensure!(
            stopped.values().all(|bytes| *bytes < 45 * MB),
            "{stopped:?}"
        );

        proxy.limit(None);
        everywhere(fleet, |node| resize(node, 400 * MB))?;
        fleet.until_ready("both", SOON).await?;
        let whole = downloaded(&proxy);
        println!("whole after {whole:?}");
        ensure!(whole.values().all(|bytes| *bytes < 65 * MB), "{whole:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_disk_that_something_else_fills_during_a_pull_stops_it_and_nothing_is_lost() -> Result<()>
{
    story_with(small_disks(), &[GUARD], async |fleet| {
        let image = ImageSpec::scratch().layer(1, 40_000_000);
        fleet.cluster.registry().push("lab/app:1", &image).await?;
        let proxy = throttled(fleet).await?;
        let image = proxy.reference("lab/app:1");
        fleet.set("app", cache(&[&image])).await?;
        wait_for("10 MB everywhere", SOON, async || {
            let bytes = downloaded(&proxy);
            ensure!(bytes.len() == NODES.len(), "{bytes:?}");
            ensure!(bytes.values().all(|bytes| *bytes > 10 * MB), "{bytes:?}");
            Ok(())
        })
        .await?;
        everywhere(fleet, |node| fill(node, 155 * MB))?;
        for node in NODES {
            let image = until_it_waits(fleet, node, &image, "the image filesystem is used").await?;
            ensure!(image.attempts.is_none(), "{image:?}");
        }
        // By then it is seen that what was stopped is not what fills it.
        a_look_is_over().await;
        proxy.limit(None);
        everywhere(fleet, |node| fill(node, 0))?;
        fleet.until_ready("app", SOON).await?;
        let whole = downloaded(&proxy);
        println!("{whole:?}");
        ensure!(whole.values().all(|bytes| *bytes < 45 * MB), "{whole:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_that_fills_the_disk_all_the_same_leaves_room_for_others() -> Result<()> {
    story_with(small_disks(), &[GUARD], async |fleet| {
        // From the download nobody sees how large it is.
        let bomb = ImageSpec::scratch().zeros(300_000_000);
        fleet.cluster.registry().push("lab/bomb:1", &bomb).await?;
        fleet.push(&["lab/small:1"]).await?;
        let [bomb, small] = ["lab/bomb:1", "lab/small:1"].map(|name| fleet.image(name));
        let mark = fleet.cluster.registry().mark();
        fleet.set("bomb", cache(&[&bomb])).await?;
        for node in NODES {
            let stopped = until(fleet, node, &bomb, "to be stopped", |image| {
                let reasons = [Some(Reason::NoSpace), Some(Reason::DiskPressure)];
                reasons.contains(&image.reason)
            });
            println!("{node}: {:?}", stopped.await?.reason);
        }
        fleet.set("small", cache(&[&small])).await?;
        fleet.until_ready("small", SOON).await?;
        // It is not pulled again and again.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let asked = fleet.cluster.registry().requests(mark).into_iter();
        let asked = asked.filter(|request| request.path.contains("lab/bomb/manifests"));
        let asked = asked.filter(|request| request.method == "HEAD").count();
        ensure!(asked == NODES.len(), "{asked} pulls");
        everywhere(fleet, |node| resize(node, 1000 * MB))?;
        fleet.until_ready("bomb", SOON * 3).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_nodes_own_condition_holds_pulls_back_and_is_asked_for_only_when_there_is_something_to_pull()
-> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &[],
        async |fleet| {
            fleet.push(&["lab/a:1", "lab/b:1"]).await?;
            let [first, second] = ["lab/a:1", "lab/b:1"].map(|name| fleet.image(name));
            say_pressure(fleet, "True").await?;
            fleet.set("a", cache(&[&first])).await?;
            for node in NODES {
                let said = "the Node has the condition DiskPressure: as the kubelet says it";
                until_it_waits(fleet, node, &first, said).await?;
                let runtime = fleet.cluster.node(node)?.containerd();
                ensure!(!runtime.has(&first).await?, "{node}");
            }
            say_pressure(fleet, "False").await?;
            fleet.until_ready("a", SOON).await?;

            tokio::time::sleep(Duration::from_secs(1)).await;
            let mark = fleet.cluster.api_mark();
            let asked = |fleet: &Fleet| {
                let requests = fleet.cluster.api_requests(mark).into_iter();
                requests
                    .filter(|request| request.user.ends_with(":imagecache-agent"))
                    .filter(|request| request.resource == "nodes" && request.verb == "get")
                    .count()
            };
            tokio::time::sleep(Duration::from_secs(20)).await;
            ensure!(
                asked(fleet) == 0,
                "asked {} times for nothing",
                asked(fleet)
            );
            fleet.set("b", cache(&[&second])).await?;
            fleet.until_ready("b", SOON).await?;
            let asked = asked(fleet);
            ensure!((3..=6).contains(&asked), "asked {asked} times");
            Ok(())
        },
    )
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn room_is_made_with_what_the_agent_brought_and_nobody_wants_and_with_nothing_else()
-> Result<()> {
    let flags = [GUARD, "--reclaim", "--removal-delay=3s"];
    story_with(small_disks(), &flags, async |fleet| {
        let registry = fleet.cluster.registry();
        for (seed, name) in (1..).zip(["lab/old:1", "lab/newer:1", "lab/wanted:1", "lab/foreign:1"])
        {
            let image = ImageSpec::scratch().layer(seed, 10_000_000);
            registry.push(name, &image).await?;
        }
        fleet.push(&["lab/next:1"]).await?;
        let images = [
            "lab/old:1",
            "lab/newer:1",
            "lab/wanted:1",
            "lab/foreign:1",
            "lab/next:1",
        ];
        let [old, newer, wanted, foreign, next] = images.map(|name| fleet.image(name));
        for node in fleet.cluster.nodes() {
            node.containerd().pull(&foreign).await?;
        }
        for image in [&old, &newer] {
            let name = if image == &old { "old" } else { "newer" };
            fleet.set(name, cache(&[image])).await?;
            fleet.until_ready(name, SOON).await?;
        }
        fleet.set("wanted", cache(&[&wanted])).await?;
        fleet.until_ready("wanted", SOON).await?;
        everywhere(fleet, |node| fill_to(node, 164 * MB))?;
        a_look_is_over().await;
        fleet.set("next", cache(&[&next])).await?;
        for node in NODES {
            until_it_waits(fleet, node, &next, "is used to 8").await?;
        }
        // Everything is wanted, or somebody else's: nothing goes.
        tokio::time::sleep(Duration::from_secs(6)).await;
        for node in fleet.cluster.nodes() {
            for image in [&old, &newer, &wanted, &foreign] {
                ensure!(node.containerd().has(image).await?, "{image}");
            }
            ensure!(!node.containerd().has(&next).await?);
        }
        // Their policy is Keep, and the older one is enough.
        for name in ["old", "newer"] {
            fleet
                .caches()
                .delete(name, &kube::api::DeleteParams::default())
                .await?;
        }
        fleet.until_ready("next", SOON).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        for node in fleet.cluster.nodes() {
            ensure!(!node.containerd().has(&old).await?, "{}", node.name());
            for image in [&newer, &wanted, &foreign, &next] {
                ensure!(
                    node.containerd().has(image).await?,
                    "{image} on {}",
                    node.name()
                );
            }
        }
        Ok(())
    })
    .await
}

fn cache(images: &[&str]) -> serde_json::Value {
    json!({"cacheSpec": [{"images": images}]})
}

fn everywhere(fleet: &Fleet, act: impl Fn(&Node) -> Result<()>) -> Result<()> {
    fleet.cluster.nodes().iter().try_for_each(act)
}

/// What was seen of the disk before is not good any more.
async fn a_look_is_over() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// From now on so many bytes of a node's disk are somebody else's.
fn fill(node: &Node, bytes: u64) -> Result<()> {
    let file = format!("{ROOT}/ballast");
    let script = r#"rm -f "$1" && head -c "$2" /dev/zero >"$1""#;
    let mut write = node.command("sh");
    write.args(["-c", script, "fill", &file, &bytes.to_string()]);
    succeed(write).map(drop)
}

/// Fills a node's disk until so many bytes are used.
fn fill_to(node: &Node, bytes: u64) -> Result<()> {
    let mut ask = node.command("df");
    ask.args(["--block-size=1", "--output=used", ROOT]);
    let said = succeed(ask)?;
    let used: u64 = said.lines().last().unwrap_or_default().trim().parse()?;
    fill(node, bytes.saturating_sub(used))
}

/// Gives a node a larger disk.
fn resize(node: &Node, bytes: u64) -> Result<()> {
    let mut mount = node.command("mount");
    mount.args(["-o", &format!("remount,size={bytes}"), ROOT]);
    succeed(mount).map(drop)
}

fn succeed(mut command: Command) -> Result<String> {
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?}: {said}");
    Ok(String::from_utf8(done.stdout)?)
}

/// A registry whose images come at 3 MB a second.
async fn throttled(fleet: &Fleet) -> Result<FaultProxy> {
    let registry = fleet.cluster.registry().address();
    let proxy = FaultProxy::start(fleet.cluster.lab(), Listen::Bridge, registry).await?;
    for node in fleet.cluster.nodes() {
        let runtime = node.containerd();
        runtime.mirror(&proxy.host(), &proxy.url(), None)?;
    }
    proxy.limit(Some(9 * MB));
    Ok(proxy)
}

/// The bytes of layers that each runtime got: they are told apart by their versions.
fn downloaded(proxy: &FaultProxy) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for request in proxy.requests() {
        if request.path.contains("/blobs/") {
            *bytes.entry(request.agent).or_default() += request.bytes;
        }
    }
    bytes
}

/// Waits until an image waits for the disk, and the message has these words.
async fn until_it_waits(
    fleet: &Fleet,
    node: &str,
    image: &str,
    words: &str,
) -> Result<ImageReport> {
    until(fleet, node, image, "to wait for the disk", |report| {
        report.state == ImageState::Waiting
            && report.reason == Some(Reason::DiskPressure)
            && report
                .message
                .as_ref()
                .is_some_and(|said| said.contains(words))
    })
    .await
}

async fn until(
    fleet: &Fleet,
    node: &str,
    image: &str,
    what: &str,
    check: impl Fn(&ImageReport) -> bool,
) -> Result<ImageReport> {
    wait_for(format!("{image} on {node}: {what}"), SOON, async || {
        let report = fleet.report(node).await?.context("no report")?;
        let mut images = report.images.into_iter();
        let found = images.find(|report| report.image == image);
        let found = found.context("it is not reported")?;
        ensure!(check(&found), "{found:?}");
        Ok(found)
    })
    .await
}

/// What an agent's metric says of the guard.
fn metric(node: &Node) -> Result<String> {
    let mut ask = node.command("/bin/busybox");
    ask.args(["wget", "-q", "-O", "-", "http://127.0.0.1:19847/metrics"]);
    let metrics = succeed(ask)?;
    let mut lines = metrics.lines();
    let guard = lines.find_map(|line| line.strip_prefix("imagecache_disk_guard "));
    Ok(guard.context("no such metric")?.to_owned())
}

/// What a kubelet would say in the Nodes' status.
async fn say_pressure(fleet: &Fleet, status: &str) -> Result<()> {
    let nodes = Api::<NodeObject>::all(fleet.cluster.client());
    for node in NODES {
        let condition = json!({
            "type": "DiskPressure", "status": status,
            "reason": "Story", "message": "as the kubelet says it",
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        nodes
            .patch_status(node, &PatchParams::default(), &patch)
            .await?;
    }
    Ok(())
}
