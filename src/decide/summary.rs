//! The summary of one `ImageCache` over all nodes: its whole status.

mod conditions;
mod images;
mod node;
#[cfg(test)]
mod properties;
mod sentences;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

use jiff::Timestamp;

use self::view::{Asked, View};
use super::fleet::Fleet;
use super::inputs::Cache;
use super::timing::Timing;
use crate::api::image_cache::{ImageCacheStatus, NodeState};

/// A status, and until when it holds if nothing happens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The status.
    pub status: ImageCacheStatus,
    /// After this time, a node that does not report becomes unreachable.
    pub wake: Option<Duration>,
}

/// What the status of an `ImageCache` should say. `previous` is what it says: timestamps move only when the state beside them does.
#[must_use]
pub fn summarize(
    cache: &Cache,
    fleet: &Fleet,
    previous: &ImageCacheStatus,
    now: Timestamp,
    timing: &Timing,
) -> Summary {
    let Some((generation, spec)) = &cache.spec else {
        // Nothing is known of what the nodes should have: what was counted for the last spec that could be read stays.
        let conditions = conditions::unread(cache, &previous.conditions, now);
        return Summary {
            status: ImageCacheStatus {
                observed_generation: cache.generation,
                conditions,
                ..previous.clone()
            },
            wake: None,
        };
    };
    let view = View::new(&Asked {
        uid: &cache.uid,
        generation: *generation,
        spec,
        fleet,
        now,
        timing,
    });
    let conditions = conditions::conditions(cache, *generation, &view, &previous.conditions, now);
    let (nodes, nodes_omitted) = view.results();
    let (images, images_omitted) = view.images.results();
    Summary {
        status: ImageCacheStatus {
            observed_generation: cache.generation,
            images_total: count(view.images.len()),
            desired_nodes: count(view.nodes.len()),
            ready_nodes: count(view.count(NodeState::Ready)),
            pulling_nodes: count(view.count(NodeState::Pulling)),
            failed_nodes: count(view.count(NodeState::Failed)),
            pending_nodes: count(view.count(NodeState::Pending)),
            unreachable_nodes: count(view.count(NodeState::Unreachable)),
            lists: view.lists,
            conditions,
            nodes,
            nodes_omitted: count(nodes_omitted),
            images,
            images_omitted: count(images_omitted),
        },
        wake: view.wake,
    }
}

/// Counts of nodes and images are far below the limit of the API's integers.
fn count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
