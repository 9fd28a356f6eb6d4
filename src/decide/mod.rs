//! Pure functions: no async, no clock, no input or output.
//!
//! They take the world as it is, the time included, and say what is wanted ([`desired()`]), what to do
//! now ([`plan()`]), when to try again ([`backoff`]), what a node reports ([`report()`]) and what that
//! comes to for the cluster ([`summary`]).

pub mod backoff;
pub mod brought;
mod bytes;
pub mod chores;
pub mod credentials;
pub mod desired;
pub mod disk;
pub mod fleet;
pub mod holdings;
pub mod inputs;
pub mod leases;
pub mod memory;
#[cfg(test)]
mod model;
pub mod node_sources;
pub mod pins;
pub mod plan;
pub mod pull_secrets;
pub mod reclaim;
pub mod refresh;
pub mod registries;
pub mod removal;
pub mod report;
pub mod selector;
pub mod spread;
pub mod state;
pub mod summary;
pub mod timing;
pub mod traffic;
pub mod usage;
pub mod world;

pub use desired::{Desired, desired};
pub use fleet::Fleet;
pub use inputs::{Cache, CacheName, Caches, Inputs, IsCurrent, Known, Node, SecretName};
pub use plan::{Plan, plan};
pub use report::report;
pub use summary::{Summary, summarize};
pub use timing::{Doubling, Timing};
pub use world::{Answers, Now, PresentImage, World};
