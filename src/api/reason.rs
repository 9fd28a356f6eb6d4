//! The closed set of image states and of the reasons beside them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an image is doing on a node.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum ImageState {
    /// The runtime has it, for this node's platform.
    Ready,
    /// The runtime is pulling it.
    Pulling,
    /// Nothing is wrong with the image: something else has to happen first.
    Waiting,
    /// The last attempt failed. It is tried again as its reason says.
    Failed,
    /// Nobody wants it any more, and it is about to be removed.
    Removing,
    /// It is not to be there, and it is not.
    Removed,
}

/// Why an image is in its state.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum Reason {
    /// No free slot yet, or images of a higher priority go first.
    Queued,
    /// `spec.paused` is set.
    Paused,
    /// Something else downloads images on this node, such as a pod that starts: it goes first.
    Yielding,
    /// The runtime does not answer, or is not a CRI runtime.
    RuntimeUnavailable,
    /// It was there, and something other than this agent removed it.
    Evicted,
    /// The image's name does not parse.
    InvalidReference,
    /// The registry says that there is no such repository, tag or digest.
    NotFound,
    /// There is no image for this node's platform under this name.
    NoMatchingPlatform,
    /// The registry wants other credentials, or says no.
    Unauthorized,
    /// The registry answers "too many requests".
    RateLimited,
    /// The registry cannot be reached, or answers with a server error.
    RegistryUnavailable,
    /// The registry's certificate is not trusted, or one side speaks http and the other https.
    #[serde(rename = "TLS")]
    Tls,
    /// What came is not what the digest or the media type promised.
    Corrupt,
    /// The runtime's image policy refused the image.
    Verification,
    /// The pull made no progress for `spec.pullProgressTimeout`, or the runtime said so.
    Stalled,
    /// The disk filled up during the pull.
    NoSpace,
    /// It is present, and asking the registry again failed: the message says why.
    RefreshFailed,
    /// A cause that no rule knows: the message is the runtime's own text.
    PullFailed,
    /// The Node says so, or the image filesystem would be too full.
    DiskPressure,
    /// It is not pinned: what is pinned already takes all that may be.
    PinBudget,
    /// It is to be removed, and a container uses it.
    InUse,
    /// It is to be removed, and the runtime would remove other names of the same image with it.
    Shared,
    /// One `ImageCache` wants it gone, and another wants it.
    WantedElsewhere,
    /// It is to be gone, and it was not pulled by this agent.
    NotOwned,
}

impl Reason {
    /// Every reason, for tests and documentation.
    pub const ALL: [Self; 24] = [
        Self::Queued,
        Self::Paused,
        Self::Yielding,
        Self::RuntimeUnavailable,
        Self::Evicted,
        Self::InvalidReference,
        Self::NotFound,
        Self::NoMatchingPlatform,
        Self::Unauthorized,
        Self::RateLimited,
        Self::RegistryUnavailable,
        Self::Tls,
        Self::Corrupt,
        Self::Verification,
        Self::Stalled,
        Self::NoSpace,
        Self::RefreshFailed,
        Self::PullFailed,
        Self::DiskPressure,
        Self::PinBudget,
        Self::InUse,
        Self::Shared,
        Self::WantedElsewhere,
        Self::NotOwned,
    ];

    /// The reason as it is written into a status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Paused => "Paused",
            Self::Yielding => "Yielding",
            Self::RuntimeUnavailable => "RuntimeUnavailable",
            Self::Evicted => "Evicted",
            Self::InvalidReference => "InvalidReference",
            Self::NotFound => "NotFound",
            Self::NoMatchingPlatform => "NoMatchingPlatform",
            Self::Unauthorized => "Unauthorized",
            Self::RateLimited => "RateLimited",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::Tls => "TLS",
            Self::Corrupt => "Corrupt",
            Self::Verification => "Verification",
            Self::Stalled => "Stalled",
            Self::NoSpace => "NoSpace",
            Self::RefreshFailed => "RefreshFailed",
            Self::PullFailed => "PullFailed",
            Self::DiskPressure => "DiskPressure",
            Self::PinBudget => "PinBudget",
            Self::InUse => "InUse",
            Self::Shared => "Shared",
            Self::WantedElsewhere => "WantedElsewhere",
            Self::NotOwned => "NotOwned",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reason_is_displayed_as_it_is_serialized() {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.to_string());
        }
    }
}
