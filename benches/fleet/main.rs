//! Measures the agent on real nodes, mostly as a ratio to a raw CRI client in the same run, and writes what it measured to
//! `docs/performance.md`. `make bench` runs it: it needs root, the servers and the static release binary.

// Which rounds and nodes there are is known here.
#![allow(clippy::indexing_slicing)]

#[path = "../../tests/stories/fleet.rs"]
#[allow(dead_code)]
mod fleet;
mod manners;
mod measure;
mod page;
mod scale;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

#[tokio::main]
async fn main() -> Result<()> {
    let program = PathBuf::from(
        std::env::var_os("IMAGECACHE_AGENT")
            .context("IMAGECACHE_AGENT is not set: run `make bench`")?,
    );
    ensure!(
        program.is_file(),
        "there is no {}: run `make agent`",
        program.display()
    );
    // Names of stages: only these are run, and nothing is written.
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
    measure::all(&program, &only, |numbers, to_come| {
        if only.is_empty() {
            std::fs::write(path, page::render(numbers, to_come))?;
        }
        Ok(())
    })
    .await?;
    if only.is_empty() {
        println!("written to docs/performance.md");
    }
    Ok(())
}
