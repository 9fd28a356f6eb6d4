//! The loop of one node, and the tasks it owns.
//!
//! It does not know Kubernetes: it takes [`Inputs`] from a channel and gives reports into another.
//! Everything that happens only wakes it. It then looks at the world as it is, asks
//! [`decide::plan`](crate::decide::plan()) what to do, does it, and reports. It waits for nothing but its inbox: pulls and questions
//! to the runtime are tasks of their own.

mod chores;
mod disk;
mod keys;
mod leases;
mod look;
mod platform;
mod pull;
mod tell;
mod traffic;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch as channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use disk::NodeQuestions;
pub use traffic::Downloads;

use crate::api::NodeImageCacheStatus;
use crate::credentials::{NodeCredentials, Secrets};
use crate::decide::desired::ImageKey;
use crate::decide::disk::{Disk, Limits};
use crate::decide::holdings::Own;
use crate::decide::node_sources::NodeSources;
use crate::decide::registries::News;
use crate::decide::spread::{Spread, start_delay};
use crate::decide::traffic::{Advance, Sight, Yielding};
use crate::decide::world::{Ended, Outcome, Runtime, World};
use crate::decide::{Inputs, Known, Now, SecretName, Timing, desired, plan, report};
use crate::runtime::{Containerd, Endpoint, Lease};
use crate::telemetry::metrics::Metrics;
use chores::Done;
use disk::Looks;
use keys::Sources;
use leases::Released;
use look::{Questions, questions};
use pull::{Pull, Pulled, Step, Steps, Told};
use traffic::{Attempt, Overlook, Subject};
use watch::{Observed, Session, Watch};

/// How often a report is made while pulls run: each one looks at every wanted image.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// After working for some time on news of what is wanted, so many times as long no more are taken in: a burst of thousands of
/// edits costs a tenth of one core, and a single one is acted on at once.
const REST: u32 = 9;

/// Less is not worth a rest.
const WORTH_A_REST: Duration = Duration::from_millis(2);

/// How long pulls may take to end when the agent ends.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

/// What the agent is to do, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's socket.
    pub endpoint: Endpoint,
    /// Pulls that may run at the same time. At least 1.
    pub max_parallel_pulls: usize,
    /// Pulls make way while something else downloads images.
    pub yield_to_pods: bool,
    /// How far the disk may be filled.
    pub disk: Limits,
    /// The intervals.
    pub timing: Timing,
}

/// What the agent is told, and what it tells.
#[derive(Debug)]
pub struct Channels {
    /// What is wanted.
    pub inputs: channel::Receiver<Inputs>,
    /// How this node shares registries and the API server with others.
    pub spread: channel::Receiver<Spread>,
    /// The newest report. `None` until it is known what is wanted.
    pub reports: channel::Sender<Option<Arc<NodeImageCacheStatus>>>,
    /// Whether the runtime answers.
    pub runtime: channel::Sender<Runtime>,
    /// How far each pull is, for somebody who looks on.
    pub downloads: Option<channel::Sender<Downloads>>,
    /// Who reads pull secrets.
    pub secrets: Arc<dyn Secrets>,
    /// The credentials of the node itself.
    pub node: Arc<NodeCredentials>,
    /// Where the own Node is asked whether its disks are full. `None`: there is no Node.
    pub node_asks: Option<NodeQuestions>,
    /// The pull secrets for which something waits.
    pub awaited: channel::Sender<BTreeSet<Arc<SecretName>>>,
    /// Where pulls are counted.
    pub metrics: Metrics,
}

