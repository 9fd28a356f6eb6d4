//! The channel to a runtime's socket.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use tower::Service;

use super::endpoint::Endpoint;

/// The kubelet's limit for one answer of a runtime.
pub(super) const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A channel that connects at its first call and again after every loss.
///
/// HTTP/2 keepalive stays off: containerd answers the fourth ping without data with
/// GOAWAY "too many pings", which ends a running pull.
pub(super) fn channel(endpoint: &Endpoint) -> Channel {
    let connector = Connector(endpoint.path().to_owned());
    // The name goes into the :authority header, which no runtime looks at.
    tonic::transport::Endpoint::from_static("http://localhost")
        .connect_with_connector_lazy(connector)
}

/// The connection could not be made. Kept apart from an error of a connection that was made:
/// what the operating system says here names the cause.
#[derive(Debug, Error)]
#[error("connect to {}", path.display())]
pub(super) struct ConnectError {
    path: PathBuf,
    #[source]
    pub(super) cause: io::Error,
}

#[derive(Clone)]
struct Connector(PathBuf);

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move {
            match UnixStream::connect(&path).await {
                Ok(stream) => Ok(TokioIo::new(stream)),
                Err(cause) => Err(ConnectError { path, cause }),
            }
        })
    }
}
