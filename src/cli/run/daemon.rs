//! The daemon's wiring: every task that the process owns, and how it ends.

use std::collections::BTreeSet;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::Flags;
use crate::agent::{self, Channels, Settings};
use crate::api::NodeImageCacheStatus;
use crate::cli::flags::RuntimeFlags;
use crate::cli::{UsageError, terminated};
use crate::cluster::{self, Cluster, ClusterSecrets, Scale, lease};
use crate::credentials::NodeCredentials;
use crate::decide::spread::Spread;
use crate::decide::world::Runtime;
use crate::decide::{Inputs, Timing};
use crate::rollup;
use crate::runtime::{Endpoint, discover};
use crate::telemetry::admin::{self, Admin};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::readiness::Readiness;

/// Starts every task, and waits for the first that ends: none may before the shutdown.
pub async fn serve(
    flags: &Flags,
    node: Option<&str>,
    credentials: NodeCredentials,
) -> anyhow::Result<ExitCode> {
    let timing = flags.runtime.timing();
    let listener = admin::bind(flags.admin_addr)
        .await
        .context("--admin-addr cannot be used")?;
    let metrics = Metrics::default();
    let cluster = Cluster::connect(flags.kubeconfig.as_deref(), &timing, metrics.clone())
        .await
        .map_err(UsageError::new)?;
    let stop = CancellationToken::new();
    let mut daemon = Daemon {
        flags,
        cluster,
        stop: stop.clone(),
        metrics,
        readiness: Readiness::default(),
        tasks: JoinSet::new(),
    };
    let admin = Admin {
        metrics: daemon.metrics.clone(),
        readiness: daemon.readiness.clone(),
    };
    daemon.start("admin", admin.serve(listener, stop.clone()));
    let leaving = daemon.readiness.check("running", "starting");
    leaving.ready();
    info!(node, role = ?flags.role, version = env!("CARGO_PKG_VERSION"), "imagecache-agent starts");

    let (inputs, told) = watch::channel(Inputs::default());
    let (scale, scaled) = watch::channel(Scale::default());
    daemon.watch_readiness(told.clone(), node.is_some());
    match node.filter(|_| flags.role.pulls()) {
        Some(node) => {
            let credentials = Arc::new(credentials);
            daemon.start_agent(node.to_owned(), credentials, inputs, told.clone(), scaled);
        }
        None => daemon.start_watch(inputs),
    }
    if flags.role.summarizes() {
        daemon.start_election(node.unwrap_or("summary"), told, scale);
    } else {
        daemon.start_observer(scale);
    }

    let ended = tokio::select! {
        signal = terminated() => signal.map(|()| None)?,
        Some(ended) = daemon.tasks.join_next() => Some(ended?),
    };
    leaving.not_ready("the agent is ending");
    stop.cancel();
    if let Some(task) = ended {
        anyhow::bail!(
            "the task {task} of the agent ended; ending the process, so that it is started anew as a whole"
        );
    }
    info!("ending");
    let all = async {
        while let Some(ended) = daemon.tasks.join_next().await {
            debug!(task = ended.unwrap_or("that died"), "ended");
        }
    };
    if tokio::time::timeout(timing.shutdown, all).await.is_err() {
        warn!("not every task ended in time");
    }
    Ok(ExitCode::SUCCESS)
}

/// The tasks of the process, each under a name.
struct Daemon<'a> {
    flags: &'a Flags,
    cluster: Cluster,
    stop: CancellationToken,
    metrics: Metrics,
    readiness: Readiness,
    tasks: JoinSet<&'static str>,
}

