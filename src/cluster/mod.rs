//! The API server: what is asked of it, what is written to it, who is elected.

mod caches;
mod client;
pub mod disk_pressure;
pub mod election;
mod error;
pub mod inputs;
pub mod lease;
mod node;
pub mod own;
pub mod pace;
pub mod reporter;
mod scale;
mod secrets;
mod trouble;
mod watch;

pub use client::{Cluster, ConnectError, METADATA_ONLY};
pub use error::CallError;
pub use node::serve;
pub use scale::Scale;
pub use secrets::ClusterSecrets;
pub use trouble::Trouble;
pub use watch::{Event, Watch};
