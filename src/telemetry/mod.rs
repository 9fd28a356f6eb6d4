//! What the agent tells about itself: logs, metrics, health.

pub mod admin;
pub mod logs;
pub mod metrics;
pub mod readiness;

pub use metrics::Metrics;
pub use readiness::{Check, Readiness};
