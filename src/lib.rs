//! `imagecache-agent` pulls the images that `ImageCache` objects ask for onto the nodes of a cluster.
//!
//! The rooms. Each may use rooms above it and none below it, so that no arrow goes in a circle.
//!
//! | room | holds |
//! |---|---|
//! | [`api`] | the two resources, their reasons and conditions |
//! | [`image`] | image references, and a number for each name |
//! | [`credentials`] | registry credentials, found as the kubelet finds them |
//! | [`decide`] | pure functions: what is wanted, what to do now, what to report |
//! | [`runtime`] | the node's container runtime, over its socket |
//! | [`telemetry`] | logs, metrics, health |
//! | [`agent`] | the loop of one node, and the pulls it owns |
//! | [`cluster`] | the API server: what is asked of it, what is written to it, who is elected |
//! | [`rollup`] | the elected agent's loop |
//! | [`cli`] | the subcommands and their wiring |

pub mod agent;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod credentials;
pub mod decide;
pub mod image;
pub mod rollup;
pub mod runtime;
pub mod telemetry;
