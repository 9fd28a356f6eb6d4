//! Second opinions: small Go programs that say what the container world's own code makes of something.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::servers::server;

/// A program that answers JSON with JSON, line by line.
#[derive(Clone, Copy, Debug)]
pub enum Oracle {
    /// What the library that the kubelet and the runtimes parse with makes of image references (`servers/reference/main.go`).
    References,
    /// Which credentials the kubelet finds in pull secrets for an image (`servers/kubernetes/keyring/main.go`).
    Keyring,
}

impl Oracle {
    /// The answers, in the order of the questions.
    pub fn ask<Q: Serialize + Sync, A: DeserializeOwned>(self, questions: &[Q]) -> Result<Vec<A>> {
        let program = match self {
            Self::References => server("reference", "reference")?,
            Self::Keyring => server("keyring", "keyring")?,
        };
        let mut go = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (go.stdin.take(), go.stdout.take());
        let mut input = input.context("no standard input")?;
        let output = BufReader::new(output.context("no standard output")?);
        let answers = thread::scope(|scope| {
            // Beside the reading: either pipe holds less than there is to say.
            let asking = scope.spawn(move || -> Result<()> {
                for question in questions {
                    writeln!(input, "{}", serde_json::to_string(question)?)?;
                }
                Ok(())
            });
            let answers: Result<Vec<A>> = output
                .lines()
                .map(|line| Ok(serde_json::from_str(&line?)?))
                .collect();
            let asked = asking.join().map_err(|_| anyhow!("the asking panicked"))?;
            asked.and(answers)
        })?;
        let status = go.wait()?;
        ensure!(status.success(), "{self:?}: {status}");
        ensure!(
            answers.len() == questions.len(),
            "{self:?}: {} answers to {} questions",
            answers.len(),
            questions.len()
        );
        Ok(answers)
    }
}
