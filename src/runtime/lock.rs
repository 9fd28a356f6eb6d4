//! One agent for each runtime: an exclusive lock on the folder of its socket.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::endpoint::Endpoint;

/// The lock. It is given back when this is dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct SocketLock(#[expect(dead_code, reason = "held, not read")] File);

/// Why the lock was not taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process has it.
    #[error("another agent already serves this runtime: it holds the lock on {}", .directory.display())]
    Taken {
        /// The folder that is locked.
        directory: PathBuf,
    },
    /// The folder cannot be opened or locked.
    #[error("cannot lock {}", .directory.display())]
    Io {
        /// The folder.
        directory: PathBuf,
        /// What the operating system says.
        #[source]
        cause: io::Error,
    },
}

/// Takes the lock, or says at once that it cannot be had.
///
/// It is the folder that is locked: the socket in it is made anew at every start of the
/// runtime, and the lock of a folder needs no right to write, so that it works on a mount
/// that is read-only.
pub fn lock(endpoint: &Endpoint) -> Result<SocketLock, LockError> {
    let directory = endpoint.directory().to_owned();
    let file = match File::open(&directory) {
        Ok(file) => file,
        Err(cause) => return Err(LockError::Io { directory, cause }),
    };
    match file.try_lock() {
        Ok(()) => Ok(SocketLock(file)),
        Err(TryLockError::WouldBlock) => Err(LockError::Taken { directory }),
        Err(TryLockError::Error(cause)) => Err(LockError::Io { directory, cause }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_agent_finds_the_lock_taken_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint: Endpoint = folder
            .path()
            .join("c.sock")
            .to_str()
            .unwrap()
            .parse()
            .unwrap();

        let first = lock(&endpoint).unwrap();
        let second = lock(&endpoint).unwrap_err();
        assert!(matches!(second, LockError::Taken { .. }), "{second:?}");
        assert!(second.to_string().contains(folder.path().to_str().unwrap()));

        drop(first);
        lock(&endpoint).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let endpoint: Endpoint = "/nowhere/at/all/c.sock".parse().unwrap();
        let error = lock(&endpoint).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error:?}");
        assert!(error.to_string().contains("/nowhere/at/all"));
    }
}
