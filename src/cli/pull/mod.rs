//! `pull`: the same agent without a cluster, for one run. For baking node images, and for CI.

pub mod documents;
pub mod outcome;
pub mod screen;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args, ValueEnum};
use indicatif::{HumanDuration, ProgressDrawTarget};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::flags::{LogFlags, NodeCredentialFlags, RuntimeFlags, duration};
use super::{UsageError, block_on, say, terminated};
use crate::agent::{self, Channels, Downloads, Settings};
use crate::api::NodeImageCacheStatus;
use crate::credentials::{DockerFiles, NoCluster, NodeCredentials};
use crate::decide::disk::Limits;
use crate::decide::spread::Spread;
use crate::decide::world::Runtime;
use crate::decide::{Caches, Inputs, Known, Node, desired};
use crate::runtime::Endpoint;
use crate::telemetry::logs::Level;
use crate::telemetry::metrics::Metrics;
use documents::Source;
use screen::Screen;

/// How long a runtime may stay away: long enough for one that is starting.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(30);

/// There is no cluster to share anything with.
const ALONE: Spread = Spread {
    start_within: Duration::ZERO,
    progress: Duration::from_secs(1),
};

/// Pull images onto this machine, without a cluster.
///
/// Every list of the ImageCaches in the files counts whose selector matches the labels of this machine:
/// kubernetes.io/os, kubernetes.io/arch and those that --label gives. It ends when every image is present or failed; what a
/// repetition may mend is tried three times. The exit code is 0 if all images are present, 1 if not, and 2 if the command
/// line or a file is wrong.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").args(["images", "files"]).required(true).multiple(true))]
#[command(after_help = "Examples:
  imagecache-agent pull docker.io/library/nginx:1.29 registry.k8s.io/pause:3.10
  imagecache-agent pull -f imagecaches.yaml --label tier=backend
  kubectl get imagecaches -A -o yaml | imagecache-agent pull -f - -o json")]
pub struct Flags {
    /// Images, named as a pod would name them.
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,

    /// A file with ImageCaches in YAML or JSON, or - for standard input. Can be given several times.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<String>,

    /// A label of this machine, for the selectors in the files. Can be given several times.
    #[arg(short = 'l', long = "label", value_name = "KEY=VALUE", value_parser = documents::label)]
    labels: Vec<(String, String)>,

    /// What is written to standard output at the end.
    #[arg(
        short = 'o',
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "text"
    )]
    output: Output,

    /// Give up after this time, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    #[command(flatten)]
    runtime: RuntimeFlags,

    #[command(flatten)]
    credentials: NodeCredentialFlags,

    #[command(flatten)]
    log: LogFlags,
}

/// What is written to standard output.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Output {
    /// What is present, and a table of what is not and why.
    Text,
    /// The report of a node, as in the status of its NodeImageCache.
    Json,
}

/// What ended the work.
#[derive(Clone, Debug, Eq, PartialEq)]
enum End {
    /// Every image is present, or failed for good.
    Over,
    /// The time was up.
    TimedOut(Duration),
    /// The runtime stayed away.
    NoRuntime(String),
    /// A signal.
    Interrupted,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over => f.write_str("done"),
            Self::TimedOut(after) if *after < Duration::from_secs(1) => {
                write!(f, "not done after {after:?}")
            }
            Self::TimedOut(after) => write!(f, "not done after {}", HumanDuration(*after)),
            Self::NoRuntime(why) => {
                write!(
                    f,
                    "given up after {}: {why}",
                    HumanDuration(RUNTIME_PATIENCE)
                )
            }
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Pulls what the flags ask for.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    flags.log.start(Level::off());
    let inputs = inputs(flags)?;
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let here = std::env::current_dir().ok();
    let files = DockerFiles::of_kubelet(here.as_deref(), home.as_ref().map(Path::new));
    let timing = flags.runtime.timing();
    let credentials = flags.credentials.read(Some(files), &timing)?;
    block_on(pull(flags, inputs, credentials))
}

fn inputs(flags: &Flags) -> anyhow::Result<Inputs> {
    let sources: Vec<_> = flags
        .files
        .iter()
        .map(|file| Source::from(file.as_str()))
        .collect();
    let mut caches = documents::read(&sources).map_err(UsageError::new)?;
    if !flags.images.is_empty() {
        let (name, cache) = documents::from_arguments(&flags.images).map_err(UsageError::new)?;
        caches.insert(name, cache);
    }
    Ok(inputs_of(caches, flags.labels.iter().cloned()))
}

