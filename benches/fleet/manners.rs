//! How the agent behaves towards pods that pull images of their own, and towards registries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::REFRESH;
use imagecache_agent::runtime::{Endpoint, Runtime};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Fault, FaultProxy, ImageSpec, Listen, Node, ProxyRequest, Rule, wait_for};

use super::fleet::{Fleet, SOON, image_of};
use super::page::Number;

/// Of the whole registry, for one node.
const BYTES_A_SECOND: u64 = 6_000_000;
const LONG: Duration = Duration::from_mins(10);

/// What the agent works through meanwhile: so many images of 300 MB in six layers.
const WARM: u64 = 10;

/// The pull of a pod's image of 200 MB on an idle node, while the agent pulls, and while it pulls without making way: on each version.
pub async fn yielding(fleet: &mut Fleet) -> Result<Vec<Number>> {
    let registry = fleet.cluster.registry();
    let of_pods = [
        ("pod:idle", 0..4),
        ("pod:beside", 10..14),
        ("pod:pushed", 20..24),
    ];
    let of_pods = of_pods.map(|(name, seeds)| (name.to_owned(), seeds));
    let of_agent = (0..WARM).map(|n| (warm_image(n), 100 + 10 * n..106 + 10 * n));
    for (name, seeds) in of_pods.into_iter().chain(of_agent) {
        let image = seeds.fold(ImageSpec::scratch(), |image, seed| {
            image.layer(seed, 50_000_000)
        });
        registry.push(&format!("bench/{name}"), &image).await?;
    }
    let mut proxies = BTreeMap::new();
    for node in fleet.cluster.nodes() {
        let proxy =
            FaultProxy::start(fleet.cluster.lab(), Listen::Bridge, registry.address()).await?;
        node.containerd()
            .mirror(&proxy.host(), &proxy.url(), None)?;
        proxy.limit(Some(BYTES_A_SECOND));
        proxies.insert(node.name().to_owned(), proxy);
    }
    let idle = pods(fleet, &proxies, "idle").await?;
    warm(fleet, &proxies).await?;
    let beside = pods(fleet, &proxies, "beside").await?;
    let nodes: Vec<_> = proxies.keys().cloned().collect();
    for node in &nodes {
        fleet.agent(node)?.kill9()?;
        fleet.start_agent(node, &["--yield-to-pods=false"]).await?;
    }
    until_warming(&proxies).await?;
    let pushed = pods(fleet, &proxies, "pushed").await?;
    for node in &nodes {
        super::measure::remove(fleet, &format!("warm-{node}")).await?;
        fleet.agent(node)?.kill9()?;
        fleet.start_agent(node, &[]).await?;
    }
    let versions = ["2.4", "1.7", "1.6"];
    let mut numbers = Vec::new();
    for (node, version) in nodes.iter().zip(versions) {
        let [alone, with, without] =
            [&idle, &beside, &pushed].map(|times| times[node].as_secs_f64());
        numbers.push(Number {
            what: match version {
                "2.4" => "a pod's image of 200 MB beside the agent, containerd 2.4",
                "1.7" => "the same, containerd 1.7",
                _ => "the same, containerd 1.6",
            },
            measured: format!("{:.2} × idle", with / alone),
            aim: "1.2",
            is_met: with <= 1.2 * alone,
            note: format!(
                "a registry throttled to {} MB/s as a whole; idle {alone:.0} s; with --yield-to-pods=false {:.2} ×; the agent works through {WARM} images of 300 MB meanwhile, two at a time; one pull each",
                BYTES_A_SECOND / 1_000_000,
                without / alone,
            ),
        });
    }
    Ok(numbers)
}

/// Pulls the pod's image on all nodes at once, each as another client of its runtime would.
async fn pods(
    fleet: &Fleet,
    proxies: &BTreeMap<String, FaultProxy>,
    tag: &str,
) -> Result<BTreeMap<String, Duration>> {
    let pulls = fleet.cluster.nodes().iter().map(async |node: &Node| {
        let endpoint: Endpoint = node.socket().to_string_lossy().parse()?;
        let runtime = Runtime::new(endpoint, SOON);
        let image = proxies[node.name()].reference(&format!("bench/pod:{tag}"));
        let begun = Instant::now();
        tokio::time::timeout(LONG, runtime.pull(&image, None)).await??;
        println!("{} {tag}: {:?}", node.name(), begun.elapsed());
        anyhow::Ok((node.name().to_owned(), begun.elapsed()))
    });
    let times = futures::future::try_join_all(pulls).await?;
    Ok(times.into_iter().collect())
}

fn warm_image(n: u64) -> String {
    format!("warm:{n}")
}

async fn warm(fleet: &Fleet, proxies: &BTreeMap<String, FaultProxy>) -> Result<()> {
    for (node, proxy) in proxies {
        let images: Vec<_> = (0..WARM)
            .map(|n| proxy.reference(&format!("bench/{}", warm_image(n))))
            .collect();
        let spec = json!({"cacheSpec": [{"images": images, "nodeSelector": {"kubernetes.io/hostname": node}}]});
        fleet.set(&format!("warm-{node}"), spec).await?;
    }
    until_warming(proxies).await
}

/// Waits until the agents have brought some more bytes on every node.
async fn until_warming(proxies: &BTreeMap<String, FaultProxy>) -> Result<()> {
    let bytes = |proxy: &FaultProxy| -> u64 {
        let warm = proxy.requests().into_iter();
        warm.filter(|request| request.path.contains("/bench/warm/"))
            .map(|request| request.bytes)
            .sum()
    };
    let before: BTreeMap<_, _> = proxies
        .iter()
        .map(|(node, proxy)| (node, bytes(proxy)))
        .collect();
    wait_for("the agents to pull", SOON * 3, async || {
        for (node, proxy) in proxies {
            ensure!(
                bytes(proxy) > before[node] + 4_000_000,
                "nothing moves on {node}"
            );
        }
        Ok(())
    })
    .await
}

