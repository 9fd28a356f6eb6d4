//! What this agent has pulled, for a runtime that keeps no labels on images: it stands in the node's report alone.

use std::collections::BTreeMap;

use super::desired::ImageKey;
use super::holdings::{Holding, Holdings, Own};
use super::world::Answers;
use crate::api::RemovalPolicy;
use crate::api::node_image_cache::{NodeImageCacheStatus, Origin};

/// The images that this agent has pulled, by the names that it pulled them under.
#[derive(Clone, Debug, Default)]
pub struct Brought {
    images: BTreeMap<ImageKey, Image>,
}

#[derive(Clone, Debug)]
struct Image {
    identity: Identity,
    removable: bool,
}

/// What tells an image from another one under the same name.
#[derive(Clone, Debug)]
enum Identity {
    Id(String),
    /// A report has no more.
    Digest(String),
}

impl Brought {
    /// What the agent before this one has reported.
    pub fn inherit(&mut self, report: &NodeImageCacheStatus) {
        for image in &report.images {
            if let (Some(Origin::Agent), Some(digest)) = (image.origin, &image.digest) {
                let brought = Image {
                    identity: Identity::Digest(digest.clone()),
                    removable: image.removal_policy == Some(RemovalPolicy::Remove),
                };
                let key = image.image.as_str().into();
                self.images.entry(key).or_insert(brought);
            }
        }
    }

    /// An image was pulled under this name, or is to be removed or kept from now on once nobody wants it.
    pub fn mark(&mut self, Own { key, id }: &Own, removable: bool) {
        let identity = Identity::Id(id.to_string());
        let image = Image {
            identity,
            removable,
        };
        self.images.insert(key.clone(), image);
    }

    /// Of everything that the runtime has: what is wanted, and what was brought. What is there no more is forgotten, if the answer is newer
    /// than what was brought last.
    #[must_use]
    pub fn holdings(&mut self, all: &Holdings, answers: &Answers, is_new: bool) -> Holdings {
        let mut holdings = Holdings::new();
        for image in answers.values().flatten() {
            if let Some((id, holding)) = all.get_key_value(&*image.id) {
                holdings.insert(id.clone(), holding.clone());
            }
        }
        self.images.retain(|key, image| {
            let mut all = all.iter();
            let Some((id, holding)) = all.find(|(id, holding)| image.is(key, id, holding)) else {
                return !is_new;
            };
            image.identity = Identity::Id(id.to_string());
            let holding = holdings
                .entry(id.clone())
                .or_insert_with(|| holding.clone());
            holding.pulled.insert(key.clone(), image.removable);
            true
        });
        holdings
    }
}

impl Image {
    fn is(&self, key: &ImageKey, id: &str, holding: &Holding) -> bool {
        match &self.identity {
            Identity::Id(known) => known == id,
            Identity::Digest(digest) => {
                let has_digest = |name: &ImageKey| name.ends_with(&format!("@{digest}"));
                holding.names.contains(key) && holding.names.iter().any(has_digest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(names: &[&str]) -> Holding {
        Holding {
            names: names.iter().map(|name| (*name).into()).collect(),
            ..Holding::default()
        }
    }

    fn pulled(holdings: &Holdings) -> Vec<(&str, &str, bool)> {
        let pulled = holdings.iter().flat_map(|(id, holding)| {
            let names = holding.pulled.iter();
            names.map(move |(name, removable)| (&**id, &**name, *removable))
        });
        pulled.collect()
    }

    #[test]
    fn what_a_report_says_holds_for_the_image_of_the_same_digest_alone() {
        let report = serde_json::from_value(serde_json::json!({"images": [
            {"image": "r.io/a:1", "state": "Ready", "digest": "sha256:x", "origin": "Agent", "removalPolicy": "Remove"},
            {"image": "r.io/b:1", "state": "Ready", "digest": "sha256:y", "origin": "Agent"},
            {"image": "r.io/c:1", "state": "Ready", "digest": "sha256:z", "origin": "Found"},
        ]}));
        let mut brought = Brought::default();
        brought.inherit(&report.unwrap_or_default());
        let all: Holdings = [
            ("1".into(), image(&["r.io/a:1", "r.io/a@sha256:x"])),
            ("2".into(), image(&["r.io/b:1", "r.io/b@sha256:other"])),
            ("3".into(), image(&["r.io/c:1", "r.io/c@sha256:z"])),
        ]
        .into();
        let holdings = brought.holdings(&all, &Answers::new(), true);
        assert_eq!(pulled(&holdings), [("1", "r.io/a:1", true)]);
        // The name is gone, and the image is still there.
        let all: Holdings = [("1".into(), image(&["r.io/a@sha256:x"]))].into();
        let holdings = brought.holdings(&all, &Answers::new(), true);
        assert_eq!(pulled(&holdings), [("1", "r.io/a:1", true)]);
        let holdings = brought.holdings(&Holdings::new(), &Answers::new(), true);
        assert!(holdings.is_empty());
        let holdings = brought.holdings(&all, &Answers::new(), true);
        assert!(
            holdings.is_empty(),
            "it was gone: what is there now is another's"
        );
    }
}
