#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use jiff::Timestamp;

use super::*;
use crate::api::{Ensure, ImageCacheSpec, ImageList, ImageState, Reason, RemovalPolicy, SpecError};
use crate::decide::holdings::{Holding, Pin};
use crate::decide::inputs::{Cache, CacheName, Caches, Inputs, IsCurrent, Known, Node};
use crate::decide::world::Runtime;
use crate::decide::{Now, PresentImage, desired, plan};

const A: &str = "r.io/a:1";
const ID: &str = "sha256:a";

fn at(seconds: u64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds),
        wall: Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap(),
    }
}

fn spec(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        cache_spec: vec![ImageList {
            images: images.iter().map(ToString::to_string).collect(),
            ..ImageList::default()
        }],
        ..ImageCacheSpec::default()
    }
}

fn removing(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        removal_policy: RemovalPolicy::Remove,
        ..spec(images)
    }
}

fn absent(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        ensure: Ensure::Absent,
        ..spec(images)
    }
}

fn pinning(images: &[&str]) -> ImageCacheSpec {
    ImageCacheSpec {
        pin: true,
        ..spec(images)
    }
}

fn inputs(specs: &[(&str, ImageCacheSpec)]) -> Inputs {
    let cache = |spec: &ImageCacheSpec| Cache {
        uid: "u".into(),
        generation: 1,
        spec: Some((1, Arc::new(spec.clone()))),
        unreadable: None,
        refresh: None,
    };
    let caches: Caches = specs
        .iter()
        .map(|(namespace, spec)| {
            let name = CacheName {
                namespace: (*namespace).into(),
                name: "c".into(),
            };
            (name, Arc::new(cache(spec)))
        })
        .collect();
    Inputs {
        caches: Known::Known(Arc::new(caches)),
        node: Known::Known(Node::default()),
        is_current: IsCurrent {
            caches: true,
            node: true,
        },
        ..Inputs::default()
    }
}

/// An image under these names, of which the agent has pulled those with a policy.
fn holding(names: &[&str], own: &[(&str, bool)]) -> Holding {
    Holding {
        names: names.iter().map(|name| (*name).into()).collect(),
        bytes: 10,
        pulled: own
            .iter()
            .map(|(name, removable)| ((*name).into(), *removable))
            .collect(),
        pin: Pin::None,
        created: None,
    }
}

/// The runtime has `A` as the agent's own, to be removed or not, and is asked by whoever `inputs` name.
fn world(inputs: &Inputs, held: Holding) -> World {
    let mut world = World::default();
    world.wants(desired(inputs));
    let image = PresentImage {
        id: ID.into(),
        digest: None,
        bytes: 10,
        foreign_platform: None,
    };
    let wanted = world.desired.known().unwrap();
    let keys: Vec<_> = wanted
        .images
        .keys()
        .chain(wanted.absent.keys())
        .cloned()
        .collect();
    let answers = keys
        .into_iter()
        .map(|key| {
            let found = held.names.contains(&key).then(|| Arc::new(image.clone()));
            (key, found)
        })
        .collect();
    world.has(answers, at(0), &Timing::default(), 0.5);
    world.holdings.insert(ID.into(), held);
    world
}

/// What is done at this time.
fn done(world: &mut World, seconds: u64) -> Vec<Chore> {
    world.tend(at(seconds).monotonic, &Timing::default());
    plan(world, 2, at(seconds)).chores
}

fn own_name(key: &str) -> Own {
    Own {
        key: key.into(),
        id: ID.into(),
    }
}

