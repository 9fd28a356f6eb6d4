//! Trouble that lasts, said when it begins, when it changes and when it ends.

use std::time::Duration;

use super::error::CallError;
use crate::decide::Doubling;

/// The most causes that are remembered as said: causes that alternate are said once each.
const REMEMBERED: usize = 8;

/// What has gone wrong in a row with one thing.
#[derive(Debug, Default)]
pub struct Trouble {
    failures: u32,
    said: Vec<String>,
}

impl Trouble {
    /// Notes a failure. True if its cause was not noted yet since the trouble began: say it.
    pub fn begins(&mut self, cause: &str) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.said.iter().any(|said| said == cause) {
            return false;
        }
        if self.said.len() == REMEMBERED {
            self.said.clear();
        }
        self.said.push(cause.to_owned());
        true
    }

    /// Notes a failed request. True if it is to be said: an API server that does not answer at all is not, since the
    /// connection says that once for all who ask.
    pub fn fails(&mut self, error: &CallError) -> bool {
        if matches!(error, CallError::NoAnswer(_)) {
            self.failures = self.failures.saturating_add(1);
            return false;
        }
        self.begins(&error.to_string())
    }

    /// Notes a success. True if a cause was said before: say that it is over.
    pub fn ends(&mut self) -> bool {
        self.failures = 0;
        let was = !self.said.is_empty();
        self.said.clear();
        was
    }

    /// How long to wait now before the next attempt. `chance` is a random number from 0 to 1: the agents of a
    /// cluster must not all come back at once.
    #[must_use]
    pub fn wait(&self, retry: &Doubling, chance: f64) -> Duration {
        let nominal = retry.after(self.failures);
        nominal.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Timing;

    #[test]
    fn a_cause_is_said_once_until_the_trouble_ends() {
        let mut trouble = Trouble::default();
        assert!(!trouble.ends());
        let said = ["refused", "refused", "timeout", "refused", "timeout"]
            .map(|cause| trouble.begins(cause));
        assert_eq!(said, [true, false, true, false, false]);
        assert!(trouble.ends());
        assert!(!trouble.ends());
        assert!(trouble.begins("refused"));
    }

    #[test]
    fn an_api_server_that_does_not_answer_is_waited_for_in_silence() {
        let mut trouble = Trouble::default();
        let silence = CallError::NoAnswer("connection refused".to_owned());
        assert!(!trouble.fails(&silence));
        assert_ne!(
            trouble.wait(&Timing::default().api_retry, 1.0),
            Duration::ZERO
        );
        assert!(!trouble.ends());
        assert!(trouble.fails(&CallError::Unreadable("garbage".to_owned())));
        assert!(!trouble.fails(&silence));
        assert!(trouble.ends());
    }

    #[test]
    fn the_wait_doubles_within_its_limit_and_restarts_after_a_success() {
        let retry = Timing::default().api_retry;
        let mut trouble = Trouble::default();
        assert_eq!(trouble.wait(&retry, 1.0), Duration::ZERO);
        let waits: Vec<u64> = (0..7)
            .map(|_| {
                trouble.begins("refused");
                trouble.wait(&retry, 1.0).as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(trouble.wait(&retry, 0.0), Duration::from_secs(15));
        trouble.ends();
        assert_eq!(trouble.wait(&retry, 1.0), Duration::ZERO);
    }
}
