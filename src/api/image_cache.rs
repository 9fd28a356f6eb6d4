//! `ImageCache`: which images are wanted on which nodes, and how far that is.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::interval::Interval;
use super::schema::WithoutDefaultsAndNulls;

/// Image lists, each for the nodes that its selector matches.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "imagecache.dev",
    version = "v1alpha1",
    kind = "ImageCache",
    namespaced,
    status = "ImageCacheStatus",
    shortname = "ic",
    category = "imagecaching",
    derive = "PartialEq",
    doc = "Images that are kept on the nodes of the cluster, so that pods start from them at once.",
    printcolumn(
        name = "Images",
        type_ = "integer",
        json_path = ".status.imagesTotal",
        description = "Distinct images in the spec"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".status.desiredNodes",
        description = "Nodes that a list selects"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyNodes",
        description = "Nodes that have all of their images"
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        json_path = ".status.failedNodes",
        description = "Nodes on which an image failed"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Status of the Ready condition"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        description = "Reason of the Ready condition"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        description = "Message of the Ready condition",
        priority = 1
    ),
    printcolumn(
        name = "Generation",
        type_ = "integer",
        json_path = ".status.observedGeneration",
        description = "The generation that the status is about",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = WithoutDefaultsAndNulls)]
#[x_kube(validation = Rule::new("self.cacheSpec.map(list, size(list.images)).sum() <= 1000")
    .message("all lists together may name at most 1000 images: split them over several ImageCaches"))]
pub struct ImageCacheSpec {
    /// The image lists. Statuses and messages name one by its position, from 0.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub cache_spec: Vec<ImageList>,

    /// Secrets in this object's own namespace that hold credentials for registries, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalSecret>,

    /// `Always`: the registry is asked again at each refresh, so that a tag that moved is pulled anew. `IfNotPresent`: never again.
    /// Without it each image has the policy that a pod would give it: `Always` for `latest` and for no tag. A digest cannot move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// How often images with the policy `Always` are asked for again: at least 1s; 0s means never; 15m by default.
    #[serde(default, skip_serializing_if = "is_default")]
    #[x_kube(validation = Rule::new("duration(self) == duration('0s') || duration(self) >= duration('1s')").message("must be 0s, or at least 1s"))]
    pub refresh_interval: RefreshInterval,

    /// What happens on a node to an image that the agent has pulled, once no `ImageCache` asks for it there any more: `Keep`, the default,
    /// leaves it, and `Remove` removes it after a while. An image that was there before, or that something else pulled, always stays.
    #[serde(default, skip_serializing_if = "is_default")]
    pub removal_policy: RemovalPolicy,

    /// `Absent`: the images are to be gone from the nodes, as far as the agent has pulled them and no other `ImageCache` asks for them.
    /// `Present` by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ensure: Ensure,

    /// Protects the images from the kubelet's garbage collection, where the runtime can.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pin: bool,

    /// Nothing is started for this object while this is true. What is there stays there.
    #[serde(default, skip_serializing_if = "is_default")]
    pub paused: bool,

    /// Images of a higher priority are pulled first, across all `ImageCaches`: -1000 to 1000. Within one, the lists' order counts.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,

    /// A pull that makes no progress for this long is cancelled, and goes on later from where it ended: at least 1s; 5m by default.
    /// There is no limit on how long a pull takes that moves.
    #[serde(default, skip_serializing_if = "is_default")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s')").message("must be at least 1s, such as 90s or 5m"))]
    pub pull_progress_timeout: PullProgressTimeout,
}

/// Whether an image that is present is asked for again.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ImagePullPolicy {
    /// It is not.
    IfNotPresent,
    /// At each refresh.
    Always,
}

/// What happens to an image that nobody asks for any more.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RemovalPolicy {
    /// It stays.
    #[default]
    Keep,
    /// The agent removes it, if it has pulled it.
    Remove,
}

/// Whether images are to be there.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Ensure {
    /// They are to be there.
    #[default]
    Present,
    /// They are to be gone, if the agent has pulled them.
    Absent,
}

/// How often an image is asked for again.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(transparent)]
#[schemars(inline)]
pub struct RefreshInterval(pub Interval);

impl Default for RefreshInterval {
    fn default() -> Self {
        Self(Interval(Duration::from_mins(15)))
    }
}

/// How long a pull may make no progress.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(transparent)]
#[schemars(inline)]
pub struct PullProgressTimeout(pub Interval);

impl Default for PullProgressTimeout {
    fn default() -> Self {
        Self(Interval(Duration::from_mins(5)))
    }
}

/// A Secret of the type `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct LocalSecret {
    /// Its name.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
}

/// Images, and the nodes that should have them.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageList {
    /// Image references exactly as a pod would name them: `nginx`, `registry.example:5000/app:1.2`, `app@sha256:...`.
    #[schemars(schema_with = "images_schema")]
    pub images: Vec<String>,

    /// Labels that a Node must carry, all of them. Empty selects every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "node_selector_schema")]
    pub node_selector: BTreeMap<String, String>,

    /// Requirements on a Node's labels, all of them, together with `nodeSelector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<MatchExpression>,
}

/// One requirement on a Node's labels, as in the Node selector term of a pod.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)")
        .message("the operators In and NotIn need at least one value in values"),
    validation = Rule::new("!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0")
        .message("the operators Exists and DoesNotExist take no values"),
    validation = Rule::new("!(self.operator in ['Gt', 'Lt']) || (has(self.values) && size(self.values) == 1 && self.values[0].matches('^[-+]?[0-9]{1,18}$'))")
        .message("the operators Gt and Lt need exactly one value, an integer written as a string")
)]
pub struct MatchExpression {
    /// The label's key.
    #[schemars(schema_with = "label_key_schema")]
    pub key: String,

