//! What the elected agent keeps of a node's report.

use std::sync::Arc;

use jiff::Timestamp;

use super::shared::Shared;
use crate::api::condition::cut;
use crate::api::image_cache::NodeState;
use crate::api::node_image_cache::ListReport;
use crate::api::reason::ImageState;

/// The most failures of one `ImageCache` that are kept of one node.
const MAX_FAILURES: usize = 3;

/// The longest cause that is kept, in bytes. The node's own report has it in full.
const MAX_CAUSE: usize = 200;

/// A node's report, as far as summaries need it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// When the object was created.
    pub created: Timestamp,
    /// The uid of the Node that owns it.
    pub owner: Option<Box<str>>,
    /// What the node has of each `ImageCache`, sorted by its uid.
    entries: Arc<[Arc<Entry>]>,
    /// What the node has of each image, sorted by its name.
    images: Arc<[Arc<Image>]>,
    /// Images that the report leaves out are ready: it lists the others first.
    unlisted_are_ready: bool,
    /// The node's runtime protects images that are pinned.
    pub pins: bool,
}

/// What a node has of one `ImageCache`.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Entry {
    /// The `ImageCache`'s uid.
    pub uid: String,
    /// The generation that this is about.
    pub generation: i64,
    /// What the node is doing for it.
    pub state: NodeState,
    /// Bytes of its images that the node has, and in all as far as that is known.
    pub bytes: (u64, u64),
    /// The lists that it took as meant for it, sorted by their position.
    pub lists: Vec<List>,
    /// The first failures.
    pub failures: Vec<Failure>,
}

/// What a node has of one image list.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct List {
    /// The list's position in the spec.
    pub index: usize,
    /// Its images that the node has.
    pub ready: i32,
    /// Its images.
    pub total: i32,
}

/// An image that failed on a node, and why.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Failure {
    /// The image as the `ImageCache` names it.
    pub image: String,
    /// The reason. A newer agent may have some that this one does not know.
    pub reason: String,
    /// The cause, cut.
    pub message: String,
}

/// What a node knows of one image.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Image {
    /// The image's full name, as the runtime keeps it.
    pub key: String,
    /// What it is doing.
    pub state: ImageState,
    /// The digest that its name stands for on this node.
    pub digest: Option<String>,
    /// Why it is in its state.
    pub reason: Option<String>,
    /// The cause, cut.
    pub message: Option<String>,
}

/// What the reports of many nodes have alike.
#[derive(Debug, Default)]
pub(super) struct Parts {
    entries: Shared<Entry>,
    entry_lists: Shared<[Arc<Entry>]>,
    images: Shared<Image>,
    image_lists: Shared<[Arc<Image>]>,
}

impl Report {
    /// A report with these entries and images; `omitted` says that it leaves some images out.
    #[must_use]
    pub fn new(
        created: Timestamp,
        owner: Option<&str>,
        mut entries: Vec<Entry>,
        mut images: Vec<Image>,
        omitted: bool,
    ) -> Self {
        entries.sort_by(|a, b| a.uid.cmp(&b.uid));
        for entry in &mut entries {
            entry.lists.sort_unstable();
            entry.failures.truncate(MAX_FAILURES);
            for failure in &mut entry.failures {
                shorten(&mut failure.message);
            }
        }
        let unlisted_are_ready = omitted
            && images
                .last()
                .is_some_and(|image| image.state == ImageState::Ready);
        images.sort_by(|a, b| a.key.cmp(&b.key));
        for image in &mut images {
            image.message.as_mut().map(shorten);
        }
        Self {
            created,
            owner: owner.map(Box::from),
            entries: entries.into_iter().map(Arc::new).collect(),
            images: images.into_iter().map(Arc::new).collect(),
            unlisted_are_ready,
            pins: true,
        }
    }

