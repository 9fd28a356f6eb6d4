//! An image reference: the text that a pod would name an image with, and the image that this means.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::grammar::{
    MAX_REPOSITORY, MAX_TAG, digest_length, is_component, is_lowercase_hex, is_registry, is_tag,
};

/// The registry that is meant when a reference names none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The former name of the default registry.
const FORMER_DEFAULT_REGISTRY: &str = "index.docker.io";

/// The tag that is meant when a reference has neither tag nor digest.
const DEFAULT_TAG: &str = "latest";

/// A reference that parsed.
///
/// Two spellings of one image, `busybox` and `docker.io/library/busybox:latest`, are equal: they have the same [`key`](Self::key).
///
/// Clones share the text: a node can have tens of thousands of them.
#[derive(Clone, Debug)]
pub struct Reference {
    as_written: Arc<str>,
    key: Arc<str>,
}

/// Why a text is not an image reference.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidReference {
    /// There is no text.
    #[error("an image reference cannot be empty")]
    Empty,
    /// A character that has no place in any reference: white space, quotes, anything that is not ASCII.
    #[error("{0:?} cannot be part of an image reference")]
    Character(char),
    /// An address as a browser takes it.
    #[error("{0:?} has to go: a reference starts with the registry's host name")]
    Scheme(String),
    /// An image ID, which names an image only where it already is.
    #[error("64 hexadecimal digits are an image ID, which no registry can look up")]
    ImageId,
    /// What comes before the first slash is meant as a registry and is none.
    #[error("the registry {0:?} is not a host name, with or without a port")]
    Registry(String),
    /// The repository has uppercase letters.
    #[error("the repository {0:?} has to be lowercase")]
    Uppercase(String),
    /// Nothing behind the registry, or nothing before the tag or the digest.
    #[error("the reference names no repository")]
    NoRepository,
    /// Nothing before, between or behind two slashes.
    #[error("the repository {0:?} has an empty part")]
    EmptyComponent(String),
    /// A part of the repository is not well formed.
    #[error(
        "the repository's part {0:?} is not lowercase letters and digits, joined by '.', '_', '__' or '-'"
    )]
    Component(String),
    /// The repository, counted without its registry, is too long.
    #[error("the repository has {0} characters, {MAX_REPOSITORY} are the most")]
    RepositoryLength(usize),
    /// A colon and nothing behind it.
    #[error("the tag after the last ':' is empty")]
    EmptyTag,
    /// The tag is too long.
    #[error("the tag has {0} characters, {MAX_TAG} are the most")]
    TagLength(usize),
    /// The tag is not well formed.
    #[error(
        "the tag {0:?} is not letters, digits, '_', '.' and '-', starting with neither '.' nor '-'"
    )]
    Tag(String),
    /// What comes after the `@` has no colon.
    #[error("the digest {0:?} is not an algorithm and hexadecimal digits, as in sha256:2c26b4…")]
    Digest(String),
    /// An algorithm that runtimes do not know.
    #[error("the digest's algorithm {0:?} is not sha256, sha384 or sha512")]
    DigestAlgorithm(String),
    /// The digest is cut off, or has too much.
    #[error("a digest of this algorithm has {expected} hexadecimal digits, this one has {found}")]
    DigestLength {
        /// What the algorithm makes.
        expected: usize,
        /// What is there.
        found: usize,
    },
    /// The digest has uppercase letters, or letters beyond `f`.
    #[error("the digest's digits {0:?} are not lowercase hexadecimal")]
    DigestDigits(String),
}

impl Reference {
    /// Parses what a pod, or an `ImageCache`, names an image with. Nothing is trimmed: the kubelet does not either.
    pub fn parse(as_written: &str) -> Result<Self, InvalidReference> {
        refuse_what_is_no_reference(as_written)?;
        let (name, tag, digest) = split(as_written);
        let name = normalised_name(name)?;
        tag.map_or(Ok(()), check_tag)?;
        digest.map_or(Ok(()), check_digest)?;
        let key = match (digest, tag) {
            (Some(digest), _) => format!("{name}@{digest}"),
            (None, tag) => format!("{name}:{}", tag.unwrap_or(DEFAULT_TAG)),
        };
        let key: Arc<str> = key.into();
        let as_written = if *key == *as_written {
            Arc::clone(&key)
        } else {
            as_written.into()
        };
        Ok(Self { as_written, key })
    }

    /// The text that was parsed.
    #[must_use]
    pub fn as_written(&self) -> &str {
        &self.as_written
    }

    /// What the kubelet asks the runtime to pull: the text as written, with `:latest` behind it when it has neither tag nor digest.
    ///
    /// The kubelet leaves it to the runtime which registry a short name means, and so does this.
    #[must_use]
    pub fn pull_form(&self) -> String {
        match split(&self.as_written) {
            (_, None, None) => format!("{}:{DEFAULT_TAG}", self.as_written),
            _ => self.as_written.as_ref().to_owned(),
        }
    }

    /// The name that containerd stores the image under: registry and repository in full, then the digest, or else the tag.
    ///
    /// A tag beside a digest is dropped: the runtime resolves the digest and never looks at the tag.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The same, shared.
    #[must_use]
    pub fn shared_key(&self) -> Arc<str> {
        Arc::clone(&self.key)
    }

