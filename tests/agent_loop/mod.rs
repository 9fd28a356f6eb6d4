//! The agent's loop in the test's own process, told what is wanted and asked what it reports.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use imagecache_agent::agent::{self, Channels, Settings};
use imagecache_agent::api::{ImageCacheSpec, ImageList, NodeImageCacheStatus};
use imagecache_agent::credentials::NoCluster;
use imagecache_agent::decide::disk::Limits;
use imagecache_agent::decide::spread::Spread;
use imagecache_agent::decide::world::Runtime;
use imagecache_agent::decide::{
    Cache, CacheName, Caches, Inputs, IsCurrent, Known, Node, SecretName, Timing,
};
use imagecache_agent::runtime::Endpoint;
use imagecache_agent::telemetry::Metrics;
use testbed::wait_for;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

pub const SPREAD: Spread = Spread {
    start_within: Duration::ZERO,
    progress: Duration::from_secs(1),
};

/// For what a busy machine may take long for.
pub const SOON: Duration = Duration::from_mins(1);

pub struct Agent {
    inputs: watch::Sender<Inputs>,
    pub reports: watch::Receiver<Option<Arc<NodeImageCacheStatus>>>,
    pub stop: CancellationToken,
    pub task: JoinHandle<Result<(), JoinError>>,
    pub metrics: Metrics,
}

/// What the agent does by itself.
pub fn settings(endpoint: Endpoint, timing: &Timing) -> Settings {
    Settings {
        endpoint,
        max_parallel_pulls: 2,
        yield_to_pods: true,
        disk: Limits::default(),
        timing: *timing,
    }
}

impl Agent {
    pub fn start(endpoint: Endpoint, timing: &Timing) -> Self {
        Self::with(settings(endpoint, timing))
    }

    pub fn with(settings: Settings) -> Self {
        Self::with_channels(settings, |_| {})
    }

    /// The same with other channels than those of a lone machine without credentials.
    pub fn start_with(
        endpoint: Endpoint,
        timing: &Timing,
        with: impl FnOnce(&mut Channels),
    ) -> Self {
        Self::with_channels(settings(endpoint, timing), with)
    }

    fn with_channels(settings: Settings, with: impl FnOnce(&mut Channels)) -> Self {
        let (inputs, told) = watch::channel(Inputs::default());
        let (reports, reported) = watch::channel(None);
        let stop = CancellationToken::new();
        let metrics = Metrics::default();
        let mut channels = Channels {
            spread: watch::channel(SPREAD).1,
            inputs: told,
            reports,
            runtime: watch::channel(Runtime::default()).0,
            downloads: None,
            secrets: Arc::new(NoCluster),
            node: Arc::default(),
            node_asks: None,
            awaited: watch::channel(BTreeSet::new()).0,
            metrics: metrics.clone(),
        };
        with(&mut channels);
        let task = tokio::spawn(agent::run(settings, channels, stop.clone()));
        Self {
            inputs,
            reports: reported,
            stop,
            task,
            metrics,
        }
    }

    /// How many pulls have ended with this result.
    pub fn pulls(&self, result: &str) -> u64 {
        let name = format!("imagecache_pulls_total{{result={result:?}}} ");
        let metrics = self.metrics.text().unwrap();
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix(&name));
        count.map_or(0, |count| count.parse().unwrap())
    }

    /// What the agent before this one has reported.
    pub fn inherits(&self, reported: Option<&NodeImageCacheStatus>) {
        let reported = reported.cloned().map(Arc::new);
        self.inputs.send_modify(|inputs| {
            inputs.reported = reported;
            inputs.reported_by = Some(Node::default().uid);
        });
    }

    /// Each object by its name and priority, with its images.
    pub fn wants(&self, objects: &[(&str, i32, &[&str])]) {
        let specs = objects.iter().map(|(name, priority, images)| {
            let spec = ImageCacheSpec {
                priority: *priority,
                ..spec(images)
            };
            (*name, spec)
        });
        self.wants_specs(specs);
    }

    pub fn wants_specs<'a>(&self, specs: impl Iterator<Item = (&'a str, ImageCacheSpec)>) {
        let caches: Caches = specs
            .map(|(name, spec)| {
                let cache = Cache {
                    uid: format!("uid-{name}"),
                    generation: 1,
                    spec: Some((1, Arc::new(spec))),
                    unreadable: None,
                    refresh: None,
                };
                let name = CacheName {
                    namespace: "ns".into(),
                    name: name.into(),
                };
                (name, Arc::new(cache))
            })
            .collect();
        let before = self.inputs.borrow().clone();
        self.inputs.send_replace(Inputs {
            reported: before.reported,
            reported_by: before.reported_by,
            caches: Known::Known(Arc::new(caches)),
            node: Known::Known(Node::default()),
            is_current: IsCurrent {
                caches: true,
                node: true,
            },
            ..Inputs::default()
        });
    }

    /// This Secret has changed once more.
    pub fn secret_changed(&self, name: &str) {
        let name = SecretName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        self.inputs
            .send_modify(|inputs| *inputs.secrets.entry(name).or_default() += 1);
    }

    pub async fn until(
        &self,
        what: &str,
        check: impl Fn(&NodeImageCacheStatus) -> bool,
    ) -> Arc<NodeImageCacheStatus> {
        wait_for(what, SOON, async || {
            let report = self.reports.borrow().clone();
            let report = report.ok_or_else(|| anyhow::anyhow!("no report"))?;
            anyhow::ensure!(check(&report), "{report:?}");
            Ok(report)
        })
        .await
        .unwrap()
    }
}

/// One list with these images.
pub fn spec(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        cache_spec: vec![ImageList {
            images: images.iter().map(ToString::to_string).collect(),
            ..ImageList::default()
        }],
        ..ImageCacheSpec::default()
    }
}
