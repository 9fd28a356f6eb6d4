//! A cluster in a few words, for the tests of its summary.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod conditions;
mod counts;
mod life;
mod states;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::api::ImageCacheSpec;
use crate::api::condition::find;
use crate::api::reason::ImageState::{self, Failed, Pulling, Ready, Waiting};
use crate::api::{ImageList, MatchExpression, Operator, SpecError};
use crate::decide::fleet::{Contact, Entry, Failure};
use crate::decide::fleet::{Image, List, Node, Report};

const UID: &str = "uid-of-the-cache";
const NOW: i64 = 1_000_000;
const MINUTE: i64 = 60;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A cluster in which every agent has been there for an hour.
struct Cluster {
    cache: Cache,
    fleet: Fleet,
}

/// An image list: its images, its labels.
type Listed<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// An image as a node reports it: name as written, state, reason, message, digest.
type Reported<'a> = (&'a str, ImageState, &'a str, &'a str, &'a str);

const fn ready<'a>(image: &'a str, digest: &'a str) -> Reported<'a> {
    (image, Ready, "", "", digest)
}

const fn failed<'a>(image: &'a str, reason: &'a str, message: &'a str) -> Reported<'a> {
    (image, Failed, reason, message, "")
}

impl Cluster {
    fn new(lists: &[Listed]) -> Self {
        let list = |(images, labels): &Listed| ImageList {
            images: images.iter().map(|&image| image.to_owned()).collect(),
            node_selector: owned(labels),
            match_expressions: Vec::new(),
        };
        let spec = ImageCacheSpec {
            cache_spec: lists.iter().map(list).collect(),
            ..ImageCacheSpec::default()
        };
        Self {
            cache: Cache {
                uid: UID.to_owned(),
                generation: 2,
                spec: Some((2, Arc::new(spec))),
                unreadable: None,
                refresh: None,
            },
            fleet: Fleet::default(),
        }
    }

    /// One list of these images for every node.
    fn of(images: &[&str]) -> Self {
        Self::new(&[(images, &[])])
    }

    fn node_in(mut self, name: &str, labels: &[(&str, &str)], contact: Contact) -> Self {
        self.fleet
            .apply_node(name, Node::new(name, owned(labels), contact));
        self
    }

    fn node(self, name: &str) -> Self {
        self.node_in(name, &[], Contact::Ready { since: at(0) })
    }

    fn lost(self, name: &str) -> Self {
        self.node_in(name, &[], Contact::Lost)
    }

    fn labelled(self, name: &str, labels: &[(&str, &str)]) -> Self {
        self.node_in(name, labels, Contact::Ready { since: at(0) })
    }

    /// A report with one entry: its generation, the lists with what is ready of what, the images.
    fn reports(
        mut self,
        name: &str,
        generation: i64,
        lists: &[(usize, i32, i32)],
        images: &[Reported],
    ) -> Self {
        let is = |state| images.iter().any(|image| image.1 == state);
        let list = |&(index, ready, total)| List {
            index,
            ready,
            total,
        };
        let entry = Entry {
            bytes: (0, 0),
            uid: UID.to_owned(),
            generation,
            state: match (
                is(Failed),
                is(Pulling),
                lists.iter().all(|(_, a, b)| a == b),
            ) {
                (true, _, _) => NodeState::Failed,
                (_, true, _) => NodeState::Pulling,
                (_, _, true) => NodeState::Ready,
                _ => NodeState::Pending,
            },
            lists: lists.iter().map(list).collect(),
            failures: images
                .iter()
                .filter(|image| image.1 == Failed)
                .map(|(image, _, reason, message, _)| Failure {
                    image: (*image).to_owned(),
                    reason: (*reason).to_owned(),
                    message: (*message).to_owned(),
                })
                .collect(),
        };
        self.fleet
            .apply_report(name, report(name, vec![entry], images));
        self
    }

    fn summary(&self) -> Summary {
        self.summary_at(NOW)
    }

    fn summary_at(&self, second: i64) -> Summary {
        summarize(
            &self.cache,
            &self.fleet,
            &ImageCacheStatus::default(),
            at(second),
            &Timing::default(),
        )
    }

    fn status(&self) -> ImageCacheStatus {
        self.summary().status
    }

    /// A condition as its status, reason and message.
    fn says(&self, kind: &str) -> String {
        let status = self.status();
        let condition = find(&status.conditions, kind).unwrap();
        format!(
            "{} {}: {}",
            condition.status, condition.reason, condition.message
        )
    }

    /// The state of this node, with its reason and message.
    fn state_of(&self, name: &str) -> (NodeState, String, String) {
        let status = self.status();
        let node = status.nodes.iter().find(|node| node.name == name).unwrap();
        (node.state, node.reason.clone(), node.message.clone())
    }
}

fn owned(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}

fn report(owner: &str, entries: Vec<Entry>, images: &[Reported]) -> Report {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let image = |&(image, state, reason, message, digest): &Reported| Image {
        key: crate::image::Reference::parse(image)
            .map_or_else(|_| image.to_owned(), |reference| reference.key().to_owned()),
        state,
        digest: text(digest),
        reason: text(reason),
        message: text(message),
    };
    let images = images.iter().map(image).collect();
    Report::new(at(NOW - 60 * MINUTE), Some(owner), entries, images, false)
}

fn numbers(status: &ImageCacheStatus) -> [i32; 6] {
    [
        status.desired_nodes,
        status.ready_nodes,
        status.pulling_nodes,
        status.failed_nodes,
        status.pending_nodes,
        status.unreachable_nodes,
    ]
}
