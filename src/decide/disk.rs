//! The guard of the image filesystem: whether there is room for what is pulled, and what pulls wait for if there is not.

mod closing;
mod room;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::ImageKey;
use super::timing::Timing;
use super::usage::Usage;
use closing::Closed;
pub use room::Lack;

/// Pulls go on when so many percent less are used than where they stopped: otherwise they would start and stop all the time.
const ROOM: u8 = 2;

/// At this limit nothing is held back.
const OFF: u8 = 100;

/// How much of the image filesystem may be used, and for what.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Pulls stop beyond so many percent of its bytes, or of its inodes. 100: they never do.
    pub high_percent: u8,
    /// Pinned images may take so many percent of its bytes.
    pub max_pinned_percent: u8,
    /// Images of this agent that nobody wants any more may be removed to make room.
    pub reclaim: bool,
}

impl Default for Limits {
    /// Without a guard.
    fn default() -> Self {
        Self {
            high_percent: OFF,
            max_pinned_percent: 50,
            reclaim: false,
        }
    }
}

/// What the own Node says of its disks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NodeSays {
    /// It could not be asked.
    Nothing,
    /// They have room.
    NoPressure,
    /// They have none, in its own words.
    Pressure(String),
}

/// Whether pulls may start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gate {
    /// They may.
    Open,
    /// It was not looked for a while: not before the next look.
    Unseen,
    /// They may not.
    Closed,
}

/// What is known of the image filesystem, and what waits for it.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    limits: Limits,
    /// Its bytes, once it was seen. `None`: this agent does not see it.
    capacity: Option<u64>,
    seen: Option<Seen>,
    /// How many looks have failed in a row, and when the next one is.
    misses: u32,
    retry: Duration,
    /// How often the own Node is asked. `None`: there is none.
    pub ask_node: Option<Duration>,
    /// What the Node said last.
    node: Option<Asked>,
    closed: Option<Closed>,
    /// Images for which there is no room.
    held: BTreeMap<ImageKey, Held>,
    /// How often in a row the disk got full by what these brought.
    stops: BTreeMap<ImageKey, u32>,
    /// The pulls under way whose size is known and for which there was room then.
    admitted: BTreeSet<ImageKey>,
    /// Of images that are not there, as far as it is known: bytes that a pull has left or brought, and bytes in all, both compressed.
    sizes: BTreeMap<ImageKey, (u64, u64)>,
}

/// So many looks that fail in a row, and the filesystem counts as one that is not seen.
const MISSES: u32 = 5;

/// The newest look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    usage: Usage,
    /// When it began.
    at: Duration,
    /// When the next one is due: nothing is started before it then.
    next: Duration,
    /// Later it says nothing any more.
    good_until: Duration,
}

/// What the Node said, when it is to be asked again, and until when that is good enough to start something.
#[derive(Clone, Debug)]
struct Asked {
    said: NodeSays,
    next: Duration,
    good_until: Duration,
}

/// Why one image is not pulled.
#[derive(Clone, Debug)]
struct Held {
    /// With the figures from when that was found.
    message: String,
    /// It waits until then, and not for room.
    until: Option<Duration>,
}

impl Disk {
    /// With these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// What was set.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// A connection to the runtime was made: the bytes of the filesystem that it keeps images on, if this agent sees that.
    pub fn found(&mut self, capacity: Option<u64>) {
        (self.capacity, self.seen) = (capacity, None);
        (self.misses, self.retry) = (0, Duration::ZERO);
        if !self.guards() {
            self.let_all_go();
        }
    }

    /// The filesystem was looked at, from one time to another. `None`: it did not answer.
    pub fn saw(&mut self, usage: Option<Usage>, [at, ended]: [Duration; 2], timing: &Timing) {
        let Some(usage) = usage else {
            self.misses += 1;
            if self.misses >= MISSES {
                self.found(None);
            }
            // Nothing is started meanwhile.
            (self.seen, self.retry) = (None, ended + timing.disk_good * self.misses);
            return;
        };
        self.misses = 0;
        self.capacity = Some(usage.capacity);
        self.seen = Some(Seen {
            usage,
            at,
            next: ended + timing.disk,
            good_until: ended + timing.disk_good,
        });
    }

    /// How far the filesystem was used at the last look, for people.
    pub(super) fn figures(&self) -> Option<String> {
        self.seen.map(|seen| seen.usage.of_bytes())
    }

    /// Images were removed: the last look says nothing any more.
    pub fn changed(&mut self) {
        (self.seen, self.retry) = (None, Duration::ZERO);
    }

