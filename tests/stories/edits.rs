//! Every edit is legal at any time, and the last one counts.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Version};

use super::fleet::{SOON, story};

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

        let spec = |edit: usize| -> Value {
            let images: Vec<_> = (0..3)
                .map(|n| fleet.image(&names[(edit * 5 + n) % names.len()]))
                .collect();
            let mut images = images;
            if edit.is_multiple_of(2) {
                images.insert(0, slow.clone());
            }
            json!({"cacheSpec": [{"images": images}], "priority": edit % 3})
        };
        let mut newest = 0;
        for edit in 0..20 {
            newest = fleet
                .set("edited", spec(edit))
                .await?
                .metadata
                .generation
                .expect("a generation");
            tokio::time::sleep(Duration::from_millis(500)).await;
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
        fleet.set("fresh", spec(19)).await?;
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
