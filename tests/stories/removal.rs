//! Nobody wants an image any more: what the agent has brought goes where that is asked for, and nothing else does.

use std::time::Duration;

use anyhow::{Result, ensure};
use imagecache_agent::api::{ImageState, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use testbed::{ClusterOptions, ImageSpec, Version, wait_for};

use super::fleet::{Fleet, SOON, story_with};

/// Soon enough for a test, and long enough to see that an image is still there.
const DELAY: &str = "--removal-delay=3s";

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn only_what_the_agent_brought_and_nobody_wants_goes_and_only_where_it_is_asked_for()
-> Result<()> {
    story_with(ClusterOptions::runtimes(&Version::ALL), &[DELAY], async |fleet| {
        fleet
            .push(&["lab/goes:1", "lab/kept:1", "lab/before:1", "lab/shared:1", "lab/last:1"])
            .await?;
        // Two names of one image.
        let registry = fleet.cluster.registry();
        let both = ImageSpec::small(77);
        registry.push("lab/twin:1", &both).await?;
        registry.push("lab/twin:2", &both).await?;
        for node in fleet.cluster.nodes() {
            node.containerd().pull(&fleet.image("lab/before:1")).await?;
        }
        let names = ["lab/goes:1", "lab/before:1", "lab/shared:1", "lab/twin:1"];
        let images: Vec<_> = names.iter().map(|name| fleet.image(name)).collect();
        let remove = |images: Vec<String>| json!({"removalPolicy": "Remove", "cacheSpec": [{"images": images}]});
        fleet.set("remove", remove(images)).await?;
        fleet
            .set("keep", json!({"cacheSpec": [{"images": [fleet.image("lab/kept:1"), fleet.image("lab/shared:1")]}]}))
            .await?;
        fleet.until_ready("remove", SOON).await?;
        fleet.until_ready("keep", SOON).await?;
        for node in fleet.cluster.nodes() {
            node.containerd().pull(&fleet.image("lab/twin:2")).await?;
        }

        // Dropped from a list, and the other object is deleted.
        fleet.set("remove", remove(vec![fleet.image("lab/last:1")])).await?;
        fleet.until_ready("remove", SOON).await?;
        until_gone(fleet, &["lab/goes:1", "lab/twin:1"]).await?;
        still_there(fleet, &["lab/before:1", "lab/shared:1", "lab/twin:2", "lab/kept:1", "lab/last:1"]).await?;
        fleet.caches().delete("keep", &DeleteParams::default()).await?;
        fleet.caches().delete("remove", &DeleteParams::default()).await?;
        until_gone(fleet, &["lab/last:1"]).await?;
        // Two had it, one to be kept: it stays.
        still_there(fleet, &["lab/shared:1", "lab/kept:1", "lab/before:1"]).await
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn what_is_to_be_absent_goes_and_what_stays_says_why() -> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &[DELAY],
        async |fleet| {
            fleet
                .push(&["lab/own:1", "lab/before:1", "lab/wanted:1", "lab/never:1"])
                .await?;
            for node in fleet.cluster.nodes() {
                node.containerd().pull(&fleet.image("lab/before:1")).await?;
            }
            let spec = |images: &[&str], ensure: &str| {
                let images: Vec<_> = images.iter().map(|name| fleet.image(name)).collect();
                json!({"ensure": ensure, "cacheSpec": [{"images": images}]})
            };
            let all = ["lab/own:1", "lab/before:1", "lab/wanted:1"];
            fleet.set("cache", spec(&all, "Present")).await?;
            fleet.until_ready("cache", SOON).await?;
            fleet
                .set("wanted", spec(&["lab/wanted:1"], "Present"))
                .await?;
            fleet.until_ready("wanted", SOON).await?;
            let purge = ["lab/own:1", "lab/before:1", "lab/wanted:1", "lab/never:1"];
            fleet.set("cache", spec(&purge, "Absent")).await?;
            until_gone(fleet, &["lab/own:1"]).await?;
            let status = fleet.until_ready("cache", SOON).await?;
            let said = format!("{status:?}");
            ensure!(
                said.contains("3 of 3 nodes are rid of all 4 images"),
                "{said}"
            );
            ensure!(
                said.contains("NotOwned") && said.contains("WantedElsewhere"),
                "{said}"
            );
            still_there(fleet, &["lab/before:1", "lab/wanted:1"]).await?;
            for node in ["n1", "n2", "n3"] {
                let report = fleet.report(node).await?.expect("it has reported");
                for (name, reason) in [
                    ("lab/before:1", Reason::NotOwned),
                    ("lab/wanted:1", Reason::WantedElsewhere),
                ] {
                    let image = report
                        .images
                        .iter()
                        .find(|image| image.image == fleet.image(name));
                    let image = image.expect("it is told");
                    ensure!(
                        image.state == ImageState::Ready && image.reason == Some(reason),
                        "{image:?}"
                    );
                }
            }
            Ok(())
        },
    )
    .await
}

async fn until_gone(fleet: &Fleet, names: &[&str]) -> Result<()> {
    until_gone_within(fleet, names, SOON).await
}

async fn until_gone_within(fleet: &Fleet, names: &[&str], deadline: Duration) -> Result<()> {
    for node in fleet.cluster.nodes() {
        for name in names {
            wait_for(
                format!("{name} to be gone from {}", node.name()),
                deadline,
                async || {
                    ensure!(!node.containerd().has(&fleet.image(name)).await?);
                    Ok(())
                },
            )
            .await?;
        }
    }
    Ok(())
}

async fn still_there(fleet: &Fleet, names: &[&str]) -> Result<()> {
    for node in fleet.cluster.nodes() {
        for name in names {
            let is_there = node.containerd().has(&fleet.image(name)).await?;
            ensure!(is_there, "{name} is gone from {}", node.name());
        }
    }
    Ok(())
}

/// Nothing tells when nothing is done: after more than the time in which it would have been.
async fn stay_there(fleet: &Fleet, names: &[&str]) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    still_there(fleet, names).await
}

fn to_remove(images: &[String]) -> serde_json::Value {
    json!({"removalPolicy": "Remove", "cacheSpec": [{"images": images}]})
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn nothing_goes_because_the_agent_does_not_know_what_is_wanted() -> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &[DELAY],
        async |fleet| {
            fleet.push(&["lab/a:1", "lab/b:1", "lab/c:1"]).await?;
            let image = |name: &str| fleet.image(name);
            fleet.set("a", to_remove(&[image("lab/a:1")])).await?;
            fleet.set("b", to_remove(&[image("lab/b:1")])).await?;
            fleet.set("c", to_remove(&[image("lab/c:1")])).await?;
            for name in ["a", "b", "c"] {
                fleet.until_ready(name, SOON).await?;
            }

            // The API server goes away a moment after an object was deleted. It goes when that is known again.
            let delete =
                async |name: &str| fleet.caches().delete(name, &DeleteParams::default()).await;
            delete("a").await?;
            fleet.cluster.kill9_api_server()?;
            stay_there(fleet, &["lab/a:1"]).await?;
            fleet.cluster.start_api_server().await?;
            until_gone(fleet, &["lab/a:1"]).await?;

            // The own Node is gone.
            let nodes = Api::<Node>::all(fleet.cluster.client());
            delete("b").await?;
            for node in ["n1", "n2", "n3"] {
                nodes.delete(node, &DeleteParams::default()).await?;
            }
            stay_there(fleet, &["lab/b:1", "lab/c:1"]).await?;
            for node in ["n1", "n2", "n3"] {
                fleet.cluster.create_node(node).await?;
            }
            until_gone(fleet, &["lab/b:1"]).await?;

            // Uninstalled: the resource definitions take every ImageCache with them, and no image.
            let definitions = [
                "delete",
                "crd",
                "imagecaches.imagecache.dev",
                "nodeimagecaches.imagecache.dev",
            ];
            fleet.cluster.kubectl(&definitions).await?;
            stay_there(fleet, &["lab/c:1"]).await
        },
    )
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_removal_survives_every_kill_and_an_agent_that_was_away_does_it_when_it_is_back()
-> Result<()> {
    let flags = ["--removal-delay=0s"];
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &flags,
        async |fleet| {
            fleet.push(&["lab/a:1"]).await?;
            let image = fleet.image("lab/a:1");
            let nodes = ["n1", "n2", "n3"];
            for round in 0_u64..6 {
                fleet
                    .set("a", to_remove(std::slice::from_ref(&image)))
                    .await?;
                fleet.until_ready("a", SOON).await?;
                if round == 0 {
                    // Nobody is there to see it.
                    kill(fleet, &nodes).await?;
                }
                fleet.caches().delete("a", &DeleteParams::default()).await?;
                if round > 0 {
                    tokio::time::sleep(Duration::from_millis(12 * (round - 1))).await;
                    kill(fleet, &nodes).await?;
                }
                for node in nodes {
                    fleet.start_agent(node, &flags).await?;
                }
                until_gone(fleet, &["lab/a:1"]).await?;
                for node in fleet.cluster.nodes() {
                    let what = format!("nothing to be left of it on {}", node.name());
                    wait_for(what, SOON, async || {
                        let left = node.containerd().ctr(&["images", "ls"]).await?;
                        ensure!(
                            !left.contains("lab/a") && !left.contains("imagecache.dev"),
                            "{left}"
                        );
                        Ok(())
                    })
                    .await?;
                }
            }
            Ok(())
        },
    )
    .await
}

