//! The summary of one `ImageCache` over all nodes: its whole status.

mod conditions;
mod images;
#[cfg(test)]
mod properties;
mod sentences;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use self::images::Images;
use super::fleet::{self, Contact, Entry, Failure, Fleet};
use super::inputs::Cache;
use super::selector::selects;
use super::timing::Timing;
use crate::api::image_cache::{
    ImageCacheSpec, ImageCacheStatus, ListStatus, NodeResult, NodeState,
};

/// Up to this many nodes, each has its result in the status.
const ALL_NODES: usize = 100;

/// Above that, so many have: every agent watches the object.
const SOME_NODES: usize = 20;

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
    let view = View::new(&cache.uid, *generation, spec, fleet, now, timing);
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

/// The nodes that a spec selects, and what they have of it.
struct View<'a> {
    spec: &'a ImageCacheSpec,
    nodes: Vec<Selected<'a>>,
    lists: Vec<ListStatus>,
    images: Images<'a>,
    wake: Option<Duration>,
}

/// A node that a spec selects.
struct Selected<'a> {
    name: &'a str,
    state: NodeState,
    ready: usize,
    total: usize,
    cause: Cause<'a>,
    reported: i64,
}

/// Why a node is not ready.
#[derive(Clone, Copy)]
enum Cause<'a> {
    /// It is, or it is pulling and nothing is wrong.
    Nothing,
    /// The control plane hears nothing from it.
    Lost,
    /// It says itself that it is not ready, and there is no report.
    NotReady,
    /// It is ready, but no agent ever reported from it.
    NoReport,
    /// No agent has reported from it yet.
    NotYet,
    /// It has reported, but not this `ImageCache` yet.
    NotThisYet,
    /// The newest report is about this other generation.
    Generation(i64),
    /// The newest report is about other lists: labels changed since.
    Lists,
    /// An image failed.
    Failed(&'a Failure),
    /// An image, as the spec names it, waits for something.
    Waiting(&'a str, &'a fleet::Image),
}

impl<'a> View<'a> {
    fn new(
        uid: &str,
        generation: i64,
        spec: &'a ImageCacheSpec,
        fleet: &'a Fleet,
        now: Timestamp,
        timing: &Timing,
    ) -> Self {
        let lists = spec.cache_spec.iter().enumerate();
        let mut view = Self {
            spec,
            nodes: Vec::new(),
            lists: lists
                .clone()
                .map(|(index, _)| ListStatus {
                    index: count(index),
                    ..ListStatus::default()
                })
                .collect(),
            images: Images::new(spec),
            wake: None,
        };
        for (name, node) in fleet.nodes() {
            let selected = lists
                .clone()
                .filter(|(_, list)| selects(list, &node.labels));
            let selected: Vec<usize> = selected.map(|(index, _)| index).collect();
            if selected.is_empty() {
                continue;
            }
            let report = fleet.report(name, node);
            let entry = report.and_then(|report| report.entry(uid));
            let of_generation = entry.filter(|entry| entry.generation == generation);
            for &index in &selected {
                if let Some(list) = view.lists.get_mut(index) {
                    list.matched_nodes += 1;
                    let reported = of_generation.and_then(|entry| entry.list(index));
                    list.ready_nodes += i32::from(reported.is_some_and(fleet::List::is_ready));
                }
            }
            let current = of_generation.filter(|entry| entry.is_about(&selected));
            let (state, cause) = match current {
                Some(entry) => reported(entry, node.contact),
                None => match silent(fleet, node, report.is_some(), now, timing) {
                    Silent::Overdue => (NodeState::Unreachable, Cause::NoReport),
                    Silent::Gone(cause) => (NodeState::Unreachable, cause),
                    Silent::Expected(wake) => {
                        view.wake = view.wake.into_iter().chain(wake).min();
                        let cause = match (report, entry) {
                            (None, _) => Cause::NotYet,
                            (_, None) => Cause::NotThisYet,
                            (_, Some(entry)) if entry.generation == generation => Cause::Lists,
                            (_, Some(entry)) => Cause::Generation(entry.generation),
                        };
                        (NodeState::Pending, cause)
                    }
                },
            };
            let is_reachable = state != NodeState::Unreachable;
            let found = view.images.add(name, &selected, report, is_reachable);
            let ready = current.map_or(found.ready, |entry| {
                let ready = entry.lists.iter().map(|list| list.ready);
                ready.filter_map(|ready| usize::try_from(ready).ok()).sum()
            });
            let wanted = selected
                .iter()
                .filter_map(|&index| spec.cache_spec.get(index));
            let waits = state == NodeState::Pending && current.is_some();
            view.nodes.push(Selected {
                name,
                state,
                ready,
                total: wanted.map(|list| list.images.len()).sum(),
                cause: match found.waiting.filter(|_| waits) {
                    Some((written, image)) => Cause::Waiting(written, image),
                    None => cause,
                },
                reported: entry.map_or(0, |entry| entry.generation),
            });
        }
        view
    }

