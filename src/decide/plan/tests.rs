#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::*;
use crate::api::{CredentialProblem, CredentialReason, Reason};
use crate::decide::desired::{Desired, Wanted};
use crate::decide::disk::{Disk, Limits};
use crate::decide::memory::Failed;
use crate::decide::registries::Credentials;
use crate::decide::traffic::{Download, Ingest, Sight};
use crate::decide::usage::Usage;
use crate::decide::world::Outcome;
use crate::decide::{Known, PresentImage, SecretName, Timing};
use crate::image::Reference;

fn at(seconds: u64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds),
        wall: Timestamp::from_second(1_000_000 + i64::try_from(seconds).unwrap()).unwrap(),
    }
}

fn key(name: &str) -> ImageKey {
    Reference::parse(name).map_or_else(|_| name.into(), |reference| reference.key().into())
}

/// Images in their order of pulls, each with its priority; `!` in front: paused.
fn wanting(images: &[(&str, i32)]) -> Known<Desired> {
    let mut desired = Desired::default();
    for (position, (image, priority)) in images.iter().enumerate() {
        let name = image.trim_start_matches('!');
        desired.images.insert(
            key(name),
            Wanted {
                reference: Reference::parse(name).map_err(Box::new),
                rank: (Reverse(*priority), [0, 0, u32::try_from(position).unwrap()]),
                paused: image.starts_with('!'),
                secrets: Vec::new(),
                patience: Duration::from_mins(5),
                refresh: None,
                removable: false,
                pin: false,
                by: Arc::default(),
            },
        );
    }
    Known::Known(desired)
}

fn world(images: &[(&str, i32)], present: &[(&str, Option<&str>)]) -> World {
    let mut world = World::default();
    world.wants(wanting(images));
    let mut answer: BTreeMap<_, _> = images.iter().map(|(image, _)| (key(image), None)).collect();
    answer.extend(
        present
            .iter()
            .map(|(image, foreign)| (key(image), Some(Arc::new(image_of(*foreign))))),
    );
    world.has(answer, at(0), &Timing::default(), 0.5);
    world
}

fn image_of(foreign: Option<&str>) -> PresentImage {
    PresentImage {
        id: "sha256:id".into(),
        digest: None,
        bytes: 1,
        foreign_platform: foreign.map(Into::into),
    }
}

fn fail(world: &mut World, image: &str, reason: Reason, now: Now) {
    world.started(key(image), false, now);
    let failed = Failed {
        reason,
        message: "no".into(),
    };
    world.ended(
        &key(image),
        Outcome::Failed(failed),
        now,
        &Timing::default(),
        0.5,
    );
}

fn keys(images: &[&str]) -> Vec<ImageKey> {
    images.iter().map(|image| key(image)).collect()
}

#[test]
fn a_pull_that_began_before_its_secret_changed_says_nothing_of_the_new_one() {
    let secret = SecretName {
        namespace: "ns".to_owned(),
        name: "s".to_owned(),
    };
    let mut desired = wanting(&[("a", 0)]).known().unwrap().clone();
    let wanted = desired.images.get_mut(&key("a")).unwrap();
    wanted.secrets = vec![Arc::new(secret.clone())];
    let mut world = world(&[("a", 0)], &[]);
    world.wants(Known::Known(desired));

    let failed = || Failed {
        reason: Reason::Unauthorized,
        message: "no".into(),
    };
    world.started(key("a"), false, at(0));
    world.secrets_changed(&[(secret, 1)].into());
    let outcome = Outcome::Failed(failed());
    world.ended(&key("a"), outcome, at(1), &Timing::default(), 0.5);
    let memory = &world.memory[&key("a")];
    assert_eq!((memory.last.clone(), memory.retry), (Some(failed()), None));

    fail(&mut world, "a", Reason::Unauthorized, at(2));
    assert!(world.memory[&key("a")].retry.is_some(), "once is enough");
}

