//! One agent's part in the election, step by step.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    // Times are whole tenths of seconds here.
    clippy::float_cmp
)]

use super::*;

const SCALE: Scale = Scale { nodes: 3 };

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn candidate(identity: &str) -> Election {
    Election::new(identity.to_owned(), &Timing::default(), 1.0)
}

/// A Lease as the API server holds it.
fn held(by: &str, version: u32) -> Answer {
    let mut lease = candidate(by).wish(Ask::Take, Some(7));
    lease.metadata.resource_version = Some(version.to_string());
    Answer::Lease(Box::new(lease))
}

/// What follows when an answer comes at once.
fn hear(election: &mut Election, answer: Answer, at: f64) -> (f64, Ask) {
    let (_, ask) = election.next();
    election.hear(ask, answer, seconds(at), seconds(at), SCALE, 1.0);
    let (due, ask) = election.next();
    (due.as_secs_f64(), ask)
}

fn elected(election: &Election, at: f64) -> bool {
    election.elected_until(seconds(at)).is_some()
}

#[test]
fn the_first_look_comes_within_five_seconds_and_the_first_to_look_makes_the_lease() {
    let mut me = candidate("me");
    assert_eq!(me.next(), (seconds(5.0), Ask::Look));
    assert_eq!(hear(&mut me, Answer::Absent, 5.0), (5.0, Ask::Take));
    assert_eq!(me.wish(Ask::Take, None).metadata.resource_version, None);
    assert_eq!(hear(&mut me, held("me", 1), 5.1), (10.1, Ask::Renew));
    assert!(elected(&me, 15.0) && !elected(&me, 15.2));
}

#[test]
fn a_lease_that_nobody_renews_is_taken_after_its_duration_on_the_own_clock() {
    let mut me = candidate("me");
    let mut at = 5.0;
    while at < 20.0 {
        let (next, ask) = hear(&mut me, held("other", 1), at);
        assert_eq!(ask, Ask::Look);
        assert!(next <= at + 3.0, "a small cluster looks often");
        at = next;
    }
    assert_eq!(at, 20.0, "and exactly when it is over");
    assert_eq!(hear(&mut me, held("other", 1), at), (20.0, Ask::Take));
    assert_eq!(
        me.wish(Ask::Take, None)
            .metadata
            .resource_version
            .as_deref(),
        Some("1")
    );
}

#[test]
fn a_renewal_makes_it_wait_anew() {
    let mut me = candidate("me");
    for version in 1..100 {
        let at = f64::from(version) * 2.0;
        assert_eq!(hear(&mut me, held("other", version / 3), at).1, Ask::Look);
    }
}

#[test]
fn in_a_large_cluster_a_change_is_followed_by_one_look_and_no_more() {
    let mut me = candidate("me");
    let scale = Scale { nodes: 5000 };
    let mut look = |at: f64, version| {
        me.hear(
            Ask::Look,
            held("other", version),
            seconds(at),
            seconds(at),
            scale,
            0.75,
        );
        me.next().0.as_secs_f64()
    };
    assert_eq!(look(5.0, 1), 20.0);
    assert_eq!(look(20.0, 4), 3770.0, "it is renewed: all is well");
    assert_eq!(look(3770.0, 504), 3785.0);
    assert_eq!(look(3785.0, 504), 3785.0);
    assert_eq!(me.next().1, Ask::Take, "it is not renewed");
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut me = candidate("me");
    let mut released = candidate("other").wish(Ask::Release, None);
    released.metadata.resource_version = Some("9".to_owned());
    assert_eq!(
        hear(&mut me, Answer::Lease(Box::new(released.clone())), 5.0),
        (5.0, Ask::Take)
    );
    released.spec.as_mut().unwrap().holder_identity = Some(String::new());
    let mut me = candidate("me");
    assert_eq!(
        hear(&mut me, Answer::Lease(Box::new(released)), 5.0),
        (5.0, Ask::Take)
    );
}

