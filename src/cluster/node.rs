//! What one node's agent needs of the API server: it is told what is wanted, and its reports are written.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::Cluster;
use super::inputs;
use super::reporter::{self, Sources};
use super::scale::Scale;
use super::secrets::{self, ClusterSecrets};
use crate::api::NodeImageCacheStatus;
use crate::decide::{Inputs, SecretName};

/// Fills `inputs`, writes what comes through `reports`, and watches the pull secrets that something waits for, until `stop`.
///
/// What the node's agent reported before this process started comes first into `inputs`, before anything is known: so the
/// first report can go on from its timestamps.
pub async fn serve(
    cluster: &Cluster,
    node: &str,
    inputs: &watch::Sender<Inputs>,
    reports: watch::Receiver<Option<Arc<NodeImageCacheStatus>>>,
    scale: watch::Receiver<Scale>,
    (secrets, awaited): (
        Arc<ClusterSecrets>,
        watch::Receiver<BTreeSet<Arc<SecretName>>>,
    ),
    stop: &CancellationToken,
) {
    let own = reporter::read_own(cluster, node, stop).await;
    inputs.send_if_modified(|inputs| {
        inputs.reported = own.as_ref().and_then(|own| own.status.clone());
        inputs.reported_by = own.as_ref().and_then(|own| own.owner.clone());
        inputs.reported.is_some()
    });
    let sources = Sources {
        inputs: inputs.subscribe(),
        reports,
        scale,
    };
    // Each on its own: together they would make every task that holds them large.
    tokio::join!(
        Box::pin(inputs::watch_caches(cluster, inputs, stop)),
        Box::pin(inputs::watch_node(cluster, node, inputs, stop)),
        Box::pin(secrets::watch(&secrets, awaited, inputs, stop)),
        Box::pin(reporter::run(cluster, node, sources, own, stop)),
    );
}