#[test]
fn the_decision_table() {
    struct Row {
        what: &'static str,
        world: World,
        start: &'static [&'static str],
        cancel: &'static [&'static str],
    }
    let row = |what, world, start, cancel| Row {
        what,
        world,
        start,
        cancel,
    };
    let mut down = world(&[("a", 0)], &[]);
    down.lost_runtime("gone".into());
    let mut unknown = world(&[("a", 0)], &[]);
    unknown.started(key("b"), false, at(0));
    unknown.desired = Known::Unknown;
    let mut unwanted = world(&[("a", 0)], &[]);
    unwanted.started(key("b"), false, at(0));
    let mut ending = unwanted.clone();
    ending.cancelled(&key("b"));
    let mut running = world(&[("a", 0), ("b", 0)], &[]);
    running.started(key("a"), false, at(0));
    let mut full = world(&[("a", 0), ("b", 0), ("c", 0)], &[]);
    full.started(key("a"), false, at(0));
    full.started(key("b"), false, at(0));
    let mut failed = world(&[("a", 0), ("b", 0)], &[]);
    fail(&mut failed, "a", Reason::NotFound, at(0));
    let mut never_asked = World::default();
    never_asked.wants(wanting(&[("a", 0)]));
    let mut newly_wanted = world(&[("a", 0)], &[]);
    newly_wanted.wants(wanting(&[("a", 0), ("new", 9)]));
    let rows = vec![
        row(
            "wanted and absent: pull",
            world(&[("a", 0)], &[]),
            &["a"],
            &[],
        ),
        row(
            "wanted and present: nothing",
            world(&[("a", 0)], &[("a", None)]),
            &[],
            &[],
        ),
        row(
            "present for another platform: pull again",
            world(&[("a", 0)], &[("a", Some("linux/arm64"))]),
            &["a"],
            &[],
        ),
        row(
            "present but not wanted: nothing",
            world(&[], &[("a", None)]),
            &[],
            &[],
        ),
        row(
            "higher priority first, then the order",
            world(&[("a", 0), ("b", 0), ("c", 7)], &[]),
            &["c", "a"],
            &[],
        ),
        row("as many as there are slots", full, &[], &[]),
        row("never twice", running, &["b"], &[]),
        row("paused", world(&[("!a", 0)], &[]), &[], &[]),
        row("does not parse", world(&[("UPPER", 0)], &[]), &[], &[]),
        row("runtime down", down, &[], &[]),
        row(
            "wanted since the runtime was asked: not before the next answer",
            newly_wanted,
            &["a"],
            &[],
        ),
        row("runtime never asked", never_asked, &[], &[]),
        row(
            "what is wanted is unknown: nothing is cancelled",
            unknown,
            &[],
            &[],
        ),
        row("nobody wants it any more: cancel", unwanted, &["a"], &["b"]),
        row("cancelled once", ending, &["a"], &[]),
        row("failed a moment ago: later", failed, &["b"], &[]),
    ];
    for Row {
        what,
        world,
        start,
        cancel,
    } in rows
    {
        let plan = plan(&world, 2, at(1));
        assert_eq!(plan.start, keys(start), "{what}");
        assert_eq!(plan.cancel, keys(cancel), "{what}");
    }
}

#[test]
fn the_decision_table_of_pulls_that_stall_or_make_way() {
    let mut pulled = world(&[("a", 0), ("b", 0), ("c", 0)], &[]);
    let nothing_pulled = pulled.clone();
    pulled.started(key("a"), false, at(0));
    let (mut stalled, mut landed) = (pulled.clone(), pulled.clone());
    let pull = stalled.pulls.get_mut(&key("a")).unwrap();
    pull.stalled = Some("no byte has come".into());
    landed.landed(&key("a"));
    let (wholly, one) = (Yielding::Wholly, Yielding::OneAtATime);
    // What is there, how far pulls make way, what is started, what is cancelled.
    let rows: [(&World, Yielding, &[&str], &[&str]); 9] = [
        (&stalled, Yielding::No, &["b"], &["a"]),
        (&pulled, Yielding::No, &["b"], &[]),
        (&pulled, wholly, &[], &["a"]),
        (&pulled, one, &[], &[]),
        (&landed, Yielding::No, &["b", "c"], &[]),
        (&landed, wholly, &[], &[]),
        (&landed, one, &["b"], &[]),
        (&nothing_pulled, wholly, &[], &[]),
        (&nothing_pulled, one, &["a"], &[]),
    ];
    for (row, (world, yielding, start, cancel)) in rows.into_iter().enumerate() {
        let mut world = world.clone();
        world.yielding = yielding;
        let plan = plan(&world, 2, at(1));
        assert_eq!(plan.start, keys(start), "row {row}");
        assert_eq!(plan.cancel, keys(cancel), "row {row}");
        assert_eq!(
            plan.more,
            plan.start.len() < 3 - world.pulls.len(),
            "row {row}"
        );
    }
}

