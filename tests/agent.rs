//! The agent's loop on a runtime that is not containerd, and that does what no real one can be made to do.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agent_loop;
mod fake_cri;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use imagecache_agent::api::condition::find;
use imagecache_agent::api::{
    CredentialProblem, ImageCacheSpec, ImageState, LocalSecret, NodeImageCacheStatus, Reason,
    RemovalPolicy,
};
use imagecache_agent::credentials::{Credential, Entry, Secrets};
use imagecache_agent::decide::spread::Spread;
use imagecache_agent::decide::{SecretName, Timing};
use testbed::wait_for;
use tokio::sync::watch;
use tonic::Code;

use agent_loop::{Agent, SOON, SPREAD, spec};
use fake_cri::{FakeCri, Pull};

fn start(runtime: &FakeCri) -> Agent {
    let timing = Timing {
        look: Duration::from_millis(100),
        ..Timing::default()
    };
    Agent::start(runtime.endpoint(), &timing)
}

/// Every Secret has credentials for one repository.
#[derive(Debug)]
struct OneTeam;

impl Secrets for OneTeam {
    fn read<'a>(
        &'a self,
        name: &'a SecretName,
    ) -> BoxFuture<'a, Result<Arc<Vec<Entry>>, CredentialProblem>> {
        let entry = Entry {
            key: "r.io/team".to_owned(),
            credential: Credential {
                username: name.name.clone(),
                password: "hunter2".to_owned(),
            },
        };
        Box::pin(ready(Ok(Arc::new(vec![entry]))))
    }
}

/// These images, with this pull secret.
fn with_secret(secret: &str, images: &[&str], priority: i32) -> ImageCacheSpec {
    ImageCacheSpec {
        image_pull_secrets: vec![LocalSecret {
            name: secret.to_owned(),
        }],
        priority,
        ..spec(images)
    }
}

fn pulls(runtime: &FakeCri) -> Vec<String> {
    let is_pull = |request: &String| request.starts_with("PullImage");
    runtime.requests().into_iter().filter(is_pull).collect()
}

