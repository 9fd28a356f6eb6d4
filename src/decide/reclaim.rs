//! Which images go to make room: this agent's own that nobody wants any more, the oldest first, and no more than it takes.

use std::time::Duration;

use super::desired::Desired;
use super::disk::Lack;
use super::holdings::{Holding, Holdings, ImageId, Own, Pin, names_with};
use super::pins::UNPACKED;
use super::removal::Removals;

/// What to remove so that this is not lacking any more. Nothing, if all of it would not be enough.
pub(super) fn batch(
    lack: Lack,
    removals: &Removals,
    desired: &Desired,
    holdings: &Holdings,
    now: Duration,
) -> Vec<Own> {
    let mut images: Vec<(&ImageId, &Holding)> = holdings
        .iter()
        .filter(|(id, holding)| frees(removals, desired, id, holding, now))
        .collect();
    images.sort_by_key(|(id, holding)| (holding.created, *id));
    let mut left = match lack {
        Lack::Bytes(bytes) => bytes,
        // One after the other, until it is enough.
        Lack::Inodes => 1,
    };
    let mut batch = Vec::new();
    for (id, holding) in images {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(match lack {
            Lack::Bytes(_) => holding.bytes.saturating_mul(UNPACKED),
            Lack::Inodes => 1,
        });
        batch.extend(own_names(id, holding));
    }
    if left > 0 {
        batch.clear();
    }
    batch
}

/// Whether an image goes with all its names, and none of them is anybody's: otherwise its bytes stay.
fn frees(
    removals: &Removals,
    desired: &Desired,
    id: &ImageId,
    holding: &Holding,
    now: Duration,
) -> bool {
    let mut left = holding.clone();
    for key in holding.pulled.keys() {
        for name in names_with(&left, key, |name| desired.images.contains_key(name)) {
            left.names.remove(&name);
        }
    }
    holding.pin != Pin::Foreign
        && !holding.pulled.is_empty()
        && own_names(id, holding).all(|own| removals.may_go(&own, now))
        && left.names.is_empty()
}

fn own_names(id: &ImageId, holding: &Holding) -> impl Iterator<Item = Own> {
    holding.pulled.keys().map(|key| Own {
        key: key.clone(),
        id: id.clone(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use jiff::Timestamp;

    use super::*;
    use crate::api::Reason;
    use crate::decide::desired::Doubt;
    use crate::decide::{Answers, Timing};

    const MIB: u64 = 1 << 20;

    /// An image of 10 MiB, brought at this second.
    fn image(created: i64, names: &[&str], pulled: &[&str]) -> Holding {
        Holding {
            names: names.iter().map(|name| (*name).into()).collect(),
            bytes: 10 * MIB,
            pulled: pulled.iter().map(|name| ((*name).into(), false)).collect(),
            pin: Pin::None,
            created: Timestamp::from_second(created).ok(),
        }
    }

    /// After more than the time in which it may be wanted again.
    fn gone(holdings: &Holdings, lack: Lack) -> Vec<String> {
        let (desired, timing) = (Desired::default(), Timing::default());
        let mut removals = Removals::default();
        removals.tend(&desired, &Answers::new(), holdings, Duration::ZERO, &timing);
        let batch = batch(lack, &removals, &desired, holdings, timing.removal);
        batch.into_iter().map(|own| own.key.to_string()).collect()
    }

    fn three() -> Holdings {
        [
            (
                "1".into(),
                image(300, &["r/new:1", "r/new@sha256:1"], &["r/new:1"]),
            ),
            (
                "2".into(),
                image(100, &["r/old:1", "r/old@sha256:2"], &["r/old:1"]),
            ),
            (
                "3".into(),
                image(200, &["r/mid:1", "r/mid@sha256:3"], &["r/mid:1"]),
            ),
        ]
        .into()
    }

    #[test]
    fn the_oldest_go_first_and_no_more_than_it_takes_and_none_if_all_were_not_enough() {
        let all = three();
        assert_eq!(gone(&all, Lack::Bytes(1)), ["r/old:1"]);
        assert_eq!(gone(&all, Lack::Bytes(30 * MIB)), ["r/old:1"]);
        assert_eq!(gone(&all, Lack::Bytes(31 * MIB)), ["r/old:1", "r/mid:1"]);
        assert_eq!(gone(&all, Lack::Bytes(90 * MIB)).len(), 3);
        assert!(gone(&all, Lack::Bytes(91 * MIB)).is_empty());
        assert_eq!(gone(&all, Lack::Inodes), ["r/old:1"]);
    }

    #[test]
    fn what_is_not_wholly_the_agents_stays() {
        let mut pinned = image(1, &["r/a:1"], &["r/a:1"]);
        pinned.pin = Pin::Foreign;
        let rows = [
            ("not pulled by the agent", image(1, &["r/a:1"], &[])),
            (
                "another tag of somebody else",
                image(1, &["r/a:1", "r/b:1"], &["r/a:1"]),
            ),
            (
                "another repository by digest",
                image(1, &["r/a:1", "r/b@sha256:1"], &["r/a:1"]),
            ),
            ("pinned by somebody else", pinned),
        ];
        for (what, holding) in rows {
            let holdings = [("1".into(), holding)].into();
            assert!(gone(&holdings, Lack::Bytes(1)).is_empty(), "{what}");
        }
        let both = image(1, &["r/a:1", "r/b:1", "r/a@sha256:1"], &["r/a:1", "r/b:1"]);
        let holdings = [("1".into(), both)].into();
        assert_eq!(gone(&holdings, Lack::Bytes(1)), ["r/a:1", "r/b:1"]);
    }

    #[test]
    fn what_may_be_wanted_stays_and_so_does_what_nobody_wants_only_just_now() {
        let (holdings, timing) = (three(), Timing::default());
        let (mut desired, mut removals) = (Desired::default(), Removals::default());
        let (delay, second) = (timing.removal, Duration::from_secs(1));
        let tend = |removals: &mut Removals, desired: &Desired, now| {
            removals.tend(desired, &Answers::new(), &holdings, now, &timing);
            batch(Lack::Bytes(1), removals, desired, &holdings, now)
        };
        tend(&mut removals, &desired, Duration::ZERO);
        assert!(tend(&mut removals, &desired, delay.saturating_sub(second)).is_empty());
        desired.doubt = Some(Doubt::NotCurrent);
        assert!(tend(&mut removals, &desired, 3 * delay).is_empty());
        desired.doubt = None;
        let now = 3 * delay;
        assert!(
            tend(&mut removals, &desired, now).is_empty(),
            "that time does not count"
        );
        let now = now + second;
        let oldest = tend(&mut removals, &desired, now);
        assert_eq!(oldest.len(), 1);
        let kept = (Reason::InUse, "a container".to_owned());
        removals.kept(&oldest[0], kept, now, &timing);
        let next = tend(&mut removals, &desired, now);
        assert_eq!(&*next[0].key, "r/mid:1", "the oldest is in use");
    }
}
