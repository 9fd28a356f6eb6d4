//! What the elected agent sees: all Nodes and all reports, folded as they come.

use std::collections::HashSet;

use jiff::Timestamp;
use kube::ResourceExt;

use super::wire::{NodeObject, ReportObject};
use crate::cluster::Event;
use crate::decide::Fleet;

/// All Nodes and all reports, as far as they are known.
#[derive(Debug, Default)]
pub struct Sight {
    /// What is known of them.
    pub fleet: Fleet,
    nodes: Listing,
    reports: Listing,
}

/// How far the list of one kind is.
#[derive(Debug, Default)]
struct Listing {
    /// The names so far, while a list is under way.
    seen: Option<HashSet<String>>,
    /// A list was complete at least once.
    complete: bool,
}

impl Sight {
    /// Everything was listed once. Before that nothing can be summarized: what is not listed yet would be missing.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.nodes.complete && self.reports.complete
    }

    /// Takes in what happened to a Node.
    pub fn node(&mut self, event: Event<NodeObject>) {
        match event {
            Event::Begin => self.nodes.begin(),
            Event::Listed(node) | Event::Changed(node) => {
                let name = node.name_any();
                self.nodes.saw(&name);
                self.fleet.apply_node(&name, node.fold());
            }
            Event::Deleted(node) => {
                let name = node.name_any();
                self.nodes.lost(&name);
                self.fleet.delete_node(&name);
            }
            Event::Complete => {
                let gone = self
                    .nodes
                    .complete(self.fleet.nodes().map(|(name, _)| name));
                for name in gone {
                    self.fleet.delete_node(&name);
                }
            }
            Event::Lost | Event::Resumed => {}
        }
    }

    /// Takes in what happened to a report.
    pub fn report(&mut self, event: Event<ReportObject>, now: Timestamp) {
        match event {
            Event::Begin => self.reports.begin(),
            Event::Listed(report) | Event::Changed(report) => {
                let name = report.name_any();
                self.reports.saw(&name);
                self.fleet.apply_report(&name, report.fold());
            }
            Event::Deleted(report) => {
                let name = report.name_any();
                self.reports.lost(&name);
                self.fleet.delete_report(&name, now);
            }
            Event::Complete => {
                let gone = self.reports.complete(self.fleet.reporting());
                for name in gone {
                    self.fleet.delete_report(&name, now);
                }
            }
            Event::Lost | Event::Resumed => {}
        }
    }
}

impl Listing {
    fn begin(&mut self) {
        self.seen = Some(HashSet::new());
    }

    fn saw(&mut self, name: &str) {
        if let Some(seen) = &mut self.seen {
            seen.insert(name.to_owned());
        }
    }

    fn lost(&mut self, name: &str) {
        if let Some(seen) = &mut self.seen {
            seen.remove(name);
        }
    }

    /// Which of the known names the list does not have.
    fn complete<'a>(&mut self, known: impl Iterator<Item = &'a str>) -> Vec<String> {
        self.complete = true;
        let seen = self.seen.take().unwrap_or_default();
        known
            .filter(|name| !seen.contains(*name))
            .map(str::to_owned)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn node(name: &str) -> NodeObject {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name}})).unwrap()
    }

    fn report(name: &str) -> ReportObject {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    }

    fn list(sight: &mut Sight, names: &[&str]) {
        sight.node(Event::Begin);
        sight.report(Event::Begin, Timestamp::UNIX_EPOCH);
        for name in names {
            sight.node(Event::Listed(node(name)));
            sight.report(Event::Listed(report(name)), Timestamp::UNIX_EPOCH);
        }
    }

    fn complete(sight: &mut Sight) {
        sight.node(Event::Complete);
        sight.report(Event::Complete, Timestamp::UNIX_EPOCH);
    }

    fn names(sight: &Sight) -> (Vec<&str>, Vec<&str>) {
        let nodes = sight.fleet.nodes().map(|(name, _)| name);
        (nodes.collect(), sight.fleet.reporting().collect())
    }

    #[test]
    fn nothing_is_complete_before_both_lists_are() {
        let mut sight = Sight::default();
        list(&mut sight, &["a"]);
        sight.node(Event::Complete);
        assert!(!sight.is_complete());
        sight.report(Event::Complete, Timestamp::UNIX_EPOCH);
        assert!(sight.is_complete());
    }

    #[test]
    fn a_new_list_takes_away_what_it_does_not_have_when_it_is_complete() {
        let mut sight = Sight::default();
        list(&mut sight, &["a", "b"]);
        complete(&mut sight);
        // One that breaks off, then one that is complete.
        list(&mut sight, &["b"]);
        list(&mut sight, &["a", "c"]);
        assert_eq!(names(&sight).0, ["a", "b", "c"]);
        assert!(sight.is_complete(), "what was known is still good");
        complete(&mut sight);
        assert_eq!(names(&sight), (vec!["a", "c"], vec!["a", "c"]));
    }

    #[test]
    fn changes_between_lists_count() {
        let mut sight = Sight::default();
        list(&mut sight, &["a"]);
        complete(&mut sight);
        sight.node(Event::Changed(node("b")));
        sight.node(Event::Deleted(node("a")));
        sight.report(Event::Deleted(report("a")), Timestamp::UNIX_EPOCH);
        assert_eq!(names(&sight), (vec!["b"], vec![]));
        list(&mut sight, &["b"]);
        sight.node(Event::Deleted(node("b")));
        complete(&mut sight);
        assert_eq!(names(&sight), (vec![], vec!["b"]));
    }
}
