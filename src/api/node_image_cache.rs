//! `NodeImageCache`: what one node has of what is wanted there, and why not more.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image_cache::{NodeState, RemovalPolicy};
use super::reason::{ImageState, Reason};
use super::schema::WithoutDefaultsAndNulls;

/// The most images that a report lists.
pub const MAX_REPORTED_IMAGES: usize = 1000;

/// Nothing: a node's report has no spec.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "imagecache.dev",
    version = "v1alpha1",
    kind = "NodeImageCache",
    no_spec,
    status = "NodeImageCacheStatus",
    shortname = "nodeic",
    category = "imagecaching",
    derive = "PartialEq",
    doc = "What one node has of the images that are wanted there. Written by the node's agent, and deleted with its Node.",
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.ready",
        description = "Wanted images that the node has"
    ),
    printcolumn(
        name = "Total",
        type_ = "integer",
        json_path = ".status.total",
        description = "Wanted images"
    ),
    printcolumn(
        name = "Pulling",
        type_ = "integer",
        json_path = ".status.pulling",
        description = "Images that are being pulled"
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        json_path = ".status.failed",
        description = "Images whose last attempt failed"
    ),
    printcolumn(
        name = "Progress",
        type_ = "string",
        json_path = ".status.progress",
        description = "How far the images are that are being pulled"
    ),
    printcolumn(
        name = "Runtime",
        type_ = "string",
        json_path = ".status.runtime.version",
        description = "The runtime's version"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
pub struct NodeImageCacheFields {}

/// What a node's agent reports.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = WithoutDefaultsAndNulls)]
pub struct NodeImageCacheStatus {
    /// The container runtime.
    pub runtime: RuntimeStatus,
    /// Wanted images that the node has.
    pub ready: i32,
    /// Wanted images.
    pub total: i32,
    /// Images that are being pulled.
    pub pulling: i32,
    /// Images whose last attempt failed.
    pub failed: i32,
    /// How far the images are that are being pulled, all together, as in `1.2 of 4.0 GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// One entry for each `ImageCache` that selects this node.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub caches: Vec<CacheReport>,
    /// One entry for each image that is wanted, or that is to be gone: at most 1000, those that are not ready first.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub images: Vec<ImageReport>,
    /// Images that `images` leaves out.
    pub images_omitted: i32,
    /// `RuntimeReady`, `CredentialsReady` and `DiskPressure`: what stands in the way on this node.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[allow(
    clippy::struct_excessive_bools,
    reason = "what a runtime offers, each by its own name"
)]
/// The container runtime of a node, and what more than the CRI it offers.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeStatus {
    /// Its name, such as `containerd`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of the CRI that it speaks.
    pub api_version: String,
    /// Its socket.
    pub endpoint: String,
    /// It tells at once when an image comes or goes. Otherwise the agent looks again at intervals.
    pub events: bool,
    /// It tells how many bytes of an image have arrived: so stalls are seen, and the downloads of others.
    pub progress: bool,
    /// It keeps what an interrupted pull has downloaded.
    pub resume: bool,
    /// It protects an image from the kubelet's garbage collection when it is asked to.
    pub pinning: bool,
    /// The agent sees the filesystem that images are on, and stops pulls before it is full.
    pub disk: bool,
}

/// What the node has of one `ImageCache`.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheReport {
    /// The `ImageCache`'s namespace.
    pub namespace: String,
    /// The `ImageCache`'s name.
    pub name: String,
    /// The `ImageCache`'s uid.
    pub uid: String,
    /// The generation that this entry is about.
    pub observed_generation: i64,
    /// What the node is doing for it.
    pub state: NodeState,
    /// Bytes of its images that the node has, those that are being pulled as far as they are.
    pub done_bytes: i64,
    /// Bytes of its images in all, as far as their sizes are known: an image's size is known once its pull has begun.
    pub total_bytes: i64,
    /// The lists that select this node.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub lists: Vec<ListReport>,
    /// The value of the annotation `imagecache.dev/refresh` that was last acted on: every image has been asked for since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<String>,
    /// The first images that failed.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub failures: Vec<Failure>,
}

/// What the node has of one image list.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListReport {
    /// The list's position in `spec.cacheSpec`, from 0.
    pub index: i32,
    /// Its images that the node has.
    pub ready: i32,
    /// Its images.
    pub total: i32,
}

/// An image that failed, and why.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The image as the `ImageCache` names it.
    pub image: String,
    /// The cause's class.
    pub reason: Reason,
    /// The cause in a sentence.
    #[serde(default)]
    pub message: String,
}

/// What the node knows of one image.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageReport {
    /// The image's full name, as the runtime keeps it.
    pub image: String,
    /// What it is doing.
    pub state: ImageState,
    /// The digest that the name stands for on this node, where the runtime knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its size in bytes as the runtime gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// Whether this agent has pulled it. Only what it has pulled does it remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What happens to an image of this agent once nobody wants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal_policy: Option<RemovalPolicy>,
    /// It is protected from the kubelet's garbage collection, by this agent or by something else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// How often something other than this agent has removed it within an hour, when that happened last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evictions: Option<i32>,
    /// Attempts that failed since the image was last ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// When it is tried again, at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Time>,
    /// How far its pull is, renewed every 15 s or less often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ImageProgress>,
    /// When its state last changed.
    #[serde(default = "epoch")]
    pub last_transition_time: Time,
    /// Why it is in its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How an image came to the node.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Origin {
    /// This agent has pulled it.
    Agent,
    /// It was there before, or something else has pulled it.
    Found,
}

/// How far the pull of an image is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageProgress {
    /// Bytes that are on the node.
    pub done_bytes: i64,
    /// Bytes in all.
    pub total_bytes: i64,
}

fn epoch() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}
