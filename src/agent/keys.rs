//! The credentials of one pull: read when it needs them, and gone with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{Reason, SecretProblem};
use crate::credentials::{Keyring, Named, Secrets};
use crate::decide::SecretName;

/// What the pull secrets of an image hold for it.
#[derive(Debug, Default)]
pub struct Keys {
    /// The credentials to try, in this order, equal ones once.
    pub found: Vec<Named>,
    /// The Secrets that were read, and why one gave nothing.
    pub read: BTreeMap<Arc<SecretName>, Option<SecretProblem>>,
}

/// Whether another credential could make this better: the registry's own answer to who asks.
#[must_use]
pub const fn may_depend(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Unauthorized | Reason::NotFound | Reason::RateLimited | Reason::PullFailed
    )
}

impl Keys {
    /// Reads these Secrets, and takes out of them what belongs to the image, which is named by registry and repository in full.
    pub async fn read(secrets: &dyn Secrets, names: &[Arc<SecretName>], image: &str) -> Self {
        let mut keys = Self::default();
        let mut keyring = Keyring::default();
        for name in names {
            let problem = match secrets.read(name).await {
                Ok(entries) => {
                    keyring.add(&name.to_string().into(), entries.iter().cloned());
                    None
                }
                Err(problem) => Some(problem),
            };
            keys.read.insert(Arc::clone(name), problem);
        }
        for named in keyring.lookup(image) {
            if !keys
                .found
                .iter()
                .any(|found| found.credential == named.credential)
            {
                keys.found.push(named);
            }
        }
        keys
    }

    /// The cause of a failed pull, with what was tried, by name, where that can matter.
    #[must_use]
    pub fn explain(&self, reason: Reason, message: String) -> String {
        if !matches!(reason, Reason::Unauthorized | Reason::NotFound) || self.read.is_empty() {
            return message;
        }
        let tried: Vec<&str> = self.found.iter().map(|named| &*named.source).collect();
        let mut parts = vec![if tried.is_empty() {
            "no pull secret has credentials for this image".to_owned()
        } else {
            format!("tried with {}", tried.join(", "))
        }];
        for (name, problem) in &self.read {
            if let Some(problem) = problem {
                parts.push(format!("Secret {name}: {}", problem.message));
            }
        }
        format!("{message} ({})", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::api::{CredentialReason, NamespacedName};
    use crate::credentials::{Credential, Entry};

    /// A Secret `USER` holds USER's password for r.io; `missing` is missing.
    #[derive(Debug)]
    struct Users;

    impl Secrets for Users {
        fn read<'a>(
            &'a self,
            name: &'a NamespacedName,
        ) -> BoxFuture<'a, Result<Arc<Vec<Entry>>, SecretProblem>> {
            let answer = if name.name == "missing" {
                Err(SecretProblem {
                    reason: Some(CredentialReason::MissingSecret),
                    message: "it is not there".to_owned(),
                })
            } else {
                let credential = Credential {
                    username: name.name.clone(),
                    password: "hunter2".to_owned(),
                };
                let key = "r.io".to_owned();
                Ok(Arc::new(vec![Entry { key, credential }]))
            };
            std::future::ready(answer).boxed()
        }
    }

    fn keys(namespaces: &[(&str, &str)], image: &str) -> Keys {
        let names: Vec<_> = namespaces
            .iter()
            .map(|(namespace, name)| {
                Arc::new(SecretName {
                    namespace: (*namespace).to_owned(),
                    name: (*name).to_owned(),
                })
            })
            .collect();
        Keys::read(&Users, &names, image).now_or_never().unwrap()
    }

    #[test]
    fn every_credential_for_the_registry_is_tried_once_and_what_is_lacking_is_named() {
        let names = [
            ("a", "alice"),
            ("a", "missing"),
            ("b", "alice"),
            ("b", "bob"),
        ];
        let keys = keys(&names, "r.io/app");
        let tried: Vec<_> = keys.found.iter().map(|named| &*named.source).collect();
        assert_eq!(tried, ["a/alice", "b/bob"]);
        assert_eq!(
            keys.explain(Reason::Unauthorized, "401".to_owned()),
            "401 (tried with a/alice, b/bob; Secret a/missing: it is not there)"
        );
        assert_eq!(keys.explain(Reason::NoSpace, "full".to_owned()), "full");
    }

    #[test]
    fn a_credential_goes_to_no_other_registry() {
        let keys = keys(&[("a", "alice")], "other.io/app");
        assert!(keys.found.is_empty());
        assert_eq!(
            keys.explain(Reason::Unauthorized, "401".to_owned()),
            "401 (no pull secret has credentials for this image)"
        );
        assert!(!format!("{keys:?}").contains("hunter2"));
    }
}
