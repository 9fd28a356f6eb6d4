//! The node's own `NodeImageCache` at the API server.

use std::sync::Arc;

use hyper::header::ACCEPT;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, Request};
use kube::{Api, Resource};
use serde_json::{Value, json};
use tracing::warn;

use super::client::{Cluster, METADATA_ONLY};
use super::error::CallError;
use crate::api::{NodeImageCache, NodeImageCacheStatus};

/// Who writes `NodeImageCaches`, as server-side apply names it.
pub const FIELD_MANAGER: &str = "imagecache-agent";

/// The object as the API server holds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// The uid of the Node that owns it.
    pub owner: Option<String>,
    /// The status, if it reads: one that a newer version wrote may not.
    pub status: Option<Arc<NodeImageCacheStatus>>,
}

/// Reads the object of this node. `None`: it is not there.
pub async fn read(cluster: &Cluster, node: &str) -> Result<Option<Own>, CallError> {
    let resource = ApiResource::erase::<NodeImageCache>(&());
    let api = Api::<DynamicObject>::all_with(cluster.client(), &resource);
    match cluster.call(api.get(node)).await {
        Ok(mut object) => Ok(Some(Own {
            owner: owner(&object.metadata),
            status: status(object.data.get_mut("status").map(Value::take)),
        })),
        Err(error) if error.is_absent_object() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the object, or gives it to the Node with this uid. A status cannot be applied to an object that is not there.
pub async fn make(cluster: &Cluster, node: &str, uid: &str) -> Result<(), CallError> {
    let owner = json!({
        "apiVersion": Node::api_version(&()),
        "kind": Node::kind(&()),
        "name": node,
        "uid": uid,
    });
    let object = json!({
        "apiVersion": NodeImageCache::api_version(&()),
        "kind": NodeImageCache::kind(&()),
        "metadata": {"name": node, "ownerReferences": [owner]},
    });
    let request = Request::new(url()).patch_metadata(node, &params(), &Patch::Apply(&object));
    send(cluster, request).await
}

/// Applies the whole status.
pub async fn apply(
    cluster: &Cluster,
    node: &str,
    status: &NodeImageCacheStatus,
) -> Result<(), CallError> {
    let object = json!({
        "apiVersion": NodeImageCache::api_version(&()),
        "kind": NodeImageCache::kind(&()),
        "metadata": {"name": node},
        "status": status,
    });
    let request =
        Request::new(url()).patch_subresource("status", node, &params(), &Patch::Apply(&object));
    send(cluster, request).await
}

async fn send(
    cluster: &Cluster,
    request: Result<hyper::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), CallError> {
    let mut request = request.map_err(|error| CallError::Unreadable(error.to_string()))?;
    request.headers_mut().insert(ACCEPT, METADATA_ONLY);
    let client = cluster.client();
    cluster
        .write("nodeimagecaches", client.request_text(request))
        .await?;
    Ok(())
}

fn url() -> String {
    NodeImageCache::url_path(&(), None)
}

fn params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

fn owner(metadata: &ObjectMeta) -> Option<String> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.kind == Node::kind(&()))
        .map(|owner| owner.uid.clone())
}

fn status(status: Option<Value>) -> Option<Arc<NodeImageCacheStatus>> {
    serde_json::from_value(status?)
        .inspect_err(|error| warn!(%error, "the node's last report cannot be read: starting anew"))
        .ok()
        .map(Arc::new)
}
