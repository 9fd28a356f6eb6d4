//! A runtime's error texts: made fit for a status, and made fit for rules.

use crate::api::message::cut;
use crate::image::Reference;

/// What containerd puts before the cause, and after it the reference in quotes. It repeats
/// what stands beside the message anyway.
const LEADS_WITH_REFERENCE: [&str; 3] = [
    "failed to pull and unpack image ",
    "failed to resolve reference ",
    "failed to parse image reference ",
];

/// The same without a reference.
const LEADS: [&str; 4] = [
    "failed to resolve image: ",
    "failed to copy: ",
    "httpReadSeeker: failed open: ",
    "failed to do request: ",
];

/// The text on one line, without secrets: URLs lose their query and their user, and what
/// containerd says about an `auth` that it cannot split loses the decoded secret.
pub(super) fn one_line(text: &str) -> String {
    let folded = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let mut line = String::with_capacity(text.len());
    for word in folded {
        if !line.is_empty() {
            line.push(' ');
        }
        push_without_secrets(&mut line, without_local_side(word));
    }
    if let Some(at) = line.find(DECODED_AUTH) {
        line.truncate(at + DECODED_AUTH.len());
    }
    cut(line.into()).into_owned()
}

/// The far side of `192.0.2.1:40312->192.0.2.9:443`: the near side has another port each time, and a cause that is the
/// same has to read the same.
fn without_local_side(word: &str) -> &str {
    let Some((near, far)) = word.split_once("->") else {
        return word;
    };
    let is_address = near
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if is_address { far } else { word }
}

/// containerd quotes the decoded user and password after this.
const DECODED_AUTH: &str = "invalid decoded auth";

/// The cause without the runtime's leads.
pub(super) fn cause(text: &str) -> &str {
    let mut rest = text.trim();
    loop {
        let without = LEADS
            .iter()
            .find_map(|lead| rest.strip_prefix(lead))
            .or_else(|| {
                LEADS_WITH_REFERENCE
                    .iter()
                    .find_map(|lead| after_quoted(rest.strip_prefix(lead)?))
            });
        match without {
            Some(shorter) if !shorter.is_empty() => rest = shorter,
            _ => return rest,
        }
    }
}

/// What follows `"…": `.
fn after_quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.strip_prefix('"')?.split_once('"')?;
    rest.strip_prefix(": ")
}

/// The text in lower case, without what a registry, a repository, a file or a host may be
/// called: what is left are the words of programs, on which rules can rest.
pub(super) fn words(text: &str, reference: &str) -> String {
    let (mut rest, quoted) = without_quoted(text);
    for name in names(reference, &quoted) {
        rest = rest.replace(&name, "");
    }
    let mut words = String::with_capacity(rest.len());
    let mut previous = "";
    for word in rest.split_whitespace() {
        // A URL, a path, or what follows "lookup" and "host" is a name. Its last colon stays:
        // it ends the clause.
        let is_name =
            word.contains("://") || word.starts_with('/') || matches!(previous, "lookup" | "host");
        let kept = if !is_name {
            word
        } else if word.ends_with(':') {
            ":"
        } else {
            ""
        };
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(kept);
        previous = word;
    }
    words.to_lowercase()
}

/// The text without what stands in double quotes, and the quoted pieces.
fn without_quoted(text: &str) -> (String, Vec<String>) {
    let (mut rest, mut quoted, mut piece) = (String::new(), Vec::new(), String::new());
    let (mut inside, mut escaped) = (false, false);
    for c in text.chars() {
        match (inside, c) {
            (true, '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (_, '"') if !escaped => {
                if inside {
                    quoted.push(std::mem::take(&mut piece));
                }
                inside = !inside;
            }
            (true, _) => piece.push(c),
            (false, _) => rest.push(c),
        }
        escaped = false;
    }
    // A quote without an end: the text was cut there.
    rest.push_str(&piece);
    (rest, quoted)
}

/// The names that the text may hold outside quotes, the longest first.
fn names(reference: &str, quoted: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for name in quoted.iter().map(String::as_str).chain([reference]) {
        // A name of one word may be a word of the cause: it is taken out in its full form only.
        if name.contains(['/', ':', '@']) && !name.contains(' ') {
            names.push(name.to_owned());
        }
        if let Ok(parsed) = Reference::parse(name) {
            names.extend([parsed.key(), parsed.name()].map(str::to_owned));
            names.push(format!(
                "{}:{}",
                parsed.name(),
                parsed.tag().unwrap_or("latest")
            ));
        }
    }
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names.dedup();
    names
}

