//! Why credentials are lacking, and where those of the node come from.

use std::fmt;
use std::sync::Arc;

/// Why a node's agent lacks credentials.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CredentialReason {
    /// The agent may not read a Secret.
    SecretForbidden,
    /// A Secret is not there.
    MissingSecret,
    /// A Secret, or the node's docker configuration, does not hold what it should.
    InvalidSecret,
    /// An exec credential provider gave no answer.
    ProviderFailed,
}

impl CredentialReason {
    /// The reason as it is written into a condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SecretForbidden => "SecretForbidden",
            Self::MissingSecret => "MissingSecret",
            Self::InvalidSecret => "InvalidSecret",
            Self::ProviderFailed => "ProviderFailed",
        }
    }
}

/// Why a source gives no credentials.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CredentialProblem {
    /// The cause's class. `None`: it could not be read, for a cause that is not the source's.
    pub reason: Option<CredentialReason>,
    /// The cause in a sentence, never the content.
    pub message: String,
}

/// Where credentials of the node itself come from.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum NodeSource {
    /// Its docker configuration file.
    DockerConfig,
    /// The exec credential provider of this name.
    Provider(Arc<str>),
}

impl fmt::Display for NodeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DockerConfig => f.write_str("docker config"),
            Self::Provider(name) => write!(f, "provider {name}"),
        }
    }
}
