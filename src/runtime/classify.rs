//! Why a pull failed, read from the runtime's text: the codes say nearly nothing.
//!
//! containerd answers UNKNOWN for credentials, names, TLS, server errors and full disks alike,
//! and `NOT_FOUND` also for a missing platform or a page of HTML.

use tonic::Code;

use super::text::{cause, one_line, words};
use crate::api::message::cut;
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
        (lead, rest) => cut(format!("{lead}: {rest}").into()).into_owned(),
    };
    (reason, message)
}

/// Whether the pull did not start because its lease is gone. This says nothing about the image.
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

/// One of these texts means this reason; the message for a person starts with the lead.
type Rule = (Reason, &'static str, &'static [&'static str]);

/// The first rule that applies wins: what says most about the cause goes first.
const RULES: &[Rule] = &[
    (
        InvalidReference,
        "the runtime does not take this name",
        &[
            "failed to parse image reference",
            "invalid reference format",
            "invalid repository name",
        ],
    ),
    (NoSpace, FULL, NO_SPACE),
    (
        NoMatchingPlatform,
        "the image has no variant for this node's platform",
        &[
            "no match for platform",
            // CRI-O's library.
            "no image found in image index for architecture",
            "no image found in manifest list for architecture",
        ],
    ),
    (
        Verification,
        "the runtime's image policy refuses the image",
        // The second is the CRI's own word for it, the third comes from CRI-O's library.
        &[
            "image verifier",
            "signaturevalidationfailed",
            "source image rejected",
        ],
    ),
    (
        Corrupt,
        "a page came instead of a manifest, from a login form or a proxy on the way",
        &[
            "unexpected media type text/",
            "(text/html) from remote",
            "(text/plain) from remote",
        ],
    ),
    (
        Corrupt,
        "a page came instead of a token, from a login form or a proxy on the way",
        &["unable to decode token response"],
    ),
    (
        Corrupt,
        "what came is not what the registry promised",
        &[
            "unexpected commit digest",
            "unexpected commit size",
            "failed size validation",
            "failed to read expected number of bytes",
            "short read: expected",
            "read past expected size",
            "unexpected media type",
            "(application/json) from remote",
            "in header not a valid digest",
        ],
    ),
    (
        Corrupt,
        "the image's layers are not what its configuration promises",
        &["wrong diff id", "mismatched image rootfs"],
    ),
    (
        RateLimited,
        RATE_LIMITED,
        &["toomanyrequests", "too many requests"],
    ),
    (
        RegistryUnavailable,
        "the registry's name is not known here",
        &[
            "no such host",
            "server misbehaving",
            "temporary failure in name resolution",
        ],
    ),
    (
        RegistryUnavailable,
        "the registry cannot be reached",
        &[
            "connection refused",
            "no route to host",
            "network is unreachable",
            "network is down",
            "connection reset by peer",
            "broken pipe",
            "server sent goaway",
            "stream error: ",
            "server closed idle connection",
            "proxyconnect",
            // The CRI's own word for it.
            "registryunavailable",
        ],
    ),
    (
        RegistryUnavailable,
        "the registry does not answer",
        &[
            "i/o timeout",
            "tls handshake timeout",
            "awaiting response headers",
            "awaiting headers",
            "context deadline exceeded",
            "connection timed out",
        ],
    ),
    (
        Tls,
        "the registry speaks http where the runtime expects https (its hosts.toml can say so)",
        &[
            "server gave http response to https client",
            "first record does not look like a tls handshake",
        ],
    ),
    (
        Tls,
        "the registry's certificate is not trusted by the runtime (its hosts.toml can name a ca)",
        &["signed by unknown authority", "certificate is not trusted"],
    ),
    (
        Tls,
        "the registry's certificate is not valid for this name or this time",
        &["x509:"],
    ),
    (
        Tls,
        "the registry and the runtime do not agree on TLS",
        &["tls:"],
    ),
    (
        Unauthorized,
        "the credentials cannot be read",
        &["invalid decoded auth", "illegal base64 data"],
    ),
    (
        Unauthorized,
        "the registry wants other credentials, or has no such repository",
        &[
            "authorization failed",
            "no basic auth credentials",
            "insufficient_scope",
            "failed to authorize",
            "pull access denied",
            "access to the resource is denied",
            "authentication required",
            "unauthorized:",
            "denied:",
        ],
    ),
    (
        RegistryUnavailable,
        "the registry closed the connection",
        &["unexpected eof"],
    ),
    (Stalled, STALLED, &["context canceled"]),
    (
        NotFound,
        "the registry lists a part of the image that it does not have",
        &["could not fetch content"],
    ),
    (NotFound, NOT_FOUND, &["manifest unknown", "name unknown"]),
];

/// What unpacking a layer says. The layer is there and has the digest that was promised, so only a text that is about its bytes makes
/// it [`Corrupt`]: what the node cannot do, another download does not mend.
const UNPACKING: &[Rule] = &[
    (NoSpace, FULL, NO_SPACE),
    (
        Corrupt,
        "a layer is not what it should be and cannot be unpacked",
        &[
            "unexpected eof",
            "gzip: invalid",
            "flate: corrupt input",
            "unpigz: ",
            "archive/tar: ",
            // zstd.
            "magic number mismatch",
            "invalid input: ",
            "corrupt input",
            "crc check failed",
            "wrong diff id",
            "unexpected commit digest",
            "unexpected commit size",
        ],
    ),
    (Stalled, STALLED, &["context canceled"]),
];

/// Stands before what unpacking says.
const UNPACK: &str = "failed to extract layer";

const FULL: &str = "the disk is full";
const NO_SPACE: &[&str] = &["no space left on device", "disk quota exceeded"];
const CANNOT_UNPACK: &str = "this node cannot unpack a layer";
const RATE_LIMITED: &str = "the registry wants fewer requests from here";
const STALLED: &str = "the runtime cancelled the pull because it made no progress";
const NOT_FOUND: &str = "the registry has no such repository, tag or digest";

/// `NOT_FOUND` of the runtime's own stores, and of a manifest that is too large for it: the
/// registry did not say it.
const NOT_THE_REGISTRYS: &[&str] = &["snapshot", "content digest", "byte manifest for"];

fn rule(code: Code, words: &str, message: &str) -> (Reason, &'static str) {
    // What follows a status are the registry's own words: its disk may be full, too.
    if let Some(status) = http_status(words) {
        return by_status(status, words, message);
    }
    if let Some((_, unpacking)) = words.split_once(UNPACK) {
        return first(UNPACKING, unpacking).unwrap_or((PullFailed, CANNOT_UNPACK));
    }
    // The node's own files deny something, and no registry does.
    let words = words.replace("permission denied", "");
    if let Some(found) = first(RULES, &words) {
        return found;
    }
    match code {
        Code::Cancelled => (Stalled, STALLED),
        Code::DeadlineExceeded => (RegistryUnavailable, "the registry does not answer"),
        Code::NotFound if !has(&words, NOT_THE_REGISTRYS) => (NotFound, NOT_FOUND),
        _ if words.ends_with(": eof") => {
            (RegistryUnavailable, "the registry closed the connection")
        }
        _ => (PullFailed, ""),
    }
}

fn first(rules: &[Rule], words: &str) -> Option<(Reason, &'static str)> {
    let mut rules = rules.iter();
    let (reason, lead, _) = rules.find(|(_, _, texts)| has(words, texts))?;
    Some((*reason, lead))
}

fn has(text: &str, any: &[&str]) -> bool {
    any.iter().any(|part| text.contains(part))
}

/// What an answer with this HTTP status means. A token server's come with the same texts as the
/// registry's.
fn by_status(status: u16, words: &str, message: &str) -> (Reason, &'static str) {
    let authorizing = words.contains("failed to authorize");
    match status {
        429 => (RateLimited, RATE_LIMITED),
        401 | 403 => (
            Unauthorized,
            "the registry refuses: it wants credentials, or other ones",
        ),
        400 if authorizing => (Unauthorized, "the registry refuses the credentials"),
        // Go's TLS server says so to whoever speaks http to it.
        400 if !message.contains("https://") => (
            Tls,
            "the registry does not take plain http, as if its port were for https (see the runtime's hosts.toml)",
        ),
        404 if !authorizing => (NotFound, NOT_FOUND),
        // 407 is the proxy's, on the way to the registry.
        407 | 408 | 500..=599 => (RegistryUnavailable, "the registry does not serve now"),
        _ => (PullFailed, ""),
    }
}

/// The HTTP status that a text is about, as in `unexpected status from HEAD request to URL:
/// 503 Service Unavailable`.
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

#[cfg(test)]
mod tests;
