//! What is present is known exactly, and costs the registry nothing.

use anyhow::{Result, ensure};
use imagecache_agent::api::ImageState;
use serde_json::json;
use testbed::{ClusterOptions, ImageSpec, Version};

use super::fleet::{SOON, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn presence_is_exact_to_the_tag_and_the_digest() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let registry = fleet.cluster.registry();
        let digest = registry.push("lab/app:6.2.5", &ImageSpec::small(1)).await?;
        registry.push("lab/app:6", &ImageSpec::small(2)).await?;
        registry
            .push("lab/app:latest", &ImageSpec::small(3))
            .await?;
        registry.push("lab/hub:1", &ImageSpec::small(4)).await?;
        let app = fleet.image("lab/app");
        for node in fleet.cluster.nodes() {
            node.containerd().pull(&format!("{app}:6.2.5")).await?;
        }

        // A tag that another one begins with is not there; the one that is there costs no request.
        let mark = fleet.cluster.registry().mark();
        fleet
            .set(
                "exact",
                json!({"cacheSpec": [{"images": [format!("{app}:6.2.5")]}]}),
            )
            .await?;
        fleet.until_ready("exact", SOON).await?;
        let asked = fleet.cluster.registry().requests(mark);
        ensure!(asked.is_empty(), "{asked:?}");
        for node in fleet.cluster.nodes() {
            ensure!(!node.containerd().has(&format!("{app}:6")).await?);
        }

        // By digest, by tag and digest, untagged with a port in the host, and two spellings of one image.
        let images = [
            format!("{app}:6"),
            format!("{app}@{digest}"),
            format!("{app}:6.2.5@{digest}"),
            app.clone(),
            "lab/hub:1".to_owned(),
            "docker.io/lab/hub:1".to_owned(),
        ];
        let mark = fleet.cluster.registry().mark();
        fleet
            .set("exact", json!({"cacheSpec": [{"images": images}]}))
            .await?;
        let status = fleet.until_ready("exact", SOON).await?;
        ensure!(status.images_total == 4, "{}", status.images_total);
        for node in fleet.cluster.nodes() {
            let report = fleet.report(node.name()).await?.expect("it has reported");
            ensure!(
                report.total == 4 && report.ready == 4,
                "{} of {}",
                report.ready,
                report.total
            );
            ensure!(
                report
                    .images
                    .iter()
                    .all(|image| image.state == ImageState::Ready)
            );
            ensure!(node.containerd().has(&format!("{app}:latest")).await?);
            ensure!(node.containerd().has("docker.io/lab/hub:1").await?);
        }
        // Two spellings are one pull: each node asked for the tag's manifest once, by HEAD.
        let asked = fleet.cluster.registry().requests(mark);
        let hub = asked
            .iter()
            .filter(|request| {
                request.method == "HEAD" && request.path.contains("/lab/hub/manifests/1")
            })
            .count();
        ensure!(hub == 3, "{hub} HEAD requests for three nodes");

        // Something else removes an image: it is back without a hand.
        let node = fleet.cluster.node("n1")?;
        node.containerd().remove(&format!("{app}:6")).await?;
        fleet.until_on("n1", &format!("{app}:6"), SOON).await?;
        Ok(())
    })
    .await
}
