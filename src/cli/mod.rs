//! The subcommands, and what they share: usage errors, exit codes, signals.

// The flags' documentation is their help, which a terminal shows as it is.
#![allow(clippy::doc_markdown)]

use std::error::Error;
use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

pub mod cleanup;
pub mod crd;
pub mod flags;
pub mod pull;
pub mod run;

/// Pulls the images that `ImageCache` objects ask for onto the nodes of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = "imagecache-agent", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Flags),
    Pull(pull::Flags),
    Cleanup(cleanup::Flags),
    Crd(crd::Flags),
}

/// The command line, or a file that it names, cannot be acted on. The exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UsageError(Box<dyn Error + Send + Sync>);

impl UsageError {
    /// For this reason.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// The exit code is 0 for success, 1 for a failure, and 2 for a command line or a file that cannot be acted on.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match &self.command {
            Command::Run(flags) => run::run(flags),
            Command::Pull(flags) => pull::run(flags),
            Command::Cleanup(flags) => cleanup::run(flags),
            Command::Crd(flags) => crd::run(flags),
        };
        result.unwrap_or_else(|error| {
            say(&format!("error: {}", sentence(&error)));
            let code = if error.is::<UsageError>() { 2 } else { 1 };
            ExitCode::from(code)
        })
    }
}

/// Shows a line on standard error. Whoever does not listen any more, or whose disk is full, is no reason to end.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// An error with its causes, each said once: some say theirs themselves.
fn sentence(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |said, cause| {
            if said.is_empty() {
                cause
            } else if said.contains(&cause) {
                said
            } else {
                said + ": " + &cause
            }
        })
}

/// Runs a subcommand to its end.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // Waiting is all that there is to do, and the work is the runtime's: one thread, and one arena of memory, are enough.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait for events of the operating system")?
        .block_on(work)
}

/// Ends when the process is asked to end: SIGTERM, or Ctrl-C.
async fn terminated() -> io::Result<()> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_said_once() {
        let cause = io::Error::other("no such file");
        let error = anyhow::Error::new(cause)
            .context("cannot read a: no such file")
            .context("cannot start");
        assert_eq!(
            sentence(&error),
            "cannot start: cannot read a: no such file"
        );
    }

    #[test]
    fn every_flag_can_be_parsed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
