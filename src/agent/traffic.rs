//! Looking at the node's downloads, for as long as there is something to pull.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
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
    /// The leases that keep what other pulls have left.
    pub kept: BTreeSet<String>,
    /// Something else is to be pulled.
    pub more: bool,
}

impl Subject {
    /// Whether there is nothing to look at.
    pub fn is_idle(&self) -> bool {
        self.containerd.is_none() || (self.leases.is_empty() && !self.more)
    }

    /// Whether this cannot wait for the next look: there was nothing to look at before, or a pull goes on with what another has left,
    /// and what it brings itself is not to be taken for that.
    pub fn is_urgent_after(&self, before: &Self) -> bool {
        let mut leases = self.leases.values();
        self.is_idle() != before.is_idle() || leases.any(|lease| before.kept.contains(&**lease))
    }

    /// Whether own pulls have begun or ended since.
    fn has_other_pulls(&self, before: &Self) -> bool {
        (&self.leases, &self.kept) != (&before.leases, &before.kept)
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
        let mut courses: BTreeMap<Arc<str>, PullProgress> = BTreeMap::new();
        loop {
            let subject = self.subject.borrow_and_update().clone();
            let leases: BTreeSet<_> = subject.leases.values().collect();
            courses.retain(|lease, _| leases.contains(lease));
            match &subject.containerd {
                Some(containerd) if !subject.is_idle() => {
                    // A pull says itself what is wrong with the runtime, if anything is.
                    match look(containerd, &subject, &mut courses).await {
                        Ok((mut sight, downloads)) => {
                            // A pull that began meanwhile may have been taken for somebody else's.
                            if self.subject.borrow().has_other_pulls(&subject) {
                                sight.others = None;
                            }
                            self.show(downloads);
                            self.seen.send_replace(Arc::new(sight));
                        }
                        Err(error) => debug!(%error, "the downloads could not be looked at"),
                    }
                    tokio::select! {
                        () = sleep(every) => {}
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

/// What each pull has, what others have left, and what belongs to none of them.
async fn look(
    containerd: &Containerd,
    subject: &Subject,
    courses: &mut BTreeMap<Arc<str>, PullProgress>,
) -> Result<(Sight, Downloads), RuntimeError> {
    let mut ingests = containerd.ingests().await?;
    // What is complete stands still; a moment later it is content.
    ingests.retain(|ingest| ingest.offset < ingest.total);
    let (mut sight, mut downloads) = (Sight::default(), Downloads::new());
    let (mut others, mut knows_all) = (ingests.clone(), true);
    for (key, lease) in &subject.leases {
        let course = courses
            .entry(Arc::clone(lease))
            .or_insert_with(|| containerd.progress(lease));
        match course.look(&ingests).await {
            Ok(seen) => {
                others.retain(|ingest| !seen.ingests.contains(ingest));
                downloads.insert(key.clone(), seen.progress);
                sight.pulls.insert(key.clone(), download(seen));
            }
            Err(error) => {
                debug!(image = %key, %error, "this pull could not be looked at");
                knows_all = false;
            }
        }
    }
    if !others.is_empty() {
        for lease in &subject.kept {
            match containerd.progress(lease).look(&others).await {
                Ok(seen) => {
                    others.retain(|ingest| !seen.ingests.contains(ingest));
                    sight.kept.extend(seen.ingests.into_iter().map(of));
                }
                Err(_) => knows_all = false,
            }
        }
    }
    sight.others = knows_all.then(|| others.into_iter().map(of).collect());
    Ok((sight, downloads))
}

fn download(seen: runtime::Download) -> Download {
    let Progress {
        done_bytes,
        total_bytes,
    } = seen.progress;
    Download {
        bytes: (done_bytes, total_bytes),
        ingests: seen.ingests.into_iter().map(of).collect(),
        complete: seen.complete,
        snapshots: seen.snapshots,
    }
}

fn of(ingest: runtime::Ingest) -> Ingest {
    Ingest {
        name: ingest.name,
        offset: ingest.offset,
    }
}
