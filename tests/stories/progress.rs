//! A pull that takes a while says how far it is, everywhere where somebody may look.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Version, wait_for};

use super::fleet::{SOON, message, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_long_pull_is_seen_to_advance() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let registry = fleet.cluster.registry();
        let image = ImageSpec::scratch()
            .layer(1, 60_000_000)
            .layer(2, 60_000_000);
        registry.push("lab/long:1", &image).await?;
        let proxy =
            FaultProxy::start(fleet.cluster.lab(), Listen::Bridge, registry.address()).await?;
        for node in fleet.cluster.nodes() {
            let runtime = node.containerd();
            runtime.mirror(&proxy.host(), &proxy.url(), None)?;
        }
        proxy.limit(Some(9_000_000));
        let images = [proxy.reference("lab/long:1")];
        fleet
            .set("long", json!({"cacheSpec": [{"images": images}]}))
            .await?;

        let watch = ["get", "nodeic", "n1", "--no-headers", "--watch"];
        let watch = fleet.cluster.kubectl_command(&watch)?;
        let watch = fleet.cluster.lab().spawn("kubectl-watch", watch)?;
        wait_for("kubectl to show two steps", SOON * 3, async || {
            let shown = watch.log();
            // As in `12.0 of 114.4 MiB`, between columns that are two spaces apart.
            let columns = shown.lines().flat_map(|line| line.split("  "));
            let steps = columns.map(str::trim).filter(|said| said.ends_with("MiB"));
            let steps: BTreeSet<_> = steps.collect();
            ensure!(steps.len() >= 2, "{shown}");
            println!("{steps:?}");
            Ok(())
        })
        .await?;
        watch.stop(SOON).await?;
        let report = fleet.report("n1").await?.context("no report")?;
        let progress = report.images.first().and_then(|image| image.progress);
        let progress = progress.context("no progress")?;
        ensure!(
            0 < progress.done_bytes && progress.done_bytes < progress.total_bytes,
            "{progress:?}"
        );
        fleet
            .until("long", "to sum it up", SOON, |status| {
                let said = message(status, "Progressing");
                let begins = said.starts_with("0 of 3 images are there on 3 nodes, ");
                ensure!(begins && said.contains(" MiB; "), "{said}");
                Ok(())
            })
            .await?;
        let node = fleet.cluster.node("n1")?;
        let mut ask = node.command("/bin/busybox");
        ask.args(["wget", "-q", "-O", "-", "http://127.0.0.1:19847/metrics"]);
        let metrics = String::from_utf8(ask.output()?.stdout)?;
        let done = metrics
            .lines()
            .find_map(|line| line.strip_prefix("imagecache_downloading_done_bytes "))
            .context("no such metric")?;
        ensure!(done.parse::<u64>()? > 0, "{done}");
        wait_for("a line in the log", SOON * 2, async || {
            let log = fleet.agent("n1")?.log_tail(200);
            let line = log.lines().find(|line| line.contains("still pulling"));
            let line = line.with_context(|| log.clone())?;
            ensure!(
                line.contains("bytes_per_second=") && line.contains("seconds_left="),
                "{line}"
            );
            Ok(())
        })
        .await?;
        proxy.limit(None);
        fleet.until_ready("long", SOON).await?;
        let report = fleet.report("n1").await?.context("no report")?;
        ensure!(report.progress.is_none() && report.caches[0].done_bytes > 120_000_000);
        Ok(())
    })
    .await
}
