//! `imagecache-agent cleanup`: what the agent has left in three real containerds, and in a runtime that is none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod fake_cri;
mod lone_runtime;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use fake_cri::FakeCri;
use imagecache_agent::runtime::{self, Endpoint, Lease, Marks};
use lone_runtime::{LONG, on_every_version};
use rustix::process::{Pid, Signal, kill_process};
use testbed::{ImageSpec, wait_for};

const NOTHING: &str = "pins removed: 0\nmarks removed: 0\nleases removed: 0\n";

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imagecache-agent"));
    command
        .arg("cleanup")
        .args(arguments)
        .env_remove("IMAGECACHE_RUNTIME_ENDPOINT");
    command
}

/// Exit code, standard output, standard error.
async fn cleanup(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::from(command(arguments));
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    (output.status.code(), out, err)
}

fn at(endpoint: &Endpoint) -> String {
    format!("--runtime-endpoint={endpoint}")
}

/// Whether a process has a handler for a signal.
fn catches(pid: Pid, signal: Signal) -> anyhow::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .context("no SigCgt")?;
    let caught = u64::from_str_radix(caught.trim(), 16)?;
    Ok(caught & (1 << (signal.as_raw() - 1)) != 0)
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn all_that_is_ours_goes_and_what_others_have_set_stays() {
    on_every_version(async |node| {
        let containerd = node.containerd().await;
        let endpoint = at(node.runtime.endpoint());
        let (code, out, err) = cleanup(&[&endpoint]).await;
        assert_eq!((code, out.as_str()), (Some(0), NOTHING), "{err}");

        let mut images = Vec::new();
        for (name, seed) in [("lab/a:1", 1), ("lab/b:1", 2), ("lab/c:1", 3)] {
            let reference = node.push(name, &ImageSpec::small(seed)).await;
            let id = node.runtime.pull(&reference, None).await.unwrap();
            images.push((reference, id));
        }
        let [(a, id_a), (b, id_b), (c, id_c)] = &images[..] else {
            panic!("{images:?}")
        };
        for (id, reference, removable) in [(id_a, a, true), (id_a, b, false), (id_b, b, true)] {
            let marked = containerd.mark_pulled(id, reference, Some(removable));
            assert!(marked.await.unwrap());
        }
        assert!(containerd.pin(id_a).await.unwrap());
        assert!(containerd.pin(id_b).await.unwrap());
        // What a later version may leave, and what others do.
        for label in ["imagecache.dev/later=1", "other.example/a=b"] {
            let label = ["images", "label", id_c, label];
            node.server.ctr(&label).await.unwrap();
        }
        let pin = ["images", "label", id_c, "io.cri-containerd.pinned=pinned"];
        node.server.ctr(&pin).await.unwrap();
        let lease = Lease {
            removable: false,
            created: None,
            replaces: None,
            id: "imagecache-test".to_owned(),
            image: a.clone(),
            expires: None,
        };
        containerd.create_lease(&lease).await.unwrap();
        let foreign = ["leases", "create", "--id", "foreign"];
        node.server.ctr(&foreign).await.unwrap();

        let held = runtime::lock(node.runtime.endpoint()).unwrap();
        let (code, out, err) = cleanup(&[&endpoint]).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        let words = "delete daemonset imagecache-agent: another agent already serves this runtime";
        assert!(err.contains(words), "{err}");
        assert_eq!(node.leases().await, [lease]);
        drop(held);

        let (code, out, err) = cleanup(&[&endpoint]).await;
        let all = "pins removed: 2\nmarks removed: 3\nleases removed: 1\n";
        assert_eq!((code, out.as_str()), (Some(0), all), "{err}");
        let records = containerd.id_records().await.unwrap();
        assert_eq!(records.len(), 3);
        for record in records {
            let foreign = Marks {
                pinned: record.id == *id_c,
                ..Marks::default()
            };
            assert_eq!(record.marks, foreign, "{}", node.version);
        }
        let labels = node.server.ctr(&["images", "ls"]).await.unwrap();
        assert!(!labels.contains("imagecache.dev/"), "{labels}");
        assert!(labels.contains("other.example/a=b"), "{labels}");
        let leases = node.server.ctr(&["leases", "ls"]).await.unwrap();
        assert!(leases.contains("foreign"), "{leases}");
        assert_eq!(containerd.leases().await.unwrap(), []);
        wait_for("the pins to be gone", LONG, async || {
            for (reference, pinned) in [(a, false), (b, false), (c, true)] {
                let image = node.runtime.image(reference).await?;
                ensure!(
                    image.as_ref().is_some_and(|image| image.pinned == pinned),
                    "{image:?}"
                );
            }
            Ok(())
        })
        .await
        .unwrap();

        let (code, out, err) = cleanup(&[&endpoint]).await;
        assert_eq!((code, out.as_str()), (Some(0), NOTHING), "{err}");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn what_an_interrupted_pull_has_downloaded_is_off_the_disk_afterwards() {
    on_every_version(async |node| {
        let image = ImageSpec::small(1).layer(2, 8 << 20);
        let reference = node.push("lab/large:1", &image).await;
        let containerd = node.containerd().await;
        let lease = Lease {
            removable: false,
            created: None,
            replaces: None,
            id: "imagecache-test".to_owned(),
            image: reference.clone(),
            expires: None,
        };
        containerd.create_lease(&lease).await.unwrap();
        node.proxy.limit(Some(3_000_000));
        let begun = wait_for("some of it", LONG, async || {
            let ingests = containerd.ingests().await?;
            let has_some = ingests.iter().any(|ingest| ingest.offset > 1_000_000);
            ensure!(has_some, "{ingests:?}");
            Ok(())
        });
        tokio::select! {
            pulled = node.runtime.pull(&reference, Some(&lease.id)) => panic!("{pulled:?}"),
            begun = begun => begun.unwrap(),
        }
        let (code, out, err) = cleanup(&[&at(node.runtime.endpoint())]).await;
        assert_eq!(code, Some(0), "{err}");
        assert!(out.ends_with("leases removed: 1\n"), "{out}");
        assert_eq!(containerd.ingests().await.unwrap(), []);
    })
    .await;
}

/// Its socket has no containerd behind it.
#[tokio::test]
async fn another_runtime_holds_nothing_and_with_stay_it_runs_until_it_is_asked_to_end() {
    let fake = FakeCri::start();
    let endpoint = at(&fake.endpoint());
    let (code, out, err) = cleanup(&[&endpoint]).await;
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    let words = format!("fake at {} holds nothing of the agent", fake.endpoint());
    assert!(err.starts_with(&words), "{err}");

    let mut child = command(&[&endpoint, "--stay"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with(&words), "{line}");
    // An agent may be installed again.
    wait_for("the lock", LONG, async || {
        Ok(runtime::lock(&fake.endpoint()).map(drop)?)
    })
    .await
    .unwrap();
    let pid = Pid::from_child(&child);
    wait_for("it to listen to SIGTERM", LONG, async || {
        ensure!(catches(pid, Signal::TERM)?, "it does not");
        Ok(())
    })
    .await
    .unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_a_failure_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    for socket in [socket.to_str().unwrap(), "/no/such/none.sock"] {
        let endpoint = format!("--runtime-endpoint={socket}");
        let (code, out, err) = cleanup(&[&endpoint, "--stay"]).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        let folder = socket.trim_end_matches("/none.sock");
        assert!(err.starts_with("error: ") && err.contains(folder), "{err}");
    }
}

#[tokio::test]
async fn a_mistake_in_the_command_line_is_named() {
    for (argument, words) in [
        ("--runtime-endpoint=tcp://a:1", "--runtime-endpoint"),
        ("--stay=soon", "--stay"),
        ("docker.io/library/a:1", "docker.io/library/a:1"),
    ] {
        let (code, out, err) = cleanup(&[argument]).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains(words), "{err}");
    }
    let (code, help, _) = cleanup(&["--help"]).await;
    assert_eq!(code, Some(0));
    for words in [
        "for an uninstall",
        "--stay",
        "--runtime-endpoint",
        "No image is removed",
    ] {
        assert!(help.contains(words), "{help}");
    }
}
