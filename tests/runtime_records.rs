//! containerd's records of images: marks, pins and removals on three real containerds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod lone_runtime;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use imagecache_agent::runtime::{IdRecord, Lease, Marks};
use lone_runtime::{LoneRuntime, on_every_version};
use testbed::{ImageSpec, Version, wait_for};

/// How soon the CRI has to show what was done to a record.
const SHOWN: Duration = Duration::from_secs(1);

impl LoneRuntime {
    async fn record(&self, id: &str) -> IdRecord {
        let records = self.containerd().await.id_records().await.unwrap();
        let found = records.into_iter().find(|record| record.id == id);
        found.unwrap_or_else(|| panic!("{}: no record {id}", self.version))
    }

    /// Pushes an image under two tags. Returns these names, and the one by its digest.
    async fn push_twice(&self, image: &ImageSpec) -> [String; 3] {
        let first = self.push("lab/app:1", image).await;
        let second = self.push("lab/app:2", image).await;
        let (name, digest) = (self.proxy.reference("lab/app"), image.digest().unwrap());
        [first, second, format!("{name}@{digest}")]
    }

    async fn mark(&self, id: &str, reference: &str, removable: Option<bool>) -> bool {
        let containerd = self.containerd().await;
        let marked = containerd.mark_pulled(id, reference, removable);
        marked.await.unwrap()
    }

    async fn pulled(&self, id: &str) -> BTreeMap<String, bool> {
        self.record(id).await.marks.pulled
    }

    /// The labels as containerd's own client shows them.
    async fn labels(&self, name: &str) -> String {
        let filter = format!("name=={name:?}");
        let list = self.server.ctr(&["images", "ls", &filter]).await.unwrap();
        let line = list.lines().nth(1).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    }

    async fn until_pinned(&self, reference: &str, pinned: bool) {
        let started = Instant::now();
        wait_for("the pin to be shown", SHOWN, async || {
            let image = self.runtime.image(reference).await?;
            ensure!(
                image.as_ref().is_some_and(|image| image.pinned == pinned),
                "{image:?}"
            );
            Ok(())
        })
        .await
        .unwrap();
        println!(
            "{}: pinned={pinned} after {:?}",
            self.version,
            started.elapsed()
        );
    }

