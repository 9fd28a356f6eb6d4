//! What the agent is told, filled from two watches: all `ImageCache`s, and the own Node.

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::core::PartialObjectMeta;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::caches::{CacheFold, RawCache};
use super::client::Cluster;
use super::watch::{Event, Watch};
use crate::decide::{Inputs, Known, Node};

/// Keeps the `ImageCache`s in `inputs` up to date, until `stop`.
pub async fn watch_caches(
    cluster: &Cluster,
    inputs: &watch::Sender<Inputs>,
    stop: &CancellationToken,
) {
    let mut fold = CacheFold::default();
    let api = Api::<RawCache>::all(cluster.client());
    Watch::new(cluster, api)
        .run(stop, |events| {
            let mut news = false;
            for event in events {
                news |= fold.take(event);
            }
            if news {
                inputs.send_modify(|inputs| {
                    if let (Known::Unknown, Some(caches)) = (&inputs.caches, fold.known().known()) {
                        info!(caches = caches.len(), "the ImageCaches are known");
                    }
                    inputs.caches = fold.known().clone();
                    inputs.is_current.caches = fold.is_current();
                });
            }
        })
        .await;
}

/// Keeps the own Node in `inputs` up to date, until `stop`. Only its metadata is asked for: a Node's status can name fifty
/// images, and changes all the time.
pub async fn watch_node(
    cluster: &Cluster,
    name: &str,
    inputs: &watch::Sender<Inputs>,
    stop: &CancellationToken,
) {
    let mut fold = NodeFold::default();
    let api = Api::<PartialObjectMeta<v1::Node>>::all(cluster.client());
    Watch::new(cluster, api)
        .fields(format!("metadata.name={name}"))
        .run(stop, |events| {
            let mut news = false;
            for event in events {
                news |= fold.take(event);
            }
            if !news {
                return;
            }
            inputs.send_if_modified(|inputs| {
                let is_current = std::mem::replace(&mut inputs.is_current.node, fold.is_current);
                let is_known = fold.node.known().is_some();
                if inputs.node == fold.node && is_known && is_current != fold.is_current {
                    return true;
                }
                let uid = |node: &Known<Node>| node.known().map(|node| node.uid.clone());
                match uid(&fold.node) {
                    None => warn!(node = name, "waiting for the Node object"),
                    known if known != uid(&inputs.node) => info!(node = name, "the Node is known"),
                    Some(_) => info!(node = name, "the Node's labels changed"),
                }
                let changes = inputs.node != fold.node;
                inputs.node.clone_from(&fold.node);
                changes
            });
        })
        .await;
}

/// The own Node, as far as it is known. A Node that is not there is unknown: nobody says what it asks for.
#[derive(Debug, Default)]
struct NodeFold {
    node: Known<Node>,
    /// A list is under way, and holds this so far.
    listed: Option<Known<Node>>,
    /// A list was complete at least once.
    seen: bool,
    /// The API server tells of changes at this moment.
    is_current: bool,
}

impl NodeFold {
    /// Takes an event in. True if it is worth telling.
    fn take(&mut self, event: Event<PartialObjectMeta<v1::Node>>) -> bool {
        match event {
            Event::Begin => {
                self.listed = Some(Known::Unknown);
                std::mem::replace(&mut self.is_current, false) && self.node.known().is_some()
            }
            Event::Complete => {
                let first = !std::mem::replace(&mut self.seen, true);
                let resumed = !std::mem::replace(&mut self.is_current, true);
                let listed = self.listed.take().unwrap_or_default();
                // While it is not there, nothing else is news.
                self.put(listed) || first || (resumed && self.node.known().is_some())
            }
            // A list that broke off says nothing.
            Event::Resumed => {
                self.listed = None;
                !std::mem::replace(&mut self.is_current, true)
            }
            Event::Lost => {
                self.listed = None;
                std::mem::replace(&mut self.is_current, false)
            }
            Event::Listed(object) | Event::Changed(object) => self.put(Known::Known(Node {
                uid: object.metadata.uid.unwrap_or_default(),
                labels: object.metadata.labels.unwrap_or_default(),
            })),
            Event::Deleted(_) => self.put(Known::Unknown),
        }
    }

    fn put(&mut self, node: Known<Node>) -> bool {
        if let Some(listed) = &mut self.listed {
            *listed = node;
            return false;
        }
        let changes = self.node != node;
        self.node = node;
        changes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn object(uid: &str, tier: &str) -> PartialObjectMeta<v1::Node> {
        serde_json::from_value(json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadata",
            "metadata": {"name": "n1", "uid": uid, "labels": {"tier": tier}},
        }))
        .unwrap()
    }

    fn uid(fold: &NodeFold) -> Option<&str> {
        fold.node.known().map(|node| node.uid.as_str())
    }

    #[test]
    fn a_node_that_is_not_there_is_unknown_and_said_once() {
        let mut fold = NodeFold::default();
        assert!(!fold.take(Event::Begin));
        assert!(fold.take(Event::Complete), "it is waited for");
        assert!(!fold.take(Event::Begin));
        assert!(!fold.take(Event::Complete), "still");
        assert_eq!(uid(&fold), None);
        assert!(fold.take(Event::Changed(object("1", "a"))));
        assert_eq!(uid(&fold), Some("1"));
    }

    #[test]
    fn a_heartbeat_is_no_news_and_a_label_is() {
        let mut fold = NodeFold::default();
        fold.take(Event::Begin);
        assert!(!fold.take(Event::Listed(object("1", "a"))));
        assert_eq!(uid(&fold), None, "the list is not complete");
        assert!(fold.take(Event::Complete));
        assert!(!fold.take(Event::Changed(object("1", "a"))));
        assert!(fold.take(Event::Changed(object("1", "b"))));
    }

    #[test]
    fn a_node_created_anew_is_another_node() {
        let mut fold = NodeFold::default();
        fold.take(Event::Begin);
        fold.take(Event::Listed(object("1", "a")));
        fold.take(Event::Complete);
        assert!(fold.take(Event::Deleted(object("1", "a"))));
        assert_eq!(uid(&fold), None);
        assert!(fold.take(Event::Changed(object("2", "a"))));
        assert_eq!(uid(&fold), Some("2"));
        fold.take(Event::Begin);
        assert_eq!(
            uid(&fold),
            Some("2"),
            "a list that is under way changes nothing"
        );
        assert!(
            fold.take(Event::Complete),
            "deleted while the watch was broken"
        );
        assert_eq!(uid(&fold), None);
    }
}