    /// The Node was asked, at this time. One that cannot be asked is taken at its last word.
    pub fn node_said(&mut self, said: NodeSays, at: Duration) {
        let Some(every) = self.ask_node else {
            return;
        };
        let said = match (self.node.take(), said) {
            (Some(before), NodeSays::Nothing) => before.said,
            (_, said) => said,
        };
        self.node = Some(Asked {
            said,
            next: at + every,
            good_until: at + 2 * every,
        });
    }

    /// Nothing is pulled, and nothing is to be: nobody looks.
    pub fn rest(&mut self) {
        self.closed = None;
        self.held.retain(|_, held| held.until.is_some());
        self.node
            .take_if(|asked| matches!(asked.said, NodeSays::Pressure(_)));
    }

    /// Whether pulls may start.
    #[must_use]
    pub fn gate(&self, now: Duration) -> Gate {
        let is_seen = self.seen.is_some_and(|seen| now < seen.next);
        let has_said = self.node.as_ref();
        let has_said = has_said.is_some_and(|asked| now <= asked.good_until);
        if self.obstacle_of_all().is_some() {
            Gate::Closed
        } else if (self.guards() && !is_seen) || (self.ask_node.is_some() && !has_said) {
            Gate::Unseen
        } else {
            Gate::Open
        }
    }

    /// When to look at the filesystem, and when to ask the Node. `None`: that need not be.
    #[must_use]
    pub fn looks(&self) -> [Option<Duration>; 2] {
        let seen = self.seen.map_or(self.retry, |seen| seen.next);
        let asked = self.node.as_ref().map(|asked| asked.next);
        // While it is closed nothing is pulled, whatever the Node would say.
        let asks = self.ask_node.is_some() && self.closed.is_none();
        [
            self.guards().then_some(seen),
            asks.then(|| asked.unwrap_or_default()),
        ]
    }

    /// Why this image is not pulled now, if that is for the disk's sake.
    #[must_use]
    pub fn obstacle(&self, key: &ImageKey) -> Option<&str> {
        self.obstacle_of_all()
            .map(|(_, message)| message)
            .or_else(|| self.no_room_for(key))
    }

    /// Why this image is not pulled now although others may be.
    #[must_use]
    pub fn no_room_for(&self, key: &ImageKey) -> Option<&str> {
        self.held.get(key).map(|held| held.message.as_str())
    }

    fn obstacle_of_all(&self) -> Option<(&'static str, &str)> {
        if let Some(closed) = &self.closed {
            return Some((closed.cause.reason(), &closed.message));
        }
        match &self.node {
            Some(Asked {
                said: NodeSays::Pressure(said),
                ..
            }) => Some(("NodeUnderPressure", said)),
            _ => None,
        }
    }

    /// When this image may be pulled again although there is room for it.
    #[must_use]
    pub(super) fn not_before(&self, key: &ImageKey) -> Option<Duration> {
        self.held.get(key)?.until
    }

    /// Whether a failure for want of space is over only when there is room again: then that is looked for.
    #[must_use]
    pub fn awaits_room(&self) -> bool {
        self.closed.is_some()
    }

    /// How many bytes pinned images may take, where that can be said.
    #[must_use]
    pub fn pin_budget(&self) -> Option<u64> {
        let capacity = self.capacity?;
        Some(Usage::part(capacity, self.limits.max_pinned_percent))
    }

    /// Status, reason and message of the node's condition.
    #[must_use]
    pub fn condition(&self) -> (bool, &'static str, Cow<'_, str>) {
        if let Some((reason, message)) = self.obstacle_of_all() {
            return (true, reason, message.into());
        }
        if let Some((image, Held { message, .. })) = self.held.first_key_value() {
            let more = match self.held.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            return (true, "NoRoom", format!("{image}: {message}{more}").into());
        }
        let message: Cow<_> = if self.guards() {
            format!(
                "no pull is held back; each stops where the image filesystem is used to {} % (--disk-high-percent)",
                self.limits.high_percent
            )
            .into()
        } else if self.capacity.is_some() {
            "no pull is held back; --disk-high-percent=100 turns the guard off".into()
        } else {
            "no pull is held back; this agent does not see the image filesystem, so only the Node's own condition holds pulls back"
                .into()
        };
        (false, "NoPressure", message)
    }

    /// Whether the filesystem is seen, and there is a limit.
    const fn guards(&self) -> bool {
        self.capacity.is_some() && self.limits.high_percent < OFF
    }

    fn let_all_go(&mut self) {
        self.closed = None;
        self.held.clear();
    }

    const fn low(&self) -> u8 {
        self.limits.high_percent.saturating_sub(ROOM)
    }

    fn until(&self) -> String {
        format!(
            "pulls go on at {} % (--disk-high-percent={})",
            self.low(),
            self.limits.high_percent
        )
    }
}

#[cfg(test)]
mod tests;
