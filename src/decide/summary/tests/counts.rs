//! What is counted, and what a status leaves out.

use super::*;

#[test]
fn a_deleted_node_leaves_the_counts_and_its_report_counts_nowhere() {
    let mut cluster = Cluster::of(&["a"])
        .node("n1")
        .reports("n1", 2, &[(0, 1, 1)], &[ready("a", "sha256:1")])
        .node("n2")
        .reports("n2", 2, &[(0, 1, 1)], &[ready("a", "sha256:2")]);
    assert_eq!(numbers(&cluster.status()), [2, 2, 0, 0, 0, 0]);
    cluster.fleet.delete_node("n2");
    let status = cluster.status();
    assert_eq!(numbers(&status), [1, 1, 0, 0, 0, 0]);
    assert_eq!(status.images[0].digests, ["sha256:1"]);
}

#[test]
fn only_linux_nodes_count() {
    let os = |os: &'static str| [("kubernetes.io/os", os)];
    let mut cluster = Cluster::of(&["a"])
        .node("bare")
        .labelled("linux", &os("linux"))
        .labelled("windows", &os("windows"));
    let names = |cluster: &Cluster| -> Vec<String> {
        cluster
            .status()
            .nodes
            .into_iter()
            .map(|node| node.name)
            .collect()
    };
    assert_eq!(names(&cluster), ["bare", "linux"]);
    cluster = cluster.labelled("linux", &os("other"));
    assert_eq!(names(&cluster), ["bare"]);
}

#[test]
fn each_list_says_how_many_nodes_it_matches() {
    let cluster = Cluster::new(&[
        (&["a", "b"], &[]),
        (&["c"], &[("tier", "backend")]),
        (&["d"], &[("tier", "frontend")]),
    ])
    .node("n1")
    .reports("n1", 2, &[(0, 2, 2)], &[ready("a", ""), ready("b", "")])
    .labelled("n2", &[("tier", "backend")])
    .reports(
        "n2",
        2,
        &[(0, 2, 2), (1, 0, 1)],
        &[ready("a", ""), ready("b", ""), ("c", Pulling, "", "", "")],
    );
    let status = cluster.status();
    let lists: Vec<_> = status
        .lists
        .iter()
        .map(|list| (list.index, list.matched_nodes, list.ready_nodes))
        .collect();
    assert_eq!(lists, [(0, 2, 2), (1, 1, 0), (2, 0, 0)]);
    assert_eq!(status.images_total, 4);
    let nodes: Vec<_> = status
        .nodes
        .iter()
        .map(|node| (node.ready, node.total, node.observed_generation))
        .collect();
    assert_eq!(nodes, [(2, 2, 2), (2, 3, 2)]);
    assert_eq!(
        cluster.says("Ready"),
        "False NodesNotReady: 1 of 2 nodes has all of its images; n2 is pulling (2 of 3 images); \
         list cacheSpec[2] (tier=frontend) matches no node"
    );
}

#[test]
fn an_image_is_counted_once_however_often_and_however_it_is_written() {
    let cluster = Cluster::new(&[
        (&["nginx", "docker.io/library/nginx:latest", "Bad//x"], &[]),
        (&["nginx:latest"], &[]),
    ])
    .node("n1")
    .reports(
        "n1",
        2,
        &[(0, 2, 3), (1, 1, 1)],
        &[
            ready("nginx", "sha256:1"),
            failed("Bad//x", "InvalidReference", "uppercase"),
        ],
    )
    .node("n2")
    .reports("n2", 1, &[], &[ready("nginx", "sha256:1")]);
    let status = cluster.status();
    assert_eq!(status.images_total, 2);
    let images: Vec<_> = status
        .images
        .iter()
        .map(|image| (image.image.as_str(), image.ready_nodes, image.failed_nodes))
        .collect();
    assert_eq!(images, [("nginx", 2, 0), ("Bad//x", 0, 1)]);
    assert_eq!(status.images[0].digests, ["sha256:1"]);
    // As a report counts it: in each list.
    let nodes: Vec<_> = status
        .nodes
        .iter()
        .map(|node| (node.ready, node.total))
        .collect();
    assert_eq!(nodes, [(3, 4), (3, 4)]);
}

#[test]
fn an_image_counts_only_on_nodes_whose_lists_name_it() {
    let cluster = Cluster::new(&[(&["a"], &[]), (&["b"], &[("tier", "backend")])])
        .node("n1")
        .reports(
            "n1",
            2,
            &[(0, 1, 1)],
            &[ready("a", ""), ready("b", "sha256:b"), ready("c", "")],
        );
    let status = cluster.status();
    assert_eq!(
        status
            .images
            .iter()
            .map(|image| image.ready_nodes)
            .collect::<Vec<_>>(),
        [1, 0]
    );
    assert!(status.images[1].digests.is_empty());
    assert!(cluster.says("Degraded").starts_with("False Healthy"));
}

