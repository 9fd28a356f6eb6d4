//! One bad image never holds up a good one, and each says what is wrong with it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::{ImageCacheStatus, ImageState, Reason};
use serde_json::json;
use testbed::{
    ClusterOptions, ImageSpec, Listen, Registry, RegistryOptions, Tls, Version, other_architecture,
};

use super::fleet::{SOON, is, message, story_with};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_good_image_is_ready_beside_every_kind_of_bad_one() -> Result<()> {
    // A missing tag is asked for again every 3 to 90 s instead of every 1 to 30 min.
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &["--divide-delays=20"],
        async |fleet| {
            let lab = fleet.cluster.lab().clone();
            let options = RegistryOptions {
                listen: Listen::Bridge,
                tls: Tls::SelfSigned,
                ..RegistryOptions::default()
            };
            let tls = Registry::start(&lab, "self-signed", options).await?;
            tls.push("lab/tls:1", &ImageSpec::small(1)).await?;
            let foreign = ImageSpec::small(2).architecture(other_architecture());
            let registry = fleet.cluster.registry();
            registry
                .push("lab/index:1", &ImageSpec::index(vec![foreign.clone()]))
                .await?;
            registry.push("lab/single:1", &foreign).await?;
            registry.push("lab/good:1", &ImageSpec::small(3)).await?;
            let closed = format!("{}:1/lab/closed:1", registry.address().ip());
            let (good, missing) = (fleet.image("lab/good:1"), fleet.image("lab/missing:1"));
            let expected = BTreeMap::from([
                (missing.clone(), (Reason::NotFound, "lab/missing:1")),
                (closed.clone(), (Reason::RegistryUnavailable, "refused")),
                (tls.reference("lab/tls:1"), (Reason::Tls, "certificate")),
                (
                    fleet.image("lab/index:1"),
                    (Reason::NoMatchingPlatform, "platform"),
                ),
                (
                    fleet.image("lab/single:1"),
                    (Reason::NoMatchingPlatform, other_architecture()),
                ),
            ]);
            let images: Vec<_> = expected.keys().cloned().chain([good.clone()]).collect();
            fleet
                .set("mixed", json!({"cacheSpec": [{"images": images}]}))
                .await?;

            let status = fleet
                .until(
                    "mixed",
                    "every cause to be known on every node",
                    SOON * 2,
                    |status| {
                        is(status, "Degraded", "True", "ImagesFailed")?;
                        on_three_nodes(status, &good)?;
                        let failed = status
                            .images
                            .iter()
                            .filter(|image| image.failed_nodes == 3)
                            .count();
                        ensure!(failed == 5, "{failed} images failed on all nodes");
                        Ok(())
                    },
                )
                .await?;
            ensure!(
                message(&status, "Degraded").contains("n1"),
                "{}",
                message(&status, "Degraded")
            );
            for node in ["n1", "n2", "n3"] {
                let report = fleet.report(node).await?.context("no report")?;
                for image in &report.images {
                    let Some((reason, word)) = expected.get(&image.image) else {
                        ensure!(image.state == ImageState::Ready, "{image:?}");
                        continue;
                    };
                    let said = image.message.clone().unwrap_or_default();
                    ensure!(
                        image.state == ImageState::Failed
                            && image.reason == Some(*reason)
                            && said.contains(word),
                        "{node}: {image:?}, expected {reason} with {word:?}"
                    );
                }
            }

            // The missing tag is pushed later: no hand is needed.
            fleet.push(&["lab/missing:1"]).await?;
            fleet
                .until("mixed", "the tag that was missing", SOON * 3, |status| {
                    on_three_nodes(status, &missing)
                })
                .await?;
            Ok(())
        },
    )
    .await
}

fn on_three_nodes(status: &ImageCacheStatus, image: &str) -> Result<()> {
    let listed = status.images.iter().find(|listed| listed.image == image);
    let ready = listed.context("it is not listed")?.ready_nodes;
    ensure!(ready == 3, "{image} is on {ready} nodes");
    Ok(())
}
