//! A tag that moves is followed, by interval and by annotation; a registry that is away takes nothing back.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::node_image_cache::ImageReport;
use imagecache_agent::api::{ImageCacheStatus, ImageState, REFRESH, Reason};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{ClusterOptions, Fault, FaultProxy, ImageSpec, Listen, Rule, Version, wait_for};

use super::fleet::{Fleet, SOON, is, message, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_tag_that_moved_is_on_every_node_after_the_next_refresh() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let (proxy, moving, fixed) = two_images(fleet).await?;
        let before = digest(fleet, "lab/moving:latest", 1).await?;
        fleet
            .set(
                "all",
                json!({
                    "cacheSpec": [{"images": [moving, fixed]}],
                    "refreshInterval": "2s",
                }),
            )
            .await?;
        fleet.until_ready("all", SOON).await?;
        until_everywhere(fleet, &moving, &before).await?;

        let after = digest(fleet, "lab/moving:latest", 7).await?;
        until_everywhere(fleet, &moving, &after).await?;
        fleet
            .until("all", "to say so", SOON, |status| {
                let mut images = status.images.iter();
                let image = images.find(|image| image.image == moving);
                let digests = &image.context("it is not listed")?.digests;
                ensure!(*digests == [after.clone()], "{digests:?}");
                is(status, "Ready", "True", "AllNodesReady")
            })
            .await?;

        // A refresh of what did not move is one request of each node, and what is not latest is never asked for again.
        proxy.forget();
        wait_for("several refreshes", SOON, async || {
            ensure!(requests(&proxy, "moving").len() >= 12);
            Ok(())
        })
        .await?;
        let others: Vec<_> = requests(&proxy, "moving")
            .into_iter()
            .filter(|request| !request.starts_with("HEAD /v2/lab/moving/manifests/latest"))
            .collect();
        ensure!(others.is_empty(), "{others:?}");
        ensure!(requests(&proxy, "fixed").is_empty());

        // The registry is away.
        proxy.add(Rule::new(Fault::status(503)));
        for node in ["n1", "n2", "n3"] {
            wait_for(format!("{node} to say so"), SOON, async || {
                let image = image(fleet, node, &moving).await?;
                ensure!(image.reason == Some(Reason::RefreshFailed), "{image:?}");
                ensure!(image.state == ImageState::Ready && image.next_attempt.is_some());
                let message = image.message.unwrap_or_default();
                ensure!(message.starts_with("RegistryUnavailable: "), "{message}");
                Ok(())
            })
            .await?;
        }
        is(
            &fleet.status("all").await?,
            "Ready",
            "True",
            "AllNodesReady",
        )?;

        // The log tells of what was pulled, and of a cause once.
        wait_for("a second attempt", SOON, async || {
            let image = image(fleet, "n1", &moving).await?;
            ensure!(image.attempts >= Some(2), "{image:?}");
            Ok(())
        })
        .await?;
        let log = fleet.agent("n1")?.log_tail(2000);
        let lines = |words: &str| {
            let about = |line: &&str| line.contains(words) && line.contains(&moving);
            log.lines().filter(about).count()
        };
        let told = [lines(" INFO pulled "), lines(" WARN the pull failed ")];
        ensure!(told == [2, 1], "{told:?}:\n{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_new_value_of_the_annotation_asks_for_every_image_once() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let (proxy, moving, fixed) = two_images(fleet).await?;
        let spec = json!({
            "cacheSpec": [{"images": [moving, fixed]}],
            "imagePullPolicy": "IfNotPresent",
        });
        fleet.set("all", spec).await?;
        fleet.until_ready("all", SOON).await?;
        let moved = digest(fleet, "lab/fixed:1", 8).await?;
        proxy.forget();
        annotate(fleet, "once").await?;
        until_acted_on(fleet, "once").await?;
        until_everywhere(fleet, &fixed, &moved).await?;
        for name in ["moving", "fixed"] {
            let asked = requests(&proxy, name);
            let heads = asked.iter().filter(|asked| asked.starts_with("HEAD"));
            ensure!(heads.count() == 3, "{asked:?}");
        }

        // An agent that was away finds out when it comes back, and one that has acted asks nothing.
        fleet.agent("n1")?.kill9()?;
        proxy.forget();
        annotate(fleet, "twice").await?;
        fleet.start_agent("n1", &[]).await?;
        until_acted_on(fleet, "twice").await?;
        fleet.agent("n2")?.kill9()?;
        proxy.forget();
        fleet.start_agent("n2", &[]).await?;
        fleet.label("n2", "seen", Some("again")).await?;
        fleet
            .set(
                "other",
                json!({"cacheSpec": [{"images": [fleet.image("lab/other:1")]}]}),
            )
            .await?;
        fleet.until_ready("other", SOON).await?;
        let asked = [requests(&proxy, "moving"), requests(&proxy, "fixed")].concat();
        ensure!(asked.is_empty(), "{asked:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_tag_that_moved_between_two_nodes_pulls_is_a_drift_until_all_have_asked_again()
-> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let moving = fleet.image("lab/moving:latest");
        let before = digest(fleet, "lab/moving:latest", 1).await?;
        let spec = json!({
            "cacheSpec": [{"images": [moving], "nodeSelector": {"tier": "backend"}}],
            "imagePullPolicy": "IfNotPresent",
        });
        fleet.set("all", spec).await?;
        fleet.label("n1", "tier", Some("backend")).await?;
        fleet.until_ready("all", SOON).await?;
        let after = digest(fleet, "lab/moving:latest", 7).await?;
        fleet.label("n2", "tier", Some("backend")).await?;
        let digests = async |expected: &[&String], degraded, reason| {
            let expected: BTreeSet<_> = expected.iter().copied().collect();
            let check = |status: &ImageCacheStatus| {
                let mut images = status.images.iter();
                let image = images.find(|image| image.image == moving);
                let digests = &image.context("it is not listed")?.digests;
                ensure!(
                    digests.iter().collect::<BTreeSet<_>>() == expected,
                    "{digests:?}"
                );
                is(status, "Ready", "True", "AllNodesReady")?;
                is(status, "Degraded", degraded, reason)
            };
            let what = format!("to say {reason}");
            fleet.until("all", &what, SOON, check).await
        };
        let status = digests(&[&before, &after], "True", "DigestDrift").await?;
        let said = message(&status, "Degraded");
        ensure!(said.contains("lab/moving"), "{said}");
        annotate(fleet, "once").await?;
        digests(&[&after], "False", "Healthy").await.map(drop)
    })
    .await
}

