//! What is measured, one function each.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use imagecache_agent::runtime::{Endpoint, Runtime};
use serde_json::json;
use testbed::{ClusterOptions, FaultProxy, ImageSpec, Listen, Node, Version, wait_for};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::fleet::{Fleet, SOON};
use super::page::Number;

/// Pulls at a time, of the agent and of the raw client.
const PARALLEL: usize = 2;
const ROUNDS: usize = 5;
const SMALL: usize = 20;
const LIMIT: Duration = Duration::from_mins(2);

/// Measures everything; `keep` is told the numbers so far after each step, so that a run that is ended early is not lost.
pub async fn all(program: &Path, keep: impl Fn(&[Number]) -> Result<()>) -> Result<()> {
    let mut fleet = Fleet::without_agents(ClusterOptions::runtimes(&Version::ALL)).await?;
    fleet.program = program.to_owned();
    fleet.apply_manifests().await?;
    let mut numbers = vec![size(program)?, start(&mut fleet).await?];
    fleet.start_agents(&[]).await?;
    numbers.push(requests(&fleet).await?);
    numbers.push(label(&fleet).await?);
    numbers.push(beside_missing(&fleet).await?);
    numbers.push(spec_to_wire(&fleet).await?);
    keep(&numbers)?;
    numbers.extend(pulls(&fleet).await?);
    keep(&numbers)?;
    numbers.push(large(&fleet).await?);
    keep(&numbers)?;
    numbers.extend(memory(&fleet).await?);
    keep(&numbers)
}

/// From the start of the process to `/readyz`.
async fn start(fleet: &mut Fleet) -> Result<Number> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        fleet.start_agent("n1", &[]).await?;
        let started = Instant::now();
        let node = fleet.cluster.node("n1")?;
        wait_for("the agent to be ready", SOON, async || {
            let mut curl = node.command("/bin/busybox");
            curl.args(["wget", "-q", "-O", "-", "http://127.0.0.1:19847/readyz"]);
            let answer = curl.output()?;
            ensure!(answer.status.success(), "not ready");
            Ok(())
        })
        .await?;
        times.push(started.elapsed());
        let agent = fleet.agent("n1")?;
        agent.terminate()?;
        agent.wait(Duration::from_secs(10)).await?;
    }
    let median = median(times);
    Ok(Number {
        what: "start of the process to ready",
        measured: seconds(median),
        aim: "0.5 s",
        is_met: median <= Duration::from_millis(500),
        note: format!("`/readyz`, asked every 25 ms; median of {ROUNDS}"),
    })
}

/// Twenty small images on one node and on three, and how long the status lags behind the last image.
async fn pulls(fleet: &Fleet) -> Result<Vec<Number>> {
    let (mut one, mut three, mut lag) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (selected, ratios) in [(1, &mut one), (3, &mut three)] {
            let raw = push_small(fleet, &format!("raw-{selected}-{round}")).await?;
            let ours = push_small(fleet, &format!("agent-{selected}-{round}")).await?;
            // Whoever comes first has no advantage on average.
            let nodes: Vec<_> = fleet.cluster.nodes().iter().take(selected).collect();
            let (raw, (agent, behind)) = if round.is_multiple_of(2) {
                (
                    raw_pulls(&nodes, &raw).await?,
                    agent_pulls(fleet, &nodes, &ours).await?,
                )
            } else {
                let agent = agent_pulls(fleet, &nodes, &ours).await?;
                (raw_pulls(&nodes, &raw).await?, agent)
            };
            println!(
                "{selected} nodes, round {round}: raw {raw:?}, agent {agent:?}, status behind by {behind:?}"
            );
            ratios.push(agent.as_secs_f64() / raw.as_secs_f64());
            lag.push(behind);
        }
    }
    let (one, three, lag) = (median_ratio(one), median_ratio(three), median(lag));
    Ok(vec![
        Number {
            what: "20 small images on one node, create to all present",
            measured: format!("{one:.2} × raw"),
            aim: "1.10",
            is_met: one <= 1.10,
            note: format!(
                "from the request that creates the object, so the write, the watch and a question per image are in it; median of {ROUNDS} pairs"
            ),
        },
        Number {
            what: "the same on three nodes at once",
            measured: format!("{three:.2} × raw"),
            aim: "1.15",
            is_met: three <= 1.15,
            note: format!(
                "the raw clients of the three nodes run at once too; the agents, the API server and what looks on share the cores with the three runtimes here; median of {ROUNDS} pairs"
            ),
        },
        Number {
            what: "last image present to the status says Ready",
            measured: seconds(lag),
            aim: "0.3 s",
            is_met: lag <= Duration::from_millis(300),
            note: format!("median of {} pulls", 2 * ROUNDS),
        },
    ])
}

