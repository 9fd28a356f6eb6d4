//! A real cluster on one machine: the servers, networks and images that the tests and the demo share.
//!
//! A [`Lab`] owns all that is made. [`Registry`], [`FaultProxy`] and [`Containerd`] are enough to test against a runtime;
//! a [`Cluster`] adds an API server and nodes.

mod cluster;
mod containerd;
mod fault_proxy;
mod http;
mod image;
mod kubernetes;
mod lab;
mod namespace;
mod network;
mod node;
mod oracle;
mod pki;
mod process;
mod registry;
mod rollout;
mod servers;
mod token;
mod wait;

pub use cluster::{Bound, Cluster, ClusterOptions};
pub use containerd::{Containerd, ContainerdOptions, ROOT, RuntimeImage, Version};
pub use fault_proxy::{Fault, FaultProxy, ProxyRequest, Rule};
pub use image::{ImageSpec, architecture, digest, gzip, other_architecture};
pub use kubernetes::{ApiRequest, client};
pub use lab::Lab;
pub use namespace::Namespace;
pub use network::Network;
pub use node::Node;
pub use oracle::Oracle;
pub use pki::{Authority, Identity};
pub use process::Process;
pub use registry::{Listen, Mark, Registry, RegistryOptions, RegistryRequest, Tls};
pub use rollout::{NAMESPACE, ROLLOUT_STATUS};
pub use servers::{build, kubectl_folder};
pub use wait::wait_for;
