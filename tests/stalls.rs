//! Pulls that stall, pulls that only look like it, and pulls that make way for others: with three real containerds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod agent_loop;
mod lone_runtime;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use imagecache_agent::agent::Settings;
use imagecache_agent::api::image_cache::ImagePullPolicy;
use imagecache_agent::api::{ImageCacheSpec, ImageState, NodeImageCacheStatus, Reason};
use imagecache_agent::decide::Timing;
use testbed::{Fault, ImageSpec, Rule, wait_for};

use agent_loop::{Agent, SOON, settings, spec};
use lone_runtime::{LoneRuntime, endpoint, on_every_version};

fn start(node: &LoneRuntime) -> Agent {
    Agent::with(settings_for(node))
}

fn settings_for(node: &LoneRuntime) -> Settings {
    settings(endpoint(&node.server.socket()), &Timing::default())
}

/// These images, whose pulls may make no progress for so many seconds.
fn patient(images: &[&str], seconds: u64) -> ImageCacheSpec {
    let mut spec = spec(images);
    spec.pull_progress_timeout.0.0 = Duration::from_secs(seconds);
    spec
}

fn reason(report: &NodeImageCacheStatus, image: &str) -> Option<Reason> {
    let mut images = report.images.iter();
    images.find(|report| report.image == image)?.reason
}

/// How often each layer and configuration was asked for, and their bytes.
fn blobs(node: &LoneRuntime) -> BTreeMap<String, (usize, u64)> {
    let mut blobs = BTreeMap::<_, (usize, u64)>::new();
    for request in node.proxy.requests() {
        if request.method == "GET" && request.path.contains("/blobs/") {
            let path = request.path.split('?').next().unwrap_or_default();
            let blob = blobs.entry(path.to_owned()).or_default();
            *blob = (blob.0 + 1, blob.1 + request.bytes);
        }
    }
    blobs
}

/// 30 MB in one layer.
fn large(seed: u64) -> ImageSpec {
    ImageSpec::scratch().layer(seed, 30_000_000)
}

/// What has come of the blobs at this path.
fn bytes_of(node: &LoneRuntime, path: &str) -> u64 {
    let blobs = blobs(node).into_iter();
    let there = blobs.filter(|(blob, _)| blob.contains(path));
    there.map(|(_, (_, bytes))| bytes).sum()
}

