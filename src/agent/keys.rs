//! The credentials of one pull: read when it needs them, and gone with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{CredentialProblem, Reason};
use crate::credentials::{Keyring, Named, NodeCredentials, NodeKeys, Secrets};
use crate::decide::SecretName;
use crate::decide::registries::Credentials;

/// Where the credentials of an image are looked for.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Who reads pull secrets.
    pub secrets: Arc<dyn Secrets>,
    /// Those of the image.
    pub names: Vec<Arc<SecretName>>,
    /// The node's own.
    pub node: Arc<NodeCredentials>,
}

/// What was found for an image.
#[derive(Debug, Default)]
pub struct Keys {
    /// The credentials to try, in this order, equal ones once.
    pub found: Vec<Named>,
    /// The Secrets that were read, and why one gave nothing.
    pub secrets: BTreeMap<Arc<SecretName>, Option<CredentialProblem>>,
    /// What the node had.
    pub node: NodeKeys,
}

/// The most sources of a kind that a message names.
const MAX_NAMED: usize = 3;

/// Whether another credential could make this better: the registry's own answer to who asks.
#[must_use]
pub const fn may_depend(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Unauthorized | Reason::NotFound | Reason::RateLimited | Reason::PullFailed
    )
}

impl Sources {
    /// Reads them all, and takes out of them what belongs to the image, which is named by registry and repository in full. As in the
    /// kubelet, the pull secrets make one keyring, and what the node has comes after it.
    pub async fn read(&self, image: &str) -> Keys {
        let mut keys = Keys::default();
        let mut keyring = Keyring::default();
        for name in &self.names {
            let problem = match self.secrets.read(name).await {
                Ok(entries) => {
                    keyring.add(&name.to_string().into(), entries.iter().cloned());
                    None
                }
                Err(problem) => Some(problem),
            };
            keys.secrets.insert(Arc::clone(name), problem);
        }
        keys.add(keyring.lookup(image));
        keys.read_node(&self.node, image).await;
        keys
    }
}

impl Keys {
    /// The sources of these.
    #[must_use]
    pub fn sources(&self) -> Credentials {
        let sources = self.found.iter();
        sources.map(|named| Arc::clone(&named.source)).collect()
    }

    /// After a registry refused all of them: reads what the node had remembered anew, and returns how many were tried before.
    /// `None`: nothing was remembered, so there is nothing newer.
    pub async fn renew(&mut self, sources: &Sources, image: &str) -> Option<usize> {
        if self.node.remembered.is_empty() {
            return None;
        }
        let tried = self.found.len();
        sources.node.forget(image, &self.node.remembered);
        self.read_node(&sources.node, image).await;
        Some(tried)
    }

    async fn read_node(&mut self, node: &NodeCredentials, image: &str) {
        self.node = node.find(image).await;
        let found = std::mem::take(&mut self.node.found);
        self.add(found);
    }

    fn add(&mut self, found: Vec<Named>) {
        for named in found {
            let mut known = self.found.iter();
            if !known.any(|known| known.credential == named.credential) {
                self.found.push(named);
            }
        }
    }

    /// The cause of a failed pull, with what was tried, by name, where that can matter.
    #[must_use]
    pub fn explain(&self, reason: Reason, message: String) -> String {
        let nothing = match (self.secrets.is_empty(), self.node.read.is_empty()) {
            (true, true) => return message,
            (false, true) => "no pull secret has credentials for this image",
            (true, false) => "the node has no credentials for this image",
            (false, false) => "neither a pull secret nor the node has credentials for this image",
        };
        if !matches!(reason, Reason::Unauthorized | Reason::NotFound) {
            return message;
        }
        let tried = self.found.iter().map(|named| named.source.to_string());
        let mut parts = vec![if self.found.is_empty() {
            nothing.to_owned()
        } else {
            format!("tried with {}", first_of(tried).join(", "))
        }];
        let secrets = self.secrets.iter();
        let secrets = secrets.map(|(name, problem)| (format!("Secret {name}"), problem));
        let node = self.node.read.iter();
        let node = node.map(|(source, problem)| (source.to_string(), problem));
        let lacking = secrets.chain(node).filter_map(|(source, problem)| {
            Some(format!("{source}: {}", problem.as_ref()?.message))
        });
        parts.extend(first_of(lacking));
        format!("{message} ({})", parts.join("; "))
    }
}

/// The first ones, and how many there are beside them.
fn first_of(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut all = all.fuse();
    let mut named: Vec<_> = all.by_ref().take(MAX_NAMED).collect();
    let more = all.count();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named
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
        ) -> BoxFuture<'a, Result<Arc<Vec<Entry>>, CredentialProblem>> {
            let answer = if name.name == "missing" {
                Err(CredentialProblem {
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
        let sources = Sources {
            secrets: Arc::new(Users),
            names,
            node: Arc::default(),
        };
        sources.read(image).now_or_never().unwrap()
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
    fn of_many_sources_three_are_named_and_the_rest_is_counted() {
        let names = ["a", "b", "c", "d", "e"];
        let names: Vec<_> = names
            .iter()
            .flat_map(|&ns| [(ns, ns), (ns, "missing")])
            .collect();
        let keys = keys(&names, "r.io/app");
        assert_eq!(
            keys.explain(Reason::Unauthorized, "401".to_owned()),
            "401 (tried with a/a, b/b, c/c, and 2 more; Secret a/missing: it is not there; Secret b/missing: it is not there; Secret c/missing: it is not there; and 2 more)"
        );
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
