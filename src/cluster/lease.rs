//! The thin loop around the election: it asks, waits, and tells who wants to know.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::client::Cluster;
use super::election::{self, Answer, Ask, Election};
use super::error::CallError;
use super::scale::Scale;
use super::trouble::Trouble;

/// The Lease's name.
pub const NAME: &str = "imagecache-agent";

/// What the election has to do with the rest of the process.
pub struct Seat {
    /// The number of nodes as this process counts it, while it is elected: it is told to all others.
    pub nodes: watch::Receiver<Option<u32>>,
    /// The number of nodes as the elected agent tells it.
    pub scale: watch::Sender<Scale>,
    /// While this process is elected, a token that is cancelled when it is no longer.
    pub elected: watch::Sender<Option<CancellationToken>>,
}

/// A name for this process that no other one has, not even the same node's agent after a restart: whoever is killed cannot
/// renew what it held before.
#[must_use]
pub fn identity(node: &str) -> String {
    format!("{node}_{:016x}", fastrand::u64(..))
}

/// Takes part in the election until `stop`, then stands down so that another agent can follow at once.
pub async fn run(
    cluster: &Cluster,
    namespace: &str,
    identity: String,
    seat: Seat,
    stop: &CancellationToken,
) {
    let api = Api::<Lease>::namespaced(cluster.client(), namespace);
    let election = Election::new(identity, cluster.timing(), fastrand::f64());
    let mut trouble = Trouble::default();
    // A renewal that takes longer than the time to the next one is not worth waiting for.
    let timing = cluster.timing();
    let limit = timing.api_call.min(timing.election_renew);
    let ask = |ask, lease| send(cluster, &api, limit, ask, lease);
    let understand = |answer| match answer {
        Err(error) if trouble.fails(&error) => {
            warn!(%error, lease = NAME, "cannot take part in the election");
            Answer::Failed
        }
        Err(_) => Answer::Failed,
        Ok(answer) => {
            if trouble.ends() {
                info!(lease = NAME, "taking part in the election again");
            }
            answer
        }
    };
    hold(election, seat, stop, ask, understand).await;
}