#[test]
fn a_failed_image_is_tried_again_when_its_time_has_come() {
    let mut world = world(&[("a", 0)], &[]);
    fail(&mut world, "a", Reason::NotFound, at(100));
    let before = plan(&world, 2, at(159));
    assert_eq!(
        (before.start.len(), before.wake),
        (0, Some(Duration::from_secs(160)))
    );
    assert_eq!(plan(&world, 2, at(160)).start, keys(&["a"]));
    assert_eq!(
        world.memory[&key("a")].retry.unwrap().1.as_second(),
        1_000_160
    );
}

#[test]
fn a_lease_is_given_up_when_nothing_needs_it_and_never_during_its_pull() {
    let timing = Timing::default();
    let mut world = world(&[("a", 0), ("b", 0)], &[("b", None)]);
    let expires = Duration::from_hours(100);
    for name in ["a", "b", "c"] {
        world.leases.hold(name.to_owned(), key(name), expires);
    }
    let plan_at = |world: &mut World, seconds| {
        world.tend(at(seconds).monotonic, &timing);
        plan(world, 0, at(seconds))
    };
    let first = plan_at(&mut world, 100);
    assert_eq!(first.release, ["b"], "it is present");
    assert_eq!(
        first.wake,
        Some(Duration::from_secs(700)),
        "c may be wanted again"
    );
    world.leases.release("b");
    assert_eq!(plan_at(&mut world, 699).release.len(), 0);
    world.started(key("c"), false, at(699));
    assert_eq!(
        plan_at(&mut world, 700).release.len(),
        0,
        "it is being pulled"
    );
    world.ended(&key("c"), Outcome::Cancelled, at(701), &timing, 0.5);
    assert_eq!(plan_at(&mut world, 701).release.len(), 0);
    assert_eq!(plan_at(&mut world, 1301).release, ["c"]);
    world.leases.release("c");
    // Of its hundred hours, less than 24 are left.
    let late = 76 * 3600 + 1;
    assert_eq!(plan_at(&mut world, late).renew, ["a"], "it would not last");
    world.desired = Known::Unknown;
    assert!(plan_at(&mut world, late).release.is_empty());
}

#[test]
fn a_pull_that_was_cancelled_because_it_stalled_has_failed() {
    let (mut world, timing) = (world(&[("a", 0)], &[]), Timing::default());
    world.started(key("a"), false, at(1));
    world.pulls.get_mut(&key("a")).unwrap().stalled = Some("no byte has come".into());
    assert_eq!(plan(&world, 1, at(2)).cancel, keys(&["a"]));
    let ended = world.ended(&key("a"), Outcome::Cancelled, at(2), &timing, 0.5);
    let failed = Failed {
        reason: Reason::Stalled,
        message: "no byte has come".into(),
    };
    assert_eq!(ended.outcome, Outcome::Failed(failed));
}

#[test]
fn an_image_that_has_landed_needs_its_slot_no_more_and_is_not_started_again() {
    let mut world = world(&[("a", 0), ("b", 0)], &[]);
    world.started(key("a"), false, at(1));
    assert_eq!(plan(&world, 1, at(2)).start, keys(&[]));
    world.landed(&key("a"));
    assert_eq!(plan(&world, 1, at(2)).start, keys(&["b"]));
}

