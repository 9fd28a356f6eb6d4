//! A list that matches no node blocks nothing, and is named.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{ClusterOptions, Version};

use super::fleet::{SOON, is, message, story};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_list_that_matches_no_node_blocks_nothing() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        fleet.push(&["app:1", "backend:1"]).await?;
        let [app, backend] = [fleet.image("app:1"), fleet.image("backend:1")];
        let spec = json!({"cacheSpec": [
            {"images": [app]},
            {"images": [backend], "nodeSelector": {"tier": "backend"}},
        ]});
        fleet.set("both", spec).await?;
        let status = fleet.until_ready("both", SOON).await?;
        ensure!(status.desired_nodes == 3 && status.ready_nodes == 3 && status.failed_nodes == 0);
        let said = message(&status, "Ready");
        ensure!(said.contains("cacheSpec[1] (tier=backend) matches no node"), "{said}");
        ensure!(status.lists.iter().map(|list| list.matched_nodes).eq([3, 0]));
        is(&status, "Progressing", "False", "Complete")?;
        is(&status, "Degraded", "False", "Healthy")?;

        // Where nothing matches at all: said once, and no agent writes anything for it.
        let mut before = Vec::new();
        for node in ["n1", "n2", "n3"] {
            before.push(fleet.report(node).await?);
        }
        let mark = fleet.cluster.api_mark();
        let spec = json!({"cacheSpec": [{"images": [fleet.image("backend:1")], "nodeSelector": {"tier": "nobody"}}]});
        fleet.set("nothing", spec).await?;
        let status = fleet
            .until("nothing", "to match no node", SOON, |status| is(status, "Ready", "False", "NoMatchingNodes"))
            .await?;
        ensure!(status.desired_nodes == 0 && status.nodes.is_empty());
        // An agent that had something to write would have written it by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let requests = fleet.cluster.api_requests(mark).into_iter();
        let writes: Vec<_> = requests
            .filter(|request| request.resource == "nodeimagecaches")
            .filter(|request| matches!(request.verb.as_str(), "create" | "update" | "patch" | "delete"))
            .collect();
        ensure!(writes.is_empty(), "{writes:?}");
        for (node, before) in ["n1", "n2", "n3"].into_iter().zip(before) {
            ensure!(fleet.report(node).await? == before, "{node} wrote something for a cache that does not select it");
        }

        // The moment that a matching Node appears it works, without anybody touching the object.
        fleet.label("n3", "tier", Some("nobody")).await?;
        let status = fleet.until_ready("nothing", SOON).await?;
        ensure!(status.desired_nodes == 1);
        Ok(())
    })
    .await
}
