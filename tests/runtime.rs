//! The CRI of three real containerds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod lone_runtime;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use imagecache_agent::runtime::{self, Containerd, LockError, PullError, Runtime, RuntimeError};
use lone_runtime::{LONG, TIMEOUT, endpoint, on_every_version};
use testbed::{
    ContainerdOptions, ImageSpec, Lab, Registry, RegistryOptions, Version, architecture,
    other_architecture, wait_for,
};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn every_field_that_is_read_comes_back_filled() {
    for version in Version::ALL {
        let lab = Lab::new().unwrap();
        let registry = Registry::start(&lab, "registry", RegistryOptions::default())
            .await
            .unwrap();
        let pause = registry.reference("lab/pause:1");
        let digest = registry
            .push("lab/pause:1", &ImageSpec::busybox().unwrap())
            .await
            .unwrap();
        let options = ContainerdOptions {
            sandbox_image: Some(pause.clone()),
            ..ContainerdOptions::default()
        };
        let server = testbed::Containerd::start(&lab, "containerd", version, options)
            .await
            .unwrap();
        server.knows(&registry).unwrap();
        let runtime = Runtime::new(endpoint(&server.socket()), TIMEOUT);

        let who = runtime.version().await.unwrap();
        assert_eq!(who.name, "containerd");
        assert!(who.version.contains(&version.to_string()), "{who:?}");
        let conditions = runtime.status().await.unwrap();
        assert!(
            conditions
                .iter()
                .any(|c| c.kind == "RuntimeReady" && c.holds),
            "{conditions:?}"
        );
        let containerd = Containerd::ask(&runtime).await.unwrap().unwrap();
        assert!(
            containerd.version().contains(&version.to_string()),
            "{containerd:?}"
        );

        assert_eq!(runtime.image(&pause).await.unwrap(), None);
        assert_eq!(runtime.platform(&pause).await.unwrap(), None);
        let id = runtime.pull(&pause, None).await.unwrap();
        let image = runtime.image(&pause).await.unwrap().unwrap();
        assert_eq!(image.id, id);
        assert_eq!(image.tags, std::slice::from_ref(&pause));
        assert_eq!(
            image.digests,
            [registry.reference(&format!("lab/pause@{digest}"))]
        );
        assert!(image.bytes > 100_000, "{image:?}");
        // The sandbox image is pinned by the runtime itself.
        assert!(image.pinned, "{version}: {image:?}");
        assert_eq!(runtime.list().await.unwrap(), [image]);
        let platform = runtime.platform(&pause).await.unwrap().unwrap();
        assert_eq!(
            (platform.os.as_str(), platform.architecture.as_str()),
            ("linux", architecture())
        );

        let filesystems = runtime.filesystems().await.unwrap();
        assert!(
            Path::new(&filesystems[0].path).starts_with(testbed::ROOT),
            "{filesystems:?}"
        );
        wait_for("the runtime to count its images", LONG, async || {
            ensure!(runtime.filesystems().await?[0].used_bytes > 0, "0 bytes");
            Ok(())
        })
        .await
        .unwrap();

        run_a_container(&lab, &server, &pause).await;
        let running = runtime.containers().await.unwrap();
        assert_eq!(running.len(), 1, "{running:?}");
        assert!(
            !running[0].id.is_empty() && !running[0].exited,
            "{running:?}"
        );
        assert_eq!((&running[0].image, &running[0].image_id), (&pause, &id));
        server
            .crictl(&["stop", "--timeout", "0", &running[0].id])
            .await
            .unwrap();
        assert!(runtime.containers().await.unwrap()[0].exited);
        server.crictl(&["rmp", "--all", "--force"]).await.unwrap();

        runtime.remove(&pause).await.unwrap();
        assert_eq!(runtime.list().await.unwrap(), []);
        runtime.remove(&pause).await.unwrap();

        let held = runtime::lock(runtime.endpoint()).unwrap();
        assert!(matches!(
            runtime::lock(runtime.endpoint()),
            Err(LockError::Taken { .. })
        ));
        drop(held);
    }
}

