//! Every sentence of the conditions, one row each.

use super::*;

#[test]
fn ready_says_how_many_and_why_not_more() {
    let has = |cluster: Cluster, node: &str| {
        cluster
            .node(node)
            .reports(node, 2, &[(0, 2, 2)], &[ready("a", ""), ready("b", "")])
    };
    let none = || Cluster::of(&["a", "b"]);
    let rows = [
        (
            has(has(none(), "n1"), "n2"),
            "True AllNodesReady: 2 of 2 nodes have all 2 images",
        ),
        (
            has(none(), "n1"),
            "True AllNodesReady: 1 of 1 node has all 2 images",
        ),
        (
            has(has(none(), "n1"), "n3").node("n2").reports(
                "n2",
                2,
                &[(0, 1, 2)],
                &[
                    ready("b", ""),
                    failed("a", "NotFound", "docker.io/library/a:latest: not found"),
                ],
            ),
            "False NodesNotReady: 2 of 3 nodes have all 2 images; n2: a NotFound: docker.io/library/a:latest: not found",
        ),
        (
            has(none(), "n1").lost("n2").lost("n3"),
            "True AllNodesReady: 1 of 1 reachable node has all 2 images; 2 nodes are unreachable: n2, n3",
        ),
        (
            none().lost("n2").lost("n3"),
            "False NodesNotReady: none of 2 nodes can be reached: n2, n3",
        ),
        (
            none()
                .node("n1")
                .node("n2")
                .node("n3")
                .node("n4")
                .node("n5"),
            "False NodesNotReady: 0 of 5 nodes have all 2 images; n1: no agent has reported from there yet; \
             n2: no agent has reported from there yet; n3: no agent has reported from there yet; and 2 more",
        ),
        (
            none()
                .node_in("n1", &[], Contact::Ready { since: at(NOW) })
                .node("n2")
                .reports("n2", 2, &[(0, 1, 2)], &[("a", Pulling, "", "", "")])
                .node("n3")
                .reports("n3", 2, &[(0, 0, 2)], &[failed("b", "TLS", "x509")]),
            "False NodesNotReady: 0 of 3 nodes have all 2 images; n3: b TLS: x509; n2 is pulling (1 of 2 images); n1: no agent has reported from there yet",
        ),
        (
            none(),
            "False NoMatchingNodes: list cacheSpec[0] (every node) matches no node",
        ),
        (
            Cluster::new(&[(&["a"], &[("tier", "backend")]), (&["a"], &[("gpu", "")])]).node("n"),
            "False NoMatchingNodes: list cacheSpec[0] (tier=backend) matches no node; list cacheSpec[1] (gpu=) matches no node",
        ),
        (
            Cluster::new(&[(&["a"], &[]), (&["b"], &[("tier", "backend")])])
                .node("n")
                .reports("n", 2, &[(0, 1, 1)], &[ready("a", "")]),
            "True AllNodesReady: 1 of 1 node has all of its images; list cacheSpec[1] (tier=backend) matches no node",
        ),
    ];
    for (cluster, said) in rows {
        assert_eq!(cluster.says("Ready"), said);
    }
}

#[test]
fn progressing_says_what_is_going_on() {
    let one = || Cluster::of(&["a"]).node("n1");
    let paused = |mut cluster: Cluster| {
        let spec = ImageCacheSpec {
            paused: true,
            ..cluster.cache.spec.clone().unwrap().1.as_ref().clone()
        };
        cluster.cache.spec = Some((2, Arc::new(spec)));
        cluster
    };
    let done = || one().reports("n1", 2, &[(0, 1, 1)], &[ready("a", "")]);
    let rows = [
        (done(), "False Complete: every node has its images"),
        (
            done().lost("n2"),
            "False Complete: every node that can be reached has its images",
        ),
        (
            Cluster::of(&["a"]),
            "False Complete: nothing to do: no node matches",
        ),
        (
            done()
                .node("n2")
                .reports("n2", 2, &[(0, 0, 1)], &[("a", Pulling, "", "", "")]),
            "True Pulling: 1 of 2 images are there on 2 nodes; n2 is pulling (0 of 1 images)",
        ),
        (
            one(),
            "True Waiting: n1: no agent has reported from there yet",
        ),
        (
            one().reports("n1", 2, &[(0, 0, 1)], &[("a", Waiting, "Queued", "", "")]),
            "True Waiting: n1: a Queued",
        ),
        (
            one().reports("n1", 2, &[(0, 0, 1)], &[failed("a", "NotFound", "")]),
            "True Waiting: n1 will try again",
        ),
        (
            Cluster::of(&["a"]).lost("n1"),
            "True Waiting: no node can be reached: n1",
        ),
        (
            paused(one()),
            "False Paused: spec.paused is set: nothing is started",
        ),
        (
            paused(done()),
            "False Paused: spec.paused is set: nothing is started",
        ),
    ];
    for (cluster, said) in rows {
        assert_eq!(cluster.says("Progressing"), said);
    }
}

