//! The subcommands, and what they share: usage errors and exit codes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod crd;

/// Pulls the images that `ImageCache` objects ask for onto the nodes of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = "imagecache-agent", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Crd(crd::Flags),
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// The exit code is 0 for success, 1 for a failure, and 2 for a command line or a file that cannot be acted on.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Crd(flags) => crd::run(&flags),
        };
        result.unwrap_or_else(|error| {
            eprintln!("imagecache-agent: {error:#}");
            ExitCode::FAILURE
        })
    }
}