/// Runs the agent until the shutdown. The error is a task of it that died.
pub async fn run(
    settings: Settings,
    channels: Channels,
    shutdown: CancellationToken,
) -> Result<(), tokio::task::JoinError> {
    let look_now = Arc::new(Notify::new());
    let (ask, asked) = channel::channel(Arc::new(Questions::new()));
    let (observe, observed) = channel::channel(Observed::Nothing);
    let watch = Watch {
        endpoint: settings.endpoint.clone(),
        questions: asked,
        look_now: look_now.clone(),
        observed: observe,
        timing: settings.timing,
        shutdown: shutdown.child_token(),
    };
    let watch = tokio::spawn(watch.run());
    let world = World {
        node: NodeSources::new(channels.node.to_string()),
        disk: Disk::new(settings.disk),
        ..World::default()
    };
    let (subject, looked_at) = channel::channel(Subject::default());
    let (seen, sight) = channel::channel(Arc::default());
    let overlook = Overlook {
        subject: looked_at,
        seen,
        downloads: channels.downloads.clone(),
        every: settings.timing.traffic,
    };
    let overlook = tokio::spawn(overlook.run(shutdown.child_token()));
    let agent = Agent {
        settings,
        channels,
        ask,
        look_now,
        observed,
        world,
        started: Instant::now(),
        session: None,
        pulls: JoinSet::new(),
        releases: JoinSet::new(),
        chores: JoinSet::new(),
        chores_ended: Instant::now(),
        looks: Looks::default(),
        steps: mpsc::unbounded_channel(),
        subject,
        sight,
        bytes_reported_at: None,
        cancels: BTreeMap::new(),
        resolved: BTreeMap::new(),
        ended: BTreeMap::new(),
        reported_at: None,
        inherited: None,
        has_inherited: false,
        overtaken: None,
        owned_at: Instant::now(),
    };
    // Whichever ends first: the agent ends at the shutdown, and the other two only with it or by a panic.
    let agent = tokio::spawn(agent.run(shutdown.clone()));
    tokio::pin!(watch, overlook, agent);
    tokio::select! {
        ended = &mut agent => return ended,
        ended = &mut watch => ended?,
        ended = &mut overlook => ended?,
    }
    agent.await
}

struct Agent {
    settings: Settings,
    channels: Channels,
    ask: channel::Sender<Arc<Questions>>,
    look_now: Arc<Notify>,
    observed: channel::Receiver<Observed>,
    world: World,
    started: Instant,
    session: Option<Arc<Session>>,
    pulls: JoinSet<(ImageKey, Pulled)>,
    /// Leases that are being given up.
    releases: JoinSet<Released>,
    /// The chores under way: at most one batch.
    chores: JoinSet<Done>,
    /// When the last batch ended: an answer to an older question does not know of it.
    chores_ended: Instant,
    /// The looks at the disk that are under way.
    looks: Looks,
    /// What the pulls tell.
    steps: (Steps, mpsc::UnboundedReceiver<Told>),
    /// Which downloads to look at, and what was seen of them.
    subject: channel::Sender<Subject>,
    sight: channel::Receiver<Arc<Sight>>,
    /// When it was last reported how far the pulls are.
    bytes_reported_at: Option<Instant>,
    cancels: BTreeMap<ImageKey, CancellationToken>,
    /// The runtime's own names of images that it resolved itself.
    resolved: BTreeMap<ImageKey, Arc<str>>,
    /// When pulls ended: an answer to an older question does not know of them.
    ended: BTreeMap<ImageKey, Instant>,
    reported_at: Option<Instant>,
    /// What the process before this one reported: its timestamps are carried on. It is not told anew: another process may be the
    /// one that serves this runtime.
    inherited: Option<Arc<NodeImageCacheStatus>>,
    /// What it had pulled was taken over, if it was this Node's.
    has_inherited: bool,
    /// What is wanted has changed since the batch of chores began: it ends with the chore under way.
    overtaken: Option<CancellationToken>,
    /// When an image was last this agent's own from then on: an answer to an older question does not know of it.
    owned_at: Instant,
}