#[test]
fn degraded_says_which_image_on_which_nodes_and_why() {
    let fails = |cluster: Cluster, node: &str, image: &str, reason: &str| {
        cluster.node(node).reports(
            node,
            2,
            &[(0, 0, 2)],
            &[failed(image, reason, "what the registry said")],
        )
    };
    let two = || Cluster::of(&["a", "b"]);
    let drifted = |cluster: Cluster| {
        cluster
            .node("n1")
            .reports(
                "n1",
                2,
                &[(0, 2, 2)],
                &[ready("a", "sha256:0123456789abcdef"), ready("b", "")],
            )
            .node("n2")
            .reports(
                "n2",
                2,
                &[(0, 2, 2)],
                &[ready("a", "sha256:fedcba9876543210"), ready("b", "")],
            )
            .node("n3")
            .reports(
                "n3",
                2,
                &[(0, 2, 2)],
                &[ready("a", "sha256:fedcba9876543210"), ready("b", "")],
            )
    };
    let mut many = two();
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        many = fails(many, node, "a", "NotFound");
    }
    let rows = [
        (
            two().node("n"),
            "False Healthy: no image failed, and every node can be reached",
        ),
        (
            fails(fails(two(), "n1", "a", "NotFound"), "n2", "a", "NotFound"),
            "True ImagesFailed: a failed on n1, n2: NotFound: what the registry said",
        ),
        (
            many,
            "True ImagesFailed: a failed on n1, n2, n3 and 2 more: NotFound: what the registry said",
        ),
        (
            fails(fails(two(), "n1", "a", "NotFound"), "n2", "a", "TLS"),
            "True ImagesFailed: a failed on n1: NotFound: what the registry said; a failed on n2: TLS: what the registry said",
        ),
        (
            fails(fails(two(), "n1", "b", "NotFound"), "n2", "a", "TLS").lost("n3"),
            "True ImagesFailed: a failed on n2: TLS: what the registry said; b failed on n1: NotFound: what the registry said; \
             1 node is unreachable (the Node is not Ready): n3",
        ),
        (
            drifted(two()),
            "True DigestDrift: a means 2 different images: sha256:fedcba987654 on n2, n3, sha256:0123456789ab on n1",
        ),
        (
            drifted(two()).lost("n4").lost("n5"),
            "True NodesUnreachable: 2 nodes are unreachable (the Node is not Ready): n4, n5; \
             a means 2 different images: sha256:fedcba987654 on n2, n3, sha256:0123456789ab on n1",
        ),
    ];
    for (cluster, said) in rows {
        assert_eq!(cluster.says("Degraded"), said);
    }
}

#[test]
fn a_failure_that_the_report_leaves_out_is_still_told_of() {
    let mut cluster = Cluster::of(&["a"]).node("n");
    let failure = Failure {
        image: "a".to_owned(),
        reason: "TLS".to_owned(),
        message: "x509".to_owned(),
    };
    let entry = Entry {
        bytes: (0, 0),
        uid: UID.to_owned(),
        generation: 2,
        state: NodeState::Failed,
        lists: vec![List {
            index: 0,
            ready: 0,
            total: 1,
        }],
        failures: vec![failure],
    };
    cluster
        .fleet
        .apply_report("n", report("n", vec![entry], &[]));
    assert_eq!(
        cluster.says("Degraded"),
        "True ImagesFailed: n: a TLS: x509"
    );
}

