//! A proxy in front of a registry that fails in the ways registries and networks fail, and records every request.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RANGE,
    USER_AGENT,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use crate::lab::Lab;
use crate::process::lock;
use crate::registry::Listen;

type Body = BoxBody<Bytes, std::io::Error>;

/// Pieces of this size keep a slow answer smooth.
const PIECE: usize = 16 * 1024;

/// What goes wrong with the requests that a [`Rule`] matches.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The answer starts later.
    Delay(Duration),
    /// The body comes with so many bytes a second.
    Throttle(u64),
    /// After so many bytes of the body nothing more comes, until [`FaultProxy::clear`].
    StallAt(u64),
    /// After so many bytes of the body the connection is closed.
    CutAt(u64),
    /// Nothing is answered, until [`FaultProxy::clear`].
    Silence,
    /// The connection is reset instead of an answer.
    Reset,
    /// The proxy answers, with a status, headers and a body; the registry is not asked.
    Status(u16, Vec<(&'static str, String)>, String),
    /// The body has the right length and wrong bytes.
    WrongBytes,
    /// The page of a captive portal, with status 200.
    Html,
}

impl Fault {
    /// A status with nothing else.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Status(status, Vec::new(), String::new())
    }

    /// 429 with the time to wait, in seconds.
    #[must_use]
    pub fn retry_after(seconds: u32) -> Self {
        Self::Status(
            429,
            vec![("retry-after", seconds.to_string())],
            String::new(),
        )
    }
}

/// Which requests a fault meets.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    method: Option<&'static str>,
    path: String,
    left: u64,
}

impl Rule {
    /// A fault for every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            method: None,
            path: String::new(),
            left: u64::MAX,
        }
    }

    /// Only for this method.
    #[must_use]
    pub fn method(self, method: &'static str) -> Self {
        Self {
            method: Some(method),
            ..self
        }
    }

    /// Only for paths that contain this text (`/manifests/`, `/blobs/`, a repository, a digest).
    #[must_use]
    pub fn path(self, part: &str) -> Self {
        Self {
            path: part.to_owned(),
            ..self
        }
    }

    /// Only for the first so many requests.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self {
            left: times,
            ..self
        }
    }
}

/// A request that the proxy has seen.
#[derive(Clone, Debug)]
pub struct ProxyRequest {
    /// `GET`, `HEAD`, ...
    pub method: String,
    /// The path, with its query.
    pub path: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// What the client calls itself.
    pub agent: String,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    /// When it came.
    pub at: Instant,
    /// The status of the answer; 0 where there is none.
    pub status: u16,
    /// How many bytes of the body have been sent so far.
    pub bytes: u64,
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Arc<Seen>>>,
    /// Of all answers together.
    total: Mutex<Pace>,
    cleared: watch::Sender<u64>,
    closed: watch::Sender<bool>,
}

#[derive(Debug)]
struct Seen {
    request: ProxyRequest,
    status: AtomicU16,
    bytes: AtomicU64,
}

impl FaultProxy {
    /// Listens on a free port in front of a registry with plain HTTP.
    pub async fn start(lab: &Lab, listen: Listen, upstream: SocketAddr) -> Result<Self> {
        Self::start_at(listen.ip(lab)?, upstream).await
    }

    async fn start_at(ip: IpAddr, upstream: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::default(),
            seen: Mutex::default(),
            total: Mutex::default(),
            cleared: watch::Sender::new(0),
            closed: watch::Sender::new(false),
        });
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// `IP:PORT`, as it stands in a reference.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// `http://IP:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The full reference of an image here: `IP:PORT/NAME`.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Adds a rule for the requests from now on; of several that match the first one counts.
    pub fn add(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Removes all rules and the limit; answers that stall or are silent go on.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
        self.limit(None);
        self.shared.cleared.send_modify(|n| *n += 1);
    }

    /// Limits all answers together to so many bytes a second.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        *lock(&self.shared.total) = Pace::new(bytes_per_second);
    }

    /// All requests so far, in the order in which they came.
    #[must_use]
    pub fn requests(&self) -> Vec<ProxyRequest> {
        let seen = lock(&self.shared.seen);
        seen.iter()
            .map(|s| ProxyRequest {
                status: s.status.load(Ordering::Relaxed),
                bytes: s.bytes.load(Ordering::Relaxed),
                ..s.request.clone()
            })
            .collect()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        lock(&self.shared.seen).clear();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.closed.send_replace(true);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Ends with the peer, by a reset, or when the proxy is dropped.
        tokio::spawn(serve(stream, shared.clone()));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let Ok(socket) = stream.as_fd().try_clone_to_owned() else {
        return;
    };
    let reset = Notify::new();
    let mut closed = shared.closed.subscribe();
    let service = service_fn(|request| {
        let (shared, reset) = (&shared, &reset);
        async move { Ok::<_, Infallible>(shared.answer(request, reset).await) }
    });
    tokio::select! {
        _ = server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service) => {}
        () = reset.notified() => abort_on_close(&socket),
        _ = closed.wait_for(|closed| *closed) => {}
    }
}

