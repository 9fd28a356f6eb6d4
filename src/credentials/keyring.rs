//! Which credentials belong to an image, by the kubelet's rules: most specific registry first, patterns and ports, and the special
//! names of Docker Hub.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;

use super::docker_config::Entry;
use super::{Credential, glob};

/// Where credentials for Docker Hub stand, whatever an image calls it.
const DOCKER_HUB: &str = "index.docker.io";

/// A credential, and who gave it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Named {
    /// As in `Secret team/registry`.
    pub source: Arc<str>,
    /// The credential.
    pub credential: Credential,
}

/// Credentials by the registries that they are for.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// Longer and more specific names first; those that begin with a `*` last.
    by_registry: BTreeMap<Reverse<String>, Vec<Named>>,
}

impl Keyring {
    /// Adds what a source has. An entry whose key is no address is passed over.
    pub fn add(&mut self, source: &Arc<str>, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            if let Some(registry) = registry(&entry.key) {
                let named = Named {
                    source: Arc::clone(source),
                    credential: entry.credential,
                };
                self.by_registry
                    .entry(Reverse(registry))
                    .or_default()
                    .push(named);
            }
        }
    }

    /// The credentials for an image, named by registry and repository in full, in the order in which to try them.
    #[must_use]
    pub fn lookup(&self, image: &str) -> Vec<Named> {
        let found: Vec<Named> = self
            .by_registry
            .iter()
            .filter(|(registry, _)| is_for(&registry.0, image))
            .flat_map(|(_, named)| named.iter().cloned())
            .collect();
        if found.is_empty() && is_on_docker_hub(image) {
            let hub = self.by_registry.get(&Reverse(DOCKER_HUB.to_owned()));
            return hub.cloned().unwrap_or_default();
        }
        found
    }
}

/// The key as it is compared: without its scheme, and without the version that the paths of old registries began with.
fn registry(key: &str) -> Option<String> {
    let address = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    let address = Address::parse(address)?;
    let path = address.path.as_str();
    let path = match path.strip_prefix("/v1/").or(path.strip_prefix("/v2/")) {
        Some(_) => path.get(3..).unwrap_or_default(),
        None => path,
    };
    let path = if path == "/" { "" } else { path };
    Some(format!("{}{path}", address.host))
}

/// Whether this can be a registry's name, with patterns in its host.
pub(super) fn is_pattern(registry: &str) -> bool {
    Address::parse(registry).is_some()
}

/// Whether a registry's name, which can hold patterns in its host, covers the image.
pub(super) fn is_for(registry: &str, image: &str) -> bool {
    let (Some(registry), Some(image)) = (Address::parse(registry), Address::parse(image)) else {
        return false;
    };
    let ((pattern, port), (host, image_port)) = (registry.parts(), image.parts());
    port == image_port
        && pattern.split('.').count() == host.split('.').count()
        && image.path.starts_with(&registry.path)
        && pattern
            .split('.')
            .zip(host.split('.'))
            .all(|(pattern, part)| glob::matches(pattern, part))
}

/// The kubelet takes any first part without a dot or a colon for a repository there: `localhost/x` too.
fn is_on_docker_hub(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("", _)) => false,
        Some(("docker.io" | DOCKER_HUB, _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

/// Host and path of an address without a scheme, as Go's `url.Parse` takes it apart.
struct Address {
    /// With its port.
    host: String,
    path: String,
}

impl Address {
    /// `None` for what Go refuses.
    fn parse(text: &str) -> Option<Self> {
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        if text.contains(|c: char| c.is_ascii_control()) {
            return None;
        }
        let text = text.split('?').next()?;
        let (authority, path) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let path = decoded(path)?;
        let is_valid = is_user(user) && is_host(host) && unescaped(fragment).is_some();
        is_valid.then(|| Self {
            host: host.to_owned(),
            path,
        })
    }

    /// The host, and its port or nothing.
    fn parts(&self) -> (&str, &str) {
        let host = self.host.as_str();
        let found = match host.strip_prefix('[') {
            Some(rest) => rest
                .split_once(']')
                .and_then(|(host, port)| Some((host, port.strip_prefix(':')?))),
            None => host.split_once(':').filter(|(_, port)| !port.contains(':')),
        };
        found.unwrap_or((host, ""))
    }
}

/// What may stand before an `@`.
fn is_user(user: &str) -> bool {
    let has_a_place = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    user.chars().all(has_a_place) && unescaped(user).is_some()
}

fn is_host(host: &str) -> bool {
    let has_a_place = |c: char| {
        c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]<>\"".contains(c) || !c.is_ascii()
    };
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.rsplit_once(']') {
            Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => port,
            _ => return false,
        },
        None => host.rfind(':').and_then(|at| host.get(at..)).unwrap_or(""),
    };
    let is_port = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_digit()),
        None => port.is_empty(),
    };
    is_port && host.chars().all(has_a_place)
}

