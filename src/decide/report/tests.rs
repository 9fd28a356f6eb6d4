#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::api::node_image_cache::ImageReport;
use crate::api::{ImageCacheSpec, ImageList};
use crate::decide::memory::Failed;
use crate::decide::world::Outcome;
use crate::decide::{Cache, CacheName, Inputs, Node, PresentImage, desired};

fn at(seconds: i64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds.unsigned_abs()),
        wall: Timestamp::from_millisecond(seconds * 1000 + 123).unwrap(),
    }
}

fn world(images: &[&str]) -> World {
    let spec = ImageCacheSpec {
        cache_spec: vec![ImageList {
            images: images.iter().map(ToString::to_string).collect(),
            ..ImageList::default()
        }],
        ..ImageCacheSpec::default()
    };
    let cache = Cache {
        uid: "uid".into(),
        generation: 4,
        spec: Some((4, Arc::new(spec))),
        unreadable: None,
        refresh: None,
    };
    let name = CacheName {
        namespace: "ns".into(),
        name: "c".into(),
    };
    let inputs = Inputs {
        caches: Known::Known(Arc::new([(name, Arc::new(cache))].into())),
        node: Known::Known(Node::default()),
        ..Inputs::default()
    };
    let mut world = World::default();
    world.wants(desired(&inputs));
    world
}

fn look(world: &mut World, images: &[&str], now: Now) {
    let keys = world.desired.known().unwrap().images.keys();
    let answer = keys
        .map(|key| {
            (
                key.clone(),
                images.contains(&&**key).then(|| Arc::new(image_of("d1"))),
            )
        })
        .collect();
    world.has(answer, now, &Timing::default(), 0.5);
}

fn image_of(digest: &str) -> PresentImage {
    PresentImage {
        id: "sha256:id".into(),
        digest: Some(digest.into()),
        bytes: 7,
        foreign_platform: None,
    }
}

fn say(world: &World, previous: Option<&NodeImageCacheStatus>, now: Now) -> NodeImageCacheStatus {
    report(
        world,
        &RuntimeStatus::default(),
        previous,
        now,
        &Timing::default(),
    )
    .unwrap()
}

const A: &str = "r.io/a:1";
const B: &str = "r.io/b:1";

#[test]
fn nothing_is_reported_while_it_is_unknown_what_is_wanted() {
    let world = World::default();
    assert!(
        report(
            &world,
            &RuntimeStatus::default(),
            None,
            at(1),
            &Timing::default()
        )
        .is_none()
    );
}

#[test]
fn nothing_is_reported_until_the_runtime_was_asked_for_every_image() {
    let mut asked = world(&[A, B, "UPPER"]);
    let say = |world: &World| {
        let (runtime, timing) = (RuntimeStatus::default(), Timing::default());
        report(world, &runtime, None, at(1), &timing)
    };
    assert!(say(&asked).is_none());
    asked.has([(A.into(), None)].into(), at(1), &Timing::default(), 0.5);
    assert!(say(&asked).is_none());
    asked.has([(B.into(), None)].into(), at(1), &Timing::default(), 0.5);
    assert!(say(&asked).is_some());
    // One that is away from the start is a fact.
    let mut away = world(&[A]);
    away.lost_runtime("no socket".into());
    assert!(say(&away).is_some());
}

#[test]
fn a_report_that_says_nothing_new_is_the_same() {
    let mut world = world(&[A, B, "UPPER"]);
    look(&mut world, &[A], at(1));
    let first = say(&world, None, at(1));
    assert_eq!((first.ready, first.total, first.failed), (1, 3, 1));
    assert_eq!(say(&world, Some(&first), at(99)), first);
    let stored: NodeImageCacheStatus =
        serde_json::from_value(serde_json::to_value(&first).unwrap()).unwrap();
    assert_eq!(say(&world, Some(&stored), at(99)), first);
}

#[test]
fn each_cache_says_which_lists_it_counts_and_what_failed() {
    let mut world = world(&[A, B, "UPPER"]);
    look(&mut world, &[A], at(1));
    let cache = &say(&world, None, at(1)).caches[0];
    assert_eq!(
        (cache.uid.as_str(), cache.observed_generation, cache.state),
        ("uid", 4, NodeState::Failed)
    );
    assert_eq!(
        (
            cache.lists[0].index,
            cache.lists[0].ready,
            cache.lists[0].total
        ),
        (0, 1, 3)
    );
    assert_eq!(
        (cache.failures[0].image.as_str(), cache.failures[0].reason),
        ("UPPER", Reason::InvalidReference)
    );
}

#[test]
fn a_quick_repetition_stays_failed_and_a_long_one_is_pulling() {
    let timing = Timing::default();
    let mut world = world(&[A]);
    look(&mut world, &[], at(0));
    world.started(A.into(), false, at(0));
    let failed = Failed {
        reason: Reason::NotFound,
        message: "no such tag".into(),
    };
    world.ended(&A.into(), Outcome::Failed(failed), at(1), &timing, 0.5);
    let first = say(&world, None, at(1));
    assert_eq!(
        (first.images[0].attempts, first.images[0].state),
        (Some(1), ImageState::Failed)
    );
    assert!(first.images[0].next_attempt.is_some());
    world.started(A.into(), false, at(61));
    assert_eq!(say(&world, Some(&first), at(62)), first);
    assert_eq!(
        world.state_changes_at(&timing, at(62)),
        Some(Duration::from_secs(64))
    );
    assert_eq!(
        say(&world, Some(&first), at(64)).images[0].state,
        ImageState::Pulling
    );
}

