//! `Ready`, `Progressing` and `Degraded`, each with its sentence.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::node::Cause;
use super::sentences::{Counted, MOST_NAMED, Named, Names, some, verb};
use super::view::{Selected, View};
use crate::api::SpecError;
use crate::api::condition::{condition, find};
use crate::api::image_cache::{Ensure, NodeState};
use crate::decide::bytes::of;
use crate::decide::inputs::Cache;

/// What a condition says, apart from its type, generation and time.
struct Said {
    status: bool,
    reason: &'static str,
    message: String,
}

impl Said {
    fn new(status: bool, reason: &'static str, clauses: &[String]) -> Self {
        Self {
            status,
            reason,
            message: clauses.join("; "),
        }
    }
}

/// The conditions of an `ImageCache` whose spec of this generation is acted on.
pub fn conditions(
    cache: &Cache,
    generation: i64,
    view: &View,
    previous: &[Condition],
    now: Timestamp,
) -> Vec<Condition> {
    let make = |kind, said: &Said, generation| {
        let Said {
            status,
            reason,
            message,
        } = said;
        condition(
            previous,
            kind,
            *status,
            reason,
            message,
            Some(generation),
            now,
        )
    };
    let ready = match &cache.unreadable {
        Some(error) => unreadable(error, Some(generation)),
        None => ready(view),
    };
    vec![
        make("Ready", &ready, cache.generation),
        make("Progressing", &progressing(view), generation),
        make("Degraded", &degraded(view), generation),
    ]
}

/// The conditions of an `ImageCache` of which no spec could be read, at least not by this process.
pub fn unread(cache: &Cache, previous: &[Condition], now: Timestamp) -> Vec<Condition> {
    let ready = match &cache.unreadable {
        Some(error) => unreadable(error, None),
        None => Said::new(
            false,
            "InvalidSpec",
            &["the spec was not read yet".to_owned()],
        ),
    };
    let waits = "nothing is started before the spec can be read";
    let others = [
        (
            "Progressing",
            Said::new(true, "Waiting", &[waits.to_owned()]),
        ),
        (
            "Degraded",
            Said::new(
                false,
                "Healthy",
                &["nothing is wrong with the nodes".to_owned()],
            ),
        ),
    ];
    let make = |kind, said: &Said| {
        let Said {
            status,
            reason,
            message,
        } = said;
        condition(
            previous,
            kind,
            *status,
            reason,
            message,
            Some(cache.generation),
            now,
        )
    };
    let mut all = vec![make("Ready", &ready)];
    for (kind, said) in others {
        // What was said of the last spec that could be read is still the best that is known.
        let before = find(previous, kind).cloned();
        all.push(before.unwrap_or_else(|| make(kind, &said)));
    }
    all
}

fn unreadable(error: &SpecError, in_force: Option<i64>) -> Said {
    let reason = match error {
        SpecError::Invalid { .. } => "InvalidSpec",
        SpecError::Unsupported { .. } => "UnsupportedField",
    };
    let mut clauses = vec![error.to_string()];
    if let Some(generation) = in_force {
        clauses.push(format!("generation {generation} stays in force"));
    }
    Said::new(false, reason, &clauses)
}

fn ready(view: &View) -> Said {
    let lists = unmatched(view);
    if view.nodes.is_empty() {
        return Said::new(false, "NoMatchingNodes", &lists);
    }
    let ready = view.count(NodeState::Ready);
    let unreachable: Names = names(view, NodeState::Unreachable);
    let reachable = view.nodes.len() - unreachable.count();
    let mut clauses = Vec::new();
    if reachable == 0 {
        let all = Counted(view.nodes.len(), "node");
        clauses.push(format!("none of {all} can be reached: {unreachable}"));
    } else {
        let of = if unreachable.count() == 0 {
            ""
        } else {
            "reachable "
        };
        let nodes = verb(reachable, "node", "nodes");
        clauses.push(format!(
            "{ready} of {reachable} {of}{nodes} {}",
            images(view, ready)
        ));
        let in_order = [NodeState::Failed, NodeState::Pulling, NodeState::Pending];
        let behind = in_order.iter().flat_map(|state| view.in_state(*state));
        clauses.extend(some(behind.map(Selected::clause)));
        if unreachable.count() > 0 {
            let are = verb(unreachable.count(), "is", "are");
            let nodes = Counted(unreachable.count(), "node");
            clauses.push(format!("{nodes} {are} unreachable: {unreachable}"));
        }
    }
    clauses.extend(kept(view));
    clauses.extend(lists);
    match ready {
        0 => Said::new(false, "NodesNotReady", &clauses),
        ready if ready == reachable => Said::new(true, "AllNodesReady", &clauses),
        _ => Said::new(false, "NodesNotReady", &clauses),
    }
}

