//! The temporary folder that owns everything a test bed makes, and the reaper that removes it.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use crate::network::Network;
use crate::pki::Authority;
use crate::process::{Process, lock};
use crate::wait::wait_for;

/// The environment variable by which the reaper knows what belongs to a lab: its value is the lab's folder.
const MARK: &str = "IMAGECACHE_TESTBED";
const PREFIX: &str = "imagecache-testbed-";
const REAPER: &str = include_str!("reaper.sh");

/// One temporary folder with its processes, network and certificates.
///
/// All of it is gone when the last reference is dropped, and also when the owning process ends in any other way:
/// a small shell process waits for that. What a killed reaper left is removed by the next [`Lab::new`].
#[derive(Debug)]
pub struct Lab {
    dir: PathBuf,
    reaper: Mutex<Child>,
    network: OnceLock<Network>,
    authority: OnceLock<Authority>,
    making: Mutex<()>,
    /// Held locked for as long as the owner lives.
    owned: File,
}

impl Lab {
    /// Makes a folder under the system's temporary folder, after removing those whose owner is gone.
    pub fn new() -> Result<Arc<Self>> {
        let base = std::env::temp_dir();
        remove_leftovers(&base)?;

        // Locked before it gets the name that others look for, so that nobody takes it for a leftover.
        let hidden = tempfile::Builder::new()
            .prefix(&format!(".{PREFIX}"))
            .rand_bytes(4)
            .tempdir_in(&base)?;
        let lock = File::create_new(hidden.path().join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let hidden = hidden.keep();
        let name = hidden
            .file_name()
            .and_then(|n| n.to_str())
            .context("a temporary folder without a name")?;
        let dir = base.join(name.trim_start_matches('.'));
        fs::rename(&hidden, &dir)?;

        fs::create_dir(dir.join("log"))?;
        fs::write(dir.join("owner"), std::process::id().to_string())?;
        let reaper = reap(&dir, Stdio::piped())?;
        let (network, authority) = (OnceLock::new(), OnceLock::new());
        Ok(Arc::new(Self {
            dir,
            reaper: Mutex::new(reaper),
            network,
            authority,
            making: Mutex::new(()),
            owned: lock,
        }))
    }

    /// The lab's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A name that no other lab on this machine has.
    #[must_use]
    pub fn name(&self) -> &str {
        self.dir
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or(PREFIX)
    }

    /// A folder of the lab, made if it is not there.
    pub fn folder(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Starts a command that belongs to the lab, in a process group of its own; its output goes to `log/NAME.log`.
    pub fn spawn(&self, name: &str, mut command: Command) -> Result<Process> {
        let path = self.dir.join("log").join(format!("{name}.log"));
        let log = OpenOptions::new().create(true).append(true).open(&path)?;
        let from = log.metadata()?.len();
        command
            .env(MARK, &self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("start {name}: {}", command.get_program().display()))?;
        Ok(Process::new(name, child, path, from))
    }

    /// The lab's own bridge, made when it is first asked for.
    pub fn network(&self) -> Result<&Network> {
        let _making = lock(&self.making);
        if let Some(network) = self.network.get() {
            return Ok(network);
        }
        let network = Network::make(&self.dir.join("bridge"))?;
        Ok(self.network.get_or_init(|| network))
    }

    /// The lab's own certificate authority, made when it is first asked for.
    pub fn authority(&self) -> Result<&Authority> {
        let _making = lock(&self.making);
        if let Some(authority) = self.authority.get() {
            return Ok(authority);
        }
        let authority = Authority::make(&self.folder("pki")?, "testbed-ca")?;
        Ok(self.authority.get_or_init(|| authority))
    }
}

impl Lab {
    /// Says that this lab is not a test's but somebody's who will end it with [`Lab::end_kept`].
    pub fn keep(&self) -> Result<()> {
        Ok(fs::write(self.dir.join("kept"), "")?)
    }

    /// Gives the lab to a process that only waits, so that all of it outlives this one. [`Lab::end_kept`] ends it.
    ///
    /// That process inherits what makes an owner: the lock, and the end of the reaper's pipe.
    pub(crate) fn leave_running(&self) -> Result<()> {
        let pipe = lock(&self.reaper)
            .stdin
            .take()
            .context("the lab has another owner already")?;
        let owner = Command::new("sleep")
            .arg("infinity")
            .stdin(pipe)
            .stdout(self.owned.try_clone()?)
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .context("start the new owner")?;
        fs::write(self.dir.join("owner"), owner.id().to_string())?;
        self.keep()
    }

    /// Asks the owners of all kept labs to end, waits until nothing of them is left, and returns their folders.
    pub async fn end_kept() -> Result<Vec<PathBuf>> {
        let kept: Vec<_> = labs(&std::env::temp_dir())?
            .into_iter()
            .filter(|dir| dir.join("kept").exists())
            .collect();
        for dir in &kept {
            let owner = fs::read_to_string(dir.join("owner"))?
                .parse()
                .ok()
                .and_then(Pid::from_raw);
            let lives = rustix::fs::flock(
                File::open(dir.join("lock"))?,
                FlockOperation::NonBlockingLockExclusive,
            )
            .is_err();
            if let (true, Some(owner)) = (lives, owner) {
                rustix::process::kill_process(owner, Signal::TERM)?;
            }
        }
        for dir in &kept {
            wait_for(
                format!("{} to be removed", dir.display()),
                Duration::from_secs(30),
                async || {
                    ensure!(!dir.exists(), "it is there");
                    Ok(())
                },
            )
            .await?;
        }
        Ok(kept)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let reaper = self
            .reaper
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        drop(reaper.stdin.take());
        let mut said = String::new();
        if let Some(mut errors) = reaper.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        let _ = reaper.wait();
        if !said.is_empty() {
            eprint!("{said}");
        }
    }
}

/// In a process group of its own, so that Ctrl-C on a terminal does not reach it.
fn reap(dir: &Path, input: Stdio) -> Result<Child> {
    let script = dir.join("reaper.sh");
    fs::write(&script, REAPER)?;
    Command::new("sh")
        .arg(script)
        .arg(dir)
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("start the reaper")
}

fn remove_leftovers(base: &Path) -> Result<()> {
    for dir in labs(base)? {
        let Ok(lock) = File::open(dir.join("lock")) else {
            continue;
        };
        // Whoever holds the lock lives. Its own reaper may be at work in a folder without an owner: then one of the two is last.
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let done = reap(&dir, Stdio::null()).and_then(|reaper| Ok(reaper.wait_with_output()?));
            ensure!(
                !dir.exists(),
                "{} could not be removed: {done:?}",
                dir.display()
            );
        }
    }
    Ok(())
}

/// The folders of all labs on this machine.
fn labs(base: &Path) -> Result<Vec<PathBuf>> {
    let names = fs::read_dir(base)?.filter_map(|e| Some(e.ok()?.path()));
    Ok(names
        .filter(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(PREFIX))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_dropped_lab_takes_its_processes_and_their_children_with_it() {
        let lab = Lab::new().unwrap();
        let dir = lab.dir().to_owned();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let shell = lab.spawn("shell", command).unwrap();
        let child = loop {
            if let Ok(pid) = shell.log().trim().parse::<u32>() {
                break pid;
            }
        };
        std::mem::forget(shell);
        drop(lab);
        assert!(!dir.exists());
        // Killed, though its new parent may not have taken note yet.
        let left = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
    }

    #[test]
    fn a_lab_that_lives_is_no_leftover() {
        let first = Lab::new().unwrap();
        let second = Lab::new().unwrap();
        assert!(first.dir().exists());
        assert_ne!(first.name(), second.name());
    }

    #[test]
    fn a_folder_whose_owner_is_gone_is_removed_at_the_next_start() {
        let dir = std::env::temp_dir().join(format!("{PREFIX}left{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        File::create(dir.join("lock")).unwrap();
        let _lab = Lab::new().unwrap();
        assert!(!dir.exists());
    }
}