    /// The same of a node whose runtime protects pinned images, or does not.
    #[must_use]
    pub const fn with_pins(mut self, pins: bool) -> Self {
        self.pins = pins;
        self
    }

    /// Takes the copies that other nodes' reports have too.
    pub(super) fn share(&mut self, parts: &mut Parts) {
        let entries = self
            .entries
            .iter()
            .map(|entry| parts.entries.one(entry.clone()));
        self.entries = parts.entry_lists.one(entries.collect());
        let images = self
            .images
            .iter()
            .map(|image| parts.images.one(image.clone()));
        self.images = parts.image_lists.one(images.collect());
    }

    /// What the node has of the `ImageCache` with this uid.
    #[must_use]
    pub fn entry(&self, uid: &str) -> Option<&Entry> {
        let at = self
            .entries
            .binary_search_by(|entry| entry.uid.as_str().cmp(uid));
        self.entries.get(at.ok()?).map(AsRef::as_ref)
    }

    /// What the node knows of the image with this full name.
    #[must_use]
    pub fn image(&self, key: &str) -> Option<&Image> {
        let at = self
            .images
            .binary_search_by(|image| image.key.as_str().cmp(key));
        self.images.get(at.ok()?).map(AsRef::as_ref)
    }

    /// What the node knows of each image, sorted by its name.
    #[must_use]
    pub fn images(&self) -> &[Arc<Image>] {
        &self.images
    }

    /// Images that the report leaves out are ready: it lists the others first.
    #[must_use]
    pub const fn unlisted_are_ready(&self) -> bool {
        self.unlisted_are_ready
    }
}

impl Entry {
    /// What the node has of the list at this position.
    #[must_use]
    pub fn list(&self, index: usize) -> Option<&List> {
        self.lists.iter().find(|list| list.index == index)
    }

    /// Images that the node has, counted in each list.
    #[must_use]
    pub fn ready(&self) -> usize {
        let ready = self.lists.iter().map(|list| list.ready);
        ready.filter_map(|ready| usize::try_from(ready).ok()).sum()
    }

    /// It is about exactly these lists, sorted by their position.
    #[must_use]
    pub fn is_about(&self, lists: &[usize]) -> bool {
        self.lists
            .iter()
            .map(|list| list.index)
            .eq(lists.iter().copied())
    }
}

impl List {
    /// The node has all of its images. A list has at least one: an empty count is none.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.total > 0 && self.ready >= self.total
    }
}

impl From<&ListReport> for List {
    fn from(list: &ListReport) -> Self {
        Self {
            // A position that is none is no position of any spec.
            index: usize::try_from(list.index).unwrap_or(usize::MAX),
            ready: list.ready,
            total: list.total,
        }
    }
}

fn shorten(message: &mut String) {
    if message.len() > MAX_CAUSE {
        *message = format!("{}…", cut(message, MAX_CAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_what_they_have_alike() {
        let mut parts = Parts::default();
        let mut report = |digest: &str| {
            let image = |key: &str, digest: &str| Image {
                key: key.to_owned(),
                state: ImageState::Ready,
                digest: Some(digest.to_owned()),
                reason: None,
                message: None,
            };
            let images = vec![image("a", "sha256:0"), image("b", digest)];
            let entry = Entry {
                uid: "u".to_owned(),
                ..Entry::default()
            };
            let created = Timestamp::UNIX_EPOCH;
            let mut report = Report::new(created, None, vec![entry], images, false);
            report.share(&mut parts);
            report
        };
        let [one, same, other] = ["sha256:1", "sha256:1", "sha256:2"].map(&mut report);
        assert!(Arc::ptr_eq(&one.images, &same.images));
        assert!(!Arc::ptr_eq(&one.images, &other.images));
        assert!(
            one.images
                .iter()
                .zip(other.images.iter())
                .any(|(a, b)| Arc::ptr_eq(a, b))
        );
        assert!(Arc::ptr_eq(&one.entries, &other.entries));
    }
}
