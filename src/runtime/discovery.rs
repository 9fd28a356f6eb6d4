//! Finds the runtime of this machine when nobody says where it is.

use std::time::Duration;

use thiserror::Error;

use super::endpoint::Endpoint;
use super::error::{RuntimeError, Unavailable};
use super::images::{Runtime, Version};

/// Where runtimes listen when nobody has told them otherwise, in the order in which they are
/// tried. Docker's own containerd is at the first place too, without CRI: it does not answer
/// the question, and the search goes on to cri-dockerd.
const WELL_KNOWN: [(&str, &str); 6] = [
    ("containerd", "/run/containerd/containerd.sock"),
    ("CRI-O", "/run/crio/crio.sock"),
    ("cri-dockerd", "/run/cri-dockerd.sock"),
    ("k3s", "/run/k3s/containerd/containerd.sock"),
    ("k0s", "/run/k0s/containerd.sock"),
    ("MicroK8s", "/var/snap/microk8s/common/run/containerd.sock"),
];

/// A runtime that answers.
#[derive(Clone, Debug)]
pub struct Found {
    /// The runtime.
    pub runtime: Runtime,
    /// Who it says it is.
    pub version: Version,
}

/// No runtime answers, and this is what was tried.
#[derive(Clone, Debug, Error)]
#[error("no container runtime found; name its socket with --runtime-endpoint. Tried: {}", list(.tried))]
pub struct NothingFound {
    /// Every place, with what is usually there and why it is no runtime now.
    pub tried: Vec<(&'static str, Unavailable)>,
}

/// Asks at the well-known sockets, one after the other, and takes the first that answers.
pub async fn discover(call_timeout: Duration) -> Result<Found, NothingFound> {
    let places: Vec<(&'static str, Endpoint)> = WELL_KNOWN
        .iter()
        .filter_map(|(name, path)| Some((*name, path.parse().ok()?)))
        .collect();
    discover_among(places, call_timeout).await
}

/// The same among other places.
pub async fn discover_among(
    places: impl IntoIterator<Item = (&'static str, Endpoint)>,
    call_timeout: Duration,
) -> Result<Found, NothingFound> {
    let mut tried = Vec::new();
    for (name, endpoint) in places {
        let path = endpoint.path().to_owned();
        let runtime = Runtime::new(endpoint, call_timeout);
        match runtime.version().await {
            Ok(version) => return Ok(Found { runtime, version }),
            Err(RuntimeError::Unavailable(why)) => tried.push((name, why)),
            Err(RuntimeError::Failed { message, .. }) => {
                tried.push((name, Unavailable::NotReady { path, message }));
            }
        }
    }
    Err(NothingFound { tried })
}

fn list(tried: &[(&'static str, Unavailable)]) -> String {
    let lines: Vec<String> = tried
        .iter()
        .map(|(name, why)| match why {
            Unavailable::NoSocket { path } => format!("{} ({name}): not there", path.display()),
            other => format!("{name}: {other}"),
        })
        .collect();
    lines.join("; ")
}
