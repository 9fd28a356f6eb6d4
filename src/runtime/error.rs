//! What can go wrong between the agent and the runtime, said so that it can be acted on.

use std::error::Error as StdError;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;
use tonic::{Code, Status};

use super::classify::{self, classify};
use super::connect::ConnectError;
use super::endpoint::Endpoint;
use super::text;
use crate::api::reason::Reason;

/// There is no runtime to talk to: nothing is known about any image, and no attempt is counted.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unavailable {
    /// Nothing at the path.
    #[error(
        "there is no socket at {}: the runtime is not running, or it listens elsewhere (--runtime-endpoint), or its folder is not mounted here",
        .path.display()
    )]
    NoSocket {
        /// Where the socket should be.
        path: PathBuf,
    },
    /// The socket is there, and this process may not connect to it.
    #[error(
        "not permitted to connect to {}: run as user 0; on a node with SELinux the container also needs the type spc_t, and the denial is in the node's audit log",
        .path.display()
    )]
    NotPermitted {
        /// The socket.
        path: PathBuf,
    },
    /// A socket that nobody listens on.
    #[error(
        "nobody listens on {}: the runtime has stopped or is starting, and left its socket behind",
        .path.display()
    )]
    Refused {
        /// The socket.
        path: PathBuf,
    },
    /// Something is there, and it is not a runtime that speaks CRI v1.
    #[error("{} is not a CRI v1 runtime: {what}", .path.display())]
    NotCri {
        /// The socket.
        path: PathBuf,
        /// What was found instead.
        what: String,
    },
    /// The runtime answers that it cannot serve yet.
    #[error("the runtime at {} is not ready: {message}", .path.display())]
    NotReady {
        /// The socket.
        path: PathBuf,
        /// The runtime's own words.
        message: String,
    },
    /// Connected, and no answer within the time that a call may take.
    #[error("the runtime at {} did not answer within {} s", .path.display(), .after.as_secs_f32())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        after: Duration,
    },
    /// The connection broke.
    #[error("lost the connection to the runtime at {}: {what}", .path.display())]
    Gone {
        /// The socket.
        path: PathBuf,
        /// What the transport says.
        what: String,
    },
}

/// A call other than a pull failed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum RuntimeError {
    /// There is no runtime to talk to.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The runtime did not do it.
    #[error("the runtime could not {action}: {message}")]
    Failed {
        /// What was asked, as in "list images".
        action: &'static str,
        /// The runtime's words, on one line.
        message: String,
    },
}

/// A pull ended without the image. A pull that is cancelled, by dropping its future, has no result.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum PullError {
    /// There is no runtime to talk to: this was no attempt.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The pull failed for a reason.
    #[error("{reason}: {message}")]
    Failed {
        /// The class of the cause.
        reason: Reason,
        /// What happened, for a person, on one line.
        message: String,
    },
    /// The lease that was named has expired or was deleted: make it again. This was no attempt.
    #[error("the lease of this pull does not exist any more")]
    NoLease,
}

impl Unavailable {
    /// Whether this error says that there is no runtime. `None` when a runtime answered.
    pub(super) fn from_status(endpoint: &Endpoint, status: &Status) -> Option<Self> {
        let path = endpoint.path().to_owned();
        let message = text::one_line(status.message());
        if let Some(refusal) = cause::<ConnectError>(status) {
            return Some(Self::from_connect(path, &refusal.cause));
        }
        // A status with a cause was made on this side: the answer never came.
        if let Some(cause) = status.source() {
            let what = last(cause);
            return Some(
                if what.contains("frame with invalid size") || what.contains("protocol error") {
                    Self::NotCri {
                        path,
                        what: format!("it does not speak gRPC ({what})"),
                    }
                } else {
                    Self::Gone { path, what }
                },
            );
        }
        match status.code() {
            Code::Unimplemented => {
                let what = format!(
                    "it speaks gRPC without this service ({message}); containerd does so when its cri plugin is disabled, or is older than 1.6"
                );
                Some(Self::NotCri { path, what })
            }
            _ if message.contains("grpc-status header missing") => Some(Self::NotCri {
                path,
                what: format!("it does not speak gRPC ({message})"),
            }),
            // Said by the CRI services of containerd 1.6 and 1.7 with UNKNOWN while they start.
            _ if message.contains("server is not initialized yet") => {
                Some(Self::NotReady { path, message })
            }
            Code::Unavailable if !classify::is_about_a_pull(&message) => {
                Some(Self::NotReady { path, message })
            }
            _ => None,
        }
    }

    fn from_connect(path: PathBuf, cause: &io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NoSocket { path },
            io::ErrorKind::PermissionDenied => Self::NotPermitted { path },
            io::ErrorKind::ConnectionRefused => match not_a_socket(&path) {
                // The kernel also refuses when the path is no socket at all, such as the
                // folder that a hostPath volume makes when there is nothing.
                Some(what) => Self::NotCri { path, what },
                None => Self::Refused { path },
            },
            _ if cause.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => Self::NotCri {
                path,
                what: "it is not a stream socket".to_owned(),
            },
            _ => Self::Gone {
                path,
                what: cause.to_string(),
            },
        }
    }
}

impl RuntimeError {
    pub(super) fn from_status(endpoint: &Endpoint, action: &'static str, status: &Status) -> Self {
        match Unavailable::from_status(endpoint, status) {
            Some(unavailable) => Self::Unavailable(unavailable),
            None => Self::Failed {
                action,
                message: text::one_line(status.message()),
            },
        }
    }
}

impl PullError {
    pub(super) fn from_status(endpoint: &Endpoint, reference: &str, status: &Status) -> Self {
        if let Some(unavailable) = Unavailable::from_status(endpoint, status) {
            return Self::Unavailable(unavailable);
        }
        if classify::says_no_lease(status.code(), status.message()) {
            return Self::NoLease;
        }
        let (reason, message) = classify(status.code(), status.message(), reference);
        Self::Failed { reason, message }
    }
}

fn not_a_socket(path: &Path) -> Option<String> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if kind.is_socket() {
        None
    } else if kind.is_dir() {
        Some("it is a folder; was it mounted before the runtime had made its socket?".to_owned())
    } else {
        Some("it is not a socket".to_owned())
    }
}

/// The first cause of this type.
fn cause<T: StdError + 'static>(status: &Status) -> Option<&T> {
    std::iter::successors(status.source(), |&error| error.source())
        .find_map(|error| error.downcast_ref())
}

/// What the last cause says: the causes above it say only "transport error".
fn last(error: &(dyn StdError + 'static)) -> String {
    std::iter::successors(Some(error), |&error| error.source())
        .last()
        .map_or_else(String::new, |error| text::one_line(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operating_system_says_names_the_path_and_what_to_do() {
        let said = |kind: io::ErrorKind| {
            Unavailable::from_connect(PathBuf::from("/nowhere/c.sock"), &kind.into()).to_string()
        };
        for (kind, words) in [
            (io::ErrorKind::NotFound, ["no socket", "--runtime-endpoint"]),
            (
                io::ErrorKind::PermissionDenied,
                ["not permitted", "SELinux"],
            ),
            (
                io::ErrorKind::ConnectionRefused,
                ["nobody listens", "stopped or is starting"],
            ),
            (
                io::ErrorKind::TimedOut,
                ["lost the connection", "timed out"],
            ),
        ] {
            let said = said(kind);
            assert!(words.iter().all(|words| said.contains(words)), "{said}");
            assert!(said.contains("/nowhere/c.sock"), "{said}");
        }
    }
}
