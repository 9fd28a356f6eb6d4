//! Just enough of an HTTP client to fill a registry: one request on one connection.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Sends a request and reads the whole answer; with `authority` (a certificate in DER) by TLS.
pub(crate) async fn send(
    address: SocketAddr,
    authority: Option<&[u8]>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    match authority {
        None => over(stream, request).await,
        Some(der) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from(der))?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = ServerName::IpAddress(address.ip().into());
            over(
                TlsConnector::from(Arc::new(config))
                    .connect(name, stream)
                    .await?,
                request,
            )
            .await
        }
    }
}

async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the connection: the sender is dropped below, the peer answers or closes.
    tokio::spawn(connection);
    let (parts, body) = sender.send_request(request).await?.into_parts();
    Ok(Response::from_parts(
        parts,
        body.collect().await?.to_bytes(),
    ))
}
