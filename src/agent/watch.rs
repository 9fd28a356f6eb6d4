//! Keeping an eye on the runtime: what it has, whether it answers, and what changes by itself.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::disk::ImageDisk;
use super::look::{Looked, Looker, Questions};
use crate::api::node_image_cache::RuntimeStatus;
use crate::decide::Timing;
use crate::runtime::{
    Containerd, Endpoint, ImageChange, ImageEvents, Lease, LockError, Runtime, RuntimeError,
    SocketLock, lock,
};

/// What the runtime says of itself.
#[derive(Clone, Debug)]
pub struct Session {
    /// The connection.
    pub runtime: Runtime,
    /// The runtime, if it is containerd.
    pub containerd: Option<Containerd>,
    /// Our leases that it had when the connection was made.
    pub leases: Vec<Lease>,
    /// Where it keeps its images, if this process sees that.
    pub images: Option<ImageDisk>,
    /// The same for the report.
    pub status: RuntimeStatus,
}

/// The newest state of the runtime.
#[derive(Clone, Debug, Default)]
pub enum Observed {
    /// It has not been asked yet.
    #[default]
    Nothing,
    /// It answered.
    Answers {
        /// Who answered.
        session: Arc<Session>,
        /// What it has.
        found: Arc<Looked>,
        /// When it was asked: what happened later may not be in the answers.
        asked_at: Instant,
    },
    /// It does not answer, for this reason.
    Down(String),
    /// Another agent serves it.
    Taken(String),
}

/// Watches one runtime for as long as the agent runs.
#[derive(Debug)]
pub struct Watch {
    /// Where it is.
    pub endpoint: Endpoint,
    /// What to ask for.
    pub questions: watch::Receiver<Arc<Questions>>,
    /// Wakes it up: somebody has reason to believe that the runtime has changed.
    pub look_now: Arc<Notify>,
    /// Where the newest state goes.
    pub observed: watch::Sender<Observed>,
    /// The intervals.
    pub timing: Timing,
    /// Ends it.
    pub shutdown: CancellationToken,
}

impl Watch {
    /// Watches until the shutdown.
    pub async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        shutdown.run_until_cancelled(self.watch()).await;
    }

    async fn watch(&mut self) {
        let _lock = self.lock().await;
        let mut failures = 0;
        loop {
            let error = match self.connect().await {
                Ok(session) => self.follow(Arc::new(session), &mut failures).await,
                Err(error) => error,
            };
            failures += 1;
            self.is_down(&error.to_string());
            self.pause(failures).await;
        }
    }

    /// One agent serves a runtime. Whoever comes second waits: the first may be about to end.
    async fn lock(&mut self) -> SocketLock {
        loop {
            match lock(&self.endpoint) {
                Ok(lock) => return lock,
                Err(error) => {
                    let why = describe(&error);
                    let is_taken = matches!(error, LockError::Taken { .. });
                    self.say(if is_taken {
                        Observed::Taken(why)
                    } else {
                        Observed::Down(why)
                    });
                }
            }
            // To try costs next to nothing, and whoever has it may be about to end.
            self.pause(1).await;
        }
    }

    async fn connect(&self) -> Result<Session, RuntimeError> {
        let runtime = Runtime::new(self.endpoint.clone(), self.timing.runtime_call);
        let version = runtime.version().await?;
        let containerd = Containerd::ask(&runtime).await?;
        let images = ImageDisk::find(&runtime, self.timing.runtime_call).await;
        let status = RuntimeStatus {
            name: version.name,
            version: version.version,
            api_version: "v1".to_owned(),
            endpoint: self.endpoint.to_string(),
            events: containerd.is_some(),
            progress: containerd.is_some(),
            resume: containerd.is_some(),
            pinning: containerd.is_some(),
            disk: images.is_some(),
        };
        let leases = match &containerd {
            Some(containerd) => containerd.leases().await?,
            None => Vec::new(),
        };
        Ok(Session {
            runtime,
            containerd,
            leases,
            images,
            status,
        })
    }

    /// Looks whenever there is a reason to, until the runtime stops answering.
    async fn follow(&mut self, session: Arc<Session>, failures: &mut u32) -> RuntimeError {
        let mut looker = Looker::new(session.runtime.clone(), session.containerd.clone());
        let mut events = match subscribe(&session).await {
            Ok(events) => events,
            Err(error) => return error,
        };
        loop {
            let asked_at = Instant::now();
            let questions = self.questions.borrow_and_update().clone();
            let found = match Box::pin(looker.look(&questions)).await {
                Ok(found) => Arc::new(found),
                Err(error) => return error,
            };
            if !matches!(*self.observed.borrow(), Observed::Answers { .. }) {
                let RuntimeStatus { name, version, .. } = &session.status;
                info!(runtime = %name, %version, endpoint = %self.endpoint, "the runtime answers");
                *failures = 0;
            }
            self.observed.send_replace(Observed::Answers {
                session: session.clone(),
                found,
                asked_at,
            });
            let interval = match events {
                Some(_) => self.timing.look_with_events,
                None => self.timing.look,
            };
            tokio::select! {
                () = sleep(interval) => {}
                () = self.look_now.notified() => {}
                changed = self.questions.changed() => if changed.is_err() {
                    // Nobody asks any more: the agent is ending.
                    std::future::pending::<()>().await;
                },
                error = gather(&mut events, &self.timing) => if let Err(error) = error {
                    debug!(%error, "the stream of image events ended");
                    return error;
                },
            }
        }
    }

    fn is_down(&self, why: &str) {
        self.say(Observed::Down(why.to_owned()));
    }

    /// Says what stands in the way, once, and again when the cause changes.
    fn say(&self, observed: Observed) {
        let (Observed::Down(why) | Observed::Taken(why)) = &observed else {
            return;
        };
        let is_said = match &*self.observed.borrow() {
            Observed::Down(before) | Observed::Taken(before) => before == why,
            _ => false,
        };
        if !is_said {
            warn!(endpoint = %self.endpoint, error = %why, "the runtime is not available; trying again until it is");
            self.observed.send_replace(observed);
        }
    }

    async fn pause(&self, failures: u32) {
        let delay = self.timing.runtime_retry.after(failures);
        sleep(delay.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
    }
}

async fn subscribe(session: &Session) -> Result<Option<ImageEvents>, RuntimeError> {
    match &session.containerd {
        Some(containerd) => containerd.image_events().await.map(Some),
        None => Ok(None),
    }
}

/// Waits for an event, then a little longer for those that follow it: one removal makes several. What is new is in less of a
/// hurry: mostly our own pulls have made it, one after the other.
async fn gather(events: &mut Option<ImageEvents>, timing: &Timing) -> Result<(), RuntimeError> {
    let Some(events) = events else {
        return std::future::pending().await;
    };
    let mut event = events.next().await?;
    let mut until = Instant::now() + timing.look_after_arrival;
    loop {
        if event.change == ImageChange::Deleted {
            until = until.min(Instant::now() + timing.look_after_removal);
        }
        match timeout_at(until, events.next()).await {
            Ok(next) => event = next?,
            Err(_) => return Ok(()),
        }
    }
}

fn describe(error: &LockError) -> String {
    match error {
        LockError::Taken { .. } => error.to_string(),
        LockError::Io { cause, .. } => format!(
            "{error}: {cause}: is a container runtime installed here, and its folder mounted?"
        ),
    }
}
