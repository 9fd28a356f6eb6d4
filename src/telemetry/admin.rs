//! Health and metrics over HTTP: `/livez`, `/readyz`, `/metrics`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Metrics, Readiness};

/// How long a client may take for its request, and how long an idle connection is kept: three scrapes.
const IDLE: Duration = Duration::from_secs(90);

/// How long an answer may go on after the shutdown began.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Probes and scrapers need a few. More wait until one is closed, so that a port scan costs no memory.
const MAX_CONNECTIONS: usize = 32;

const PLAIN: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The admin address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the admin address {address}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// What is served.
#[derive(Clone, Debug)]
pub struct Admin {
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// What `/readyz` shows.
    pub readiness: Readiness,
}

/// Listens on the admin address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address, source })
}

impl Admin {
    /// Answers until the shutdown, then lets the answers under way end.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            let full = connections.len() >= MAX_CONNECTIONS;
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept(), if !full => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(self.clone().connection(stream, shutdown.clone()));
                    }
                    // The client has gone already, or the process has no descriptor left: the latter repeats.
                    Err(error) => {
                        tracing::debug!(%error, "did not accept a connection to the admin address");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
        while connections.join_next().await.is_some() {}
    }

    async fn connection(self, stream: TcpStream, shutdown: CancellationToken) {
        let answer =
            service_fn(|request| std::future::ready(Ok::<_, Infallible>(self.answer(&request))));
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(TokioIo::new(stream), answer)
        );
        tokio::select! {
            // A client that breaks its connection off is no fact worth a line.
            _ = connection.as_mut() => {}
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(LAST_ANSWER, connection).await;
            }
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = response(
                StatusCode::METHOD_NOT_ALLOWED,
                PLAIN,
                "only GET is answered\n",
            );
            refused
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/livez" => response(StatusCode::OK, PLAIN, "alive\n"),
            "/readyz" => match self.readiness.report() {
                Ok(()) => response(StatusCode::OK, PLAIN, "ready\n"),
                Err(list) => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, list),
            },
            "/metrics" => match self.metrics.text() {
                Ok(metrics) => response(StatusCode::OK, OPENMETRICS, metrics),
                Err(error) => response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    PLAIN,
                    format!("{error}\n"),
                ),
            },
            _ => response(
                StatusCode::NOT_FOUND,
                PLAIN,
                "there are /livez, /readyz and /metrics\n",
            ),
        }
    }
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<String>) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::error::Error;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    struct Served {
        address: SocketAddr,
        admin: Admin,
        shutdown: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    async fn served() -> Served {
        let admin = Admin {
            metrics: Metrics::default(),
            readiness: Readiness::default(),
        };
        let listener = bind(ANY).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(admin.clone().serve(listener, shutdown.clone()));
        Served {
            address,
            admin,
            shutdown,
            task,
        }
    }

    async fn ask(address: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn health_and_metrics_are_answered() {
        let served = served().await;
        let runtime = served
            .admin
            .readiness
            .check("the runtime answers", "connection refused");
        served.admin.metrics.leader(true);

        assert!(
            ask(served.address, "GET /livez")
                .await
                .starts_with("HTTP/1.1 200 ")
        );
        let answer = ask(served.address, "GET /readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503 ")
                && answer.ends_with("- the runtime answers: connection refused\n"),
            "{answer}"
        );
        runtime.ready();
        assert!(
            ask(served.address, "GET /readyz?verbose")
                .await
                .starts_with("HTTP/1.1 200 ")
        );
        let answer = ask(served.address, "GET /metrics").await;
        assert!(
            answer.contains("application/openmetrics-text")
                && answer.contains("\nimagecache_leader 1\n"),
            "{answer}"
        );
        assert!(
            ask(served.address, "GET /")
                .await
                .starts_with("HTTP/1.1 404 ")
        );
        assert!(
            ask(served.address, "POST /livez")
                .await
                .starts_with("HTTP/1.1 405 ")
        );
    }

    #[tokio::test]
    async fn an_idle_connection_does_not_hold_up_the_shutdown() {
        let served = served().await;
        let mut idle = TcpStream::connect(served.address).await.unwrap();
        // The connection is accepted once an answer has come.
        idle.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        assert!(idle.read(&mut [0; 512]).await.unwrap() > 0);
        served.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(5), served.task)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let taken = bind(ANY).await.unwrap();
        let address = taken.local_addr().unwrap();
        let error = bind(address).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot listen on the admin address {address}")
        );
        assert!(error.source().unwrap().to_string().contains("in use"));
    }
}
