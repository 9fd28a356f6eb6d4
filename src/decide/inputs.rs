//! What the agent is told: the `ImageCache`s, and its own Node.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{ImageCacheSpec, NamespacedName, NodeImageCacheStatus, SpecError};

/// Something that was read completely, or that is not known yet.
///
/// Unknown is never the same as empty: nothing that rests on it is started, cancelled or removed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Known<T> {
    /// It was not read completely yet.
    #[default]
    Unknown,
    /// It was read completely, and this is its newest state.
    Known(T),
}

impl<T> Known<T> {
    /// The value, if it is known.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Unknown => None,
            Self::Known(value) => Some(value),
        }
    }
}

/// Namespace and name of an `ImageCache`.
pub type CacheName = NamespacedName;

/// Namespace and name of a pull secret.
pub type SecretName = NamespacedName;

/// An `ImageCache`, as far as decisions need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// The object's uid.
    pub uid: String,
    /// The object's newest generation.
    pub generation: i64,
    /// The newest spec that could be read, with its generation. What an unreadable edit leaves in force.
    pub spec: Option<(i64, Arc<ImageCacheSpec>)>,
    /// Why the newest generation is not acted on.
    pub unreadable: Option<SpecError>,
    /// The annotation that asks for a refresh with each new value.
    pub refresh: Option<Arc<str>>,
}

/// All `ImageCache`s.
pub type Caches = BTreeMap<CacheName, Arc<Cache>>;

/// The node that the agent works for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// The Node object's uid; empty without a cluster.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Which of its inputs are told of at this moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct IsCurrent {
    /// The `ImageCache`s are.
    pub caches: bool,
    /// The own Node is.
    pub node: bool,
}

/// Everything that the agent loop is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// The `ImageCache`s.
    pub caches: Known<Arc<Caches>>,
    /// The own Node.
    pub node: Known<Node>,
    /// Whether the API server tells of changes of the `ImageCache`s, and of the own Node, at this moment. While it does not, the last
    /// known state stays, and nothing is removed because of it.
    pub is_current: IsCurrent,
    /// How often each pull secret that something waits for was seen to change.
    pub secrets: BTreeMap<SecretName, u64>,
    /// What this node's agent reported before this process started: its timestamps are kept.
    pub reported: Option<Arc<NodeImageCacheStatus>>,
    /// The uid of the Node that owns that report.
    pub reported_by: Option<String>,
}