async fn kill(fleet: &Fleet, nodes: &[&str]) -> Result<()> {
    for node in nodes {
        fleet.agent(node)?.kill9()?;
    }
    for node in nodes {
        let _ = fleet.agent(node)?.wait(SOON).await;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn what_a_pod_uses_stays_until_the_pod_is_gone() -> Result<()> {
    story_with(ClusterOptions::three_nodes(), &[DELAY], async |fleet| {
        let image = fleet.image("lab/sleeper:1");
        // With a layer of its own: the pods' own pause image may be the same one otherwise, and somebody else's.
        let busybox = ImageSpec::busybox()?.layer(9, 1000);
        fleet
            .cluster
            .registry()
            .push("lab/sleeper:1", &busybox)
            .await?;
        fleet
            .set("used", to_remove(std::slice::from_ref(&image)))
            .await?;
        fleet.until_ready("used", SOON).await?;
        // One of them has ended: its container is there as long as the pod is.
        for (node, command, until) in [
            ("n1", "sleep", "condition=Ready"),
            ("n2", "true", "jsonpath={.status.phase}=Succeeded"),
            ("n3", "sleep", "condition=Ready"),
        ] {
            fleet.cluster.apply(&pod(node, &image, command)).await?;
            let (pod, until) = (format!("pod/sleeper-{node}"), format!("--for={until}"));
            let wait = ["wait", &pod, &until, "--timeout=60s"];
            fleet.cluster.kubectl(&wait).await?;
        }
        fleet
            .caches()
            .delete("used", &DeleteParams::default())
            .await?;
        for node in ["n1", "n2", "n3"] {
            wait_for(
                format!("{node} to say that the image is in use"),
                SOON,
                async || {
                    let report = fleet.report(node).await?.expect("it has reported");
                    let said = report.images.iter().find(|said| said.image == image);
                    ensure!(
                        said.is_some_and(|said| said.reason == Some(Reason::InUse)),
                        "{said:?}"
                    );
                    Ok(())
                },
            )
            .await?;
        }
        still_there(fleet, &["lab/sleeper:1"]).await?;
        fleet
            .cluster
            .kubectl(&["delete", "pods", "--all", "--grace-period=0", "--force"])
            .await?;
        // It is looked at once a minute.
        until_gone_within(fleet, &["lab/sleeper:1"], Duration::from_secs(100)).await
    })
    .await
}

/// A pod on a node, with one command of busybox.
fn pod(node: &str, image: &str, command: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: sleeper-{node}}}\nspec:\n  nodeName: {node}\n  hostNetwork: true\n  restartPolicy: Never\n  containers:\n  - name: sleeper\n    image: {image}\n    command: [/bin/busybox, \"{command}\", \"3600\"]\n"
    )
}
