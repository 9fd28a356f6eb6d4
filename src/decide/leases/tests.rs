#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;

use super::*;
use crate::api::Reason;
use crate::decide::desired::Wanted;
use crate::decide::memory::Failed;
use crate::decide::world::{Outcome, PresentImage, World};
use crate::decide::{Known, Now, Plan, plan};
use crate::image::Reference;

const HOUR: Duration = Duration::from_hours(1);

fn leases(images: &[&str]) -> Leases {
    let mut leases = Leases::default();
    find(&mut leases, images, &BTreeMap::new());
    leases
}

fn find(leases: &mut Leases, images: &[&str], pulls: &BTreeMap<ImageKey, Pull>) {
    let found = images.iter().map(|image| {
        let (id, image) = ((*image).to_owned(), ImageKey::from(*image));
        (id, image, 100 * HOUR)
    });
    leases.found(found, pulls);
}

#[test]
fn a_new_connection_forgets_no_lease_of_a_pull_and_finds_none_that_ends() {
    let mut leases = leases(&["pulled", "gone", "ends"]);
    leases.release("ends");
    let mut world = World::default();
    world.started("pulled".into(), false, at(0));
    find(&mut leases, &["ends", "other"], &world.pulls);
    let held: Vec<_> = leases.held.keys().collect();
    assert_eq!(held, ["other", "pulled"]);
}

#[test]
fn what_is_being_given_up_is_held_no_more_and_blocks_its_image_until_it_is_gone() {
    let mut leases = leases(&["a", "b"]);
    leases.release("a");
    let is_ending = |leases: &Leases, image: &str| leases.is_ending(&image.into(), HOUR);
    assert!(is_ending(&leases, "a") && !is_ending(&leases, "b"));
    leases.released("a");
    assert!(!is_ending(&leases, "a"));
    leases.release("gone");
    assert!(leases.releasing.is_empty());
}

#[test]
fn a_lease_that_could_not_be_given_up_is_held_and_given_up_later() {
    let (mut leases, timing) = (leases(&["a"]), Timing::default());
    let due = |leases: &mut Leases, now| {
        let (desired, asked) = (Desired::default(), Answers::new());
        let (memory, pulls) = (BTreeMap::new(), BTreeMap::new());
        leases.tend(&desired, &asked, &memory, &pulls, now, &timing);
        leases.due(now)
    };
    assert_eq!(due(&mut leases, 80 * HOUR).0, ["a"]);
    leases.release("a");
    leases.not_released("a", 81 * HOUR);
    let none = (Vec::new(), Some(81 * HOUR));
    assert_eq!(due(&mut leases, 80 * HOUR), none);
    assert!(!leases.is_ending(&"a".into(), 80 * HOUR));
    assert_eq!(due(&mut leases, 81 * HOUR).0, ["a"]);
}

#[test]
fn an_image_has_two_leases_in_turns() {
    let image = ImageKey::from("a");
    let mut leases = Leases::default();
    let (first, is_held) = leases.of(&image);
    assert!(!is_held);
    let second = Leases::successor(&first);
    assert_eq!(Leases::successor(&second), first);
    leases.hold(second.clone(), image.clone(), HOUR);
    assert_eq!(leases.of(&image), (second, true));
}

#[test]
fn a_lease_that_is_there_keeps_its_end() {
    let mut leases = leases(&["a"]);
    leases.hold("a".into(), "a".into(), 200 * HOUR);
    let (desired, timing) = (Desired::default(), Timing::default());
    leases.tend(
        &desired,
        &Answers::new(),
        &BTreeMap::new(),
        &BTreeMap::new(),
        77 * HOUR,
        &timing,
    );
    assert_eq!(leases.due(77 * HOUR).0, ["a"]);
}

const IMAGE: &str = "r.io/app:latest";

fn at(seconds: u64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds),
        wall: Timestamp::UNIX_EPOCH,
    }
}

fn image_of(id: &str, platform: Option<&str>) -> PresentImage {
    PresentImage {
        id: id.to_owned(),
        digest: None,
        bytes: 1,
        foreign_platform: platform.map(Into::into),
    }
}

/// A world that wants one image, and what the runtime has of it.
fn world(refresh: Option<Duration>, present: Option<PresentImage>) -> World {
    let mut desired = Desired::default();
    let wanted = Wanted {
        reference: Reference::parse(IMAGE).map_err(Box::new),
        rank: (Reverse(0), [0; 3]),
        paused: false,
        secrets: Vec::new(),
        patience: Duration::from_mins(5),
        refresh,
        removable: false,
        pin: false,
        by: Arc::default(),
    };
    desired.images.insert(IMAGE.into(), wanted);
    let mut world = World::default();
    world.wants(Known::Known(desired));
    look(&mut world, present, 0);
    world
}

fn look(world: &mut World, present: Option<PresentImage>, seconds: u64) {
    let answer = [(IMAGE.into(), present.map(Arc::new))].into();
    world.has(answer, at(seconds), &Timing::default(), 0.5);
}

