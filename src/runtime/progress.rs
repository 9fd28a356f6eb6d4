//! How far one pull is, in bytes of its own image.
//!
//! containerd's CRI says nothing about a running pull. Its lease does: it lists what is
//! downloaded (`content`) and what is being downloaded (`ingests`). Versions before 2 list a
//! layer only when its turn has come, so the whole is read from the image's manifest, which is
//! the first thing that a pull downloads.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::connect::MAX_ANSWER_BYTES;
use super::containerd::{Containerd, namespaced};
use super::error::RuntimeError;
use super::proto::containerd::content::content_client::ContentClient;
use super::proto::containerd::content::{InfoRequest, ListStatusesRequest, ReadContentRequest};

/// containerd refuses larger manifests too.
const MAX_MANIFEST_BYTES: i64 = 8 << 20;

/// containerd marks what refers to other content with labels that start so: manifests and
/// indexes, never layers.
const REFERS: &str = "containerd.io/gc.ref.content";

/// How a lease calls the downloads that it keeps.
const INGESTS: &str = "ingests";

/// How far a pull is.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Progress {
    /// Bytes that are on the disk, of layers in part too. Running layers move in steps of 1 MiB.
    pub done_bytes: u64,
    /// Bytes of the whole image as the registry holds it, as in [`Image::bytes`]. 0 while that
    /// is not known, which is until the image's manifest has come.
    ///
    /// [`Image::bytes`]: super::Image::bytes
    pub total_bytes: u64,
}

/// A download that has not ended: of a layer, a configuration, a manifest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ingest {
    /// What is downloaded, as in `layer-sha256:…`. Two pulls that need the same share it.
    pub name: String,
    /// Bytes on the disk. A running one moves in steps of 1 MiB, and stands at 0 below the first.
    pub offset: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What a pull's lease shows of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Download {
    /// How far it is.
    pub progress: Progress,
    /// Its downloads that have not ended. Versions before 2 list only those whose turn has come.
    pub ingests: Vec<Ingest>,
    /// How many of its downloads are complete.
    pub complete: usize,
    /// How many snapshots it has: unpacking a layer makes one, and shows nowhere else.
    pub snapshots: usize,
}

/// Follows one pull by its lease. Its numbers never go back.
///
/// A layer that the node has unpacked already for another image, and whose download it has
/// thrown away, is never downloaded: then `done_bytes` stays below `total_bytes` to the end.
#[derive(Clone, Debug)]
pub struct PullProgress {
    containerd: Containerd,
    lease: String,
    image: Parts,
    latest: Progress,
}

/// The parts of the image.
#[derive(Clone, Debug, Default)]
struct Parts {
    /// Their sizes by their digest.
    sizes: BTreeMap<String, u64>,
    /// A manifest is among them, and so all are.
    whole: bool,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    size: u64,
}

impl Containerd {
    /// Every download that is under way on this node, or was interrupted and is kept.
    pub async fn ingests(&self) -> Result<Vec<Ingest>, RuntimeError> {
        let request = namespaced(ListStatusesRequest {
            filters: Vec::new(),
        });
        let answer = async { self.content_client().list_statuses(request).await };
        let statuses = self.call("list downloads", answer).await?.statuses;
        let bytes = |count| u64::try_from(count).unwrap_or(0);
        Ok(statuses
            .into_iter()
            .map(|status| Ingest {
                offset: bytes(status.offset),
                total: bytes(status.total),
                name: status.r#ref,
            })
            .collect())
    }