#[test]
fn whoever_comes_second_is_a_candidate_again() {
    let mut me = candidate("me");
    hear(&mut me, Answer::Absent, 5.0);
    assert_eq!(hear(&mut me, Answer::Conflict, 5.1).1, Ask::Look);
    assert!(!elected(&me, 5.2));
}

#[test]
fn an_elected_agent_that_cannot_renew_stands_down_before_anybody_can_follow() {
    let mut me = candidate("me");
    hear(&mut me, Answer::Absent, 0.0);
    let (mut at, _) = hear(&mut me, held("me", 1), 0.0);
    while at < 10.0 {
        assert!(elected(&me, at));
        let (next, ask) = hear(&mut me, Answer::Failed, at);
        assert!(next <= at + 1.0);
        assert_eq!(ask, if at < 10.0 { Ask::Renew } else { Ask::Look });
        at = next;
    }
    assert!(!elected(&me, 10.0));
    assert_eq!(hear(&mut me, Answer::Failed, 10.5).1, Ask::Look);
}

#[test]
fn a_write_whose_answer_was_lost_is_found_and_renewed() {
    let mut me = candidate("me");
    hear(&mut me, Answer::Absent, 5.0);
    assert_eq!(hear(&mut me, Answer::Failed, 10.0), (11.0, Ask::Look));
    assert_eq!(hear(&mut me, held("me", 1), 11.0), (11.0, Ask::Renew));
    assert!(
        !elected(&me, 11.0),
        "not before the server has accepted it again"
    );
    hear(&mut me, held("me", 2), 11.0);
    assert!(elected(&me, 11.0));
}

#[test]
fn an_edit_by_somebody_else_costs_no_election() {
    let mut me = candidate("me");
    hear(&mut me, Answer::Absent, 0.0);
    hear(&mut me, held("me", 1), 0.0);
    assert_eq!(hear(&mut me, Answer::Conflict, 5.0), (5.0, Ask::Look));
    assert_eq!(hear(&mut me, held("me", 2), 5.0), (5.0, Ask::Renew));
    assert_eq!(
        me.wish(Ask::Renew, None)
            .metadata
            .resource_version
            .as_deref(),
        Some("2")
    );
    assert!(elected(&me, 5.0));
    assert_eq!(hear(&mut me, Answer::Conflict, 5.0).1, Ask::Look);
    assert_eq!(hear(&mut me, held("other", 3), 5.0).1, Ask::Look);
    assert!(!elected(&me, 5.0), "somebody else has it");
}

#[test]
fn a_lease_deleted_by_hand_is_made_again_by_its_holder_first() {
    let mut me = candidate("me");
    hear(&mut me, Answer::Absent, 0.0);
    hear(&mut me, held("me", 1), 0.0);
    assert_eq!(hear(&mut me, Answer::Conflict, 5.0), (5.0, Ask::Look));
    assert_eq!(hear(&mut me, Answer::Absent, 5.0), (5.0, Ask::Take));
    let mut other = candidate("other");
    hear(&mut other, held("me", 1), 5.0);
    assert_eq!(hear(&mut other, Answer::Absent, 6.0), (21.0, Ask::Look));
    assert_eq!(hear(&mut other, Answer::Absent, 21.0), (21.0, Ask::Take));
}

#[test]
fn the_number_of_nodes_is_told_and_kept() {
    let mut me = candidate("me");
    assert_eq!(me.nodes(), None);
    hear(&mut me, held("other", 1), 5.0);
    assert_eq!(me.nodes(), Some(7));
    let nodes = |wish: &Lease| wish.metadata.annotations.as_ref().unwrap()[NODES].clone();
    assert_eq!(nodes(&me.wish(Ask::Take, None)), "7");
    assert_eq!(nodes(&me.wish(Ask::Renew, Some(9))), "9");
}

#[test]
fn the_transitions_count_the_holders() {
    let me = candidate("me");
    let transitions = |lease: Lease| lease.spec.unwrap().lease_transitions;
    assert_eq!(transitions(me.wish(Ask::Take, None)), Some(1));
    assert_eq!(transitions(me.wish(Ask::Renew, None)), None);
}
