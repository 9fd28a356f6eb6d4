//! An agent that starts before anything else is there waits, says what for, and goes on.

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{ClusterOptions, Process, Version, wait_for};

use super::fleet::{Fleet, SOON};

async fn until_said(agent: &Process, words: &str) -> Result<()> {
    wait_for(format!("the agent to say {words:?}"), SOON, async || {
        ensure!(
            agent.log().contains(words),
            "it said last:\n{}",
            agent.log_tail(8)
        );
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_agent_that_comes_first_waits_and_says_what_for() -> Result<()> {
    let mut fleet = Fleet::without_agents(ClusterOptions::runtimes(&[Version::V2_4])).await?;
    fleet.apply_manifests().await?;
    fleet.push(&["lab/a:1"]).await?;
    let kubeconfig = fleet
        .cluster
        .agent_kubeconfig("imagecache-system", "imagecache-agent", "n1")
        .await?;
    fleet
        .cluster
        .kubectl(&[
            "delete",
            "-f",
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/manifests/crds/imagecaches.yaml"
            ),
            "-f",
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/manifests/crds/nodeimagecaches.yaml"
            ),
        ])
        .await?;
    fleet.cluster.kubectl(&["delete", "node", "n1"]).await?;
    fleet.cluster.node("n1")?.containerd().stop().await?;
    fleet.cluster.stop_api_server().await?;

    fleet.start_agent_with("n1", kubeconfig.as_os_str(), &[])?;
    let agent = fleet.agent("n1")?;
    until_said(agent, "API server unreachable").await?;
    until_said(
        agent,
        "there is no socket at /run/containerd/containerd.sock",
    )
    .await?;

    fleet.cluster.start_api_server().await?;
    until_said(agent, "imagecaches.imagecache.dev").await?;

    fleet.cluster.node("n1")?.containerd().start_again().await?;
    until_said(agent, "the runtime answers").await?;

    fleet.apply_manifests().await?;
    fleet
        .set(
            "first",
            json!({"cacheSpec": [{"images": [fleet.image("lab/a:1")]}]}),
        )
        .await?;
    fleet.cluster.create_node("n1").await?;
    let ready = fleet.until_ready("first", SOON * 2).await;
    let agent = fleet.agent("n1")?;
    ready.map_err(|error| agent.explain(error))?;
    ensure!(agent.status().is_none(), "the agent was restarted");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_second_agent_on_a_node_finds_the_lock_taken() -> Result<()> {
    super::fleet::story(ClusterOptions::runtimes(&[Version::V2_4]), async |fleet| {
        let kubeconfig = fleet
            .cluster
            .agent_kubeconfig("imagecache-system", "imagecache-agent", "n1")
            .await?;
        let mut command = fleet.cluster.node("n1")?.command(super::fleet::AGENT);
        command
            .args([
                "run",
                "--runtime-endpoint=/run/containerd/containerd.sock",
                "--admin-addr=127.0.0.1:19848",
            ])
            .env("NODE_NAME", "n1")
            .env("KUBECONFIG", kubeconfig);
        let second = fleet.cluster.node("n1")?.spawn("second", command)?;
        until_said(&second, "another agent already serves this runtime").await?;
        ensure!(second.status().is_none(), "it ended");
        // The first one goes: the second one takes over.
        fleet.agent("n1")?.terminate()?;
        until_said(&second, "the runtime answers").await
    })
    .await
}
