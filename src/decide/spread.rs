//! How nodes spread over time what they all do: each waits another time than the others, and always the same.

use std::time::Duration;

use super::desired::ImageKey;
use crate::image::hash;

/// How the node shares registries and the API server with all the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Spread {
    /// Within this time the pulls that follow a change begin.
    pub start_within: Duration,
    /// How often it is reported how far pulls are.
    pub progress: Duration,
}

/// How long this node waits after a change, so that not all nodes ask the registries at once: from zero to `within`.
///
/// All images that came with one change wait equally long: on the node they keep their order.
#[must_use]
pub fn start_delay(node: &str, fresh: &[ImageKey], within: Duration) -> Duration {
    let Some(first) = fresh.iter().min() else {
        return Duration::ZERO;
    };
    // The last bits of such a hash differ the most. 24 of them are exact in a fraction.
    let bits = u32::try_from(hash(&format!("{node}/{first}")) & 0x00ff_ffff).unwrap_or(0);
    within.mul_f64(f64::from(bits) / f64::from(0x00ff_ffff_u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_nodes_are_spread_evenly_and_each_always_waits_the_same_time() {
        let within = Duration::from_secs(20);
        let delay = |node| start_delay(&format!("node-{node}"), &["r.io/a:1".into()], within);
        let mut per_second = [0_u32; 20];
        for node in 0..1000 {
            let second = usize::try_from(delay(node).as_secs()).unwrap_or(usize::MAX);
            if let Some(count) = per_second.get_mut(second) {
                *count += 1;
            }
            assert_eq!(delay(node), delay(node));
        }
        assert!(
            per_second.iter().all(|count| (25..=75).contains(count)),
            "{per_second:?}"
        );
    }

    #[test]
    fn nothing_new_waits_for_nothing() {
        assert_eq!(start_delay("n", &[], Duration::MAX), Duration::ZERO);
        let image = ["r.io/a:1".into()];
        assert_eq!(start_delay("n", &image, Duration::ZERO), Duration::ZERO);
    }
}
