//! The kubelet collects images: what is pinned stays, and what is not comes back without a fight.

use std::time::Duration;

use anyhow::{Result, ensure};
use imagecache_agent::api::{ImageState, Reason};
use serde_json::json;
use testbed::{ClusterOptions, wait_for};

use super::fleet::{Fleet, SOON, story};

/// The kubelet looks every 10 s.
const COLLECTED: Duration = Duration::from_mins(2);

const PIN: &str = "io.cri-containerd.pinned=pinned";

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_kubelet_collects_what_is_not_pinned_and_nothing_else() -> Result<()> {
    story(ClusterOptions::three_nodes(), async |fleet| {
        let names = ["lab/pinned:1", "lab/free:1", "lab/found:1", "lab/foreign:1"];
        fleet.push(&names).await?;
        let [pinned, free, found, foreign] = names.map(|name| fleet.image(name));
        for node in fleet.cluster.nodes() {
            for image in [&found, &foreign] {
                node.containerd().pull(image).await?;
            }
            let label = ["images", "label", &foreign, PIN];
            node.containerd().ctr(&label).await?;
        }
        let lists = json!([{"images": [pinned, found, foreign]}]);
        fleet
            .set("pinned", json!({"pin": true, "cacheSpec": lists}))
            .await?;
        fleet
            .set("free", json!({"cacheSpec": [{"images": [free]}]}))
            .await?;
        fleet.until_ready("pinned", SOON).await?;
        fleet.until_ready("free", SOON).await?;
        until_pins_are_told(fleet, 3).await?;

        let mark = fleet.cluster.registry().mark();
        make_hungry(fleet).await?;
        until_evicted(fleet, &free).await?;
        // No fight: it is not brought again and again.
        tokio::time::sleep(Duration::from_secs(25)).await;
        let asked = fleet.cluster.registry().requests(mark);
        let of_free = |path: &str| path.contains("lab/free/manifests/1");
        let pulls = asked.iter().filter(|request| of_free(&request.path));
        ensure!(
            pulls.clone().count() <= 9,
            "{:?}",
            pulls.collect::<Vec<_>>()
        );
        for node in fleet.cluster.nodes() {
            for image in [&pinned, &found, &foreign] {
                let is_there = node.containerd().has(image).await?;
                ensure!(is_there, "{image} is gone from {}", node.name());
            }
        }

        // Nobody asks for the pins any more: the agent's go, and somebody else's stays.
        fleet.set("pinned", json!({"cacheSpec": lists})).await?;
        for node in fleet.cluster.nodes() {
            let what = format!("the kubelet of {} to collect them too", node.name());
            wait_for(what, COLLECTED, async || {
                let runtime = node.containerd();
                ensure!(!runtime.has(&pinned).await? && !runtime.has(&found).await?);
                Ok(())
            })
            .await?;
            ensure!(node.containerd().has(&foreign).await?, "{}", node.name());
        }
        Ok(())
    })
    .await
}

/// From now on each kubelet finds too little room on its disk, whatever there is, and collects every image that no container uses.
async fn make_hungry(fleet: &Fleet) -> Result<()> {
    let hungry = json!({
        "evictionHard": {"nodefs.available": "99%", "imagefs.available": "99%"},
        "imageMinimumGCAge": "1s",
    });
    for node in fleet.cluster.nodes() {
        node.stop_kubelet().await?;
        node.start_kubelet_with(&hungry)?;
    }
    Ok(())
}

async fn until_pins_are_told(fleet: &Fleet, pins: usize) -> Result<()> {
    for node in ["n1", "n2", "n3"] {
        wait_for(format!("{node} to report its pins"), SOON, async || {
            let report = fleet.report(node).await?.expect("it has reported");
            ensure!(report.runtime.pinning, "{:?}", report.runtime);
            let pinned = report.images.iter().filter(|image| image.pinned);
            ensure!(pinned.count() == pins, "{:?}", report.images);
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Waits until each node says that something has removed the image, and that it is not pulled now.
async fn until_evicted(fleet: &Fleet, image: &str) -> Result<()> {
    for node in ["n1", "n2", "n3"] {
        let what = format!("{node} to say that {image} was evicted");
        wait_for(what, COLLECTED, async || {
            let report = fleet.report(node).await?.expect("it has reported");
            let said = report.images.iter().find(|said| said.image == image);
            let said = said.expect("it is told");
            let because = matches!(said.reason, Some(Reason::Evicted | Reason::DiskPressure));
            ensure!(said.state == ImageState::Waiting && because, "{said:?}");
            ensure!(said.evictions.is_some(), "{said:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