    /// Registry and repository in full, as in `docker.io/library/busybox`: what the kubelet looks credentials up by.
    #[must_use]
    pub fn name(&self) -> &str {
        split(&self.key).0
    }

    /// The registry's host, with its port if it has one.
    #[must_use]
    pub fn registry(&self) -> &str {
        let name = self.name();
        name.split_once('/').map_or(name, |(registry, _)| registry)
    }

    /// The tag as written; `None` when `latest` is only meant.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        split(&self.as_written).1
    }

    /// The digest, with its algorithm.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        split(&self.as_written).2
    }
}

/// The mistakes that are easier to understand when they are named before anything is taken apart.
fn refuse_what_is_no_reference(text: &str) -> Result<(), InvalidReference> {
    let has_a_place = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '.' | '_' | '-' | '/' | ':' | '@' | '+' | '[' | ']')
    };
    if text.is_empty() {
        return Err(InvalidReference::Empty);
    }
    if let Some(other) = text.chars().find(|c| !has_a_place(*c)) {
        return Err(InvalidReference::Character(other));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(InvalidReference::Scheme(format!("{scheme}://")));
    }
    if text.len() == 64 && is_lowercase_hex(text) {
        return Err(InvalidReference::ImageId);
    }
    Ok(())
}

/// Name, tag and digest.
fn split(text: &str) -> (&str, Option<&str>, Option<&str>) {
    let (name_and_tag, digest) = match text.split_once('@') {
        Some((before, digest)) => (before, Some(digest)),
        None => (text, None),
    };
    let (name, tag) = split_tag(name_and_tag);
    (name, tag, digest)
}

/// A colon before the last slash belongs to the registry's port, not to a tag.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (text, None),
    }
}

/// Registry and repository in full.
///
/// What comes before the first slash is a registry only if it looks like one (a dot, a colon, an uppercase letter, `localhost`);
/// otherwise it is the first part of a repository on the default registry.
fn normalised_name(written: &str) -> Result<String, InvalidReference> {
    let (registry, repository) = match written.split_once('/') {
        Some((FORMER_DEFAULT_REGISTRY, repository)) => (DEFAULT_REGISTRY, repository),
        Some((first, repository)) if looks_like_a_registry(first) => (first, repository),
        _ => (DEFAULT_REGISTRY, written),
    };
    if !is_registry(registry) {
        // `a_b.c/d` looks like a registry and cannot be one. The grammar then reads all of it as a repository, and so do the runtimes.
        return if is_component(registry) {
            check_repository(written)?;
            check_length(written)?;
            Ok(written.to_owned())
        } else {
            Err(InvalidReference::Registry(registry.to_owned()))
        };
    }
    check_repository(repository)?;
    let repository = if registry == DEFAULT_REGISTRY && !repository.contains('/') {
        Cow::Owned(format!("library/{repository}"))
    } else {
        Cow::Borrowed(repository)
    };
    check_length(&repository)?;
    Ok(format!("{registry}/{repository}"))
}

fn looks_like_a_registry(first: &str) -> bool {
    first == "localhost" || first.contains(|c: char| c == '.' || c == ':' || c.is_ascii_uppercase())
}

fn check_repository(repository: &str) -> Result<(), InvalidReference> {
    if repository.is_empty() {
        return Err(InvalidReference::NoRepository);
    }
    if repository.split('/').any(str::is_empty) {
        return Err(InvalidReference::EmptyComponent(repository.to_owned()));
    }
    if repository.contains(|c: char| c.is_ascii_uppercase()) {
        return Err(InvalidReference::Uppercase(repository.to_owned()));
    }
    match repository.split('/').find(|part| !is_component(part)) {
        Some(part) => Err(InvalidReference::Component(part.to_owned())),
        None => Ok(()),
    }
}

fn check_length(repository: &str) -> Result<(), InvalidReference> {
    if repository.len() > MAX_REPOSITORY {
        return Err(InvalidReference::RepositoryLength(repository.len()));
    }
    Ok(())
}

fn check_tag(tag: &str) -> Result<(), InvalidReference> {
    if is_tag(tag) {
        Ok(())
    } else if tag.is_empty() {
        Err(InvalidReference::EmptyTag)
    } else if tag.len() > MAX_TAG {
        Err(InvalidReference::TagLength(tag.len()))
    } else {
        Err(InvalidReference::Tag(tag.to_owned()))
    }
}

fn check_digest(digest: &str) -> Result<(), InvalidReference> {
    let Some((algorithm, digits)) = digest.split_once(':') else {
        return Err(InvalidReference::Digest(digest.to_owned()));
    };
    let Some(expected) = digest_length(algorithm) else {
        return Err(InvalidReference::DigestAlgorithm(algorithm.to_owned()));
    };
    if !is_lowercase_hex(digits) {
        return Err(InvalidReference::DigestDigits(digits.to_owned()));
    }
    if digits.len() != expected {
        return Err(InvalidReference::DigestLength {
            expected,
            found: digits.len(),
        });
    }
    Ok(())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_written)
    }
}

impl PartialEq for Reference {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Reference {}

impl Hash for Reference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl PartialOrd for Reference {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Reference {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

#[cfg(test)]
mod tests;
