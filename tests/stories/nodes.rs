//! Nodes come, go, come back under the same name, and lose their network.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::NodeImageCache;
use imagecache_agent::api::image_cache::NodeState;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use testbed::{ClusterOptions, wait_for};

use super::fleet::{SOON, is, message, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn nodes_leave_and_return_without_a_hand() -> Result<()> {
    story(ClusterOptions::three_nodes(), async |fleet| {
        fleet.push(&["lab/a:1", "lab/b:1"]).await?;
        fleet
            .set(
                "all",
                json!({"cacheSpec": [{"images": [fleet.image("lab/a:1")]}]}),
            )
            .await?;
        fleet.until_ready("all", SOON).await?;
        let nodes = Api::<Node>::all(fleet.cluster.client());
        let reports = Api::<NodeImageCache>::all(fleet.cluster.client());

        // Cut off: named as unreachable; the others are Ready, and so is the whole.
        fleet.cluster.node("n2")?.cut()?;
        wait_for("n2 to be NotReady", Duration::from_secs(40), async || {
            let ready = fleet.cluster.node_ready("n2").await?;
            ensure!(ready == "Unknown", "Ready is {ready}");
            Ok(())
        })
        .await?;
        let images = [fleet.image("lab/a:1"), fleet.image("lab/b:1")];
        fleet
            .set("all", json!({"cacheSpec": [{"images": images}]}))
            .await?;
        fleet
            .cluster
            .kubectl(&["wait", "--for=condition=Ready", "ic/all", "--timeout=40s"])
            .await?;
        let status = fleet.status("all").await?;
        ensure!(
            status.unreachable_nodes == 1 && status.ready_nodes == 2,
            "{status:?}"
        );
        is(&status, "Degraded", "True", "NodesUnreachable")?;
        ensure!(
            message(&status, "Degraded").contains("n2"),
            "{}",
            message(&status, "Degraded")
        );
        // What it still has of the generation before does not count, and nobody else is held up.
        ensure!(
            status
                .nodes
                .iter()
                .any(|node| node.name == "n2" && node.state == NodeState::Unreachable)
        );

        // The cable is back: all is right again.
        fleet.cluster.node("n2")?.join()?;
        fleet
            .until("all", "n2 back", Duration::from_secs(90), |status| {
                is(status, "Degraded", "False", "Healthy")?;
                ensure!(status.ready_nodes == 3);
                Ok(())
            })
            .await?;

        // A report that is deleted with its Node, and made anew with the next Node of that name.
        let before = reports.get("n3").await?.metadata.uid;
        fleet.cluster.node("n3")?.stop_kubelet().await?;
        nodes.delete("n3", &DeleteParams::default()).await?;
        fleet
            .until("all", "two nodes", SOON, |status| {
                ensure!(
                    status.desired_nodes == 2 && status.nodes.iter().all(|node| node.name != "n3")
                );
                Ok(())
            })
            .await?;
        wait_for("the report of n3 to be gone", SOON, async || {
            ensure!(reports.get_opt("n3").await?.is_none());
            Ok(())
        })
        .await?;
        fleet.cluster.node("n3")?.start_kubelet()?;
        fleet
            .until(
                "all",
                "three nodes again",
                Duration::from_mins(1),
                |status| {
                    ensure!(status.ready_nodes == 3);
                    Ok(())
                },
            )
            .await?;
        let (node, report) = (nodes.get("n3").await?, reports.get("n3").await?);
        ensure!(report.metadata.uid != before);
        let owner = report.metadata.owner_references.context("no owner")?;
        ensure!(Some(&owner[0].uid) == node.metadata.uid.as_ref());

        // A report that is deleted by hand comes back with the next thing that the node has to say.
        reports.delete("n1", &DeleteParams::default()).await?;
        fleet
            .set(
                "all",
                json!({"cacheSpec": [{"images": [fleet.image("lab/b:1")]}]}),
            )
            .await?;
        fleet.until_ready("all", SOON).await?;
        ensure!(reports.get_opt("n1").await?.is_some());
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn nothing_is_executed_and_no_state_of_a_node_keeps_images_away() -> Result<()> {
    use testbed::ImageSpec;
    story(ClusterOptions::three_nodes(), async |fleet| {
        let registry = fleet.cluster.registry();
        let text = ImageSpec::scratch().files(&[("hello.txt", 0o644, b"not a program")]);
        registry.push("lab/text:1", &text).await?;
        registry
            .push("lab/user:1", &ImageSpec::small(5).user("65534"))
            .await?;
        // Cordoned, tainted, and without a kubelet.
        fleet.cluster.kubectl(&["cordon", "n1"]).await?;
        fleet
            .cluster
            .kubectl(&["taint", "node", "n2", "closed=yes:NoSchedule"])
            .await?;
        fleet.cluster.node("n3")?.stop_kubelet().await?;
        wait_for("n3 to be NotReady", Duration::from_secs(40), async || {
            ensure!(fleet.cluster.node_ready("n3").await? != "True");
            Ok(())
        })
        .await?;
        let images = [fleet.image("lab/text:1"), fleet.image("lab/user:1")];
        fleet
            .set("odd", json!({"cacheSpec": [{"images": images}]}))
            .await?;
        // Ready alone may come before: a node that is away and has said nothing yet does not hold it up.
        fleet
            .until("odd", "three nodes to be ready", SOON, |status| {
                ensure!(status.ready_nodes == 3, "{status:?}");
                Ok(())
            })
            .await?;
        for node in ["n1", "n2", "n3"] {
            for image in &images {
                fleet.until_on(node, image, SOON).await?;
            }
        }
        // The objects that give the agents their rights, and nothing else.
        let pods = fleet
            .cluster
            .kubectl(&["get", "pods,jobs", "-A", "-o", "name"])
            .await?;
        let others: Vec<_> = pods
            .lines()
            .filter(|pod| !pod.starts_with("pod/imagecache-agent-"))
            .collect();
        ensure!(others.is_empty(), "{others:?}");
        Ok(())
    })
    .await
}
