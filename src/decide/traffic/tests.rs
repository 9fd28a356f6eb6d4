use super::*;

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_mins(1);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ingests(offsets: &[(&str, u64)]) -> Vec<Ingest> {
    let ingest = |(name, offset): &(&str, u64)| Ingest {
        name: (*name).to_owned(),
        offset: *offset * MIB,
    };
    offsets.iter().map(ingest).collect()
}

fn download(complete: usize, snapshots: usize, offsets: &[(&str, u64)]) -> Download {
    Download {
        bytes: (0, 0),
        ingests: ingests(offsets),
        complete,
        snapshots,
    }
}

fn saw(traffic: &mut Traffic, at: u64, pulls: &[(&str, Download)], others: &[(&str, u64)]) {
    saw_kept(traffic, at, pulls, &[], others);
}

fn saw_kept(
    traffic: &mut Traffic,
    at: u64,
    pulls: &[(&str, Download)],
    kept: &[(&str, u64)],
    others: &[(&str, u64)],
) {
    let pulls = pulls
        .iter()
        .map(|(key, pull)| ((*key).into(), pull.clone()));
    let sight = Sight {
        pulls: pulls.collect(),
        kept: ingests(kept),
        others: Some(ingests(others)),
    };
    traffic.saw(&sight, true, seconds(at), &Timing::default());
}

fn is_stalled(traffic: &Traffic, key: &str, at: u64) -> bool {
    traffic
        .stalled(&key.into(), PATIENCE, seconds(at), &Timing::default())
        .is_some()
}

#[test]
fn a_pull_that_moves_does_not_stall_however_long_it_takes() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    for at in 0..1000 {
        let moved = at / 50;
        saw(
            &mut traffic,
            at,
            &[("a", download(2, 0, &[("l", moved)]))],
            &[],
        );
        assert!(!is_stalled(&traffic, "a", at), "{at}");
    }
    for at in 1000..1011 {
        saw(
            &mut traffic,
            at,
            &[("a", download(2, 0, &[("l", 19)]))],
            &[],
        );
    }
    assert!(is_stalled(&traffic, "a", 1010));
}

#[test]
fn a_registry_that_never_answers_is_a_stall() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(5));
    traffic.asked(&"a".into(), seconds(10));
    for at in 11..70 {
        assert!(!is_stalled(&traffic, "a", at), "{at}");
        saw(&mut traffic, at, &[("a", Download::default())], &[]);
    }
    assert!(is_stalled(&traffic, "a", 70));
    assert!(traffic.is_unanswered(&"a".into()));
}

#[test]
fn only_where_nothing_came_and_nothing_is_in_the_way_the_registry_has_not_answered() {
    let mut traffic = Traffic::default();
    for key in ["a", "b"] {
        traffic.began(key.into(), false, seconds(0));
    }
    assert!(!traffic.is_unanswered(&"a".into()), "nobody has looked");
    let busy = [("b", download(1, 0, &[("l", 0), ("m", 0)]))];
    let pulls = [("a", Download::default()), busy[0].clone()];
    saw(&mut traffic, 1, &pulls, &[]);
    assert!(traffic.is_unanswered(&"a".into()));
    assert!(!traffic.is_unanswered(&"b".into()), "it has a manifest");
    saw(&mut traffic, 2, &pulls, &[("n", 0)]);
    assert!(
        !traffic.is_unanswered(&"a".into()),
        "it may wait for a slot"
    );
    saw(&mut traffic, 3, &[("a", download(1, 0, &[]))], &[]);
    assert!(!traffic.is_unanswered(&"a".into()));
}

#[test]
fn nothing_is_said_of_a_pull_that_nobody_sees() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    assert!(!is_stalled(&traffic, "a", 9999), "no runtime tells");
    saw(&mut traffic, 1, &[("a", Download::default())], &[]);
    assert!(!is_stalled(&traffic, "a", 9999), "it tells no more");
    saw(&mut traffic, 10_000, &[("a", Download::default())], &[]);
    assert!(!is_stalled(&traffic, "a", 10_000), "its time begins anew");
}

