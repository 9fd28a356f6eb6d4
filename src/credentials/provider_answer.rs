//! What is said to an exec credential provider, and what it answers: `CredentialProviderRequest` and `CredentialProviderResponse`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::docker_config::Entry;
use super::{Credential, duration};

/// What a provider answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// For which images it is good.
    pub scope: Scope,
    /// For how long, if it says so.
    pub duration: Option<Duration>,
    /// The credentials. None is an answer too.
    pub entries: Vec<Entry>,
}

/// For which images an answer is good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// For the image that was asked for: registry and repository.
    Image,
    /// For every image of its registry.
    Registry,
    /// For every image.
    Global,
}

/// Why an answer is none. It never quotes the answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidAnswer {
    /// It is not JSON.
    #[error("its answer is not JSON: line {line}, column {column}")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// A field has a wrong type.
    #[error("its answer is not a CredentialProviderResponse: a field has a wrong type")]
    Shape,
    /// It is an object of another kind.
    #[error("its answer is not of the kind CredentialProviderResponse")]
    Kind,
    /// It is of another version than the request.
    #[error("its answer is not of the apiVersion {0}, in which it was asked")]
    Version(String),
    /// It does not say for which images it is good.
    #[error("its answer has a cacheKeyType that is none of Image, Registry, Global")]
    Scope,
    /// It does not say for how long it is good.
    #[error("its answer has a cacheDuration that is no length of time")]
    Duration,
}

/// What a provider is asked, on its standard input.
#[must_use]
pub fn request(api_version: &str, image: &str) -> Vec<u8> {
    let request = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": api_version,
        "image": image,
    });
    request.to_string().into_bytes()
}

/// Reads what a provider that was asked in this version wrote to its standard output.
pub fn read(bytes: &[u8], api_version: &str) -> Result<Answer, InvalidAnswer> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Response {
        kind: Option<String>,
        api_version: Option<String>,
        cache_key_type: Option<String>,
        cache_duration: Option<String>,
        auth: Option<BTreeMap<String, Option<Auth>>>,
    }
    #[derive(Default, Deserialize)]
    struct Auth {
        username: Option<String>,
        password: Option<String>,
    }
    // The parser's own message can quote a password.
    let response: Response = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            InvalidAnswer::Shape
        } else {
            InvalidAnswer::Json {
                line: error.line(),
                column: error.column(),
            }
        }
    })?;
    if response.kind.as_deref() != Some("CredentialProviderResponse") {
        return Err(InvalidAnswer::Kind);
    }
    if response.api_version.as_deref() != Some(api_version) {
        return Err(InvalidAnswer::Version(api_version.to_owned()));
    }
    let scope = match response.cache_key_type.as_deref() {
        Some("Image") => Scope::Image,
        Some("Registry") => Scope::Registry,
        Some("Global") => Scope::Global,
        _ => return Err(InvalidAnswer::Scope),
    };
    // One below zero is over before it begins.
    let read = |text: String| match text.strip_prefix('-') {
        Some(below_zero) => duration::read(below_zero).map(|_| Duration::ZERO),
        None => duration::read(&text),
    };
    let duration = response
        .cache_duration
        .map(|text| read(text).ok_or(InvalidAnswer::Duration))
        .transpose()?;
    let entry = |(key, auth): (String, Option<Auth>)| {
        let auth = auth.unwrap_or_default();
        let credential = Credential {
            username: auth.username.unwrap_or_default(),
            password: auth.password.unwrap_or_default(),
        };
        Entry { key, credential }
    };
    let entries = response.auth.into_iter().flatten().map(entry).collect();
    Ok(Answer {
        scope,
        duration,
        entries,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn answer(fields: &str) -> String {
        format!(r#"{{"kind":"CredentialProviderResponse","apiVersion":"{V1}",{fields}}}"#)
    }

    #[test]
    fn a_request_names_the_image() {
        let expected = format!(
            r#"{{"apiVersion":"{V1}","image":"r.io/team/app","kind":"CredentialProviderRequest"}}"#
        );
        assert_eq!(
            String::from_utf8(request(V1, "r.io/team/app")).unwrap(),
            expected
        );
    }

    #[test]
    fn an_answer_says_what_it_is_good_for() {
        for (fields, scope, seconds, entries) in [
            (r#""cacheKeyType":"Image""#, Scope::Image, None, 0),
            (
                r#""cacheKeyType":"Registry","cacheDuration":"6h","auth":{"r.io":{"username":"u","password":"p"},"q.io":null}"#,
                Scope::Registry,
                Some(6 * 3600),
                2,
            ),
            (
                r#""cacheKeyType":"Global","cacheDuration":null,"auth":null"#,
                Scope::Global,
                None,
                0,
            ),
            (
                r#""cacheKeyType":"Image","cacheDuration":"-1s","more":1"#,
                Scope::Image,
                Some(0),
                0,
            ),
        ] {
            let answer = read(answer(fields).as_bytes(), V1).unwrap();
            assert_eq!(answer.scope, scope, "{fields}");
            assert_eq!(
                answer.duration,
                seconds.map(Duration::from_secs),
                "{fields}"
            );
            assert_eq!(answer.entries.len(), entries, "{fields}");
        }
    }

    #[test]
    fn what_is_no_answer_is_named_and_never_quoted() {
        let version = InvalidAnswer::Version(V1.to_owned());
        for (text, expected) in [
            (
                "hunter2".to_owned(),
                InvalidAnswer::Json { line: 1, column: 1 },
            ),
            (String::new(), InvalidAnswer::Json { line: 1, column: 0 }),
            (r#"["hunter2"]"#.to_owned(), InvalidAnswer::Shape),
            (
                answer(r#""auth":{"r.io":{"password":["hunter2"]}}"#),
                InvalidAnswer::Shape,
            ),
            ("{}".to_owned(), InvalidAnswer::Kind),
            (
                answer(r#""cacheKeyType":"Image""#).replace("/v1\"", "/v1beta1\""),
                version,
            ),
            (answer(r#""cacheKeyType":"hunter2""#), InvalidAnswer::Scope),
            (answer(r#""auth":{}"#), InvalidAnswer::Scope),
            (
                answer(r#""cacheKeyType":"Image","cacheDuration":"hunter2""#),
                InvalidAnswer::Duration,
            ),
        ] {
            let error = read(text.as_bytes(), V1).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
            assert_eq!(error, expected, "{text}");
        }
    }
}
