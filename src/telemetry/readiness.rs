//! Whether the agent can do its work: named checks, each set by the part that knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// All checks of the process. It is ready when every one of them is.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    checks: Arc<Mutex<Checks>>,
}

/// What is still in the way, by the check's name; `None` once it is ready.
type Checks = BTreeMap<&'static str, Option<String>>;

/// One check, for the part of the process that knows its answer.
#[derive(Clone, Debug)]
pub struct Check {
    name: &'static str,
    checks: Arc<Mutex<Checks>>,
}

impl Readiness {
    /// Adds a check, such as `the runtime answers`. It is not ready for this reason until it is said to be.
    #[must_use]
    pub fn check(&self, name: &'static str, reason: impl Into<String>) -> Check {
        let check = Check {
            name,
            checks: Arc::clone(&self.checks),
        };
        check.not_ready(reason);
        check
    }

    /// Whether every check is ready; otherwise what is not, each with its reason on a line.
    pub fn report(&self) -> Result<(), String> {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let open: String = checks
            .iter()
            .filter_map(|(name, reason)| Some(format!("- {name}: {}\n", reason.as_ref()?)))
            .collect();
        if open.is_empty() {
            Ok(())
        } else {
            Err(format!("not ready:\n{open}"))
        }
    }
}

impl Check {
    /// Says that it is ready.
    pub fn ready(&self) {
        self.set(None);
    }

    /// Says that it is not, and why.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, reason: Option<String>) {
        self.checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(self.name, reason);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_check_is() {
        let readiness = Readiness::default();
        assert_eq!(readiness.report(), Ok(()));
        let runtime = readiness.check("the runtime answers", "not asked yet");
        let watches = readiness.check("the watches have listed", "waiting for the API server");
        assert_eq!(
            readiness.report().unwrap_err(),
            "not ready:\n- the runtime answers: not asked yet\n- the watches have listed: waiting for the API server\n"
        );
        runtime.ready();
        assert!(readiness.report().is_err());
        watches.ready();
        assert_eq!(readiness.report(), Ok(()));
        runtime.not_ready("/run/x.sock: connection refused");
        assert_eq!(
            readiness.report().unwrap_err(),
            "not ready:\n- the runtime answers: /run/x.sock: connection refused\n"
        );
    }
}
