//! Pulls that fail on three real containerds, and the reasons that they fail for.
//!
//! `Verification` is provoked on 2.4 alone: the versions before it ask no image verifier when a pull comes through the CRI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod lone_runtime;

use std::fs;

use imagecache_agent::api::reason::Reason;
use lone_runtime::{LONG, LoneRuntime, on_every_version};
use testbed::{
    ContainerdOptions, Fault, ImageSpec, Listen, Registry, RegistryOptions, Rule, Tls, Version,
    gzip, other_architecture, wait_for,
};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn each_cause_of_a_failed_pull_has_its_reason() {
    on_every_version(async |node| {
        let good = node.push("lab/good:1", &ImageSpec::small(1)).await;

        let missing = node.proxy.reference("lab/good:missing");
        assert_eq!(node.reason(&missing).await.0, Reason::NotFound);
        let missing = node.proxy.reference("lab/nothing:1");
        assert_eq!(node.reason(&missing).await.0, Reason::NotFound);
        let other = ImageSpec::index(vec![ImageSpec::small(2).architecture(other_architecture())]);
        let other = node.push("lab/other:1", &other).await;
        assert_eq!(node.reason(&other).await.0, Reason::NoMatchingPlatform);
        let unknown_host = node.reason("no-such-host.invalid/lab/denied:1").await;
        assert_eq!(unknown_host.0, Reason::RegistryUnavailable);

        // An image of its own for each: what an attempt left behind must not help the next one.
        for (seed, (path, fault, reason)) in (10..).zip([
            ("/manifests/", Fault::status(429), Reason::RateLimited),
            ("/manifests/", Fault::retry_after(60), Reason::RateLimited),
            ("/blobs/", Fault::status(429), Reason::RateLimited),
            ("/manifests/", Fault::status(401), Reason::Unauthorized),
            ("/manifests/", Fault::status(403), Reason::Unauthorized),
            ("/blobs/", Fault::status(403), Reason::Unauthorized),
            ("/manifests/", Fault::status(404), Reason::NotFound),
            ("/blobs/", Fault::status(404), Reason::NotFound),
            (
                "/manifests/",
                Fault::status(500),
                Reason::RegistryUnavailable,
            ),
            (
                "/manifests/",
                Fault::status(502),
                Reason::RegistryUnavailable,
            ),
            ("/blobs/", Fault::status(503), Reason::RegistryUnavailable),
            ("/manifests/", Fault::Reset, Reason::RegistryUnavailable),
            ("", Fault::Html, Reason::Corrupt),
            ("/blobs/", Fault::Html, Reason::Corrupt),
            ("/blobs/", Fault::WrongBytes, Reason::Corrupt),
            ("/manifests/", Fault::WrongBytes, Reason::Corrupt),
        ]) {
            let fresh = format!("lab/{}:{seed}", reason.as_str().to_lowercase());
            let fresh = node.push(&fresh, &ImageSpec::small(seed)).await;
            node.proxy.add(Rule::new(fault.clone()).path(path));
            let (found, message) = node.reason(&fresh).await;
            assert_eq!(
                found, reason,
                "{}: {path} {fault:?}: {message}",
                node.version
            );
            assert!(!message.contains(['\n', '?']), "{message}");
            node.proxy.clear();
        }
        // All of this has left the runtime as it was.
        node.runtime.pull(&good, None).await.unwrap();
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_name_that_the_runtime_does_not_take_is_an_invalid_reference() {
    on_every_version(async |node| {
        let upper = node.proxy.reference("lab/Upper:1");
        let long = node.proxy.reference(&"a/".repeat(130));
        for name in [upper, format!("{long}a:1"), "lab/a:1:2".to_owned()] {
            assert_eq!(node.reason(&name).await.0, Reason::InvalidReference);
        }
        // A name for others, as for the kubelet: the repository `web` of the registry `Team`.
        let (reason, message) = node.reason("Team/web:1").await;
        if node.version == Version::V1_6 {
            assert_eq!(reason, Reason::InvalidReference, "{message}");
        } else {
            assert_eq!(reason, Reason::RegistryUnavailable, "{message}");
        }
        assert!(node.proxy.requests().is_empty());
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_image_that_a_verifier_refuses_has_its_reason_and_the_verifiers_words() {
    let node = LoneRuntime::start(Version::V2_4, ContainerdOptions::default()).await;
    let image = node.push("lab/unsigned:1", &ImageSpec::small(1)).await;
    let verifier = "#!/bin/sh\necho nobody signed it\nexit 1\n";
    node.server.verify_images_with(Some(verifier)).unwrap();
    let (reason, message) = node.reason(&image).await;
    assert_eq!(reason, Reason::Verification, "{message}");
    assert!(message.contains("nobody signed it"), "{message}");
    node.server.verify_images_with(None).unwrap();
    node.runtime.pull(&image, None).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_layer_that_is_none_is_corrupt_and_one_that_the_node_cannot_unpack_is_not() {
    on_every_version(async |node| {
        // An archive without a file.
        let whole = gzip(&[0; 4096]).unwrap();
        let mut spoilt = whole.clone();
        spoilt[whole.len() - 8] ^= 1;
        for (name, layer) in [
            ("lab/no-tar:1", vec![7; 4096]),
            ("lab/no-tar:2", gzip(&[7; 4096]).unwrap()),
            ("lab/too-short:1", vec![7; 100]),
            ("lab/too-short:2", whole[..2000].to_vec()),
            ("lab/checksum:1", spoilt),
        ] {
            let image = node.push(name, &ImageSpec::scratch().bytes(layer)).await;
            let (reason, message) = node.reason(&image).await;
            assert_eq!(reason, Reason::Corrupt, "{}: {message}", node.version);
        }

        // No file system takes this name.
        let name = "n".repeat(300);
        let image = ImageSpec::scratch().files(&[(name.as_str(), 0o644, b"x")]);
        let image = node.push("lab/long:1", &image).await;
        assert_eq!(node.reason(&image).await.0, Reason::PullFailed);

        // The folder in which layers are unpacked is gone.
        let mounts = node.server.root().join("tmpmounts");
        let aside = mounts.with_extension("aside");
        fs::rename(&mounts, &aside).unwrap();
        let image = node.push("lab/good:1", &ImageSpec::small(3)).await;
        let (reason, message) = node.reason(&image).await;
        assert_eq!(reason, Reason::PullFailed, "{message}");
        assert!(message.contains("cannot unpack"), "{message}");
        fs::rename(&aside, &mounts).unwrap();
        node.runtime.pull(&image, None).await.unwrap();
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn registries_that_want_something_else_have_their_reasons() {
    on_every_version(async |mut node| {
        // Not on the loopback address: there containerd does not look at certificates.
        let start = async |name: &str, options: RegistryOptions| {
            let options = RegistryOptions {
                listen: Listen::Bridge,
                ..options
            };
            let registry = Registry::start(&node.lab, name, options).await.unwrap();
            registry
                .push("lab/app:1", &ImageSpec::small(1))
                .await
                .unwrap();
            registry
        };
        let user = Some(("alice".to_owned(), "secret".to_owned()));
        let password = start(
            "password",
            RegistryOptions {
                user: user.clone(),
                ..RegistryOptions::default()
            },
        )
        .await;
        let token = start(
            "token",
            RegistryOptions {
                user,
                tokens: true,
                ..RegistryOptions::default()
            },
        )
        .await;
        let unknown = start(
            "unknown",
            RegistryOptions {
                tls: Tls::SelfSigned,
                ..RegistryOptions::default()
            },
        )
        .await;
        let trusted = start(
            "trusted",
            RegistryOptions {
                tls: Tls::Trusted,
                ..RegistryOptions::default()
            },
        )
        .await;
        let plain = start("plain", RegistryOptions::default()).await;
        for registry in [&password, &token, &unknown, &trusted] {
            node.server.knows(registry).unwrap();
        }
        let app = |registry: &Registry| registry.reference("lab/app:1");

        assert_eq!(node.reason(&app(&password)).await.0, Reason::Unauthorized);
        assert_eq!(node.reason(&app(&token)).await.0, Reason::Unauthorized);
        let (reason, message) = node.reason(&app(&unknown)).await;
        assert_eq!(reason, Reason::Tls);
        assert!(message.contains("not trusted"), "{message}");
        node.runtime.pull(&app(&trusted), None).await.unwrap();
        // The runtime takes a registry that it does not know for one with TLS.
        assert_eq!(node.reason(&app(&plain)).await.0, Reason::Tls);
        let wrong = format!("http://{}", trusted.host());
        node.server.mirror(&trusted.host(), &wrong, None).unwrap();
        assert_eq!(node.reason(&app(&trusted)).await.0, Reason::Tls);

        node.registry.stop().await.unwrap();
        let closed = node.registry.reference("lab/app:1");
        assert_eq!(node.reason(&closed).await.0, Reason::RegistryUnavailable);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_disk_that_fills_up_is_named_and_the_runtime_recovers() {
    for version in Version::ALL {
        let options = ContainerdOptions {
            image_filesystem: Some(16 << 20),
            ..ContainerdOptions::default()
        };
        let node = LoneRuntime::start(version, options).await;
        let small = node.push("lab/small:1", &ImageSpec::small(1)).await;
        // The first fills the content store, the second fits there and fills it when it is unpacked.
        for (name, size) in [("lab/large:1", 40 << 20), ("lab/half:1", 10 << 20)] {
            let large = node.push(name, &ImageSpec::small(2).layer(3, size)).await;
            assert_eq!(node.reason(&large).await.0, Reason::NoSpace);
            wait_for("the runtime to have thrown it away", LONG, async || {
                Ok(node.runtime.pull(&small, None).await?)
            })
            .await
            .unwrap();
        }
    }
}
