//! What went wrong with a request to the API server.

use std::error::Error;
use std::time::Duration;

use kube::Resource;
use kube::core::Status;

use crate::api::GROUP;

/// Why a request to the API server did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There was no answer: no connection, a broken one, or a time limit.
    #[error("{0}")]
    NoAnswer(String),
    /// The API server answered, and said no.
    #[error("{} ({})", .0.message, .0.code)]
    Refused(Box<Status>),
    /// The answer, or the request, makes no sense.
    #[error("{0}")]
    Unreadable(String),
}

impl CallError {
    pub(super) fn no_answer_within(limit: Duration) -> Self {
        Self::NoAnswer(format!("no answer within {limit:?}"))
    }

    /// The HTTP status with which the API server refused; 0 if there was no answer.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::NoAnswer(_) | Self::Unreadable(_) => 0,
        }
    }

    /// A word for it, for metrics.
    #[must_use]
    pub fn result(&self) -> &'static str {
        match self {
            Self::NoAnswer(_) => "NoAnswer",
            Self::Refused(status) if status.code == 409 => "Conflict",
            Self::Refused(_) => "Refused",
            Self::Unreadable(_) => "Unreadable",
        }
    }

    /// The object is not there, but its resource type is: a 404 for an object names it, a 404 for a resource
    /// type that the API server does not know names nothing.
    #[must_use]
    pub fn is_absent_object(&self) -> bool {
        matches!(self, Self::Refused(status)
            if status.code == 404 && status.details.as_ref().is_some_and(|details| !details.name.is_empty()))
    }

    /// The API server does not know the resource type.
    #[must_use]
    pub fn is_unknown_resource(&self) -> bool {
        self.code() == 404 && !self.is_absent_object()
    }

    /// The error, for somebody who asked for objects of this kind and may wonder what to do now.
    #[must_use]
    pub fn explain<K: Resource<DynamicType = ()>>(&self) -> String {
        let (plural, group) = (K::plural(&()), K::group(&()));
        if self.is_unknown_resource() && group == GROUP {
            format!(
                "the CustomResourceDefinition {plural}.{group} is not installed: apply manifests/crds, or pipe `imagecache-agent crd` into `kubectl apply -f -`"
            )
        } else {
            self.to_string()
        }
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                Self::NoAnswer(root(&error))
            }
            kube::Error::SerdeError(_) => Self::Unreadable(error.to_string()),
            _ => Self::Unreadable(root(&error)),
        }
    }
}

/// The innermost cause: what the operating system or the TLS library said. The layers above add no fact.
fn root(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::{ImageCache, NodeImageCache};

    fn refused(status: &str) -> CallError {
        kube::Error::Api(serde_json::from_str(status).unwrap()).into()
    }

    #[test]
    fn an_absent_object_is_not_an_absent_resource() {
        let object = refused(
            r#"{"status":"Failure","message":"nodeimagecaches.imagecache.dev \"n1\" not found","reason":"NotFound",
                "details":{"name":"n1","group":"imagecache.dev","kind":"nodeimagecaches"},"code":404}"#,
        );
        assert!(object.is_absent_object() && !object.is_unknown_resource());
        let resource = refused(
            r#"{"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound",
                "details":{},"code":404}"#,
        );
        assert!(!resource.is_absent_object() && resource.is_unknown_resource());
        let text = refused(
            r#"{"message":"404 page not found","reason":"Failed to parse error data","code":404}"#,
        );
        assert!(text.is_unknown_resource());
        assert_eq!(text.to_string(), "404 page not found (404)");
        let explained = text.explain::<ImageCache>();
        assert!(
            explained.contains("imagecaches.imagecache.dev") && explained.contains("kubectl apply")
        );
        assert_eq!(object.explain::<NodeImageCache>(), object.to_string());
    }

    #[test]
    fn no_answer_is_told_by_its_innermost_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = CallError::from(kube::Error::ReadEvents(refused));
        assert!(matches!(&error, CallError::NoAnswer(cause) if cause == "connection refused"));
        assert_eq!(error.code(), 0);
    }
}
