//! What is known of pull secrets: which gave no credentials, and which were seen to change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::desired::Desired;
use super::inputs::SecretName;
use crate::api::{CredentialProblem, CredentialReason};

/// Pull secrets, as far as something is to be remembered of them.
#[derive(Clone, Debug, Default)]
pub struct PullSecrets {
    /// Those that gave no credentials when they were last read.
    lacking: BTreeMap<Arc<SecretName>, CredentialProblem>,
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
    pub fn read(&mut self, read: BTreeMap<Arc<SecretName>, Option<CredentialProblem>>) {
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

    /// Why those that are at fault themselves gave none. Reading none is no lack, and neither is an API server that is away.
    pub(super) fn problems(&self) -> impl Iterator<Item = (CredentialReason, String)> {
        self.lacking.iter().filter_map(|(secret, problem)| {
            Some((
                problem.reason?,
                format!("Secret {secret}: {}", problem.message),
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Arc<SecretName> {
        Arc::new(SecretName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        })
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
