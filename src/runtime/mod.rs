//! The node's container runtime, over its socket.
//!
//! [`Runtime`] speaks the CRI, which every runtime has. [`lock()`] makes sure that one agent
//! serves it, [`discover`] finds it. [`Containerd`] is what containerd offers beside the CRI.
//! Everything that goes wrong is an [`Unavailable`] (there is no runtime to talk to)
//! or has a [`Reason`](crate::api::reason::Reason).

mod classify;
mod connect;
mod containerd;
mod discovery;
mod endpoint;
mod error;
mod events;
mod images;
mod leftovers;
mod lock;
mod marks;
mod progress;
mod proto;
mod records;
mod text;

pub use classify::classify;
pub use containerd::{Containerd, Lease};
pub use discovery::{Found, NothingFound, discover, discover_among};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{PullError, RuntimeError, Unavailable};
pub use events::{ImageChange, ImageEvent, ImageEvents};
pub use images::{
    Auth, Container, Described, Image, ImageFilesystem, Platform, Runtime, RuntimeCondition,
    Version,
};
pub use lock::{LockError, SocketLock, lock};
pub use marks::Marks;
pub use progress::{Download, Ingest, Progress, PullProgress};
pub use records::IdRecord;