/// Reads from the Lease how many nodes there are, for an agent that takes no part in the election.
pub async fn observe(
    cluster: &Cluster,
    namespace: &str,
    scale: watch::Sender<Scale>,
    stop: &CancellationToken,
) {
    let api = Api::<Lease>::namespaced(cluster.client(), namespace);
    loop {
        // Whether it is there or not: the API server's trouble is said by whoever watches.
        if let Ok(lease) = cluster.call(api.get(NAME)).await
            && let Some(nodes) = election::nodes(&lease)
        {
            let told = Scale { nodes };
            scale.send_if_modified(|scale| std::mem::replace(scale, told) != told);
        }
        let wait = scale.borrow().lease_look(cluster.timing(), fastrand::f64());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// The loop, whatever the questions go to.
async fn hold<F, E>(
    mut election: Election,
    seat: Seat,
    stop: &CancellationToken,
    ask: impl Fn(Ask, Lease) -> F,
    mut understand: impl FnMut(Result<Answer, E>) -> Answer,
) where
    F: Future<Output = Result<Answer, E>>,
{
    let start = Instant::now();
    loop {
        let (due, question) = election.next();
        let asked = tokio::select! {
            () = stop.cancelled() => break,
            () = lose(&seat, &election, start) => continue,
            () = tokio::time::sleep_until(start + due) => question,
        };
        let asked_at = start.elapsed();
        let nodes = *seat.nodes.borrow();
        let mut answer = pin!(ask(asked, election.wish(asked, nodes)));
        let answer = loop {
            tokio::select! {
                () = stop.cancelled() => break None,
                () = lose(&seat, &election, start) => {}
                answer = &mut answer => break Some(answer),
            }
        };
        let Some(answer) = answer.map(&mut understand) else {
            break;
        };
        let scale = *seat.scale.borrow();
        election.hear(
            asked,
            answer,
            asked_at,
            start.elapsed(),
            scale,
            fastrand::f64(),
        );
        tell(&seat, &election, start.elapsed());
    }
    election.resign();
    tell(&seat, &election, start.elapsed());
    // A renewal that was under way may still have changed the version: one more look, then.
    for question in [Ask::Release, Ask::Look, Ask::Release] {
        if !election.holds() {
            return;
        }
        let asked_at = start.elapsed();
        let answer = understand(ask(question, election.wish(question, None)).await);
        if answer == Answer::Failed {
            return;
        }
        let now = start.elapsed();
        election.hear(question, answer, asked_at, now, Scale::default(), 0.5);
    }
}

/// Returns when this agent does not count as elected any more, and has told so. Never, if it is told already.
async fn lose(seat: &Seat, election: &Election, start: Instant) {
    if seat.elected.borrow().is_none() {
        std::future::pending::<()>().await;
    }
    if let Some(until) = election.elected_until(start.elapsed()) {
        tokio::time::sleep_until(start + until).await;
    }
    tell(seat, election, start.elapsed());
}

/// Tells the rest of the process what it does not know yet.
fn tell(seat: &Seat, election: &Election, now: Duration) {
    if let Some(nodes) = election.nodes() {
        let scale = Scale { nodes };
        seat.scale
            .send_if_modified(|told| std::mem::replace(told, scale) != scale);
    }
    let elected = election.elected_until(now).is_some();
    seat.elected.send_if_modified(|told| match told {
        Some(token) if !elected => {
            token.cancel();
            *told = None;
            info!(holder = election.holder(), "not elected any more");
            true
        }
        None if elected => {
            *told = Some(CancellationToken::new());
            info!("elected to write the summaries");
            true
        }
        _ => false,
    });
}

async fn send(
    cluster: &Cluster,
    api: &Api<Lease>,
    limit: Duration,
    ask: Ask,
    mut lease: Lease,
) -> Result<Answer, CallError> {
    let answer = if ask == Ask::Look {
        cluster.call_within(limit, api.get(NAME)).await
    } else {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if ask == Ask::Take {
            spec.acquire_time = Some(now.clone());
        }
        spec.renew_time = Some(now);
        lease.metadata.name = Some(NAME.to_owned());
        let params = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            let write = api.replace(NAME, &params, &lease);
            cluster.write_within(limit, "leases", write).await
        } else {
            let write = api.create(&params, &lease);
            cluster.write_within(limit, "leases", write).await
        }
    };
    match answer {
        Ok(lease) => Ok(Answer::Lease(Box::new(lease))),
        Err(error) if error.is_absent_object() => Ok(Answer::Absent),
        Err(error) if error.code() == 409 => Ok(Answer::Conflict),
        Err(error) => {
            debug!(?ask, %error, "no word on the Lease");
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::sync::{Arc, Mutex};

    use tokio::task::JoinHandle;

    use super::*;
    use crate::decide::Timing;

    /// A Lease in memory, as an API server keeps it.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<Option<Lease>>>);

    impl Server {
        fn answer(&self, ask: Ask, mut wish: Lease) -> Answer {
            let mut held = self.0.lock().unwrap();
            let version = |lease: &Lease| lease.metadata.resource_version.clone();
            let current = held.as_ref().and_then(version);
            if ask == Ask::Look {
                return held
                    .clone()
                    .map_or(Answer::Absent, |lease| Answer::Lease(Box::new(lease)));
            }
            if version(&wish) != current {
                return Answer::Conflict;
            }
            let next = current.map_or(0, |version| version.parse::<u64>().unwrap()) + 1;
            wish.metadata.resource_version = Some(next.to_string());
            *held = Some(wish.clone());
            Answer::Lease(Box::new(wish))
        }

        fn holder(&self) -> Option<String> {
            let held = self.0.lock().unwrap();
            held.as_ref()?.spec.as_ref()?.holder_identity.clone()
        }
    }

    struct Candidate {
        elected: watch::Receiver<Option<CancellationToken>>,
        scale: watch::Receiver<Scale>,
        nodes: watch::Sender<Option<u32>>,
        /// It is cut off from the server while this is true.
        cut: watch::Sender<bool>,
        stop: CancellationToken,
        task: JoinHandle<()>,
    }

    impl Candidate {
        fn of(server: &Server, identity: &str) -> Self {
            let (elected, elected_seen) = watch::channel(None);
            let (scale, scale_seen) = watch::channel(Scale { nodes: 3 });
            let (nodes, nodes_seen) = watch::channel(None);
            let (cut, cut_seen) = watch::channel(false);
            let stop = CancellationToken::new();
            let seat = Seat {
                nodes: nodes_seen,
                scale,
                elected,
            };
            let timing = Timing::default();
            let election = Election::new(identity.to_owned(), &timing, fastrand::f64());
            let server = server.clone();
            let task = tokio::spawn({
                let stop = stop.clone();
                async move {
                    let ask = |ask, wish| {
                        let (server, cut) = (server.clone(), *cut_seen.borrow());
                        async move {
                            if cut {
                                tokio::time::sleep(timing.election_renew).await;
                                return Err(());
                            }
                            Ok(server.answer(ask, wish))
                        }
                    };
                    let understand = |answer: Result<Answer, ()>| answer.unwrap_or(Answer::Failed);
                    hold(election, seat, &stop, ask, understand).await;
                }
            });
            Self {
                elected: elected_seen,
                scale: scale_seen,
                nodes,
                cut,
                stop,
                task,
            }
        }

        fn is_elected(&self) -> bool {
            !self.task.is_finished() && self.elected.borrow().is_some()
        }
    }

    /// The one that is elected within so many seconds, and after how many. Never are two.
    async fn next_elected(candidates: &[Candidate], within: u32) -> (usize, f64) {
        let start = Instant::now();
        for _ in 0..within * 100 {
            let elected: Vec<usize> = (0..candidates.len())
                .filter(|who| candidates.get(*who).unwrap().is_elected())
                .collect();
            match elected.as_slice() {
                [] => tokio::time::sleep(Duration::from_millis(10)).await,
                [one] => return (*one, start.elapsed().as_secs_f64()),
                many => panic!("{many:?} are elected"),
            }
        }
        panic!("nobody is elected after {within} s");
    }

    fn three(server: &Server) -> Vec<Candidate> {
        ["a", "b", "c"]
            .map(|identity| Candidate::of(server, identity))
            .into()
    }

    #[tokio::test(start_paused = true)]
    async fn one_is_elected_and_tells_the_others_the_number_of_nodes() {
        let server = Server::default();
        let mut candidates = three(&server);
        let (first, _) = next_elected(&candidates, 6).await;
        candidates[first].nodes.send_replace(Some(42));
        for candidate in &mut candidates {
            let told = candidate.scale.wait_for(|scale| scale.nodes == 42);
            tokio::time::timeout(Duration::from_mins(1), told)
                .await
                .unwrap()
                .unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_elected_agent_that_is_killed_is_followed() {
        let server = Server::default();
        let candidates = three(&server);
        let (first, _) = next_elected(&candidates, 6).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        candidates[first].task.abort();
        tokio::task::yield_now().await;
        let (second, seconds) = next_elected(&candidates, 30).await;
        assert!(second != first && seconds > 5.0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_elected_agent_that_stops_is_followed_at_once() {
        let server = Server::default();
        let candidates = three(&server);
        let (first, _) = next_elected(&candidates, 6).await;
        let token = candidates[first].elected.borrow().clone().unwrap();
        candidates[first].stop.cancel();
        token.cancelled().await;
        next_elected(&candidates, 5).await;
        assert!(candidates[first].task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn an_elected_agent_that_is_cut_off_stands_down_before_another_follows() {
        let server = Server::default();
        let candidates = three(&server);
        let (first, _) = next_elected(&candidates, 6).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        let token = candidates[first].elected.borrow().clone().unwrap();
        candidates[first].cut.send_replace(true);
        tokio::time::timeout(Duration::from_secs(15), token.cancelled())
            .await
            .unwrap();
        let (second, _) = next_elected(&candidates, 20).await;
        candidates[first].cut.send_replace(false);
        for _ in 0..600 {
            assert_eq!(next_elected(&candidates, 1).await.0, second);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_one_to_stop_leaves_the_lease_to_nobody() {
        let server = Server::default();
        let candidate = Candidate::of(&server, "a");
        next_elected(std::slice::from_ref(&candidate), 6).await;
        assert_eq!(server.holder().as_deref(), Some("a"));
        candidate.stop.cancel();
        candidate.task.await.unwrap();
        assert_eq!(server.holder(), None);
    }
}
