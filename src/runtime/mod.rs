//! The node's container runtime, over its socket.
//!
//! [`Runtime`] speaks the CRI, which every runtime has. [`lock`] makes sure that one agent
//! serves it. Everything that goes wrong is an [`Unavailable`] (there is no runtime to talk to)
//! or has a [`Reason`](crate::api::reason::Reason).

mod classify;
mod connect;
mod endpoint;
mod error;
mod images;
mod lock;
mod proto;
mod text;

pub use classify::classify;
pub use endpoint::{Endpoint, EndpointError};
pub use error::{PullError, RuntimeError, Unavailable};
pub use images::{Container, Image, ImageFilesystem, Platform, Runtime, RuntimeCondition, Version};
pub use lock::{LockError, SocketLock, lock};
