//! Whatever is killed, and whenever: it converges, and nothing is done twice.

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
                let blobs = proxy
                    .requests()
                    .into_iter()
                    .filter(|request| request.path.contains("/blobs/"))
                    .count();
                ensure!(blobs >= 3, "{blobs} requests for blobs");
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
        Ok(())
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
        Ok(())
    })
    .await
}