#[test]
fn what_a_pull_told_is_not_taken_for_the_next_one_of_its_image() {
    let (mut world, a) = (world(&[("a", 0)], &[]), key("a"));
    world.started(a.clone(), false, at(1));
    assert!(world.is_under_way(&a, at(1).monotonic));
    fail(&mut world, "a", Reason::Stalled, at(2));
    assert!(!world.is_under_way(&a, at(1).monotonic));
    world.started(a.clone(), true, at(2));
    assert!(!world.is_under_way(&a, at(1).monotonic));
}

#[test]
fn an_image_that_keeps_failing_lets_others_pass() {
    let mut world = world(&[("a", 9), ("b", 0)], &[]);
    for n in 0..3 {
        fail(&mut world, "a", Reason::PullFailed, at(n * 1000));
        assert_eq!(plan(&world, 1, at(n * 1000 + 900)).start, keys(&["a"]));
    }
    fail(&mut world, "a", Reason::PullFailed, at(4000));
    assert_eq!(plan(&world, 1, at(4900)).start, keys(&["b"]));
}

#[test]
fn an_evicted_image_is_pulled_at_once_and_the_next_time_later() {
    let mut world = world(&[("a", 0)], &[("a", None)]);
    let gone = || [(key("a"), None)].into();
    let timing = Timing::default();
    world.has(gone(), at(10), &timing, 0.5);
    assert_eq!(plan(&world, 2, at(10)).start, keys(&["a"]));
    assert_eq!(
        world.state(&key("a"), at(10), &timing).1,
        Some(Reason::Evicted)
    );
    world.started(key("a"), false, at(10));
    world.ended(
        &key("a"),
        Outcome::Pulled(image_of(None)),
        at(11),
        &timing,
        0.5,
    );
    let usage = Usage {
        capacity: 100,
        used: 86,
        ..Usage::default()
    };
    world.disk.saw(Some(usage), [at(12).monotonic; 2], &timing);
    world.has(gone(), at(20), &timing, 0.5);
    let said = world.state(&key("a"), at(20), &timing).2.unwrap();
    let figures =
        "removed 2 times within an hour; before that, the image filesystem is used to 86.0 %";
    assert!(
        said.contains("spec.pin") && said.contains(figures),
        "{said}"
    );
    let second = plan(&world, 2, at(20));
    assert_eq!(
        (second.start.len(), second.wake),
        (0, Some(Duration::from_secs(620)))
    );
}

#[test]
fn a_secret_is_watched_for_an_image_that_fails_and_for_none_that_is_there() {
    let mut world = world(&[("a", 0)], &[("a", None)]);
    let secret = Arc::new(SecretName {
        namespace: "ns".to_owned(),
        name: "s".to_owned(),
    });
    let Known::Known(desired) = &mut world.desired else {
        panic!("it is known");
    };
    desired.images.get_mut(&key("a")).unwrap().secrets = vec![Arc::clone(&secret)];
    let missing = CredentialProblem {
        reason: Some(CredentialReason::MissingSecret),
        message: "it is not there".to_owned(),
    };
    let read = [(Arc::clone(&secret), Some(missing))].into();
    world.read_credentials(&key("a"), read, &BTreeMap::new());
    assert!(!world.credentials().0);
    assert!(world.awaited_secrets().is_empty());
    world.has([(key("a"), None)].into(), at(1), &Timing::default(), 0.5);
    fail(&mut world, "a", Reason::Unauthorized, at(2));
    assert_eq!(world.awaited_secrets(), [secret].into());
}

