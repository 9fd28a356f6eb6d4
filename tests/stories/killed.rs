//! Whatever is killed, and whenever: it converges, and nothing is done twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use serde_json::json;
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Version, wait_for};

use super::fleet::{Fleet, SOON, story};

async fn leader(fleet: &Fleet) -> Result<String> {
    let leases = Api::<Lease>::namespaced(fleet.cluster.client(), "imagecache-system");
    let lease = leases.get("imagecache-agent").await?;
    let holder = lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .unwrap_or_default();
    let (node, _) = holder.split_once('_').context("nobody is elected")?;
    Ok(node.to_owned())
}

/// Fails unless each of the three nodes has pulled `lab/big:N`, and at most so many times: a pull asks for the tag's
/// manifest once, by HEAD. The nodes are told apart by the versions of their runtimes.
fn each_pulled(proxy: &FaultProxy, n: u32, most: usize) -> Result<()> {
    let manifest = format!("/lab/big/manifests/{n}");
    let mut pulls = BTreeMap::<_, usize>::new();
    for request in proxy.requests() {
        if request.method == "HEAD" && request.path.contains(&manifest) {
            *pulls.entry(request.agent).or_default() += 1;
        }
    }
    ensure!(
        pulls.len() == 3 && pulls.values().all(|times| *times <= most),
        "pulls of big:{n}, at most {most} by each of three: {pulls:?}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn agents_runtimes_and_api_server_are_killed_during_pulls() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let lab = fleet.cluster.lab().clone();
        let registry = fleet.cluster.registry();
        for n in 1..=3 {
            registry
                .push(
                    &format!("lab/big:{n}"),
                    &ImageSpec::scratch().layer(n, 6_000_000),
                )
                .await?;
        }
        let proxy = FaultProxy::start(&lab, Listen::Bridge, registry.address()).await?;
        for node in fleet.cluster.nodes() {
            node.containerd()
                .mirror(&proxy.host(), &proxy.url(), None)?;
        }
        let big =
            |n: u32| json!({"cacheSpec": [{"images": [proxy.reference(&format!("lab/big:{n}"))]}]});
        let pulling = async |n: u32| {
            wait_for(format!("three nodes to pull big:{n}"), SOON, async || {
                let requests = proxy.requests().into_iter();
                let blobs = requests.filter(|request| request.path.contains("/blobs/"));
                let nodes: BTreeSet<_> = blobs.map(|request| request.agent).collect();
                ensure!(nodes.len() == 3, "blobs are asked for by {nodes:?}");
                Ok(())
            })
            .await
        };

        // The agents are killed.
        proxy.limit(Some(3_000_000));
        fleet.set("big", big(1)).await?;
        pulling(1).await?;
        for node in ["n1", "n2", "n3"] {
            fleet.agent(node)?.kill9()?;
        }
        for node in ["n1", "n2", "n3"] {
            fleet.start_agent(node, &[]).await?;
        }
        proxy.limit(None);
        fleet.until_ready("big", SOON * 3).await?;
        // The pull that was killed, and one more.
        each_pulled(&proxy, 1, 2)?;

        // The runtimes are killed.
        proxy.forget();
        proxy.limit(Some(3_000_000));
        fleet.set("big", big(2)).await?;
        pulling(2).await?;
        for node in fleet.cluster.nodes() {
            node.containerd().kill9()?;
        }
        for node in fleet.cluster.nodes() {
            node.containerd().start_again().await?;
        }
        proxy.limit(None);
        fleet.until_ready("big", SOON * 3).await?;
        each_pulled(&proxy, 2, 2)?;

        // The API server is killed for a while: pulling goes on, the report catches up.
        proxy.forget();
        fleet.set("big", big(3)).await?;
        pulling(3).await?;
        fleet.cluster.kill9_api_server()?;
        let away = Instant::now();
        for node in ["n1", "n2", "n3"] {
            fleet
                .until_on(node, &proxy.reference("lab/big:3"), SOON)
                .await?;
        }
        tokio::time::sleep(Duration::from_secs(30).saturating_sub(away.elapsed())).await;
        fleet.cluster.start_api_server().await?;
        let status = fleet.until_ready("big", SOON * 3).await?;
        ensure!(status.ready_nodes == 3);
        for node in ["n1", "n2", "n3"] {
            ensure!(
                fleet.agent(node)?.status().is_none(),
                "the agent of {node} ended"
            );
            let report = fleet.report(node).await?.context("no report")?;
            ensure!(
                (report.ready, report.total, report.failed) == (1, 1, 0),
                "{report:?}"
            );
        }
        each_pulled(&proxy, 3, 1)
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn another_agent_takes_over_when_the_elected_one_is_killed() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        fleet.push(&["lab/a:1", "lab/b:1", "lab/c:1"]).await?;
        let spec = |name: &str| json!({"cacheSpec": [{"images": [fleet.image(name)]}]});
        let (first, second, third) = (spec("lab/a:1"), spec("lab/b:1"), spec("lab/c:1"));
        let mark = fleet.cluster.registry().mark();
        fleet.set("led", first).await?;
        fleet.until_ready("led", SOON).await?;

        // Killed: the next one is there within 30 s.
        let killed = leader(fleet).await?;
        fleet.agent(&killed)?.kill9()?;
        let since = Instant::now();
        fleet.set("led", second).await?;
        let limit = Duration::from_secs(30);
        fleet
            .until("led", "a summary by the next one", limit, |status| {
                ensure!(
                    status.ready_nodes >= 2,
                    "{} nodes are ready",
                    status.ready_nodes
                );
                Ok(())
            })
            .await?;
        ensure!(leader(fleet).await? != killed);
        println!(
            "taken over {:.1} s after the elected agent was killed",
            since.elapsed().as_secs_f64()
        );
        fleet.start_agent(&killed, &[]).await?;
        fleet.until_ready("led", SOON).await?;

        // Ended in peace: within 5 s.
        let ended = leader(fleet).await?;
        fleet.agent(&ended)?.terminate()?;
        let since = Instant::now();
        let exit = fleet.agent(&ended)?.wait(Duration::from_secs(5)).await?;
        ensure!(exit.success(), "{exit}");
        let said = fleet.agent(&ended)?.log();
        ensure!(!said.contains("not every task ended"), "a task hangs");
        wait_for(
            "another one to be elected",
            Duration::from_secs(5).saturating_sub(since.elapsed()),
            async || {
                let now = leader(fleet).await?;
                ensure!(now != ended, "still {now}");
                Ok(())
            },
        )
        .await?;
        println!(
            "taken over {:.1} s after the elected agent was ended",
            since.elapsed().as_secs_f64()
        );
        fleet.start_agent(&ended, &[]).await?;
        fleet.set("led", third).await?;
        fleet.until_ready("led", SOON).await?;

        // None of them was in the middle of a pull: each image was pulled once by each node.
        let asked = fleet.cluster.registry().requests(mark);
        for manifest in ["a", "b", "c"].map(|name| format!("/lab/{name}/manifests/1")) {
            let heads = asked.iter().filter(|request| request.method == "HEAD");
            let pulls = heads.filter(|head| head.path.contains(&manifest)).count();
            ensure!(pulls == 3, "{pulls} of {manifest} by three nodes");
        }
        Ok(())
    })
    .await
}
