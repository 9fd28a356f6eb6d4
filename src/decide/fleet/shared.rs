//! One copy of each value, however many nodes have it.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// The fewest values at which it is worth looking for those that nobody has any more.
const SWEEP_AT: usize = 1024;

/// The values that are in use, each once.
#[derive(Debug)]
pub struct Shared<T: ?Sized + Eq + Hash> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized + Eq + Hash> Default for Shared<T> {
    fn default() -> Self {
        Self {
            values: HashSet::new(),
            sweep_at: SWEEP_AT,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<T> {
    /// The copy that everybody shares of this value.
    pub fn one(&mut self, value: Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.get(&value) {
            return known.clone();
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|known| Arc::strong_count(known) > 1);
            self.sweep_at = SWEEP_AT.max(2 * self.values.len());
        }
        self.values.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        let mut shared = Shared::<str>::default();
        let first = shared.one("a".into());
        assert!(Arc::ptr_eq(&first, &shared.one("a".into())));
        assert!(!Arc::ptr_eq(&first, &shared.one("b".into())));
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten() {
        let mut shared = Shared::<str>::default();
        let kept = shared.one("kept".into());
        for n in 0..10 * SWEEP_AT {
            shared.one(n.to_string().into());
        }
        assert!(shared.values.len() <= SWEEP_AT);
        assert!(Arc::ptr_eq(&kept, &shared.one("kept".into())));
    }
}