#[test]
fn unpacking_has_a_limit_of_its_own() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    let mut look = |at, snapshots| {
        saw(&mut traffic, at, &[("a", download(4, snapshots, &[]))], &[]);
        is_stalled(&traffic, "a", at)
    };
    assert!((1..3601).all(|at| !look(at, 1)));
    assert!(look(3601, 1));
    assert!((3602..7202).all(|at| !look(at, 2)));
}

#[test]
fn what_an_attempt_finds_complete_is_not_taken_for_its_own_unpacking() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), true, seconds(0));
    let mut look = |at, snapshots| {
        saw(&mut traffic, at, &[("a", download(4, snapshots, &[]))], &[]);
        is_stalled(&traffic, "a", at)
    };
    assert!((1..61).all(|at| !look(at, 1)));
    assert!(look(61, 1), "the registry says nothing");
    assert!((62..3600).all(|at| !look(at, 2)), "now it unpacks");
}

#[test]
fn what_comes_after_the_first_look_an_attempt_has_brought_itself() {
    let mut traffic = Traffic::default();
    // What an earlier one left was thrown away.
    traffic.began("a".into(), true, seconds(0));
    saw(&mut traffic, 1, &[("a", Download::default())], &[]);
    for at in 2..100 {
        saw(&mut traffic, at, &[("a", download(4, 1, &[]))], &[]);
        assert!(!is_stalled(&traffic, "a", at), "it unpacks: {at}");
    }
}

#[test]
fn on_shared_slots_whoever_came_first_is_stalled_and_the_next_one_waits() {
    let mut traffic = Traffic::default();
    traffic.began("big".into(), false, seconds(0));
    traffic.began("tiny".into(), false, seconds(0));
    let big = || ("big", download(2, 0, &[("1", 0), ("2", 0), ("3", 0)]));
    saw(&mut traffic, 1, &[big()], &[]);
    for at in 2..62 {
        saw(
            &mut traffic,
            at,
            &[big(), ("tiny", download(2, 0, &[("t", 0)]))],
            &[],
        );
    }
    assert!(is_stalled(&traffic, "big", 62));
    assert!(!is_stalled(&traffic, "tiny", 62));
    // Once the way is free, its own time runs.
    traffic.ended(&"big".into());
    let mut look = |at| {
        saw(
            &mut traffic,
            at,
            &[("tiny", download(2, 0, &[("t", 0)]))],
            &[("1", 0), ("2", 0), ("3", 0)],
        );
        is_stalled(&traffic, "tiny", at)
    };
    assert!((62..121).all(|at| !look(at)));
    assert!(look(121));
}

#[test]
fn one_layer_that_stalls_does_not_hide_behind_others_that_move() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    traffic.began("b".into(), false, seconds(0));
    for at in 1..62 {
        let a = ("a", download(2, 0, &[("1", u64::from(at > 1))]));
        let b = ("b", download(2, 0, &[("2", at), ("3", at)]));
        saw(&mut traffic, at, &[a, b], &[]);
    }
    assert!(is_stalled(&traffic, "a", 62) && !is_stalled(&traffic, "b", 62));
}

