//! When which summary goes out.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::api::condition::find;
use crate::api::image_cache::NodeState;
use crate::api::{ImageCacheSpec, ImageList};
use crate::decide::fleet::{Contact, Entry, List, Node, Report};

const INTERVALS: Intervals = Intervals {
    gather: Duration::from_millis(200),
    round: Duration::from_secs(1),
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An elected agent whose API server answers when the test says so.
struct Desk {
    ledger: Ledger,
    fleet: Fleet,
}

impl Desk {
    /// All nodes carry the label `on` with the names of the `ImageCache`s that select them.
    fn new(caches: &[&str], nodes: &[&str]) -> Self {
        let stored = BTreeMap::new();
        let mut desk = Self {
            ledger: Ledger::new(&Timing::default(), stored),
            fleet: Fleet::default(),
        };
        for node in nodes {
            desk.node(node, caches);
        }
        desk.know(caches, 1);
        desk
    }

    fn node(&mut self, name: &str, caches: &[&str]) {
        let labels = caches
            .iter()
            .map(|cache| ((*cache).to_owned(), String::new()));
        let ready = Contact::Ready {
            since: Timestamp::UNIX_EPOCH,
        };
        self.fleet
            .apply_node(name, Node::new(name, labels.collect(), ready));
    }

    fn know(&mut self, caches: &[&str], generation: i64) {
        let caches = caches
            .iter()
            .map(|name| (cache_name(name), cache(name, generation)));
        self.ledger.know(&Arc::new(caches.collect()));
    }

    fn report(&mut self, node: &str, cache: &str, generation: i64, ready: bool) {
        let entry = Entry {
            bytes: (0, 0),
            uid: cache.to_owned(),
            generation,
            state: if ready {
                NodeState::Ready
            } else {
                NodeState::Pulling
            },
            lists: vec![List {
                index: 0,
                ready: i32::from(ready),
                total: 1,
            }],
            failures: vec![],
        };
        let report = Report::new(Timestamp::UNIX_EPOCH, None, vec![entry], vec![], false);
        self.fleet.apply_report(node, report);
    }

    /// What goes out at this time, as `name=Ready`.
    fn out(&mut self, now: Duration) -> Vec<Outgoing> {
        let (ledger, wall) = (&mut self.ledger, Timestamp::UNIX_EPOCH);
        ledger.touch(&self.fleet.take_touched());
        ledger.tick(now, &INTERVALS);
        while ledger.look(&self.fleet, now, wall) {}
        ledger.tick(now, &INTERVALS);
        std::iter::from_fn(|| ledger.begin(&self.fleet, now, wall, &INTERVALS)).collect()
    }

    /// The same, and all of it is written.
    fn write(&mut self, now: Duration) -> Vec<String> {
        let all = self.out(now);
        let said = all.iter().map(said).collect();
        for sent in all {
            self.ledger
                .end(sent.clone(), &Outcome::Written(sent.uid), now);
        }
        said
    }

    fn next(&mut self, now: Duration) -> Option<Duration> {
        assert!(self.out(now).is_empty(), "nothing is due yet");
        self.ledger.next(&INTERVALS)
    }
}

fn cache_name(name: &str) -> CacheName {
    CacheName {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    }
}

fn cache(name: &str, generation: i64) -> Arc<Cache> {
    let list = ImageList {
        images: vec!["a".to_owned()],
        node_selector: [(name.to_owned(), String::new())].into(),
        match_expressions: vec![],
    };
    let spec = ImageCacheSpec {
        cache_spec: vec![list],
        ..ImageCacheSpec::default()
    };
    Arc::new(Cache {
        uid: name.to_owned(),
        generation,
        spec: Some((generation, Arc::new(spec))),
        unreadable: None,
    })
}

fn said(sent: &Outgoing) -> String {
    let ready = find(&sent.status.conditions, "Ready").unwrap();
    format!(
        "{}={} {}",
        sent.name.name, ready.status, sent.status.ready_nodes
    )
}

#[test]
fn a_quick_pull_on_three_nodes_is_two_writes() {
    let mut desk = Desk::new(&["c"], &["n1", "n2", "n3"]);
    assert_eq!(desk.next(ms(0)), Some(ms(200)));
    for node in ["n1", "n2", "n3"] {
        desk.report(node, "c", 1, false);
    }
    assert_eq!(desk.next(ms(50)), Some(ms(200)));
    assert_eq!(desk.write(ms(200)), ["c=False 0"]);
    desk.report("n1", "c", 1, true);
    desk.report("n2", "c", 1, true);
    assert_eq!(desk.next(ms(250)), Some(ms(1200)));
    desk.report("n3", "c", 1, true);
    assert_eq!(desk.write(ms(450)), ["c=True 3"]);
    assert_eq!(desk.next(ms(451)), None);
}

#[test]
fn what_is_ready_before_the_first_write_is_one_write() {
    let mut desk = Desk::new(&["c"], &["n"]);
    assert_eq!(desk.next(ms(0)), Some(ms(200)));
    desk.report("n", "c", 1, true);
    assert_eq!(desk.write(ms(20)), ["c=True 1"]);
    assert_eq!(desk.next(ms(5000)), None);
}

#[test]
fn all_that_changes_goes_out_in_rounds() {
    let mut desk = Desk::new(&["a", "b"], &["n1", "n2"]);
    assert_eq!(desk.next(ms(0)), Some(ms(200)));
    assert_eq!(desk.write(ms(200)), ["a=False 0", "b=False 0"]);
    desk.report("n1", "a", 1, false);
    assert_eq!(desk.next(ms(300)), Some(ms(1200)));
    desk.report("n2", "b", 1, false);
    assert_eq!(
        desk.next(ms(1100)),
        Some(ms(1200)),
        "b is part of the round of a"
    );
    assert_eq!(desk.write(ms(1200)), ["a=False 0", "b=False 0"]);
    desk.report("n1", "a", 1, true);
    assert_eq!(
        desk.next(ms(9000)),
        Some(ms(9200)),
        "the last round is long past: only gathered"
    );
}

#[test]
fn a_relabelled_node_is_not_counted_any_longer_than_a_write_takes() {
    let mut desk = Desk::new(&["a", "b"], &["n1", "n2"]);
    for node in ["n1", "n2"] {
        desk.report(node, "a", 1, true);
    }
    assert_eq!(desk.write(ms(0)), ["a=True 2"]);
    assert_eq!(desk.write(ms(200)), ["b=False 0"]);
    desk.node("n3", &["a"]);
    assert_eq!(desk.write(ms(300)), ["a=False 2"]);
    // An edit makes the old condition stale by itself.
    desk.report("n3", "a", 1, true);
    assert_eq!(desk.write(ms(600)), ["a=True 3"]);
    desk.know(&["a", "b"], 2);
    assert_eq!(desk.next(ms(700)), Some(ms(1200)));
}

#[test]
fn what_flaps_is_written_a_few_times_a_second() {
    let mut desk = Desk::new(&["c"], &["n"]);
    desk.report("n", "c", 1, true);
    assert_eq!(desk.write(ms(0)), ["c=True 1"]);
    desk.report("n", "c", 1, false);
    assert_eq!(desk.next(ms(50)), Some(ms(200)));
    desk.report("n", "c", 1, true);
    assert_eq!(desk.next(ms(60)), None, "it is as it was");
    desk.report("n", "c", 1, false);
    assert_eq!(desk.next(ms(70)), Some(ms(200)));
    assert_eq!(desk.write(ms(200)), ["c=False 0"]);
}

#[test]
fn what_changes_during_a_write_is_written_after_it() {
    let mut desk = Desk::new(&["c"], &["n1", "n2"]);
    desk.report("n1", "c", 1, true);
    let sent = desk.out(ms(200)).pop();
    assert!(sent.is_none(), "gathered first");
    let sent = desk.out(ms(400)).pop().unwrap();
    desk.report("n2", "c", 1, true);
    assert_eq!(desk.next(ms(500)), None, "one write at a time");
    desk.ledger
        .end(sent, &Outcome::Written("c".to_owned()), ms(600));
    assert_eq!(desk.write(ms(601)), ["c=True 2"]);
}

#[test]
fn a_write_that_fails_is_tried_again_and_blocks_no_other() {
    let mut desk = Desk::new(&["a", "b"], &["n"]);
    desk.report("n", "a", 1, true);
    let sent = desk.out(ms(0)).pop().unwrap();
    desk.ledger.end(sent, &Outcome::Failed(ms(1000)), ms(10));
    assert_eq!(desk.next(ms(100)), Some(ms(200)));
    assert_eq!(desk.write(ms(200)), ["b=False 0"]);
    assert_eq!(desk.next(ms(300)), Some(ms(1010)));
    assert_eq!(desk.write(ms(1010)), ["a=True 1"]);
}

#[test]
fn an_object_that_is_gone_is_left_alone_and_its_successor_is_not() {
    let mut desk = Desk::new(&["c"], &["n"]);
    desk.report("n", "c", 1, true);
    let sent = desk.out(ms(0)).pop().unwrap();
    desk.ledger.end(sent, &Outcome::Gone, ms(10));
    assert_eq!(desk.next(ms(20)), Some(ms(30_010)));
    let mut anew = Cache::clone(&cache("c", 1));
    anew.uid = "anew".to_owned();
    desk.ledger
        .know(&Arc::new([(cache_name("c"), Arc::new(anew))].into()));
    assert_eq!(desk.next(ms(100)), Some(ms(300)));
    let sent = desk.out(ms(300)).pop().unwrap();
    assert_eq!(
        (sent.uid.as_str(), said(&sent).as_str()),
        ("anew", "c=False 0")
    );
    // It vanishes during the write.
    desk.ledger.know(&Arc::default());
    desk.ledger.end(sent, &Outcome::Gone, ms(310));
    assert_eq!(desk.next(ms(320)), None);
}

#[test]
fn a_new_leader_writes_only_what_is_not_right_already() {
    let mut desk = Desk::new(&["c"], &["n"]);
    desk.report("n", "c", 1, true);
    let sent = desk.out(ms(0)).pop().unwrap();
    for (uid, writes) in [("c", 0), ("another", 1)] {
        let stored = serde_json::from_value(serde_json::to_value(&sent.status).unwrap()).unwrap();
        let stored = (uid.to_owned(), Written::new(stored, false));
        desk.ledger = Ledger::new(&Timing::default(), [(cache_name("c"), stored)].into());
        desk.know(&["c"], 1);
        assert_eq!(desk.out(ms(0)).len(), writes);
    }
}

#[test]
fn a_node_that_never_reports_wakes_the_summary() {
    let mut desk = Desk::new(&["c"], &["n1"]);
    desk.report("n1", "c", 1, true);
    assert_eq!(desk.write(ms(0)), ["c=True 1"]);
    desk.node("n2", &["c"]);
    assert_eq!(desk.write(ms(300)), ["c=False 1"]);
    assert_eq!(desk.next(ms(310)), Some(ms(600_310)));
}

#[test]
fn only_those_that_select_a_node_are_looked_at_for_it() {
    let mut desk = Desk::new(&["a", "b"], &["n"]);
    assert!(desk.next(ms(0)).is_some());
    desk.node("n2", &["b"]);
    desk.ledger.touch(&desk.fleet.take_touched());
    assert_eq!(desk.ledger.stale, [cache_name("b")]);
}

#[test]
fn a_summary_that_went_to_an_object_created_anew_is_set_right() {
    // Whether the new object is heard of before the answer or after it.
    for first in [true, false] {
        let mut desk = Desk::new(&["c"], &["n"]);
        desk.report("n", "c", 1, true);
        let sent = desk.out(ms(0)).pop().unwrap();
        let mut anew = Cache::clone(&cache("c", 1));
        anew.uid = "anew".to_owned();
        let anew = Arc::new(Caches::from([(cache_name("c"), Arc::new(anew))]));
        if first {
            desk.ledger.know(&anew);
        }
        desk.ledger
            .end(sent, &Outcome::Written("anew".to_owned()), ms(10));
        if !first {
            assert_eq!(desk.next(ms(11)), None);
        }
        desk.ledger.know(&anew);
        assert_eq!(desk.write(ms(12)), ["c=False 0"]);
        assert_eq!(desk.next(ms(13)), None);
    }
}

#[test]
fn a_status_that_somebody_else_wrote_is_written_again_and_one_that_went_out_meanwhile_is_not() {
    let mut desk = Desk::new(&["a", "b", "c"], &["n1"]);
    assert_eq!(desk.next(ms(0)), Some(ms(200)));
    let sent = desk.out(ms(200));
    let (names, statuses): (Vec<_>, Vec<_>) = sent
        .iter()
        .map(|sent| (sent.name.name.clone(), sent.status.clone()))
        .unzip();
    assert_eq!(names, ["a", "b", "c"]);
    for sent in sent {
        let uid = sent.uid.clone();
        desk.ledger.end(sent, &Outcome::Written(uid), ms(210));
    }
    let stored = |edited: &str, gone: &str| {
        let written = names
            .iter()
            .zip(&statuses)
            .filter(|(name, _)| *name != gone);
        written
            .map(|(name, status)| {
                let mut status = status.clone();
                status.ready_nodes += i32::from(name == edited) * 99;
                (
                    cache_name(name),
                    (name.clone(), Written::new(status, false)),
                )
            })
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(desk.ledger.found(stored("-", "-"), ms(300)), []);
    assert_eq!(
        desk.ledger.found(stored("a", "b"), ms(200)),
        [],
        "older than the write"
    );
    let edited = desk.ledger.found(stored("a", "b"), ms(5000));
    assert_eq!(edited, [cache_name("a"), cache_name("b")]);
    assert_eq!(desk.next(ms(5000)), Some(ms(5200)));
    assert_eq!(desk.write(ms(5200)).len(), 2);
}