async fn large(fleet: &Fleet) -> Result<Number> {
    let mut ratios = Vec::new();
    let nodes: Vec<_> = fleet.cluster.nodes().iter().take(1).collect();
    for round in 0..3_u64 {
        let mut names = Vec::new();
        for kind in ["raw", "agent"] {
            let name = format!("bench/large-{kind}:{round}");
            let seed = |layer| round * 100 + layer + if kind == "raw" { 50 } else { 0 };
            let image = (0..6).fold(ImageSpec::scratch(), |image, layer| {
                image.layer(seed(layer), 50_000_000)
            });
            fleet.cluster.registry().push(&name, &image).await?;
            names.push(vec![fleet.image(&name)]);
        }
        // Whoever comes second meets a disk that still writes.
        let (raw, agent) = if round.is_multiple_of(2) {
            let raw = raw_pulls(&nodes, &names[0]).await?;
            (raw, agent_pulls(fleet, &nodes, &names[1]).await?.0)
        } else {
            let agent = agent_pulls(fleet, &nodes, &names[1]).await?.0;
            (raw_pulls(&nodes, &names[0]).await?, agent)
        };
        println!("300 MB, round {round}: raw {raw:?}, agent {agent:?}");
        ratios.push(agent.as_secs_f64() / raw.as_secs_f64());
        for images in &names {
            nodes[0].containerd().remove(&images[0]).await?;
        }
    }
    let ratio = median_ratio(ratios);
    Ok(Number {
        what: "one image of 300 MB in six layers",
        measured: format!("{ratio:.2} × raw"),
        aim: "1.02",
        is_met: ratio <= 1.02,
        note: "containerd 2.4; median of 3 pairs".to_owned(),
    })
}

/// Requests to the API server from create to Ready.
async fn requests(fleet: &Fleet) -> Result<Number> {
    let mut counts = Vec::new();
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..10)
            .map(|n| format!("bench/requests-{round}:{n}"))
            .collect();
        fleet
            .push(&names.iter().map(String::as_str).collect::<Vec<_>>())
            .await?;
        let images: Vec<_> = names.iter().map(|name| fleet.image(name)).collect();
        let mark = fleet.cluster.api_mark();
        fleet
            .set("requests", json!({"cacheSpec": [{"images": images}]}))
            .await?;
        fleet.until_ready("requests", LIMIT).await?;
        let requests = fleet.cluster.api_requests(mark);
        let ours = requests
            .iter()
            .filter(|request| request.user.contains("imagecache-agent") && request.verb != "watch")
            .filter(|request| request.resource != "leases")
            .count();
        counts.push(ours);
        remove(fleet, "requests").await?;
    }
    counts.sort_unstable();
    let count = counts[counts.len() / 2];
    Ok(Number {
        what: "API requests for 10 images on each of three nodes, create to Ready",
        measured: count.to_string(),
        aim: "12",
        is_met: count <= 12,
        note: format!(
            "without watches, and without the election's, which go on at all times; median of {ROUNDS}"
        ),
    })
}

async fn label(fleet: &Fleet) -> Result<Number> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("bench/label:{round}");
        fleet.push(&[&name]).await?;
        let image = fleet.image(&name);
        let spec = json!({"cacheSpec": [{"images": [image], "nodeSelector": {"round": round.to_string()}}]});
        fleet.set("label", spec).await?;
        let labelled = Instant::now();
        fleet.label("n1", "round", Some(&round.to_string())).await?;
        present(fleet.cluster.node("n1")?, std::slice::from_ref(&image)).await?;
        times.push(labelled.elapsed());
        fleet.label("n1", "round", None).await?;
    }
    remove(fleet, "label").await?;
    let median = median(times);
    Ok(Number {
        what: "a label on a node to the image there",
        measured: seconds(median),
        aim: "1 s",
        is_met: median <= Duration::from_secs(1),
        note: format!("from the request that writes the label; median of {ROUNDS}"),
    })
}

