//! What the runtime has of images that concern this agent, and whose they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::desired::{Desired, ImageKey};
use super::world::Answers;

/// The image ID: the digest of the image's configuration.
pub type ImageId = Arc<str>;

/// An image that the runtime has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Holding {
    /// Its names, with a tag or a digest.
    pub names: BTreeSet<ImageKey>,
    /// Its size in bytes, as the runtime gives it: compressed.
    pub bytes: u64,
    /// The names under which this agent has pulled it, each with whether the image is to be removed once nobody wants it under that name.
    /// A name may mean another image by now.
    pub pulled: BTreeMap<ImageKey, bool>,
    /// Whose pin is on it.
    pub pin: Pin,
    /// When it came to the node, where the runtime knows that.
    pub created: Option<Timestamp>,
}

/// Whose pin is on an image.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pin {
    /// It is not pinned.
    #[default]
    None,
    /// This agent's.
    Ours,
    /// It was this agent's, and somebody has taken it away.
    Lost,
    /// Somebody else's.
    Foreign,
}

/// The images that are wanted, that this agent has pulled, or that it has pinned: by their IDs.
pub type Holdings = BTreeMap<ImageId, Holding>;

/// One name of an image that this agent has pulled.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Own {
    /// The name. It may mean another image by now.
    pub key: ImageKey,
    /// The image.
    pub id: ImageId,
}

/// Whether an image is wanted under this name. What the runtime was not asked for yet may be this image, and so may what is being
/// pulled anew.
#[must_use]
pub fn is_wanted(desired: &Desired, asked: &Answers, id: &str, key: &ImageKey) -> bool {
    desired.images.contains_key(key)
        && match asked.get(key) {
            None | Some(None) => true,
            Some(Some(image)) => image.id == id,
        }
}

/// The names of an image that go with one of them that goes. Empty if none does: the name means another image by now, or a tag that
/// stays needs it.
///
/// A pull by tag names the image by its digest too: that name goes with the last tag of its repository, unless it is wanted itself.
#[must_use]
pub fn names_with(
    holding: &Holding,
    key: &ImageKey,
    stays: impl Fn(&ImageKey) -> bool,
) -> Vec<ImageKey> {
    let repository = repository(key);
    let of_repository = |name: &&ImageKey| self::repository(name) == repository;
    let is_tag = |name: &&ImageKey| !name.contains('@');
    let mut tags = holding.names.iter().filter(of_repository).filter(is_tag);
    let other_tag = tags.any(|tag| tag != key);
    if key.contains('@') && other_tag {
        // The tag needs it too.
        return Vec::new();
    }
    let digests = holding
        .names
        .iter()
        .filter(of_repository)
        .filter(|name| !is_tag(name) && *name != key)
        .filter(|name| !other_tag && !stays(name));
    let own = holding.names.iter().filter(|name| *name == key);
    own.chain(digests).cloned().collect()
}

/// The repository of a full name.
#[must_use]
pub fn repository(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_the_digests_of_its_repository_with_it_if_no_other_tag_is_left() {
        struct Row {
            what: &'static str,
            names: &'static [&'static str],
            key: &'static str,
            stays: &'static [&'static str],
            go: &'static [&'static str],
        }
        let rows = [
            Row {
                what: "one tag",
                names: &["r:5/a:1", "r:5/a@sha256:x"],
                key: "r:5/a:1",
                stays: &[],
                go: &["r:5/a:1", "r:5/a@sha256:x"],
            },
            Row {
                what: "another tag of the repository",
                names: &["r:5/a:1", "r:5/a:2", "r:5/a@sha256:x"],
                key: "r:5/a:1",
                stays: &[],
                go: &["r:5/a:1"],
            },
            Row {
                what: "another repository",
                names: &["r:5/a:1", "r:5/a@sha256:x", "r:5/b:1", "r:5/b@sha256:x"],
                key: "r:5/a:1",
                stays: &[],
                go: &["r:5/a:1", "r:5/a@sha256:x"],
            },
            Row {
                what: "the digest is wanted",
                names: &["r:5/a:1", "r:5/a@sha256:x"],
                key: "r:5/a:1",
                stays: &["r:5/a@sha256:x"],
                go: &["r:5/a:1"],
            },
            Row {
                what: "the tag means another image by now",
                names: &["r:5/a@sha256:x"],
                key: "r:5/a:1",
                stays: &[],
                go: &["r:5/a@sha256:x"],
            },
            Row {
                what: "pulled by digest, and a tag of it is there",
                names: &["r:5/a:1", "r:5/a@sha256:x"],
                key: "r:5/a@sha256:x",
                stays: &[],
                go: &[],
            },
            Row {
                what: "gone",
                names: &["r:5/b:1"],
                key: "r:5/a:1",
                stays: &[],
                go: &[],
            },
        ];
        for row in rows {
            let holding = Holding {
                names: row.names.iter().map(|name| (*name).into()).collect(),
                ..Holding::default()
            };
            let go = names_with(&holding, &row.key.into(), |name| {
                row.stays.contains(&&**name)
            });
            let expected: Vec<ImageKey> = row.go.iter().map(|name| (*name).into()).collect();
            assert_eq!(go, expected, "{}", row.what);
        }
    }
}
