//! Which images are pinned: those that somebody wants pinned, in the order of pulls, as far as the budget goes.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{Desired, ImageKey, Rank};
use super::holdings::{Holdings, ImageId, Pin};
use super::world::Answers;

/// An image takes about so many times its compressed size: once as it was downloaded, and unpacked.
pub const UNPACKED: u64 = 3;

/// What to pin and unpin, and what the budget has no room for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Pins {
    /// To pin.
    pub pin: Vec<ImageId>,
    /// To unpin: nobody asks for it any more, or others go first.
    pub unpin: Vec<ImageId>,
    /// The wanted images that the budget has no room for.
    pub beyond: BTreeSet<ImageKey>,
}

/// Says which pins are to change. `budget`: how many bytes pinned images may take on the disk, where that is known.
#[must_use]
pub fn pins(desired: &Desired, asked: &Answers, holdings: &Holdings, budget: Option<u64>) -> Pins {
    let mut wanted: BTreeMap<&str, (&Rank, Vec<&ImageKey>)> = BTreeMap::new();
    for (key, image) in desired.images.iter().filter(|(_, image)| image.pin) {
        let Some(Some(present)) = asked.get(key) else {
            continue;
        };
        let (rank, keys) = wanted
            .entry(present.id.as_str())
            .or_insert((&image.rank, Vec::new()));
        *rank = (*rank).min(&image.rank);
        keys.push(key);
    }
    let mut in_order: Vec<_> = wanted.into_iter().collect();
    in_order.sort_by_key(|(_, (rank, _))| *rank);
    let (mut pins, mut keep, mut taken) = (Pins::default(), BTreeSet::new(), 0_u64);
    for (id, (_, keys)) in in_order {
        let Some((id, holding)) = holdings.get_key_value(id) else {
            continue;
        };
        if holding.pin == Pin::Foreign {
            continue;
        }
        let size = holding.bytes.saturating_mul(UNPACKED);
        if budget.is_some_and(|budget| taken.saturating_add(size) > budget) {
            pins.beyond.extend(keys.into_iter().cloned());
            continue;
        }
        taken = taken.saturating_add(size);
        keep.insert(id);
        if matches!(holding.pin, Pin::None | Pin::Lost) {
            pins.pin.push(id.clone());
        }
    }
    let ours = holdings
        .iter()
        .filter(|(_, holding)| matches!(holding.pin, Pin::Ours | Pin::Lost))
        .filter(|(id, _)| !keep.contains(id));
    pins.unpin = ours.map(|(id, _)| id.clone()).collect();
    pins
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::sync::Arc;

    use super::*;
    use crate::decide::PresentImage;
    use crate::decide::desired::Wanted;
    use crate::decide::holdings::Holding;
    use crate::image::Reference;

    /// Images of 10 bytes in their order, and which of them are pinned already.
    fn pinned(images: &[(&str, Pin)], budget: Option<u64>) -> Pins {
        let (mut desired, mut asked) = (Desired::default(), Answers::new());
        let mut holdings = Holdings::new();
        for (place, (name, pin)) in (0..).zip(images) {
            let wanted = Wanted {
                reference: Reference::parse(name).map_err(Box::new),
                rank: (Reverse(0), [0, 0, place]),
                paused: false,
                secrets: Vec::new(),
                refresh: None,
                patience: std::time::Duration::ZERO,
                removable: false,
                pin: true,
                by: Arc::default(),
            };
            desired.images.insert((*name).into(), wanted);
            let image = PresentImage {
                id: (*name).into(),
                digest: None,
                bytes: 10,
                foreign_platform: None,
            };
            asked.insert((*name).into(), Some(Arc::new(image)));
            let holding = Holding {
                bytes: 10,
                pin: *pin,
                ..Holding::default()
            };
            holdings.insert((*name).into(), holding);
        }
        pins(&desired, &asked, &holdings, budget)
    }

    #[test]
    fn what_goes_first_is_pinned_as_far_as_the_budget_goes() {
        let images = [("b", Pin::None), ("a", Pin::Ours), ("c", Pin::Ours)];
        let all = pinned(&images, None);
        assert_eq!(all.pin, ["b".into()]);
        assert!(all.unpin.is_empty() && all.beyond.is_empty());
        let two = pinned(&images, Some(60));
        assert_eq!((two.pin, two.unpin), (vec!["b".into()], vec!["c".into()]));
        assert_eq!(two.beyond, ["c".into()].into());
        let none = pinned(&images, Some(29));
        assert_eq!(none.unpin, ["a".into(), "c".into()]);
        assert_eq!(none.beyond.len(), 3);
    }

    #[test]
    fn what_somebody_else_has_pinned_costs_nothing_and_stays() {
        let pins = pinned(&[("a", Pin::Foreign), ("b", Pin::None)], Some(30));
        assert_eq!(pins.pin, ["b".into()]);
        assert!(pins.unpin.is_empty() && pins.beyond.is_empty());
    }
}
