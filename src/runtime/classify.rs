//! Why a pull failed, read from the runtime's text: the codes say nearly nothing.
//!
//! containerd answers UNKNOWN for credentials, names, TLS, server errors and full disks alike,
//! and `NOT_FOUND` also for a missing platform or a page of HTML.

use tonic::Code;

use super::text::{cause, cut, one_line, words};
use crate::api::reason::Reason::{
    self, Corrupt, InvalidReference, NoMatchingPlatform, NoSpace, NotFound, PullFailed,
    RateLimited, RegistryUnavailable, Stalled, Tls, Unauthorized, Verification,
};

/// The reason of a failed pull of `reference`, and a message for a person.
///
/// `reference` is needed because a repository may be named `x509` or `denied`, and the
/// runtime's text repeats it.
#[must_use]
pub fn classify(code: Code, message: &str, reference: &str) -> (Reason, String) {
    let (reason, lead) = rule(code, &words(message, reference), message);
    let rest = one_line(cause(message));
    let message = match (lead, rest.as_str()) {
        ("", "") => format!("the runtime gave no cause (code {code:?})"),
        ("", rest) => rest.to_owned(),
        (lead, "") => lead.to_owned(),
        (lead, rest) => cut(&format!("{lead}: {rest}")),
    };
    (reason, message)
}

/// Whether the pull did not start because its lease is gone. This says nothing about the image.
#[must_use]
pub(super) fn says_no_lease(code: Code, message: &str) -> bool {
    code == Code::NotFound && message.contains("lease does not exist")
}

/// Whether a server's UNAVAILABLE is about a registry and not about the runtime itself.
pub(super) fn is_about_a_pull(message: &str) -> bool {
    has(
        message,
        &[
            "failed to pull",
            "failed to resolve",
            "failed to copy",
            "Fetcher.",
            "httpReadSeeker",
        ],
    )
}

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The first rule that applies wins: what says most about the cause goes first.
fn rule(code: Code, words: &str, message: &str) -> (Reason, &'static str) {
    let says = |any: &[&str]| has(words, any);

    if says(&[
        "failed to parse image reference",
        "invalid reference format",
        "invalid repository name",
    ]) || says(&["must be lowercase", "must not be more than 255 characters"])
    {
        return (InvalidReference, "the runtime does not take this name");
    }
    if says(&["no space left on device", "disk quota exceeded"]) {
        return (NoSpace, "the disk is full");
    }
    if says(&[
        "no match for platform",
        "no image found in image index for architecture",
    ]) || says(&[
        "no image found in manifest list for architecture",
        "no unpack platforms",
    ]) {
        return (
            NoMatchingPlatform,
            "the image has no variant for this node's platform",
        );
    }
    if says(&[
        "image verifier",
        "signaturevalidationfailed",
        "source image rejected",
    ]) {
        return (Verification, "the runtime's image policy refused the image");
    }
    if let Some(lead) = corrupt(words) {
        return (Corrupt, lead);
    }
    if let Some(status) = http_status(words) {
        return by_status(status, words, message);
    }
    if says(&["toomanyrequests", "too many requests"]) {
        return (RateLimited, "the registry wants fewer requests from here");
    }
    if says(UNREACHABLE) || words.ends_with(": eof") || code == Code::DeadlineExceeded {
        return (RegistryUnavailable, "the registry cannot be reached");
    }
    if let Some(lead) = tls(words) {
        return (Tls, lead);
    }
    if says(&["invalid decoded auth", "illegal base64 data"]) {
        return (Unauthorized, "the credentials cannot be read");
    }
    if says(REFUSED) {
        return (
            Unauthorized,
            "the registry wants other credentials, or has no such repository",
        );
    }
    // After the causes that a cancelled pull may name too.
    if code == Code::Cancelled || says(&["context canceled"]) {
        return (
            Stalled,
            "the runtime cancelled the pull because it made no progress",
        );
    }
    if says(&[
        "could not fetch content descriptor",
        "could not fetch content ",
    ]) && says(&["not found"])
    {
        return (
            NotFound,
            "the registry lists a part of the image and does not have it",
        );
    }
    if says(&["manifest unknown", "name unknown"])
        || (code == Code::NotFound && !says(NOT_THE_REGISTRYS))
    {
        return (
            NotFound,
            "the registry has no such repository, tag or digest",
        );
    }
    (PullFailed, "")
}

