//! Every state of a node, one row each.

use super::*;

#[test]
// A table has as many lines as it has rows.
#[allow(clippy::too_many_lines)]
fn a_node_is_in_the_first_state_that_applies() {
    let one = || Cluster::of(&["a", "b"]).node("n");
    let lost = || Cluster::of(&["a", "b"]).lost("n");
    let not_ready = || Cluster::of(&["a", "b"]).node_in("n", &[], Contact::NotReady);
    let both = [ready("a", ""), ready("b", "")];
    let rows: Vec<(&str, Cluster, NodeState, &str, &str)> = vec![
        (
            "it has all images",
            one().reports("n", 2, &[(0, 2, 2)], &both),
            NodeState::Ready,
            "",
            "",
        ),
        (
            "it went offline with all images",
            lost().reports("n", 2, &[(0, 2, 2)], &both),
            NodeState::Ready,
            "",
            "",
        ),
        (
            "it says that it is not ready, but has all images",
            not_ready().reports("n", 2, &[(0, 2, 2)], &both),
            NodeState::Ready,
            "",
            "",
        ),
        (
            "it is not ready and pulls all the same",
            not_ready().reports("n", 2, &[(0, 1, 2)], &[("b", Pulling, "", "", "")]),
            NodeState::Pulling,
            "",
            "",
        ),
        (
            "one failed while another is pulled",
            one().reports(
                "n",
                2,
                &[(0, 0, 2)],
                &[
                    failed("a", "NotFound", "no such tag"),
                    ("b", Pulling, "", "", ""),
                ],
            ),
            NodeState::Failed,
            "NotFound",
            "a NotFound: no such tag",
        ),
        (
            "a failure without a text",
            one().reports("n", 2, &[(0, 0, 2)], &[failed("a", "PullFailed", "")]),
            NodeState::Failed,
            "PullFailed",
            "a PullFailed",
        ),
        (
            "one is pulled, one waits",
            one().reports(
                "n",
                2,
                &[(0, 0, 2)],
                &[("a", Pulling, "", "", ""), ("b", Waiting, "Queued", "", "")],
            ),
            NodeState::Pulling,
            "",
            "",
        ),
        (
            "the first one that waits gives the reason",
            one().reports(
                "n",
                2,
                &[(0, 0, 2)],
                &[
                    ("b", Waiting, "Queued", "", ""),
                    ("a", Waiting, "RuntimeUnavailable", "no socket", ""),
                ],
            ),
            NodeState::Pending,
            "RuntimeUnavailable",
            "a RuntimeUnavailable: no socket",
        ),
        (
            "no report of this ImageCache",
            {
                let mut c = one();
                c.fleet.apply_report("n", report("n", vec![], &[]));
                c
            },
            NodeState::Pending,
            "NotReportedYet",
            "it has not reported this ImageCache yet",
        ),
        (
            "a report of another ImageCache of the same name",
            {
                let mut c = one();
                c.fleet.apply_report(
                    "n",
                    report(
                        "n",
                        vec![Entry {
                            bytes: (0, 0),
                            uid: "other".to_owned(),
                            generation: 2,
                            state: NodeState::Ready,
                            lists: vec![List {
                                index: 0,
                                ready: 2,
                                total: 2,
                            }],
                            failures: vec![],
                        }],
                        &[],
                    ),
                );
                c
            },
            NodeState::Pending,
            "NotReportedYet",
            "it has not reported this ImageCache yet",
        ),
        (
            "an older generation",
            one().reports("n", 1, &[(0, 2, 2)], &both),
            NodeState::Pending,
            "NotReportedYet",
            "it has reported generation 1 so far",
        ),
        (
            "other lists",
            one().reports("n", 2, &[(1, 2, 2)], &both),
            NodeState::Pending,
            "NotReportedYet",
            "its labels changed, and it has not reported since",
        ),
        (
            "one list too many",
            one().reports("n", 2, &[(0, 2, 2), (1, 2, 2)], &both),
            NodeState::Pending,
            "NotReportedYet",
            "its labels changed, and it has not reported since",
        ),
        (
            "ready for an older generation, then offline",
            lost().reports("n", 1, &[(0, 2, 2)], &both),
            NodeState::Unreachable,
            "NodeNotReady",
            "the control plane hears nothing from the node",
        ),
        (
            "relabelled while it was offline",
            lost().reports("n", 2, &[(1, 2, 2)], &both),
            NodeState::Unreachable,
            "NodeNotReady",
            "the control plane hears nothing from the node",
        ),
        (
            "it went offline in the middle of a pull",
            lost().reports("n", 2, &[(0, 1, 2)], &[("b", Pulling, "", "", "")]),
            NodeState::Unreachable,
            "NodeNotReady",
            "the control plane hears nothing from the node",
        ),
        (
            "it is not ready and never reported",
            not_ready(),
            NodeState::Unreachable,
            "NodeNotReady",
            "the Node is not Ready, and has not reported this yet",
        ),
        (
            "a report of an earlier Node of the same name",
            {
                let mut c = one();
                c = c.reports("n", 2, &[(0, 2, 2)], &both);
                c.fleet.apply_node(
                    "n",
                    Node::new(
                        "another",
                        BTreeMap::new(),
                        Contact::Ready { since: at(NOW) },
                    ),
                );
                c
            },
            NodeState::Pending,
            "NotReportedYet",
            "no agent has reported from there yet",
        ),
    ];
    for (what, cluster, state, reason, message) in rows {
        let found = cluster.state_of("n");
        assert_eq!(
            found,
            (state, reason.to_owned(), message.to_owned()),
            "{what}"
        );
    }
}

