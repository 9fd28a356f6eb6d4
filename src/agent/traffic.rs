//! Looking at the node's downloads, for as long as there is something to pull.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::decide::desired::ImageKey;
use crate::decide::traffic::{Download, Ingest, Sight};
use crate::runtime::{self, Containerd, Progress, PullProgress, RuntimeError};

/// The pulls under way, and how far each is.
pub type Downloads = BTreeMap<ImageKey, Progress>;

/// How often somebody who looks on is told.
const ON_A_SCREEN: Duration = Duration::from_millis(200);

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The runtime that downloads.
    pub containerd: Option<Containerd>,
    /// The leases of the pulls under way.
    pub leases: BTreeMap<ImageKey, Arc<str>>,
    /// Something else is to be pulled.
    pub more: bool,
}

impl Subject {
    /// Whether there is nothing to look at.
    pub fn is_idle(&self) -> bool {
        self.containerd.is_none() || (self.leases.is_empty() && !self.more)
    }
}

/// Looks at what it is told to.
#[derive(Debug)]
pub struct Overlook {
    /// What to look at.
    pub subject: watch::Receiver<Subject>,
    /// What was seen.
    pub seen: watch::Sender<Arc<Sight>>,
    /// Where somebody looks on.
    pub downloads: Option<watch::Sender<Downloads>>,
    /// How often to look.
    pub every: Duration,
}

impl Overlook {
    /// Looks until the shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.look_on()).await;
    }

    async fn look_on(&mut self) {
        let every = self.downloads.as_ref().map_or(self.every, |_| ON_A_SCREEN);
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut courses: BTreeMap<Arc<str>, PullProgress> = BTreeMap::new();
        loop {
            let subject = self.subject.borrow_and_update().clone();
            let leases: BTreeSet<_> = subject.leases.values().collect();
            courses.retain(|lease, _| leases.contains(lease));
            match &subject.containerd {
                Some(containerd) if !subject.is_idle() => {
                    // A pull says itself what is wrong with the runtime, if anything is.
                    match look(containerd, &subject.leases, &mut courses).await {
                        Ok(seen) => self.take(seen),
                        Err(error) => debug!(%error, "the downloads could not be looked at"),
                    }
                    tokio::select! {
                        _ = tick.tick() => {}
                        changed = self.subject.changed() => if changed.is_err() { return },
                    }
                }
                _ => {
                    self.show(Downloads::new());
                    if self.subject.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn take(&self, seen: BTreeMap<Option<ImageKey>, runtime::Download>) {
        let progress = seen.iter().filter_map(|(key, seen)| {
            let key = key.clone()?;
            Some((key, seen.progress))
        });
        self.show(progress.collect());
        let mut sight = Sight::default();
        for (key, seen) in seen {
            let ingests = seen.ingests.into_iter().map(|ingest| Ingest {
                name: ingest.name,
                offset: ingest.offset,
            });
            let Some(key) = key else {
                sight.others = ingests.collect();
                continue;
            };
            let Progress {
                done_bytes,
                total_bytes,
            } = seen.progress;
            let download = Download {
                bytes: (done_bytes, total_bytes),
                ingests: ingests.collect(),
                complete: seen.complete,
                snapshots: seen.snapshots,
            };
            sight.pulls.insert(key, download);
        }
        self.seen.send_replace(Arc::new(sight));
    }

    fn show(&self, downloads: Downloads) {
        if let Some(shown) = &self.downloads {
            shown.send_if_modified(|before| {
                let changed = *before != downloads;
                *before = downloads;
                changed
            });
        }
    }
}

/// What each pull has, and, without a key, what belongs to none of them.
async fn look(
    containerd: &Containerd,
    leases: &BTreeMap<ImageKey, Arc<str>>,
    courses: &mut BTreeMap<Arc<str>, PullProgress>,
) -> Result<BTreeMap<Option<ImageKey>, runtime::Download>, RuntimeError> {
    let mut others = containerd.ingests().await?;
    // What is complete stands still; a moment later it is content.
    others.retain(|ingest| ingest.offset < ingest.total);
    let ingests = others.clone();
    let mut seen = BTreeMap::new();
    for (key, lease) in leases {
        let course = courses
            .entry(Arc::clone(lease))
            .or_insert_with(|| containerd.progress(lease));
        let download = course.look(&ingests).await?;
        others.retain(|ingest| !download.ingests.contains(ingest));
        seen.insert(Some(key.clone()), download);
    }
    let others = runtime::Download {
        ingests: others,
        ..runtime::Download::default()
    };
    seen.insert(None, others);
    Ok(seen)
}