/// The path with its `%` escapes undone.
fn decoded(path: &str) -> Option<String> {
    if !path.contains('%') {
        return Some(path.to_owned());
    }
    String::from_utf8(unescaped(path)?).ok()
}

/// `None` where a `%` is not followed by two digits.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            decoded.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, user: &str) -> Entry {
        Entry {
            key: key.to_owned(),
            credential: Credential {
                username: user.to_owned(),
                password: String::new(),
            },
        }
    }

    /// The users that a keyring with these keys gives for the image; each user is called like its key.
    fn users(keys: &[&str], image: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        keyring.add(&"test".into(), keys.iter().map(|key| entry(key, key)));
        let found = keyring.lookup(image);
        found
            .into_iter()
            .map(|named| named.credential.username)
            .collect()
    }

    #[test]
    fn a_key_covers_the_images_that_the_kubelet_says() {
        for (key, image, expected) in [
            ("r.io", "r.io/app", true),
            ("r.io", "r.io:443/app", false),
            ("r.io:443", "r.io/app", false),
            ("r.io:5000", "r.io:5000/app", true),
            ("r.io/foo", "r.io/foobar", true),
            ("r.io/foo/", "r.io/foobar", false),
            ("r.io/team/", "r.io/team/app", true),
            ("r.io/team", "r.io/other/app", false),
            ("https://r.io", "r.io/app", true),
            ("http://r.io/v2/", "r.io/app", true),
            ("https://r.io/v1/team", "r.io/team/app", true),
            ("https://r.io/v1", "r.io/app", false),
            ("ftp://r.io", "r.io/app", false),
            ("*.kubernetes.io", "prefix.kubernetes.io/a", true),
            ("*.kubernetes.io", "kubernetes.io/a", false),
            ("prefix.*.io", "prefix.kubernetes.io/a", true),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io/a", true),
            ("*kubernetes.io", "kubernetes.io/a", true),
            ("*kubernetes.io", "a.kubernetes.io/a", false),
            ("*.*.kubernetes.io", "prefix.kubernetes.io/a", false),
            ("k*.io", "quay.io/a", false),
            (
                "*.kubernetes.io:1234/blah",
                "prefix.kubernetes.io:1111/blah",
                false,
            ),
            (
                "prefix.*.io/foo",
                "prefix.kubernetes.io:1111/foo/bar",
                false,
            ),
            ("prefix.*.io/foo", "prefix.kubernetes.io/foo/bar", true),
            ("r[.io", "r[.io/a", false),
            ("r.io/*", "r.io/app", false),
            ("user:secret@r.io", "r.io/app", true),
            ("u ser@r.io", "r.io/app", false),
            ("%@r.io", "r.io/app", false),
            ("r.io#%", "r.io/app", false),
            ("[*]:5000", "[::1]:5000/app", false),
            ("r.io/a%2Fb", "r.io/a/b/c", true),
            ("[::1]:5000", "[::1]:5000/app", true),
            ("r.io:x", "r.io:x/app", false),
            ("r io", "r io/app", false),
            ("127.0.0.1:5000", "127.0.0.1:5000/app", true),
            ("docker.io", "docker.io/library/busybox", true),
            (
                "https://index.docker.io/v1/",
                "docker.io/library/busybox",
                true,
            ),
            ("https://index.docker.io/v1/", "index.docker.io/x", true),
            (
                "https://index.docker.io/v1",
                "docker.io/library/busybox",
                false,
            ),
            ("registry-1.docker.io", "docker.io/library/busybox", false),
            ("https://index.docker.io/v1/", "localhost/app", true),
            ("https://index.docker.io/v1/", "r.io/app", false),
        ] {
            assert_eq!(users(&[key], image).len() == 1, expected, "{key} ~ {image}");
        }
    }

    #[test]
    fn the_most_specific_comes_first_and_patterns_come_last() {
        assert_eq!(
            users(
                &["*.io", "quay.io", "quay.io/coreos", "r.io"],
                "quay.io/coreos/etcd"
            ),
            ["quay.io/coreos", "quay.io", "*.io"]
        );
        assert_eq!(
            users(
                &["index.docker.io", "docker.io"],
                "docker.io/library/busybox"
            ),
            ["docker.io"],
            "the special name is asked only when nothing else is found"
        );
    }

    #[test]
    fn within_one_registry_the_sources_keep_their_order() {
        let mut keyring = Keyring::default();
        keyring.add(
            &"first".into(),
            [entry("r.io", "a"), entry("r.io/team", "b")],
        );
        keyring.add(&"second".into(), [entry("https://r.io/", "c")]);
        let found = keyring.lookup("r.io/team/app");
        let order: Vec<_> = found.iter().map(|named| &*named.source).collect();
        assert_eq!(order, ["first", "first", "second"]);
        assert_eq!(
            found
                .first()
                .map(|named| named.credential.username.as_str()),
            Some("b")
        );
    }
}