/// Lets the close that follows send a reset.
fn abort_on_close(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

impl Shared {
    async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        reset: &Notify,
    ) -> Response<Body> {
        let seen = self.record(&request);
        let fault = self.fault(&request);
        let answer = match &fault {
            Some(Fault::Status(status, headers, body)) => Ok(given(*status, headers, body)),
            Some(Fault::Html) => {
                let page =
                    "<!DOCTYPE html><html><title>Welcome to the guest network</title></html>";
                Ok(given(
                    200,
                    &[("content-type", "text/html; charset=utf-8".to_owned())],
                    page,
                ))
            }
            Some(Fault::Reset) => {
                reset.notify_one();
                std::future::pending().await
            }
            Some(Fault::Silence) => {
                self.until_cleared().await;
                self.forward(request).await
            }
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(*time).await;
                self.forward(request).await
            }
            _ => self.forward(request).await,
        };
        let answer = answer.unwrap_or_else(|error| given(502, &[], &format!("{error:#}")));
        seen.status
            .store(answer.status().as_u16(), Ordering::Relaxed);
        let (parts, body) = answer.into_parts();
        let (sender, channel) = Channel::new(1);
        // Ends with the body, or when the client has gone.
        tokio::spawn(self.clone().pump(body, sender, fault, seen));
        Response::from_parts(parts, channel.boxed())
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>> {
        let stream = TcpStream::connect(self.upstream).await?;
        let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends when the answer has been read or dropped.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await?;
        Ok(answer.map(|body| body.map_err(std::io::Error::other).boxed()))
    }

    async fn pump(
        self: Arc<Self>,
        mut body: Body,
        mut sender: Sender<Bytes, std::io::Error>,
        fault: Option<Fault>,
        seen: Arc<Seen>,
    ) {
        let mut own = Pace::new(match fault {
            Some(Fault::Throttle(rate)) => Some(rate),
            _ => None,
        });
        let mut stop_at = match fault {
            Some(Fault::StallAt(at) | Fault::CutAt(at)) => Some(at),
            _ => None,
        };
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => return sender.abort(error),
            };
            let Ok(mut data) = frame.into_data() else {
                continue;
            };
            if matches!(fault, Some(Fault::WrongBytes)) {
                data = data.iter().map(|byte| !byte).collect();
            }
            while !data.is_empty() {
                let mut size = data.len().min(PIECE);
                if let Some(at) = stop_at {
                    let left = at.saturating_sub(seen.bytes.load(Ordering::Relaxed));
                    size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
                }
                if size == 0 {
                    if matches!(fault, Some(Fault::CutAt(_))) {
                        return sender.abort(std::io::ErrorKind::ConnectionAborted.into());
                    }
                    self.until_cleared().await;
                    stop_at = None;
                    continue;
                }
                let due = own.next(size).max(lock(&self.total).next(size));
                sleep_until(due.into()).await;
                if sender.send_data(data.split_to(size)).await.is_err() {
                    return;
                }
                seen.bytes.fetch_add(size as u64, Ordering::Relaxed);
            }
        }
    }

    async fn until_cleared(&self) {
        let mut cleared = self.cleared.subscribe();
        // An error means that the proxy is gone, and its connections with it.
        let _ = cleared.changed().await;
    }

    fn fault(&self, request: &Request<Incoming>) -> Option<Fault> {
        let path = request.uri().to_string();
        let mut rules = lock(&self.rules);
        let rule = rules.iter_mut().find(|r| {
            r.left > 0 && r.method.is_none_or(|m| request.method() == m) && path.contains(&r.path)
        })?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    fn record(&self, request: &Request<Incoming>) -> Arc<Seen> {
        let header = |name| {
            request
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .map(str::to_owned)
        };
        let request = ProxyRequest {
            method: request.method().to_string(),
            path: request.uri().to_string(),
            range: header(RANGE),
            agent: header(USER_AGENT).unwrap_or_default(),
            authorization: header(AUTHORIZATION),
            at: Instant::now(),
            status: 0,
            bytes: 0,
        };
        let seen = Arc::new(Seen {
            request,
            status: AtomicU16::new(0),
            bytes: AtomicU64::new(0),
        });
        lock(&self.seen).push(seen.clone());
        seen
    }
}

/// An answer that does not come from the registry.
fn given(status: u16, headers: &[(&'static str, String)], body: &str) -> Response<Body> {
    let mut answer = Response::new(
        Full::from(body.to_owned())
            .map_err(|never| match never {})
            .boxed(),
    );
    *answer.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut all = HeaderMap::new();
    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    all.insert(CONTENT_LENGTH, body.len().into());
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            all.insert(HeaderName::from_static(name), value);
        }
    }
    *answer.headers_mut() = all;
    answer
}

/// When the next piece may go.
#[derive(Debug, Default)]
struct Pace {
    bytes_per_second: Option<u64>,
    free: Option<Instant>,
}

impl Pace {
    fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            free: None,
        }
    }

    fn next(&mut self, bytes: usize) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.bytes_per_second else {
            return now;
        };
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
        // The time of a piece passes before it goes: a short answer is slow too.
        let due = self.free.map_or(now, |free| free.max(now)) + Duration::from_nanos(nanos);
        self.free = Some(due);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_adds_up() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(1_000));
        pace.next(500);
        let due = pace.next(500);
        assert!(
            due >= start + Duration::from_secs(1) && due < start + Duration::from_millis(1_100)
        );
    }
}
