//! The parts of a reference, each as a predicate: host, repository, tag, digest.
//!
//! The grammar is that of the Go module `distribution/reference`, which the kubelet, containerd and CRI-O all parse with.
//! No predicate goes over its text more than a few times, however long it is.

/// A host name, an IPv4 address or a bracketed IPv6 address, with or without a port.
pub(super) fn is_registry(text: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_host(text)
        || text
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_host(host) && is_port(port))
}

fn is_host(text: &str) -> bool {
    if let Some(address) = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        return !address.is_empty()
            && address
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    }
    let is_alphanumeric = |c: char| c.is_ascii_alphanumeric();
    text.split('.').all(|label| {
        label.starts_with(is_alphanumeric)
            && label.ends_with(is_alphanumeric)
            && label.chars().all(|c| is_alphanumeric(c) || c == '-')
    })
}

/// One part of a repository, between two slashes: lowercase letters and digits, joined by `.`, `_`, `__` or any number of `-`.
pub(super) fn is_component(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |joint: &str| matches!(joint, "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-');
    text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.split(is_alphanumeric).all(is_separator)
}

/// At most [`MAX_TAG`] letters, digits, `_`, `.` and `-`, the first of them neither `.` nor `-`.
pub(super) fn is_tag(text: &str) -> bool {
    text.len() <= MAX_TAG
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// The longest tag.
pub(super) const MAX_TAG: usize = 128;

/// The longest repository, counted without its registry.
pub(super) const MAX_REPOSITORY: usize = 255;

/// How many hexadecimal digits a digest of this algorithm has; `None` when runtimes do not know the algorithm.
pub(super) fn digest_length(algorithm: &str) -> Option<usize> {
    match algorithm {
        "sha256" => Some(64),
        "sha384" => Some(96),
        "sha512" => Some(128),
        _ => None,
    }
}

/// Whether these are hexadecimal digits as a digest has them: lowercase.
pub(super) fn is_lowercase_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_with_or_without_a_port() {
        for registry in [
            "test.com",
            "test.com:10304",
            "localhost",
            "a",
            "a.b",
            "a-b.com",
            "ab.c-om",
            "0101.com",
            "xn--n3h.com",
            "Asdf.com",
            "192.168.1.1:75050",
            "[2001:db8::1]",
            "[::]:5000",
            "[fc00:1:2:3:4:5:6:7]:5000",
        ] {
            assert!(is_registry(registry), "{registry}");
        }
        for other in [
            "",
            "test.com:http",
            "test.com:",
            ":5000",
            "-ab.com",
            "ab-.com",
            "ab.-com",
            "ab.com-",
            "ab..com",
            ".com",
            "a_b.com",
            "192.168.1.1:750050:",
            "[]",
            "[::1",
            "::1]",
            "[fe80::1%eth0]",
            "[2001:db8:3:4::192.0.2.33]",
            "[::1]5000",
            "[::1]:",
        ] {
            assert!(!is_registry(other), "{other}");
        }
    }

    #[test]
    fn a_component_is_joined_by_one_separator_at_a_time() {
        for component in [
            "a",
            "0",
            "a.b",
            "a_b",
            "a__b",
            "a-b",
            "a---b",
            "a.b_c__d--e",
        ] {
            assert!(is_component(component), "{component}");
        }
        for other in [
            "", "A", "-a", "a-", "_a", "a_", ".a", "a.", "a..b", "a___b", "a-_b", "a_.b", "a-.b",
            "a/b", "a b", "ä",
        ] {
            assert!(!is_component(other), "{other}");
        }
    }

    #[test]
    fn a_tag_has_1_to_128_characters() {
        for tag in ["a", "_", "0", "v1.2-rc_3", &"a".repeat(128)] {
            assert!(is_tag(tag), "{tag}");
        }
        for other in ["", ".a", "-a", "a b", "a:b", "a+b", "ä", &"a".repeat(129)] {
            assert!(!is_tag(other), "{other}");
        }
    }
}
