//! What one node is doing for an `ImageCache`, and why it is not ready.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;

use super::view::Asked;
use crate::api::ImageState;
use crate::api::image_cache::NodeState;
use crate::decide::fleet::{self, Contact, Entry, Failure, Node};

/// The state of a node.
pub struct Verdict<'a> {
    pub state: NodeState,
    pub cause: Cause<'a>,
    /// It becomes unreachable after this time, if it does not report.
    pub wake: Option<Duration>,
}

/// Why a node is not ready.
#[derive(Clone, Copy)]
pub enum Cause<'a> {
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

impl<'a> Verdict<'a> {
    const fn new(state: NodeState, cause: Cause<'a>) -> Self {
        Self {
            state,
            cause,
            wake: None,
        }
    }

    /// The state of a node that has reported for its lists.
    pub fn reported(entry: &'a Entry, contact: Contact) -> Self {
        let state = match entry.state {
            NodeState::Ready if entry.lists.iter().all(fleet::List::is_ready) => NodeState::Ready,
            NodeState::Ready | NodeState::Unreachable => NodeState::Pending,
            state => state,
        };
        match (state, contact, entry.failures.first()) {
            (NodeState::Ready, ..) => Self::new(state, Cause::Nothing),
            // Whatever it was doing: it is not doing it any more, or nobody hears of it.
            (_, Contact::Lost, _) => Self::new(NodeState::Unreachable, Cause::Lost),
            (NodeState::Failed, _, Some(failure)) => Self::new(state, Cause::Failed(failure)),
            _ => Self::new(state, Cause::Nothing),
        }
    }

    /// The state of a node that has not reported for its lists. `entry` is what it has reported for others, or for another
    /// generation.
    pub fn silent(asked: &Asked, node: &Node, has_report: bool, entry: Option<&Entry>) -> Self {
        let cause = match entry {
            _ if !has_report => Cause::NotYet,
            None => Cause::NotThisYet,
            Some(entry) if entry.generation == asked.generation => Cause::Lists,
            Some(entry) => Cause::Generation(entry.generation),
        };
        match node.contact {
            Contact::Lost => Self::new(NodeState::Unreachable, Cause::Lost),
            Contact::NotReady => Self::new(NodeState::Unreachable, Cause::NotReady),
            Contact::Ready { .. } if has_report => Self::new(NodeState::Pending, cause),
            Contact::Ready { .. } => match time_left(asked, node) {
                Some(Duration::ZERO) => Self::new(NodeState::Unreachable, Cause::NoReport),
                wake => Self {
                    wake,
                    ..Self::new(NodeState::Pending, cause)
                },
            },
        }
    }
}

/// How long a node still has for its first report. `None`: as long as it takes. A node can be ready for years before the first
/// agent comes to the cluster, and nobody is late before that.
fn time_left(asked: &Asked, node: &Node) -> Option<Duration> {
    let since = node
        .report_expected_since()?
        .max(asked.fleet.first_report()?);
    let limit = asked.timing.report_overdue;
    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
    let left = limit.saturating_sub(asked.now.duration_since(since));
    // A negative one is over.
    Some(Duration::try_from(left).unwrap_or_default())
}

impl Cause<'_> {
    /// The reason in the status.
    pub fn reason(&self) -> &str {
        match self {
            Self::Nothing => "",
            Self::Lost | Self::NotReady => "NodeNotReady",
            Self::NoReport => "NoReport",
            Self::NotYet | Self::NotThisYet | Self::Generation(_) | Self::Lists => "NotReportedYet",
            Self::Failed(failure) => &failure.reason,
            Self::Waiting(_, image) if image.state == ImageState::Removing => "Removing",
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
            Self::Waiting(written, waiting) if waiting.state == ImageState::Removing => {
                write!(f, "{written} is about to be removed")
            }
            Self::Waiting(written, waiting) => {
                image(f, written, waiting.message.as_deref().unwrap_or_default())
            }
        }
    }
}