    /// The names of the downloads that this lease keeps, under way or interrupted. None of one that is not there.
    pub async fn ingests_of(&self, lease: &str) -> Result<BTreeSet<String>, RuntimeError> {
        let resources = self.resources(lease).await?.into_iter();
        let ingests = resources.filter(|resource| resource.r#type == INGESTS);
        Ok(ingests.map(|resource| resource.id).collect())
    }

    /// Follows the pull that runs under this lease.
    #[must_use]
    pub fn progress(&self, lease: &str) -> PullProgress {
        PullProgress {
            containerd: self.clone(),
            lease: lease.to_owned(),
            image: Parts::default(),
            latest: Progress::default(),
        }
    }

    fn content_client(&self) -> ContentClient<Channel> {
        ContentClient::new(self.runtime.channel()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }
}

impl PullProgress {
    /// Asks what the lease holds, one short call and two more for each manifest; `ingests` are those of the node, asked for just before.
    pub async fn look(&mut self, ingests: &[Ingest]) -> Result<Download, RuntimeError> {
        let resources = self.containerd.resources(&self.lease).await?;
        let (mut complete, mut refs, mut snapshots) = (BTreeSet::new(), BTreeSet::new(), 0);
        for resource in resources {
            match resource.r#type.as_str() {
                "content" => drop(complete.insert(resource.id)),
                INGESTS => drop(refs.insert(resource.id)),
                _ => snapshots += 1,
            }
        }
        for digest in &complete {
            self.read(digest).await?;
        }
        let ours = ingests.iter().filter(|ingest| refs.contains(&ingest.name));
        let ours: Vec<_> = ours.cloned().collect();
        let now = self.image.progress(&complete, &ours);
        self.latest.done_bytes = self.latest.done_bytes.max(now.done_bytes);
        self.latest.total_bytes = self
            .latest
            .total_bytes
            .max(now.total_bytes)
            .max(self.latest.done_bytes);
        Ok(Download {
            progress: self.latest,
            ingests: ours,
            complete: complete.len(),
            snapshots,
        })
    }

    /// Learns the image's parts, if this is its manifest.
    async fn read(&mut self, digest: &str) -> Result<(), RuntimeError> {
        if self.image.sizes.contains_key(digest) {
            return Ok(());
        }
        let request = namespaced(InfoRequest {
            digest: digest.to_owned(),
        });
        let answer = async { self.containerd.content_client().info(request).await };
        let Some(blob) = self.containerd.call("describe content", answer).await?.info else {
            return Ok(());
        };
        // The labels are written a moment after the content: without them look again later.
        if !blob.labels.keys().any(|label| label.starts_with(REFERS))
            || blob.size > MAX_MANIFEST_BYTES
        {
            return Ok(());
        }
        let bytes = self
            .containerd
            .call("read a manifest", self.bytes(digest))
            .await?;
        self.image.learn(digest, &bytes);
        Ok(())
    }

    async fn bytes(&self, digest: &str) -> Result<Response<Vec<u8>>, Status> {
        let request = ReadContentRequest {
            digest: digest.to_owned(),
            offset: 0,
            size: 0,
        };
        let mut pieces = self
            .containerd
            .content_client()
            .read(namespaced(request))
            .await?
            .into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.message().await? {
            bytes.extend(piece.data);
        }
        Ok(Response::new(bytes))
    }
}

impl Parts {
    /// Runtimes count index, manifest, configuration and layers as an image's size.
    fn learn(&mut self, digest: &str, bytes: &[u8]) {
        self.sizes.insert(digest.to_owned(), bytes.len() as u64);
        // Which of its manifests an index comes to, the pull decides: that one follows by itself.
        if let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) {
            self.whole = true;
            for part in std::iter::once(manifest.config).chain(manifest.layers) {
                self.sizes.insert(part.digest, part.size);
            }
        }
    }

    fn progress(&self, complete: &BTreeSet<String>, ingests: &[Ingest]) -> Progress {
        if !self.whole {
            return Progress::default();
        }
        // What is complete may also still be an ingest, for a moment.
        let mut done: BTreeMap<&str, u64> = BTreeMap::new();
        for ingest in ingests {
            // "layer-sha256:…"
            if let Some((_, digest)) = ingest.name.split_once('-')
                && let Some(size) = self.sizes.get(digest)
            {
                done.insert(digest, ingest.offset.min(*size));
            }
        }
        for digest in complete {
            if let Some(size) = self.sizes.get(digest) {
                done.insert(digest, *size);
            }
        }
        Progress {
            done_bytes: done.values().sum(),
            total_bytes: self.sizes.values().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &[u8] = br#"{"manifests":[{"digest":"sha256:m","size":300}]}"#;
    const MANIFEST: &[u8] = br#"{"config":{"digest":"sha256:c","size":10},
        "layers":[{"digest":"sha256:1","size":1000},{"digest":"sha256:2","size":2000},{"digest":"sha256:1","size":1000}]}"#;

    fn ingest(name: &str, offset: u64) -> Ingest {
        Ingest {
            name: name.to_owned(),
            offset,
            total: 2000,
        }
    }

    fn progress(parts: &Parts, complete: &[&str], ingests: &[Ingest]) -> (u64, u64) {
        let complete = complete.iter().map(|digest| (*digest).to_owned()).collect();
        let progress = parts.progress(&complete, ingests);
        (progress.done_bytes, progress.total_bytes)
    }

    #[test]
    fn nothing_is_known_before_the_manifest_and_the_whole_with_it() {
        let mut parts = Parts::default();
        let running = [ingest("layer-sha256:2", 500)];
        assert_eq!(progress(&parts, &["sha256:i"], &running), (0, 0));
        parts.learn("sha256:i", INDEX);
        assert_eq!(progress(&parts, &["sha256:i"], &running), (0, 0));

        parts.learn("sha256:m", MANIFEST);
        let both = (INDEX.len() + MANIFEST.len()) as u64;
        // A layer that is in the image twice is downloaded once.
        let whole = both + 3010;
        assert_eq!(
            progress(&parts, &["sha256:i", "sha256:m"], &[]),
            (both, whole)
        );
        let most = ["sha256:i", "sha256:m", "sha256:c", "sha256:1"];
        assert_eq!(progress(&parts, &most, &running), (both + 1510, whole));
        let all = ["sha256:i", "sha256:m", "sha256:c", "sha256:1", "sha256:2"];
        assert_eq!(progress(&parts, &all, &running), (whole, whole));
    }

    #[test]
    fn what_is_not_the_images_does_not_count() {
        let mut parts = Parts::default();
        parts.learn("sha256:m", MANIFEST);
        let own = MANIFEST.len() as u64;
        let foreign = [ingest("layer-sha256:9", 70), ingest("layer-sha256:2", 9999)];
        assert_eq!(
            progress(&parts, &["sha256:m", "sha256:8"], &foreign),
            (own + 2000, own + 3010)
        );
    }
}
