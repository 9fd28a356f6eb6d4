//! Asking the runtime which of the wanted images it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::debug;

use super::platform;
use crate::decide::desired::ImageKey;
use crate::decide::{Answers, Desired, PresentImage};
use crate::image::Reference;
use crate::runtime::{Described, Image, Runtime, RuntimeError};

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

/// The questions for all wanted images.
pub type Questions = BTreeMap<ImageKey, Question>;

/// The questions for what is wanted. Names that do not parse are not asked for.
pub fn questions(desired: &Desired, resolved: &BTreeMap<ImageKey, Arc<str>>) -> Questions {
    desired
        .images
        .iter()
        .filter_map(|(key, wanted)| {
            let question = Question {
                reference: wanted.reference.as_ref().ok()?.clone(),
                resolved: resolved.get(key).cloned(),
            };
            Some((key.clone(), question))
        })
        .collect()
}

/// Asks a runtime for images, and remembers which platform each is made for.
#[derive(Debug)]
pub struct Looker {
    runtime: Runtime,
    /// It keeps images under their full names. Other runtimes may resolve a short name to another registry.
    full_names: bool,
    platforms: BTreeMap<String, Option<String>>,
}

impl Looker {
    /// Looks into this runtime. `full_names`: it is containerd.
    pub fn new(runtime: Runtime, full_names: bool) -> Self {
        Self {
            runtime,
            full_names,
            platforms: BTreeMap::new(),
        }
    }

    /// Asks for all images at once.
    pub async fn look(&mut self, questions: &Questions) -> Result<Answers, RuntimeError> {
        let images = self.runtime.list().await?;
        let mut by_name: BTreeMap<&str, &Image> = BTreeMap::new();
        for image in &images {
            let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
            by_name.extend(names.map(|name| (name.as_str(), image)));
        }
        let mut answers = Answers::new();
        for (key, question) in questions {
            // Where names are kept in full, an ID under another name is not this image any more.
            let resolved = question.resolved.as_deref().filter(|_| !self.full_names);
            let listed = by_name
                .get(&**key)
                .or_else(|| by_name.get(resolved?))
                .map(|image| Image::clone(image));
            let found = match listed {
                None if !self.full_names => {
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
        Ok(answers)
    }

    /// Asks for one image.
    pub async fn find(
        &self,
        key: &ImageKey,
        question: &Question,
    ) -> Result<Option<PresentImage>, RuntimeError> {
        let mut found = self.describe(key).await?;
        if found.is_none() && !self.full_names {
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
