//! One real containerd without a cluster, and a registry for it that can fail.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imagecache_agent::api::reason::Reason;
use imagecache_agent::runtime::{Containerd, Endpoint, Lease, PullError, Runtime};
use testbed::{
    ContainerdOptions, FaultProxy, ImageSpec, Lab, Listen, Registry, RegistryOptions, Version,
    wait_for,
};

/// For one call.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// For what a busy machine may take long for.
pub const LONG: Duration = Duration::from_mins(1);

/// A containerd, a registry that it knows, and a proxy in front of that.
pub struct LoneRuntime {
    pub version: Version,
    pub server: testbed::Containerd,
    pub runtime: Runtime,
    pub registry: Registry,
    pub proxy: FaultProxy,
    pub lab: Arc<Lab>,
}

impl LoneRuntime {
    pub async fn start(version: Version, options: ContainerdOptions) -> Self {
        let lab = Lab::new().unwrap();
        let registry = Registry::start(&lab, "registry", RegistryOptions::default())
            .await
            .unwrap();
        let proxy = FaultProxy::start(&lab, Listen::Loopback, registry.address())
            .await
            .unwrap();
        let server = testbed::Containerd::start(&lab, "containerd", version, options)
            .await
            .unwrap();
        server.knows(&registry).unwrap();
        server.mirror(&proxy.host(), &proxy.url(), None).unwrap();
        let runtime = Runtime::new(endpoint(&server.socket()), TIMEOUT);
        Self {
            version,
            server,
            runtime,
            registry,
            proxy,
            lab,
        }
    }

    /// Pushes an image and returns its reference through the proxy.
    pub async fn push(&self, name: &str, image: &ImageSpec) -> String {
        self.registry.push(name, image).await.unwrap();
        self.proxy.reference(name)
    }

    pub async fn containerd(&self) -> Containerd {
        Containerd::ask(&self.runtime).await.unwrap().unwrap()
    }

    /// Our leases, without when they were made.
    pub async fn leases(&self) -> Vec<Lease> {
        let leases = self.containerd().await.leases().await.unwrap().into_iter();
        let without = |lease| Lease {
            created: None,
            ..lease
        };
        leases.map(without).collect()
    }

    pub async fn until_no_lease_is_left(&self) {
        let containerd = self.containerd().await;
        wait_for("no lease of ours", LONG, async || {
            let leases = containerd.leases().await?;
            anyhow::ensure!(leases.is_empty(), "{leases:?}");
            Ok(())
        })
        .await
        .unwrap();
    }

    /// The reason of a pull that fails, and its message.
    pub async fn reason(&self, reference: &str) -> (Reason, String) {
        let started = Instant::now();
        let pulled = tokio::time::timeout(LONG, self.runtime.pull(reference, None)).await;
        match pulled.expect("the pull ends") {
            Err(PullError::Failed { reason, message }) => {
                println!(
                    "{} {reference} {:?}: {reason}: {message}",
                    self.version,
                    started.elapsed()
                );
                (reason, message)
            }
            other => panic!("{} {reference}: {other:?}", self.version),
        }
    }
}

pub fn endpoint(socket: &Path) -> Endpoint {
    socket.to_str().unwrap().parse().unwrap()
}

/// Tells a story once with each version of containerd.
pub async fn on_every_version(story: impl AsyncFn(LoneRuntime)) {
    for version in Version::ALL {
        story(LoneRuntime::start(version, ContainerdOptions::default()).await).await;
    }
}