async fn until_bytes(node: &LoneRuntime, path: &str, least: u64) {
    wait_for(format!("{least} bytes of {path}"), SOON, async || {
        let bytes = bytes_of(node, path);
        anyhow::ensure!(bytes >= least, "{bytes}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Of each large layer at this path: how often it was asked for. No byte of it may have come twice.
fn came_once(node: &LoneRuntime, path: &str) -> Vec<usize> {
    let mut asked = Vec::new();
    for (path, (times, bytes)) in blobs(node)
        .into_iter()
        .filter(|(blob, _)| blob.contains(path))
    {
        if bytes > 1_000_000 {
            println!(
                "{}: {path}: {bytes} bytes in {times} requests",
                node.version
            );
            assert!(bytes <= 31_500_000, "{path}: {bytes} bytes");
            asked.push(times);
        }
    }
    asked
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_pull_that_stalls_is_seen_frees_its_slots_and_goes_on_later() {
    on_every_version(async |node| {
        // Below the first MiB of each layer, where containerd 2 itself sees nothing; it has three slots for all images.
        let layers = (0..3).fold(ImageSpec::scratch(), |image, seed| {
            image.layer(seed, 5_000_000)
        });
        let stuck = node.push("lab/stuck:1", &layers).await;
        let tiny = node.push("lab/tiny:1", &ImageSpec::small(9)).await;
        let rule = Rule::new(Fault::StallAt(100_000));
        node.proxy
            .add(rule.method("GET").path("/v2/lab/stuck/blobs/"));
        // The other image has to wait for the agent's slot too.
        let agent = Agent::with(Settings {
            max_parallel_pulls: 1,
            ..settings_for(&node)
        });
        agent.wants_specs([("a", patient(&[&stuck], 4))].into_iter());
        wait_for("the layers to stall", SOON, async || {
            let layers = blobs(&node)
                .into_iter()
                .filter(|(path, (_, bytes))| path.contains("/stuck/") && *bytes == 100_000);
            anyhow::ensure!(layers.count() == 3, "{:?}", blobs(&node));
            Ok(())
        })
        .await
        .unwrap();
        let begun = Instant::now();
        agent.wants_specs([("a", patient(&[&stuck, &tiny], 4))].into_iter());
        let stalls =
            |report: &NodeImageCacheStatus| reason(report, &stuck) == Some(Reason::Stalled);
        let report = agent.until("the stall to be seen", stalls).await;
        let took = begun.elapsed();
        println!("{}: seen after {took:?}: {:?}", node.version, report.images);
        assert!(took < Duration::from_secs(4 + 5), "{took:?}");
        assert!(agent.pulls("Stalled") > 0);
        agent
            .until("the other image", |report| report.ready == 1)
            .await;
        node.proxy.clear();
        agent.until("both", |report| report.ready == 2).await;
        node.until_no_lease_is_left().await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_registry_that_takes_the_question_and_says_nothing_is_a_stall() {
    on_every_version(async |node| {
        let image = node.push("lab/a:1", &ImageSpec::small(1)).await;
        node.proxy.add(Rule::new(Fault::Silence));
        let agent = start(&node);
        agent.wants_specs([("a", patient(&[&image], 2))].into_iter());
        let stalls =
            |report: &NodeImageCacheStatus| reason(report, &image) == Some(Reason::Stalled);
        let report = agent.until("the stall to be seen", stalls).await;
        let message = report.images.first().unwrap().message.clone().unwrap();
        assert!(message.contains("has not answered"), "{message}");
        node.proxy.clear();
        agent.until("it", |report| report.ready == 1).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_registry_that_never_answers_does_not_keep_the_slots_from_another_one() {
    on_every_version(async |node| {
        let mut images = Vec::new();
        for n in 0..20 {
            images.push(
                node.push(&format!("lab/silent{n}:1"), &ImageSpec::small(n))
                    .await,
            );
        }
        node.registry
            .push("lab/good:1", &ImageSpec::small(30))
            .await
            .unwrap();
        let good = node.registry.reference("lab/good:1");
        images.push(good.clone());
        node.proxy.add(Rule::new(Fault::Silence));
        let agent = start(&node);
        let begun = Instant::now();
        let images: Vec<_> = images.iter().map(String::as_str).collect();
        agent.wants_specs([("a", patient(&images, 3))].into_iter());
        let is_there = |report: &NodeImageCacheStatus| report.ready == 1;
        agent.until("the good one", is_there).await;
        let took = begun.elapsed();
        println!("{}: the good one after {took:?}", node.version);
        // Two at a time for 3 s each, the silent ones alone would take 30 s.
        assert!(took < Duration::from_secs(3 + 5), "{took:?}");
        let is_held = |report: &NodeImageCacheStatus| {
            let any = |reason| {
                let mut images = report.images.iter();
                images.any(|image| image.reason == Some(reason))
            };
            any(Reason::Stalled) && any(Reason::RegistryUnavailable)
        };
        agent.until("all to say why", is_held).await;
        node.proxy.clear();
        agent.until("all", |report| report.ready == 21).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn slow_progress_and_a_wait_for_a_slot_longer_than_the_timeout_are_no_stalls() {
    on_every_version(async |node| {
        let layers = (0..3).fold(ImageSpec::scratch(), |image, seed| {
            image.layer(seed, 9_000_000)
        });
        let slow = node.push("lab/slow:1", &layers).await;
        let next = node
            .push("lab/next:1", &ImageSpec::scratch().layer(8, 3_000_000))
            .await;
        // Each layer moves by 1 MiB a second or so.
        node.proxy.limit(Some(4_000_000));
        let agent = start(&node);
        let begun = Instant::now();
        agent.wants_specs([("a", patient(&[&slow, &next], 3))].into_iter());
        agent.until("both", |report| report.ready == 2).await;
        println!("{}: both after {:?}", node.version, begun.elapsed());
        assert!(begun.elapsed() > Duration::from_secs(6));
        let repeated: Vec<_> = blobs(&node)
            .into_iter()
            .filter(|(_, (times, _))| *times > 1)
            .collect();
        assert!(repeated.is_empty(), "{repeated:?}");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn unpacking_longer_than_the_timeout_is_no_stall() {
    on_every_version(async |node| {
        let names: Vec<String> = (0..8_000).map(|n| format!("d{}/f{n}", n % 100)).collect();
        let files: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), 0o644, name.as_bytes()))
            .collect();
        let image = node
            .push("lab/files:1", &ImageSpec::scratch().files(&files))
            .await;
        let agent = start(&node);
        agent.wants_specs([("a", patient(&[&image], 1))].into_iter());
        agent.until("it", |report| report.ready == 1).await;
        let last = node.proxy.requests().iter().map(|request| request.at).max();
        let took = last.unwrap().elapsed();
        println!("{}: unpacked within {took:?}", node.version);
        assert!(took > Duration::from_secs(1), "too fast to show anything");
        let blobs = blobs(&node);
        assert!(blobs.values().all(|(times, _)| *times == 1), "{blobs:?}");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn pulls_make_way_for_a_pod_and_lose_no_byte() {
    on_every_version(async |node| {
        let mut images = Vec::new();
        for n in 0..3 {
            images.push(node.push(&format!("lab/large:{n}"), &large(n)).await);
        }
        let pod = node.push("lab/pod:1", &large(10)).await;
        node.proxy.limit(Some(10_000_000));
        let agent = start(&node);
        let images: Vec<_> = images.iter().map(String::as_str).collect();
        agent.wants_specs([("a", spec(&images))].into_iter());
        until_bytes(&node, "/large/", 5_000_000).await;
        let yields = |report: &NodeImageCacheStatus| {
            let waits = |image: &&str| reason(report, image) == Some(Reason::Yielding);
            report.pulling == 0 && images.iter().any(waits)
        };
        let begun = Instant::now();
        let both = async {
            tokio::join!(
                node.runtime.pull(&pod, None),
                agent.until("it to make way", yields)
            )
        };
        let (pulled, report) = both.await;
        pulled.unwrap();
        println!(
            "{}: the pod's image after {:?}",
            node.version,
            begun.elapsed()
        );
        assert!(
            report
                .images
                .iter()
                .all(|image| image.state != ImageState::Failed)
        );
        assert!(report.images.iter().all(|image| image.attempts.is_none()));
        node.proxy.limit(None);
        agent.until("all", |report| report.ready == 3).await;
        assert_eq!(came_once(&node, "/large/").len(), 3);
        node.until_no_lease_is_left().await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn whoever_does_not_want_it_makes_no_way() {
    on_every_version(async |node| {
        let image = node.push("lab/large:1", &large(1)).await;
        let pod = node.push("lab/pod:1", &large(10)).await;
        node.proxy.limit(Some(10_000_000));
        let agent = Agent::with(Settings {
            yield_to_pods: false,
            ..settings_for(&node)
        });
        agent.wants_specs([("a", spec(&[&image]))].into_iter());
        until_bytes(&node, "/large/", 2_000_000).await;
        let ready = agent.until("it", |report| report.ready == 1);
        let (pulled, _) = tokio::join!(node.runtime.pull(&pod, None), ready);
        pulled.unwrap();
        assert_eq!(came_once(&node, "/large/"), [1]);
        assert_eq!(came_once(&node, "/pod/"), [1]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_refresh_that_makes_way_for_a_pod_loses_no_byte() {
    on_every_version(async |node| {
        let name = "lab/moving:latest";
        let image = node.push(name, &ImageSpec::small(1)).await;
        let pod = node.push("lab/pod:1", &large(10)).await;
        let agent = start(&node);
        let mut spec = spec(&[&image]);
        spec.image_pull_policy = Some(ImagePullPolicy::Always);
        spec.refresh_interval.0.0 = Duration::from_secs(1);
        agent.wants_specs([("a", spec)].into_iter());
        agent.until("it", |report| report.ready == 1).await;

        node.proxy.limit(Some(10_000_000));
        let moved = node.registry.push(name, &large(20)).await.unwrap();
        until_bytes(&node, "/moving/", 5_000_000).await;
        node.runtime.pull(&pod, None).await.unwrap();
        node.proxy.limit(None);
        let has_moved = |report: &NodeImageCacheStatus| {
            let mut images = report.images.iter();
            images.any(|image| image.digest.as_ref() == Some(&moved))
        };
        agent.until("what the tag means now", has_moved).await;
        let asked = came_once(&node, "/moving/");
        assert!(
            asked.iter().any(|times| *times > 1),
            "was it set aside? {asked:?}"
        );
        node.until_no_lease_is_left().await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_pod_that_goes_on_with_what_a_pull_has_left_is_made_way_for_too() {
    on_every_version(async |node| {
        let shared = ImageSpec::scratch().layer(1, 60_000_000);
        let shared = node.push("lab/shared:1", &shared).await;
        let own = ImageSpec::scratch().layer(2, 60_000_000);
        let own = node.push("lab/own:1", &own).await;
        let first = ImageSpec::scratch().layer(3, 6_000_000);
        let first = node.push("lab/first:1", &first).await;
        node.proxy.limit(Some(6_000_000));
        let agent = start(&node);
        agent.wants_specs([("a", spec(&[&shared, &own]))].into_iter());
        until_bytes(&node, "/shared/", 4_000_000).await;
        // A pod with two images: the agent has begun with the second one.
        node.runtime.pull(&first, None).await.unwrap();
        let before = bytes_of(&node, "/own/");
        let begun = Instant::now();
        node.runtime.pull(&shared, None).await.unwrap();
        let (took, more) = (begun.elapsed(), bytes_of(&node, "/own/") - before);
        println!("{}: {took:?}, meanwhile {more} bytes", node.version);
        assert!(took > Duration::from_secs(7), "too fast to show anything");
        assert!(more < 1_000_000, "{more} bytes");
        node.proxy.limit(None);
        agent.until("both", |report| report.ready == 2).await;
        node.until_no_lease_is_left().await;
    })
    .await;
}
