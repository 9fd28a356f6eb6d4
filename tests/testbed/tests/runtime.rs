//! Registries, the fault proxy and the three versions of containerd, for real.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testbed::{
    Containerd, ContainerdOptions, Fault, FaultProxy, ImageSpec, Lab, Listen, Registry,
    RegistryOptions, Rule, Tls, Version, other_architecture, wait_for,
};

async fn containerd(lab: &Arc<Lab>, version: Version) -> Containerd {
    Containerd::start(
        lab,
        &format!("containerd-{version}"),
        version,
        ContainerdOptions::default(),
    )
    .await
    .unwrap()
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn each_version_pulls_lists_and_removes() {
    let lab = Lab::new().unwrap();
    let registry = Registry::start(&lab, "registry", RegistryOptions::default())
        .await
        .unwrap();
    let digest = registry
        .push("team/app:1", &ImageSpec::small(1).layer(2, 100_000))
        .await
        .unwrap();
    for version in Version::ALL {
        let runtime = containerd(&lab, version).await;
        runtime.knows(&registry).unwrap();
        runtime.mirror("docker.io", &registry.url(), None).unwrap();

        let mark = registry.mark();
        runtime
            .pull(&registry.reference("team/app:1"))
            .await
            .unwrap();
        let images = runtime.images().await.unwrap();
        assert_eq!(images.len(), 1, "{version}: {images:?}");
        assert_eq!(
            images[0].digests,
            [registry.reference(&format!("team/app@{digest}"))]
        );
        let requests = registry.requests(mark);
        assert!(
            requests.iter().all(|r| r.status < 400),
            "{version}: {requests:?}"
        );
        assert!(
            requests
                .iter()
                .any(|r| r.method == "GET" && r.path.contains("/blobs/")),
            "{version}: {requests:?}"
        );

        runtime.pull("team/app:1").await.unwrap();
        assert!(runtime.has("docker.io/team/app:1").await.unwrap());

        // Each request once: a file that names the registry twice would be seen here.
        let mark = registry.mark();
        let error = runtime
            .pull(&registry.reference("team/none:1"))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("not found"),
            "{version}: {error}"
        );
        let asked = registry.requests(mark);
        assert!(asked.len() <= 2, "{version}: {asked:?}");

        runtime.kill9().unwrap();
        assert!(runtime.images().await.is_err());
        runtime.start_again().await.unwrap();
        assert!(runtime.has("docker.io/team/app:1").await.unwrap());
        runtime.remove("team/app:1").await.unwrap();
        assert_eq!(runtime.images().await.unwrap(), []);
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn registries_ask_for_passwords_and_show_certificates() {
    let lab = Lab::new().unwrap();
    let runtime = containerd(&lab, Version::V2_4).await;
    let user = Some(("alice".to_owned(), "secret".to_owned()));
    let password = RegistryOptions {
        user,
        ..Default::default()
    };
    let token = RegistryOptions {
        tokens: true,
        ..password.clone()
    };
    let private = Registry::start(&lab, "private", password).await.unwrap();
    let token = Registry::start(&lab, "token", token).await.unwrap();
    let trusted = Registry::start(
        &lab,
        "trusted",
        RegistryOptions {
            tls: Tls::Trusted,
            ..Default::default()
        },
    )
    .await
    .unwrap();
    let unknown = Registry::start(
        &lab,
        "unknown",
        RegistryOptions {
            tls: Tls::SelfSigned,
            ..Default::default()
        },
    )
    .await
    .unwrap();
    for registry in [&private, &token, &trusted, &unknown] {
        registry.push("app:1", &ImageSpec::small(7)).await.unwrap();
        runtime.knows(registry).unwrap();
    }
    let pull = async |registry: &Registry| {
        runtime
            .pull(&registry.reference("app:1"))
            .await
            .map_err(|e| e.to_string())
    };
    assert!(
        pull(&private)
            .await
            .unwrap_err()
            .contains("no basic auth credentials")
    );
    runtime
        .crictl(&[
            "pull",
            "--creds",
            "alice:secret",
            &private.reference("app:1"),
        ])
        .await
        .unwrap();
    assert!(
        pull(&token)
            .await
            .unwrap_err()
            .contains("failed to fetch anonymous token")
    );
    runtime
        .crictl(&["pull", "--creds", "alice:secret", &token.reference("app:1")])
        .await
        .unwrap();
    assert_eq!(pull(&trusted).await, Ok(()));
    assert!(
        pull(&unknown)
            .await
            .unwrap_err()
            .contains("certificate signed by unknown authority")
    );
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_registry_that_stops_comes_back_with_its_images() {
    let lab = Lab::new().unwrap();
    let runtime = containerd(&lab, Version::V1_7).await;
    let mut registry = Registry::start(&lab, "registry", RegistryOptions::default())
        .await
        .unwrap();
    runtime.knows(&registry).unwrap();
    registry.push("app:1", &ImageSpec::small(1)).await.unwrap();
    let other = ImageSpec::index(vec![ImageSpec::small(1).architecture(other_architecture())]);
    registry.push("other:1", &other).await.unwrap();
    registry.stop().await.unwrap();
    let refused = runtime
        .pull(&registry.reference("app:1"))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("connection refused"),
        "{refused}"
    );
    registry.start_again().await.unwrap();
    runtime.pull(&registry.reference("app:1")).await.unwrap();
    let no_platform = runtime
        .pull(&registry.reference("other:1"))
        .await
        .unwrap_err();
    assert!(
        no_platform.to_string().contains("no match for platform"),
        "{no_platform}"
    );
    registry.delete("app:1").await.unwrap();
    let gone = runtime
        .pull(&registry.reference("app:1"))
        .await
        .unwrap_err();
    assert!(gone.to_string().contains("not found"), "{gone}");
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_proxy_fails_as_it_is_told() {
    let lab = Lab::new().unwrap();
    let registry = Registry::start(&lab, "registry", RegistryOptions::default())
        .await
        .unwrap();
    let proxy = FaultProxy::start(&lab, Listen::Loopback, registry.address())
        .await
        .unwrap();
    let runtime = containerd(&lab, Version::V2_4).await;
    runtime.mirror(&proxy.host(), &proxy.url(), None).unwrap();
    registry
        .push("app:1", &ImageSpec::small(1).layer(2, 400_000))
        .await
        .unwrap();
    let pull = async || {
        runtime
            .pull(&proxy.reference("app:1"))
            .await
            .map_err(|e| e.to_string())
    };
    let fails = async |fault: Fault, path: &str, text: &str| {
        proxy.add(Rule::new(fault).path(path));
        let error = pull().await.unwrap_err();
        assert!(error.contains(text), "{text}: {error}");
        proxy.clear();
    };
    fails(Fault::status(403), "/manifests/", "403 Forbidden").await;
    fails(
        Fault::retry_after(1),
        "/manifests/",
        "429 Too Many Requests",
    )
    .await;
    fails(Fault::Reset, "/manifests/", "connection reset by peer").await;
    fails(Fault::Html, "/manifests/", "text/html").await;
    fails(Fault::WrongBytes, "/blobs/", "unexpected commit digest").await;

    // What a corrupt download left is collected first.
    wait_for(
        "a pull after wrong bytes",
        Duration::from_secs(10),
        async || pull().await.map_err(anyhow::Error::msg),
    )
    .await
    .unwrap();
    runtime.remove(&proxy.reference("app:1")).await.unwrap();

    proxy.forget();
    proxy.add(
        Rule::new(Fault::CutAt(100_000))
            .path("/blobs/")
            .method("GET")
            .times(8),
    );
    pull().await.unwrap();
    let cut: Vec<_> = proxy
        .requests()
        .into_iter()
        .filter(|r| r.range.is_some())
        .collect();
    assert!(
        !cut.is_empty(),
        "no request went on where the one before was cut: {:#?}",
        proxy.requests()
    );
    proxy.clear();
    runtime.remove(&proxy.reference("app:1")).await.unwrap();

    proxy.add(Rule::new(Fault::Throttle(200_000)).path("/blobs/"));
    let start = Instant::now();
    pull().await.unwrap();
    assert!(
        start.elapsed() > Duration::from_millis(1_800),
        "{:?}",
        start.elapsed()
    );
    proxy.clear();
    runtime.remove(&proxy.reference("app:1")).await.unwrap();

    proxy.forget();
    proxy.add(Rule::new(Fault::StallAt(50_000)).path("/blobs/"));
    let (pulled, ()) = tokio::join!(pull(), async {
        let stalled = async || {
            let bytes: Vec<_> = proxy.requests().iter().map(|r| r.bytes).collect();
            anyhow::ensure!(bytes.contains(&50_000), "{bytes:?}");
            Ok(())
        };
        wait_for("a stall", Duration::from_secs(5), stalled)
            .await
            .unwrap();
        proxy.clear();
    });
    pulled.unwrap();
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_small_image_filesystem_fills_up() {
    let lab = Lab::new().unwrap();
    let registry = Registry::start(&lab, "registry", RegistryOptions::default())
        .await
        .unwrap();
    registry
        .push("large:1", &ImageSpec::scratch().layer(1, 24 << 20))
        .await
        .unwrap();
    let options = ContainerdOptions {
        image_filesystem: Some(16 << 20),
        ..Default::default()
    };
    let runtime = Containerd::start(&lab, "small", Version::V2_4, options)
        .await
        .unwrap();
    runtime.knows(&registry).unwrap();
    let error = runtime
        .pull(&registry.reference("large:1"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("no space left on device"),
        "{error}"
    );
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn nothing_stays() {
    let lab = Lab::new().unwrap();
    let dir: PathBuf = lab.dir().to_owned();
    let runtime = containerd(&lab, Version::V1_6).await;
    lab.network().unwrap();
    drop((runtime, lab));
    assert!(!dir.exists());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()));
}