impl Agent {
    async fn run(mut self, shutdown: CancellationToken) {
        let (mut is_told, mut rest_until) = (true, Instant::now());
        loop {
            let (began, was_told) = (Instant::now(), std::mem::take(&mut is_told));
            if was_told {
                self.take_inputs();
            }
            let wake = self.act();
            let (now, busy) = (Instant::now(), began.elapsed());
            if was_told && busy > WORTH_A_REST {
                rest_until = now + busy * REST;
            }
            let is_resting = rest_until > now;
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = sleep_until(rest_until), if is_resting => {}
                changed = self.channels.inputs.changed(), if !is_resting => match changed {
                    Ok(()) => is_told = true,
                    // Whoever tells the inputs has ended: so does the process, or the shutdown follows.
                    Err(_) => break,
                },
                changed = self.observed.changed() => match changed {
                    Ok(()) => self.take_observed(),
                    Err(_) => break,
                },
                changed = self.sight.changed() => match changed {
                    Ok(()) => self.take_sight(),
                    Err(_) => break,
                },
                Some(ended) = self.pulls.join_next() => match ended {
                    Ok((key, pulled)) => self.take_pulled(&key, &pulled),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                Some(Ok(released)) = self.releases.join_next() => self.take_released(released),
                Some(Told { key, since, step }) = self.steps.1.recv() => {
                    let now = self.now().monotonic;
                    match step {
                        _ if !self.world.is_under_way(&key, since) => {}
                        Step::Asked => self.world.traffic.asked(&key, now),
                        Step::Landed => self.world.landed(&key),
                    }
                }
                Some(done) = self.chores.join_next() => match done {
                    Ok(done) => self.take_done(done),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                Some(seen) = self.looks.tasks.join_next() => match seen {
                    Ok(seen) => self.take_look(seen),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = sleep_until(wake) => {}
            }
        }
        self.stop().await;
    }

    fn now(&self) -> Now {
        Now {
            monotonic: self.started.elapsed(),
            wall: Timestamp::now(),
        }
    }

    fn take_inputs(&mut self) {
        let inputs = self.channels.inputs.borrow_and_update().clone();
        if let Some(overtaken) = &self.overtaken {
            overtaken.cancel();
        }
        let mut fresh = self.world.wants(desired(&inputs));
        // Whoever changed a Secret waits for what comes of it: this alone is not spread over the nodes.
        self.world.secrets_changed(&inputs.secrets);
        let (now, reported) = (self.now(), inputs.reported.as_deref());
        fresh.extend(self.world.refreshes_asked(reported, now.monotonic));
        let node = inputs.node.known().map_or("", |node| &node.uid);
        let within = self.channels.spread.borrow().start_within;
        let delay = start_delay(node, &fresh, within);
        self.world.wait_at_first(fresh, delay, now);
        // Another Node of this name may be another machine.
        if let (Some(reported), Known::Known(node)) = (&inputs.reported, &inputs.node)
            && !std::mem::replace(&mut self.has_inherited, true)
            && inputs.reported_by.as_ref() == Some(&node.uid)
        {
            self.world.brought.inherit(reported);
        }
        self.inherited = inputs.reported;
        if let Known::Known(desired) = &self.world.desired {
            self.resolved
                .retain(|key, _| desired.images.contains_key(key));
            let questions = questions(desired, &self.resolved);
            self.ask.send_if_modified(|asked| {
                let changed = **asked != questions;
                *asked = Arc::new(questions);
                changed
            });
        }
    }

    fn take_observed(&mut self) {
        let observed = self.observed.borrow_and_update().clone();
        match observed {
            Observed::Nothing => return,
            Observed::Answers {
                session,
                found,
                asked_at,
            } => {
                self.ended.retain(|_, ended| *ended >= asked_at);
                let answers = found
                    .answers
                    .iter()
                    .filter(|(key, _)| !self.ended.contains_key(*key))
                    .map(|(key, found)| (key.clone(), found.clone()))
                    .collect();
                self.take_session(session);
                self.world.holdings = match &self.session {
                    Some(session) if session.containerd.is_none() => {
                        let (all, answers) = (&found.holdings, &found.answers);
                        let is_new = asked_at >= self.owned_at;
                        self.world.brought.holdings(all, answers, is_new)
                    }
                    _ => found.holdings.clone(),
                };
                self.world.pinning = found.pinning.or(self.world.pinning);
                if asked_at >= self.chores_ended {
                    self.world.chores.seen();
                }
                let timing = &self.settings.timing;
                let evicted = self.world.has(answers, self.now(), timing, fastrand::f64());
                for image in evicted {
                    self.channels.metrics.evicted();
                    warn!(%image, "something else removed this image from the node");
                }
            }
            Observed::Down(why) => self.world.lost_runtime(why),
            Observed::Taken(why) => self.world.runtime_taken(why),
        }
        self.channels.runtime.send_if_modified(|runtime| {
            let changed = *runtime != self.world.runtime;
            runtime.clone_from(&self.world.runtime);
            changed
        });
    }

    /// A new connection: the runtime has leases that this process, or one before it, has made.
    fn take_session(&mut self, session: Arc<Session>) {
        let is_known = |known: &Arc<Session>| Arc::ptr_eq(known, &session);
        if !self.session.as_ref().is_some_and(is_known) {
            let now = self.now();
            let found = session.leases.iter().map(|lease| {
                let left = lease.expires.map_or(Duration::ZERO, |expires| {
                    Duration::try_from(expires.duration_since(now.wall)).unwrap_or_default()
                });
                let image = lease.image.as_str().into();
                (lease.id.clone(), image, now.monotonic + left)
            });
            self.world.leases.found(found, &self.world.pulls);
            let images = session.images.as_ref();
            self.world
                .disk
                .found(images.map(|images| images.usage.capacity));
        }
        self.session = Some(session);
    }

    /// Downloads were looked at.
    fn take_sight(&mut self) {
        let now = self.now().monotonic;
        let timing = &self.settings.timing;
        let sight = Arc::clone(&self.sight.borrow_and_update());
        let containerd = self
            .session
            .as_ref()
            .and_then(|session| session.containerd.as_ref());
        let shared_slots = containerd.is_some_and(Containerd::shares_slots);
        self.world.traffic.saw(&sight, shared_slots, now, timing);
        for (key, advance) in self.world.traffic.tell(timing.tell_progress, now) {
            let Advance { done, total, rate } = advance;
            let seconds_left = advance.left().map(|left| left.as_secs());
            info!(image = %key, bytes = done, of = total, bytes_per_second = rate.round(), seconds_left, "still pulling");
        }
        let bytes = self.world.traffic.bytes();
        let (done, total) = bytes.fold((0, 0), |sum, (_, (done, total))| {
            (sum.0 + done, sum.1 + total)
        });
        self.channels.metrics.downloading(done, total);
        // A pull that is over before this costs no report of its own.
        let every = self.channels.spread.borrow().progress;
        let since = *self.bytes_reported_at.get_or_insert_with(Instant::now);
        if since.elapsed() >= every {
            self.world.report_bytes();
            self.bytes_reported_at = Some(Instant::now());
        }
    }

    fn take_pulled(&mut self, key: &ImageKey, pulled: &Pulled) {
        let now = self.now();
        let pull = self.world.pulls.get(key);
        let since = pull.map_or(now.monotonic, |pull| pull.since);
        let took = now.monotonic.saturating_sub(since);
        let before = self.before(key);
        self.cancels.remove(key);
        self.ended.insert(key.clone(), Instant::now());
        if let Some(resolved) = &pulled.resolved {
            self.resolved.insert(key.clone(), resolved.as_str().into());
        }
        self.take_credentials(key, pulled);
        if let (Outcome::Pulled(image), Some(removable)) = (&pulled.outcome, pulled.own) {
            self.take_own(
                Own {
                    key: key.clone(),
                    id: image.id.as_str().into(),
                },
                removable,
            );
        }
        let outcome = pulled.outcome.clone();
        let timing = &self.settings.timing;
        let ended = self.world.ended(key, outcome, now, timing, fastrand::f64());
        let Ended { outcome, news } = ended;
        self.tell(key, &outcome, took, &before);
        if let Some(News { registry, held }) = news {
            if let Some((until, reason)) = held {
                warn!(registry, %reason, %until, "the registry is left alone");
            } else {
                info!(registry, "the registry answers again");
            }
        }
        if outcome == Outcome::RuntimeLost {
            self.look_now.notify_one();
        }
    }

    /// Takes which sources gave credentials, and says it when that has changed.
    fn take_credentials(&mut self, key: &ImageKey, pulled: &Pulled) {
        let before = self.world.credentials();
        self.world
            .read_credentials(key, pulled.secrets.clone(), &pulled.node);
        if let Some(credentials) = &pulled.asked_as {
            self.world.asks_as(key, credentials.clone());
        }
        let (are_ready, reason, message) = self.world.credentials();
        match (before, are_ready) {
            ((true, ..), true) => {}
            ((false, ..), true) => info!("credentials are not lacking any more"),
            ((_, before, said), false) if (before, &said) == (reason, &message) => {}
            _ => warn!(reason, error = message, "credentials are lacking"),
        }
    }

    /// Does what the plan says, reports, and says when to wake up next.
    fn act(&mut self) -> Instant {
        let now = self.now();
        let (began, yielded) = (Instant::now(), self.world.yielding);
        let every = self.channels.spread.borrow().progress;
        self.world.disk.ask_node = self.channels.node_asks.as_ref().map(|_| every);
        self.world.tend(now.monotonic, &self.settings.timing);
        if !self.settings.yield_to_pods {
            self.world.yielding = Yielding::No;
        }
        self.tell_yielding(yielded);
        let plan = plan(&self.world, self.settings.max_parallel_pulls, now);
        self.channels.metrics.planned(began.elapsed());
        for key in &plan.cancel {
            self.world.cancelled(key);
            if let Some(cancel) = self.cancels.get(key) {
                cancel.cancel();
            }
        }
        for id in plan.release {
            self.release(id);
        }
        for id in plan.renew {
            self.renew(id, now);
        }
        for key in plan.start {
            self.start(key, now);
        }
        self.begin(plan.chores);
        self.look_at(plan.more);
        let look = self.look_at_disk(plan.needs_room);
        self.tell_disk();
        let awaited = self.world.awaited_secrets();
        self.channels.awaited.send_if_modified(|before| {
            let changed = *before != awaited;
            *before = awaited;
            changed
        });
        let timing = &self.settings.timing;
        let next = [plan.wake, look, self.world.state_changes_at(timing, now)];
        let next = next
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(timing.look_with_events + now.monotonic);
        (self.started + next).min(self.report())
    }

    /// Has the downloads looked at while there is something to pull.
    fn look_at(&mut self, more: bool) {
        let session = self.session.as_ref();
        let pulls = self.world.pulls.iter().map(|(key, pull)| {
            let attempt = Attempt {
                lease: self.world.leases.of(key).0.into(),
                since: pull.since,
                resumes: self.world.traffic.resumes(key),
            };
            (key.clone(), attempt)
        });
        let subject = Subject {
            containerd: session.and_then(|session| session.containerd.clone()),
            pulls: pulls.collect(),
            kept: self.world.leases.idle(&self.world.pulls),
            more,
        };
        if subject.is_idle() {
            self.world.traffic.forget_others();
            self.bytes_reported_at = None;
            self.channels.metrics.downloading(0, 0);
        }
        self.subject.send_if_modified(|before| {
            let is_urgent = subject.is_urgent_after(before);
            *before = subject;
            is_urgent
        });
    }

    fn start(&mut self, key: ImageKey, now: Now) {
        let Some(session) = &self.session else {
            return;
        };
        let Some(question) = self.ask.borrow().get(&key).cloned() else {
            return;
        };
        let cancel = CancellationToken::new();
        let timing = &self.settings.timing;
        let is_refresh = self.world.is_ready(&key);
        let removable = self.is_removable(&key);
        let before = self.world.image(&key).map(|image| image.id.clone());
        let (lease, resumes) = self.world.leases.of(&key);
        let lease = session.containerd.clone().map(|containerd| {
            let lease = Lease {
                id: lease,
                image: key.to_string(),
                expires: now.wall.checked_add(timing.lease).ok(),
                removable,
                created: None,
                replaces: before.clone(),
            };
            let (id, expires) = (lease.id.clone(), now.monotonic + timing.lease);
            self.world.leases.hold(id, key.clone(), expires);
            (containerd, lease)
        });
        let desired = self.world.desired.known();
        let pull = Pull {
            lease,
            runtime: session.runtime.clone(),
            key: key.clone(),
            since: now.monotonic,
            question,
            cancel: cancel.clone(),
            sources: Sources {
                secrets: self.channels.secrets.clone(),
                names: desired
                    .map_or(&[][..], |wanted| wanted.secrets(&key))
                    .to_vec(),
                node: self.channels.node.clone(),
            },
            limits: self.world.limits(&key),
            ask_first: !session.status.events && !is_refresh,
            steps: self.steps.0.clone(),
            before,
            removable,
            began: now.wall,
        };
        if is_refresh {
            debug!(image = %key, "asking the registry again");
        } else {
            info!(image = %key, "pulling");
        }
        self.cancels.insert(key.clone(), cancel);
        self.world.started(key.clone(), resumes, now);
        self.pulls.spawn(async move { (key, pull.run().await) });
    }

    /// Gives out the report of this moment, if it says something new. While pulls run not more often
    /// than at an interval: then the answer is when to come back.
    fn report(&mut self) -> Instant {
        let now = Instant::now();
        let due = self.reported_at.map_or(now, |at| at + REPORT_INTERVAL);
        let working = !self.pulls.is_empty();
        if working && due > now {
            return due;
        }
        let status = self
            .session
            .as_ref()
            .map(|session| session.status.clone())
            .unwrap_or_default();
        let previous = self.channels.reports.borrow().clone();
        let previous = previous.or_else(|| self.inherited.clone());
        let report = report(
            &self.world,
            &status,
            previous.as_deref(),
            self.now(),
            &self.settings.timing,
        );
        self.reported_at = Some(now);
        if let Some(report) = report {
            self.channels.reports.send_if_modified(|told| {
                let is_news = told.as_deref() != Some(&report);
                if is_news {
                    *told = Some(Arc::new(report));
                }
                is_news
            });
        }
        now + self.settings.timing.look_with_events
    }

    /// Cancels every pull and gives each a moment to tidy up.
    async fn stop(mut self) {
        for cancel in self.cancels.values() {
            cancel.cancel();
        }
        let ended = timeout(CANCEL_LIMIT, async {
            while self.pulls.join_next().await.is_some() {}
            while self.releases.join_next().await.is_some() {}
            while self.chores.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            debug!("pulls did not end in time; dropping them");
        }
    }
}
