#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::api::Reason;
use crate::decide::desired::{Desired, Wanted};
use crate::decide::memory::Failed;
use crate::decide::world::{Outcome, Overtaken, Pull};
use crate::image::Reference;

const MIB: u64 = 1 << 20;

const LIMITS: Limits = Limits {
    high_percent: 80,
    max_pinned_percent: 50,
    reclaim: false,
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Of 1,000 MiB so many are used.
fn usage(used: u64) -> Usage {
    Usage {
        capacity: 1000 * MIB,
        used: used * MIB,
        inodes: 1000,
        used_inodes: 0,
    }
}

/// A guard, the pulls that it watches, and the time.
struct Node {
    disk: Disk,
    desired: Desired,
    pulls: BTreeMap<ImageKey, Pull>,
    bytes: BTreeMap<ImageKey, (u64, u64)>,
    now: u64,
}

impl Node {
    fn new(images: &[&str]) -> Self {
        let mut disk = Disk::new(LIMITS);
        disk.found(Some(1000 * MIB));
        let wanted = |name: &&str| {
            let wanted = Wanted {
                reference: Reference::parse(name).map_err(Box::new),
                rank: (Reverse(0), [0; 3]),
                paused: false,
                secrets: Vec::new(),
                patience: Duration::from_mins(5),
                refresh: None,
                removable: false,
                pin: false,
                by: Arc::default(),
            };
            (ImageKey::from(*name), wanted)
        };
        Self {
            disk,
            desired: Desired {
                images: images.iter().map(wanted).collect(),
                ..Desired::default()
            },
            pulls: BTreeMap::new(),
            bytes: BTreeMap::new(),
            now: 0,
        }
    }

    fn look(&mut self, usage: Usage) -> bool {
        self.now += 1;
        let timing = Timing::default();
        self.disk.saw(Some(usage), [at(self.now); 2], &timing);
        self.tend()
    }

    fn tend(&mut self) -> bool {
        let bytes = self.bytes.iter().map(|(key, bytes)| (key, *bytes));
        self.disk.tend(
            &self.desired,
            &self.pulls,
            bytes,
            at(self.now),
            &Timing::default(),
        )
    }

    fn start(&mut self, image: &str) {
        let pull = Pull {
            since: at(self.now),
            cancelled: false,
            landed: false,
            stalled: None,
            is_refresh: false,
            overtaken: Overtaken::default(),
        };
        self.pulls.insert(image.into(), pull);
    }

    /// So many MiB of a running pull are there, of so many.
    fn sees(&mut self, image: &str, done: u64, total: u64) {
        self.bytes.insert(image.into(), (done * MIB, total * MIB));
    }

    fn end(&mut self, image: &str, outcome: &Outcome) {
        self.pulls.remove(image);
        self.bytes.remove(image);
        self.now += 1;
        self.disk.ended(&image.into(), outcome, at(self.now));
    }

    fn gate(&self) -> Gate {
        self.disk.gate(at(self.now))
    }

    fn message(&self, image: &str) -> &str {
        self.disk.obstacle(&image.into()).unwrap_or_default()
    }
}

fn no_space() -> Outcome {
    Outcome::Failed(Failed {
        reason: Reason::NoSpace,
        message: "no space left on device".into(),
    })
}

#[test]
fn it_closes_beyond_the_limit_and_opens_two_points_below_with_the_figures_from_when_it_closed() {
    let mut node = Node::new(&["a"]);
    assert_eq!(node.gate(), Gate::Unseen, "nobody has looked");
    for (used, gate, opens) in [
        (800, Gate::Open, false),
        (801, Gate::Closed, false),
        (900, Gate::Closed, false),
        (781, Gate::Closed, false),
        (780, Gate::Open, true),
        (799, Gate::Open, false),
    ] {
        assert_eq!(
            (node.look(usage(used)), node.gate()),
            (opens, gate),
            "{used}"
        );
        if gate == Gate::Closed {
            assert_eq!(
                node.message("a"),
                "the image filesystem is used to 80.1 % (801.0 of 1000.0 MiB); pulls go on at 78 % (--disk-high-percent=80)"
            );
        }
    }
    assert_eq!(node.message("a"), "");
}

#[test]
fn inodes_count_like_bytes_where_there_is_a_limit_of_them() {
    let mut node = Node::new(&["a"]);
    let of = |used_inodes| Usage {
        used_inodes,
        ..usage(0)
    };
    node.look(of(801));
    assert_eq!(node.gate(), Gate::Closed);
    assert_eq!(
        node.message("a"),
        "80.1 % of the inodes of the image filesystem are used (801 of 1000); pulls go on at 78 % (--disk-high-percent=80)"
    );
    assert_eq!(node.disk.lacks(&node.pulls), [(None, Lack::Inodes)]);
    node.look(of(781));
    assert_eq!(node.gate(), Gate::Closed);
    assert!(node.look(of(780)));
    node.look(Usage {
        inodes: 0,
        ..usage(0)
    });
    assert_eq!(node.gate(), Gate::Open);
}

#[test]
fn a_pull_is_stopped_once_its_size_is_known_and_goes_on_when_there_is_room_for_all_of_it() {
    let mut node = Node::new(&["a", "b"]);
    node.look(usage(500));
    node.start("a");
    node.sees("a", 0, 0);
    node.look(usage(500));
    assert_eq!(node.message("a"), "", "its size is not known");
    // 3 x 110 MiB, of which 10 are there already.
    node.sees("a", 10, 110);
    node.look(usage(510));
    assert_eq!(
        node.message("a"),
        "the image filesystem is used to 51.0 % (510.0 of 1000.0 MiB); with this image, which takes about 3 times its 110.0 MiB, it would be 83.0 %; pulls go on at 78 % (--disk-high-percent=80)"
    );
    assert_eq!(node.gate(), Gate::Open, "others can be pulled");
    assert_eq!(node.message("b"), "");
    node.end("a", &Outcome::Cancelled);
    node.look(usage(461));
    assert_ne!(node.message("a"), "", "78.1 %");
    assert_eq!(
        node.disk.lacks(&node.pulls),
        [(Some(&"a".into()), Lack::Bytes(MIB))]
    );
    node.look(usage(460));
    assert_eq!(node.message("a"), "");
    // A pull for which there was room is not judged again: unpacking it takes what it was taken to need.
    node.start("a");
    node.sees("a", 10, 110);
    node.look(usage(470));
    node.sees("a", 110, 110);
    node.look(usage(790));
    assert_eq!(node.message("a"), "");
    node.look(usage(801));
    assert_ne!(node.message("a"), "", "but that the disk is full counts");
}

#[test]
fn pulls_share_the_room_and_the_first_has_it() {
    let mut node = Node::new(&["a", "b", "c"]);
    node.look(usage(500));
    node.start("b");
    node.now += 1;
    node.start("a");
    node.sees("a", 0, 60);
    node.sees("b", 0, 60);
    node.look(usage(500));
    assert_eq!(node.message("b"), "");
    assert!(
        node.message("a").contains(
            "with this image and those that are being pulled, which takes about 3 times its 60.0 MiB, it would be 86.0 %"
        ),
        "{}",
        node.message("a")
    );
    node.end("a", &Outcome::Cancelled);
    let mut room = node.disk.room(&node.pulls);
    assert_eq!(room, 120 * MIB);
    assert!(!node.disk.fits(&"a".into(), &mut room));
    assert!(
        node.disk.fits(&"c".into(), &mut room),
        "nobody knows its size"
    );
    // It has landed: what it took is in use.
    node.pulls.get_mut("b").unwrap().landed = true;
    node.look(usage(620));
    assert_ne!(node.message("a"), "", "80 %");
    node.look(usage(600));
    assert_eq!(node.message("a"), "");
    let mut room = node.disk.room(&node.pulls);
    assert!(node.disk.fits(&"a".into(), &mut room));
    assert_eq!(room, 20 * MIB);
}

#[test]
fn a_full_disk_stops_all_pulls_until_the_next_look_and_what_came_of_the_image_is_gone() {
    let mut node = Node::new(&["a", "b"]);
    node.look(usage(500));
    node.start("a");
    node.sees("a", 50, 60);
    node.tend();
    node.end("a", &no_space());
    assert_eq!(node.gate(), Gate::Closed);
    assert!(
        node.message("b")
            .starts_with("the disk filled up while a was pulled; ")
    );
    assert!(node.disk.awaits_room());
    assert!(!node.tend(), "the last look is older");
    assert_eq!(node.gate(), Gate::Closed);
    assert!(
        !node.look(usage(500)),
        "it is the image that is too large: it waits its time"
    );
    assert_eq!(node.gate(), Gate::Open);
    let mut room = node.disk.room(&node.pulls);
    node.disk.fits(&"a".into(), &mut room);
    assert_eq!(room, 120 * MIB, "all 180 MiB are to come");
    // Something else has filled it.
    node.end("a", &no_space());
    assert!(!node.look(usage(990)));
    assert_eq!(node.gate(), Gate::Closed);
    assert!(
        node.look(usage(780)),
        "there is room again where there was none"
    );
}

#[test]
fn an_image_that_takes_more_than_it_seemed_to_is_tried_again_later_and_later() {
    let mut node = Node::new(&["a"]);
    let mut waits = Vec::new();
    for _ in 0..3 {
        node.look(usage(500));
        assert_eq!((node.gate(), node.message("a")), (Gate::Open, ""));
        node.start("a");
        node.sees("a", 1, 1);
        node.look(usage(900));
        assert_eq!(node.gate(), Gate::Closed);
        assert!(!node.look(usage(500)), "it is still being stopped");
        assert_eq!(node.gate(), Gate::Closed);
        node.end("a", &Outcome::Cancelled);
        assert!(!node.look(usage(500)));
        assert_eq!(node.gate(), Gate::Open, "others may be pulled");
        assert!(node.message("a").ends_with("so it is tried again later"));
        assert_eq!(node.disk.lacks(&node.pulls), []);
        let since = node.now;
        while !node.message("a").is_empty() {
            node.look(usage(500));
        }
        waits.push(node.now - since);
    }
    assert_eq!(waits, [60, 120, 240]);
    // Something else has filled the disk: that is no reason to wait.
    node.start("a");
    node.look(usage(900));
    node.end("a", &Outcome::Cancelled);
    node.look(usage(900));
    assert!(node.look(usage(500)));
    assert_eq!((node.gate(), node.message("a")), (Gate::Open, ""));
}

#[test]
fn the_nodes_own_condition_counts_and_so_does_that_it_was_asked() {
    let mut node = Node::new(&["a"]);
    node.disk.ask_node = Some(at(10));
    node.look(usage(0));
    assert_eq!(node.gate(), Gate::Unseen, "it was not asked");
    assert_eq!(node.disk.looks(), [Some(at(2)), Some(at(0))]);
    node.disk.node_said(NodeSays::NoPressure, at(1));
    assert_eq!(node.gate(), Gate::Open);
    assert_eq!(node.disk.looks(), [Some(at(2)), Some(at(11))]);
    node.disk
        .node_said(NodeSays::Pressure("it says so".into()), at(1));
    assert_eq!(
        (node.gate(), node.message("a")),
        (Gate::Closed, "it says so")
    );
    node.disk.node_said(NodeSays::Nothing, at(11));
    assert_eq!(node.gate(), Gate::Closed, "its last word");
    node.disk.node_said(NodeSays::NoPressure, at(21));
    assert_eq!(node.gate(), Gate::Open);
    node.now = 42;
    node.disk
        .saw(Some(usage(0)), [at(42); 2], &Timing::default());
    assert_eq!(node.gate(), Gate::Unseen, "that was long ago");
    node.look(usage(801));
    assert_eq!(
        node.disk.looks()[1],
        None,
        "it is closed whatever the Node says"
    );
    // An API server that is away is not waited for.
    let mut fresh = Node::new(&["a"]);
    fresh.disk.ask_node = Some(at(10));
    fresh.look(usage(0));
    fresh.disk.node_said(NodeSays::Nothing, at(1));
    assert_eq!(fresh.gate(), Gate::Open);
}

#[test]
fn without_a_limit_or_out_of_sight_nothing_is_looked_at_and_nothing_held_back() {
    let mut off = Node::new(&["a"]);
    off.disk = Disk::new(Limits::default());
    off.disk.found(Some(1000 * MIB));
    let mut unseen = Node::new(&["a"]);
    unseen.disk.found(None);
    for (mut node, word, budget) in [
        (off, "turns the guard off", Some(500 * MIB)),
        (unseen, "does not see", None),
    ] {
        assert_eq!(node.disk.looks(), [None, None]);
        node.start("a");
        node.sees("a", 0, 999_999);
        node.tend();
        node.end("a", &no_space());
        node.tend();
        assert_eq!((node.gate(), node.message("a")), (Gate::Open, ""));
        assert_eq!(node.disk.room(&node.pulls), u64::MAX);
        let (is_true, reason, message) = node.disk.condition();
        assert_eq!((is_true, reason), (false, "NoPressure"));
        assert!(message.contains(word), "{message}");
        assert_eq!(node.disk.pin_budget(), budget);
    }
}

#[test]
fn the_condition_says_what_is_in_the_way_and_nothing_when_nobody_needs_room() {
    let mut node = Node::new(&["a", "b"]);
    node.look(usage(801));
    let said = |node: &Node| {
        let (is_true, reason, message) = node.disk.condition();
        (is_true, reason, message.into_owned())
    };
    let first = said(&node);
    assert_eq!((first.0, first.1), (true, "AboveLimit"));
    node.look(usage(950));
    assert_eq!(said(&node), first, "figures that move are not news");
    node.disk.rest();
    node.now += 60;
    node.tend();
    assert_eq!(said(&node).1, "NoPressure");
    assert_eq!(node.gate(), Gate::Unseen, "the next pull needs a look");

    for image in ["a", "b"] {
        node.start(image);
        node.sees(image, 0, 300);
    }
    node.look(usage(0));
    let (is_true, reason, message) = said(&node);
    assert_eq!((is_true, reason), (true, "NoRoom"));
    assert!(
        message.starts_with("a: the image filesystem is used to 0.0 % "),
        "{message}"
    );
    assert!(message.ends_with(" (and 1 more)"), "{message}");
    // Somebody else has brought it.
    node.end("b", &Outcome::Cancelled);
    node.look(usage(0));
    node.disk.arrived(&"b".into());
    node.tend();
    assert_eq!(node.message("b"), "");
    node.start("b");
    node.sees("b", 0, 300);
    node.look(usage(0));
    // Nobody wants one of them any more.
    node.desired.images.remove("a");
    node.end("a", &Outcome::Cancelled);
    node.tend();
    assert!(said(&node).2.starts_with("b: "));
}

#[test]
fn what_stopped_pulls_have_left_is_given_up_after_a_while_and_they_wait() {
    let timing = Timing::default();
    let mut node = Node::new(&["a"]);
    node.look(usage(500));
    node.start("a");
    node.look(usage(801));
    node.end("a", &Outcome::Cancelled);
    node.look(usage(790));
    let closed = at(node.now);
    assert!(!node.disk.gives_up_parts(closed, &timing));
    node.now += timing.lease_kept.as_secs();
    node.look(usage(790));
    let now = at(node.now);
    assert!(node.disk.gives_up_parts(now, &timing));
    assert!(!node.disk.gives_up_parts(now, &timing), "once");
    // It was that: started at once it would do the same again.
    assert!(!node.look(usage(500)));
    assert_eq!(node.gate(), Gate::Open);
    assert!(node.message("a").contains("it is tried again later"));
}

#[test]
fn a_look_that_fails_starts_nothing_and_is_repeated_and_after_several_nobody_looks() {
    let timing = Timing::default();
    let mut node = Node::new(&["a"]);
    node.look(usage(500));
    for miss in 1..5 {
        node.disk.saw(None, [at(node.now); 2], &timing);
        assert_eq!(node.gate(), Gate::Unseen, "{miss}");
        let next = node.disk.looks()[0].unwrap();
        assert!(next > at(node.now));
        node.now = next.as_secs();
    }
    node.disk.saw(None, [at(node.now); 2], &timing);
    assert_eq!(node.disk.looks()[0], None);
    assert_eq!(node.gate(), Gate::Open, "the Node's own condition is left");
}