async fn beside_missing(fleet: &Fleet) -> Result<Number> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..3).map(|n| format!("bench/good-{round}:{n}")).collect();
        fleet
            .push(&names.iter().map(String::as_str).collect::<Vec<_>>())
            .await?;
        let good: Vec<_> = names.iter().map(|name| fleet.image(name)).collect();
        let mut images = good.clone();
        images.insert(1, fleet.image("bench/missing:1"));
        fleet
            .set("missing", json!({"cacheSpec": [{"images": images}]}))
            .await?;
        for node in fleet.cluster.nodes() {
            present(node, &good).await?;
        }
        let there = Instant::now();
        fleet
            .until(
                "missing",
                "the good images to be counted",
                LIMIT,
                |status| {
                    let ready = |image: &String| {
                        status
                            .images
                            .iter()
                            .any(|seen| seen.image == *image && seen.ready_nodes == 3)
                    };
                    ensure!(good.iter().all(ready));
                    Ok(())
                },
            )
            .await?;
        times.push(there.elapsed());
        remove(fleet, "missing").await?;
    }
    let median = median(times);
    Ok(Number {
        what: "good images beside a missing tag: present to counted in the status",
        measured: seconds(median),
        aim: "1 s",
        is_met: median <= Duration::from_secs(1),
        note: format!(
            "three nodes; while images are waiting or being tried, a node reports once a second, so a second report waits for its turn; median of {ROUNDS}"
        ),
    })
}

/// From the answer to an edit to the runtime's first request for the image, seen at a proxy before the registry.
async fn spec_to_wire(fleet: &Fleet) -> Result<Number> {
    let registry = fleet.cluster.registry();
    let proxy = FaultProxy::start(fleet.cluster.lab(), Listen::Bridge, registry.address()).await?;
    let node = fleet.cluster.node("n1")?;
    node.containerd()
        .mirror(&proxy.host(), &proxy.url(), None)?;
    let rounds = 20;
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("bench/wire:{round}");
        fleet.push(&[&name]).await?;
        let spec = json!({"cacheSpec": [{"images": [proxy.reference(&name)], "nodeSelector": {"kubernetes.io/hostname": "n1"}}]});
        proxy.forget();
        let edited = Instant::now();
        fleet.set("wire", spec).await?;
        let first = wait_for("the first request", SOON, async || {
            proxy
                .requests()
                .into_iter()
                .map(|request| request.at)
                .min()
                .context("none yet")
        })
        .await?;
        times.push(first.saturating_duration_since(edited));
        fleet.until_ready("wire", SOON).await?;
    }
    remove(fleet, "wire").await?;
    let median = median(times);
    Ok(Number {
        what: "an edit to the pull on the wire, p50",
        measured: format!("{:.0} ms", median.as_secs_f64() * 1000.0),
        aim: "20 ms",
        is_met: median <= Duration::from_millis(20),
        note: format!(
            "from before the request that edits (two round trips to the API server, its write included) to the registry's first request, so it is an upper bound; {rounds} edits"
        ),
    })
}

/// Resident memory with many `ImageCaches` of ten images, of which none select a node.
async fn memory(fleet: &Fleet) -> Result<Vec<Number>> {
    let mut numbers = Vec::new();
    let mut made = 0;
    for (count, aim, limit) in [(100, "16 MB", 16.0), (2000, "32 MB", 32.0)] {
        let mut objects = String::new();
        for n in made..count {
            let images: Vec<_> = (0..10)
                .map(|image| format!("registry.example/team-{n}/app-{image}:1.2.3"))
                .collect();
            let object = json!({
                "apiVersion": "imagecache.dev/v1alpha1", "kind": "ImageCache",
                "metadata": {"name": format!("many-{n}"), "namespace": "default"},
                "spec": {"paused": true, "cacheSpec": [{"images": images}]},
            });
            objects.push_str("---\n");
            objects.push_str(&object.to_string());
            objects.push('\n');
        }
        fleet
            .cluster
            .kubectl_with(&["create", "-f", "-"], &objects)
            .await?;
        made = count;
        let wanted = count * 10;
        for node in ["n1", "n2", "n3"] {
            wait_for(
                format!("{node} to know of {wanted} images"),
                LIMIT,
                async || {
                    let report = fleet.report(node).await?.context("no report")?;
                    ensure!(report.total >= wanted, "{} images", report.total);
                    Ok(())
                },
            )
            .await?;
        }
        // The elected agent summarizes all of them; memory is read when that is over.
        wait_for("every summary", LIMIT * 3, async || {
            let last = fleet.status(&format!("many-{}", count - 1)).await?;
            ensure!(last.desired_nodes == 3);
            Ok(())
        })
        .await?;
        let mut resident = Vec::new();
        for node in ["n1", "n2", "n3"] {
            resident.push(resident_megabytes(fleet.agent(node)?.pid())?);
        }
        println!("{count} ImageCaches: {resident:?} MB");
        let most = resident.iter().copied().fold(0.0, f64::max);
        numbers.push(Number {
            what: if count == 100 {
                "resident memory with 100 ImageCaches of 10 images"
            } else {
                "resident memory with 2,000 ImageCaches of 10 images"
            },
            measured: format!("{most:.1} MB"),
            aim,
            is_met: most <= limit,
            note: "all of them select every node and are paused; the largest of three agents, the elected one among them".to_owned(),
        });
    }
    Ok(numbers)
}

