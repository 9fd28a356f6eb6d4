//! What the elected agent keeps of every Node and of every node's report.
//!
//! Any agent may be elected, within the memory of one: a Node and a report are folded on arrival to what
//! a summary needs, and what many nodes have alike, such as an image with its digest, is kept once.

mod report;
mod shared;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

pub use self::report::{Entry, Failure, Image, List, Report};

use self::report::Parts;
use self::shared::Shared;
use super::selector::Labels;

/// The label that says which operating system a node runs.
const OS_LABEL: &str = "kubernetes.io/os";

/// The Nodes that count, and what the agents on them report.
#[derive(Debug, Default)]
pub struct Fleet {
    nodes: BTreeMap<Arc<str>, Node>,
    reports: BTreeMap<Arc<str>, Report>,
    first_report: Option<Timestamp>,
    touched: HashSet<LabelSet>,
    labels: Shared<(String, String)>,
    parts: Parts,
}

/// A Node, as far as summaries need it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// The object's uid.
    pub uid: Box<str>,
    /// Its labels.
    pub labels: LabelSet,
    /// What the control plane hears from it.
    pub contact: Contact,
    /// When its report vanished, if it did: it is overdue anew from then on.
    report_lost: Option<Timestamp>,
}

/// The labels of a Node, sorted by key.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct LabelSet(Arc<[Arc<(String, String)>]>);

/// What the control plane hears from a node: the status of the Node's `Ready` condition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Contact {
    /// `True`: it is ready.
    Ready {
        /// Since when.
        since: Timestamp,
    },
    /// `False`: it says itself that it is not ready.
    NotReady,
    /// `Unknown`, or no condition at all: nothing is heard from it.
    Lost,
}

impl LabelSet {
    /// These labels.
    #[must_use]
    pub fn new(labels: BTreeMap<String, String>) -> Self {
        Self(labels.into_iter().map(Arc::new).collect())
    }
}

impl Labels for LabelSet {
    fn value(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|label| label.0.as_str().cmp(key));
        Some(&self.0.get(at.ok()?)?.1)
    }
}

impl Node {
    /// A Node with these labels.
    #[must_use]
    pub fn new(uid: &str, labels: BTreeMap<String, String>, contact: Contact) -> Self {
        Self {
            uid: uid.into(),
            labels: LabelSet::new(labels),
            contact,
            report_lost: None,
        }
    }

    /// From when on a report of this node is waited for, as far as the Node itself knows.
    #[must_use]
    pub fn report_expected_since(&self) -> Option<Timestamp> {
        match self.contact {
            Contact::Ready { since } => {
                Some(self.report_lost.map_or(since, |lost| lost.max(since)))
            }
            Contact::NotReady | Contact::Lost => None,
        }
    }
}

impl Fleet {
    /// Takes a Node as it is now. One that runs another system than Linux does not count.
    pub fn apply_node(&mut self, name: &str, mut node: Node) {
        if node.labels.value(OS_LABEL).is_some_and(|os| os != "linux") {
            return self.delete_node(name);
        }
        let before = self.nodes.get(name);
        node.report_lost = before
            .filter(|before| before.uid == node.uid)
            .and_then(|before| before.report_lost);
        if before == Some(&node) {
            return;
        }
        let labels = node
            .labels
            .0
            .iter()
            .map(|label| self.labels.one(label.clone()));
        node.labels = LabelSet(labels.collect());
        if let Some(before) = before {
            self.touched.insert(before.labels.clone());
        }
        self.touched.insert(node.labels.clone());
        self.nodes.insert(name.into(), node);
    }

    /// Forgets a Node that was deleted.
    pub fn delete_node(&mut self, name: &str) {
        if let Some(before) = self.nodes.remove(name) {
            self.touched.insert(before.labels);
        }
    }

    /// Takes a node's report as it is now.
    pub fn apply_report(&mut self, name: &str, mut report: Report) {
        if self.reports.get(name) == Some(&report) {
            return;
        }
        report.share(&mut self.parts);
        self.reports.insert(name.into(), report);
        self.touch(name);
        self.find_first_report();
    }

