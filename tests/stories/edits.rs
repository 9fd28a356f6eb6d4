//! Every edit is legal at any time, and the last one counts.

use std::env;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::{Value, json};
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Version};

use super::fleet::{SOON, story};

/// Set to what a run has printed, this plays the edits of that run again.
const SEED: &str = "EDITS_SEED";

fn seed() -> Result<u64> {
    match env::var(SEED) {
        Ok(seed) => seed
            .parse()
            .with_context(|| format!("{SEED} is {seed:?}, which is no number")),
        Err(_) => Ok(fastrand::u64(..)),
    }
}

/// Any spec: a list or two, each for all nodes or for one, with some of the small images and, as often as not, the
/// slow one.
fn any_spec(rng: &mut Rng, small: &[String], slow: &str) -> Value {
    let lists = rng.usize(1..=2);
    let lists: Vec<_> = (0..lists).map(|_| any_list(rng, small, slow)).collect();
    let (priority, paused) = (rng.i32(-1..=1), rng.u8(..5) == 0);
    json!({"cacheSpec": lists, "priority": priority, "paused": paused})
}

fn any_list(rng: &mut Rng, small: &[String], slow: &str) -> Value {
    let amount = rng.usize(1..=3);
    let mut images: Vec<&str> = rng
        .choose_multiple(small, amount)
        .into_iter()
        .map(String::as_str)
        .collect();
    if rng.bool() {
        let place = rng.usize(..=images.len());
        images.insert(place, slow);
    }
    let mut list = json!({"images": images});
    if rng.u8(..4) == 0 {
        let node = format!("n{}", rng.u8(1..=3));
        list["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
    list
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn twenty_edits_during_a_slow_pull_end_with_the_last_one() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let lab = fleet.cluster.lab().clone();
        let registry = fleet.cluster.registry();
        registry
            .push("lab/slow:1", &ImageSpec::scratch().layer(9, 40_000_000))
            .await?;
        let names: Vec<String> = (0..6).map(|n| format!("lab/small:{n}")).collect();
        fleet
            .push(&names.iter().map(String::as_str).collect::<Vec<_>>())
            .await?;
        let proxy = FaultProxy::start(&lab, Listen::Bridge, registry.address()).await?;
        proxy.limit(Some(500_000));
        for node in fleet.cluster.nodes() {
            node.containerd()
                .mirror(&proxy.host(), &proxy.url(), None)?;
        }
        let slow = proxy.reference("lab/slow:1");

        let seed = seed()?;
        println!("{SEED}={seed}");
        let rng = &mut Rng::with_seed(seed);
        let small: Vec<_> = names.iter().map(|name| fleet.image(name)).collect();
        // The first one begins the slow pull, and the last one ends it.
        let mut specs = vec![json!({"cacheSpec": [{"images": [slow]}]})];
        specs.extend((0..18).map(|_| any_spec(rng, &small, &slow)));
        let last = json!({"cacheSpec": [{"images": rng.choose_multiple(&small, 3)}]});
        specs.push(last.clone());
        let mut newest = 0;
        for spec in specs {
            newest = fleet
                .set("edited", spec)
                .await?
                .metadata
                .generation
                .expect("a generation");
            tokio::time::sleep(Duration::from_millis(rng.u64(..1000))).await;
        }
        let edited = fleet.until_ready("edited", SOON).await?;
        ensure!(edited.observed_generation == newest);
        ensure!(
            edited.images.iter().all(|image| image.image != slow),
            "a removed image is in the status"
        );
        for node in fleet.cluster.nodes() {
            let report = fleet.report(node.name()).await?.expect("it has reported");
            ensure!(
                report.pulling == 0 && report.images.len() == 3,
                "{report:?}"
            );
        }

        // The same as a fresh create of the last spec.
        fleet.set("fresh", last).await?;
        let fresh = fleet.until_ready("fresh", SOON).await?;
        let without_time = |mut status: imagecache_agent::api::ImageCacheStatus| {
            status.observed_generation = 0;
            for node in &mut status.nodes {
                node.observed_generation = 0;
            }
            for condition in &mut status.conditions {
                condition.observed_generation = None;
                condition.last_transition_time.0 = jiff::Timestamp::default();
            }
            status
        };
        ensure!(without_time(fresh) == without_time(edited));
        // The pull that nobody wants any more was given up: the registry sends nothing more.
        proxy.forget();
        tokio::time::sleep(Duration::from_secs(1)).await;
        ensure!(proxy.requests().is_empty(), "{:?}", proxy.requests());
        Ok(())
    })
    .await
}
