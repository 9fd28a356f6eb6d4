//! The process of an exec credential provider: started, asked, and ended with everything that it started itself.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// How much of what it writes to its standard error is looked at, in bytes.
const MAX_ERROR: u64 = 4 << 10;

/// How often, and how many times, processes that were killed are looked for until they are gone.
const BURIAL: (Duration, u32) = (Duration::from_millis(10), 100);

/// Why a plugin gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The program is there, and what it needs to be started is not.
    #[error(
        "{0} is there, but what starts it is not: the dynamic loader and the libraries of a dynamically linked program, or the interpreter of a script. The agent's container has neither: use a statically linked provider, or mount the node's libraries (manifests/components/node-credentials-libraries)"
    )]
    NoLoader(String),
    /// It cannot be started.
    #[error("{0} cannot be started: {1}")]
    Start(String, io::Error),
    /// It cannot be spoken to.
    #[error("it cannot be spoken to: {0}")]
    Pipe(#[from] io::Error),
    /// It did not end in time, and was killed.
    #[error("it did not answer within {} s and was ended", .0.as_secs_f32())]
    TimedOut(Duration),
    /// It wrote too much, and was killed.
    #[error("it answered with more than 1 MiB and was ended")]
    TooLong,
    /// It ended with a failure.
    #[error("it failed")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The beginning of its standard error, which can hold anything.
        said: Vec<u8>,
    },
}

/// Runs a program with this on its standard input, and returns what it wrote to its standard output.
///
/// If it does not end within `limit`, or nobody waits for it any more, its whole process group is killed: a script's children too.
pub async fn answer(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
) -> Result<Vec<u8>, PluginError> {
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut group = match spawned {
        Ok(child) => Group(child),
        Err(error) => return Err(not_started(command.as_std().get_program(), error)),
    };
    timeout(limit, speak(&mut group.0, input))
        .await
        .unwrap_or(Err(PluginError::TimedOut(limit)))
}

fn not_started(program: &OsStr, error: io::Error) -> PluginError {
    let (program, name) = (Path::new(program), program.display().to_string());
    // The operating system says the same of a program that is not there and of one whose loader is not.
    if error.kind() == io::ErrorKind::NotFound && program.exists() {
        PluginError::NoLoader(name)
    } else {
        PluginError::Start(name, error)
    }
}

async fn speak(child: &mut Child, input: &[u8]) -> Result<Vec<u8>, PluginError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let ask = async {
        if let Some(mut stdin) = stdin {
            // One that knows its answer need not read the question.
            let _ = stdin.write_all(input).await;
        }
        Ok(())
    };
    let ((), answer, said) = tokio::try_join!(ask, read_answer(stdout), read_error(stderr))?;
    let status = child.wait().await?;
    if status.success() {
        Ok(answer)
    } else {
        Err(PluginError::Failed { status, said })
    }
}

async fn read_answer(stdout: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, PluginError> {
    let bytes = read_beginning(stdout.map(|stdout| stdout.take(MAX_ANSWER + 1))).await?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_ANSWER) {
        Ok(bytes)
    } else {
        Err(PluginError::TooLong)
    }
}

/// The beginning. The rest is read too, so that the plugin can write it.
async fn read_error(stderr: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, PluginError> {
    let mut bytes = Vec::new();
    if let Some(mut stderr) = stderr {
        (&mut stderr)
            .take(MAX_ERROR)
            .read_to_end(&mut bytes)
            .await?;
        copy(&mut stderr, &mut sink()).await?;
    }
    Ok(bytes)
}

async fn read_beginning(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        from.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// A child that leads a process group. Unless it has ended by itself, the group is killed when this is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // A child that was waited for has no ID any more: the number may be somebody else's by now.
        let id = self.0.id().and_then(|id| i32::try_from(id).ok());
        let Some(group) = id.and_then(Pid::from_raw) else {
            return;
        };
        let _ = kill_process_group(group, Signal::KILL);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(bury(group));
        }
    }
}

/// Takes those away that were killed. The first process of a container, as the agent is, inherits the children of its children;
/// nobody else would.
async fn bury(group: Pid) {
    let (interval, times) = BURIAL;
    for _ in 0..times {
        match waitpgid(group, WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => sleep(interval).await,
            // None of the group is a child of this process any more.
            Err(_) => return,
        }
    }
}