#[test]
fn who_is_asked_for_with_which_credentials_is_found_out_before_a_registry_with_a_limit_is_asked() {
    let images = ["r.io/a", "r.io/b", "r.io/c"];
    let mut world = world(&images.map(|image| (image, 0)), &[]);
    let secret = Arc::new(SecretName {
        namespace: "ns".to_owned(),
        name: "s".to_owned(),
    });
    let Known::Known(desired) = &mut world.desired else {
        panic!("it is known");
    };
    for wanted in desired.images.values_mut() {
        wanted.secrets = vec![Arc::clone(&secret)];
    }
    let (nobody, team) = (Credentials::new(), Credentials::from(["ns/s".into()]));
    world.asks_as(&key("r.io/a"), nobody.clone());
    fail(&mut world, "r.io/a", Reason::RateLimited, at(0));
    // Nothing is known of the others: they read their credentials, and one finds some.
    let now = at(1);
    assert_eq!(plan(&world, 2, now).start, keys(&["r.io/b", "r.io/c"]));
    let limits = [nobody.clone()].into();
    assert_eq!(world.limits(&key("r.io/b")), limits);
    for (image, found) in [("r.io/b", &nobody), ("r.io/c", &team)] {
        world.started(key(image), false, now);
        world.asks_as(&key(image), found.clone());
        let outcome = Outcome::Limited;
        world.ended(&key(image), outcome, now, &Timing::default(), 0.5);
    }
    assert_eq!(plan(&world, 2, now).start, keys(&["r.io/c"]));
    let (_, reason, _) = world.state(&key("r.io/b"), now, &Timing::default());
    assert_eq!(reason, Some(Reason::RateLimited));
    assert_eq!(world.memory[&key("r.io/b")].failures, 0);
    // When the time is over one of those asks, and only what it is known to ask with is no limit for it.
    assert_eq!(plan(&world, 9, at(601)).start.len(), 2);
    assert!(world.limits(&key("r.io/b")).is_empty());
    assert_eq!(world.limits(&key("r.io/c")), limits);
    // A Secret that changed may have credentials now.
    world.secrets_changed(&[((*secret).clone(), 1)].into());
    assert_eq!(plan(&world, 9, now).start.len(), 3);
}

#[test]
fn a_refresh_has_its_turn_at_a_registry_that_cannot_give_another_image() {
    let mut world = world(
        &[("r.io/broken", 9), ("r.io/app", 0)],
        &[("r.io/app", None)],
    );
    let Known::Known(desired) = &mut world.desired else {
        panic!("it is known");
    };
    let app = desired.images.get_mut(&key("r.io/app")).unwrap();
    app.refresh = Some(Duration::from_mins(1));
    fail(
        &mut world,
        "r.io/broken",
        Reason::RegistryUnavailable,
        at(1),
    );
    assert_eq!(plan(&world, 2, at(10)).start, keys(&[]));
    assert_eq!(plan(&world, 2, at(100)).start, keys(&["r.io/app"]));
    fail(&mut world, "r.io/app", Reason::RegistryUnavailable, at(100));
    assert_eq!(plan(&world, 2, at(200)).start, keys(&["r.io/broken"]));
}

