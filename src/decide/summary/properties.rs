//! What holds for every cluster.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::*;
use crate::api::ImageCacheSpec;
use crate::api::condition::find;
use crate::api::reason::ImageState;
use crate::api::{ImageList, SpecError};
use crate::decide::fleet::{self, Contact, Entry};
use crate::decide::fleet::{Image, List, Node, Report};
use crate::decide::selector::selects;

const UID: &str = "uid";
const GENERATION: i64 = 5;
const NOW: i64 = 100_000;

/// One thing that becomes known of a node.
#[derive(Clone, Debug)]
enum News {
    Node(Node),
    Report(Report),
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn any_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    let text = |texts: &'static [&'static str]| select(texts).prop_map(str::to_owned);
    btree_map(
        text(&["k", "l", "kubernetes.io/os"]),
        text(&["x", "linux"]),
        0..=3,
    )
}

fn any_spec() -> impl Strategy<Value = ImageCacheSpec> {
    let images = subsequence(vec!["a", "a:latest", "b", "c", "Bad//x"], 1..=5);
    let labels = btree_map("[kl]", "x", 0..=2);
    let list = (images, labels).prop_map(|(images, node_selector)| ImageList {
        images: images.into_iter().map(str::to_owned).collect(),
        node_selector,
        match_expressions: Vec::new(),
    });
    (vec(list, 1..4), any::<bool>()).prop_map(|(cache_spec, paused)| ImageCacheSpec {
        cache_spec,
        paused,
        ..ImageCacheSpec::default()
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let since = select(vec![0, NOW - 601, NOW - 600, NOW - 599, NOW, NOW + 50]);
    let contact = prop_oneof![
        4 => since.prop_map(|since| Contact::Ready { since: at(since) }),
        1 => Just(Contact::NotReady),
        1 => Just(Contact::Lost),
    ];
    (select(vec!["first", "second"]), any_labels(), contact)
        .prop_map(|(uid, labels, contact)| Node::new(uid, labels, contact))
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let states = vec![
        NodeState::Unreachable,
        NodeState::Failed,
        NodeState::Pulling,
        NodeState::Pending,
        NodeState::Ready,
        NodeState::Ready,
    ];
    let lists = subsequence(vec![0_usize, 1, 2, 3], 0..=4).prop_flat_map(|indices| {
        let counts = vec((0..3, 0..3), indices.len());
        counts.prop_map(move |counts| {
            let lists = indices.iter().zip(counts);
            lists
                .map(|(&index, (ready, total))| List {
                    index,
                    ready,
                    total,
                })
                .collect()
        })
    });
    (
        select(vec![UID, UID, UID, "other"]),
        GENERATION - 1..=GENERATION + 1,
        select(states),
        lists,
    )
        .prop_map(|(uid, generation, state, lists)| Entry {
            bytes: (0, 0),
            uid: uid.to_owned(),
            generation,
            state,
            lists,
            failures: Vec::new(),
        })
}

fn any_image(key: &'static str) -> impl Strategy<Value = Image> {
    let states = [
        ImageState::Ready,
        ImageState::Pulling,
        ImageState::Waiting,
        ImageState::Failed,
    ];
    (
        select(states.to_vec()),
        option::of("[12]"),
        option::of("[PQ]"),
    )
        .prop_map(move |(state, digest, reason)| Image {
            key: key.to_owned(),
            state,
            digest,
            reason,
            message: None,
        })
}

fn any_report() -> impl Strategy<Value = Report> {
    let images = (
        any_image("docker.io/library/a:latest"),
        any_image("docker.io/library/b:latest"),
        any_image("Bad//x"),
    );
    let images = images.prop_flat_map(|(a, b, c)| subsequence(vec![a, b, c], 0..=3));
    let owner = select(vec![None, Some("first"), Some("first")]);
    let created = select(vec![0, NOW - 300, NOW]);
    (
        created,
        owner,
        vec(any_entry(), 0..3),
        images,
        any::<bool>(),
    )
        .prop_map(|(created, owner, entries, images, omitted)| {
            Report::new(at(created), owner, entries, images, omitted)
        })
}

fn any_news() -> impl Strategy<Value = BTreeMap<(u8, bool), News>> {
    let nodes = btree_map(0_u8..6, any_node(), 0..=6);
    let reports = btree_map(0_u8..7, any_report(), 0..=7);
    (nodes, reports).prop_map(|(nodes, reports)| {
        let nodes = nodes
            .into_iter()
            .map(|(n, node)| ((n, true), News::Node(node)));
        let reports = reports
            .into_iter()
            .map(|(n, report)| ((n, false), News::Report(report)));
        nodes.chain(reports).collect()
    })
}

fn any_cache() -> impl Strategy<Value = Cache> {
    let unreadable = option::weighted(
        0.1,
        Just(SpecError::Unsupported {
            field: "spec.x".to_owned(),
        }),
    );
    (option::weighted(0.95, any_spec()), unreadable).prop_map(|(spec, unreadable)| Cache {
        uid: UID.to_owned(),
        generation: GENERATION + i64::from(unreadable.is_some()),
        spec: spec.map(|spec| (GENERATION, Arc::new(spec))),
        unreadable,
    })
}

fn fleet<'a>(news: impl IntoIterator<Item = (&'a (u8, bool), &'a News)>) -> Fleet {
    let mut fleet = Fleet::default();
    for ((name, _), news) in news {
        let name = format!("n{name}");
        match news {
            News::Node(node) => fleet.apply_node(&name, node.clone()),
            News::Report(report) => fleet.apply_report(&name, report.clone()),
        }
    }
    fleet
}

fn summary(cache: &Cache, fleet: &Fleet, previous: &ImageCacheStatus, second: i64) -> Summary {
    summarize(cache, fleet, previous, at(second), &Timing::default())
}

fn first(cache: &Cache, fleet: &Fleet) -> Summary {
    summary(cache, fleet, &ImageCacheStatus::default(), NOW)
}

proptest! {
    #[test]
    fn the_five_counts_add_up(cache in any_cache(), news in any_news()) {
        let status = first(&cache, &fleet(&news)).status;
        let five = status.ready_nodes + status.pulling_nodes + status.failed_nodes + status.pending_nodes + status.unreachable_nodes;
        prop_assert_eq!(five, status.desired_nodes);
        prop_assert_eq!(status.nodes.len(), usize::try_from(status.desired_nodes).unwrap());
        for list in &status.lists {
            prop_assert!(0 <= list.ready_nodes && list.ready_nodes <= list.matched_nodes && list.matched_nodes <= status.desired_nodes);
        }
        for image in &status.images {
            prop_assert!(image.ready_nodes + image.failed_nodes <= status.desired_nodes);
        }
    }

    #[test]
    fn a_node_is_ready_only_for_the_lists_that_its_labels_select_now(cache in any_cache(), news in any_news()) {
        let status = first(&cache, &fleet(&news)).status;
        let Some((generation, spec)) = &cache.spec else { return Ok(()) };
        for node in status.nodes.iter().filter(|node| node.state == NodeState::Ready) {
            let number: u8 = node.name[1..].parse().unwrap();
            let (News::Node(known), News::Report(report)) = (&news[&(number, true)], &news[&(number, false)]) else {
                panic!("a node, and a report of it")
            };
            prop_assert!(report.owner.as_ref().is_none_or(|owner| *owner == known.uid));
            let entry = report.entry(UID).unwrap();
            prop_assert_eq!(entry.generation, *generation);
            prop_assert_eq!(entry.state, NodeState::Ready);
            for (index, list) in spec.cache_spec.iter().enumerate() {
                let reported = entry.list(index);
                prop_assert_eq!(selects(list, &known.labels), reported.is_some());
                prop_assert!(reported.is_none_or(|list| list.total > 0 && list.ready >= list.total));
            }
        }
    }

    #[test]
    fn ready_is_true_when_every_node_that_can_be_reached_is_ready_and_there_is_one(cache in any_cache(), news in any_news()) {
        let status = first(&cache, &fleet(&news)).status;
        let is_ready = find(&status.conditions, "Ready").unwrap().status == "True";
        let all = status.ready_nodes > 0 && status.ready_nodes + status.unreachable_nodes == status.desired_nodes;
        prop_assert_eq!(is_ready, all && cache.unreadable.is_none() && cache.spec.is_some());
    }

    #[test]
    fn the_order_of_news_does_not_matter(cache in any_cache(), news in any_news(), order in vec(any::<Index>(), 14)) {
        let mut shuffled: Vec<_> = news.iter().collect();
        let length = shuffled.len();
        for (at, other) in order.iter().enumerate().take(length) {
            shuffled.swap(at, other.index(length));
        }
        prop_assert_eq!(first(&cache, &fleet(&news)), first(&cache, &fleet(shuffled)));
    }

    #[test]
    fn a_summary_of_what_is_summarized_already_changes_nothing(cache in any_cache(), news in any_news(), later in 0_i64..600) {
        let fleet = fleet(&news);
        let summarized = first(&cache, &fleet);
        prop_assert_eq!(&summary(&cache, &fleet, &summarized.status, NOW).status, &summarized.status);
        // Nor does time, before the moment that was told.
        if summarized.wake.is_none_or(|wake| Duration::from_secs(later.unsigned_abs()) < wake) {
            let status = summary(&cache, &fleet, &summarized.status, NOW + later).status;
            prop_assert_eq!(status, summarized.status);
        }
    }

    #[test]
    fn a_cache_that_selects_no_touched_node_is_summarized_as_before(cache in any_cache(), before in any_news(), after in any_news()) {
        let mut fleet = fleet(&before);
        fleet.take_touched();
        let summarized = first(&cache, &fleet);
        for ((name, _), news) in &after {
            let name = format!("n{name}");
            match news {
                News::Node(node) if node.labels == fleet::LabelSet::default() => fleet.delete_node(&name),
                News::Report(report) if report.images().is_empty() => fleet.delete_report(&name, at(NOW)),
                News::Node(node) => fleet.apply_node(&name, node.clone()),
                News::Report(report) => fleet.apply_report(&name, report.clone()),
            }
        }
        let touched = fleet.take_touched();
        let is_touched = cache.spec.as_ref().is_some_and(|(_, spec)| {
            spec.cache_spec.iter().any(|list| touched.iter().any(|labels| selects(list, labels)))
        });
        prop_assume!(!is_touched);
        prop_assert_eq!(first(&cache, &fleet), summarized);
    }
}
