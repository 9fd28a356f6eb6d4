//! Pure functions: no async, no clock, no input or output.

pub mod backoff;
pub mod inputs;
pub mod selector;
pub mod timing;

pub use inputs::{Cache, CacheName, Caches, Inputs, Known, Node};
pub use timing::{Doubling, Timing};
