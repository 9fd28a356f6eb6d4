//! The address of a runtime: a Unix socket.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The longest path that fits into a socket address, which ends in a zero byte.
const MAX_PATH: usize = 107;

/// The Unix socket that a runtime listens on.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Endpoint(PathBuf);

/// Why a text is not the address of a runtime.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum EndpointError {
    /// Another scheme, such as `tcp://` or `npipe://`.
    #[error(
        "{0:?} is not supported: a runtime is spoken to over a Unix socket, as in unix:///run/containerd/containerd.sock"
    )]
    Scheme(String),
    /// No path, or one that depends on the current folder.
    #[error("{0:?} is not an absolute path: write unix:///path/of.sock or /path/of.sock")]
    NotAbsolute(String),
    /// The kernel takes no longer path.
    #[error("the path of the socket is longer than {MAX_PATH} bytes: {0:?}")]
    TooLong(String),
}

impl Endpoint {
    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder that the socket is in. It outlives the socket when the runtime restarts.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.0.parent().unwrap_or(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = match text.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some((scheme, _)) if !scheme.contains('/') => {
                return Err(EndpointError::Scheme(text.to_owned()));
            }
            _ => text,
        };
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(EndpointError::NotAbsolute(text.to_owned()));
        }
        if Path::new(path).as_os_str().as_bytes().len() > MAX_PATH {
            return Err(EndpointError::TooLong(path.to_owned()));
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_socket_is_named_by_a_url_or_by_its_path() {
        for text in [
            "unix:///run/containerd/containerd.sock",
            "unix:/run/containerd/containerd.sock",
            "/run/containerd/containerd.sock",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(
                endpoint.path(),
                Path::new("/run/containerd/containerd.sock")
            );
            assert_eq!(endpoint.directory(), Path::new("/run/containerd"));
            assert_eq!(
                endpoint.to_string(),
                "unix:///run/containerd/containerd.sock"
            );
        }
        let odd: Endpoint = "/run/a:b/c.sock".parse().unwrap();
        assert_eq!(odd.path(), Path::new("/run/a:b/c.sock"));
    }

    #[test]
    fn what_is_no_unix_socket_is_refused_with_a_hint() {
        let parse = |text: &str| text.parse::<Endpoint>().unwrap_err();
        assert!(matches!(
            parse("tcp://127.0.0.1:1"),
            EndpointError::Scheme(_)
        ));
        assert!(matches!(
            parse("npipe:////./pipe/x"),
            EndpointError::Scheme(_)
        ));
        assert!(matches!(parse(""), EndpointError::NotAbsolute(_)));
        assert!(matches!(parse("/"), EndpointError::NotAbsolute(_)));
        assert!(matches!(parse("run/x.sock"), EndpointError::NotAbsolute(_)));
        assert!(matches!(
            parse("unix://run/x.sock"),
            EndpointError::NotAbsolute(_)
        ));
        let long = format!("/{}", "a".repeat(MAX_PATH));
        assert!(matches!(parse(&long), EndpointError::TooLong(_)));
        assert!(long[..MAX_PATH].parse::<Endpoint>().is_ok());
    }
}
