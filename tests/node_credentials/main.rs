//! The node's own credentials: its docker configuration and its exec credential providers, which are real programs here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "../plugin/mod.rs"]
mod plugin;
mod providers;
mod pull;