    /// What the content store holds on the disk.
    fn blobs(&self) -> Vec<String> {
        let folder = "io.containerd.content.v1.content/blobs/sha256";
        let entries = fs::read_dir(self.server.root().join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_mark_outlives_pulls_other_tags_and_restarts() {
    on_every_version(async |node| {
        let image = ImageSpec::small(1);
        let [first, second, digest] = node.push_twice(&image).await;
        let id = node.runtime.pull(&first, None).await.unwrap();
        assert_eq!(node.record(&id).await.marks, Marks::default());
        assert_eq!(node.record(&id).await.target, image.digest().unwrap());

        assert!(node.mark(&id, &first, Some(true)).await);
        let mut marks = BTreeMap::from([(first.clone(), true)]);
        assert_eq!(node.pulled(&id).await, marks);
        for reference in [&first, &digest, &second] {
            assert_eq!(node.runtime.pull(reference, None).await.unwrap(), id);
            assert_eq!(node.pulled(&id).await, marks, "after a pull of {reference}");
        }

        // One mark changes without the others.
        assert!(node.mark(&id, &digest, Some(true)).await);
        assert!(node.mark(&id, &second, Some(true)).await);
        assert!(node.mark(&id, &second, Some(false)).await);
        marks.insert(digest.clone(), true);
        marks.insert(second.clone(), false);
        assert_eq!(node.pulled(&id).await, marks);

        node.server.stop().await.unwrap();
        node.server.start_again().await.unwrap();
        assert_eq!(node.pulled(&id).await, marks, "after a restart");
        node.runtime.pull(&first, None).await.unwrap();
        assert_eq!(
            node.pulled(&id).await,
            marks,
            "after a pull after a restart"
        );

        // What is taken away is gone, and not there with an empty value.
        for reference in [&first, &digest, &second] {
            assert!(node.mark(&id, reference, None).await);
            marks.remove(reference);
            assert_eq!(node.pulled(&id).await, marks);
        }
        assert_eq!(node.labels(&id).await, "io.cri-containerd.image=managed");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_pin_is_shown_within_a_second_and_goes_with_its_marker() {
    on_every_version(async |node| {
        let reference = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let id = node.runtime.pull(&reference, None).await.unwrap();
        let marks = |pinned, pin_is_ours| Marks {
            pinned,
            pin_is_ours,
            ..Marks::default()
        };
        // The second of each changes nothing.
        for _ in 0..2 {
            assert!(containerd.pin(&id).await.unwrap());
            node.until_pinned(&reference, true).await;
            assert_eq!(node.record(&id).await.marks, marks(true, true));
        }
        node.runtime.pull(&reference, None).await.unwrap();
        node.until_pinned(&reference, true).await;
        for _ in 0..2 {
            assert!(containerd.unpin(&id).await.unwrap());
            node.until_pinned(&reference, false).await;
            assert_eq!(node.record(&id).await.marks, Marks::default());
        }
        assert_eq!(node.labels(&id).await, "io.cri-containerd.image=managed");

        let foreign = ["images", "label", &id, "io.cri-containerd.pinned=pinned"];
        node.server.ctr(&foreign).await.unwrap();
        node.until_pinned(&reference, true).await;
        let before = node.labels(&id).await;
        assert!(containerd.pin(&id).await.unwrap());
        assert!(containerd.unpin(&id).await.unwrap());
        assert_eq!(node.record(&id).await.marks, marks(true, false));
        assert_eq!(node.labels(&id).await, before);
        node.until_pinned(&reference, true).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_tags_record_goes_alone_and_the_last_name_takes_the_content_along() {
    on_every_version(async |node| {
        let image = ImageSpec::small(1);
        let [first, second, digest] = node.push_twice(&image).await;
        let containerd = node.containerd().await;
        let id = node.runtime.pull(&first, None).await.unwrap();
        node.runtime.pull(&second, None).await.unwrap();

        // The second time it is not there.
        for _ in 0..2 {
            containerd.delete_record(&first, false).await.unwrap();
        }
        wait_for("the tag to be gone", SHOWN, async || {
            let gone = node.runtime.image(&first).await?;
            ensure!(gone.is_none(), "{gone:?}");
            Ok(())
        })
        .await
        .unwrap();
        let left = node.runtime.image(&second).await.unwrap().unwrap();
        assert_eq!((&left.id, &left.tags), (&id, &vec![second.clone()]));

        for name in [&second, &digest] {
            containerd.delete_record(name, true).await.unwrap();
            assert_eq!(node.blobs().len(), 3, "{}: after {name}", node.version);
        }
        let started = Instant::now();
        containerd.delete_record(&id, true).await.unwrap();
        println!(
            "{}: the last name took {:?}",
            node.version,
            started.elapsed()
        );
        assert_eq!(node.blobs(), [""; 0], "{}", node.version);
        let snapshots = node.server.ctr(&["snapshots", "ls"]).await.unwrap();
        assert_eq!(snapshots.lines().count(), 1, "{snapshots}");
        assert_eq!(containerd.id_records().await.unwrap(), []);
        wait_for("no image", SHOWN, async || {
            let images = node.runtime.list().await?;
            ensure!(images.is_empty(), "{images:?}");
            Ok(())
        })
        .await
        .unwrap();
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn artifacts_that_share_an_id_keep_a_mark_each() {
    on_every_version(async |node| {
        let (one, two) = (ImageSpec::artifact(1), ImageSpec::artifact(2));
        let first = node.push("lab/one:1", &one).await;
        let second = node.push("lab/two:1", &two).await;
        let containerd = node.containerd().await;
        let id = node.runtime.pull(&first, None).await.unwrap();
        assert!(node.mark(&id, &first, Some(true)).await);
        assert_eq!(node.record(&id).await.target, one.digest().unwrap());
        assert_eq!(node.runtime.pull(&second, None).await.unwrap(), id);
        assert_eq!(node.record(&id).await.target, two.digest().unwrap());
        assert!(node.mark(&id, &second, Some(false)).await);
        let both = [(first.clone(), true), (second.clone(), false)];
        assert_eq!(node.pulled(&id).await, BTreeMap::from(both));

        // Neither loses its mark when the other is taken away with all its names.
        containerd.delete_record(&first, true).await.unwrap();
        let name = format!(
            "{}@{}",
            node.proxy.reference("lab/one"),
            one.digest().unwrap()
        );
        containerd.delete_record(&name, true).await.unwrap();
        assert!(node.mark(&id, &first, None).await);
        let one = BTreeMap::from([(second.clone(), false)]);
        assert_eq!(node.pulled(&id).await, one);
        let left = node.runtime.image(&second).await.unwrap().unwrap();
        assert_eq!(left.tags, [second]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_record_that_is_not_there_is_no_error_and_containerd_lives_on() {
    on_every_version(async |node| {
        let reference = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let id = format!("sha256:{}", "0".repeat(64));
        for removable in [Some(true), Some(false), None] {
            assert!(!node.mark(&id, &reference, removable).await);
        }
        assert!(!containerd.pin(&id).await.unwrap());
        assert!(!containerd.unpin(&id).await.unwrap());
        assert_eq!(containerd.clear_marks(&id).await.unwrap(), None);
        containerd.delete_record(&id, true).await.unwrap();
        assert_eq!(containerd.id_records().await.unwrap(), []);
        node.runtime.pull(&reference, None).await.unwrap();
    })
    .await;
}

/// The kubelet, a person or another pull may delete and write records at any moment.
#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_record_that_goes_while_it_is_marked_does_no_harm() {
    on_every_version(async |node| {
        let reference = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let id = node.runtime.pull(&reference, None).await.unwrap();
        let (mut there, mut gone) = (0, 0);
        let is_over = Cell::new(false);
        let churn = Box::pin(async {
            for _ in 0..20 {
                node.runtime.remove(&reference).await.unwrap();
                node.runtime.pull(&reference, None).await.unwrap();
            }
            is_over.set(true);
        });
        let mark = Box::pin(async {
            for removable in [true, false].into_iter().cycle() {
                let marked = containerd
                    .mark_pulled(&id, &reference, Some(removable))
                    .await;
                *(if marked.unwrap() {
                    &mut there
                } else {
                    &mut gone
                }) += 1;
                // Not in the middle of a call: what was asked for may come true later.
                if is_over.get() {
                    break;
                }
            }
        });
        tokio::join!(churn, mark);
        println!("{}: {there} times there, {gone} times gone", node.version);
        assert!(there > 0);
        assert!(node.mark(&id, &reference, Some(true)).await);
        assert_eq!(
            node.pulled(&id).await,
            BTreeMap::from([(reference.clone(), true)])
        );
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn all_marks_of_ours_are_cleared_at_once_and_no_others() {
    on_every_version(async |node| {
        let reference = node.push("lab/app:1", &ImageSpec::small(1)).await;
        let containerd = node.containerd().await;
        let id = node.runtime.pull(&reference, None).await.unwrap();
        let before = "io.cri-containerd.image=managed,other.example/a=b";
        node.server
            .ctr(&["images", "label", &id, "other.example/a=b"])
            .await
            .unwrap();
        node.server
            .ctr(&["images", "label", &id, "imagecache.dev/later=1"])
            .await
            .unwrap();
        containerd
            .mark_pulled(&id, &reference, Some(true))
            .await
            .unwrap();
        containerd.pin(&id).await.unwrap();
        let cleared = containerd.clear_marks(&id).await.unwrap().unwrap();
        assert_eq!(
            cleared,
            Marks {
                pulled: BTreeMap::from([(reference.clone(), true)]),
                pinned: true,
                pin_is_ours: true,
            }
        );
        assert_eq!(node.labels(&id).await, before);
        assert_eq!(
            containerd.clear_marks(&id).await.unwrap().unwrap(),
            Marks::default()
        );
        node.until_pinned(&reference, false).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_lease_has_the_snapshot_that_its_pull_unpacked_and_from_1_7_on_also_what_it_found() {
    on_every_version(async |node| {
        let containerd = node.containerd().await;
        let base = ImageSpec::small(1);
        let whole = base.clone().layer(2, 1_000);
        let mut chains = Vec::new();
        for (lease, name, image) in [
            ("unpacks", "lab/a:1", &whole),
            ("finds-the-base", "lab/b:1", &base),
            ("finds-all", "lab/c:1", &whole),
        ] {
            let reference = node.push(name, image).await;
            let lease = Lease {
                removable: false,
                created: None,
                replaces: None,
                id: lease.to_owned(),
                image: reference.clone(),
                expires: None,
            };
            containerd.create_lease(&lease).await.unwrap();
            let pulled = node.runtime.pull(&reference, Some(&lease.id)).await;
            pulled.unwrap();
            let described = node.runtime.describe(&reference).await.unwrap().unwrap();
            chains.push(described.chain_id.unwrap());
        }
        let (whole, base) = (&chains[0], &chains[1]);
        assert_eq!(whole, &chains[2]);
        let found = node.version != Version::V1_6;
        for (lease, chain, expected) in [
            ("unpacks", whole, true),
            ("unpacks", base, true),
            ("finds-the-base", whole, false),
            ("finds-the-base", base, found),
            ("finds-all", whole, found),
            ("not-there", whole, false),
        ] {
            let has = containerd.lease_has_snapshot(lease, chain).await.unwrap();
            assert_eq!(has, expected, "{}: {lease} {chain}", node.version);
        }
    })
    .await;
}