async fn run_a_container(lab: &Lab, server: &testbed::Containerd, image: &str) {
    let folder = lab.folder("pod").unwrap();
    let (pod, container) = (folder.join("pod.json"), folder.join("container.json"));
    // 2: the node's own network and processes.
    let own =
        serde_json::json!({"security_context": {"namespace_options": {"network": 2, "pid": 1}}});
    let pod_config = serde_json::json!({
        "metadata": {"name": "pod", "namespace": "default", "uid": "1", "attempt": 0}, "linux": own,
    });
    let container_config = serde_json::json!({
        "metadata": {"name": "container", "attempt": 0}, "image": {"image": image}, "linux": own,
    });
    std::fs::write(&pod, pod_config.to_string()).unwrap();
    std::fs::write(&container, container_config.to_string()).unwrap();
    let args = [
        "run",
        "--no-pull",
        container.to_str().unwrap(),
        pod.to_str().unwrap(),
    ];
    server.crictl(&args).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_single_manifest_of_another_architecture_pulls_and_says_so_afterwards() {
    on_every_version(async |node| {
        let image = ImageSpec::small(1).architecture(other_architecture());
        let reference = node.push("lab/wrong:1", &image).await;
        node.runtime.pull(&reference, None).await.unwrap();
        let platform = node.runtime.platform(&reference).await.unwrap().unwrap();
        assert_eq!(platform.architecture, other_architecture());
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_pull_that_is_dropped_downloads_nothing_more() {
    on_every_version(async |node| {
        const SIZE: usize = 8 << 20;
        let reference = node
            .push("lab/large:1", &ImageSpec::small(1).layer(2, SIZE))
            .await;
        node.proxy.limit(Some(500_000));
        let sent = || {
            node.proxy
                .requests()
                .iter()
                .map(|request| request.bytes)
                .sum::<u64>()
        };

        let begun = wait_for("the download to begin", LONG, async || {
            ensure!(sent() > 200_000, "{} bytes", sent());
            Ok(())
        });
        tokio::select! {
            pulled = node.runtime.pull(&reference, None) => panic!("{pulled:?}"),
            begun = begun => begun.unwrap(),
        }
        // At this rate something would come every 33 ms.
        let mut last = (sent(), Instant::now());
        wait_for("a second without a byte", LONG, async || {
            if sent() != last.0 {
                last = (sent(), Instant::now());
            }
            ensure!(
                last.1.elapsed() > Duration::from_secs(1),
                "{} bytes",
                last.0
            );
            Ok(())
        })
        .await
        .unwrap();
        assert!(last.0 < SIZE as u64 / 2, "{} bytes", last.0);
        assert_eq!(node.runtime.image(&reference).await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_restart_is_seen_as_no_runtime_and_as_nothing_else() {
    on_every_version(async |node| {
        let reference = node
            .push("lab/large:1", &ImageSpec::small(1).layer(2, 8 << 20))
            .await;
        node.proxy.limit(Some(500_000));
        for kill in [true, false] {
            node.proxy.forget();
            let pull = tokio::spawn({
                let (runtime, reference) = (node.runtime.clone(), reference.clone());
                async move { runtime.pull(&reference, None).await }
            });
            wait_for("the download to begin", LONG, async || {
                ensure!(
                    node.proxy.requests().iter().any(|r| r.bytes > 100_000),
                    "{:?}",
                    node.proxy.requests()
                );
                Ok(())
            })
            .await
            .unwrap();
            if kill {
                node.server.kill9().unwrap();
            } else {
                node.server.stop().await.unwrap();
            }
            let error = pull.await.unwrap().unwrap_err();
            assert!(
                matches!(error, PullError::Unavailable(_)),
                "{}: {error:?}",
                node.version
            );

            let mut seen = BTreeSet::new();
            let answered = wait_for("an answer", LONG, async || {
                match node.runtime.list().await {
                    Ok(images) => Ok(images),
                    Err(RuntimeError::Unavailable(why)) => {
                        seen.insert(why.to_string());
                        Err(why.into())
                    }
                    Err(failed) => panic!("{}: {failed:?}", node.version),
                }
            });
            let (answered, started) = tokio::join!(answered, node.server.start_again());
            started.unwrap();
            answered.unwrap();
            println!("{}: {error}\n{seen:#?}", node.version);
        }
    })
    .await;
}
