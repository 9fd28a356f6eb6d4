//! Whose an image is, on three real containerds: it stands on the image, and a lease says so until it does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod agent_loop;
mod lone_runtime;

use std::time::Duration;

use agent_loop::{Agent, spec};
use imagecache_agent::api::node_image_cache::{ImageReport, Origin};
use imagecache_agent::api::{
    ImageCacheSpec, ImagePullPolicy, NodeImageCacheStatus, Reason, RemovalPolicy,
};
use imagecache_agent::decide::Timing;
use imagecache_agent::runtime::Lease;
use lone_runtime::{LONG, LoneRuntime, endpoint, on_every_version};
use testbed::{ImageSpec, wait_for};

fn timing() -> Timing {
    Timing {
        removal: Duration::from_secs(2),
        kept_look: Duration::from_secs(1),
        ..Timing::default()
    }
}

fn start(node: &LoneRuntime) -> Agent {
    Agent::start(endpoint(&node.server.socket()), &timing())
}

fn removing(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        removal_policy: RemovalPolicy::Remove,
        ..spec(images)
    }
}

fn said<'a>(report: &'a NodeImageCacheStatus, image: &str) -> Option<&'a ImageReport> {
    report.images.iter().find(|said| said.image == image)
}

fn is_from(report: &NodeImageCacheStatus, image: &str, origin: Origin) -> bool {
    said(report, image).is_some_and(|said| said.origin == Some(origin))
}

/// An agent that wants an image until nobody does, after it has said whose it is.
async fn wanting(node: &LoneRuntime, image: &str, origin: Origin) -> Agent {
    let agent = start(node);
    agent.wants_specs([("a", removing(&[image]))].into_iter());
    agent
        .until("it to be said whose it is", |report| {
            is_from(report, image, origin)
        })
        .await;
    agent
}

async fn end(agent: Agent) {
    agent.stop.cancel();
    agent.task.await.unwrap().unwrap();
}

/// Nobody wants anything any more: what is the agent's own goes, and these images, which have waited as long, do not.
async fn stays(node: &LoneRuntime, agent: &Agent, images: &[&str]) {
    let own = node.push("lab/sentinel:1", &ImageSpec::small(99)).await;
    let with = images.iter().copied().chain([own.as_str()]);
    let with: Vec<_> = with.collect();
    agent.wants_specs([("a", removing(&with))].into_iter());
    agent
        .until("the other one to be its own", |report| {
            is_from(report, &own, Origin::Agent)
        })
        .await;
    agent.wants_specs([].into_iter());
    until_gone(node, &own).await;
    for image in images {
        assert!(node.server.has(image).await.unwrap(), "{image}");
    }
}

async fn until_gone(node: &LoneRuntime, image: &str) {
    wait_for("the image to be gone", LONG, async || {
        anyhow::ensure!(!node.server.has(image).await?);
        Ok(())
    })
    .await
    .unwrap();
}

/// The agent ended after its pull did and before it wrote down that the image is its own: nothing but the lease says so.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_whose_pull_ended_with_the_agent_is_still_the_agents() {
    on_every_version(async |node| {
        let image = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let lease = Lease {
            id: "imagecache-agent-killed".into(),
            image: image.clone(),
            removable: true,
            created: None,
            replaces: None,
            expires: None,
        };
        containerd.create_lease(&lease).await.unwrap();
        node.runtime.pull(&image, Some(&lease.id)).await.unwrap();

        let agent = wanting(&node, &image, Origin::Agent).await;
        node.until_no_lease_is_left().await;
        agent.wants_specs([].into_iter());
        until_gone(&node, &image).await;
    })
    .await;
}

