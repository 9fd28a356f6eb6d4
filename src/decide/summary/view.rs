//! All nodes that an `ImageCache` selects, and what they have of it.

use std::time::Duration;

use jiff::Timestamp;

use super::count;
use super::images::Images;
use super::node::{Cause, Verdict};
use super::sentences::Names;
use crate::api::ImageCacheSpec;
use crate::api::condition::visible;
use crate::api::image_cache::{ListStatus, NodeResult, NodeState};
use crate::decide::fleet::{self, Entry, Fleet, Node};
use crate::decide::selector::selects;
use crate::decide::timing::Timing;

/// Up to this many nodes, each has its result in the status.
const ALL_NODES: usize = 100;

/// Above that, so many have: every agent watches the object.
const SOME_NODES: usize = 20;

/// What is asked of each node.
pub struct Asked<'a> {
    pub uid: &'a str,
    pub generation: i64,
    pub spec: &'a ImageCacheSpec,
    pub fleet: &'a Fleet,
    pub now: Timestamp,
    pub timing: &'a Timing,
}

/// The nodes that a spec selects, and what they have of it.
pub struct View<'a> {
    pub spec: &'a ImageCacheSpec,
    pub nodes: Vec<Selected<'a>>,
    pub lists: Vec<ListStatus>,
    pub images: Images<'a>,
    /// The nodes that cannot pin, if that is asked of them.
    pub unpinned: Names<'a>,
    pub wake: Option<Duration>,
}

/// A node that a spec selects.
pub struct Selected<'a> {
    pub name: &'a str,
    pub state: NodeState,
    pub ready: usize,
    pub total: usize,
    /// Bytes of its images that it has, and in all as far as that is known.
    pub bytes: (u64, u64),
    pub cause: Cause<'a>,
    pub reported: i64,
}

impl<'a> View<'a> {
    pub fn new(asked: &Asked<'a>) -> Self {
        let lists = (0..asked.spec.cache_spec.len()).map(|index| ListStatus {
            index: count(index),
            ..ListStatus::default()
        });
        let mut view = Self {
            spec: asked.spec,
            nodes: Vec::new(),
            lists: lists.collect(),
            images: Images::new(asked.spec),
            unpinned: Names::default(),
            wake: None,
        };
        for (name, node) in asked.fleet.nodes() {
            let lists = asked.spec.cache_spec.iter().enumerate();
            let lists = lists.filter(|(_, list)| selects(list, &node.labels));
            let lists: Vec<usize> = lists.map(|(index, _)| index).collect();
            if !lists.is_empty() {
                view.add(asked, name, node, &lists);
            }
        }
        view
    }

    /// Adds a node that these lists select.
    fn add(&mut self, asked: &Asked<'a>, name: &'a str, node: &'a Node, lists: &[usize]) {
        let report = asked.fleet.report(name, node);
        if asked.spec.pin && report.is_some_and(|report| !report.pins) {
            self.unpinned.add(name);
        }
        let entry = report.and_then(|report| report.entry(asked.uid));
        let of_generation = entry.filter(|entry| entry.generation == asked.generation);
        self.count_in(lists, of_generation);
        let current = of_generation.filter(|entry| entry.is_about(lists));
        let verdict = match current {
            Some(entry) => Verdict::reported(entry, node.contact),
            None => Verdict::silent(asked, node, report.is_some(), entry),
        };
        self.wake = self.wake.into_iter().chain(verdict.wake).min();
        let is_reachable = verdict.state != NodeState::Unreachable;
        let found = self.images.add(name, lists, report, is_reachable);
        let cause = match found.waiting {
            Some((written, image)) if current.is_some() && verdict.state == NodeState::Pending => {
                Cause::Waiting(written, image)
            }
            _ => verdict.cause,
        };
        let specs = lists
            .iter()
            .filter_map(|&index| asked.spec.cache_spec.get(index));
        self.nodes.push(Selected {
            name,
            state: verdict.state,
            ready: current.map_or(found.ready, Entry::ready),
            total: specs.map(|list| list.images.len()).sum(),
            bytes: current.map_or((0, 0), |entry| entry.bytes),
            cause,
            reported: entry.map_or(0, |entry| entry.generation),
        });
    }

    /// Counts a node in each of these lists.
    fn count_in(&mut self, lists: &[usize], entry: Option<&Entry>) {
        for &index in lists {
            if let Some(list) = self.lists.get_mut(index) {
                let reported = entry.and_then(|entry| entry.list(index));
                list.matched_nodes += 1;
                list.ready_nodes += i32::from(reported.is_some_and(fleet::List::is_ready));
            }
        }
    }

    pub fn count(&self, state: NodeState) -> usize {
        self.in_state(state).count()
    }

    pub fn in_state(&self, state: NodeState) -> impl Iterator<Item = &Selected<'a>> {
        self.nodes.iter().filter(move |node| node.state == state)
    }

    /// The results that go into the status, by name, and how many do not.
    pub fn results(&self) -> (Vec<NodeResult>, usize) {
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        if nodes.len() > ALL_NODES {
            nodes.sort_by_key(|node| urgency(node.state));
            nodes.truncate(SOME_NODES);
        }
        let omitted = self.nodes.len() - nodes.len();
        (nodes.into_iter().map(Selected::result).collect(), omitted)
    }
}

/// Which nodes a status that cannot have all of them names first.
const fn urgency(state: NodeState) -> u8 {
    match state {
        NodeState::Failed => 0,
        NodeState::Pulling => 1,
        NodeState::Unreachable => 2,
        NodeState::Pending => 3,
        NodeState::Ready => 4,
    }
}

impl Selected<'_> {
    fn result(&self) -> NodeResult {
        NodeResult {
            name: self.name.to_owned(),
            state: self.state,
            ready: count(self.ready),
            total: count(self.total),
            reason: self.cause.reason().to_owned(),
            message: visible(&self.cause.to_string()).into_owned(),
            observed_generation: self.reported,
        }
    }
}
