//! The elected agent's loop: what all nodes report, summed up in the status of each `ImageCache`.

mod ledger;
mod pace;
mod sight;
mod status;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Api;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::ledger::{Ledger, Outcome, Outgoing, Written};
use self::pace::{Intervals, Urgency};
use self::sight::Sight;
use self::wire::{NodeObject, ReportObject};
use crate::api::ImageCache;
use crate::cluster::{CallError, Cluster, Scale, Trouble, Watch};
use crate::decide::{CacheName, Inputs};

pub use self::status::FIELD_MANAGER;

/// The most writes under way at once.
const AT_ONCE: usize = 8;

/// How long summaries are computed in one go, while nothing else of this task gets its turn.
const SLICE: Duration = Duration::from_millis(20);

/// After computing for some time, so many times as long nothing is: thousands of nodes cost a quarter of one core at most.
const REST: u32 = 3;

/// Less is not worth a rest.
const WORTH_A_REST: Duration = Duration::from_millis(1);

/// What the loop has to do with the rest of the process.
pub struct Seat {
    /// The `ImageCache`s.
    pub inputs: watch::Receiver<Inputs>,
    /// While this process is elected, a token that is cancelled when it is no longer.
    pub elected: watch::Receiver<Option<CancellationToken>>,
    /// The number of nodes, while this process is elected and knows it.
    pub nodes: watch::Sender<Option<u32>>,
}

/// Writes the summaries whenever this process is elected, until `stop`.
pub async fn run(cluster: &Cluster, mut seat: Seat, stop: &CancellationToken) {
    loop {
        let elected = seat.elected.borrow_and_update().clone();
        if let Some(elected) = elected.filter(|elected| !elected.is_cancelled()) {
            tokio::select! {
                () = stop.cancelled() => {}
                () = elected.cancelled() => {}
                // In a box of its own: most agents are never elected.
                () = Box::pin(lead(cluster, &seat, &elected)) => {}
            }
            seat.nodes.send_replace(None);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = seat.elected.changed() => if changed.is_err() {
                // Nobody can be elected any more.
                return stop.cancelled().await;
            },
        }
    }
}

/// Watches and writes. Dropped when this process is not elected any more, with everything that is under way.
async fn lead(cluster: &Cluster, seat: &Seat, elected: &CancellationToken) {
    let (sight, news) = (Mutex::new(Sight::default()), Notify::new());
    let nodes = Watch::new(cluster, Api::<NodeObject>::all(cluster.client()));
    let nodes = nodes.run(elected, |events| {
        let mut sight = lock(&sight);
        for event in events {
            sight.node(event);
        }
        news.notify_one();
    });
    let reports = Watch::new(cluster, Api::<ReportObject>::all(cluster.client()));
    let reports = reports.run(elected, |events| {
        let (mut sight, now) = (lock(&sight), Timestamp::now());
        for event in events {
            sight.report(event, now);
        }
        news.notify_one();
    });
    tokio::join!(nodes, reports, write(cluster, seat, &sight, &news));
}

/// Nothing panics while it holds the lock; if it did, the process would end.
fn lock(sight: &Mutex<Sight>) -> MutexGuard<'_, Sight> {
    sight.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn write(cluster: &Cluster, seat: &Seat, sight: &Mutex<Sight>, news: &Notify) {
    let mut inputs = seat.inputs.clone();
    let timing = *cluster.timing();
    let mut ledger = Ledger::new(&timing, stored(cluster, &mut inputs).await);
    let mut troubles = BTreeMap::<CacheName, Trouble>::new();
    let mut writes = FuturesUnordered::new();
    let (start, mut rest) = (Instant::now(), None::<Instant>);
    let mut check = Box::pin(look_again(cluster, &seat.inputs, Scale::default()));
    loop {
        let (began, now) = (Instant::now(), start.elapsed());
        let mut next = None;
        rest = rest.filter(|until| *until > began);
        if rest.is_none() {
            let mut sight = lock(sight);
            if let Some(caches) = inputs.borrow_and_update().caches.known() {
                ledger.know(caches);
            }
            let nodes = u32::try_from(sight.fleet.size()).unwrap_or(u32::MAX);
            let intervals = Intervals {
                gather: timing.summary_gather,
                round: Scale { nodes }.report(&timing),
            };
            if sight.is_complete() {
                seat.nodes
                    .send_if_modified(|told| told.replace(nodes) != Some(nodes));
                ledger.touch(&sight.fleet.take_touched());
                let wall = Timestamp::now();
                ledger.tick(now, &intervals);
                while began.elapsed() < SLICE && ledger.look(&sight.fleet, now, wall) {}
                while writes.len() < AT_ONCE
                    && began.elapsed() < SLICE
                    && let Some(outgoing) = ledger.begin(&sight.fleet, now, wall, &intervals)
                {
                    writes.push(send(cluster, outgoing));
                }
                next = ledger.next(&intervals).map(|next| start + next);
            }
            let busy = began.elapsed();
            rest = (busy > WORTH_A_REST).then(|| Instant::now() + busy * REST);
        }
        let is_resting = rest.is_some();
        let may_write = writes.len() < AT_ONCE;
        tokio::select! {
            Some((summary, answer)) = writes.next() => {
                let outcome = outcome(&summary, answer, &mut troubles, cluster);
                ledger.end(summary, &outcome, start.elapsed());
            }
            (asked_at, stored) = &mut check => {
                for cache in ledger.found(stored, asked_at.duration_since(start)) {
                    warn!(%cache, "somebody else wrote this status: writing it again");
                }
                let nodes = seat.nodes.borrow().unwrap_or_else(|| Scale::default().nodes);
                check.set(look_again(cluster, &seat.inputs, Scale { nodes }));
            }
            () = until(rest), if is_resting => {}
            () = until(next), if !is_resting && may_write => {}
            () = news.notified(), if !is_resting => {}
            Ok(()) = inputs.changed(), if !is_resting => {}
        }
    }
}