/// A refresh that finds nothing new runs under a lease too, and brings nothing.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_that_was_there_stays_somebody_elses_however_often_it_is_asked_for() {
    on_every_version(async |node| {
        let image = node.push("lab/app:1", &ImageSpec::small(1)).await;
        node.runtime.pull(&image, None).await.unwrap();
        let mut wants = removing(&[&image]);
        wants.image_pull_policy = Some(ImagePullPolicy::Always);
        wants.refresh_interval.0.0 = Duration::from_secs(1);
        let agent = start(&node);
        let before = node.proxy.requests().len();
        agent.wants_specs([("a", wants.clone())].into_iter());
        wait_for("three refreshes", LONG, async || {
            let asked = node.proxy.requests().len() - before;
            anyhow::ensure!(asked >= 3, "{asked}");
            Ok(())
        })
        .await
        .unwrap();
        let is_found = |report: &NodeImageCacheStatus| is_from(report, &image, Origin::Found);
        agent.until("it to be somebody else's", is_found).await;

        // What a refresh brings anew is the agent's, and what it replaces is not.
        node.push("lab/app:1", &ImageSpec::small(2)).await;
        let is_own = |report: &NodeImageCacheStatus| is_from(report, &image, Origin::Agent);
        agent.until("the new one to be the agent's", is_own).await;
        agent.wants_specs([].into_iter());
        until_gone(&node, &image).await;
        let left = node.server.ctr(&["images", "ls"]).await.unwrap();
        assert!(
            left.contains("lab/app@sha256:"),
            "the one before is gone: {left}"
        );
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_own_image_stays_so_whoever_pulls_it_again_and_whatever_restarts() {
    on_every_version(async |node| {
        let image = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let agent = start(&node);
        agent.wants_specs([("a", removing(&[&image]))].into_iter());
        let is_own = |report: &NodeImageCacheStatus| {
            let said = said(report, &image);
            said.is_some_and(|said| {
                said.origin == Some(Origin::Agent)
                    && said.removal_policy == Some(RemovalPolicy::Remove)
            })
        };
        agent.until("it to be its own", is_own).await;
        end(agent).await;
        node.runtime.pull(&image, None).await.unwrap();
        node.server.stop().await.unwrap();
        node.server.start_again().await.unwrap();

        let agent = start(&node);
        agent.wants_specs([("a", removing(&[&image]))].into_iter());
        agent.until("it to be its own still", is_own).await;

        // Removed by somebody else and pulled by somebody else: theirs.
        end(agent).await;
        node.server.remove(&image).await.unwrap();
        node.runtime.pull(&image, None).await.unwrap();
        let agent = wanting(&node, &image, Origin::Found).await;
        stays(&node, &agent, &[&image]).await;
    })
    .await;
}

/// Two artifacts have the same empty configuration, and so the same image ID.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn of_two_artifacts_with_one_id_only_the_own_one_goes() {
    on_every_version(async |node| {
        let own = node.push("lab/own:1", &ImageSpec::artifact(1)).await;
        let other = node.push("lab/other:1", &ImageSpec::artifact(2)).await;
        let agent = wanting(&node, &own, Origin::Agent).await;
        node.runtime.pull(&other, None).await.unwrap();
        agent.wants_specs([].into_iter());
        until_gone(&node, &own).await;
        assert!(node.server.has(&other).await.unwrap());
    })
    .await;
}

/// A pod has pulled it by digest, and the agent by tag: it is one image, and it was there before.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_that_somebody_pulled_under_another_name_is_not_the_agents() {
    on_every_version(async |node| {
        let image = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let digest = ImageSpec::small(1).digest().unwrap();
        let by_digest = format!("{}@{digest}", image.trim_end_matches(":1"));
        node.runtime.pull(&by_digest, None).await.unwrap();
        let agent = wanting(&node, &image, Origin::Found).await;
        stays(&node, &agent, &[&image, &by_digest]).await;
    })
    .await;
}

/// Whoever has pinned it wants it there.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_own_image_that_somebody_else_has_pinned_stays() {
    on_every_version(async |node| {
        let image = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let agent = wanting(&node, &image, Origin::Agent).await;
        let pin = ["images", "label", &image, "io.cri-containerd.pinned=pinned"];
        node.server.ctr(&pin).await.unwrap();
        agent.wants_specs([].into_iter());
        let is_kept = |report: &NodeImageCacheStatus| {
            said(report, &image).is_some_and(|said| said.reason == Some(Reason::InUse))
        };
        agent.until("it to be kept", is_kept).await;
        assert!(node.server.has(&image).await.unwrap());
    })
    .await;
}
