//! When nothing changes, nothing is asked and nothing is written.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{ClusterOptions, Version};

use super::fleet::{SOON, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_minute_in_steady_state_costs_no_write_and_no_registry_request() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        let names = ["lab/a:1", "lab/b:1", "lab/c:1"];
        fleet.push(&names).await?;
        let images = names.map(|name| fleet.image(name));
        fleet
            .set("steady", json!({"cacheSpec": [{"images": images}]}))
            .await?;
        fleet.until_ready("steady", SOON).await?;
        // What a busy machine has still under way ends first.
        tokio::time::sleep(Duration::from_secs(3)).await;

        let (api, registry) = (fleet.cluster.api_mark(), fleet.cluster.registry().mark());
        tokio::time::sleep(Duration::from_mins(1)).await;
        let asked = fleet.cluster.registry().requests(registry);
        ensure!(asked.is_empty(), "{asked:?}");
        let writes: Vec<_> = fleet
            .cluster
            .api_requests(api)
            .into_iter()
            .filter(|request| request.user.contains("imagecache-agent"))
            .filter(|request| {
                matches!(
                    request.verb.as_str(),
                    "create" | "update" | "patch" | "delete"
                )
            })
            // Whoever is elected renews that, wherever nothing else happens.
            .filter(|request| request.resource != "leases")
            .collect();
        ensure!(writes.is_empty(), "{writes:?}");
        Ok(())
    })
    .await
}