#[test]
fn a_registry_that_takes_questions_and_never_answers_holds_up_no_other() {
    let silent: Vec<String> = (0..20).map(|n| format!("silent.io/{n}")).collect();
    let mut images: Vec<_> = silent.iter().map(|image| (image.as_str(), 9)).collect();
    images.push(("good.io/a", 0));
    let mut world = world(&images, &[]);
    let timing = Timing::default();
    let stall = |world: &mut World, image: &str, from: u64, seen: Download| {
        world.started(key(image), false, at(from));
        let sight = Sight {
            pulls: [(key(image), seen)].into(),
            ..Sight::default()
        };
        for second in from..=from + 300 {
            world
                .traffic
                .saw(&sight, false, at(second).monotonic, &timing);
        }
        world.tend(at(from + 300).monotonic, &timing);
        let (key, now) = (key(image), at(from + 300));
        assert_eq!(plan(world, 2, now).cancel, std::slice::from_ref(&key));
        world.cancelled(&key);
        let ended = world.ended(&key, Outcome::Cancelled, now, &timing, 0.5);
        ended.news
    };
    let part = Download {
        ingests: vec![Ingest {
            name: "layer".into(),
            offset: 0,
        }],
        complete: 1,
        ..Download::default()
    };
    let nothing = Download::default();
    // What stalls in the middle says nothing of the registry.
    assert_eq!(stall(&mut world, "silent.io/0", 0, part), None);
    assert_eq!(
        plan(&world, 2, at(300)).start,
        keys(&["silent.io/0", "silent.io/1"])
    );
    assert!(stall(&mut world, "silent.io/1", 1000, nothing.clone()).is_some());
    assert_eq!(plan(&world, 2, at(1300)).start, keys(&["good.io/a"]));
    let (_, reason, message) = world.state(&key("silent.io/2"), at(1300), &timing);
    assert_eq!(reason, Some(Reason::RegistryUnavailable));
    assert!(message.unwrap().contains("has not answered"));
    let own = world.state(&key("silent.io/1"), at(1300), &timing).1;
    assert_eq!(own, Some(Reason::Stalled));
    // Later it is asked for one image at a time.
    assert_eq!(plan(&world, 2, at(1310)).start.len(), 2);
    assert_eq!(plan(&world, 2, at(1310)).start[1], key("good.io/a"));
    assert_eq!(stall(&mut world, "silent.io/2", 2000, nothing), None);
    assert_eq!(plan(&world, 2, at(2319)).start, keys(&["good.io/a"]));
    assert_eq!(plan(&world, 2, at(2320)).start.len(), 2);
}

#[test]
fn an_annotation_that_comes_during_a_pull_asks_again_after_it() {
    let (mut world, timing) = (world(&[("a", 0)], &[]), Timing::default());
    let Known::Known(desired) = &mut world.desired else {
        panic!("it is known");
    };
    let spec = crate::api::ImageCacheSpec {
        cache_spec: vec![crate::api::ImageList {
            images: vec!["a".to_owned()],
            ..crate::api::ImageList::default()
        }],
        ..crate::api::ImageCacheSpec::default()
    };
    desired.caches.push(crate::decide::desired::SelectedCache {
        name: crate::decide::CacheName {
            namespace: "ns".into(),
            name: "c".into(),
        },
        uid: "uid".into(),
        generation: 1,
        spec: Arc::new(spec),
        refresh: None,
        lists: vec![crate::decide::desired::SelectedList {
            index: 0,
            images: vec![key("a")],
        }],
    });
    let annotate = |world: &mut World, value: &str, now: Now| {
        let Known::Known(desired) = &mut world.desired else {
            panic!("it is known");
        };
        desired.caches[0].refresh = Some(value.into());
        world.refreshes_asked(None, now.monotonic)
    };
    world.refreshes_asked(None, at(1).monotonic);
    world.started(key("a"), false, at(1));
    assert_eq!(annotate(&mut world, "now", at(2)), keys(&["a"]));
    let pulled = || Outcome::Pulled(image_of(None));
    world.ended(&key("a"), pulled(), at(3), &timing, 0.5);
    assert_eq!(world.refreshes.acted("uid"), None);
    assert_eq!(plan(&world, 2, at(3)).start, keys(&["a"]));
    world.started(key("a"), false, at(3));
    world.ended(&key("a"), pulled(), at(4), &timing, 0.5);
    assert_eq!(world.refreshes.acted("uid"), Some("now"));
    assert_eq!(plan(&world, 2, at(9999)).start, keys(&[]));
}

#[test]
fn wanted_again_means_a_new_start() {
    let mut world = world(&[("a", 0)], &[]);
    fail(&mut world, "a", Reason::NotFound, at(0));
    world.wants(wanting(&[]));
    world.wants(wanting(&[("a", 0)]));
    world.has([(key("a"), None)].into(), at(1), &Timing::default(), 0.5);
    assert_eq!(plan(&world, 2, at(1)).start, keys(&["a"]));
}