    /// How the label's value relates to `values`.
    pub operator: Operator,

    /// The values to compare with: at least one for `In` and `NotIn`, one integer for `Gt` and `Lt`, none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "label_values_schema")]
    pub values: Vec<String>,
}

/// The operators of a Node selector term.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Operator {
    /// The label is there with one of the values.
    In,
    /// The label is not there, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The label is an integer above the value.
    Gt,
    /// The label is an integer below the value.
    Lt,
}

/// How far the cluster is with an `ImageCache`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = WithoutDefaultsAndNulls)]
pub struct ImageCacheStatus {
    /// The generation of the spec that this status is about.
    pub observed_generation: i64,
    /// Distinct images in the spec.
    pub images_total: i32,
    /// Nodes that any list selects. The five counts below add up to it.
    pub desired_nodes: i32,
    /// Nodes that have all of their images.
    pub ready_nodes: i32,
    /// Nodes that are pulling.
    pub pulling_nodes: i32,
    /// Nodes on which an image failed.
    pub failed_nodes: i32,
    /// Nodes that lack an image, or have not reported this generation yet.
    pub pending_nodes: i32,
    /// Nodes that cannot be reached, or never reported.
    pub unreachable_nodes: i32,
    /// One entry for each image list, in the order of the spec.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub lists: Vec<ListStatus>,
    /// `Ready`, `Progressing` and `Degraded`.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Results per node: all of them up to 100 nodes, above that 20, failed ones first.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<NodeResult>,
    /// Nodes that `nodes` leaves out.
    pub nodes_omitted: i32,
    /// Results per image: at most 50, failed ones and those with several digests first.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub images: Vec<ImageResult>,
    /// Images that `images` leaves out.
    pub images_omitted: i32,
}

/// How far one image list is.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListStatus {
    /// The list's position in `spec.cacheSpec`, from 0.
    pub index: i32,
    /// Nodes that its selector matches.
    pub matched_nodes: i32,
    /// Matched nodes that have all images of this list.
    pub ready_nodes: i32,
}

/// What a node is doing for an `ImageCache`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Deserialize,
    Eq,
    Hash,
    JsonSchema,
    Ord,
    PartialEq,
    PartialOrd,
    Serialize,
)]
pub enum NodeState {
    /// It cannot be reached, or never reported.
    Unreachable,
    /// An image failed there.
    Failed,
    /// It is pulling.
    Pulling,
    /// It lacks an image, or has not reported this generation yet.
    #[default]
    Pending,
    /// It has all of its images.
    Ready,
}

/// The result of one node.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResult {
    /// The Node's name.
    pub name: String,
    /// What it is doing.
    pub state: NodeState,
    /// Images that it has, of those that its lists name.
    pub ready: i32,
    /// Images that its lists name.
    pub total: i32,
    /// Why it is not ready: an image's reason, or `NoReport`, `NodeNotReady`, `NotReportedYet`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The first cause, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The generation that it reported last; 0 if none.
    pub observed_generation: i64,
}

/// The result of one image.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageResult {
    /// The image as the spec names it.
    pub image: String,
    /// Selected nodes that have it.
    pub ready_nodes: i32,
    /// Selected nodes on which it failed.
    pub failed_nodes: i32,
    /// The digests that the nodes resolved it to. More than one is drift.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub digests: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn images_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 256,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "x-kubernetes-validations": [{
                "rule": r"!self.matches('\\s')",
                "message": "an image reference has no white space",
            }],
        },
    })
}

/// A label's key: an optional DNS name and a slash, then a name of at most 63 characters.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-\\w.]{0,61}[A-Za-z0-9])?$";

/// What no label's value has: another beginning or end than a letter or digit, other characters than these. Short, because
/// the API server multiplies a pattern's length by how often a schema may apply it, and refuses what costs too much.
const NOT_IN_LABEL_VALUE: &str = r"^[-_.]|[^-\\w.]|[-_.]$";

/// A label's value, or an integer with its sign, as `Gt` and `Lt` take it.
const LABEL_VALUE: &str = "^([-+][0-9]+|([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?)$";

const LABEL_KEY_MESSAGE: &str = "it is [prefix/]name, where a name has at most 63 of A-Z a-z 0-9 - _ . and a prefix is a DNS name";

const LABEL_VALUE_MESSAGE: &str = "not a label value: it has at most 63 of A-Z a-z 0-9 - _ . and begins and ends with a letter or digit";

fn node_selector_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "x-kubernetes-validations": [{
                "rule": format!("!self.matches('{NOT_IN_LABEL_VALUE}')"),
                "message": LABEL_VALUE_MESSAGE,
            }],
        },
        "x-kubernetes-validations": [{
            "rule": format!("self.all(key, key.matches('{LABEL_KEY}') && key.indexOf('/') <= 253)"),
            "messageExpression": format!("'\"' + self.filter(key, !(key.matches('{LABEL_KEY}') && key.indexOf('/') <= 253))[0] + '\" is not a label key'"),
            "message": format!("not a label key: {LABEL_KEY_MESSAGE}"),
        }],
    })
}

fn label_key_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 317,
        "x-kubernetes-validations": [{
            "rule": format!("self.matches('{LABEL_KEY}') && self.indexOf('/') <= 253"),
            "message": format!("not a label key: {LABEL_KEY_MESSAGE}"),
        }],
    })
}

fn label_values_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "string",
            "maxLength": 63,
            // A rule would say it more kindly, and costs too much at 64 lists of 32 expressions of 64 values.
            "pattern": LABEL_VALUE,
        },
    })
}