#[test]
fn a_failure_on_a_node_that_is_away_is_none_of_now() {
    let cluster =
        Cluster::of(&["a"])
            .lost("n")
            .reports("n", 2, &[(0, 0, 1)], &[failed("a", "NotFound", "")]);
    assert_eq!(cluster.status().images[0].failed_nodes, 0);
    assert_eq!(
        cluster.says("Degraded"),
        "True NodesUnreachable: 1 node is unreachable (the Node is not Ready): n"
    );
}

#[test]
fn a_long_cause_is_cut() {
    let long = "ä".repeat(500);
    let cluster = Cluster::of(&["a"]).node("n").reports(
        "n",
        2,
        &[(0, 0, 1)],
        &[failed("a", "PullFailed", &long)],
    );
    let message = cluster.state_of("n").2;
    assert!(message.len() < 220 && message.ends_with("ä…"), "{message}");
}

#[test]
fn images_that_a_long_report_leaves_out_are_ready() {
    let written: Vec<String> = (0..3).map(|n| format!("a:{n}")).collect();
    let names: Vec<&str> = written.iter().map(String::as_str).collect();
    for (last, counted) in [(Ready, [1, 1, 1]), (Waiting, [1, 0, 0])] {
        let mut cluster = Cluster::of(&names).node("n");
        let image = |key: &str, state| Image {
            key: key.to_owned(),
            state,
            digest: None,
            reason: None,
            message: None,
        };
        let images = vec![
            image("docker.io/library/a:0", Ready),
            image("docker.io/library/z:1", last),
        ];
        cluster
            .fleet
            .apply_report("n", Report::new(at(0), None, vec![], images, true));
        let found: Vec<_> = cluster
            .status()
            .images
            .iter()
            .map(|image| image.ready_nodes)
            .collect();
        assert_eq!(found, counted);
    }
}

#[test]
fn a_large_cluster_names_twenty_nodes_and_the_failed_ones_first() {
    let mut cluster = Cluster::of(&["a"]);
    for n in 0..100 {
        cluster = cluster.node(&format!("n{n:03}"));
    }
    let status = cluster.status();
    assert_eq!((status.nodes.len(), status.nodes_omitted), (100, 0));
    cluster = cluster
        .node("z1")
        .reports("z1", 2, &[(0, 0, 1)], &[("a", Pulling, "", "", "")])
        .node("z2")
        .reports("z2", 2, &[(0, 0, 1)], &[failed("a", "NotFound", "")])
        .node("z3")
        .reports("z3", 2, &[(0, 1, 1)], &[ready("a", "")]);
    let status = cluster.status();
    let names: Vec<_> = status
        .nodes
        .iter()
        .take(3)
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!((status.nodes.len(), status.nodes_omitted), (20, 83));
    assert_eq!(names, ["z2", "z1", "n000"]);
}

#[test]
fn many_images_are_cut_to_fifty_and_the_failed_and_drifted_stay() {
    let written: Vec<String> = (0..60).map(|n| format!("a:{n:02}")).collect();
    let names: Vec<&str> = written.iter().map(String::as_str).collect();
    let cluster = Cluster::of(&names)
        .node("n1")
        .reports(
            "n1",
            2,
            &[(0, 1, 60)],
            &[ready("a:58", "sha256:1"), failed("a:59", "NotFound", "")],
        )
        .node("n2")
        .reports("n2", 2, &[(0, 1, 60)], &[ready("a:58", "sha256:2")]);
    let status = cluster.status();
    let first: Vec<_> = status
        .images
        .iter()
        .take(3)
        .map(|image| image.image.as_str())
        .collect();
    assert_eq!(
        (
            status.images_total,
            status.images.len(),
            status.images_omitted
        ),
        (60, 50, 10)
    );
    assert_eq!(first, ["a:59", "a:58", "a:00"]);
}

#[test]
fn an_image_of_many_digests_shows_those_that_most_nodes_have() {
    let mut cluster = Cluster::of(&["a"]);
    for (node, digest) in [
        ("n0", "g"),
        ("n1", "a"),
        ("n2", "b"),
        ("n3", "c"),
        ("n4", "d"),
        ("n5", "e"),
        ("n6", "f"),
        ("n7", "f"),
        ("n8", "g"),
    ] {
        cluster = cluster
            .node(node)
            .reports(node, 2, &[(0, 1, 1)], &[ready("a", digest)]);
    }
    assert_eq!(
        cluster.status().images[0].digests,
        ["f", "g", "a", "b", "c"]
    );
    assert!(
        cluster
            .says("Degraded")
            .contains("a means 7 different images")
    );
}

#[test]
fn expressions_select_as_labels_do() {
    let mut cluster = Cluster::of(&["a"])
        .labelled("n1", &[("cpus", "8")])
        .labelled("n2", &[("cpus", "2")]);
    let mut spec = ImageCacheSpec::clone(&cluster.cache.spec.clone().unwrap().1);
    spec.cache_spec[0].match_expressions = vec![MatchExpression {
        key: "cpus".to_owned(),
        operator: Operator::Gt,
        values: vec!["4".to_owned()],
    }];
    cluster.cache.spec = Some((2, Arc::new(spec)));
    assert_eq!(cluster.status().desired_nodes, 1);
}
