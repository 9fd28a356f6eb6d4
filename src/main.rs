//! The `imagecache-agent` command.

use std::process::ExitCode;

use clap::Parser;
use imagecache_agent::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
