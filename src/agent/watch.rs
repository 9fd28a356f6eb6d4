//! Keeping an eye on the runtime: what it has, whether it answers, and what changes by itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::look::{Answers, Looker, Questions};
use crate::api::node_image_cache::RuntimeStatus;
use crate::decide::Timing;
use crate::runtime::{
    Containerd, Endpoint, ImageEvents, LockError, Runtime, RuntimeError, SocketLock, lock,
};

/// What the runtime says of itself.
#[derive(Clone, Debug)]
pub struct Session {
    /// The connection.
    pub runtime: Runtime,
    /// The runtime, if it is containerd.
    pub containerd: Option<Containerd>,
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
        answers: Arc<Answers>,
        /// When it was asked: what happened later may not be in the answers.
        asked_at: Instant,
    },
    /// It does not answer, for this reason.
    Down(String),
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
        let mut swept = false;
        loop {
            let error = match self.connect(&mut swept).await {
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
                Err(error) => self.is_down(&describe(&error)),
            }
            // To try costs next to nothing, and whoever has it may be about to end.
            self.pause(1).await;
        }
    }

    async fn connect(&self, swept: &mut bool) -> Result<Session, RuntimeError> {
        let runtime = Runtime::new(self.endpoint.clone(), self.timing.runtime_call);
        let version = runtime.version().await?;
        let containerd = Containerd::ask(&runtime).await?;
        let status = RuntimeStatus {
            name: version.name,
            version: version.version,
            api_version: "v1".to_owned(),
            endpoint: self.endpoint.to_string(),
            events: containerd.is_some(),
            progress: containerd.is_some(),
        };
        if let Some(containerd) = containerd.as_ref().filter(|_| !*swept) {
            sweep(containerd).await?;
            *swept = true;
        }
        Ok(Session {
            runtime,
            containerd,
            status,
        })
    }

    /// Looks whenever there is a reason to, until the runtime stops answering.
    async fn follow(&mut self, session: Arc<Session>, failures: &mut u32) -> RuntimeError {
        let mut looker = Looker::new(session.runtime.clone(), session.containerd.is_some());
        let mut events = match subscribe(&session).await {
            Ok(events) => events,
            Err(error) => return error,
        };
        loop {
            let asked_at = Instant::now();
            let questions = self.questions.borrow_and_update().clone();
            let answers = match looker.look(&questions).await {
                Ok(answers) => Arc::new(answers),
                Err(error) => return error,
            };
            if !matches!(*self.observed.borrow(), Observed::Answers { .. }) {
                let RuntimeStatus { name, version, .. } = &session.status;
                info!(runtime = %name, %version, endpoint = %self.endpoint, "the runtime answers");
                *failures = 0;
            }
            self.observed.send_replace(Observed::Answers {
                session: session.clone(),
                answers,
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
                error = gather(&mut events, self.timing.look_after_event) => if let Err(error) = error {
                    debug!(%error, "the stream of image events ended");
                    return error;
                },
            }
        }
    }

    /// Says it once, and again when the cause changes.
    fn is_down(&self, why: &str) {
        let said = matches!(&*self.observed.borrow(), Observed::Down(before) if before == why);
        if !said {
            warn!(endpoint = %self.endpoint, error = %why, "the runtime is not available; trying again until it is");
            self.observed.send_replace(Observed::Down(why.to_owned()));
        }
    }

    async fn pause(&self, failures: u32) {
        let delay = self.timing.runtime_retry.after(failures);
        sleep(delay.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
    }
}

/// Deletes what a killed process has left. Only before the first pull of this one: a pull whose lease is deleted fails.
async fn sweep(containerd: &Containerd) -> Result<(), RuntimeError> {
    for lease in containerd.leases().await? {
        containerd.delete_lease(&lease.id).await?;
    }
    Ok(())
}

async fn subscribe(session: &Session) -> Result<Option<ImageEvents>, RuntimeError> {
    match &session.containerd {
        Some(containerd) => containerd.image_events().await.map(Some),
        None => Ok(None),
    }
}

/// Waits for an event, then a little longer for those that follow it: one removal makes several.
async fn gather(events: &mut Option<ImageEvents>, longer: Duration) -> Result<(), RuntimeError> {
    let Some(events) = events else {
        return std::future::pending().await;
    };
    events.next().await?;
    let until = Instant::now() + longer;
    while let Ok(event) = timeout_at(until, events.next()).await {
        event?;
    }
    Ok(())
}

fn describe(error: &LockError) -> String {
    match error {
        LockError::Taken { .. } => error.to_string(),
        LockError::Io { cause, .. } => format!(
            "{error}: {cause}: is a container runtime installed here, and its folder mounted?"
        ),
    }
}
