//! What a node's condition says of all sources of credentials.

use super::node_sources::NodeSources;
use super::pull_secrets::PullSecrets;

/// The most sources that the condition names.
const MAX_NAMED: usize = 3;

/// Status, reason and message.
pub(super) fn condition(secrets: &PullSecrets, node: &NodeSources) -> (bool, &'static str, String) {
    let mut problems: Vec<_> = secrets.problems().chain(node.problems()).collect();
    problems.sort();
    let Some((reason, _)) = problems.first() else {
        return (true, "Ready", ready(node));
    };
    let reason = reason.as_str();
    let more = problems.len().saturating_sub(MAX_NAMED);
    let said = problems.into_iter().take(MAX_NAMED);
    let mut said: Vec<_> = said.map(|(_, said)| said).collect();
    if more > 0 {
        said.push(format!("and {more} more"));
    }
    (false, reason, said.join("; "))
}

fn ready(node: &NodeSources) -> String {
    match node.names() {
        None => "every pull secret that was read gave credentials; node credentials are off (--node-docker-config-dir, --image-credential-provider-config)".to_owned(),
        Some(names) => format!(
            "every pull secret and every source of the node that was read gave credentials; the node has: {names}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::{CredentialProblem, CredentialReason, NodeSource};
    use crate::decide::SecretName;

    fn problem(reason: Option<CredentialReason>) -> CredentialProblem {
        let message = "no".to_owned();
        CredentialProblem { reason, message }
    }

    #[test]
    fn the_condition_names_the_first_ones_and_counts_the_rest() {
        let (mut secrets, mut node) = (PullSecrets::default(), NodeSources::default());
        let mut read = |name: &str, problem| {
            let name = SecretName {
                namespace: "ns".to_owned(),
                name: name.to_owned(),
            };
            secrets.read([(Arc::new(name), Some(problem))].into());
            secrets.clone()
        };
        let secrets = read("z", problem(None));
        assert!(condition(&secrets, &node).0, "the API server is away");
        for secret in ["a", "b", "c", "d"] {
            read(secret, problem(Some(CredentialReason::MissingSecret)));
        }
        let secrets = read("e", problem(Some(CredentialReason::SecretForbidden)));
        let failed = problem(Some(CredentialReason::ProviderFailed));
        let provider = NodeSource::Provider("p".into());
        node.read(&"r.io/a".into(), &[(provider, Some(failed))].into(), |_| {
            true
        });
        let expected = "Secret ns/e: no; Secret ns/a: no; Secret ns/b: no; and 3 more";
        assert_eq!(
            condition(&secrets, &node),
            (false, "SecretForbidden", expected.to_owned())
        );
        let expected = "provider p: no (asked for r.io/a)";
        assert_eq!(
            condition(&PullSecrets::default(), &node),
            (false, "ProviderFailed", expected.to_owned())
        );
    }

    #[test]
    fn a_condition_that_is_true_says_what_the_node_has() {
        let said = |names: &str| {
            let (is_ready, reason, message) =
                condition(&PullSecrets::default(), &NodeSources::new(names.to_owned()));
            assert_eq!((is_ready, reason), (true, "Ready"));
            message
        };
        assert!(said("").contains("node credentials are off (--node-docker-config-dir"));
        assert!(said("provider p").ends_with("the node has: provider p"));
    }
}
