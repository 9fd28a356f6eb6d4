//! What is known of the node's own credentials: which of its sources gave none, and for which images.

use std::collections::BTreeMap;

use super::desired::{Desired, ImageKey};
use crate::api::{CredentialProblem, CredentialReason, NodeSource};

/// The sources of the node, as far as something is to be remembered of them.
#[derive(Clone, Debug, Default)]
pub struct NodeSources {
    /// Their names. Empty: there are none.
    names: String,
    /// Those that gave no credentials, with the images for which they gave none when they were last asked.
    lacking: BTreeMap<NodeSource, BTreeMap<ImageKey, CredentialProblem>>,
}

impl NodeSources {
    /// With these names, for people; none if the node's credentials are off.
    #[must_use]
    pub fn new(names: String) -> Self {
        Self {
            names,
            lacking: BTreeMap::new(),
        }
    }

    /// Their names. `None`: they are off.
    pub(super) fn names(&self) -> Option<&str> {
        Some(self.names.as_str()).filter(|names| !names.is_empty())
    }

    /// Forgets images that nobody wants any more.
    pub(super) fn keep_wanted(&mut self, desired: &Desired) {
        for images in self.lacking.values_mut() {
            images.retain(|image, _| desired.images.contains_key(image));
        }
    }

    /// A pull of this image read these: why one gave no credentials, if it did not.
    ///
    /// A provider that works for one image may still fail for another: what is known of images that are `failing` stays, so that the
    /// condition does not turn with each pull. What it once failed for, and came without it, is forgotten.
    pub(super) fn read(
        &mut self,
        image: &ImageKey,
        read: &BTreeMap<NodeSource, Option<CredentialProblem>>,
        is_failing: impl Fn(&ImageKey) -> bool,
    ) {
        for (source, problem) in read {
            let images = self.lacking.entry(source.clone()).or_default();
            if *source == NodeSource::DockerConfig {
                // It is the same for all images.
                images.clear();
            }
            match problem {
                Some(problem) => {
                    images.insert(image.clone(), problem.clone());
                }
                None => images.retain(|other, _| other != image && is_failing(other)),
            }
        }
    }

    /// Why each that gave none did not, by the first of its images.
    pub(super) fn problems(&self) -> impl Iterator<Item = (CredentialReason, String)> {
        self.lacking.iter().filter_map(|(source, images)| {
            let (image, problem) = images.first_key_value()?;
            let message = &problem.message;
            let said = match source {
                NodeSource::DockerConfig => format!("{source}: {message}"),
                NodeSource::Provider(_) => format!("{source}: {message} (asked for {image})"),
            };
            Some((problem.reason?, said))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: CredentialReason = CredentialReason::ProviderFailed;

    fn problem(message: &str) -> CredentialProblem {
        CredentialProblem {
            reason: Some(FAILED),
            message: message.to_owned(),
        }
    }

    fn said(sources: &NodeSources) -> Vec<String> {
        sources.problems().map(|(_, said)| said).collect()
    }

    #[test]
    fn a_provider_that_works_for_one_image_may_still_fail_for_another() {
        let provider = NodeSource::Provider("p".into());
        let mut sources = NodeSources::new(String::new());
        let (a, b, c) = (ImageKey::from("a"), "b".into(), "c".into());
        let fails = |message| [(provider.clone(), Some(problem(message)))].into();
        let works = [(provider.clone(), None)].into();
        let is_failing = |image: &ImageKey| *image == a;
        sources.read(&b, &fails("late"), is_failing);
        sources.read(&a, &fails("exit status: 1"), is_failing);
        assert_eq!(said(&sources), ["provider p: exit status: 1 (asked for a)"]);
        sources.read(&c, &works, is_failing);
        assert_eq!(
            said(&sources),
            ["provider p: exit status: 1 (asked for a)"],
            "a waits for it, b came without it"
        );
        sources.read(&a, &works, is_failing);
        assert!(said(&sources).is_empty());
    }

    #[test]
    fn an_image_that_is_not_wanted_lacks_nothing() {
        let provider = NodeSource::Provider("p".into());
        let mut sources = NodeSources::new(String::new());
        let read = [(provider, Some(problem("no")))].into();
        sources.read(&"a".into(), &read, |_| true);
        sources.keep_wanted(&Desired::default());
        assert!(said(&sources).is_empty());
    }

    #[test]
    fn the_docker_configuration_is_the_same_for_all_images() {
        let mut sources = NodeSources::new(String::new());
        let broken = [(NodeSource::DockerConfig, Some(problem("f: broken")))].into();
        sources.read(&"a".into(), &broken, |_| true);
        sources.read(&"b".into(), &broken, |_| true);
        assert_eq!(said(&sources), ["docker config: f: broken"]);
        let mended = [(NodeSource::DockerConfig, None)].into();
        sources.read(&"b".into(), &mended, |_| true);
        assert!(said(&sources).is_empty());
    }
}
