//! The two resources: what users ask for, and what nodes report.

pub mod reason;