#[test]
fn a_report_that_says_ready_is_checked() {
    let mut cluster = Cluster::of(&["a", "b"]).node("n");
    for (lists, state) in [
        ((2, 2), NodeState::Ready),
        ((1, 2), NodeState::Pending),
        ((0, 0), NodeState::Pending),
    ] {
        let entry = Entry {
            bytes: (0, 0),
            uid: UID.to_owned(),
            generation: 2,
            state: NodeState::Ready,
            lists: vec![List {
                index: 0,
                ready: lists.0,
                total: lists.1,
            }],
            failures: vec![],
        };
        cluster
            .fleet
            .apply_report("n", report("n", vec![entry], &[]));
        assert_eq!(cluster.state_of("n").0, state, "{lists:?}");
    }
}

#[test]
fn a_node_that_never_reports_is_overdue_after_ten_minutes() {
    // The agent of n1 was there an hour before now; n2 became ready five minutes before now.
    let cluster = |since| {
        Cluster::of(&["a"])
            .node("n1")
            .reports("n1", 2, &[(0, 1, 1)], &[ready("a", "")])
            .node_in("n2", &[], Contact::Ready { since: at(since) })
    };
    let young = cluster(NOW - 5 * MINUTE);
    assert_eq!(young.summary().wake, Some(Duration::from_mins(5)));
    assert_eq!(young.state_of("n2").0, NodeState::Pending);
    assert_eq!(
        young.summary_at(NOW + 5 * MINUTE - 1).wake,
        Some(Duration::from_secs(1))
    );
    let late = young.summary_at(NOW + 5 * MINUTE);
    assert_eq!(
        (late.wake, numbers(&late.status)),
        (None, [2, 1, 0, 0, 0, 1])
    );
    let old = cluster(0);
    assert_eq!(old.state_of("n2").1, "NoReport");
    assert_eq!(
        old.says("Ready"),
        "True AllNodesReady: 1 of 1 reachable node has the image; 1 node is unreachable: n2"
    );
    assert_eq!(
        old.says("Degraded"),
        "True NoReport: 1 node never reported (does the DaemonSet run there? is it a virtual node?): n2"
    );
}

#[test]
fn nobody_is_late_where_the_first_agent_has_just_come() {
    let mut cluster = Cluster::of(&["a"]).node("n1").node("n2");
    assert_eq!(numbers(&cluster.status()), [2, 0, 0, 0, 2, 0]);
    assert_eq!(cluster.summary().wake, None);
    let mut first = report("n1", vec![], &[]);
    first.created = at(NOW);
    cluster.fleet.apply_report("n1", first);
    assert_eq!(numbers(&cluster.status()), [2, 0, 0, 0, 2, 0]);
    assert_eq!(cluster.summary().wake, Some(Duration::from_mins(10)));
}

#[test]
fn a_report_that_was_deleted_has_its_time_to_come_back() {
    let mut cluster = Cluster::of(&["a"])
        .node("n1")
        .reports("n1", 2, &[(0, 1, 1)], &[ready("a", "")])
        .node("n2")
        .reports("n2", 2, &[(0, 1, 1)], &[ready("a", "")]);
    cluster.fleet.delete_report("n2", at(NOW));
    assert_eq!(cluster.state_of("n2").0, NodeState::Pending);
    assert_eq!(cluster.summary().wake, Some(Duration::from_mins(10)));
    // Whatever else becomes known of the Node.
    cluster = cluster.labelled("n2", &[("new", "")]);
    assert_eq!(cluster.state_of("n2").0, NodeState::Pending);
}

#[test]
fn a_relabelled_node_is_not_ready_before_it_has_reported_its_new_lists() {
    let lists: &[Listed] = &[(&["a"], &[]), (&["b"], &[("tier", "backend")])];
    let cluster = Cluster::new(lists)
        .node("n")
        .reports("n", 2, &[(0, 1, 1)], &[ready("a", "")]);
    assert_eq!(numbers(&cluster.status()), [1, 1, 0, 0, 0, 0]);
    let cluster = cluster.labelled("n", &[("tier", "backend")]);
    let status = cluster.status();
    assert_eq!(numbers(&status), [1, 0, 0, 0, 1, 0]);
    // What it is known to have still counts.
    assert_eq!((status.nodes[0].ready, status.nodes[0].total), (1, 2));
    assert_eq!(
        (status.lists[0].ready_nodes, status.lists[1].ready_nodes),
        (1, 0)
    );
    // And the other way round: the list that it left counts it no more, at once.
    let cluster = cluster.reports(
        "n",
        2,
        &[(0, 1, 1), (1, 1, 1)],
        &[ready("a", ""), ready("b", "")],
    );
    assert_eq!(numbers(&cluster.status()), [1, 1, 0, 0, 0, 0]);
    let status = cluster.node("n").status();
    assert_eq!(
        (status.lists[1].matched_nodes, status.lists[1].ready_nodes),
        (0, 0)
    );
    assert_eq!(numbers(&status), [1, 0, 0, 0, 1, 0]);
}