#[test]
fn pulls_make_way_for_others_and_go_on_when_these_are_done() {
    let timing = Timing::default();
    let mut traffic = Traffic::default();
    let yielding = |traffic: &Traffic, at| traffic.yielding(seconds(at), &timing);
    // What an interrupted download has left does not move.
    saw(&mut traffic, 1, &[], &[("left", 3)]);
    assert_eq!(yielding(&traffic, 1), Yielding::No);
    saw(&mut traffic, 1, &[], &[("left", 3), ("pod", 0)]);
    assert_eq!(yielding(&traffic, 1), Yielding::No, "gone in a moment?");
    saw(&mut traffic, 2, &[], &[("left", 3), ("pod", 0)]);
    assert_eq!(yielding(&traffic, 2), Yielding::Wholly);
    saw(&mut traffic, 3, &[], &[("left", 3)]);
    assert_eq!(yielding(&traffic, 6), Yielding::Wholly);
    assert_eq!(yielding(&traffic, 7), Yielding::No);
    saw(&mut traffic, 8, &[], &[("left", 4)]);
    assert_eq!(
        yielding(&traffic, 8),
        Yielding::Wholly,
        "somebody goes on with it"
    );
    for at in 9..620 {
        saw(&mut traffic, at, &[], &[("left", at)]);
    }
    assert_eq!(yielding(&traffic, 607), Yielding::Wholly);
    assert_eq!(yielding(&traffic, 608), Yielding::OneAtATime);
    // It stands still: nobody waits for it any more.
    for at in 620..700 {
        saw(&mut traffic, at, &[], &[("left", 619)]);
    }
    assert_eq!(yielding(&traffic, 700), Yielding::No);
}

#[test]
fn what_own_pulls_have_left_is_not_taken_for_the_work_of_others() {
    let timing = Timing::default();
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    saw(&mut traffic, 1, &[("a", download(2, 0, &[("1", 1)]))], &[]);
    traffic.ended(&"a".into());
    // A cancelled download may end a little further than it was last seen.
    saw(&mut traffic, 2, &[], &[("1", 2)]);
    saw(&mut traffic, 9, &[], &[("1", 2)]);
    assert_eq!(traffic.yielding(seconds(9), &timing), Yielding::No);
    saw(&mut traffic, 10, &[], &[("1", 3)]);
    assert_eq!(traffic.yielding(seconds(10), &timing), Yielding::Wholly);
}

#[test]
fn whoever_goes_on_with_what_an_own_pull_has_left_is_somebody_else() {
    let timing = Timing::default();
    let yielding = |traffic: &Traffic, at| traffic.yielding(seconds(at), &timing);
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    traffic.began("b".into(), false, seconds(0));
    let b = |at| ("b", download(2, 0, &[("2", at)]));
    let a = ("a", download(2, 0, &[("1", 1)]));
    saw(&mut traffic, 1, &[a, b(1)], &[]);
    traffic.ended(&"a".into());
    // It stands still, however long, and whether or not its lease is there.
    for at in 2..20 {
        saw_kept(&mut traffic, at, &[b(at)], &[("1", 2)], &[]);
        assert_eq!(yielding(&traffic, at), Yielding::No, "{at}");
    }
    saw(&mut traffic, 20, &[b(20)], &[("1", 2)]);
    saw_kept(&mut traffic, 21, &[b(21)], &[("1", 2)], &[]);
    assert_eq!(yielding(&traffic, 21), Yielding::No);
    // A pod wants the same layer.
    saw_kept(&mut traffic, 22, &[b(22)], &[("1", 3)], &[]);
    assert_eq!(yielding(&traffic, 22), Yielding::Wholly);
    // Once the own pull goes on with it, it is its own.
    traffic.began("a".into(), true, seconds(30));
    for at in 30..40 {
        let a = ("a", download(2, 0, &[("1", at)]));
        saw(&mut traffic, at, &[a, b(at)], &[]);
        assert_eq!(yielding(&traffic, at), Yielding::No, "{at}");
    }
}

#[test]
fn how_a_pull_gets_on_is_told_at_intervals() {
    let mut traffic = Traffic::default();
    traffic.began("a".into(), false, seconds(0));
    let seen = Download {
        bytes: (30 * MIB, 100 * MIB),
        ..Download::default()
    };
    saw(&mut traffic, 29, &[("a", seen)], &[]);
    assert!(traffic.tell(seconds(30), seconds(29)).is_empty());
    let told = traffic.tell(seconds(30), seconds(30));
    let advance = told.first().map(|(_, advance)| *advance);
    assert_eq!(
        advance.map(|advance| (advance.done, advance.total, advance.rate.round())),
        Some((30 * MIB, 100 * MIB, 1_048_576.0))
    );
    assert!(traffic.tell(seconds(30), seconds(59)).is_empty());
}
