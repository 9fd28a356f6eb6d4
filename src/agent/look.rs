//! Asking the runtime which of the wanted images it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::debug;

use super::platform;
use crate::decide::desired::ImageKey;
use crate::decide::holdings::{Holding, Holdings, ImageId, Pin};
use crate::decide::{Answers, Desired, PresentImage};
use crate::image::Reference;
use crate::runtime::{Containerd, Described, IdRecord, Image, Runtime, RuntimeError};

/// A wanted image, as the runtime can be asked for it.
#[derive(Clone, Debug)]
pub struct Question {
    /// The reference.
    pub reference: Reference,
    /// What the runtime called the image when it was pulled.
    pub resolved: Option<Arc<str>>,
}

impl PartialEq for Question {
    /// Another spelling is another question: not every runtime understands a short name as the same one.
    fn eq(&self, other: &Self) -> bool {
        self.reference.as_written() == other.reference.as_written()
            && self.resolved == other.resolved
    }
}

/// The questions for all images that somebody says something of.
pub type Questions = BTreeMap<ImageKey, Question>;

/// The questions for what is wanted or to be gone. Names that do not parse are not asked for.
pub fn questions(desired: &Desired, resolved: &BTreeMap<ImageKey, Arc<str>>) -> Questions {
    let wanted = desired.images.iter();
    let wanted = wanted.map(|(key, image)| (key, &image.reference));
    let unwanted = desired.absent.iter();
    let unwanted = unwanted.map(|(key, image)| (key, &image.reference));
    // An image that is wanted too is asked for in the spelling of those who want it.
    unwanted
        .chain(wanted)
        .filter_map(|(key, reference)| {
            let question = Question {
                reference: reference.as_ref().ok()?.clone(),
                resolved: resolved.get(key).cloned(),
            };
            Some((key.clone(), question))
        })
        .collect()
}

/// What a runtime has.
#[derive(Debug)]
pub struct Looked {
    /// The images that it was asked for.
    pub answers: Answers,
    /// Whose they are, and all others of this agent. Where the runtime does not tell: every image, as nobody's.
    pub holdings: Holdings,
    /// Whether the runtime heeds the pins of this agent, if there are any.
    pub pinning: Option<bool>,
}

/// Asks a runtime for images, and remembers which platform each is made for.
#[derive(Debug)]
pub struct Looker {
    runtime: Runtime,
    /// It keeps images under their full names, and labels on them. Other runtimes may resolve a short name to another registry.
    containerd: Option<Containerd>,
    platforms: BTreeMap<String, Option<String>>,
    /// The images that this agent had pinned at the last look.
    pins: BTreeSet<ImageId>,
}

impl Looker {
    /// Looks into this runtime.
    pub fn new(runtime: Runtime, containerd: Option<Containerd>) -> Self {
        Self {
            runtime,
            containerd,
            platforms: BTreeMap::new(),
            pins: BTreeSet::new(),
        }
    }

    /// Asks for all images at once.
    pub async fn look(&mut self, questions: &Questions) -> Result<Looked, RuntimeError> {
        let images = self.runtime.list().await?;
        // After the list: whatever is in it has been marked by now, if its pull has ended.
        let records = match &self.containerd {
            Some(containerd) => Some(containerd.id_records().await?),
            None => None,
        };
        let mut by_name: BTreeMap<&str, &Image> = BTreeMap::new();
        for image in &images {
            let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
            by_name.extend(names.map(|name| (name.as_str(), image)));
        }
        let mut answers = Answers::new();
        for (key, question) in questions {
            // Where names are kept in full, an ID under another name is not this image any more.
            let resolved = question.resolved.as_deref().filter(|_| !self.full_names());
            let listed = by_name
                .get(&**key)
                .or_else(|| by_name.get(resolved?))
                .map(|image| Image::clone(image));
            let found = match listed {
                None if !self.full_names() => {
                    answered(self.runtime.image(&question.reference.pull_form()).await)?
                }
                listed => listed,
            };
            let found = match found {
                None => None,
                Some(image) => Some(Arc::new(self.present(key, image).await?)),
            };
            answers.insert(key.clone(), found);
        }
        self.platforms
            .retain(|id, _| by_name.contains_key(id.as_str()));
        let holdings = holdings(&images, &answers, records);
        let pinning = self.heeded(&images, &holdings);
        Ok(Looked {
            answers,
            holdings,
            pinning,
        })
    }

    /// Whether the runtime heeds the pins of this agent, if there are any: those that were there at the last look too, as the list is
    /// a moment older than the labels.
    fn heeded(&mut self, images: &[Image], holdings: &Holdings) -> Option<bool> {
        let ours = holdings.iter().filter(|(_, held)| held.pin == Pin::Ours);
        let ours: BTreeSet<ImageId> = ours.map(|(id, _)| id.clone()).collect();
        let before = std::mem::replace(&mut self.pins, ours);
        let mut pinned = images.iter().filter(|image| {
            before.contains(image.id.as_str()) && self.pins.contains(image.id.as_str())
        });
        pinned.next().map(|image| image.pinned)
    }

    fn full_names(&self) -> bool {
        self.containerd.is_some()
    }

    /// Asks for one image.
    pub async fn find(
        &self,
        key: &ImageKey,
        question: &Question,
    ) -> Result<Option<PresentImage>, RuntimeError> {
        let mut found = self.describe(key).await?;
        if found.is_none() && !self.full_names() {
            found = self.describe(&question.reference.pull_form()).await?;
        }
        Ok(found.map(|found| {
            present_image(key, found.image, platform::foreign(found.platform.as_ref()))
        }))
    }