async fn until_pulls(runtime: &FakeCri, count: usize) {
    wait_for(format!("{count} pulls"), SOON, async || {
        let pulls = pulls(runtime);
        anyhow::ensure!(pulls.len() >= count, "{pulls:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn without_events_a_removal_is_found_by_looking_again() {
    let runtime = FakeCri::start();
    let agent = start(&runtime);
    agent.wants(&[("a", 0, &["r.io/a:1"])]);
    agent.until("ready", |report| report.ready == 1).await;
    runtime.remove("r.io/a:1");
    until_pulls(&runtime, 2).await;
    agent.until("ready again", |report| report.ready == 1).await;
}

#[tokio::test]
async fn a_name_goes_to_the_runtime_as_written_and_what_it_made_of_it_counts() {
    let runtime = FakeCri::start();
    let agent = start(&runtime);
    // This runtime keeps the image under the short name, where containerd would keep docker.io/library/short:latest.
    agent.wants(&[("a", 0, &["short"])]);
    let report = agent.until("ready", |report| report.ready == 1).await;
    assert_eq!(
        report.images.first().unwrap().image,
        "docker.io/library/short:latest"
    );
    assert_eq!(pulls(&runtime), ["PullImage short:latest"]);
    // It is found again at every later look.
    let looks = runtime.requests().len();
    wait_for("more looks", SOON, async || {
        anyhow::ensure!(runtime.requests().len() > looks + 6);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(pulls(&runtime).len(), 1);
    assert_eq!(agent.reports.borrow().as_ref().unwrap().ready, 1);
}

#[tokio::test]
async fn an_image_that_ten_objects_want_in_two_spellings_is_one_pull() {
    let runtime = FakeCri::start();
    let agent = start(&runtime);
    let names: Vec<String> = (0..10).map(|n| format!("cache-{n}")).collect();
    let objects: Vec<(&str, i32, &[&str])> = names
        .iter()
        .map(|name| (name.as_str(), 0, &["docker.io/library/a:1", "a:1"][..]))
        .collect();
    agent.wants(&objects);
    let report = agent.until("ready", |report| report.ready == 1).await;
    assert_eq!((report.total, report.caches.len()), (1, 10));
    assert_eq!(pulls(&runtime).len(), 1);
}

#[tokio::test]
async fn an_edit_cancels_what_nobody_wants_and_starts_what_is_new() {
    let runtime = FakeCri::start();
    for image in ["r.io/slow:1", "r.io/slow:2"] {
        runtime.on_pull(image, Pull::Hangs);
    }
    let agent = start(&runtime);
    agent.wants(&[("a", 0, &["r.io/slow:1", "r.io/slow:2", "r.io/next:1"])]);
    until_pulls(&runtime, 2).await;
    let report = agent.until("two pulls", |report| report.pulling == 2).await;
    let next = report
        .images
        .iter()
        .find(|image| image.image == "r.io/next:1")
        .unwrap();
    assert_eq!(
        (next.state, next.reason),
        (ImageState::Waiting, Some(Reason::Queued))
    );
    agent.wants(&[("a", 0, &["r.io/slow:2", "r.io/next:1"])]);
    agent
        .until("the next one", |report| {
            (report.ready, report.total) == (1, 2)
        })
        .await;
    assert_eq!(runtime.cancelled(), 1);
}

#[tokio::test]
async fn a_higher_priority_goes_first() {
    let runtime = FakeCri::start();
    for image in ["r.io/slow:1", "r.io/slow:2"] {
        runtime.on_pull(image, Pull::Hangs);
    }
    let agent = start(&runtime);
    agent.wants(&[
        ("low", -5, &["r.io/low:1"]),
        ("high", 5, &["r.io/slow:1", "r.io/slow:2"]),
    ]);
    until_pulls(&runtime, 2).await;
    agent.until("two pulls", |report| report.pulling == 2).await;
    assert!(
        pulls(&runtime).iter().all(|pull| pull.contains("slow")),
        "{:?}",
        pulls(&runtime)
    );
}

#[tokio::test]
async fn a_runtime_that_goes_and_comes_back_costs_no_attempt() {
    let mut runtime = FakeCri::start();
    runtime.on_pull("r.io/a:1", Pull::Hangs);
    let agent = start(&runtime);
    agent.wants(&[("a", 0, &["r.io/a:1"])]);
    until_pulls(&runtime, 1).await;
    runtime.stop();
    let is_down = |report: &NodeImageCacheStatus| {
        find(&report.conditions, "RuntimeReady").is_some_and(|ready| ready.status == "False")
    };
    let report = agent.until("the runtime to be missed", is_down).await;
    assert_eq!(
        (report.failed, report.images.first().unwrap().state),
        (0, ImageState::Waiting)
    );
    runtime.on_pull("r.io/a:1", Pull::Succeeds);
    runtime.start_again();
    let report = agent.until("ready", |report| report.ready == 1).await;
    assert_eq!(report.images.first().unwrap().attempts, None);
}

#[tokio::test]
async fn a_failure_is_reported_with_its_reason_and_its_next_attempt() {
    let runtime = FakeCri::start();
    runtime.on_pull(
        "r.io/a:1",
        Pull::Fails(
            Code::NotFound,
            "failed to resolve reference \"r.io/a:1\": r.io/a:1: not found".into(),
        ),
    );
    let agent = start(&runtime);
    agent.wants(&[("a", 0, &["r.io/a:1", "r.io/b:1"])]);
    let report = agent
        .until("both", |report| (report.ready, report.failed) == (1, 1))
        .await;
    let failed = report
        .images
        .iter()
        .find(|image| image.state == ImageState::Failed)
        .unwrap();
    assert_eq!(
        (failed.reason, failed.attempts),
        (Some(Reason::NotFound), Some(1))
    );
    assert!(failed.next_attempt.is_some() && failed.message.is_some());
}

#[tokio::test]
async fn a_limit_of_those_who_ask_as_nobody_is_one_limit_and_stops_no_one_else() {
    let runtime = FakeCri::start();
    let images: Vec<String> = (0..6).map(|n| format!("r.io/library/{n}:1")).collect();
    let too_many = "unexpected status from HEAD request: 429 Too Many Requests";
    for image in &images {
        runtime.on_pull(image, Pull::Fails(Code::Unknown, too_many.into()));
    }
    let agent = Agent::start_with(runtime.endpoint(), &Timing::default(), |channels| {
        channels.secrets = Arc::new(OneTeam);
    });
    // All of these are in one ImageCache, and each in another one that names a Secret of its own: none is for these images.
    let all: Vec<&str> = images.iter().map(String::as_str).collect();
    let (together, apart) = all.split_at(3);
    let names: Vec<String> = (0..3).map(|n| format!("other-{n}")).collect();
    let mut specs = vec![
        ("a", with_secret("team", together, 9)),
        ("b", with_secret("team", &["r.io/team/app:1"], 0)),
    ];
    for (name, image) in names.iter().zip(apart) {
        specs.push((name.as_str(), with_secret(name, &[image], 5)));
    }
    agent.wants_specs(specs.into_iter());
    let all_known = |report: &NodeImageCacheStatus| (report.ready, report.failed) == (1, 6);
    let report = agent.until("the team's image", all_known).await;
    for image in &report.images {
        let is_limited = image.reason == Some(Reason::RateLimited);
        assert_eq!(is_limited, image.state == ImageState::Failed, "{image:?}");
    }
    let asked = pulls(&runtime);
    let as_nobody: Vec<_> = asked
        .iter()
        .filter(|pull| pull.contains("library"))
        .collect();
    // Two pulls begin together before anything is known.
    assert_eq!(as_nobody.len(), 2, "{asked:?}");
}

#[tokio::test]
async fn a_secret_that_changed_is_tried_at_once_however_many_nodes_there_are() {
    let runtime = FakeCri::start();
    let refused = "unexpected status from HEAD request: 401 Unauthorized";
    let image = "r.io/team/app:1";
    runtime.on_pull(image, Pull::Fails(Code::Unknown, refused.into()));
    let (spread, told) = watch::channel(SPREAD);
    let agent = Agent::start_with(runtime.endpoint(), &Timing::default(), |channels| {
        channels.secrets = Arc::new(OneTeam);
        channels.spread = told;
    });
    agent.wants_specs([("a", with_secret("team", &[image], 0))].into_iter());
    let fails = |report: &NodeImageCacheStatus| report.failed == 1;
    agent.until("the image to be refused", fails).await;
    // What an edit brings would wait for up to an hour.
    let start_within = Duration::from_hours(1);
    spread.send_replace(Spread {
        start_within,
        ..SPREAD
    });
    runtime.on_pull(image, Pull::Succeeds);
    agent.secret_changed("team");
    agent.until("the image", |report| report.ready == 1).await;
}

#[tokio::test]
async fn the_agent_ends_at_once_also_when_a_pull_hangs() {
    let runtime = FakeCri::start();
    runtime.on_pull("r.io/a:1", Pull::Hangs);
    let agent = start(&runtime);
    agent.wants(&[("a", 0, &["r.io/a:1"])]);
    until_pulls(&runtime, 1).await;
    agent.stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), agent.task)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    wait_for("the runtime to hear of it", SOON, async || {
        anyhow::ensure!(runtime.cancelled() == 1);
        Ok(())
    })
    .await
    .unwrap();
}

fn start_removing(runtime: &FakeCri, reported: Option<&NodeImageCacheStatus>) -> Agent {
    let timing = Timing {
        look: Duration::from_millis(100),
        removal: Duration::from_millis(500),
        ..Timing::default()
    };
    let agent = Agent::start(runtime.endpoint(), &timing);
    agent.inherits(reported);
    agent
}

fn removing(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        removal_policy: RemovalPolicy::Remove,
        ..agent_loop::spec(images)
    }
}

fn removals(runtime: &FakeCri) -> Vec<String> {
    let is_removal = |request: &String| request.starts_with("RemoveImage");
    runtime.requests().into_iter().filter(is_removal).collect()
}

async fn until_removed(runtime: &FakeCri, expected: &[&str]) {
    wait_for(format!("{expected:?}"), SOON, async || {
        let removals = removals(runtime);
        anyhow::ensure!(removals == expected, "{removals:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// This runtime keeps no labels: what the agent has pulled stands in its report alone.
#[tokio::test]
async fn what_the_report_says_was_pulled_is_removed_and_nothing_else() {
    let runtime = FakeCri::start();
    runtime.add("r.io/found:1");
    let wanted = ["r.io/own:1", "r.io/found:1"];
    let agent = start_removing(&runtime, None);
    agent.wants_specs([("a", removing(&wanted))].into_iter());
    let report = agent.until("ready", |report| report.ready == 2).await;
    agent.stop.cancel();
    agent.task.await.unwrap().unwrap();

    // The next process has been told of nothing else.
    let agent = start_removing(&runtime, Some(&report));
    agent.wants_specs([].into_iter());
    until_removed(&runtime, &["RemoveImage r.io/own:1"]).await;
    agent.stop.cancel();
    agent.task.await.unwrap().unwrap();

    // And one that knows of no report removes nothing.
    runtime.add("r.io/own:1");
    let agent = start_removing(&runtime, None);
    agent.wants_specs([("a", removing(&["r.io/other:1"]))].into_iter());
    agent.until("ready", |report| report.ready == 1).await;
    agent.wants_specs([].into_iter());
    let both = ["RemoveImage r.io/own:1", "RemoveImage r.io/other:1"];
    until_removed(&runtime, &both).await;
}

/// Its removal takes every name of an image.
#[tokio::test]
async fn an_image_with_a_name_of_somebody_else_is_kept_and_says_so() {
    let runtime = FakeCri::start();
    let agent = start_removing(&runtime, None);
    agent.wants_specs([("a", removing(&["r.io/app:1"]))].into_iter());
    agent.until("ready", |report| report.ready == 1).await;
    runtime.add("r.io/app:2");
    agent.wants_specs([].into_iter());
    agent
        .until("to be kept", |report| {
            let mut images = report.images.iter();
            images.any(|image| image.image == "r.io/app:1" && image.reason == Some(Reason::Shared))
        })
        .await;
    assert!(removals(&runtime).is_empty());
}

#[tokio::test]
async fn a_look_at_a_runtime_that_has_everything_is_one_list() {
    let runtime = FakeCri::start();
    let images: Vec<String> = (0..50).map(|n| format!("r.io/app-{n}:1")).collect();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    for image in &images {
        runtime.add(image);
    }
    let agent = start(&runtime);
    agent.wants(&[("a", 0, &images)]);
    agent.until("ready", |report| report.ready == 50).await;
    let before = runtime.requests().len();
    wait_for("three more looks", SOON, async || {
        anyhow::ensure!(runtime.requests().len() >= before + 3);
        Ok(())
    })
    .await
    .unwrap();
    let asked = runtime.requests().split_off(before);
    assert!(asked.iter().all(|asked| asked == "ListImages"), "{asked:?}");
}

#[tokio::test]
async fn what_is_gone_before_its_time_is_not_removed() {
    let runtime = FakeCri::start();
    let agent = start_removing(&runtime, None);
    agent.wants_specs([("a", removing(&["r.io/app:1"]))].into_iter());
    agent.until("ready", |report| report.ready == 1).await;
    agent.wants_specs([].into_iter());
    runtime.remove("r.io/app:1");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(removals(&runtime).is_empty());
}
