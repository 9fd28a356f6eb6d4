//! Looking at the filesystem that images are on, and asking the own Node, for as long as there is something to pull.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::StatVfs;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Agent;
use crate::decide::disk::NodeSays;
use crate::decide::usage::Usage;
use crate::runtime::Runtime;

/// Where the own Node is asked whether its disks are full.
pub type NodeQuestions = mpsc::Sender<oneshot::Sender<NodeSays>>;

/// The filesystem that a runtime keeps its images on, where this process sees it.
#[derive(Clone, Debug)]
pub struct ImageDisk {
    /// A path on it.
    pub path: PathBuf,
    /// What it has.
    pub usage: Usage,
}

/// What a look has found, and when it began.
#[derive(Debug)]
pub(super) enum Seen {
    Disk(Option<Usage>, Duration),
    Node(NodeSays, Duration),
}

/// The looks under way: at most one of each kind.
#[derive(Debug, Default)]
pub(super) struct Looks {
    pub(super) tasks: JoinSet<Seen>,
    at_disk: bool,
    at_node: bool,
    /// It was said that pulls wait for the disk.
    said: bool,
}

impl ImageDisk {
    /// Asks the runtime where it keeps its images. `None`: it does not say, or this process does not see that path.
    pub async fn find(runtime: &Runtime, limit: Duration) -> Option<Self> {
        let filesystems = match runtime.filesystems().await {
            Ok(filesystems) => filesystems,
            Err(error) => {
                debug!(%error, "the runtime does not say where images are");
                return None;
            }
        };
        for path in filesystems.into_iter().map(|found| found.path) {
            let path = PathBuf::from(path);
            if let Some(usage) = usage(path.clone(), limit).await {
                return Some(Self { path, usage });
            }
            info!(path = %path.display(), "the filesystem of images is not seen here, so nobody looks whether it gets full: mount this path");
        }
        None
    }
}

/// How far the filesystem of this path is used. A disk that is away can take any time, and the thread that asks it with it.
async fn usage(path: PathBuf, limit: Duration) -> Option<Usage> {
    let asked = path.clone();
    let look = tokio::task::spawn_blocking(move || statvfs(&asked));
    match timeout(limit, look).await {
        Ok(Ok(Ok(found))) => Some(found),
        Ok(Ok(Err(error))) => {
            debug!(path = %path.display(), %error, "the filesystem of images could not be looked at");
            None
        }
        Ok(Err(_)) | Err(_) => {
            warn!(path = %path.display(), "the filesystem of images does not answer");
            None
        }
    }
}

fn statvfs(path: &Path) -> rustix::io::Result<Usage> {
    let StatVfs {
        f_frsize,
        f_blocks,
        f_bavail,
        f_files,
        f_favail,
        ..
    } = rustix::fs::statvfs(path)?;
    Ok(Usage {
        capacity: f_blocks.saturating_mul(f_frsize),
        used: f_blocks.saturating_sub(f_bavail).saturating_mul(f_frsize),
        inodes: f_files,
        used_inodes: f_files.saturating_sub(f_favail),
    })
}

impl Agent {
    /// Begins the looks that are due, and says when the next one is.
    pub(super) fn look_at_disk(&mut self, needs_room: bool) -> Option<Duration> {
        if !needs_room {
            self.world.disk.rest();
            return None;
        }
        let now = self.now().monotonic;
        let [disk, node] = self.world.disk.looks();
        let disk = disk.filter(|_| !self.looks.at_disk);
        let node = node.filter(|_| !self.looks.at_node);
        let session = self.session.as_ref();
        let images = session.and_then(|session| session.images.as_ref());
        if let (Some(images), Some(_)) = (images, disk.filter(|at| *at <= now)) {
            let (path, limit) = (images.path.clone(), self.settings.timing.runtime_call);
            self.looks.at_disk = true;
            self.looks
                .tasks
                .spawn(async move { Seen::Disk(usage(path, limit).await, now) });
        }
        if let (Some(node_asks), Some(_)) = (&self.channels.node_asks, node.filter(|at| *at <= now))
        {
            let (ask, limit) = (node_asks.clone(), self.settings.timing.node_answer);
            self.looks.at_node = true;
            self.looks.tasks.spawn(async move {
                let said = timeout(limit, ask_node(ask)).await;
                Seen::Node(said.unwrap_or(NodeSays::Nothing), now)
            });
        }
        [disk, node]
            .into_iter()
            .flatten()
            .filter(|at| *at > now)
            .min()
    }

    /// A look has ended.
    pub(super) fn take_look(&mut self, seen: Seen) {
        match seen {
            Seen::Disk(usage, at) => {
                self.looks.at_disk = false;
                let ended = self.now().monotonic;
                let timing = &self.settings.timing;
                self.world.disk.saw(usage, [at, ended], timing);
            }
            Seen::Node(said, at) => {
                self.looks.at_node = false;
                self.world.disk.node_said(said, at);
            }
        }
    }

    /// Says that pulls wait for the disk from now on, or do not any more.
    pub(super) fn tell_disk(&mut self) {
        let (is, reason, why) = self.world.disk.condition();
        let was = std::mem::replace(&mut self.looks.said, is);
        if is && !was {
            warn!(reason, why = %why, "pulls wait for the disk");
        } else if was && !is {
            info!("pulls do not wait for the disk any more");
        }
        if is != was {
            self.channels.metrics.disk_guard(is);
        }
    }
}

/// Whoever knows the Node answers, or is gone.
async fn ask_node(ask: NodeQuestions) -> NodeSays {
    let (answer, answered) = oneshot::channel();
    if ask.send(answer).await.is_err() {
        return NodeSays::Nothing;
    }
    answered.await.unwrap_or(NodeSays::Nothing)
}
