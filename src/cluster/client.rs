//! The connection to the API server: who it is, how long an answer may take, and whether it answers at all.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::{HeaderValue, USER_AGENT};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::ConfigExt;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::timeout::TimeoutLayer;
use tower::{BoxError, ServiceBuilder};
use tracing::{info, warn};

use super::error::CallError;
use super::trouble::Trouble;
use crate::decide::Timing;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::SUCCESS;

/// How long an idle connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(90);

/// A silent connection is asked for a sign of life after this long, then this often, so many times. Without that a
/// watch whose other end is gone stays open for good.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

/// A connection whose packets are not acknowledged for this long is given up.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Asks for an answer without spec and status: what was just written need not come back.
pub const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Why there is no connection to speak of.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: Box<KubeconfigError>,
    },
    /// Not in a pod, and no kubeconfig given.
    #[error("not in a pod with a service account: name a kubeconfig with --kubeconfig")]
    NoCluster(#[source] InClusterError),
    /// The certificates or the credentials cannot be used.
    #[error("cannot use the certificates or credentials for the API server")]
    Credentials(#[source] Box<kube::Error>),
}

/// The cluster, as one API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    timing: Timing,
    link: Arc<Link>,
    metrics: Metrics,
}

impl Cluster {
    /// Prepares the connection from a kubeconfig, or from the pod's service account. Asks nothing yet: an API server
    /// that does not answer is waited for by whoever asks.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        timing: &Timing,
        metrics: Metrics,
    ) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            Some(path) => from_kubeconfig(path).await?,
            None => Config::incluster_env().map_err(ConnectError::NoCluster)?,
        };
        Self::with_config(config, timing, metrics)
            .map_err(|error| ConnectError::Credentials(Box::new(error)))
    }

    /// The same from a configuration.
    pub(super) fn with_config(
        mut config: Config,
        timing: &Timing,
        metrics: Metrics,
    ) -> kube::Result<Self> {
        if let Some(proxy) = &config.proxy_url {
            let host = proxy.host();
            warn!(
                proxy = host,
                "proxies are not supported: connecting to the API server directly"
            );
        }
        let agent = concat!("imagecache-agent/", env!("CARGO_PKG_VERSION"));
        config
            .headers
            .push((USER_AGENT, HeaderValue::from_static(agent)));
        let connector = config.rustls_https_connector_with_connector(tcp(timing.api_call))?;
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let service = ServiceBuilder::new()
            // Until the answer begins. A watch's answer begins at once, and then has all the time it needs.
            .layer(TimeoutLayer::new(timing.api_call))
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(http);
        Ok(Self {
            client: Client::new(service, config.default_namespace),
            timing: *timing,
            link: Arc::new(Link::to(config.cluster_url.to_string())),
            metrics,
        })
    }

    /// The client, for `kube::Api`.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The intervals and limits.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// The process's metrics.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The answer to a request that is not a watch, or to a watch's beginning, within the time limit of one request.
    pub async fn call<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        self.call_within(self.timing.api_call, request).await
    }

    /// The same with a time limit of its own.
    pub async fn call_within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        let answer = match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer.map_err(CallError::from),
            Err(_) => Err(CallError::no_answer_within(limit)),
        };
        match &answer {
            Err(error @ CallError::NoAnswer(_)) => self.link.is_silent(&error.to_string()),
            _ => self.link.answers(),
        }
        answer
    }

    /// The answer to a write to this resource, such as `nodeimagecaches`, counted.
    pub async fn write<T>(
        &self,
        resource: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        self.write_within(self.timing.api_call, resource, request)
            .await
    }

    /// The same with a time limit of its own.
    pub async fn write_within<T>(
        &self,
        limit: Duration,
        resource: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        let answer = self.call_within(limit, request).await;
        let result = answer.as_ref().map_or_else(CallError::result, |_| SUCCESS);
        self.metrics.api_write(resource, result);
        answer
    }

    /// Notes that a watch broke off.
    pub(super) fn broke_off(&self, error: &CallError) {
        if let CallError::NoAnswer(cause) = error {
            self.link.is_silent(cause);
        }
    }
}

async fn from_kubeconfig(path: &Path) -> Result<Config, ConnectError> {
    let error = |source| ConnectError::Kubeconfig {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(error)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(error)
}

/// TCP connections that notice when the other end is gone.
fn tcp(connect: Duration) -> HttpConnector {
    let (after, every, times) = KEEPALIVE;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect));
    tcp.set_keepalive(Some(after));
    tcp.set_keepalive_interval(Some(every));
    tcp.set_keepalive_retries(Some(times));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    tcp
}

/// Whether the API server answers. One for all tasks, so that an outage is said once and not by each of them.
struct Link {
    address: String,
    outage: Mutex<(Trouble, Option<Instant>)>,
}

impl Link {
    fn to(address: String) -> Self {
        Self {
            address,
            outage: Mutex::default(),
        }
    }

    fn is_silent(&self, cause: &str) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        outage.1.get_or_insert_with(Instant::now);
        if outage.0.begins(cause) {
            warn!(
                address = self.address,
                error = cause,
                "API server unreachable"
            );
        }
    }

    fn answers(&self) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if outage.0.ends() {
            let seconds = outage.1.take().map(|since| since.elapsed().as_secs());
            info!(
                address = self.address,
                seconds, "API server reachable again"
            );
        }
    }
}