    fn count(&self, state: NodeState) -> usize {
        self.in_state(state).count()
    }

    fn in_state(&self, state: NodeState) -> impl Iterator<Item = &Selected<'a>> {
        self.nodes.iter().filter(move |node| node.state == state)
    }

    /// The results that go into the status, by name, and how many do not.
    fn results(&self) -> (Vec<NodeResult>, usize) {
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

/// The state of a node that has reported for its lists.
fn reported(entry: &Entry, contact: Contact) -> (NodeState, Cause<'_>) {
    let state = match entry.state {
        NodeState::Ready if entry.lists.iter().all(fleet::List::is_ready) => NodeState::Ready,
        NodeState::Ready | NodeState::Unreachable => NodeState::Pending,
        state => state,
    };
    match (state, contact) {
        (NodeState::Ready, _) => (state, Cause::Nothing),
        // Whatever it was doing: it is not doing it any more, or nobody hears of it.
        (_, Contact::Lost) => (NodeState::Unreachable, Cause::Lost),
        (NodeState::Failed, _) => {
            let cause = entry.failures.first().map_or(Cause::Nothing, Cause::Failed);
            (state, cause)
        }
        _ => (state, Cause::Nothing),
    }
}

/// What it means that a node has not reported for its lists.
enum Silent {
    Gone(Cause<'static>),
    Overdue,
    /// It will, or it becomes overdue after this time.
    Expected(Option<Duration>),
}

fn silent(
    fleet: &Fleet,
    node: &fleet::Node,
    has_report: bool,
    now: Timestamp,
    timing: &Timing,
) -> Silent {
    match node.contact {
        Contact::Lost => return Silent::Gone(Cause::Lost),
        Contact::NotReady => return Silent::Gone(Cause::NotReady),
        Contact::Ready { .. } => {}
    }
    // A node can be ready for years before the first agent comes to the cluster: nobody is late before that.
    let (Some(first), Some(since), false) = (
        fleet.first_report(),
        node.report_expected_since(),
        has_report,
    ) else {
        return Silent::Expected(None);
    };
    let overdue = SignedDuration::try_from(timing.report_overdue).unwrap_or(SignedDuration::MAX);
    let left = overdue.saturating_sub(now.duration_since(since.max(first)));
    match Duration::try_from(left) {
        Ok(left) if !left.is_zero() => Silent::Expected(Some(left)),
        _ => Silent::Overdue,
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
            message: self.cause.to_string(),
            observed_generation: self.reported,
        }
    }
}

impl Cause<'_> {
    fn reason(&self) -> &str {
        match self {
            Self::Nothing => "",
            Self::Lost | Self::NotReady => "NodeNotReady",
            Self::NoReport => "NoReport",
            Self::NotYet | Self::NotThisYet | Self::Generation(_) | Self::Lists => "NotReportedYet",
            Self::Failed(failure) => &failure.reason,
            Self::Waiting(_, image) => image.reason.as_deref().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = |f: &mut fmt::Formatter<'_>, image: &str, message: &str| {
            write!(f, "{image} {}", self.reason())?;
            match message {
                "" => Ok(()),
                message => write!(f, ": {message}"),
            }
        };
        match self {
            Self::Nothing => Ok(()),
            Self::Lost => f.write_str("the control plane hears nothing from the node"),
            Self::NotReady => f.write_str("the Node is not Ready, and has not reported this yet"),
            Self::NoReport => f.write_str(
                "no agent ever reported from there: does the DaemonSet run on it? Is it a virtual node?",
            ),
            Self::NotYet => f.write_str("no agent has reported from there yet"),
            Self::NotThisYet => f.write_str("it has not reported this ImageCache yet"),
            Self::Generation(reported) => {
                write!(f, "it has reported generation {reported} so far")
            }
            Self::Lists => f.write_str("its labels changed, and it has not reported since"),
            Self::Failed(failure) => image(f, &failure.image, &failure.message),
            Self::Waiting(written, waiting) => {
                image(f, written, waiting.message.as_deref().unwrap_or_default())
            }
        }
    }
}

/// Counts of nodes and images are far below the limit of the API's integers.
fn count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
