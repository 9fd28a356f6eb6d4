//! A label on a node brings the images of its lists there at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use imagecache_agent::api::image_cache::NodeState;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use testbed::{ClusterOptions, Version};

use super::fleet::{SOON, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_labelled_node_has_its_images_within_two_seconds() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        fleet.push(&["all:1", "backend:1", "backend:2"]).await?;
        let [all, one, two] = ["all:1", "backend:1", "backend:2"].map(|name| fleet.image(name));
        let spec = json!({"cacheSpec": [
            {"images": [all]},
            {"images": [one, two], "nodeSelector": {"tier": "backend"}},
        ]});
        fleet.set("tiers", spec).await?;
        fleet.until_ready("tiers", SOON).await?;

        // Every status that is written from now on.
        let mut statuses = Box::pin(
            watcher(fleet.caches(), watcher::Config::default())
                .applied_objects()
                .filter_map(async |object| object.ok()?.status),
        );
        let labelled = Instant::now();
        fleet.label("n2", "tier", Some("backend")).await?;
        fleet
            .until_on(
                "n2",
                &two,
                Duration::from_secs(2).saturating_sub(labelled.elapsed()),
            )
            .await?;
        ensure!(fleet.cluster.node("n2")?.containerd().has(&one).await?);
        let status = fleet
            .until(
                "tiers",
                "three nodes with the new list",
                Duration::from_secs(3).saturating_sub(labelled.elapsed()),
                |status| {
                    ensure!(status.ready_nodes == 3 && status.lists[1].ready_nodes == 1);
                    Ok(())
                },
            )
            .await?;
        ensure!(status.lists[1].matched_nodes == 1);
        // No status counted the node as ready for lists that it had not reported yet.
        while let Ok(Some(seen)) =
            tokio::time::timeout(Duration::from_millis(200), statuses.next()).await
        {
            let node = seen
                .nodes
                .iter()
                .find(|node| node.name == "n2")
                .expect("n2 is always selected");
            let knows_of_label = seen.lists[1].matched_nodes == 1;
            ensure!(
                !knows_of_label
                    || node.state != NodeState::Ready
                    || (node.ready, node.total) == (3, 3),
                "n2 is Ready with {}/{} images",
                node.ready,
                node.total
            );
        }

        // Without the label the node leaves the list's counts at once. The images stay.
        fleet.label("n2", "tier", None).await?;
        fleet
            .until("tiers", "the second list without nodes", SOON, |status| {
                ensure!(status.lists[1].matched_nodes == 0 && status.ready_nodes == 3);
                Ok(())
            })
            .await?;
        ensure!(fleet.cluster.node("n2")?.containerd().has(&one).await?);
        ensure!(!fleet.cluster.node("n1")?.containerd().has(&one).await?);
        Ok(())
    })
    .await
}
