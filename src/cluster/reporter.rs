//! Writes the node's newest report to the API server.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::client::Cluster;
use super::error::CallError;
use super::own::{self, Own};
use super::pace::{Act, Pace};
use super::scale::Scale;
use super::trouble::Trouble;
use crate::api::{NodeImageCache, NodeImageCacheStatus};
use crate::decide::Inputs;

/// What a reporter listens to.
pub struct Sources {
    /// Whose uid the object's owner has.
    pub inputs: watch::Receiver<Inputs>,
    /// The newest report.
    pub reports: watch::Receiver<Option<Arc<NodeImageCacheStatus>>>,
    /// How often to write.
    pub scale: watch::Receiver<Scale>,
}

/// Reads what this node's agent reported before this process started, as long as it takes to get an answer.
pub async fn read_own(cluster: &Cluster, node: &str, stop: &CancellationToken) -> Option<Own> {
    let mut trouble = Trouble::default();
    loop {
        let error = tokio::select! {
            () = stop.cancelled() => return None,
            own = own::read(cluster, node) => match own {
                Ok(own) => return own,
                Err(error) => error,
            },
        };
        if error.is_unknown_resource() {
            return None;
        }
        // Answers from 429 on come from an API server that is starting, or has too much to do.
        if !matches!(error, CallError::NoAnswer(_)) && error.code() < 429 {
            warn!(%error, "the node's last report cannot be read: starting anew");
            return None;
        }
        if trouble.fails(&error) {
            warn!(%error, "waiting for the node's last report");
        }
        let wait = trouble.wait(&cluster.timing().api_retry, fastrand::f64());
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Writes the newest report whenever it is due, until `stop`. `own` is what the API server holds at the start.
pub async fn run(
    cluster: &Cluster,
    node: &str,
    mut sources: Sources,
    own: Option<Own>,
    stop: &CancellationToken,
) {
    let timing = *cluster.timing();
    let start = Instant::now();
    let mut trouble = Trouble::default();
    let mut pace = Pace::new(own, next_look(&sources, cluster));
    loop {
        let newest = sources.reports.borrow_and_update().clone();
        let scale = *sources.scale.borrow_and_update();
        let owner = sources
            .inputs
            .borrow_and_update()
            .node
            .known()
            .map(|node| node.uid.clone());
        let next = pace.next(newest.as_ref(), owner.as_deref(), scale, &timing);
        let due = next.as_ref().map(|(at, _)| start + *at);
        if let Some((_, act)) = next.filter(|_| due.is_some_and(|due| due <= Instant::now())) {
            let done = tokio::select! {
                () = stop.cancelled() => return,
                done = ask(cluster, node, &act) => done,
            };
            let now = start.elapsed();
            match (act, done) {
                (Act::Make(owner), Ok(_)) => {
                    info!(node, "reporting to a new NodeImageCache");
                    pace.made(owner, now, &timing);
                }
                (Act::Apply(status), Ok(_)) => pace.applied(status, now),
                (Act::Look, Ok(seen)) => {
                    if seen.is_none() {
                        warn!(
                            node,
                            "the NodeImageCache is gone, or its Node does not own it any more: making it again"
                        );
                    }
                    pace.seen(seen, now + next_look(&sources, cluster));
                }
                (Act::Apply(_), Err(error)) if error.is_absent_object() => {
                    warn!(node, "the NodeImageCache is gone: making it again");
                    pace.gone();
                }
                (_, Err(error)) => {
                    if trouble.fails(&error) {
                        let error = error.explain::<NodeImageCache>();
                        warn!(node, error, "cannot report");
                    }
                    pace.failed(&trouble, now, &timing, fastrand::f64());
                    continue;
                }
            }
            if trouble.ends() {
                info!(node, "reporting again");
            }
            continue;
        }
        // Every one of them is read anew at the top.
        let changed = tokio::select! {
            () = stop.cancelled() => return,
            changed = sources.reports.changed() => changed,
            changed = sources.inputs.changed() => changed,
            changed = sources.scale.changed() => changed,
            () = until(due) => Ok(()),
        };
        if changed.is_err() {
            // Whoever reports is gone: there is nothing to write any more.
            stop.cancelled().await;
            return;
        }
    }
}

async fn ask(cluster: &Cluster, node: &str, act: &Act) -> Result<Option<Own>, CallError> {
    match act {
        Act::Make(owner) => own::make(cluster, node, owner).await.map(|()| None),
        Act::Apply(status) => own::apply(cluster, node, status).await.map(|()| None),
        Act::Look => own::read(cluster, node).await,
    }
}

/// The time until the next look: agents that started together do not look together.
fn next_look(sources: &Sources, cluster: &Cluster) -> Duration {
    let scale = *sources.scale.borrow();
    let average = scale.own_object(cluster.timing());
    average.mul_f64(0.8 + 0.4 * fastrand::f64())
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