fn start(world: &mut World, seconds: u64) {
    let (id, resumes) = world.leases.of(&IMAGE.into());
    let expires = Duration::from_secs(seconds) + Timing::default().lease;
    world.leases.hold(id, IMAGE.into(), expires);
    world.started(IMAGE.into(), resumes, at(seconds));
}

fn end(world: &mut World, outcome: Outcome, seconds: u64) {
    let timing = Timing::default();
    world.ended(&IMAGE.into(), outcome, at(seconds), &timing, 0.5);
}

fn plan_at(world: &mut World, seconds: u64) -> Plan {
    world.tend(Duration::from_secs(seconds), &Timing::default());
    plan(world, 1, at(seconds))
}

fn failed(reason: Reason) -> Outcome {
    Outcome::Failed(Failed {
        reason,
        message: "no".to_owned(),
    })
}

#[test]
fn a_refresh_that_did_not_end_well_keeps_its_lease_until_one_does() {
    let interval = Duration::from_mins(1);
    for outcome in [
        Outcome::Cancelled,
        Outcome::RuntimeLost,
        failed(Reason::Stalled),
        failed(Reason::RegistryUnavailable),
    ] {
        let mut world = world(Some(interval), Some(image_of("old", None)));
        start(&mut world, 60);
        let what = format!("{outcome:?}");
        end(&mut world, outcome, 61);
        assert!(plan_at(&mut world, 61).release.is_empty(), "{what}");
        let (id, resumes) = world.leases.of(&IMAGE.into());
        assert!(resumes, "{what}");
        // Neither does it last for ever: it is replaced in time.
        let late = 6 * 24 * 3600 + 61;
        let plan = plan_at(&mut world, late);
        assert_eq!((plan.renew, plan.start.len()), (vec![id], 0), "{what}");

        start(&mut world, 62);
        end(&mut world, Outcome::Pulled(image_of("new", None)), 63);
        assert_eq!(plan_at(&mut world, 63).release.len(), 1, "{what}");
    }
}

#[test]
fn a_refresh_that_nobody_asks_for_any_more_keeps_no_lease() {
    let mut world = world(Some(Duration::from_mins(1)), Some(image_of("old", None)));
    start(&mut world, 60);
    end(&mut world, Outcome::Cancelled, 61);
    let Known::Known(desired) = &mut world.desired else {
        panic!("it is known");
    };
    desired
        .images
        .get_mut(&ImageKey::from(IMAGE))
        .unwrap()
        .refresh = None;
    assert_eq!(plan_at(&mut world, 62).release.len(), 1);
}

#[test]
fn the_next_process_goes_on_with_a_refresh_that_this_one_began() {
    let id = || lease_id(&IMAGE.into());
    for (refresh, is_kept) in [(Some(Duration::from_mins(1)), true), (None, false)] {
        let mut world = world(refresh, Some(image_of("old", None)));
        world
            .leases
            .found([(id(), IMAGE.into(), 100 * HOUR)], &BTreeMap::new());
        assert_eq!(plan_at(&mut world, 1).release.is_empty(), is_kept);
    }
}

#[test]
fn an_image_that_somebody_else_brought_needs_no_lease_whatever_its_pull_has_left() {
    let mut world = world(Some(Duration::from_mins(1)), None);
    start(&mut world, 1);
    end(&mut world, Outcome::Cancelled, 2);
    assert!(plan_at(&mut world, 2).release.is_empty());
    look(&mut world, Some(image_of("new", None)), 3);
    assert_eq!(plan_at(&mut world, 3).release.len(), 1);
}

#[test]
fn an_image_for_another_platform_keeps_what_an_interrupted_pull_of_it_has() {
    let foreign = || image_of("foreign", Some("linux/arm64"));
    let mut world = world(None, Some(foreign()));
    start(&mut world, 1);
    end(&mut world, Outcome::Cancelled, 2);
    assert!(plan_at(&mut world, 2).release.is_empty());
    start(&mut world, 3);
    end(&mut world, Outcome::Pulled(foreign()), 4);
    assert_eq!(plan_at(&mut world, 4).release.len(), 1);
}

#[test]
fn nothing_is_started_under_a_lease_that_is_given_up_at_the_same_time() {
    let mut world = world(None, Some(image_of("old", None)));
    start(&mut world, 1);
    end(&mut world, Outcome::Pulled(image_of("new", None)), 2);
    // An annotation asks again at once.
    let memory = world.memory.get_mut(&ImageKey::from(IMAGE)).unwrap();
    memory.refresh.asked = Some(Duration::from_secs(2));
    let plan = plan_at(&mut world, 2);
    assert_eq!((plan.release.len(), plan.start.len()), (1, 0));
    let id = plan.release[0].clone();
    world.leases.release(&id);
    assert!(plan_at(&mut world, 3).start.is_empty());
    world.leases.released(&id);
    assert_eq!(plan_at(&mut world, 3).start.len(), 1);
}