/// Go's texts for a registry that is not there or does not answer.
const UNREACHABLE: &[&str] = &[
    "connection refused",
    "no such host",
    "server misbehaving",
    "temporary failure in name resolution",
    "i/o timeout",
    "tls handshake timeout",
    "awaiting response headers",
    "awaiting headers",
    "context deadline exceeded",
    "no route to host",
    "network is unreachable",
    "network is down",
    "connection timed out",
    "connection reset by peer",
    "broken pipe",
    "server sent goaway",
    "stream error: ",
    "server closed idle connection",
    "proxyconnect",
    "registryunavailable",
];

/// Texts of a registry, or of the runtime about it, that ask for other credentials.
const REFUSED: &[&str] = &[
    "authorization failed",
    "no basic auth credentials",
    "insufficient_scope",
    "failed to authorize",
    "pull access denied",
    "access to the resource is denied",
    "authentication required",
    "unauthorized:",
    "denied:",
    "missing username or secret",
];

/// `NOT_FOUND` of the runtime's own stores: the registry did not say it.
const NOT_THE_REGISTRYS: &[&str] = &[
    "snapshot",
    "content digest",
    "lease",
    "unpack image",
    "byte manifest for",
    "unexpected media type",
];

fn corrupt(words: &str) -> Option<&'static str> {
    if words.contains("unexpected media type text/") {
        return Some(
            "a page of text came instead of a manifest (from a login page, or from a proxy)",
        );
    }
    if has(
        words,
        &[
            "unexpected commit digest",
            "unexpected commit size",
            "failed size validation",
            "wrong diff id",
        ],
    ) {
        return Some("what came is not what its digest promises");
    }
    if has(
        words,
        &[
            "failed to read expected number of bytes",
            "short read: expected",
            "read past expected size",
        ],
    ) {
        return Some("what came does not have the size that the manifest promises");
    }
    has(
        words,
        &[
            "gzip: invalid",
            "archive/tar: invalid",
            "mismatched image rootfs",
            "in header not a valid digest",
        ],
    )
    .then_some("what came cannot be unpacked")
}

fn tls(words: &str) -> Option<&'static str> {
    if words.contains("server gave http response to https client") {
        return Some(
            "the registry speaks http and the runtime https (the runtime's hosts.toml can say so)",
        );
    }
    if has(
        words,
        &[
            "unknown authority",
            "certificate is not trusted",
            "self-signed",
            "self signed",
        ],
    ) {
        return Some(
            "the registry's certificate is not trusted (the runtime's hosts.toml can name a ca)",
        );
    }
    if words.contains("x509:") {
        return Some("the registry's certificate is not valid");
    }
    has(words, &["tls:", "remote error: tls"])
        .then_some("the registry and the runtime do not agree on TLS")
}

/// What an answer of the registry with this HTTP status means.
fn by_status(status: u16, words: &str, message: &str) -> (Reason, &'static str) {
    // The token server's answers come with the same texts as the registry's.
    let authorizing = words.contains("failed to authorize");
    match status {
        429 => (RateLimited, "the registry wants fewer requests from here"),
        401 | 403 => (
            Unauthorized,
            "the registry refuses the credentials, or wants some",
        ),
        400 if authorizing => (Unauthorized, "the registry refuses the credentials"),
        // A Go server says so to whoever speaks http to its TLS port.
        400 if !message.contains("https://") => (
            Tls,
            "the registry does not understand plain http (the runtime's hosts.toml may say http where https is spoken)",
        ),
        404 if !authorizing => (
            NotFound,
            "the registry has no such repository, tag or digest",
        ),
        // Too many redirects and the like are the registry's too; 407 is the way's.
        407 | 408 | 500..=599 => (RegistryUnavailable, "the registry does not serve now"),
        _ => (PullFailed, ""),
    }
}

/// The HTTP status that a text is about, as in `unexpected status from HEAD request to URL:
/// 503 Service Unavailable`. What follows it are the registry's own words.
fn http_status(words: &str) -> Option<u16> {
    let (_, after) = words.split_once("status")?;
    let mut previous = "status";
    for word in after.split_whitespace() {
        let starts_clause =
            previous.ends_with(':') || matches!(previous, "status" | "code" | "registry");
        if word.len() == 3
            && starts_clause
            && let Ok(status @ 400..=599) = word.parse()
        {
            return Some(status);
        }
        previous = word;
    }
    None
}
