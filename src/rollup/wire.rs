//! Nodes, reports and stored summaries as they come, reduced while they are read.
//!
//! A Node's status can name fifty images, a report can come from a newer agent with states and reasons that this one does
//! not know: what is not needed is passed over, what does not read is left out, and nothing breaks a watch.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::api::image_cache::NodeState;
use crate::api::node_image_cache::ListReport;
use crate::api::{ImageCache, ImageCacheStatus, ImageState, NodeImageCache, Reason};
use crate::decide::fleet::{Contact, Entry, Failure, Image, Node, Report};

/// A Node: its labels, and whether it is ready.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeObject {
    #[serde(deserialize_with = "lean")]
    metadata: ObjectMeta,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    conditions: Vec<NodeCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeCondition {
    r#type: String,
    status: String,
    #[serde(deserialize_with = "known")]
    last_transition_time: Option<Time>,
}

/// A `NodeImageCache`.
#[derive(Clone, Debug, Deserialize)]
pub struct ReportObject {
    #[serde(deserialize_with = "lean")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "known")]
    status: Option<ReportStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReportStatus {
    runtime: RuntimeEntry,
    caches: Vec<CacheEntry>,
    images: Vec<ImageEntry>,
    images_omitted: i32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
struct RuntimeEntry {
    pinning: bool,
}

impl Default for RuntimeEntry {
    fn default() -> Self {
        // An older agent does not say.
        Self { pinning: true }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CacheEntry {
    uid: String,
    observed_generation: i64,
    #[serde(deserialize_with = "known")]
    state: Option<NodeState>,
    done_bytes: u64,
    total_bytes: u64,
    lists: Vec<ListReport>,
    failures: Vec<FailureEntry>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct FailureEntry {
    image: String,
    reason: String,
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ImageEntry {
    image: String,
    #[serde(deserialize_with = "known")]
    state: Option<ImageState>,
    digest: Option<String>,
    reason: Option<String>,
    message: Option<String>,
}

/// An `ImageCache` with the summary that the API server holds of it.
#[derive(Clone, Debug, Deserialize)]
pub struct SummaryObject {
    #[serde(deserialize_with = "lean")]
    metadata: ObjectMeta,
    /// `None` if it does not read.
    #[serde(default, deserialize_with = "known")]
    pub status: Option<ImageCacheStatus>,
}

impl NodeObject {
    /// What is kept of it.
    #[must_use]
    pub fn fold(self) -> Node {
        let mut conditions = self.status.conditions.into_iter();
        let ready = conditions.find(|condition| condition.r#type == "Ready");
        let contact = match ready {
            Some(ready) if ready.status == "True" => Contact::Ready {
                since: time(ready.last_transition_time),
            },
            Some(ready) if ready.status == "False" => Contact::NotReady,
            _ => Contact::Lost,
        };
        let uid = self.metadata.uid.unwrap_or_default();
        Node::new(&uid, self.metadata.labels.unwrap_or_default(), contact)
    }
}

impl ReportObject {
    /// What is kept of it.
    #[must_use]
    pub fn fold(self) -> Report {
        let status = self.status.unwrap_or_default();
        let owners = self.metadata.owner_references.unwrap_or_default();
        let owner = owners
            .iter()
            .find(|owner| owner.kind == v1::Node::kind(&()));
        Report::new(
            time(self.metadata.creation_timestamp),
            owner.map(|owner| owner.uid.as_str()),
            status.caches.into_iter().map(CacheEntry::fold).collect(),
            status
                .images
                .into_iter()
                .filter_map(ImageEntry::fold)
                .collect(),
            status.images_omitted > 0,
        )
        .with_pins(status.runtime.pinning)
    }
}

impl CacheEntry {
    fn fold(self) -> Entry {
        let failure = |failure: FailureEntry| Failure {
            image: failure.image,
            reason: failure.reason,
            message: failure.message,
        };
        Entry {
            uid: self.uid,
            generation: self.observed_generation,
            state: self.state.unwrap_or_default(),
            bytes: (self.done_bytes, self.total_bytes),
            lists: self.lists.iter().map(Into::into).collect(),
            failures: self.failures.into_iter().map(failure).collect(),
        }
    }
}

impl ImageEntry {
    fn fold(self) -> Option<Image> {
        let state = self.state?;
        // A pull's message may tell how far it is: no summary is written for that.
        let kept = [
            Reason::InUse,
            Reason::Shared,
            Reason::NotOwned,
            Reason::WantedElsewhere,
            Reason::PinBudget,
        ];
        let is_kept = |reason: &String| kept.iter().any(|kept| kept.as_str() == reason);
        let tells = matches!(state, ImageState::Waiting | ImageState::Failed)
            || self.reason.as_ref().is_some_and(is_kept);
        Some(Image {
            key: self.image,
            state,
            digest: self.digest.filter(|_| state == ImageState::Ready),
            reason: self.reason.filter(|_| tells),
            message: self.message.filter(|_| tells),
        })
    }
}

fn time(time: Option<Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// Reads the metadata that is needed. The managed fields alone can be larger than all the rest.
fn lean<'de, D: Deserializer<'de>>(metadata: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lean {
        name: String,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    Lean::deserialize(metadata).map(|lean| ObjectMeta {
        name: Some(lean.name),
        namespace: lean.namespace,
        uid: lean.uid,
        resource_version: lean.resource_version,
        creation_timestamp: lean.creation_timestamp,
        labels: lean.labels,
        owner_references: lean.owner_references,
        ..ObjectMeta::default()
    })
}

/// Reads what this version knows. Anything else is nothing.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(value: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(value)?).ok())
}

/// Lets an object that is read in part be asked for as what it is.
macro_rules! read_as {
    ($part:ty, $whole:ty, $scope:ty) => {
        impl Resource for $part {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                <$whole>::kind(&())
            }

            fn group((): &()) -> Cow<'_, str> {
                <$whole>::group(&())
            }

            fn version((): &()) -> Cow<'_, str> {
                <$whole>::version(&())
            }

            fn plural((): &()) -> Cow<'_, str> {
                <$whole>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

read_as!(NodeObject, v1::Node, ClusterResourceScope);
read_as!(ReportObject, NodeImageCache, ClusterResourceScope);
read_as!(SummaryObject, ImageCache, NamespaceResourceScope);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use serde_json::json;

    use super::*;
    use crate::decide::selector::Labels;

    fn node(conditions: &Value) -> Node {
        let node: NodeObject = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n", "uid": "u", "labels": {"tier": "a"}, "managedFields": [{"manager": "kubelet"}]},
            "status": {"conditions": conditions, "images": [{"names": ["a"], "sizeBytes": 1}]},
        }))
        .unwrap();
        node.fold()
    }

    #[test]
    fn a_node_is_as_ready_as_its_condition_says() {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let ready = |status: &str, since: Value| {
            let other =
                json!({"type": "DiskPressure", "status": "True", "lastTransitionTime": null});
            json!([other, {"type": "Ready", "status": status, "lastTransitionTime": since}])
        };
        for (conditions, contact) in [
            (
                ready("True", json!(at.to_string())),
                Contact::Ready { since: at },
            ),
            (
                ready("True", Value::Null),
                Contact::Ready {
                    since: Timestamp::UNIX_EPOCH,
                },
            ),
            (ready("False", json!(at.to_string())), Contact::NotReady),
            (ready("Unknown", json!(at.to_string())), Contact::Lost),
            (json!([]), Contact::Lost),
        ] {
            assert_eq!(node(&conditions).contact, contact, "{conditions}");
        }
        assert_eq!(node(&json!([])).labels.value("tier"), Some("a"));
        let bare: NodeObject = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert_eq!(bare.fold().contact, Contact::Lost);
    }

    fn report(status: &Value) -> Report {
        let report: ReportObject = serde_json::from_value(json!({
            "apiVersion": "imagecache.dev/v1alpha1",
            "kind": "NodeImageCache",
            "metadata": {
                "name": "n",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid"}],
            },
            "status": status,
        }))
        .unwrap();
        report.fold()
    }

    #[test]
    fn a_report_is_read_as_it_is_written() {
        use crate::api::node_image_cache::{CacheReport, ImageReport, NodeImageCacheStatus};
        let failure = crate::api::node_image_cache::Failure {
            image: "a".to_owned(),
            reason: crate::api::Reason::Tls,
            message: "x509".to_owned(),
        };
        let image = |state, reason| ImageReport {
            image: "docker.io/library/a:latest".to_owned(),
            state,
            digest: Some("sha256:1".to_owned()),
            bytes: Some(1),
            origin: None,
            removal_policy: None,
            pinned: false,
            evictions: None,
            attempts: None,
            next_attempt: None,
            progress: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            reason,
            message: Some("a text".to_owned()),
        };
        let written = NodeImageCacheStatus {
            caches: vec![CacheReport {
                uid: "u".to_owned(),
                observed_generation: 3,
                state: NodeState::Failed,
                lists: vec![ListReport {
                    index: 1,
                    ready: 2,
                    total: 3,
                }],
                failures: vec![failure],
                ..CacheReport::default()
            }],
            images: vec![
                image(ImageState::Failed, Some(crate::api::Reason::Tls)),
                image(ImageState::Pulling, Some(crate::api::Reason::Evicted)),
                image(ImageState::Ready, None),
            ],
            images_omitted: 1,
            ..NodeImageCacheStatus::default()
        };
        let read = report(&serde_json::to_value(&written).unwrap());
        assert_eq!(read.owner.as_deref(), Some("node-uid"));
        assert_eq!(read.created.to_string(), "2026-01-01T00:00:00Z");
        let entry = read.entry("u").unwrap();
        assert_eq!((entry.generation, entry.state), (3, NodeState::Failed));
        assert_eq!(
            (
                entry.lists[0].index,
                entry.lists[0].ready,
                entry.lists[0].total
            ),
            (1, 2, 3)
        );
        assert_eq!(
            (
                entry.failures[0].reason.as_str(),
                entry.failures[0].message.as_str()
            ),
            ("TLS", "x509")
        );
        let told: Vec<_> = read
            .images()
            .iter()
            .map(|image| {
                (
                    image.state,
                    image.reason.as_deref(),
                    image.message.as_deref(),
                    image.digest.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                (ImageState::Failed, Some("TLS"), Some("a text"), None),
                (ImageState::Pulling, None, None, None),
                (ImageState::Ready, None, None, Some("sha256:1")),
            ]
        );
        assert!(read.unlisted_are_ready());
    }

    #[test]
    fn what_a_newer_agent_writes_is_read_as_far_as_it_is_known() {
        let read = report(&json!({
            "caches": [{"uid": "u", "observedGeneration": 1, "state": "Hibernating", "failures": [{"image": "a", "reason": "NewReason"}]}],
            "images": [{"image": "a", "state": "Thawing"}, {"image": "b", "state": "Failed", "reason": "NewReason", "more": 1}],
        }));
        let entry = read.entry("u").unwrap();
        assert_eq!(
            (entry.state, entry.failures[0].reason.as_str()),
            (NodeState::Pending, "NewReason")
        );
        assert_eq!(read.images().len(), 1);
        // And what is no status at all is a report that says nothing.
        for garbage in [json!({"caches": 1}), json!([]), Value::Null] {
            assert!(report(&garbage).images().is_empty());
        }
    }

    #[test]
    fn a_stored_summary_reads_or_is_dropped() {
        let object = |status: Value| -> SummaryObject {
            serde_json::from_value(json!({"metadata": {"name": "c"}, "status": status})).unwrap()
        };
        assert_eq!(
            object(json!({"readyNodes": 3})).status.unwrap().ready_nodes,
            3
        );
        assert!(object(json!({"readyNodes": "three"})).status.is_none());
        assert!(
            object(json!({"nodes": [{"state": "Hibernating"}]}))
                .status
                .is_none()
        );
        assert!(object(Value::Null).status.is_none());
    }
}
