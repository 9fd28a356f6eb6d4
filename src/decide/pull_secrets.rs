//! What is known of pull secrets: which gave no credentials, and which were seen to change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::desired::Desired;
use super::inputs::SecretName;
use crate::api::SecretProblem;

/// The most Secrets that the condition names.
const MAX_NAMED: usize = 3;

/// Pull secrets, as far as something is to be remembered of them.
#[derive(Clone, Debug, Default)]
pub struct PullSecrets {
    /// Those that gave no credentials when they were last read.
    lacking: BTreeMap<Arc<SecretName>, SecretProblem>,
    /// How often each was seen to change.
    changes: BTreeMap<SecretName, u64>,
}

impl PullSecrets {
    /// Forgets what nobody names any more.
    pub(super) fn keep_named(&mut self, desired: &Desired) {
        let is_named = |secret: &Arc<SecretName>| {
            let mut all = desired.images.values().flat_map(|wanted| &wanted.secrets);
            all.any(|named| named == secret)
        };
        self.lacking.retain(|secret, _| is_named(secret));
    }

    /// A pull read these: why one gave no credentials, if it did not.
    pub fn read(&mut self, read: BTreeMap<Arc<SecretName>, Option<SecretProblem>>) {
        for (secret, problem) in read {
            match problem {
                Some(problem) => self.lacking.insert(secret, problem),
                None => self.lacking.remove(&secret),
            };
        }
    }

    /// Takes how often each was seen to change, and says which have changed since it was told last.
    pub(super) fn news(&mut self, changes: &BTreeMap<SecretName, u64>) -> BTreeSet<SecretName> {
        let news = changes
            .iter()
            .filter(|(secret, count)| self.changes.get(*secret) != Some(count))
            .map(|(secret, _)| secret.clone())
            .collect();
        self.changes.clone_from(changes);
        news
    }

    /// Those that gave no credentials.
    pub(super) fn lacking(&self) -> impl Iterator<Item = &Arc<SecretName>> {
        self.lacking.keys()
    }

    /// Status, reason and message of the node's condition. Reading none is no lack, and neither is an API server that is away.
    pub(super) fn condition(&self) -> (bool, &'static str, String) {
        let mut lacking: Vec<_> = self
            .lacking
            .iter()
            .filter_map(|(secret, problem)| Some((problem.reason?, secret, &problem.message)))
            .collect();
        lacking.sort();
        let Some((reason, ..)) = lacking.first() else {
            let message = "every pull secret that was read gave credentials";
            return (true, "Ready", message.to_owned());
        };
        let said = lacking.iter().take(MAX_NAMED);
        let mut said: Vec<_> = said
            .map(|(_, secret, message)| format!("Secret {secret}: {message}"))
            .collect();
        if let Some(more @ 1..) = lacking.len().checked_sub(MAX_NAMED) {
            said.push(format!("and {more} more"));
        }
        (false, reason.as_str(), said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CredentialReason;

    fn name(name: &str) -> Arc<SecretName> {
        Arc::new(SecretName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        })
    }

    #[test]
    fn the_condition_names_the_first_ones_and_counts_the_rest() {
        let mut secrets = PullSecrets::default();
        let problem = |reason| {
            Some(SecretProblem {
                reason,
                message: "no".to_owned(),
            })
        };
        secrets.read([(name("z"), problem(None))].into());
        assert!(secrets.condition().0, "the API server is away");
        for secret in ["a", "b", "c", "d"] {
            let missing = problem(Some(CredentialReason::MissingSecret));
            secrets.read([(name(secret), missing)].into());
        }
        let forbidden = problem(Some(CredentialReason::SecretForbidden));
        secrets.read([(name("e"), forbidden)].into());
        assert_eq!(
            secrets.condition(),
            (
                false,
                "SecretForbidden",
                "Secret ns/e: no; Secret ns/a: no; Secret ns/b: no; and 2 more".to_owned()
            )
        );
        for secret in ["a", "b", "c", "d", "e"] {
            secrets.read([(name(secret), None)].into());
        }
        assert!(secrets.condition().0);
    }

    #[test]
    fn a_change_is_news_once() {
        let mut secrets = PullSecrets::default();
        let changes = |count| [(SecretName::clone(&name("a")), count)].into();
        assert_eq!(secrets.news(&changes(1)).len(), 1);
        assert_eq!(secrets.news(&changes(1)).len(), 0);
        assert_eq!(secrets.news(&changes(2)).len(), 1);
    }
}
