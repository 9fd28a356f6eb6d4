//! Stories that a user could tell, on real servers: etcd, an API server, containerd in three versions, registries and
//! kubelets. Each file is one story.
//!
//! They need root and the servers (`make servers`): `make test` plays them all.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    missing_docs
)]

mod causes;
mod daemonset;
mod disk;
mod edits;
mod fledged;
mod fleet;
mod guarded;
mod killed;
mod labels;
mod lists;
mod node_credentials;
mod nodes;
mod pinning;
#[path = "../plugin/mod.rs"]
mod plugin;
mod presence;
mod progress;
mod refresh;
mod registries;
mod removal;
mod resume;
mod secrets;
mod start;
mod steady;