#[test]
fn an_image_for_another_platform_is_asked_for_again_after_a_while() {
    let mut world = world(&[("a", 0)], &[]);
    world.started(key("a"), false, at(0));
    let timing = Timing::default();
    world.ended(
        &key("a"),
        Outcome::Pulled(image_of(Some("linux/arm64"))),
        at(1),
        &timing,
        0.5,
    );
    let plan = plan(&world, 2, at(2));
    assert_eq!(
        (plan.start.len(), plan.wake),
        (0, Some(Duration::from_secs(1801)))
    );
    let (state, reason, message) = world.state(&key("a"), at(2), &timing);
    assert_eq!(
        (state, reason),
        (
            crate::api::ImageState::Failed,
            Some(Reason::NoMatchingPlatform)
        )
    );
    assert!(message.unwrap().contains("linux/arm64"));
}

#[test]
fn a_lost_runtime_is_no_attempt() {
    let mut world = world(&[("a", 0)], &[]);
    world.started(key("a"), false, at(0));
    world.ended(
        &key("a"),
        Outcome::RuntimeLost,
        at(1),
        &Timing::default(),
        0.5,
    );
    assert_eq!(world.memory[&key("a")].failures, 0);
    assert_eq!(plan(&world, 2, at(1)).wake, Some(Duration::from_secs(2)));
    assert_eq!(plan(&world, 2, at(2)).start, keys(&["a"]));
}

#[test]
fn the_decision_table_of_a_disk() {
    let disk = |used: &[u64], pulling: &[&str]| {
        let mut world = world(&[("a", 0), ("b", 0)], &[]);
        world.disk = Disk::new(Limits {
            high_percent: 80,
            ..Limits::default()
        });
        world.disk.found(Some(100));
        for image in pulling {
            world.started(key(image), false, at(0));
        }
        for (at, used) in (500..).step_by(100).map(Duration::from_millis).zip(used) {
            let usage = Usage {
                capacity: 100,
                used: *used,
                ..Usage::default()
            };
            let timing = Timing::default();
            world.disk.saw(Some(usage), [at; 2], &timing);
            world.tend(at, &timing);
        }
        world
    };
    let mut landed_in_time = disk(&[81], &["a", "b"]);
    landed_in_time.landed(&key("b"));
    // What it is, the world, what is started, and what is stopped.
    let rows = vec![
        (
            "room for more: pull",
            disk(&[80], &[]),
            &["a", "b"][..],
            &[][..],
        ),
        (
            "the disk was not looked at: not yet",
            disk(&[], &[]),
            &[],
            &[],
        ),
        ("no room: nothing", disk(&[81], &[]), &[], &[]),
        (
            "no room any more: stop",
            disk(&[50, 81], &["a"]),
            &[],
            &["a"],
        ),
        (
            "no room any more for what is there already: let it end",
            landed_in_time,
            &[],
            &["a"],
        ),
        ("a little less: not yet", disk(&[81, 79], &[]), &[], &[]),
        (
            "two points below: pull",
            disk(&[81, 78], &[]),
            &["a", "b"],
            &[],
        ),
    ];
    for (what, world, start, cancel) in rows {
        let plan = plan(&world, 2, at(1));
        assert_eq!(plan.start, keys(start), "{what}");
        assert_eq!(plan.cancel, keys(cancel), "{what}");
    }
}

