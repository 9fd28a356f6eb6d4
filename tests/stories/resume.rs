//! What was downloaded once is not downloaded again, whatever ends a pull; and nothing of it is left when it is no longer needed.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use imagecache_agent::runtime::{Containerd, Endpoint, Runtime};
use serde_json::json;
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Node, Version, wait_for};

use super::fleet::{SOON, story_with};

const LAYERS: u64 = 6;
const LAYER: u64 = 50_000_000;
/// What nobody wants any more is kept for 10 s, not for 10 min.
const FLAGS: [&str; 1] = ["--divide-delays=60"];
const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_that_is_interrupted_six_times_is_downloaded_once() -> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &FLAGS,
        async |fleet| {
            let lab = fleet.cluster.lab().clone();
            let registry = fleet.cluster.registry();
            let image = (0..LAYERS).fold(ImageSpec::scratch(), |image, layer| {
                image.layer(layer, 50_000_000)
            });
            registry.push("lab/large:1", &image).await?;
            let proxy = FaultProxy::start(&lab, Listen::Bridge, registry.address()).await?;
            for node in fleet.cluster.nodes() {
                node.containerd()
                    .mirror(&proxy.host(), &proxy.url(), None)?;
            }
            let large = json!({"cacheSpec": [{"images": [proxy.reference("lab/large:1")]}]});
            let other = json!({"cacheSpec": [{"images": [proxy.reference("lab/none:1")]}]});
            let has = async |share: u64| {
                wait_for(
                    format!("{share} sevenths of it everywhere"),
                    SOON * 3,
                    async || {
                        for (agent, bytes) in downloaded(&proxy) {
                            ensure!(
                                bytes >= share * LAYERS * LAYER / 7,
                                "{agent} has {bytes} bytes"
                            );
                        }
                        ensure!(downloaded(&proxy).len() == NODES.len());
                        Ok(())
                    },
                )
                .await
            };

            proxy.limit(Some(60_000_000));
            fleet.set("large", large.clone()).await?;
            for share in [1, 3, 5] {
                // Cancelled: nobody wants it for a moment.
                has(share).await?;
                fleet.set("large", other.clone()).await?;
                nobody_downloads(&proxy).await?;
                fleet.set("large", large.clone()).await?;
                // Killed, and started again.
                has(share + 1).await?;
                for node in NODES {
                    fleet.agent(node)?.kill9()?;
                }
                for node in NODES {
                    fleet.start_agent(node, &FLAGS).await?;
                }
            }
            proxy.limit(None);
            fleet.until_ready("large", SOON * 3).await?;

            for (agent, bytes) in downloaded(&proxy) {
                let whole = LAYERS * LAYER;
                println!("{agent}: {bytes} bytes of {whole}");
                ensure!(
                    bytes * 100 <= whole * 105,
                    "{agent} downloaded {bytes} bytes"
                );
            }
            for node in fleet.cluster.nodes() {
                wait_for(
                    format!("{} to have no lease", node.name()),
                    SOON,
                    async || {
                        let leases = containerd(node).await?.leases().await?;
                        ensure!(leases.is_empty(), "{leases:?}");
                        Ok(())
                    },
                )
                .await?;
            }
            Ok(())
        },
    )
    .await
}

/// The bytes of layers that each runtime got: they are told apart by their versions.
fn downloaded(proxy: &FaultProxy) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for request in proxy.requests() {
        if request.path.contains("/blobs/") {
            *bytes.entry(request.agent).or_default() += request.bytes;
        }
    }
    bytes
}

async fn nobody_downloads(proxy: &FaultProxy) -> Result<()> {
    let mut before = BTreeMap::new();
    wait_for("the downloads to end", SOON, async || {
        let now = downloaded(proxy);
        let moved = now != before;
        before = now;
        ensure!(!moved, "bytes still come");
        Ok(())
    })
    .await
}

async fn containerd(node: &Node) -> Result<Containerd> {
    let endpoint: Endpoint = node.socket().to_string_lossy().parse()?;
    let containerd = Containerd::ask(&Runtime::new(endpoint, SOON)).await?;
    containerd.ok_or_else(|| anyhow::anyhow!("no containerd on {}", node.name()))
}
