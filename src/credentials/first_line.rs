//! The first line of what a program says, with everything taken out that could be a secret.
//!
//! What stays is what looks like prose: words, small numbers, names of hosts and files. A program may write anything into its
//! standard error, so a word has to look harmless to stay, not suspicious to go.

use std::iter::Peekable;

use crate::api::condition::{cut, visible};

/// The longest line, in bytes.
const MAX_LINE: usize = 200;

/// The longest part of a word, in letters: names of errors, run together, are long.
const MAX_LETTERS: usize = 32;

/// The longest part of a word that mixes letters and digits, such as `x509`.
const MAX_MIXED: usize = 4;

/// The longest whole number that stays: a status or an exit code. Longer ones are IDs and times, which differ each time.
const MAX_DIGITS: usize = 3;

/// A text that is shorter is no secret, and stands in many words.
const MIN_SECRET: usize = 4;

/// What stands for everything that was taken out.
const HIDDEN: &str = "…";

/// What follows one of these may be a secret, to the end of the line: nothing tells where it ends, or how many words are before it.
const LABELS: [&str; 14] = [
    "apikey",
    "auth",
    "authorization",
    "basic",
    "bearer",
    "key",
    "login",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "token",
];

/// Labels from this length on also count at the end of a longer word, as in `clientSecret`: shorter ones end many words.
const LONG_LABEL: usize = 5;

/// So many words joined by hyphens, as in `correct-horse-battery`, are how passwords are made.
const JOINED: usize = 3;

/// The first line that is not empty, without these texts and without anything that could be a secret.
#[must_use]
pub fn first_line<'a>(bytes: &[u8], secrets: impl Iterator<Item = &'a str>) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    let line = secrets
        .filter(|secret| secret.len() >= MIN_SECRET)
        .fold(line.to_owned(), |line, secret| line.replace(secret, HIDDEN));
    let mut words = line.split_whitespace().peekable();
    skip_header(&mut words);
    let (mut kept, mut hide) = (Vec::<String>::new(), false);
    for word in words {
        let shown = if hide { HIDDEN.to_owned() } else { shown(word) };
        hide |= is_label(word);
        if shown != HIDDEN || kept.last().is_none_or(|last| !last.ends_with(HIDDEN)) {
            kept.push(shown);
        }
    }
    let said = kept.join(" ");
    Some(cut(&visible(&said), MAX_LINE).to_owned())
}

/// The header of Kubernetes' own log lines, as in `E1201 04:00:01.123456   57 main.go:12]`: it differs each time.
fn skip_header<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) {
    let is_header = |word: &&str| {
        let mut chars = word.chars();
        word.len() == 5
            && chars.next().is_some_and(|level| "IWEF".contains(level))
            && chars.all(|c| c.is_ascii_digit())
    };
    if words.next_if(is_header).is_some() {
        while words.next_if(|word| !word.ends_with(']')).is_some() {}
        words.next();
    }
}

/// Whether a word names a secret, as in `password`, `password:` and `AWS_SECRET_KEY=hunter`.
fn is_label(word: &str) -> bool {
    let name = word.split([':', '=']).next().unwrap_or(word);
    let name = name.trim_matches(|c: char| !c.is_alphanumeric());
    let name = name.rsplit(['-', '_', '.']).next().unwrap_or(name);
    let name = name.to_ascii_lowercase();
    let singular = name.strip_suffix('s').unwrap_or(&name);
    LABELS.iter().any(|label| {
        [name.as_str(), singular].contains(label)
            || label.len() >= LONG_LABEL && singular.ends_with(label)
    })
}

/// The word, or as much of it as is harmless.
fn shown(word: &str) -> String {
    if let Some((scheme, rest)) = word.split_once("://") {
        // No user, no path, no query.
        let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let host = host.rsplit('@').next().unwrap_or(host);
        return if is_harmless(scheme) && is_harmless(host) {
            format!("{scheme}://{host}{HIDDEN}")
        } else {
            HIDDEN.to_owned()
        };
    }
    let core = word.trim_end_matches([':', '=', ',', ';', '.', ')', ']', '"', '\'']);
    if is_harmless(core) {
        return word.to_owned();
    }
    // The name stays, what it is given goes.
    match core.split_once([':', '=']) {
        Some((name, _)) if is_harmless(name) && name.contains(char::is_alphabetic) => {
            let mark = core.get(name.len()..=name.len()).unwrap_or_default();
            format!("{name}{mark}{HIDDEN}")
        }
        _ => HIDDEN.to_owned(),
    }
}

