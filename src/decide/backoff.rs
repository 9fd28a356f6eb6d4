//! When an image whose pull failed is tried again.

use std::time::Duration;

use super::timing::Timing;
use crate::api::Reason;

/// How far a delay strays from its nominal value, to either side.
const JITTER: f64 = 0.2;

/// The delay before the next attempt after `failures` failures in a row, the last one for `reason`.
///
/// `chance` is a random number from 0 to 1.
#[must_use]
pub fn delay(reason: Reason, failures: u32, timing: &Timing, chance: f64) -> Duration {
    let nominal = match reason {
        Reason::RateLimited => {
            let (least, most) = timing.rate_limited;
            return least + most.saturating_sub(least).mul_f64(chance.clamp(0.0, 1.0));
        }
        Reason::NotFound => timing.not_found.after(failures),
        Reason::Unauthorized => timing.unauthorized.after(failures),
        // A name that does not parse is never sent. One that only the runtime refuses may please its next version.
        Reason::NoMatchingPlatform | Reason::Verification | Reason::InvalidReference => {
            timing.wrong_image
        }
        Reason::NoSpace => timing.no_space.after(failures),
        Reason::Tls | Reason::Corrupt => timing.broken.after(failures),
        // A stalled pull goes on at once the first time: what stalls once is most often a lost connection.
        Reason::Stalled if failures <= 1 => return Duration::ZERO,
        Reason::Stalled => timing.unavailable.after(failures - 1),
        Reason::Evicted => timing.evicted.after(failures),
        Reason::RegistryUnavailable
        | Reason::PullFailed
        | Reason::RefreshFailed
        | Reason::Queued
        | Reason::Paused
        | Reason::Yielding
        | Reason::RuntimeUnavailable
        | Reason::DiskPressure
        | Reason::PinBudget
        | Reason::InUse
        | Reason::Shared
        | Reason::WantedElsewhere
        | Reason::NotOwned => timing.unavailable.after(failures),
    };
    nominal.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_waits_as_documented() {
        let timing = Timing::default();
        let seconds = |reason, failures| {
            let delay = delay(reason, failures, &timing, 0.5);
            (delay + Duration::from_millis(500)).as_secs()
        };
        let rows = [
            (Reason::NotFound, [60, 120, 1800]),
            (Reason::Unauthorized, [60, 120, 600]),
            (Reason::RateLimited, [600, 600, 600]),
            (Reason::RegistryUnavailable, [10, 20, 300]),
            (Reason::Tls, [10, 20, 600]),
            (Reason::Corrupt, [10, 20, 600]),
            (Reason::NoSpace, [60, 120, 1800]),
            (Reason::Stalled, [0, 10, 300]),
            (Reason::PullFailed, [10, 20, 300]),
            (Reason::NoMatchingPlatform, [1800; 3]),
            (Reason::Verification, [1800; 3]),
            (Reason::InvalidReference, [1800; 3]),
        ];
        for (reason, expected) in rows {
            assert_eq!([1, 2, 30].map(|n| seconds(reason, n)), expected, "{reason}");
        }
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        let timing = Timing::default();
        for (chance, factor) in [(0.0, 0.8), (1.0, 1.2), (7.0, 1.2)] {
            let delay = delay(Reason::NotFound, 1, &timing, chance);
            assert!((delay.as_secs_f64() - 60.0 * factor).abs() < 0.001);
        }
    }
}