/// A word may hold several URLs, as JSON without white space does. From the first one on, whatever may be a query goes, up to the next
/// quote: a query may hold all other marks.
fn push_without_secrets(line: &mut String, word: &str) {
    let Some((before, urls)) = word.split_once("://") else {
        line.push_str(word);
        return;
    };
    line.push_str(before);
    line.push_str("://");
    for piece in urls.split_inclusive(['"', '<', '>']) {
        let (piece, quote) = match piece.strip_suffix(['"', '<', '>']) {
            Some(shorter) => piece.split_at(shorter.len()),
            None => (piece, ""),
        };
        let (shown, colon) = match piece.split_once(['?', '#']) {
            None => (piece, ""),
            Some((shown, query)) => {
                let rest = query.trim_end_matches([':', ',', ';']);
                (shown, query.get(rest.len()..).unwrap_or_default())
            }
        };
        for (nth, url) in shown.split("://").enumerate() {
            if nth > 0 {
                line.push_str("://");
            }
            let host_end = url.find('/').unwrap_or(url.len());
            let (host, path) = url.split_at(host_end);
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            line.push_str(host);
            line.push_str(path);
        }
        line.push_str(colon);
        line.push_str(quote);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_is_one_line_without_queries_and_users() {
        for (text, line) in [
            (
                "403 Forbidden\ndenied: no\r\n\tbye",
                "403 Forbidden denied: no bye",
            ),
            (
                r#"Head "https://r.example/v2/x/manifests/1?ns=%5BREDACTED%5D": dial"#,
                r#"Head "https://r.example/v2/x/manifests/1": dial"#,
            ),
            (
                "to https://r.example/token?scope=a&account=b: 401",
                "to https://r.example/token: 401",
            ),
            (
                "read tcp 192.0.2.1:40312->192.0.2.9:443: connection reset",
                "read tcp 192.0.2.9:443: connection reset",
            ),
            (
                "GET http://me:secret@r.example?x, then",
                "GET http://r.example, then",
            ),
            (
                r#"{"a":"https://x/1","b":"https://me:pw@y/2?X-Amz-Signature=00ff","c":1}"#,
                r#"{"a":"https://x/1","b":"https://y/2","c":1}"#,
            ),
            (
                "https://x/1,https://me:pw@y/2?to=(https://z?c=d)&sig=00ff: EOF",
                "https://x/1,https://y/2: EOF",
            ),
            (
                r#"H: invalid decoded auth: "alice\x00s3cret""#,
                "H: invalid decoded auth",
            ),
        ] {
            assert_eq!(one_line(text), line);
        }
    }

    proptest! {
        /// Whatever is around them.
        #[test]
        fn no_query_and_no_user_of_any_url_stays(
            pieces in vec(
                prop_oneof![
                    Just("https://"), Just("http://me:hunter2@"), Just("://"), Just("?hunter2"), Just("&a=hunter2"), Just("#hunter2"),
                    Just("r.example"), Just("/v2/"), Just("\""), Just("'"), Just(")"), Just("<"), Just(","), Just(":"), Just("\\"),
                ],
                0..12,
            )
        ) {
            // Without a URL before it, it is neither.
            let word = format!("https://r.example/{}", pieces.concat());
            let line = one_line(&word);
            let shown = line.split(['"', '<', '>']);
            for url in shown.flat_map(|piece| piece.split("://")) {
                prop_assert!(!url.contains('?'), "{} -> {}", word, line);
                let host = url.split('/').next().unwrap_or_default();
                prop_assert!(!host.contains('@'), "{} -> {}", word, line);
            }
        }
    }

    #[test]
    fn the_leads_of_the_runtime_are_taken_off_and_the_cause_stays() {
        for (text, rest) in [
            (
                r#"failed to pull and unpack image "r/x:1": failed to resolve reference "r/x:1": r/x:1: not found"#,
                "r/x:1: not found",
            ),
            (
                r#"failed to pull and unpack image "r/x:1": failed to resolve image: r/x:1: not found"#,
                "r/x:1: not found",
            ),
            (
                r#"failed to pull and unpack image "r/x:1""#,
                r#"failed to pull and unpack image "r/x:1""#,
            ),
            (
                r#"failed to resolve reference "r/x:1": "#,
                r#"failed to resolve reference "r/x:1":"#,
            ),
            (
                "lease does not exist: not found",
                "lease does not exist: not found",
            ),
        ] {
            assert_eq!(cause(text), rest);
        }
    }

    #[test]
    fn names_are_not_words() {
        let text = r#"failed to pull and unpack image "docker.io/library/x509:429": failed to resolve image: docker.io/library/x509:429: GET "https://denied/no space": lookup no-such-host on 10.0.0.1:53: write /var/x509/y: EOF"#;
        assert_eq!(
            words(text, "x509:429"),
            "failed to pull and unpack image : failed to resolve image: : get : lookup  on 10.0.0.1:53: write  eof"
                .replace("write  eof", "write : eof"),
        );
        // The name alone stays: the cause may be about certificates.
        assert_eq!(words("tls: x509: bad", "x509:1"), "tls: x509: bad");
    }
}