    /// Forgets a report that was deleted.
    pub fn delete_report(&mut self, name: &str, now: Timestamp) {
        if self.reports.remove(name).is_some() {
            if let Some(node) = self.nodes.get_mut(name) {
                node.report_lost = Some(now);
            }
            self.touch(name);
            self.find_first_report();
        }
    }

    /// The Nodes that count, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(name, node)| (name.as_ref(), node))
    }

    /// How many Nodes count.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The names of all nodes that have a report.
    pub fn reporting(&self) -> impl Iterator<Item = &str> {
        self.reports.keys().map(AsRef::as_ref)
    }

    /// The report of this Node. One that belongs to an earlier Node of the same name is none.
    #[must_use]
    pub fn report(&self, name: &str, node: &Node) -> Option<&Report> {
        self.reports
            .get(name)
            .filter(|report| report.owner.as_ref().is_none_or(|owner| *owner == node.uid))
    }

    /// When the first report was written: before that, no agent can be late.
    #[must_use]
    pub const fn first_report(&self) -> Option<Timestamp> {
        self.first_report
    }

    /// The labels of the nodes about which something is new since this was last asked: an `ImageCache` that
    /// selects none of them is summarized as before.
    pub fn take_touched(&mut self) -> HashSet<LabelSet> {
        std::mem::take(&mut self.touched)
    }

    fn touch(&mut self, name: &str) {
        if let Some(node) = self.nodes.get(name) {
            self.touched.insert(node.labels.clone());
        }
    }

    /// Every node's report may be late from another moment on when this changes.
    fn find_first_report(&mut self) {
        let first = self.reports.values().map(|report| report.created).min();
        if first != self.first_report {
            self.first_report = first;
            let all = self.nodes.values().map(|node| node.labels.clone());
            self.touched.extend(all);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn tier(tier: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("tier".to_owned(), tier.to_owned())])
    }

    fn report(owner: &str) -> Report {
        Report::new(at(1), Some(owner), vec![], vec![], false)
    }

    #[test]
    fn labels_are_found_by_their_key() {
        let labels = LabelSet::new(
            ["c", "a", "b"]
                .map(|key| (key.to_owned(), key.repeat(2)))
                .into(),
        );
        for key in ["a", "b", "c"] {
            assert_eq!(labels.value(key), Some(key.repeat(2).as_str()));
        }
        assert_eq!(labels.value("d"), None);
    }

    #[test]
    fn nodes_share_the_labels_that_they_have_alike() {
        let mut fleet = Fleet::default();
        for name in ["n1", "n2"] {
            let ready = Contact::Ready { since: at(0) };
            fleet.apply_node(name, Node::new(name, tier("a"), ready));
        }
        let [a, b] =
            ["n1", "n2"].map(|name| fleet.nodes.get(name).unwrap().labels.0.first().unwrap());
        assert!(Arc::ptr_eq(a, b));
    }

    #[test]
    fn what_is_new_touches_whoever_selects_the_node() {
        let mut fleet = Fleet::default();
        let ready = Contact::Ready { since: at(0) };
        fleet.apply_node("n1", Node::new("n1", tier("a"), ready));
        fleet.apply_node("n2", Node::new("n2", tier("b"), ready));
        assert_eq!(fleet.take_touched().len(), 2);
        // Nothing new: nobody is affected.
        fleet.apply_node("n1", Node::new("n1", tier("a"), ready));
        assert!(fleet.take_touched().is_empty());
        // A report affects who selects its node; the first one of all affects everybody.
        fleet.apply_report("n1", report("n1"));
        assert_eq!(fleet.take_touched().len(), 2);
        fleet.apply_report("n2", report("n2"));
        assert_eq!(fleet.take_touched().len(), 1);
        fleet.apply_report("n2", report("n2"));
        assert!(fleet.take_touched().is_empty());
        // New labels affect who selected it before and who does now.
        fleet.apply_node("n1", Node::new("n1", tier("c"), ready));
        assert_eq!(fleet.take_touched().len(), 2);
        fleet.delete_node("n1");
        assert_eq!(fleet.take_touched().len(), 1);
        fleet.delete_report("n1", at(0));
        assert!(fleet.take_touched().is_empty());
    }
}
