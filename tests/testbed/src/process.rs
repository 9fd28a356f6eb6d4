//! A server or agent that runs in the background, and its log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_for;

/// A running program; it is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Mutex<Child>,
    log: PathBuf,
    /// Where in the log this start of the program begins.
    from: u64,
}

impl Process {
    pub(crate) fn new(name: &str, child: Child, log: PathBuf, from: u64) -> Self {
        Self {
            name: name.to_owned(),
            child: Mutex::new(child),
            log,
            from,
        }
    }

    /// What it was started as.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// How it ended, or `None` while it runs.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub fn kill9(&self) -> Result<()> {
        let mut child = self.child();
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM; [`Process::wait`] waits for the end.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self.child();
        if child.try_wait()?.is_none() {
            let pid = Pid::from_child(&child);
            kill_process(pid, signal).with_context(|| format!("signal {}", self.name))?;
        }
        Ok(())
    }

    /// Waits until the process has ended by itself.
    pub async fn wait(&self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("{} to end", self.name);
        wait_for(what, deadline, async || self.status().context("it runs")).await
    }

    /// SIGTERM, then SIGKILL if the process has not ended by the deadline.
    pub async fn stop(&self, deadline: Duration) -> Result<()> {
        self.terminate()?;
        if self.wait(deadline).await.is_err() {
            self.kill9()?;
        }
        Ok(())
    }

    /// What this start of the program has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        log_from(&self.log, self.from)
    }

    /// The last lines of the log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log(), lines).to_owned()
    }

    /// The file that the program's output goes to.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The cause of a failure with the end of this program's log below it.
    #[must_use]
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let end = self
            .status()
            .map_or_else(String::new, |s| format!(" ({s})"));
        error.context(format!(
            "{}{end} said last:\n{}",
            self.name,
            self.log_tail(20)
        ))
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        lock(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill9();
    }
}

/// A lock that a panic elsewhere does not take away: what follows a panic is the clean-up.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a log holds from an offset on.
pub(crate) fn log_from(path: &Path, from: u64) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut f| {
        f.seek(SeekFrom::Start(from))?;
        f.read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) => format!("(no log: {e})"),
    }
}

fn tail(text: &str, lines: usize) -> &str {
    let text = text.trim_end();
    let start = text
        .rmatch_indices('\n')
        .nth(lines.saturating_sub(1))
        .map_or(0, |(at, _)| at + 1);
    text.get(start..).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\nb\n", 5), "a\nb");
        assert_eq!(tail("", 3), "");
    }
}
