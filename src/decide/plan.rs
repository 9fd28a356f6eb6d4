//! The decision table: what to start and what to cancel now, and when to look again.

use std::collections::BTreeSet;
use std::time::Duration;

use super::chores::{Chore, chores};
use super::desired::{Desired, ImageKey, Rank};
use super::disk::Gate;
use super::memory::Memory;
use super::registries::Scope;
use super::traffic::Yielding;
use super::world::{Now, Pull, Runtime, World};

/// Repetitions that keep the image's own place in the order of pulls. Later ones go after everything
/// that is tried for the first time: images that keep failing can hold up others only so often.
const REPETITIONS_IN_ORDER: u32 = 3;

/// What to do now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Pulls to start, the first one first.
    pub start: Vec<ImageKey>,
    /// Pulls to end: nobody wants them any more, they have stalled, they make way for others, or there is no room.
    pub cancel: Vec<ImageKey>,
    /// Leases that nothing needs any more.
    pub release: Vec<String>,
    /// Leases to replace by longer ones, before their images are pulled.
    pub renew: Vec<String>,
    /// What to write into the runtime, or to remove from it.
    pub chores: Vec<Chore>,
    /// More is to be pulled than is started.
    pub more: bool,
    /// Something is being pulled, or would be if there was room: the disk is looked at.
    pub needs_room: bool,
    /// When, on the monotonic clock, to plan again even if nothing happens.
    pub wake: Option<Duration>,
}

/// An image that may be pulled now. The order of the fields is the order of pulls.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct Due<'a> {
    is_late: bool,
    after: u32,
    /// What is missing comes first.
    is_refresh: bool,
    rank: &'a Rank,
    key: &'a ImageKey,
    /// Its registry is being left alone, and may be asked for one image now.
    scope: Option<Scope<'a>>,
}

/// Plans for the world as it is.
///
/// Level-triggered: the plan follows from this moment's world alone, so planning twice gives the same
/// plan, and a restarted agent goes on where the last one was.
#[must_use]
pub fn plan(world: &World, max_parallel_pulls: usize, now: Now) -> Plan {
    let Some(desired) = world.desired.known() else {
        // What is wanted is not known: nothing is started, and nothing is cancelled either.
        return Plan {
            needs_room: !world.pulls.is_empty(),
            ..Plan::default()
        };
    };
    let yields = world.yielding == Yielding::Wholly;
    let is_over = |key: &ImageKey, pull: &Pull| {
        let is_wanted = desired.images.contains_key(key);
        let makes_way = yields || world.disk.obstacle(key).is_some();
        !pull.cancelled && (!is_wanted || pull.stalled.is_some() || (makes_way && !pull.landed))
    };
    let cancel = world
        .pulls
        .iter()
        .filter(|(key, pull)| is_over(key, pull))
        .map(|(key, _)| key.clone())
        .collect();
    if world.runtime != Runtime::Ready {
        return Plan {
            cancel,
            needs_room: !world.pulls.is_empty(),
            ..Plan::default()
        };
    }

    let (release, wake) = world.leases.due(now.monotonic);
    let (chores, look) = chores(world, desired, now.monotonic);
    let mut wake = wake.into_iter().chain(look).min();
    let renew: Vec<_> = world.leases.short().map(|(id, _)| id.clone()).collect();
    let short: BTreeSet<_> = world.leases.short().map(|(_, image)| image).collect();
    let mut due: Vec<Due> = Vec::new();
    let mut needs_room = !world.pulls.is_empty();
    for (key, wanted) in &desired.images {
        // Not asked for yet: it may be there.
        let is_unknown = !world.asked.contains_key(key);
        let idle = is_unknown
            || wanted.reference.is_err()
            || wanted.paused
            || world.pulls.contains_key(key)
            || world.leases.is_ending(key, now.monotonic)
            || world.chores.removes(key)
            || short.contains(key);
        if idle {
            continue;
        }
        let memory = world.memory.get(key);
        let is_refresh = world.is_ready(key);
        let retry = if is_refresh {
            let due = memory.and_then(|memory| memory.refresh.due(wanted.refresh));
            let Some(due) = due else { continue };
            Some(due)
        } else {
            memory.and_then(|memory| memory.retry).map(|(at, _)| at)
        };
        let hold = world.hold(key, wanted);
        let at = retry.max(hold.as_ref().map(|(_, hold)| hold.until.0));
        let at = at.max(world.disk.not_before(key));
        if let Some(at) = at.filter(|at| *at > now.monotonic) {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
            // It is tried as soon as there is room.
            needs_room |=
                world.disk.awaits_room() && memory.is_some_and(Memory::is_for_want_of_space);
            continue;
        }
        let failures = memory.map_or(0, |memory| {
            if is_refresh {
                memory.refresh.failures
            } else {
                memory.failures
            }
        });
        due.push(Due {
            is_refresh,
            // Of a registry that did not answer the next image is asked for: it may be only one that it cannot give.
            after: if hold.is_some() { failures } else { 0 },
            is_late: failures > REPETITIONS_IN_ORDER,
            rank: &wanted.rank,
            key,
            scope: hold.map(|(scope, _)| scope),
        });
    }
    due.sort_unstable();
    needs_room |= !due.is_empty();
    let gate = world.disk.gate(now.monotonic);
    due.retain(|due| gate != Gate::Closed && world.disk.obstacle(due.key).is_none());
    let waiting = due.len();
    let start = match gate {
        Gate::Open => first(world, desired, due, max_parallel_pulls),
        Gate::Unseen | Gate::Closed => Vec::new(),
    };
    Plan {
        more: waiting > start.len(),
        needs_room,
        start,
        cancel,
        release,
        renew,
        chores,
        wake,
    }
}

/// Those for which there are slots and room, as far as their registries may be asked.
fn first(
    world: &World,
    desired: &Desired,
    due: Vec<Due>,
    max_parallel_pulls: usize,
) -> Vec<ImageKey> {
    let busy = world.pulls.iter().filter(|(_, pull)| !pull.landed);
    let slots = match world.yielding {
        Yielding::No => max_parallel_pulls,
        Yielding::OneAtATime => 1,
        Yielding::Wholly => 0,
    };
    let slots = slots.saturating_sub(busy.clone().count());
    let mut asked: BTreeSet<Scope> = busy
        .filter_map(|(key, _)| world.hold(key, desired.images.get(key)?))
        .map(|(scope, _)| scope)
        .collect();
    let mut room = world.disk.room(&world.pulls);
    due.into_iter()
        .filter_map(|due| {
            let is_asked = due
                .scope
                .as_ref()
                .is_some_and(|scope| asked.contains(scope));
            if is_asked || !world.disk.fits(due.key, &mut room) {
                return None;
            }
            asked.extend(due.scope);
            Some(due.key.clone())
        })
        .take(slots)
        .collect()
}

#[cfg(test)]
mod tests;