/// Reads what earlier elected agents wrote, once it is known which `ImageCache`s there are, as long as it takes.
async fn stored(
    cluster: &Cluster,
    inputs: &mut watch::Receiver<Inputs>,
) -> BTreeMap<CacheName, (String, Written)> {
    let known = inputs
        .wait_for(|inputs| inputs.caches.known().is_some())
        .await
        .ok()
        .and_then(|inputs| inputs.caches.known().cloned());
    let Some(caches) = known else {
        // Whoever knows them is gone: the process ends.
        return std::future::pending().await;
    };
    let mut trouble = Trouble::default();
    loop {
        let error = match status::stored(cluster, &caches).await {
            Ok(stored) => return stored,
            Err(error) => error,
        };
        if trouble.fails(&error) {
            warn!(
                error = error.explain::<ImageCache>(),
                "cannot read the summaries"
            );
        }
        let wait = trouble.wait(&cluster.timing().api_retry, fastrand::f64());
        tokio::time::sleep(wait).await;
    }
}

/// Reads after some time what the API server has: somebody may have edited a status by hand. Tells when it asked.
async fn look_again(
    cluster: &Cluster,
    inputs: &watch::Receiver<Inputs>,
    scale: Scale,
) -> (Instant, BTreeMap<CacheName, (String, Written)>) {
    loop {
        let average = scale.own_object(cluster.timing());
        tokio::time::sleep(average.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
        let Some(caches) = inputs.borrow().caches.known().cloned() else {
            continue;
        };
        let asked_at = Instant::now();
        match status::stored(cluster, &caches).await {
            Ok(stored) => return (asked_at, stored),
            // Whoever writes says what is wrong.
            Err(error) => debug!(%error, "cannot read the summaries again"),
        }
    }
}

async fn send(cluster: &Cluster, outgoing: Outgoing) -> (Outgoing, Result<String, CallError>) {
    let answer = status::apply(cluster, &outgoing).await;
    (outgoing, answer)
}

fn outcome(
    sent: &Outgoing,
    answer: Result<String, CallError>,
    troubles: &mut BTreeMap<CacheName, Trouble>,
    cluster: &Cluster,
) -> Outcome {
    let cache = &sent.name;
    match answer {
        Ok(uid) => {
            if troubles
                .remove(cache)
                .is_some_and(|mut trouble| trouble.ends())
            {
                info!(%cache, "summary written again");
            }
            tell(sent);
            Outcome::Written(uid)
        }
        Err(error) if error.is_absent_object() => {
            debug!(%cache, "no summary for an object that is gone");
            troubles.remove(cache);
            Outcome::Gone
        }
        Err(error) => {
            let trouble = troubles.entry(cache.clone()).or_default();
            if trouble.fails(&error) {
                warn!(%cache, error = error.explain::<ImageCache>(), "cannot write the summary");
            }
            Outcome::Failed(trouble.wait(&cluster.timing().api_retry, fastrand::f64()))
        }
    }
}

fn tell(sent: &Outgoing) {
    let cache = &sent.name;
    let ready = crate::api::condition::find(&sent.status.conditions, "Ready");
    let (ready, reason) = ready.map_or(("", ""), |ready| (&ready.status, &ready.reason));
    match sent.urgency {
        Urgency::AtOnce | Urgency::Settled => info!(%cache, ready, reason, "summary written"),
        Urgency::Round => debug!(%cache, ready, reason, "summary written"),
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_can_be_a_task_of_its_own() {
        fn is_send<T: Send>(
            _: impl FnOnce(&'static Cluster, Seat, &'static CancellationToken) -> T,
        ) {
        }
        is_send(run);
    }
}
