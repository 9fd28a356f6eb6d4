//! A label on a node brings the images of its lists there at once.

use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use imagecache_agent::api::image_cache::NodeState;
use imagecache_agent::api::{ImageCache, ImageCacheStatus};
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use testbed::{ClusterOptions, Version, wait_for};

use super::fleet::{SOON, story};

type Statuses = Arc<Mutex<Vec<ImageCacheStatus>>>;

/// Keeps the status as it is now, and every one that is written from now on.
async fn collect(caches: Api<ImageCache>, statuses: Statuses) {
    let mut objects = pin!(watcher(caches, watcher::Config::default()).applied_objects());
    while let Some(object) = objects.next().await {
        // After an error the watch goes on by itself.
        let status = object.ok().and_then(|object| object.status);
        statuses.lock().unwrap().extend(status);
    }
}

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

        let statuses = Statuses::default();
        let collecting = tokio::spawn(collect(fleet.caches(), Arc::clone(&statuses)));
        wait_for("the watch to begin", SOON, async || {
            ensure!(!statuses.lock().unwrap().is_empty(), "no status yet");
            Ok(())
        })
        .await?;
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
        wait_for("the watch to tell of that status", SOON, async || {
            let statuses = statuses.lock().unwrap();
            ensure!(statuses.contains(&status), "{} others", statuses.len());
            Ok(())
        })
        .await?;
        collecting.abort();
        // No status that counts the node for the new list counts it as ready before it has reported that list.
        let mut statuses = mem::take(&mut *statuses.lock().unwrap());
        statuses.retain(|status| status.lists[1].matched_nodes == 1);
        ensure!(!statuses.is_empty(), "no status counts n2");
        for status in statuses {
            let node = status.nodes.iter().find(|node| node.name == "n2");
            let node = node.expect("n2 is always selected");
            let is_counted = node.state == NodeState::Ready
                || status.ready_nodes == 3
                || status.lists[1].ready_nodes == 1;
            ensure!(
                !is_counted || (node.ready, node.total) == (3, 3),
                "n2 is counted as ready with {}/{} images: {status:?}",
                node.ready,
                node.total
            );
        }

        // Without the label the node leaves the list's counts at once. The images stay.
        fleet.label("n2", "tier", None).await?;
        fleet
            .until(
                "tiers",
                "the second list without nodes",
                Duration::from_secs(5),
                |status| {
                    ensure!(status.lists[1].matched_nodes == 0 && status.ready_nodes == 3);
                    Ok(())
                },
            )
            .await?;
        ensure!(fleet.cluster.node("n2")?.containerd().has(&one).await?);
        ensure!(!fleet.cluster.node("n1")?.containerd().has(&one).await?);
        Ok(())
    })
    .await
}