/// Images behind a proxy that counts what is asked for, as the nodes name them.
async fn two_images(fleet: &Fleet) -> Result<(FaultProxy, String, String)> {
    let registry = fleet.cluster.registry();
    let proxy = FaultProxy::start(fleet.cluster.lab(), Listen::Bridge, registry.address()).await?;
    for node in fleet.cluster.nodes() {
        let runtime = node.containerd();
        runtime.mirror(&proxy.host(), &proxy.url(), None)?;
    }
    for (name, seed) in [
        ("lab/moving:latest", 1),
        ("lab/fixed:1", 2),
        ("lab/other:1", 3),
    ] {
        digest(fleet, name, seed).await?;
    }
    let (moving, fixed) = (
        proxy.reference("lab/moving:latest"),
        proxy.reference("lab/fixed:1"),
    );
    Ok((proxy, moving, fixed))
}

/// Pushes an image under this name, and returns its digest.
async fn digest(fleet: &Fleet, name: &str, seed: u64) -> Result<String> {
    let registry = fleet.cluster.registry();
    registry.push(name, &ImageSpec::small(seed)).await
}

/// The requests for images of this name.
fn requests(proxy: &FaultProxy, name: &str) -> Vec<String> {
    let requests = proxy.requests().into_iter();
    requests
        .map(|request| format!("{} {}", request.method, request.path))
        .filter(|request| request.contains(&format!("/lab/{name}/")))
        .collect()
}

async fn image(fleet: &Fleet, node: &str, name: &str) -> Result<ImageReport> {
    let report = fleet.report(node).await?.context("no report")?;
    let mut images = report.images.into_iter();
    images
        .find(|image| image.image == name)
        .context("not reported")
}

async fn until_everywhere(fleet: &Fleet, name: &str, digest: &str) -> Result<()> {
    for node in ["n1", "n2", "n3"] {
        wait_for(
            format!("{name} to mean {digest} on {node}"),
            SOON,
            async || {
                let image = image(fleet, node, name).await?;
                ensure!(image.digest.as_deref() == Some(digest), "{image:?}");
                Ok(())
            },
        )
        .await?;
    }
    Ok(())
}

async fn annotate(fleet: &Fleet, value: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {REFRESH: value}}});
    let params = PatchParams::default();
    fleet
        .caches()
        .patch("all", &params, &Patch::Merge(&patch))
        .await?;
    Ok(())
}

async fn until_acted_on(fleet: &Fleet, value: &str) -> Result<()> {
    for node in ["n1", "n2", "n3"] {
        wait_for(format!("{node} to act on {value}"), SOON, async || {
            let report = fleet.report(node).await?.context("no report")?;
            let mut caches = report.caches.into_iter();
            let cache = caches
                .find(|cache| cache.name == "all")
                .context("not there")?;
            ensure!(
                cache.refresh.as_deref() == Some(value),
                "{:?}",
                cache.refresh
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}