/// Whether a word is prose, a small number, a host with or without a port, or the name of a file.
fn is_harmless(word: &str) -> bool {
    let (word, port) = match word.rsplit_once(':') {
        Some((word, port)) => (word, port),
        None => (word, ""),
    };
    let has_port = port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
    let is_number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    // A time of day begins like a number with a port.
    if !has_port || is_number && (!port.is_empty() || word.len() > MAX_DIGITS) {
        return false;
    }
    let is_date = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains(['/', '-']);
    !is_date
        && !is_joined(word)
        && word
            .split(['.', '/', '-', '_', '(', '[', '"', '\''])
            .all(is_harmless_part)
}

/// Whether words are joined by hyphens outside of a host's name and of a path from the root.
fn is_joined(word: &str) -> bool {
    !word.starts_with('/')
        && word
            .split(['/', '(', '[', '"', '\''])
            .any(|part| !part.contains('.') && part.split('-').count() >= JOINED)
}

fn is_harmless_part(part: &str) -> bool {
    let count = part.chars().count();
    if part.chars().all(char::is_alphabetic) {
        count <= MAX_LETTERS
    } else if part.bytes().all(|b| b.is_ascii_digit()) {
        count <= MAX_DIGITS
    } else {
        count <= MAX_MIXED && part.chars().all(char::is_alphanumeric)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn said(text: &str) -> String {
        first_line(text.as_bytes(), ["env-value"].into_iter()).unwrap_or_default()
    }

    #[test]
    fn what_helps_stays() {
        for text in [
            "no credentials found",
            "error: NoCredentialProviders: no valid providers in chain",
            "dial tcp 169.254.169.254:80: i/o timeout",
            "open /etc/azure/azure.json: no such file or directory",
            "x509: certificate signed by unknown authority",
            "lookup api.ecr.us-east-1.amazonaws.com: no such host",
            "unexpected status 403",
            "error while loading shared libraries: libssl.so.3: cannot open shared object file",
            "connect: Connection refused (os error 111)",
            "open /etc/kubernetes/image-credential-provider/config.json: no such file or directory",
            "a well-known address",
        ] {
            assert_eq!(said(text), text);
        }
        assert_eq!(said("\n  \n first\nsecond"), "first");
        assert_eq!(said(""), "");
    }

    #[test]
    fn what_could_be_a_secret_goes() {
        const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123";
        for (text, expected) in [
            ("password=hunter2", "password=…"),
            ("password=hunter", "password=…"),
            ("password: correct horse battery", "password: …"),
            ("the password is correcthorse here", "the password …"),
            ("password for alice is hunter", "password …"),
            ("password=correct horse battery", "password=…"),
            ("clientSecret hunter for alice", "clientSecret …"),
            ("bad passwords: correct horse", "bad passwords: …"),
            ("denied for correct-horse-battery", "denied for …"),
            ("denied for alice/correct-horse-battery", "denied for …"),
            ("denied (correct-horse-battery)", "denied …"),
            ("Authorization: Basic aHVudGVyMg==", "Authorization: …"),
            ("bad token hunter for r.io", "bad token …"),
            ("AWS_SECRET_KEY=hunter", "AWS_SECRET_KEY=…"),
            ("client_secret: a b c d", "client_secret: …"),
            ("denied for alice:hunter", "denied for alice:…"),
            ("denied: hunter2-correct-horse", "denied: …"),
            (&format!("bad {JWT}"), "bad …"),
            (&format!("token={JWT}"), "token=…"),
            ("key AKIAIOSFODNN7EXAMPLE refused", "key …"),
            (
                "get https://alice:hunter@r.io/v2/?sig=abc: refused",
                "get https://r.io… refused",
            ),
            ("{\"password\":\"hunter\"}", "…"),
            ("dTpodW50ZXIy", "…"),
            ("dTpodW5/ZXIy+a==", "…"),
            (
                "id 3f2504e0-4f89-11d3-9a0c-0305e82c3301 failed",
                "id … failed",
            ),
            ("with env-value inside", "with … inside"),
            ("\u{1b}[31mred\u{7}", "…"),
        ] {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    #[test]
    fn what_differs_each_time_goes_so_that_a_repetition_has_the_same_words() {
        for (text, expected) in [
            ("2026/12/01 04:00:01 cannot log in", "… cannot log in"),
            ("2026-12-01T04:00:01.5Z cannot", "… cannot"),
            (
                "F1201 04:00:01.123456      57 main.go:55] cannot run",
                "cannot run",
            ),
            ("pid 4242 failed", "pid … failed"),
        ] {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    #[test]
    fn a_line_is_short_and_one() {
        let long = "word ".repeat(100);
        let said = said(&long);
        assert!(said.len() <= MAX_LINE, "{}", said.len());
    }
}
