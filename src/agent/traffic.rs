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

/// A pull under way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attempt {
    /// Its lease, which may be the one of an earlier attempt.
    pub lease: Arc<str>,
    /// When it began.
    pub since: Duration,
    /// An earlier attempt has left something.
    pub resumes: bool,
}

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The runtime that downloads.
    pub containerd: Option<Containerd>,
    /// The pulls under way.
    pub pulls: BTreeMap<ImageKey, Attempt>,
    /// The leases that keep what other pulls have left.
    pub kept: BTreeSet<String>,
    /// Something else is to be pulled.
    pub more: bool,
}

impl Subject {
    /// Whether there is nothing to look at.
    pub fn is_idle(&self) -> bool {
        self.containerd.is_none() || (self.pulls.is_empty() && !self.more)
    }

    /// Whether this cannot wait for the next look: there was nothing to look at before, or a pull begins to go on with what another has
    /// left, and what it brings itself is not to be taken for that.
    pub fn is_urgent_after(&self, before: &Self) -> bool {
        let mut pulls = self.pulls.iter();
        let goes_on = |(key, attempt): (&ImageKey, &Attempt)| {
            attempt.resumes && before.pulls.get(key) != Some(attempt)
        };
        self.is_idle() != before.is_idle() || pulls.any(goes_on)
    }

    /// All pulls that ran at some time since `before`, and the leases that keep something for those that did not.
    fn since(&self, before: &Self) -> (BTreeMap<ImageKey, Attempt>, BTreeSet<String>) {
        let mut pulls = before.pulls.clone();
        pulls.extend(self.pulls.clone());
        let mut kept = &before.kept | &self.kept;
        for Attempt { lease, .. } in pulls.values() {
            kept.remove(&**lease);
        }
        (pulls, kept)
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
            let pulls = subject.pulls.values();
            let leases: BTreeSet<_> = pulls.map(|attempt| &attempt.lease).collect();
            courses.retain(|lease, _| leases.contains(lease));
            match &subject.containerd {
                Some(containerd) if !subject.is_idle() => {
                    // A pull says itself what is wrong with the runtime, if anything is.
                    let looked = look(containerd, &subject, &self.subject, &mut courses);
                    match looked.await {
                        Ok((sight, downloads)) => {
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

/// What each pull has, what others have left, and what belongs to none of them. `before`: what there was to look at just before.
async fn look(
    containerd: &Containerd,
    before: &Subject,
    subject: &watch::Receiver<Subject>,
    courses: &mut BTreeMap<Arc<str>, PullProgress>,
) -> Result<(Sight, Downloads), RuntimeError> {
    let mut ingests = containerd.ingests().await?;
    // What is complete stands still; a moment later it is content.
    ingests.retain(|ingest| ingest.offset < ingest.total);
    // Whoever downloads one of them began before this moment, and an ingest is in its lease from its first moment on.
    let now = subject.borrow().clone();
    let (pulls, kept) = now.since(before);
    let (mut sight, mut downloads) = (Sight::default(), Downloads::new());
    let (mut others, mut knows_all) = (ingests.clone(), true);
    for (key, Attempt { lease, .. }) in &pulls {
        let course = courses
            .entry(Arc::clone(lease))
            .or_insert_with(|| containerd.progress(lease));
        match course.look(&ingests).await {
            Ok(seen) => {
                others.retain(|ingest| !seen.ingests.contains(ingest));
                if now.pulls.contains_key(key) {
                    downloads.insert(key.clone(), seen.progress);
                }
                sight.pulls.insert(key.clone(), download(seen));
            }
            Err(error) => {
                debug!(image = %key, %error, "this pull could not be looked at");
                knows_all = false;
            }
        }
    }
    if knows_all {
        let names = match &others[..] {
            [] => Some(BTreeSet::new()),
            _ => names(containerd, &kept).await?,
        };
        let others = others.into_iter().map(of);
        let may_be_kept = |ingest: &Ingest| {
            names
                .as_ref()
                .is_none_or(|names| names.contains(&ingest.name))
        };
        let (kept, others) = others.partition(may_be_kept);
        (sight.kept, sight.others) = (kept, Some(others));
    }
    Ok((sight, downloads))
}

/// The names of the downloads that these leases keep. `None`: one of them could not be asked, and any download may be among them.
async fn names(
    containerd: &Containerd,
    leases: &BTreeSet<String>,
) -> Result<Option<BTreeSet<String>>, RuntimeError> {
    let (mut names, mut knows_all) = (BTreeSet::new(), true);
    for lease in leases {
        match containerd.ingests_of(lease).await {
            Ok(more) => names.extend(more),
            // Neither will the others be answered for.
            Err(error @ RuntimeError::Unavailable(_)) => return Err(error),
            Err(error) => {
                debug!(lease, %error, "this lease could not be looked at");
                knows_all = false;
            }
        }
    }
    Ok(knows_all.then_some(names))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::runtime::Runtime;

    fn subject(pulls: &[(&str, u64)], kept: &[&str]) -> Subject {
        let runtime = Runtime::new("/run/none.sock".parse().unwrap(), Duration::from_secs(1));
        let attempt = |(key, since): &(&str, u64)| {
            let attempt = Attempt {
                lease: Arc::from(*key),
                since: Duration::from_secs(*since),
                resumes: *since > 0,
            };
            (ImageKey::from(*key), attempt)
        };
        Subject {
            containerd: Some(Containerd::assumed(runtime)),
            pulls: pulls.iter().map(attempt).collect(),
            kept: kept.iter().map(ToString::to_string).collect(),
            more: false,
        }
    }

    #[tokio::test]
    async fn downloads_are_looked_at_while_there_is_something_to_pull() {
        assert!(Subject::default().is_idle());
        assert!(subject(&[], &["kept"]).is_idle());
        assert!(!subject(&[("a", 0)], &[]).is_idle());
        let mut more = subject(&[], &[]);
        more.more = true;
        assert!(!more.is_idle());
        more.containerd = None;
        assert!(more.is_idle(), "nobody tells of downloads");
    }

    #[tokio::test]
    async fn a_pull_that_goes_on_with_what_another_has_left_is_looked_at_at_once() {
        let is_urgent = |before: &[(&str, u64)], now: &[(&str, u64)]| {
            subject(now, &[]).is_urgent_after(&subject(before, &[]))
        };
        let one = ("one", 0);
        assert!(is_urgent(&[], &[one]), "nothing was looked at before");
        assert!(!is_urgent(&[one], &[one, ("new", 0)]));
        assert!(is_urgent(&[one], &[one, ("again", 1)]));
        assert!(!is_urgent(&[one, ("again", 1)], &[one, ("again", 1)]));
        assert!(
            is_urgent(&[("again", 1)], &[("again", 2)]),
            "under one lease"
        );
    }

    #[tokio::test]
    async fn what_begins_or_ends_during_a_look_is_own_all_the_same() {
        let before = [("ends", 0), ("runs", 0), ("is cancelled", 0)];
        let before = subject(&before, &["begins", "is released"]);
        let now = [("begins", 1), ("runs", 0)];
        let now = subject(&now, &["is cancelled", "is found"]);
        let (pulls, kept) = now.since(&before);
        let leases: Vec<_> = pulls.values().map(|attempt| &*attempt.lease).collect();
        assert_eq!(leases, ["begins", "ends", "is cancelled", "runs"]);
        assert_eq!(Vec::from_iter(kept), ["is found", "is released"]);
    }
}
