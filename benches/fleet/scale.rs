//! One node that wants and has two thousand images, for two hundred `ImageCaches`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use imagecache_agent::api::ImageCache;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use testbed::ImageSpec;

use super::fleet::Fleet;
use super::measure::resident_megabytes;
use super::page::Number;

const CACHES: u64 = 200;
const IMAGES: u64 = 10;
const LIMIT: Duration = Duration::from_mins(20);

/// What that takes on the node.
pub async fn numbers(fleet: &Fleet) -> Result<Vec<Number>> {
    let names: Vec<String> = (0..CACHES * IMAGES)
        .map(|n| format!("scale/app-{n}:1"))
        .collect();
    push(fleet, &names).await?;
    fleet.label("n1", "scale", Some("yes")).await?;
    let caches = Api::<ImageCache>::namespaced(fleet.cluster.client(), "default");
    for (n, names) in names.chunks(usize::try_from(IMAGES)?).enumerate() {
        let images: Vec<_> = names.iter().map(|name| fleet.image(name)).collect();
        let object = serde_json::from_value(json!({
            "apiVersion": "imagecache.dev/v1alpha1", "kind": "ImageCache",
            "metadata": {"name": format!("scale-{n}")},
            "spec": {"cacheSpec": [{"images": images, "nodeSelector": {"scale": "yes"}}]},
        }))?;
        caches.create(&PostParams::default(), &object).await?;
    }
    let begun = Instant::now();
    let report = loop {
        let report = fleet.report("n1").await?.context("no report")?;
        println!(
            "after {:?}: {} of {} images",
            begun.elapsed(),
            report.ready,
            report.total
        );
        if u64::try_from(report.ready)? == CACHES * IMAGES {
            break report;
        }
        ensure!(begun.elapsed() < LIMIT, "not every image has come");
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    let (resident, _) = resident_megabytes(fleet.agent("n1")?.pid())?;
    #[allow(clippy::cast_precision_loss)]
    let kibibytes = serde_json::to_vec(&report)?.len() as f64 / 1024.0;
    let plan = slowest_plan(fleet)?;
    caches
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    fleet.label("n1", "scale", None).await?;
    Ok(vec![
        Number {
            what: "resident memory of a node's agent with 2,000 images for 200 ImageCaches",
            measured: format!("{resident:.1} MB"),
            aim: "48 MB",
            is_met: resident <= 48.0,
            note: "read right after the last image came".to_owned(),
        },
        Number {
            what: "a plan for them, 99 of 100",
            measured: format!("at most {:.1} ms", plan * 1e3),
            aim: "20 ms",
            is_met: plan <= 0.02,
            note: "the upper end of a bucket of imagecache_plan_duration_seconds, over all plans while they came".to_owned(),
        },
        Number {
            what: "the node's report of them",
            measured: format!("{kibibytes:.0} KiB"),
            aim: "512 KiB",
            is_met: kibibytes < 512.0,
            note: format!(
                "as JSON; it leaves {} images out and says so",
                report.images_omitted
            ),
        },
    ])
}

async fn push(fleet: &Fleet, names: &[String]) -> Result<()> {
    let begun = Instant::now();
    let registry = fleet.cluster.registry();
    futures::stream::iter((1_000_000..).zip(names))
        .map(|(seed, name)| async move {
            registry.push(name, &ImageSpec::small(seed)).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(4)
        .try_collect::<()>()
        .await?;
    println!("{} images pushed after {:?}", names.len(), begun.elapsed());
    Ok(())
}

/// The bucket that 99 of 100 plans of n1's agent stay within, in seconds.
fn slowest_plan(fleet: &Fleet) -> Result<f64> {
    let mut ask = fleet.cluster.node("n1")?.command("/bin/busybox");
    ask.args(["wget", "-q", "-O", "-", "http://127.0.0.1:19847/metrics"]);
    let text = String::from_utf8(ask.output()?.stdout)?;
    let buckets: Vec<(f64, f64)> = text
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("imagecache_plan_duration_seconds_bucket{le=\"")?;
            let (limit, count) = line.split_once("\"} ")?;
            let limit = if limit == "+Inf" {
                f64::INFINITY
            } else {
                limit.parse().ok()?
            };
            Some((limit, count.parse().ok()?))
        })
        .collect();
    let all = buckets.last().context("no plan was counted")?.1;
    let within = buckets.iter().find(|(_, count)| *count >= 0.99 * all);
    Ok(within.context("no bucket")?.0)
}
