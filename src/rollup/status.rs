//! The summaries at the API server.

use std::collections::BTreeMap;

use hyper::header::ACCEPT;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Request};
use kube::{Api, Resource};
use serde_json::json;

use super::ledger::{Outgoing, Written};
use super::wire::SummaryObject;
use crate::api::ImageCache;
use crate::cluster::{CallError, Cluster, METADATA_ONLY};
use crate::decide::{CacheName, Caches};

/// Who writes the summaries, as server-side apply names it.
pub const FIELD_MANAGER: &str = "imagecache-summary";

/// Objects in a page of a list: one with all of its nodes has some 30 KB.
const PAGE: u32 = 50;

/// What earlier elected agents wrote, by name, with the object's uid: timestamps go on from there, and what is
/// right already is not written again.
pub async fn stored(
    cluster: &Cluster,
    caches: &Caches,
) -> Result<BTreeMap<CacheName, (String, Written)>, CallError> {
    let api = Api::<SummaryObject>::all(cluster.client());
    let mut params = ListParams::default().limit(PAGE);
    let mut stored = BTreeMap::new();
    loop {
        let page = cluster.call(api.list(&params)).await?;
        for object in page.items {
            let metadata = object.meta().clone();
            let (Some(namespace), Some(name), Some(status)) =
                (metadata.namespace, metadata.name, object.status)
            else {
                continue;
            };
            let name = CacheName { namespace, name };
            let is_read = caches.get(&name).is_some_and(|cache| cache.spec.is_some());
            let written = Written::new(status, !is_read);
            stored.insert(name, (metadata.uid.unwrap_or_default(), written));
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(stored);
        }
    }
}

/// Applies a summary, and returns the uid of the object that has it now. An API server takes no notice of the uid in a status
/// that is applied: an object that was created anew under the same name takes what was meant for the old one.
pub async fn apply(cluster: &Cluster, summary: &Outgoing) -> Result<String, CallError> {
    let CacheName { namespace, name } = &summary.name;
    let object = json!({
        "apiVersion": ImageCache::api_version(&()),
        "kind": ImageCache::kind(&()),
        "metadata": {"name": name, "namespace": namespace},
        "status": summary.status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let request = Request::new(ImageCache::url_path(&(), Some(namespace)));
    let mut request = request
        .patch_subresource("status", name, &params, &Patch::Apply(&object))
        .map_err(|error| CallError::Unreadable(error.to_string()))?;
    request.headers_mut().insert(ACCEPT, METADATA_ONLY);
    let client = cluster.client();
    let object = client.request::<PartialObjectMeta<ImageCache>>(request);
    let object = cluster.write("imagecaches/status", object).await?;
    Ok(object.metadata.uid.unwrap_or_default())
}
