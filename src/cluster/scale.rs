//! The number of nodes, and the rates that follow from it.
//!
//! What an agent asks of the API server by itself gets rarer as the cluster grows, so that the whole fleet costs
//! the API server the same at 5 nodes and at 5,000.

use std::time::Duration;

use crate::decide::Timing;

/// The size of the cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scale {
    /// The number of nodes.
    pub nodes: u32,
}

impl Default for Scale {
    /// Until the number is read: a middling cluster.
    fn default() -> Self {
        Self { nodes: 100 }
    }
}

impl Scale {
    /// The shortest time between two reports of one node while its images still move, and between two rounds of
    /// summaries.
    #[must_use]
    pub fn report(self, timing: &Timing) -> Duration {
        let (least, most) = timing.report;
        (Duration::from_millis(10) * self.nodes).clamp(least, most.max(least))
    }

    /// Within this time the nodes begin what they pull after a change: on average fifty of them a second.
    #[must_use]
    pub fn start_within(self, most: Duration) -> Duration {
        most.min(Duration::from_millis(20) * self.nodes.saturating_sub(1))
    }

    /// How often a node reports how far its pulls are.
    #[must_use]
    pub fn progress(self) -> Duration {
        Duration::from_secs(15).max(Duration::from_millis(100) * self.nodes)
    }

    /// How often an agent looks whether its own object is still there.
    #[must_use]
    pub fn own_object(self, timing: &Timing) -> Duration {
        timing
            .own_object
            .max(Duration::from_millis(100) * self.nodes)
    }

    /// The time until an agent looks at the lease again: on average half a second for each node, so that there
    /// are two looks a second in all. `chance` is a random number from 0 to 1.
    ///
    /// In a small cluster no look is far away. In a large one short times are the likeliest: agents that started, and
    /// looked, together are spread over the time to come at once, and not only once the average is over.
    #[must_use]
    pub fn lease_look(self, timing: &Timing, chance: f64) -> Duration {
        let chance = chance.clamp(0.0, 1.0);
        let average = Duration::from_millis(500) * self.nodes;
        if average <= timing.election_look {
            timing.election_look.mul_f64(0.5 + chance)
        } else {
            (3 * average).mul_f64(1.0 - (1.0 - chance).sqrt())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fleet_costs_the_same_at_every_size() {
        let timing = Timing::default();
        let seconds = |nodes| {
            let scale = Scale { nodes };
            [scale.report(&timing), scale.own_object(&timing)].map(|rate| rate.as_secs())
        };
        assert_eq!(seconds(0), [1, 300]);
        assert_eq!(seconds(3), [1, 300]);
        assert_eq!(seconds(1000), [10, 300]);
        assert_eq!(seconds(5000), [50, 500]);
        assert_eq!(seconds(u32::MAX).first(), Some(&60));
        let within = |nodes| {
            Scale { nodes }
                .start_within(Duration::from_mins(1))
                .as_millis()
        };
        assert_eq!(
            [0, 1, 3, 1000, 5000].map(within),
            [0, 0, 40, 19_980, 60_000]
        );
    }

    #[test]
    fn in_a_small_cluster_a_look_comes_within_three_seconds() {
        let look = |chance| Scale { nodes: 3 }.lease_look(&Timing::default(), chance);
        assert_eq!(look(0.0), Duration::from_secs(1));
        assert_eq!(look(1.0), Duration::from_secs(3));
    }

    #[test]
    fn the_looks_of_a_large_cluster_are_spread_over_the_time_to_come() {
        let timing = Timing::default();
        for nodes in [5, 100, 5000] {
            let looks: Vec<f64> = (0..1000_u32)
                .map(|n| f64::from(n) / 1000.0)
                .map(|chance| Scale { nodes }.lease_look(&timing, chance).as_secs_f64())
                .collect();
            let nodes = f64::from(nodes);
            let average = looks.iter().sum::<f64>() / 1000.0;
            assert!(
                (average / nodes - 0.5).abs() < 0.01,
                "{nodes} nodes: {average} s"
            );
            let soon = looks.iter().filter(|look| **look < average / 10.0).count();
            assert!(soon > 50, "{nodes} nodes: {soon} of 1000 look soon");
        }
    }
}