#[test]
fn an_image_for_which_there_is_no_room_says_so_and_holds_up_no_other() {
    let timing = Timing::default();
    let mut world = world(&[("a", 9), ("b", 0)], &[]);
    world.disk = Disk::new(Limits {
        high_percent: 80,
        ..Limits::default()
    });
    world.disk.found(Some(1000));
    let look = |world: &mut World, seconds| {
        let usage = Usage {
            capacity: 1000,
            used: 500,
            ..Usage::default()
        };
        world
            .disk
            .saw(Some(usage), [at(seconds).monotonic; 2], &timing);
        world.tend(at(seconds).monotonic, &timing);
        plan(world, 1, at(seconds))
    };
    assert_eq!(look(&mut world, 1).start, keys(&["a"]));
    world.started(key("a"), false, at(1));
    let seen = Download {
        bytes: (0, 101),
        ..Download::default()
    };
    let sight = Sight {
        pulls: [(key("a"), seen)].into(),
        ..Sight::default()
    };
    world.traffic.saw(&sight, false, at(2).monotonic, &timing);
    assert_eq!(look(&mut world, 2).cancel, keys(&["a"]), "303 are needed");
    world.cancelled(&key("a"));
    world.ended(&key("a"), Outcome::Cancelled, at(2), &timing, 0.5);
    let next = look(&mut world, 3);
    assert_eq!(next.start, keys(&["b"]));
    assert!(next.needs_room && !next.more);
    let (state, reason, message) = world.state(&key("a"), at(3), &timing);
    let waits = (crate::api::ImageState::Waiting, Some(Reason::DiskPressure));
    assert_eq!((state, reason), waits);
    assert!(message.unwrap().contains("it would be 80.3 %"));
    assert_eq!(world.memory.get(&key("a")).map_or(0, |m| m.failures), 0);
}

#[test]
fn what_filled_the_disk_is_tried_again_when_there_is_room_where_there_was_none() {
    let timing = Timing::default();
    let mut world = world(&[("a", 0)], &[]);
    world.disk = Disk::new(Limits {
        high_percent: 80,
        ..Limits::default()
    });
    world.disk.found(Some(100));
    fail(&mut world, "a", Reason::NoSpace, at(1));
    let look = |world: &mut World, seconds, used| {
        let usage = Usage {
            capacity: 100,
            used,
            ..Usage::default()
        };
        world
            .disk
            .saw(Some(usage), [at(seconds).monotonic; 2], &timing);
        world.tend(at(seconds).monotonic, &timing);
        plan(world, 1, at(seconds))
    };
    let full = look(&mut world, 2, 95);
    assert!(
        full.start.is_empty() && full.needs_room,
        "room is looked for"
    );
    assert_eq!(look(&mut world, 3, 70).start, keys(&["a"]));
    // It was the image itself.
    fail(&mut world, "a", Reason::NoSpace, at(4));
    let soon = look(&mut world, 5, 70);
    assert!(soon.start.is_empty() && !soon.needs_room);
    assert_eq!(soon.wake, Some(Duration::from_secs(124)));
    let state = world.state(&key("a"), at(5), &timing);
    assert_eq!(state.1, Some(Reason::NoSpace));
}

#[test]
fn an_image_whose_registry_is_left_alone_takes_no_room_from_another() {
    let timing = Timing::default();
    let mut world = world(&[("r.io/a", 9), ("r.io/b", 8), ("good.io/c", 0)], &[]);
    fail(&mut world, "r.io/a", Reason::RegistryUnavailable, at(1));
    world.disk = Disk::new(Limits {
        high_percent: 80,
        ..Limits::default()
    });
    world.disk.found(Some(1000));
    let mut sizes = Sight::default();
    for image in ["r.io/b", "good.io/c"] {
        let seen = Download {
            bytes: (0, 60),
            ..Download::default()
        };
        world.started(key(image), false, at(1));
        sizes.pulls.insert(key(image), seen);
    }
    world.traffic.saw(&sizes, false, at(2).monotonic, &timing);
    let look = |world: &mut World, seconds, used| {
        let usage = Usage {
            capacity: 1000,
            used,
            ..Usage::default()
        };
        let now = at(seconds).monotonic;
        world.disk.saw(Some(usage), [now; 2], &timing);
        world.tend(now, &timing);
    };
    look(&mut world, 2, 100);
    for image in ["r.io/b", "good.io/c"] {
        world.ended(&key(image), Outcome::Cancelled, at(2), &timing, 0.5);
    }
    // There is room for one of them, and the registry of the first is asked for another image now.
    look(&mut world, 20, 600);
    let started = plan(&world, 3, at(20)).start;
    assert_eq!(started, keys(&["r.io/b", "good.io/c"][..1]));
    world.started(key("r.io/a"), false, at(20));
    assert_eq!(plan(&world, 3, at(20)).start, keys(&["good.io/c"]));
}
