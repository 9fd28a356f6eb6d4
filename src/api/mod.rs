//! The two resources: what users ask for, and what nodes report.

// Several fields of one type say how their lists are merged: no attribute is there twice.
#![allow(clippy::duplicated_attributes)]

pub mod condition;
pub mod credential;
pub mod image_cache;
mod interval;
pub mod message;
pub mod name;
pub mod node_image_cache;
pub mod reason;
mod schema;
pub mod spec_error;

pub use credential::{CredentialProblem, CredentialReason, NodeSource};
pub use image_cache::{
    Ensure, ImageCache, ImageCacheSpec, ImageCacheStatus, ImageList, ImagePullPolicy, LocalSecret,
    MatchExpression, Operator, RemovalPolicy,
};
pub use interval::Interval;
pub use name::NamespacedName;
pub use node_image_cache::{NodeImageCache, NodeImageCacheStatus};
pub use reason::{ImageState, Reason};
pub use spec_error::SpecError;

/// The API group of both resources.
pub const GROUP: &str = "imagecache.dev";

/// The annotation on an `ImageCache` that makes every selected node ask the registries again, once for each value.
pub const REFRESH: &str = "imagecache.dev/refresh";

/// The API version of both resources.
pub const VERSION: &str = "v1alpha1";

/// The most images that one `ImageCache` may name, over all its lists.
pub const MAX_IMAGES: usize = 1000;