impl Daemon<'_> {
    fn start(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            name
        });
    }

    /// Calls `see` with the value now and after each change, until the process ends.
    fn follow<T: Send + Sync + 'static>(
        &mut self,
        name: &'static str,
        values: watch::Receiver<T>,
        see: impl Fn(&T) + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.start(name, async move {
            stop.run_until_cancelled(follow(values, see)).await;
        });
    }

    /// The loop of this node, and its connection to the cluster.
    fn start_agent(
        &mut self,
        node: String,
        credentials: Arc<NodeCredentials>,
        inputs: watch::Sender<Inputs>,
        told: watch::Receiver<Inputs>,
        scale: watch::Receiver<Scale>,
    ) {
        if !credentials.is_off() {
            info!(sources = %credentials, "using credentials of the node");
        }
        let (reports, reported) = watch::channel(None);
        let (runtime, runtime_now) = watch::channel(Runtime::default());
        let check = self.readiness.check("runtime", "it has not been asked yet");
        self.follow("runtime check", runtime_now, move |runtime| match runtime {
            Runtime::Starting => {}
            Runtime::Ready => check.ready(),
            Runtime::Down(why) | Runtime::Taken(why) => check.not_ready(why.as_str()),
        });
        let metrics = self.metrics.clone();
        self.follow("image counts", reported.clone(), move |report| {
            count_images(&metrics, report.as_deref());
        });

        let most = self.flags.max_start_jitter;
        let spread_of = move |scale: Scale| Spread {
            start_within: scale.start_within(most),
            progress: scale.progress(),
        };
        let (spread, spread_now) = watch::channel(spread_of(*scale.borrow()));
        self.follow("spread", scale.clone(), move |scale| {
            spread.send_replace(spread_of(*scale));
        });

        let secrets = Arc::new(ClusterSecrets::new(&self.cluster, &self.flags.namespace));
        let (awaited, awaited_now) = watch::channel(BTreeSet::new());
        let watched = (Arc::clone(&secrets), awaited_now);
        let (node_asks, asked) = mpsc::channel(1);
        let (cluster, stop, name) = (self.cluster.clone(), self.stop.clone(), node.clone());
        self.start("disk pressure", async move {
            cluster::disk_pressure::answer(&cluster, &name, asked, &stop).await;
        });
        let (cluster, stop) = (self.cluster.clone(), self.stop.clone());
        self.start("cluster", async move {
            cluster::serve(&cluster, &node, &inputs, reported, scale, watched, &stop).await;
        });

        let flags = self.flags.runtime.clone();
        let (removal, disk) = (self.flags.removal_delay, self.flags.disk.limits());
        let stop = self.stop.clone();
        let metrics = self.metrics.clone();
        self.start("agent", async move {
            let Some(endpoint) = endpoint(&flags, &runtime, &stop).await else {
                return;
            };
            let settings = Settings {
                endpoint,
                max_parallel_pulls: flags.max_parallel_pulls.get(),
                yield_to_pods: flags.yield_to_pods,
                disk,
                timing: Timing {
                    removal,
                    ..flags.timing()
                },
            };
            let channels = Channels {
                inputs: told,
                spread: spread_now,
                reports,
                runtime,
                downloads: None,
                secrets,
                node: credentials,
                node_asks: Some(node_asks),
                awaited,
                metrics,
            };
            if let Err(panic) = agent::run(settings, channels, stop).await {
                error!(error = %panic, "the agent's loop died");
            }
        });
    }

    /// Without a node only the `ImageCache`s are watched, for the summaries.
    fn start_watch(&mut self, inputs: watch::Sender<Inputs>) {
        let (cluster, stop) = (self.cluster.clone(), self.stop.clone());
        self.start("watch", async move {
            cluster::inputs::watch_caches(&cluster, &inputs, &stop).await;
        });
    }

    /// The election, and what the elected one does.
    fn start_election(
        &mut self,
        name: &str,
        inputs: watch::Receiver<Inputs>,
        scale: watch::Sender<Scale>,
    ) {
        let identity = lease::identity(name);
        let (elect, elected) = watch::channel(None);
        let (count, counted) = watch::channel(None);
        let metrics = self.metrics.clone();
        self.follow("leader gauge", elected.clone(), move |elected| {
            metrics.leader(elected.is_some());
        });

        let (cluster, stop) = (self.cluster.clone(), self.stop.clone());
        let namespace = self.flags.namespace.clone();
        let seat = lease::Seat {
            nodes: counted,
            scale,
            elected: elect,
        };
        self.start("election", async move {
            lease::run(&cluster, &namespace, identity, seat, &stop).await;
        });

        let (cluster, stop) = (self.cluster.clone(), self.stop.clone());
        let seat = rollup::Seat {
            inputs,
            elected,
            nodes: count,
        };
        self.start("summaries", async move {
            Box::pin(rollup::run(&cluster, seat, &stop)).await;
        });
    }

    /// Who takes no part in the election learns from it how large the cluster is.
    fn start_observer(&mut self, scale: watch::Sender<Scale>) {
        let (cluster, stop) = (self.cluster.clone(), self.stop.clone());
        let namespace = self.flags.namespace.clone();
        self.start("scale", async move {
            lease::observe(&cluster, &namespace, scale, &stop).await;
        });
    }

    /// The watches are ready once they have listed everything. Later trouble does not make them unready: what they listed holds.
    fn watch_readiness(&mut self, inputs: watch::Receiver<Inputs>, with_node: bool) {
        let caches = self
            .readiness
            .check("imagecaches", "the API server has not listed them yet");
        let node = with_node.then(|| {
            self.readiness
                .check("node", "the API server has not shown this agent's Node yet")
        });
        self.follow("watch check", inputs, move |inputs| {
            if inputs.caches.known().is_some() {
                caches.ready();
            }
            if let (Some(node), Some(_)) = (&node, inputs.node.known()) {
                node.ready();
            }
        });
    }
}

/// Calls `see` with the value now and after each change, for as long as somebody may change it.
async fn follow<T>(mut values: watch::Receiver<T>, see: impl Fn(&T)) {
    loop {
        see(&values.borrow_and_update());
        if values.changed().await.is_err() {
            // Whoever set it has ended: that is for the process to notice, not for whoever looks on.
            return std::future::pending().await;
        }
    }
}

/// The runtime's socket. Without a flag the well-known ones are tried until one answers: `None` at the shutdown.
async fn endpoint(
    flags: &RuntimeFlags,
    runtime: &watch::Sender<Runtime>,
    stop: &CancellationToken,
) -> Option<Endpoint> {
    if let Some(endpoint) = &flags.endpoint.runtime_endpoint {
        return Some(endpoint.clone());
    }
    let timing = flags.timing();
    let mut failures = 0;
    loop {
        match discover(timing.runtime_call).await {
            Ok(found) => {
                let endpoint = found.runtime.endpoint();
                info!(%endpoint, runtime = found.version.name, "found a runtime; name it with --runtime-endpoint to take no other");
                return Some(endpoint.clone());
            }
            Err(nothing) => {
                let why = Runtime::Down(nothing.to_string());
                let is_news = runtime.send_if_modified(|runtime| {
                    let is_news = *runtime != why;
                    *runtime = why;
                    is_news
                });
                if is_news {
                    warn!(error = %nothing, "waiting for a runtime");
                }
            }
        }
        failures += 1;
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(timing.runtime_retry.after(failures)) => {}
        }
    }
}

fn count_images(metrics: &Metrics, report: Option<&NodeImageCacheStatus>) {
    let Some(report) = report else {
        return;
    };
    let waiting = report.total - report.ready - report.pulling - report.failed;
    let counts = [
        ("Ready", report.ready),
        ("Pulling", report.pulling),
        ("Failed", report.failed),
        ("Waiting", waiting),
    ];
    for (state, count) in counts {
        metrics.images(state, usize::try_from(count).unwrap_or(0));
    }
}