/// What a registry sees of one agent.
pub async fn registry(fleet: &Fleet) -> Result<Vec<Number>> {
    let proxy = proxied(fleet).await?;
    let mut numbers = present(fleet, &proxy).await?;
    numbers.extend(refused(fleet, &proxy).await?);
    Ok(numbers)
}

/// A proxy before the registry, for n1.
async fn proxied(fleet: &Fleet) -> Result<FaultProxy> {
    let registry = fleet.cluster.registry();
    let proxy = FaultProxy::start(fleet.cluster.lab(), Listen::Bridge, registry.address()).await?;
    let node = fleet.cluster.node("n1")?;
    node.containerd()
        .mirror(&proxy.host(), &proxy.url(), None)?;
    Ok(proxy)
}

async fn set(fleet: &Fleet, name: &str, images: &[String]) -> Result<()> {
    let spec = json!({"cacheSpec": [{"images": images, "nodeSelector": {"kubernetes.io/hostname": "n1"}}]});
    fleet.set(name, spec).await?;
    Ok(())
}

/// Images that the registry has.
async fn present(fleet: &Fleet, proxy: &FaultProxy) -> Result<Vec<Number>> {
    let registry = fleet.cluster.registry();
    let count = 50;
    let mut images = Vec::new();
    for n in 0..count {
        let image = (0..3).fold(ImageSpec::scratch(), |image, layer| {
            image.layer(1000 + n * 3 + layer, 300_000)
        });
        registry.push(&format!("bench/many{n}:1"), &image).await?;
        images.push(proxy.reference(&format!("bench/many{n}:1")));
    }
    // Slow enough that pulls overlap on the wire.
    proxy.limit(Some(20_000_000));
    set(fleet, "fair", &images).await?;
    fleet.until_ready("fair", SOON * 3).await?;
    let in_flight = most_at_once(&proxy.requests());
    proxy.limit(None);

    proxy.forget();
    set(fleet, "present", &images).await?;
    fleet.until_ready("present", SOON).await?;
    let present = proxy.requests().len();

    let patch = json!({"metadata": {"annotations": {REFRESH: "now"}}});
    fleet
        .caches()
        .patch("fair", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    wait_for("the refresh to be reported", SOON * 3, async || {
        let report = fleet.report("n1").await?.context("no report")?;
        let acted = report
            .caches
            .iter()
            .any(|cache| cache.refresh.as_deref() == Some("now"));
        ensure!(acted, "not yet");
        Ok(())
    })
    .await?;
    let refreshed = proxy.requests().len();
    for name in ["fair", "present"] {
        super::measure::remove(fleet, name).await?;
    }

    Ok(vec![
        Number {
            what: "images in flight at a registry, of 50 with three layers",
            measured: in_flight.to_string(),
            aim: "2",
            is_met: in_flight <= 2,
            note: "parallelism 2; from the first request for an image to the last".to_owned(),
        },
        Number {
            what: "requests for 50 images that are present",
            measured: present.to_string(),
            aim: "0",
            is_met: present == 0,
            note: "a second ImageCache that names them".to_owned(),
        },
        Number {
            what: "requests for a refresh of these 50 images",
            measured: refreshed.to_string(),
            aim: "50",
            is_met: refreshed <= 50,
            note: "by the annotation; nothing has moved".to_owned(),
        },
    ])
}

/// What the registry has not, or does not give.
async fn refused(fleet: &Fleet, proxy: &FaultProxy) -> Result<Vec<Number>> {
    let registry = fleet.cluster.registry();
    proxy.forget();
    set(fleet, "missing", &[proxy.reference("bench/none:1")]).await?;
    tokio::time::sleep(Duration::from_mins(2)).await;
    let missing = proxy.requests().len();
    super::measure::remove(fleet, "missing").await?;

    proxy.forget();
    proxy.add(Rule::new(Fault::retry_after(60)));
    let mut limited = Vec::new();
    for n in 0..6 {
        let name = format!("bench/limited{n}:1");
        registry.push(&name, &image_of(&name)).await?;
        limited.push(proxy.reference(&name));
    }
    set(fleet, "limited", &limited).await?;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked: BTreeSet<_> = proxy
        .requests()
        .into_iter()
        .map(|request| request.path)
        .collect();
    super::measure::remove(fleet, "limited").await?;

    Ok(vec![
        Number {
            what: "requests for a missing tag in two minutes",
            measured: missing.to_string(),
            aim: "6",
            is_met: missing <= 6,
            note: "the first attempt is among them; containerd 2.4".to_owned(),
        },
        Number {
            what: "images asked for in a minute after 429, of six",
            measured: asked.len().to_string(),
            aim: "2",
            is_met: asked.len() <= 2,
            note: "two pulls begin together before anything is known; the hold is 5 to 15 min; containerd itself repeats each request at once".to_owned(),
        },
    ])
}

/// The most images whose requests overlap.
fn most_at_once(requests: &[ProxyRequest]) -> usize {
    let mut spans = BTreeMap::<&str, (Instant, Instant)>::new();
    for request in requests {
        let name = request.path.split('/').nth(3).unwrap_or_default();
        let span = spans.entry(name).or_insert((request.at, request.at));
        *span = (span.0.min(request.at), span.1.max(request.at));
    }
    let spans: Vec<_> = spans.into_values().collect();
    let overlap = |at: Instant| {
        spans
            .iter()
            .filter(|(first, last)| *first <= at && at <= *last)
            .count()
    };
    spans
        .iter()
        .map(|(first, _)| overlap(*first))
        .max()
        .unwrap_or(0)
}