#[test]
fn an_image_for_another_platform_is_pulled_again_like_one_that_failed() {
    let timing = Timing::default();
    let mut world = world(&[A]);
    let foreign = PresentImage {
        foreign_platform: Some("linux/arm64".into()),
        ..image_of("d1")
    };
    let answer = [(A.into(), Some(Arc::new(foreign)))].into();
    world.has(answer, at(0), &timing, 0.5);
    world.started(A.into(), false, at(61));
    let state = |world: &World, at| world.state(&A.into(), at, &timing).0;
    assert_eq!(state(&world, at(62)), ImageState::Failed);
    let changes = world.state_changes_at(&timing, at(62));
    assert_eq!(changes, Some(Duration::from_secs(64)));
    assert_eq!(state(&world, at(64)), ImageState::Pulling);
    world.cancelled(&A.into());
    assert_eq!(world.state_changes_at(&timing, at(62)), None);
}

#[test]
fn a_runtime_that_is_away_fails_nothing_and_keeps_what_was_there() {
    let mut world = world(&[A, B]);
    look(&mut world, &[A], at(1));
    world.lost_runtime("no socket".into());
    let report = say(&world, None, at(2));
    assert_eq!((report.ready, report.failed), (1, 0));
    assert_eq!(report.images[1].reason, Some(Reason::RuntimeUnavailable));
    assert_eq!(
        (
            report.conditions[0].status.as_str(),
            report.conditions[0].message.as_str()
        ),
        ("False", "no socket")
    );
}

#[test]
fn images_that_are_not_ready_come_first_when_there_are_too_many() {
    let names: Vec<String> = (0..1005).map(|n| format!("r.io/a:{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = world(&names);
    look(&mut world, &names[..1004], at(1));
    let report = say(&world, None, at(1));
    assert_eq!((report.images.len(), report.images_omitted), (1000, 5));
    assert_eq!(report.images[0].image, "r.io/a:1004");
}

#[test]
fn a_report_of_two_thousand_long_names_that_fail_at_length_stays_below_half_a_mebibyte() {
    let names: Vec<String> = (0..2000)
        .map(|n| format!("r.io/{}:{n:04}", "a".repeat(200)))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = world(&names);
    look(&mut world, &names[..500], at(1));
    for name in &names[500..] {
        world.started((*name).into(), false, at(1));
        let failed = Failed {
            reason: Reason::PullFailed,
            message: "x".repeat(512),
        };
        let outcome = Outcome::Failed(failed);
        world.ended(&(*name).into(), outcome, at(1), &Timing::default(), 0.5);
    }
    let report = say(&world, None, at(1));
    let bytes = serde_json::to_vec(&report).unwrap().len();
    assert!(bytes < 512 << 10, "{bytes} bytes");
    assert!(report.images.len() > 200, "{}", report.images.len());
    let is_failed = |image: &ImageReport| image.state == ImageState::Failed;
    assert!(report.images.iter().all(is_failed), "those first");
    let told = i32::try_from(report.images.len()).unwrap();
    assert_eq!(told + report.images_omitted, 2000);
    assert_eq!(
        (report.total, report.ready, report.failed),
        (2000, 500, 1500)
    );
}

#[test]
fn no_message_is_longer_than_etcd_bears_whatever_it_quotes() {
    let long = || Failed {
        reason: Reason::Unauthorized,
        message: "ü".repeat(600),
    };
    let timing = Timing::default();
    let mut world = world(&[A, B]);
    look(&mut world, &[A], at(0));
    for image in [A, B] {
        world.started(image.into(), false, at(0));
        world.ended(&image.into(), Outcome::Failed(long()), at(1), &timing, 0.5);
    }
    let failed = world.clone();
    let Known::Known(desired) = &mut world.desired else {
        panic!("it is known");
    };
    for wanted in desired.images.values_mut() {
        // A refresh and a pause quote the last failure.
        wanted.paused = true;
        wanted.refresh = Some(Duration::from_mins(1));
    }
    for world in [failed, world.clone()] {
        let report = say(&world, None, at(2));
        let images = report.images.iter().map(|image| image.message.as_ref());
        let failures = report.caches[0].failures.iter();
        let failures = failures.map(|failure| Some(&failure.message));
        let all: Vec<_> = images.chain(failures).flatten().collect();
        assert!(!all.is_empty());
        for message in all {
            assert!(message.chars().count() <= 512, "{message}");
        }
    }
    let (_, reason, message) = world.state(&A.into(), at(2), &timing);
    assert_eq!(reason, Some(Reason::RefreshFailed));
    assert!(message.unwrap().chars().count() > 600);
}
