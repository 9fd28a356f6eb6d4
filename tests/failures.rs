//! What the agent's loop makes of failures: registries that are left alone, bad downloads that are thrown away, a full disk. With three
//! real containerds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod agent_loop;
mod lone_runtime;

use std::time::{Duration, Instant};

use imagecache_agent::api::{NodeImageCacheStatus, Reason};
use imagecache_agent::decide::{Doubling, Timing};
use testbed::{ContainerdOptions, Fault, ImageSpec, Rule, Version, wait_for};

use agent_loop::{Agent, SOON, spec};
use lone_runtime::{LoneRuntime, endpoint, on_every_version};

const HOLD: Duration = Duration::from_secs(3);

fn always(delay: Duration) -> Doubling {
    Doubling {
        first: delay,
        most: delay,
    }
}

fn start(node: &LoneRuntime, timing: &Timing) -> Agent {
    Agent::start(endpoint(&node.server.socket()), timing)
}

/// The image that each attempt was about, and when it began. containerd repeats a request at once, for one and the same image.
fn attempts(node: &LoneRuntime) -> Vec<(String, Instant)> {
    let mut attempts: Vec<(String, Instant)> = Vec::new();
    for request in node.proxy.requests() {
        let is_new = attempts.last().is_none_or(|(path, at)| {
            *path != request.path || request.at.duration_since(*at) > HOLD / 2
        });
        if is_new {
            attempts.push((request.path, request.at));
        }
    }
    attempts
}

async fn a_registry_is_asked_for_one_image_in_each_hold(fault: Fault, reason: Reason) {
    on_every_version(async |node| {
        let timing = Timing {
            rate_limited: (HOLD, HOLD),
            unavailable: always(HOLD),
            ..Timing::default()
        };
        let mut images = Vec::new();
        for n in 0..6 {
            let name = format!("lab/i{n}:1");
            images.push(node.push(&name, &ImageSpec::small(n)).await);
        }
        node.proxy.add(Rule::new(fault.clone()));
        let agent = start(&node, &timing);
        let images: Vec<_> = images.iter().map(String::as_str).collect();
        agent.wants_specs([("a", spec(&images[..1]))].into_iter());
        agent
            .until("one to fail", |report| report.failed == 1)
            .await;
        // From now on the registry is left alone, whoever else is wanted.
        agent.wants_specs([("a", spec(&images))].into_iter());
        let all = wait_for("three attempts", SOON, async || {
            let attempts = attempts(&node);
            anyhow::ensure!(attempts.len() >= 3, "{attempts:?}");
            Ok(attempts)
        })
        .await
        .unwrap();
        println!("{}: {all:?}", node.version);
        for pair in all.windows(2) {
            let apart = pair[1].1 - pair[0].1;
            // A delay strays by a fifth.
            assert!(apart * 10 > HOLD * 7, "{apart:?}: {all:?}");
        }
        let failed = |report: &NodeImageCacheStatus| report.failed == 6;
        let report = agent.until("all six to say so", failed).await;
        for image in &report.images {
            assert_eq!(image.reason, Some(reason), "{image:?}");
        }
        node.proxy.clear();
        agent.until("all six", |report| report.ready == 6).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_registry_that_says_too_many_requests_is_left_alone() {
    let fault = Fault::retry_after(60);
    a_registry_is_asked_for_one_image_in_each_hold(fault, Reason::RateLimited).await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_registry_that_has_no_answer_is_left_alone() {
    let fault = Fault::status(502);
    a_registry_is_asked_for_one_image_in_each_hold(fault, Reason::RegistryUnavailable).await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_bad_download_is_thrown_away_before_the_next_attempt() {
    on_every_version(async |node| {
        let timing = Timing {
            broken: always(Duration::from_secs(5)),
            ..Timing::default()
        };
        let image = ImageSpec::scratch().layer(1, 2_000_000);
        let image = node.push("lab/spoilt:1", &image).await;
        node.proxy
            .add(Rule::new(Fault::WrongBytes).path("/blobs/").method("GET"));
        let agent = start(&node, &timing);
        agent.wants_specs([("a", spec(&[&image]))].into_iter());
        let corrupt = |report: &NodeImageCacheStatus| {
            report
                .images
                .iter()
                .any(|image| image.reason == Some(Reason::Corrupt))
        };
        agent.until("it to say so", corrupt).await;
        node.proxy.clear();
        agent.until("it", |report| report.ready == 1).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn what_a_node_cannot_unpack_is_not_downloaded_again() {
    on_every_version(async |node| {
        let timing = Timing {
            unavailable: always(Duration::from_secs(1)),
            ..Timing::default()
        };
        let image = ImageSpec::scratch().layer(1, 2_000_000);
        let image = node.push("lab/kept:1", &image).await;
        let mounts = node.server.root().join("tmpmounts");
        let aside = mounts.with_extension("aside");
        std::fs::rename(&mounts, &aside).unwrap();
        let agent = start(&node, &timing);
        agent.wants_specs([("a", spec(&[&image]))].into_iter());
        let failed_twice = |report: &NodeImageCacheStatus| {
            let mut images = report.images.iter();
            images
                .any(|image| image.reason == Some(Reason::PullFailed) && image.attempts >= Some(2))
        };
        agent.until("it to fail twice", failed_twice).await;
        std::fs::rename(&aside, &mounts).unwrap();
        agent.until("it", |report| report.ready == 1).await;
        let bytes = node.proxy.requests().into_iter();
        let bytes: u64 = bytes
            .filter(|request| request.path.contains("/blobs/"))
            .map(|request| request.bytes)
            .sum();
        assert!(bytes < 2_100_000, "{}: {bytes} bytes", node.version);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn what_filled_the_disk_is_thrown_away_and_other_images_still_come() {
    for version in Version::ALL {
        let options = ContainerdOptions {
            image_filesystem: Some(64 << 20),
            ..ContainerdOptions::default()
        };
        let node = LoneRuntime::start(version, options).await;
        let large = ImageSpec::scratch().layer(1, 100_000_000);
        let large = node.push("lab/large:1", &large).await;
        let small = node.push("lab/small:1", &ImageSpec::small(2)).await;
        let agent = start(&node, &Timing::default());
        agent.wants_specs([("a", spec(&[&large]))].into_iter());
        let is_full = |report: &NodeImageCacheStatus| {
            report
                .images
                .iter()
                .any(|image| image.reason == Some(Reason::NoSpace))
        };
        agent.until("it to say so", is_full).await;
        agent.wants_specs([("a", spec(&[&large, &small]))].into_iter());
        agent
            .until("the small one", |report| report.ready == 1)
            .await;
        node.until_no_lease_is_left().await;
    }
}