fn inputs_of(caches: Caches, labels: impl Iterator<Item = (String, String)>) -> Inputs {
    let own = [
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels: BTreeMap<_, _> = own.into_iter().chain(labels).collect();
    Inputs {
        caches: Known::Known(Arc::new(caches)),
        node: Known::Known(Node {
            uid: String::new(),
            labels,
        }),
        ..Inputs::default()
    }
}

/// This machine's architecture, as the label of a Node names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

async fn pull(
    flags: &Flags,
    inputs: Inputs,
    credentials: NodeCredentials,
) -> anyhow::Result<ExitCode> {
    let wanted = desired(&inputs);
    let wanted = wanted
        .known()
        .into_iter()
        .flat_map(|desired| desired.images.keys());
    let unasked = outcome::unasked(wanted.map(|key| &**key));
    if unasked.total == 0 {
        say("no list of these ImageCaches selects this machine: see --label");
        return print(flags.output, &unasked, &End::Over);
    }
    let call_timeout = flags.runtime.timing().runtime_call;
    let endpoint = flags.runtime.endpoint.find(call_timeout).await?;
    let (status, end) = work(flags, inputs, credentials, unasked, endpoint).await?;
    print(flags.output, &status, &end)
}

/// Runs the agent until nothing more can come of it, and shows how far it is.
async fn work(
    flags: &Flags,
    inputs: Inputs,
    credentials: NodeCredentials,
    unasked: NodeImageCacheStatus,
    endpoint: Endpoint,
) -> anyhow::Result<(Arc<NodeImageCacheStatus>, End)> {
    let with_bars = stderr().is_terminal() && flags.log.log_level.is_none();
    let mut screen = if with_bars {
        Screen::of_bars(ProgressDrawTarget::stderr())
    } else {
        Screen::of_lines()
    };
    let settings = Settings {
        endpoint,
        max_parallel_pulls: flags.runtime.max_parallel_pulls.get(),
        yield_to_pods: flags.runtime.yield_to_pods,
        // Somebody waits for the end, and sees it if the disk is full.
        disk: Limits::default(),
        timing: flags.runtime.timing(),
    };
    // Held until the end: an agent that nobody can tell anything any more stops.
    let (_inputs, told) = watch::channel(inputs);
    let (reports, mut reported) = watch::channel(None);
    let (runtime, mut runtime_now) = watch::channel(Runtime::default());
    let (downloads, mut downloading) = watch::channel(Downloads::new());
    let channels = Channels {
        inputs: told,
        spread: watch::channel(ALONE).1,
        reports,
        runtime,
        downloads: Some(downloads),
        secrets: Arc::new(NoCluster),
        node: Arc::new(credentials),
        node_asks: None,
        awaited: watch::channel(BTreeSet::new()).0,
        metrics: Metrics::default(),
    };
    let shutdown = CancellationToken::new();
    let mut agent = tokio::spawn(agent::run(settings, channels, shutdown.clone()));

    let begun = Instant::now();
    let mut status = Arc::new(unasked);
    let mut away: Option<(Instant, String)> = None;
    let end = loop {
        let patience = away.as_ref().map(|(since, _)| *since + RUNTIME_PATIENCE);
        tokio::select! {
            Ok(()) = reported.changed() => {
                if let Some(report) = reported.borrow_and_update().clone() {
                    screen.report(&report);
                    status = report;
                }
                if outcome::is_over(&status) {
                    break End::Over;
                }
            }
            Ok(()) = runtime_now.changed() => {
                let runtime = runtime_now.borrow_and_update().clone();
                if let Runtime::Down(why) | Runtime::Taken(why) = runtime {
                    if away.as_ref().is_none_or(|(_, before)| *before != why) {
                        let patience = HumanDuration(RUNTIME_PATIENCE);
                        screen.line(&format!("waiting  {why} (for {patience} at most)"));
                    }
                    let since = away.map_or_else(Instant::now, |(since, _)| since);
                    away = Some((since, why));
                } else {
                    away = None;
                }
            }
            Ok(()) = downloading.changed() => screen.downloads(&downloading.borrow_and_update()),
            () = until(flags.timeout.map(|timeout| begun + timeout)) => break End::TimedOut(flags.timeout.unwrap_or_default()),
            () = until(patience) => break End::NoRuntime(away.map(|(_, why)| why).unwrap_or_default()),
            signal = terminated() => {
                signal?;
                break End::Interrupted;
            }
            ended = &mut agent => {
                ended??;
                anyhow::bail!("the agent ended too early");
            }
        }
    };
    screen.finish();
    shutdown.cancel();
    agent.await??;
    Ok((status, end))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

fn print(output: Output, status: &NodeImageCacheStatus, end: &End) -> anyhow::Result<ExitCode> {
    let cut_short = (*end != End::Over).then(|| end.to_string());
    if let Some(why) = &cut_short {
        say(why);
    }
    let text = match output {
        Output::Text => outcome::summary(status, cut_short.as_deref()),
        Output::Json => serde_json::to_string_pretty(status)? + "\n",
    };
    stdout()
        .write_all(text.as_bytes())
        .context("cannot write the result")?;
    Ok(if outcome::is_success(status) && *end == End::Over {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_machine_has_the_labels_that_every_node_has() {
        let given = [
            ("tier".to_owned(), "backend".to_owned()),
            ("kubernetes.io/arch".to_owned(), "other".to_owned()),
        ];
        let inputs = inputs_of(Caches::new(), given.into_iter());
        let labels = &inputs.node.known().unwrap().labels;
        assert_eq!(labels.get("kubernetes.io/os").unwrap(), "linux");
        assert_eq!(labels.get("kubernetes.io/arch").unwrap(), "other");
        assert_eq!(labels.get("tier").unwrap(), "backend");
    }

    #[test]
    fn an_end_that_came_too_early_says_so() {
        assert_eq!(
            End::TimedOut(Duration::from_mins(10)).to_string(),
            "not done after 10 minutes"
        );
        assert_eq!(
            End::TimedOut(Duration::from_millis(300)).to_string(),
            "not done after 300ms"
        );
    }
}
