//! Events, leases and progress: what three real containerds offer beside the CRI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod lone_runtime;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::ensure;
use imagecache_agent::runtime::{
    Containerd, ImageChange, Lease, Progress, PullError, PullProgress, RuntimeError, Unavailable,
};
use jiff::{SignedDuration, Timestamp};
use lone_runtime::{LONG, on_every_version};
use testbed::{ImageSpec, other_architecture, wait_for};

fn lease(id: &str, image: &str) -> Lease {
    let expires = Timestamp::now() + SignedDuration::from_hours(7 * 24);
    Lease {
        id: id.to_owned(),
        image: image.to_owned(),
        expires: Some(expires),
        removable: false,
        created: None,
        replaces: None,
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn changes_are_told_within_a_second_and_a_stream_that_ends_can_be_opened_again() {
    on_every_version(async |node| {
        let reference = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let mut events = containerd.image_events().await.unwrap();
        for _ in 0..2 {
            for change in [ImageChange::Created, ImageChange::Deleted] {
                let started = Instant::now();
                if change == ImageChange::Created {
                    node.runtime.pull(&reference, None).await.unwrap();
                } else {
                    node.server.remove(&reference).await.unwrap();
                }
                let told = tokio::time::timeout(Duration::from_secs(1), async {
                    loop {
                        let event = events.next().await.unwrap();
                        if event.name == reference && event.change == change {
                            return started.elapsed();
                        }
                    }
                });
                let told = told.await.expect("an event within a second");
                println!(
                    "{} {change:?} was told {told:?} after it was asked for",
                    node.version
                );
            }

            node.server.stop().await.unwrap();
            let ended = loop {
                match events.next().await {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(ended, RuntimeError::Unavailable(_)), "{ended:?}");
            let again = containerd.image_events().await.unwrap_err();
            assert!(
                matches!(
                    again,
                    RuntimeError::Unavailable(Unavailable::NoSocket { .. })
                ),
                "{again:?}"
            );
            node.server.start_again().await.unwrap();
            events = containerd.image_events().await.unwrap();
        }
    })
    .await;
}

/// Whatever comes first, the subscription or the change: none is lost.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn no_change_after_a_subscription_is_missed() {
    on_every_version(async |node| {
        let reference = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            node.runtime.pull(&reference, None).await.unwrap();
            let started = Instant::now();
            let mut events = containerd.image_events().await.unwrap();
            slowest = slowest.max(started.elapsed());
            node.runtime.remove(&reference).await.unwrap();
            let deleted =
                async { while events.next().await.unwrap().change != ImageChange::Deleted {} };
            tokio::time::timeout(Duration::from_secs(1), deleted)
                .await
                .expect("the removal is told");
        }
        println!(
            "{}: the slowest of 50 subscriptions took {slowest:?}",
            node.version
        );
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_pull_is_followed_in_bytes_up_to_the_size_of_its_image() {
    on_every_version(async |node| {
        // Six layers: more than are downloaded at once. One is on the node already.
        let shared = node
            .push("lab/shared:1", &ImageSpec::scratch().layer(2, 1 << 20))
            .await;
        node.runtime.pull(&shared, None).await.unwrap();
        let image = (1..=6).fold(ImageSpec::scratch(), |image, seed| {
            image.layer(seed, 1 << 20)
        });
        let image = ImageSpec::index(vec![
            image,
            ImageSpec::small(9).architecture(other_architecture()),
        ]);
        let reference = node.push("lab/large:1", &image).await;

        let containerd = node.containerd().await;
        let ours = lease("imagecache-test", &reference);
        containerd.create_lease(&ours).await.unwrap();
        // Again is no error.
        containerd.create_lease(&ours).await.unwrap();
        assert_eq!(node.leases().await, std::slice::from_ref(&ours));

        let mut progress = containerd.progress(&ours.id);
        assert_eq!(look(&containerd, &mut progress).await.total_bytes, 0);
        node.proxy.limit(Some(2_000_000));
        let (mut seen, mut totals) = (Vec::new(), BTreeSet::new());
        let follow = async {
            loop {
                let now = look(&containerd, &mut progress).await;
                totals.insert(now.total_bytes);
                seen.push(now);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            pulled = node.runtime.pull(&reference, Some(&ours.id)) => drop(pulled.unwrap()),
            () = follow => {}
        }
        let end = look(&containerd, &mut progress).await;
        let bytes = node.runtime.image(&reference).await.unwrap().unwrap().bytes;
        println!(
            "{}: {} looks, totals {totals:?}, end {end:?}",
            node.version,
            seen.len()
        );
        assert_eq!((end.done_bytes, end.total_bytes), (bytes, bytes));
        assert!(seen.is_sorted_by_key(|now| now.done_bytes), "{seen:?}");
        assert!(seen.is_sorted_by_key(|now| now.total_bytes), "{seen:?}");
        // The whole was known while most of it was still to come.
        let early = seen.iter().find(|now| now.total_bytes == bytes).unwrap();
        assert!(early.done_bytes < bytes / 2, "{early:?}");
        let steps: BTreeSet<u64> = seen.iter().map(|now| now.done_bytes).collect();
        assert!(steps.len() >= 4, "{steps:?}");

        containerd.delete_lease(&ours.id).await.unwrap();
        containerd.delete_lease(&ours.id).await.unwrap();
        assert_eq!(containerd.leases().await.unwrap(), []);
        assert!(node.runtime.image(&reference).await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_lease_keeps_what_a_dropped_pull_has_downloaded_until_it_is_discarded() {
    on_every_version(async |node| {
        let reference = node
            .push("lab/large:1", &ImageSpec::small(1).layer(2, 8 << 20))
            .await;
        let containerd = node.containerd().await;
        let mut ours = lease("imagecache-test", &reference);
        assert_eq!(
            node.runtime.pull(&reference, Some(&ours.id)).await,
            Err(PullError::NoLease)
        );
        containerd.create_lease(&ours).await.unwrap();

        node.proxy.limit(Some(3_000_000));
        let mut progress = containerd.progress(&ours.id);
        let begun = wait_for("some of it", LONG, async || {
            let now = look(&containerd, &mut progress).await;
            ensure!(now.done_bytes > 2_000_000, "{now:?}");
            Ok(())
        });
        tokio::select! {
            pulled = node.runtime.pull(&reference, Some(&ours.id)) => panic!("{pulled:?}"),
            begun = begun => begun.unwrap(),
        }
        let kept = look(&containerd, &mut containerd.progress(&ours.id)).await;
        assert!(kept.done_bytes > 2_000_000, "{kept:?}");

        // A new lease takes over all that the old one keeps.
        let old = std::mem::replace(&mut ours.id, "imagecache-test-b".to_owned()).clone();
        containerd.renew_lease(&old, &ours).await.unwrap();
        assert_eq!(node.leases().await, [ours.clone()]);
        let moved = look(&containerd, &mut containerd.progress(&ours.id)).await;
        // A download that is cancelled may end a little further than it was seen.
        assert!(moved.done_bytes >= kept.done_bytes, "{moved:?}, {kept:?}");
        assert_eq!(moved.total_bytes, kept.total_bytes);

        node.proxy.limit(None);
        node.proxy.forget();
        node.runtime.pull(&reference, Some(&ours.id)).await.unwrap();
        let again: u64 = node
            .proxy
            .requests()
            .iter()
            .map(|request| request.bytes)
            .sum();
        println!("{}: {kept:?} kept, {again} bytes more", node.version);
        assert!(again < (8 << 20) - 1_500_000, "{again} bytes");

        containerd.discard_lease(&ours.id).await.unwrap();
        let gone = look(&containerd, &mut containerd.progress(&ours.id)).await;
        assert_eq!(gone, Progress::default());
        assert_eq!(
            containerd.ingests().await.unwrap(),
            [],
            "nothing of it is left"
        );
    })
    .await;
}

async fn look(containerd: &Containerd, progress: &mut PullProgress) -> Progress {
    let ingests = containerd.ingests().await.unwrap();
    progress.look(&ingests).await.unwrap().progress
}
