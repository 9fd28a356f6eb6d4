//! Logs, metrics and health.