fn remove(key: &str) -> Chore {
    Chore::Remove(own_name(key))
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn the_decision_table_of_what_is_there() {
    let own = |removable| holding(&[A], &[(A, removable)]);
    let found = || holding(&[A], &[]);
    let pinned = |pin| Holding { pin, ..found() };
    let mark = |removable| Chore::Mark {
        own: own_name(A),
        removable,
    };
    let other = "r.io/other:1";
    let rows = [
        (
            "wanted: nothing",
            vec![("x", spec(&[A]))],
            own(false),
            vec![],
        ),
        ("nobody, Keep: nothing", vec![], own(false), vec![]),
        (
            "nobody, Remove: removed",
            vec![],
            own(true),
            vec![remove(A)],
        ),
        ("nobody, not the agent's: nothing", vec![], found(), vec![]),
        (
            "dropped from its list, Remove: removed",
            vec![("x", removing(&[other]))],
            own(true),
            vec![remove(A)],
        ),
        (
            "wanted in another namespace: nothing",
            vec![("x", removing(&[other])), ("y", removing(&[A]))],
            own(true),
            vec![],
        ),
        (
            "to be absent, Keep: removed",
            vec![("x", absent(&[A]))],
            own(false),
            vec![remove(A)],
        ),
        (
            "to be absent, not the agent's: nothing",
            vec![("x", absent(&[A]))],
            found(),
            vec![],
        ),
        (
            "to be absent, and wanted: nothing",
            vec![("x", absent(&[A])), ("y", spec(&[A]))],
            own(false),
            vec![],
        ),
        (
            "wanted by one to be removed and by one to be kept: kept",
            vec![("x", removing(&[A])), ("y", spec(&[A]))],
            own(true),
            vec![mark(false)],
        ),
        (
            "the policy changed: noted",
            vec![("x", removing(&[A]))],
            own(false),
            vec![mark(true)],
        ),
        (
            "to be pinned: pinned",
            vec![("x", pinning(&[A]))],
            found(),
            vec![Chore::Pin(ID.into())],
        ),
        (
            "pinned already: nothing",
            vec![("x", pinning(&[A]))],
            pinned(Pin::Ours),
            vec![],
        ),
        (
            "pinned by somebody else: nothing",
            vec![("x", pinning(&[A]))],
            pinned(Pin::Foreign),
            vec![],
        ),
        (
            "nobody asks for the pin: unpinned",
            vec![("x", spec(&[A]))],
            pinned(Pin::Ours),
            vec![Chore::Unpin(ID.into())],
        ),
        (
            "nobody wants it any more: unpinned",
            vec![],
            pinned(Pin::Ours),
            vec![Chore::Unpin(ID.into())],
        ),
        (
            "somebody else's pin stays",
            vec![],
            pinned(Pin::Foreign),
            vec![],
        ),
    ];
    for (what, specs, held, expected) in rows {
        let mut world = world(&inputs(&specs), held);
        let early = done(&mut world, 0);
        let is_removal = |chore: &Chore| matches!(chore, Chore::Remove(_));
        assert!(
            !early.iter().any(is_removal),
            "{what}: an edit may be mended"
        );
        assert_eq!(done(&mut world, 600), expected, "{what}");
        assert_eq!(
            plan(&world, 2, at(600)).chores,
            expected,
            "{what}: planning twice"
        );
    }
}

#[test]
fn what_a_paused_object_wants_gone_stays() {
    let paused = ImageCacheSpec {
        paused: true,
        ..absent(&[A])
    };
    let mut world = world(&inputs(&[("x", paused)]), holding(&[A], &[(A, false)]));
    done(&mut world, 0);
    assert_eq!(done(&mut world, 600), []);
}

#[test]
fn nothing_goes_while_it_is_not_known_what_is_wanted() {
    let gone = inputs(&[]);
    let mut not_current = gone.clone();
    not_current.is_current.caches = false;
    let mut without_node = gone.clone();
    without_node.is_current.node = false;
    let mut unknown = gone.clone();
    unknown.caches = Known::Unknown;
    let mut nodeless = gone.clone();
    nodeless.node = Known::Unknown;
    let mut unreadable = inputs(&[("x", spec(&["r.io/other:1"]))]);
    if let Known::Known(caches) = &mut unreadable.caches {
        for cache in Arc::make_mut(caches).values_mut() {
            let error = SpecError::Unsupported {
                field: "spec.new".into(),
            };
            Arc::make_mut(cache).unreadable = Some(error);
        }
    }
    for doubtful in [not_current, without_node, unknown, nodeless, unreadable] {
        let mut world = world(&gone, holding(&[A], &[(A, true)]));
        done(&mut world, 0);
        // A moment before its time.
        world.wants(desired(&doubtful));
        assert_eq!(done(&mut world, 599), []);
        assert_eq!(done(&mut world, 5000), [], "{doubtful:?}");
        // That time does not count.
        world.wants(desired(&gone));
        assert_eq!(done(&mut world, 5001), []);
        assert_eq!(done(&mut world, 5602), [remove(A)]);
    }
}

#[test]
fn a_spec_that_cannot_be_read_may_want_anything() {
    let mut world = world(&inputs(&[]), holding(&[A], &[(A, true)]));
    done(&mut world, 0);
    let mut unreadable = inputs(&[("x", spec(&["r.io/other:1"]))]);
    if let Known::Known(caches) = &mut unreadable.caches {
        for cache in Arc::make_mut(caches).values_mut() {
            let error = SpecError::Unsupported {
                field: "spec.new".into(),
            };
            Arc::make_mut(cache).unreadable = Some(error);
        }
    }
    world.wants(desired(&unreadable));
    done(&mut world, 1);
    let (_, leaving) = world.removals.of(&A.into()).unwrap();
    let (state, reason, message) = leaving.state();
    assert_eq!((state, reason), (ImageState::Removing, None));
    assert!(message.unwrap().contains("x/c"));
}

#[test]
fn the_image_that_a_tag_meant_before_is_wanted_by_nobody() {
    let mut old = holding(&["r.io/a@sha256:old"], &[(A, true)]);
    old.pin = Pin::Ours;
    let mut world = world(&inputs(&[("x", pinning(&[A]))]), old);
    let new = PresentImage {
        id: "sha256:new".into(),
        digest: None,
        bytes: 1,
        foreign_platform: None,
    };
    let answers = [(A.into(), Some(Arc::new(new)))].into();
    world.has(answers, at(0), &Timing::default(), 0.5);
    let mut held = holding(&[A], &[(A, false)]);
    held.pin = Pin::Ours;
    world.holdings.insert("sha256:new".into(), held);
    assert_eq!(done(&mut world, 0), [Chore::Unpin(ID.into())]);
    assert_eq!(done(&mut world, 600), [Chore::Unpin(ID.into()), remove(A)]);
}

#[test]
fn one_batch_follows_the_other_and_what_keeps_an_image_is_looked_at_again() {
    let timing = Timing::default();
    let mut world = world(&inputs(&[]), holding(&[A], &[(A, true)]));
    done(&mut world, 0);
    let batch = done(&mut world, 600);
    world.chores.began(&batch);
    assert!(world.chores.removes(&A.into()));
    assert_eq!(done(&mut world, 601), [], "it is being done");
    let own = own_name(A);
    let kept = (Reason::InUse, "a container".to_owned());
    world
        .removals
        .kept(&own, kept.clone(), at(601).monotonic, &timing);
    world.chores.ended(true, at(601).monotonic, &timing);
    assert_eq!(
        done(&mut world, 700),
        [],
        "the runtime was not looked at since"
    );
    world.chores.seen();
    assert_eq!(world.removals.of(&A.into()).unwrap().1.kept, Some(kept));
    assert_eq!(done(&mut world, 700), [remove(A)]);

    world.chores.began(&batch);
    world.chores.ended(false, at(700).monotonic, &timing);
    world.chores.seen();
    assert_eq!(done(&mut world, 705), [], "it failed a moment ago");
    assert_eq!(done(&mut world, 710), [remove(A)]);
}

#[test]
fn a_runtime_that_is_away_is_not_written_into() {
    let mut world = world(&inputs(&[]), holding(&[A], &[(A, true)]));
    done(&mut world, 0);
    world.runtime = Runtime::Down("gone".into());
    assert_eq!(done(&mut world, 600), []);
}