#[test]
fn a_spec_that_cannot_be_read_is_named_and_the_last_one_is_counted() {
    let mut cluster =
        Cluster::of(&["a"])
            .node("n")
            .reports("n", 2, &[(0, 1, 1)], &[ready("a", "")]);
    cluster.cache.generation = 3;
    for (error, said) in [
        (
            SpecError::Invalid {
                field: "spec.cacheSpec[1].images".to_owned(),
                message: "has 0 images, needs 1 to 256".to_owned(),
            },
            "False InvalidSpec: spec.cacheSpec[1].images: has 0 images, needs 1 to 256; generation 2 stays in force",
        ),
        (
            SpecError::Unsupported {
                field: "spec.turnedRound".to_owned(),
            },
            "False UnsupportedField: spec.turnedRound: this version of imagecache-agent does not know this field: \
             update the agent, or remove the field; generation 2 stays in force",
        ),
    ] {
        cluster.cache.unreadable = Some(error);
        assert_eq!(cluster.says("Ready"), said);
        let status = cluster.status();
        assert_eq!(numbers(&status), [1, 1, 0, 0, 0, 0]);
        let generations: Vec<_> = status
            .conditions
            .iter()
            .map(|condition| condition.observed_generation)
            .collect();
        assert_eq!(
            (status.observed_generation, generations),
            (3, vec![Some(3), Some(2), Some(2)])
        );
    }
}

#[test]
fn a_spec_that_this_process_never_could_read_keeps_what_was_counted() {
    let mut cluster =
        Cluster::of(&["a"])
            .node("n")
            .reports("n", 2, &[(0, 1, 1)], &[ready("a", "")]);
    let before = cluster.status();
    cluster.cache.generation = 3;
    cluster.cache.spec = None;
    cluster.cache.unreadable = Some(SpecError::Unsupported {
        field: "spec.turnedRound".to_owned(),
    });
    let after = summarize(
        &cluster.cache,
        &cluster.fleet,
        &before,
        at(NOW + 1),
        &Timing::default(),
    )
    .status;
    assert_eq!(numbers(&after), numbers(&before));
    assert_eq!(
        (after.observed_generation, &after.nodes),
        (3, &before.nodes)
    );
    assert_eq!(
        find(&after.conditions, "Ready").unwrap().reason,
        "UnsupportedField"
    );
    assert_eq!(
        find(&after.conditions, "Degraded"),
        find(&before.conditions, "Degraded")
    );
    // And one that nobody ever could read has no numbers.
    let never = cluster.status();
    assert_eq!(numbers(&never), [0; 6]);
    assert_eq!(
        cluster.says("Progressing"),
        "True Waiting: nothing is started before the spec can be read"
    );
}

#[test]
fn timestamps_move_only_with_the_status_of_their_condition() {
    let mut status = ImageCacheStatus::default();
    let pulling = Cluster::of(&["a", "b"]).node("n").reports(
        "n",
        2,
        &[(0, 0, 2)],
        &[("a", Pulling, "", "", ""), ("b", Waiting, "Queued", "", "")],
    );
    let further = Cluster::of(&["a", "b"]).node("n").reports(
        "n",
        2,
        &[(0, 1, 2)],
        &[("b", Pulling, "", "", "")],
    );
    let done = Cluster::of(&["a", "b"])
        .node("n")
        .reports("n", 2, &[(0, 2, 2)], &[]);
    for (cluster, second, since) in [
        (&pulling, 1, [1, 1, 1]),
        (&further, 2, [1, 1, 1]),
        (&done, 3, [3, 3, 1]),
        (&done, 4, [3, 3, 1]),
    ] {
        status = summarize(
            &cluster.cache,
            &cluster.fleet,
            &status,
            at(second),
            &Timing::default(),
        )
        .status;
        let found: Vec<_> = status
            .conditions
            .iter()
            .map(|condition| condition.last_transition_time.0)
            .collect();
        assert_eq!(found, since.map(at));
    }
}