fn progressing(view: &View) -> Said {
    let is_done = |node: &Selected| matches!(node.state, NodeState::Ready | NodeState::Unreachable);
    let nothing = |what: &str| Said::new(false, "Complete", &[what.to_owned()]);
    if view.spec.paused {
        let paused = "spec.paused is set: nothing is started";
        return Said::new(false, "Paused", &[paused.to_owned()]);
    }
    if view.nodes.is_empty() {
        return nothing("nothing to do: no node matches");
    }
    if view.count(NodeState::Pulling) > 0 {
        let pulling = view.in_state(NodeState::Pulling);
        let mut clauses = vec![advance(view)];
        clauses.extend(some(pulling.map(Selected::clause)));
        return Said::new(true, "Pulling", &clauses);
    }
    if !view.nodes.iter().all(is_done) {
        let waiting = view.in_state(NodeState::Pending).map(Selected::clause);
        let failed = view.in_state(NodeState::Failed);
        let again = failed.map(|node| format!("{} will try again", node.name));
        return Said::new(true, "Waiting", &some(waiting.chain(again)));
    }
    match (
        view.count(NodeState::Ready),
        view.count(NodeState::Unreachable),
    ) {
        (_, 0) => nothing(match view.spec.ensure {
            Ensure::Present => "every node has its images",
            Ensure::Absent => "every node is rid of its images",
        }),
        (0, _) => {
            let waits = format!(
                "no node can be reached: {}",
                names(view, NodeState::Unreachable)
            );
            Said::new(true, "Waiting", &[waits])
        }
        _ => nothing(match view.spec.ensure {
            Ensure::Present => "every node that can be reached has its images",
            Ensure::Absent => "every node that can be reached is rid of its images",
        }),
    }
}

/// How far all nodes are together. An image's bytes are known once its pull has begun.
fn advance(view: &View) -> String {
    let sum = |of: fn(&Selected) -> usize| view.nodes.iter().map(of).sum::<usize>();
    let (ready, total) = (sum(|node| node.ready), sum(|node| node.total));
    let bytes = view.nodes.iter().fold((0_u64, 0_u64), |(done, all), node| {
        let (more, of) = node.bytes;
        (done.saturating_add(more), all.saturating_add(of))
    });
    let nodes = Counted(view.nodes.len(), "node");
    let said = format!("{ready} of {total} images are there on {nodes}");
    match bytes {
        (_, 0) => said,
        (done, all) => format!("{said}, {}", of(done, all)),
    }
}

/// What an operator should look at, worst first: each problem has its clause, the first one its reason.
fn degraded(view: &View) -> Said {
    let mut reason = "Healthy";
    let mut clauses = Vec::new();
    let mut add = |why, found: Vec<String>| {
        if reason == "Healthy" && !found.is_empty() {
            reason = why;
        }
        clauses.extend(found);
    };
    add("ImagesFailed", failed(view));
    let because = |wanted: fn(&Cause) -> bool| -> Names {
        let nodes = view.in_state(NodeState::Unreachable);
        nodes
            .filter(|node| wanted(&node.cause))
            .map(|node| node.name)
            .collect()
    };
    let unreachable = because(|cause| !matches!(cause, Cause::NoReport));
    if unreachable.count() > 0 {
        let nodes = Counted(unreachable.count(), "node");
        let are = verb(unreachable.count(), "is", "are");
        let clause = format!("{nodes} {are} unreachable (the Node is not Ready): {unreachable}");
        add("NodesUnreachable", vec![clause]);
    }
    let silent = because(|cause| matches!(cause, Cause::NoReport));
    if silent.count() > 0 {
        let nodes = Counted(silent.count(), "node");
        let is_it = verb(
            silent.count(),
            "is it a virtual node?",
            "are they virtual nodes?",
        );
        let clause =
            format!("{nodes} never reported (does the DaemonSet run there? {is_it}): {silent}");
        add("NoReport", vec![clause]);
    }
    add("DigestDrift", drift(view));
    add("PinningUnavailable", unpinned(view));
    if clauses.is_empty() {
        clauses.push("no image failed, and every node can be reached".to_owned());
    }
    Said::new(reason != "Healthy", reason, &clauses)
}

