//! An agent that starts before anything else is there waits, says what for, and goes on.

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::condition::find;
use serde_json::json;
use testbed::{ClusterOptions, Node, Process, Version, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fleet::{Fleet, SOON};

/// Where the second agent of a node is asked.
const ADMIN_PORT: u16 = 19848;

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

/// Asks `/readyz` of the second agent of a node until the answer has this status and these words. The node's busybox
/// would not show the words of an answer that is no success.
async fn until_readyz(node: &Node, status: &str, words: &str) -> Result<()> {
    wait_for(
        format!("/readyz to say {status}: {words}"),
        SOON,
        async || {
            let mut stream = TcpStream::connect((node.address(), ADMIN_PORT)).await?;
            let request = "GET /readyz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let first = format!("HTTP/1.1 {status} ");
            ensure!(
                answer.starts_with(&first) && answer.contains(words),
                "{answer}"
            );
            Ok(())
        },
    )
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
    until_said(agent, "waiting for the Node object").await?;

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
        let node = fleet.cluster.node("n1")?;
        let mut command = node.command(super::fleet::AGENT);
        command
            .args([
                "run",
                "--runtime-endpoint=/run/containerd/containerd.sock",
                &format!("--admin-addr={}:{ADMIN_PORT}", node.address()),
            ])
            .env("NODE_NAME", "n1")
            .env("KUBECONFIG", kubeconfig);
        let second = node.spawn("second", command)?;
        let taken = "another agent already serves this runtime";
        until_said(&second, taken).await?;
        until_readyz(node, "503", &format!("- runtime: {taken}")).await?;
        ensure!(second.status().is_none(), "it ended");
        // What the first one reports is not contradicted.
        let report = fleet.report("n1").await?.context("no report")?;
        let ready = find(&report.conditions, "RuntimeReady").context("no condition")?;
        ensure!(ready.status == "True", "{}", ready.message);
        ensure!(!second.log().contains("report"), "{}", second.log());
        // The first one goes: the second one takes over.
        fleet.agent("n1")?.terminate()?;
        until_said(&second, "the runtime answers").await?;
        until_readyz(node, "200", "ready").await
    })
    .await
}