    async fn describe(&self, name: &str) -> Result<Option<Described>, RuntimeError> {
        match self.runtime.describe(name).await {
            Err(RuntimeError::Failed { message, .. }) => {
                debug!(error = message, "the runtime could not describe an image");
                let image = self.runtime.image(name).await?;
                Ok(image.map(|image| Described {
                    image,
                    platform: None,
                    chain_id: None,
                }))
            }
            described => described,
        }
    }

    async fn present(
        &mut self,
        key: &ImageKey,
        image: Image,
    ) -> Result<PresentImage, RuntimeError> {
        let foreign = if let Some(known) = self.platforms.get(&image.id) {
            known.clone()
        } else {
            let answer = self.runtime.platform(name_of(key, &image)).await;
            let is_answered = answer.is_ok();
            let foreign = platform::foreign(answered(answer)?.as_ref());
            // What was not answered is asked again.
            if is_answered {
                self.platforms.insert(image.id.clone(), foreign.clone());
            }
            foreign
        };
        Ok(present_image(key, image, foreign))
    }
}

/// Whose the images are that are wanted, or this agent's.
fn holdings(images: &[Image], answers: &Answers, records: Option<Vec<IdRecord>>) -> Holdings {
    let mut records: Option<BTreeMap<String, IdRecord>> = records.map(|records| {
        let records = records.into_iter();
        records.map(|record| (record.id.clone(), record)).collect()
    });
    let wanted: BTreeSet<&str> = answers
        .values()
        .flatten()
        .map(|image| image.id.as_str())
        .collect();
    let mut holdings = Holdings::new();
    for image in images {
        let (pulled, pin, created) = match &mut records {
            None => (BTreeMap::new(), Pin::None, None),
            Some(records) => {
                let record = records.remove(&image.id);
                let created = record.as_ref().and_then(|record| record.created);
                let marks = record.map(|record| record.marks).unwrap_or_default();
                let pin = match (marks.pin_is_ours, marks.pinned) {
                    (true, true) => Pin::Ours,
                    (true, false) => Pin::Lost,
                    (false, _) if image.pinned || marks.pinned => Pin::Foreign,
                    (false, _) => Pin::None,
                };
                if !wanted.contains(image.id.as_str())
                    && marks.pulled.is_empty()
                    && !matches!(pin, Pin::Ours | Pin::Lost)
                {
                    continue;
                }
                (marks.pulled, pin, created)
            }
        };
        let names = image.tags.iter().chain(&image.digests);
        let holding = Holding {
            names: names.map(|name| name.as_str().into()).collect(),
            bytes: image.bytes,
            pulled: pulled
                .into_iter()
                .map(|(name, removable)| (name.into(), removable))
                .collect(),
            pin,
            created,
        };
        holdings.insert(image.id.as_str().into(), holding);
    }
    holdings
}

fn present_image(key: &ImageKey, image: Image, foreign_platform: Option<String>) -> PresentImage {
    PresentImage {
        digest: digest_of(key, &image),
        id: image.id,
        bytes: image.bytes,
        foreign_platform,
    }
}

/// A question about one image that the runtime cannot answer says nothing of the others, and nothing of the runtime.
fn answered<T>(answer: Result<Option<T>, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match answer {
        Err(RuntimeError::Failed { message, .. }) => {
            debug!(
                error = message,
                "the runtime could not say something about an image"
            );
            Ok(None)
        }
        answer => answer,
    }
}

/// A full name under which the runtime has the image.
fn name_of<'a>(key: &'a ImageKey, image: &'a Image) -> &'a str {
    let mut names = image.tags.iter().chain(&image.digests);
    if names.clone().any(|name| **name == **key) {
        return key;
    }
    names.next().unwrap_or(&image.id)
}

/// The digest that the name stands for: the one of its own repository, as one image can have come from several.
fn digest_of(key: &ImageKey, image: &Image) -> Option<String> {
    if let Some((_, digest)) = key.split_once('@') {
        return Some(digest.to_owned());
    }
    let repository = key
        .rsplit_once(':')
        .map_or(&**key, |(repository, _)| repository);
    let mut digests = image.digests.iter().filter_map(|name| name.split_once('@'));
    digests
        .clone()
        .find(|(name, _)| *name == repository)
        .or_else(|| digests.next())
        .map(|(_, digest)| digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(tags: &[&str], digests: &[&str]) -> Image {
        Image {
            id: "sha256:id".into(),
            tags: tags.iter().map(ToString::to_string).collect(),
            digests: digests.iter().map(ToString::to_string).collect(),
            bytes: 1,
            pinned: false,
        }
    }

    #[test]
    fn the_digest_is_the_one_of_the_names_own_repository() {
        let both = image(
            &["r.io:5000/a:1"],
            &["other.io/a@sha256:1", "r.io:5000/a@sha256:2"],
        );
        assert_eq!(
            digest_of(&"r.io:5000/a:1".into(), &both).as_deref(),
            Some("sha256:2")
        );
        assert_eq!(
            digest_of(&"r.io/a@sha256:3".into(), &both).as_deref(),
            Some("sha256:3")
        );
        assert_eq!(
            digest_of(&"r.io/b:1".into(), &image(&["r.io/b:1"], &[])),
            None
        );
    }

    #[test]
    fn an_image_is_asked_for_by_a_full_name() {
        let resolved = image(&["quay.io/x/app:1"], &[]);
        assert_eq!(
            name_of(&"docker.io/x/app:1".into(), &resolved),
            "quay.io/x/app:1"
        );
        assert_eq!(
            name_of(&"quay.io/x/app:1".into(), &resolved),
            "quay.io/x/app:1"
        );
        assert_eq!(
            name_of(&"docker.io/x/app:1".into(), &image(&[], &[])),
            "sha256:id"
        );
    }
}
