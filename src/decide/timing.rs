//! Every interval and limit of time of the agent, with its production value.

use std::time::Duration;

/// A delay that doubles with each failure, up to a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Doubling {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay.
    pub most: Duration,
}

impl Doubling {
    const fn seconds(first: u64, most: u64) -> Self {
        Self {
            first: Duration::from_secs(first),
            most: Duration::from_secs(most),
        }
    }

    /// The delay after this many failures in a row, without jitter. None yet: no delay.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        match failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => self
                .first
                .saturating_mul(2_u32.saturating_pow(doublings.min(30)))
                .min(self.most),
        }
    }
}

/// Every interval and limit of time of the agent.
///
/// Tests run the same code with shorter ones: see [`Timing::divided_by`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timing {
    /// How often the runtime is asked for its images when it does not tell of changes by itself.
    pub look: Duration,
    /// How often it is asked all the same when it does, in case an event was lost.
    pub look_with_events: Duration,
    /// How long events are gathered before the runtime is asked for its images, after one of an image that is gone.
    pub look_after_removal: Duration,
    /// The same after one of an image that is new or was pulled again.
    pub look_after_arrival: Duration,
    /// The time limit of a question to the runtime. Pulls have none.
    pub runtime_call: Duration,
    /// Between attempts to reach a runtime that does not answer.
    pub runtime_retry: Doubling,
    /// How long the runtime keeps what a pull has downloaded, should this agent not come back.
    pub lease: Duration,
    /// A lease with less time left is given up before the next attempt.
    pub lease_spare: Duration,
    /// How long what was downloaded is kept after nobody wants the image any more: an edit may be mended.
    pub lease_kept: Duration,
    /// How long an image that is to be removed is left there after nobody wants it any more: an edit may be mended.
    pub removal: Duration,
    /// How often it is looked whether something still keeps an image that is to be removed.
    pub kept_look: Duration,
    /// Between attempts to write something about an image into the runtime.
    pub chore_retry: Doubling,
    /// How often the node's downloads are looked at, while there is something to pull.
    pub traffic: Duration,
    /// Of what was not looked at for this long nothing is known.
    pub traffic_unseen: Duration,
    /// How often the image filesystem is looked at, while there is something to pull.
    pub disk: Duration,
    /// A look that is longer ago says nothing any more.
    pub disk_good: Duration,
    /// How long nothing is started because the own Node was asked for its condition.
    pub node_answer: Duration,
    /// How long unpacking may make no progress: no new layer is begun.
    pub unpack: Duration,
    /// Own pulls go on this long after the downloads of others have ended.
    pub yield_after: Duration,
    /// After making way wholly for this long, one image at a time is pulled.
    pub yield_wholly: Duration,
    /// Nobody makes way for a download that has not moved for this long.
    pub others_stand_still: Duration,
    /// How often the log tells how far a pull is.
    pub tell_progress: Duration,
    /// A failed attempt is reported as failed until its repetition has run this long, so that quick
    /// repetitions cost no status writes.
    pub retry_is_pulling_after: Duration,
    /// After `NotFound`.
    pub not_found: Doubling,
    /// After `Unauthorized`.
    pub unauthorized: Doubling,
    /// After `RateLimited`: the shortest and the longest hold.
    pub rate_limited: (Duration, Duration),
    /// After `RegistryUnavailable`, `Stalled` and `PullFailed`.
    pub unavailable: Doubling,
    /// After `TLS` and `Corrupt`.
    pub broken: Doubling,
    /// After `NoSpace`.
    pub no_space: Doubling,
    /// After `NoMatchingPlatform`, `Verification`: nothing but a change of the image mends it.
    pub wrong_image: Duration,
    /// After an eviction that follows another one within [`Timing::eviction_memory`].
    pub evicted: Doubling,
    /// How long an eviction is remembered.
    pub eviction_memory: Duration,
    /// How long an exec credential provider may take to answer: as long as the kubelet lets it.
    pub provider: Duration,
    /// How long the node's docker configuration is good before it is read again: as long as in the kubelet.
    pub docker_config: Duration,
    /// The time limit of one request to the API server that is not a watch.
    pub api_call: Duration,
    /// Between attempts to reach an API server that does not answer.
    pub api_retry: Doubling,
    /// How long the elected agent stays elected without renewing.
    pub election: Duration,
    /// How often the elected agent renews.
    pub election_renew: Duration,
    /// How often an agent looks at the lease, on average, in a small cluster.
    pub election_look: Duration,
    /// Within this time after its start an agent looks at the lease for the first time.
    pub election_first_look: Duration,
    /// Between two reports of one node, while its images still move: the shortest time (in a small
    /// cluster) and the longest.
    pub report: (Duration, Duration),
    /// How often a node's agent looks whether its own object is still there, in a small cluster.
    pub own_object: Duration,
    /// The same once after the object was made: the one before it may still have been on its way out.
    pub own_object_made: Duration,
    /// Within this time all tasks have to end after SIGTERM.
    pub shutdown: Duration,
    /// How long the news that make up a summary are gathered before it is written, unless `Ready` turns.
    pub summary_gather: Duration,
    /// A node that has been Ready for this long without any report counts as unreachable.
    pub report_overdue: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(30),
            look_with_events: Duration::from_mins(5),
            look_after_removal: Duration::from_millis(100),
            look_after_arrival: Duration::from_secs(1),
            runtime_call: Duration::from_secs(10),
            runtime_retry: Doubling::seconds(1, 30),
            lease: Duration::from_hours(7 * 24),
            lease_spare: Duration::from_hours(24),
            lease_kept: Duration::from_mins(10),
            removal: Duration::from_mins(10),
            kept_look: Duration::from_mins(1),
            chore_retry: Doubling::seconds(10, 5 * 60),
            traffic: Duration::from_secs(1),
            traffic_unseen: Duration::from_secs(10),
            disk: Duration::from_secs(1),
            disk_good: Duration::from_secs(3),
            node_answer: Duration::from_secs(2),
            unpack: Duration::from_hours(1),
            yield_after: Duration::from_secs(5),
            yield_wholly: Duration::from_mins(10),
            others_stand_still: Duration::from_mins(1),
            tell_progress: Duration::from_secs(30),
            retry_is_pulling_after: Duration::from_secs(3),
            not_found: Doubling::seconds(60, 30 * 60),
            unauthorized: Doubling::seconds(60, 10 * 60),
            rate_limited: (Duration::from_mins(5), Duration::from_mins(15)),
            unavailable: Doubling::seconds(10, 5 * 60),
            broken: Doubling::seconds(10, 10 * 60),
            no_space: Doubling::seconds(60, 30 * 60),
            wrong_image: Duration::from_mins(30),
            evicted: Doubling::seconds(10 * 60, 60 * 60),
            eviction_memory: Duration::from_hours(1),
            provider: Duration::from_mins(1),
            docker_config: Duration::from_mins(5),
            api_call: Duration::from_secs(10),
            api_retry: Doubling::seconds(1, 30),
            election: Duration::from_secs(15),
            election_renew: Duration::from_secs(5),
            election_look: Duration::from_secs(2),
            election_first_look: Duration::from_secs(5),
            report: (Duration::from_secs(1), Duration::from_mins(1)),
            own_object: Duration::from_mins(5),
            own_object_made: Duration::from_secs(15),
            shutdown: Duration::from_secs(4),
            summary_gather: Duration::from_millis(200),
            report_overdue: Duration::from_mins(10),
        }
    }
}

impl Timing {
    /// The same with every delay before a repeated pull divided, and the times for which downloads that nobody wants are kept, the
    /// docker configuration is good and a provider is waited for: for tests that wait for these.
    #[must_use]
    pub fn divided_by(self, divisor: u32) -> Self {
        let by = divisor.max(1);
        let doubling = |delay: Doubling| Doubling {
            first: delay.first / by,
            most: delay.most / by,
        };
        Self {
            not_found: doubling(self.not_found),
            unauthorized: doubling(self.unauthorized),
            rate_limited: (self.rate_limited.0 / by, self.rate_limited.1 / by),
            unavailable: doubling(self.unavailable),
            broken: doubling(self.broken),
            no_space: doubling(self.no_space),
            wrong_image: self.wrong_image / by,
            evicted: doubling(self.evicted),
            lease_kept: self.lease_kept / by,
            provider: self.provider / by,
            docker_config: self.docker_config / by,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_doubles_up_to_its_limit() {
        let delay = Doubling::seconds(10, 300);
        let seconds: Vec<u64> = (0..8).map(|n| delay.after(n).as_secs()).collect();
        assert_eq!(seconds, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delay.after(u32::MAX).as_secs(), 300);
    }
}
