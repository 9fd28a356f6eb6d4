//! The command of the test bed: builds its servers, starts a cluster to look around in, ends it.

use std::process::ExitCode;

use clap::Parser;

/// A real Kubernetes cluster on one machine.
#[derive(Parser)]
enum Command {
    /// Builds the servers, and as root installs the Debian packages that they need.
    Build,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Build => testbed::build(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
