//! Asking the runtime which of the wanted images it has.

use std::collections::BTreeMap;

use tracing::debug;

use super::platform;
use crate::decide::desired::ImageKey;
use crate::decide::{Desired, PresentImage};
use crate::runtime::{Image, Runtime, RuntimeError};

/// A wanted image, as the runtime can be asked for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Question {
    /// The name as a pull would send it: as written, with a tag or digest.
    pub pull_form: String,
    /// What the runtime called the image when it was pulled.
    pub resolved: Option<String>,
}

/// The questions for all wanted images.
pub type Questions = BTreeMap<ImageKey, Question>;

/// The runtime's answers: what it has under each name.
pub type Answers = BTreeMap<ImageKey, Option<PresentImage>>;

/// The questions for what is wanted. Names that do not parse are not asked for.
pub fn questions(desired: &Desired, resolved: &BTreeMap<ImageKey, String>) -> Questions {
    desired
        .images
        .iter()
        .filter_map(|(key, wanted)| {
            let question = Question {
                pull_form: wanted.reference.as_ref().ok()?.pull_form(),
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
                    answered(self.runtime.image(&question.pull_form).await)?
                }
                listed => listed,
            };
            let found = match found {
                None => None,
                Some(image) => Some(self.present(key, image).await?),
            };
            answers.insert(key.clone(), found);
        }
        self.platforms
            .retain(|id, _| by_name.contains_key(id.as_str()));
        Ok(answers)
    }

    /// Asks for one image.
    pub async fn find(
        &mut self,
        key: &ImageKey,
        question: &Question,
    ) -> Result<Option<PresentImage>, RuntimeError> {
        let mut found = self.runtime.image(key).await?;
        if found.is_none() && !self.full_names {
            found = self.runtime.image(&question.pull_form).await?;
        }
        match found {
            None => Ok(None),
            Some(image) => self.present(key, image).await.map(Some),
        }
    }

    async fn present(
        &mut self,
        key: &ImageKey,
        image: Image,
    ) -> Result<PresentImage, RuntimeError> {
        let foreign_platform = if let Some(known) = self.platforms.get(&image.id) {
            known.clone()
        } else {
            let platform = answered(self.runtime.platform(name_of(key, &image)).await)?;
            let foreign = platform::foreign(platform.as_ref());
            self.platforms.insert(image.id.clone(), foreign.clone());
            foreign
        };
        Ok(PresentImage {
            digest: digest_of(key, &image),
            id: image.id,
            bytes: image.bytes,
            foreign_platform,
        })
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