/// Which images failed, on which nodes, why.
fn failed(view: &View) -> Vec<String> {
    let images = view.images.iter().flat_map(|image| {
        image.failures.iter().map(|(reason, (nodes, message))| {
            let because = if message.is_empty() { "" } else { ": " };
            format!(
                "{} failed on {nodes}: {reason}{because}{message}",
                image.written
            )
        })
    });
    let clauses = some(images);
    if !clauses.is_empty() {
        return clauses;
    }
    // A report may have left the image out.
    some(view.in_state(NodeState::Failed).map(Selected::clause))
}

/// Which names mean different images on different nodes.
fn drift(view: &View) -> Vec<String> {
    let drifted = view.images.iter().filter(|image| image.has_drifted());
    some(drifted.map(|image| {
        let digests = image.digests().take(MOST_NAMED);
        let digests: Vec<_> = digests
            .map(|(digest, nodes)| format!("{} on {nodes}", brief(digest)))
            .collect();
        let count = image.digests.len();
        format!(
            "{} means {count} different images: {}",
            image.written,
            digests.join(", ")
        )
    }))
}

/// Which nodes cannot pin, and which images the budgets have no room for.
fn unpinned(view: &View) -> Vec<String> {
    let nodes = &view.unpinned;
    let runtimes = (nodes.count() > 0).then(|| {
        format!("the runtime cannot pin images on {nodes} (is it older than containerd 1.6.21?)")
    });
    let images = view.images.iter();
    let images = images.filter(|image| view.spec.pin && image.unpinned.count() > 0);
    let images = images.map(|image| {
        let (image, nodes) = (image.written, &image.unpinned);
        format!("{image} is not pinned on {nodes}: PinBudget")
    });
    some(runtimes.into_iter().chain(images))
}

/// Enough of a digest to tell it from others.
fn brief(digest: &str) -> &str {
    let algorithm = digest.find(':').map_or(0, |colon| colon + 1);
    crate::api::condition::cut(digest, algorithm + 12)
}

/// The lists that match no node. A node of a spec is matched by one of its lists, so that all of them are here if no node is.
fn unmatched(view: &View) -> Vec<String> {
    let lists = view.spec.cache_spec.iter().zip(&view.lists).enumerate();
    let unmatched = lists.filter(|(_, (_, status))| status.matched_nodes == 0);
    some(unmatched.map(|(index, (list, _))| format!("list {} matches no node", Named(index, list))))
}

fn names<'a>(view: &View<'a>, state: NodeState) -> Names<'a> {
    view.in_state(state).map(|node| node.name).collect()
}

/// Which images stay although they are to be gone, on which nodes, why.
fn kept(view: &View) -> Vec<String> {
    let kept = view.images.iter().flat_map(|image| {
        image.kept.iter().map(|(reason, (nodes, message))| {
            format!("{} stays on {nodes}: {reason}: {message}", image.written)
        })
    });
    some(kept)
}

/// What each node should have, or be rid of: all images of the spec, if it is the same for all.
fn images(view: &View, ready: usize) -> String {
    let all = view.images.len();
    let have = match view.spec.ensure {
        Ensure::Present => verb(ready, "has", "have"),
        Ensure::Absent => verb(ready, "is rid of", "are rid of"),
    };
    let images = match all {
        1 => "the image".to_owned(),
        all if view.nodes.iter().all(|node| node.total == all) => format!("all {all} images"),
        _ => format!("all of {} images", verb(ready, "its", "their")),
    };
    format!("{have} {images}")
}

impl Selected<'_> {
    /// The node and why it is not ready.
    fn clause(&self) -> String {
        let Self {
            name,
            ready,
            total,
            cause,
            ..
        } = self;
        match self.state {
            NodeState::Pulling => format!("{name} is pulling ({ready} of {total} images)"),
            _ => match cause.to_string() {
                cause if cause.is_empty() => format!("{name} has {ready} of {total} images"),
                cause => format!("{name}: {cause}"),
            },
        }
    }
}
