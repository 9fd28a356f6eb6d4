//! Which images go to make room: this agent's own that nobody wants any more, the oldest first, and no more than it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, ImageKey};
use super::disk::Lack;
use super::holdings::{Holding, Holdings, ImageId, Own, Pin, is_wanted, names_with};
use super::pins::UNPACKED;
use super::timing::Timing;
use super::world::Answers;

/// What this agent has pulled and nobody wants.
#[derive(Clone, Debug, Default)]
pub struct Reclaim {
    /// When each may go: an edit may be mended.
    unwanted: BTreeMap<Own, Duration>,
    /// Until when those are left alone that something kept.
    kept: BTreeMap<Own, Duration>,
}

impl Reclaim {
    /// It may be that more is wanted than is known: all begin anew.
    pub fn forget(&mut self) {
        self.unwanted.clear();
    }

    /// Sees what nobody wants now.
    pub(super) fn tend(
        &mut self,
        desired: &Desired,
        asked: &Answers,
        holdings: &Holdings,
        now: Duration,
        timing: &Timing,
    ) {
        if desired.doubt.is_some() {
            self.forget();
            return;
        }
        let unwanted: BTreeSet<Own> = holdings
            .iter()
            .flat_map(|(id, holding)| {
                let pulled = holding.pulled.keys();
                let unwanted = pulled.filter(|key| !is_wanted(desired, asked, id, key));
                unwanted.map(|key| (id.clone(), key.clone()))
            })
            .collect();
        self.unwanted.retain(|own, _| unwanted.contains(own));
        self.kept.retain(|own, _| unwanted.contains(own));
        for own in unwanted {
            self.unwanted.entry(own).or_insert(now + timing.removal);
        }
    }

    /// Something keeps it: it is looked at again after a while.
    pub fn kept(&mut self, own: &Own, now: Duration, timing: &Timing) {
        if self.unwanted.contains_key(own) {
            self.kept.insert(own.clone(), now + timing.kept_look);
        }
    }

    /// What to remove so that this is not lacking any more. Nothing, if all of it would not be enough.
    pub(super) fn batch(
        &self,
        lack: Lack,
        desired: &Desired,
        holdings: &Holdings,
        now: Duration,
    ) -> Vec<Own> {
        let mut images: Vec<(&ImageId, &Holding)> = holdings
            .iter()
            .filter(|(id, holding)| self.frees(desired, id, holding, now))
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
            let names = holding.pulled.keys();
            batch.extend(names.map(|key| (id.clone(), key.clone())));
        }
        if left > 0 {
            batch.clear();
        }
        batch
    }

    /// Whether an image goes with all its names, and none of them is anybody's: otherwise its bytes stay.
    fn frees(&self, desired: &Desired, id: &ImageId, holding: &Holding, now: Duration) -> bool {
        let is_ripe = |key: &ImageKey| {
            let own = (id.clone(), key.clone());
            let mut kept = self.kept.get(&own).into_iter();
            let ripe = self.unwanted.get(&own);
            ripe.is_some_and(|at| *at <= now) && !kept.any(|until| now < *until)
        };
        let mut left = holding.clone();
        for key in holding.pulled.keys() {
            for name in names_with(&left, key, |name| desired.images.contains_key(name)) {
                left.names.remove(&name);
            }
        }
        holding.pin != Pin::Foreign
            && !holding.pulled.is_empty()
            && holding.pulled.keys().all(is_ripe)
            && left.names.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;

    use super::*;
    use crate::decide::desired::Doubt;

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
    fn batch(holdings: &Holdings, lack: Lack) -> Vec<String> {
        let (desired, timing) = (Desired::default(), Timing::default());
        let mut reclaim = Reclaim::default();
        reclaim.tend(&desired, &Answers::new(), holdings, Duration::ZERO, &timing);
        let batch = reclaim.batch(lack, &desired, holdings, timing.removal);
        batch.into_iter().map(|(_, key)| key.to_string()).collect()
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
        assert_eq!(batch(&all, Lack::Bytes(1)), ["r/old:1"]);
        assert_eq!(batch(&all, Lack::Bytes(30 * MIB)), ["r/old:1"]);
        assert_eq!(batch(&all, Lack::Bytes(31 * MIB)), ["r/old:1", "r/mid:1"]);
        assert_eq!(batch(&all, Lack::Bytes(90 * MIB)).len(), 3);
        assert!(batch(&all, Lack::Bytes(91 * MIB)).is_empty());
        assert_eq!(batch(&all, Lack::Inodes), ["r/old:1"]);
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
            assert!(batch(&holdings, Lack::Bytes(1)).is_empty(), "{what}");
        }
        let both = image(1, &["r/a:1", "r/b:1", "r/a@sha256:1"], &["r/a:1", "r/b:1"]);
        let holdings = [("1".into(), both)].into();
        assert_eq!(batch(&holdings, Lack::Bytes(1)), ["r/a:1", "r/b:1"]);
    }

    #[test]
    fn what_may_be_wanted_stays_and_so_does_what_nobody_wants_only_just_now() {
        let (holdings, timing) = (three(), Timing::default());
        let (mut desired, mut reclaim) = (Desired::default(), Reclaim::default());
        let lack = Lack::Bytes(1);
        let delay = timing.removal;
        reclaim.tend(
            &desired,
            &Answers::new(),
            &holdings,
            Duration::ZERO,
            &timing,
        );
        let almost = delay.checked_sub(Duration::from_secs(1)).unwrap();
        assert!(reclaim.batch(lack, &desired, &holdings, almost).is_empty());
        assert_eq!(reclaim.batch(lack, &desired, &holdings, delay).len(), 1);
        desired.doubt = Some(Doubt::NotCurrent);
        reclaim.tend(&desired, &Answers::new(), &holdings, delay, &timing);
        assert!(reclaim.batch(lack, &desired, &holdings, delay).is_empty());
        desired.doubt = None;
        reclaim.tend(&desired, &Answers::new(), &holdings, delay, &timing);
        assert!(
            reclaim.batch(lack, &desired, &holdings, delay).is_empty(),
            "it begins anew"
        );
        let old = ("2".into(), "r/old:1".into());
        reclaim.kept(&old, 2 * delay, &timing);
        let next = reclaim.batch(lack, &desired, &holdings, 2 * delay);
        assert_eq!(
            next,
            [("3".into(), "r/mid:1".into())],
            "the oldest is in use"
        );
    }
}