fn size(program: &Path) -> Result<Number> {
    let bytes = std::fs::metadata(program)?.len();
    #[allow(clippy::cast_precision_loss)]
    let megabytes = bytes as f64 / 1e6;
    Ok(Number {
        what: "the static binary",
        measured: format!("{megabytes:.1} MB"),
        aim: "12 MB",
        is_met: megabytes <= 12.0,
        note: "stripped".to_owned(),
    })
}

async fn push_small(fleet: &Fleet, name: &str) -> Result<Vec<String>> {
    let names: Vec<String> = (0..SMALL).map(|n| format!("bench/{name}:{n}")).collect();
    fleet
        .push(&names.iter().map(String::as_str).collect::<Vec<_>>())
        .await?;
    Ok(names.iter().map(|name| fleet.image(name)).collect())
}

/// A client that does nothing but pull, a fixed number at a time.
async fn raw_pulls(nodes: &[&Node], images: &[String]) -> Result<Duration> {
    let mut pulls = JoinSet::new();
    let begun = Instant::now();
    for node in nodes {
        let endpoint: Endpoint = node.socket().to_string_lossy().parse()?;
        let runtime = Runtime::new(endpoint, SOON);
        let slots = Arc::new(Semaphore::new(PARALLEL));
        for image in images {
            let (runtime, slots, image) = (runtime.clone(), slots.clone(), image.clone());
            pulls.spawn(async move {
                let _slot = slots.acquire().await?;
                runtime.pull(&image, None).await?;
                anyhow::Ok(())
            });
        }
    }
    while let Some(pulled) = pulls.join_next().await {
        pulled??;
    }
    Ok(begun.elapsed())
}

/// The agent's time from the create to the last image, and how long the status took after that.
async fn agent_pulls(
    fleet: &Fleet,
    nodes: &[&Node],
    images: &[String],
) -> Result<(Duration, Duration)> {
    let names: Vec<_> = nodes.iter().map(|node| node.name()).collect();
    let spec = json!({"cacheSpec": [{"images": images, "matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": names},
    ]}]});
    let begun = Instant::now();
    fleet.set("bench", spec).await?;
    let mut waits = JoinSet::new();
    for node in nodes {
        let endpoint: Endpoint = node.socket().to_string_lossy().parse()?;
        let images = images.to_vec();
        waits.spawn(async move { all_there(&Runtime::new(endpoint, SOON), &images).await });
    }
    while let Some(there) = waits.join_next().await {
        there??;
    }
    let there = Instant::now();
    fleet.until_ready("bench", LIMIT).await?;
    let behind = there.elapsed();
    remove(fleet, "bench").await?;
    Ok((there - begun, behind))
}

async fn present(node: &Node, images: &[String]) -> Result<()> {
    let endpoint: Endpoint = node.socket().to_string_lossy().parse()?;
    all_there(&Runtime::new(endpoint, SOON), images).await
}

/// Asks one image after the other, so that looking on costs the node next to nothing.
async fn all_there(runtime: &Runtime, images: &[String]) -> Result<()> {
    let end = Instant::now() + LIMIT;
    for image in images {
        while runtime.image(image).await?.is_none() {
            ensure!(Instant::now() < end, "{image} did not arrive");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

async fn remove(fleet: &Fleet, name: &str) -> Result<()> {
    fleet.cluster.kubectl(&["delete", "ic", name]).await?;
    Ok(())
}

fn resident_megabytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .context("no VmRSS")?;
    let kilobytes: f64 = line
        .split_whitespace()
        .nth(1)
        .context("no number")?
        .parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn median_ratio(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
