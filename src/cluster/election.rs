//! Who is elected: pure, on a monotonic clock of one's own.
//!
//! The elected agent writes a Lease every few seconds. A candidate that has seen the same version of it for the lease's
//! duration, on its own clock, takes it; the API server lets only one do so, since every write names the version that
//! it replaces. No two machines' clocks are compared: the times in a Lease are for people. The crates that do this
//! compare them, or have no time limit.
//!
//! An elected agent whose renewals fail counts as elected until one renewal interval before the lease's duration is over,
//! counted from when it sent the last renewal that was accepted. A candidate counts from when it saw that renewal, which is
//! later. So there are never two.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;

use super::scale::Scale;
use crate::decide::Timing;

/// The annotation in which the elected agent tells all others the number of nodes.
pub const NODES: &str = "imagecache.dev/nodes";

/// What to ask of the API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ask {
    /// Read the Lease.
    Look,
    /// Write it as mine, which it was not.
    Take,
    /// Write it as mine again.
    Renew,
    /// Write it as nobody's.
    Release,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The Lease, as it was read or as it was written.
    Lease(Box<Lease>),
    /// There is none.
    Absent,
    /// It was not written: somebody else has written it, or made it, meanwhile.
    Conflict,
    /// Nothing is known: it may have been written or not.
    Failed,
}

/// One agent's part in the election. Times are its own clock's.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    /// The Lease as it was seen last.
    lease: Option<Lease>,
    /// When this version of it was seen first.
    seen_at: Duration,
    /// When to look whether a change that was seen is the last one.
    follow: Option<Duration>,
    /// Until when this agent is elected.
    elected_until: Option<Duration>,
    failures: u32,
    due: Duration,
    ask: Ask,
}

/// The number of nodes that a Lease tells.
#[must_use]
pub fn nodes(lease: &Lease) -> Option<u32> {
    lease
        .metadata
        .annotations
        .as_ref()?
        .get(NODES)?
        .parse()
        .ok()
}

impl Election {
    /// A candidate. No other process may ever have the same identity. `chance` is a random number from 0 to 1, here and below.
    #[must_use]
    pub fn new(identity: String, timing: &Timing, chance: f64) -> Self {
        Self {
            identity,
            timing: *timing,
            lease: None,
            seen_at: Duration::ZERO,
            follow: None,
            elected_until: None,
            failures: 0,
            due: timing.election_first_look.mul_f64(chance),
            ask: Ask::Look,
        }
    }

    /// What to ask next, and when.
    #[must_use]
    pub const fn next(&self) -> (Duration, Ask) {
        (self.due, self.ask)
    }

    /// Until when this agent is elected, if it is.
    #[must_use]
    pub fn elected_until(&self, now: Duration) -> Option<Duration> {
        self.elected_until.filter(|until| now < *until)
    }

    /// The number of nodes, as the elected agent tells it.
    #[must_use]
    pub fn nodes(&self) -> Option<u32> {
        self.lease.as_ref().and_then(nodes)
    }

    /// The Lease is mine, as far as this agent has seen, whether or not it counts as elected.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holder() == Some(&self.identity)
    }

    /// Stands down: it does not count as elected any more, from now on.
    pub const fn resign(&mut self) {
        self.elected_until = None;
    }

    /// Who is elected, as far as this agent has seen.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        let holder = self
            .lease
            .as_ref()?
            .spec
            .as_ref()?
            .holder_identity
            .as_deref();
        holder.filter(|holder| !holder.is_empty())
    }

    /// The Lease to write, without its times. It names the version that it replaces; without one it is made.
    #[must_use]
    pub fn wish(&self, ask: Ask, nodes: Option<u32>) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        if ask == Ask::Take {
            let before = spec.lease_transitions.unwrap_or_default();
            spec.lease_transitions = Some(before.saturating_add(1));
        }
        spec.holder_identity = (ask != Ask::Release).then(|| self.identity.clone());
        spec.lease_duration_seconds = Some(whole_seconds(self.timing.election));
        if let Some(nodes) = nodes {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(NODES.to_owned(), nodes.to_string());
        }
        lease
    }

    /// Takes in what came of a question that was sent at `sent`.
    pub fn hear(
        &mut self,
        ask: Ask,
        answer: Answer,
        sent: Duration,
        now: Duration,
        scale: Scale,
        chance: f64,
    ) {
        if answer != Answer::Failed {
            self.failures = 0;
        }
        let look = (now + scale.lease_look(&self.timing, chance), Ask::Look);
        (self.due, self.ask) = match (ask, answer) {
            (Ask::Look, Answer::Lease(lease)) => self.saw(*lease, now, look.0),
            (Ask::Look, Answer::Absent) => self.saw_none(now),
            (Ask::Take | Ask::Renew, Answer::Lease(lease)) => {
                self.lease = Some(*lease);
                self.seen_at = now;
                self.elected_until = Some(
                    sent + self
                        .timing
                        .election
                        .saturating_sub(self.timing.election_renew),
                );
                ((sent + self.timing.election_renew).max(now), Ask::Renew)
            }
            // Somebody has it, or has edited it, or has deleted it.
            (Ask::Renew, Answer::Conflict | Answer::Absent) => (now, Ask::Look),
            (_, Answer::Failed) => {
                self.failures = self.failures.saturating_add(1);
                self.failed(now, chance)
            }
            (_, answer) => {
                self.elected_until = None;
                if let Answer::Lease(lease) = answer {
                    self.lease = Some(*lease);
                }
                look
            }
        };
    }

    /// What follows from a Lease that was read.
    fn saw(&mut self, lease: Lease, now: Duration, look: Duration) -> (Duration, Ask) {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let changed = self.lease.as_ref().map(version) != Some(version(&lease));
        if changed {
            self.seen_at = now;
        }
        self.lease = Some(lease);
        if self.holds() {
            // A write of mine whose answer was lost, or somebody edited the Lease.
            return (now, Ask::Renew);
        }
        self.elected_until = None;
        let over = self.seen_at + self.timing.election;
        if self.holder().is_none() || (!changed && now >= over) {
            return (now, Ask::Take);
        }
        if changed {
            // Was this the last change? One more look tells. If that one finds a change too, all is well.
            let followed = self.follow.take().is_some_and(|follow| follow <= now);
            self.follow = (!followed).then_some(over);
        } else {
            self.follow = Some(over);
        }
        (
            self.follow.map_or(look, |follow| follow.min(look)),
            Ask::Look,
        )
    }

    /// There is no Lease: the first to look makes it. If there was one, it was deleted by hand: whoever is elected makes it
    /// again, before anybody else may.
    fn saw_none(&mut self, now: Duration) -> (Duration, Ask) {
        if self.lease.take().is_none() || self.elected_until(now).is_some() {
            (now, Ask::Take)
        } else {
            (now + self.timing.election, Ask::Look)
        }
    }

    /// Nobody knows what came of it. An elected agent tries to renew for as long as it is elected; then it looks.
    fn failed(&mut self, now: Duration, chance: f64) -> (Duration, Ask) {
        let again = |failures| {
            self.timing
                .api_retry
                .after(failures)
                .mul_f64(0.5 + 0.5 * chance)
        };
        match self.elected_until(now) {
            Some(_) => (now + again(1), Ask::Renew),
            None => (now + again(self.failures), Ask::Look),
        }
    }
}

fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1000).max(1)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
