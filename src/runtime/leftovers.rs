//! What containerd leaves on a disk that was full.
//!
//! When a disk is full, containerd cannot write into its snapshotter's database that the layer
//! that was being unpacked is gone. It says so in its log alone, keeps the layer on the disk, and
//! looks for such layers only when it collects the next snapshot. So one is made for it.

use tonic::metadata::AsciiMetadataValue;

use super::containerd::{Containerd, Lease, namespaced};
use super::error::RuntimeError;
use super::images::LEASE;
use super::proto::containerd::snapshots::PrepareSnapshotRequest;
use super::proto::containerd::snapshots::snapshots_client::SnapshotsClient;

/// Snapshotters keep what they have in folders that are named so.
const FOLDER: &str = "io.containerd.snapshotter.v1.";

impl Containerd {
    /// Deletes what the pull under this lease has left, waits until it is gone from the disk, and
    /// then has containerd collect what it could not while there was no room.
    ///
    /// Never while the pull runs.
    pub async fn discard_all(&self, lease: &Lease) -> Result<(), RuntimeError> {
        self.discard_lease(&lease.id).await?;
        for filesystem in self.runtime.filesystems().await? {
            let mut folders = filesystem.path.split('/');
            let Some(snapshotter) = folders.find_map(|folder| folder.strip_prefix(FOLDER)) else {
                continue;
            };
            self.create_lease(lease).await?;
            let prepared = self.prepare_snapshot(snapshotter, &lease.id).await;
            self.discard_lease(&lease.id).await?;
            prepared?;
        }
        Ok(())
    }

    /// Makes an empty snapshot that goes with a lease of ours, and has the lease's name.
    async fn prepare_snapshot(&self, snapshotter: &str, lease: &str) -> Result<(), RuntimeError> {
        let mut request = namespaced(PrepareSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: lease.to_owned(),
        });
        if let Ok(id) = AsciiMetadataValue::try_from(lease) {
            request.metadata_mut().insert(LEASE, id);
        }
        let mut client = SnapshotsClient::new(self.runtime.channel());
        let answer = async { client.prepare(request).await };
        self.call("make a snapshot", answer).await?;
        Ok(())
    }
}
