//! Which images this node should have, and for whom.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use super::inputs::{CacheName, Inputs, Known, SecretName};
use super::selector::selects;
use crate::api::{Ensure, ImageCacheSpec, ImagePullPolicy, RemovalPolicy};
use crate::image::{InvalidReference, Reference};

/// The identity of an image: the full name under which the runtime keeps it, or, if the name
/// does not parse, the name as written. Two spellings of one image have one key.
pub type ImageKey = Arc<str>;

/// Where an image stands in the order of pulls: higher priority first, then the `ImageCache` (in the order of their names), the
/// list and the position in it.
pub type Rank = (Reverse<i32>, [u32; 3]);

/// Everything that this node should have.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    /// The wanted images, each once.
    pub images: BTreeMap<ImageKey, Wanted>,
    /// The images that somebody wants gone, each once. Others may want them.
    pub absent: BTreeMap<ImageKey, Unwanted>,
    /// The `ImageCache`s that select this node, each with the lists that do.
    pub caches: Vec<SelectedCache>,
    /// Why it may be that somebody wants more than this, if it may.
    pub doubt: Option<Doubt>,
}

/// Why it may be that more is wanted than is known: nothing is removed meanwhile.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Doubt {
    /// The API server does not tell of changes.
    NotCurrent,
    /// The newest spec of this `ImageCache` could not be read.
    Unreadable(CacheName),
}

/// One wanted image.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The reference, in the spelling that stands first in the order of pulls.
    pub reference: Result<Reference, Box<InvalidReference>>,
    /// Where it stands in the order of pulls: the best place that anybody who is not paused gives it.
    pub rank: Rank,
    /// Everybody who wants it is paused.
    pub paused: bool,
    /// The pull secrets of everybody who wants it, each once.
    pub secrets: Vec<Arc<SecretName>>,
    /// How often it is asked for again while it is present: as often as anybody says.
    pub refresh: Option<Duration>,
    /// How long a pull of it may make no progress: as long as the most patient one allows.
    pub patience: Duration,
    /// Everybody who wants it says that it is to be removed once nobody does.
    pub removable: bool,
    /// Somebody wants it pinned.
    pub pin: bool,
    /// The `ImageCache` that gives it its place.
    pub by: Arc<CacheName>,
}

/// An image that is to be gone.
#[derive(Clone, Debug)]
pub struct Unwanted {
    /// The reference.
    pub reference: Result<Reference, Box<InvalidReference>>,
    /// Everybody who wants it gone is paused.
    pub paused: bool,
    /// The first `ImageCache` that says so.
    pub by: Arc<CacheName>,
}

/// An `ImageCache` that selects this node.
#[derive(Clone, Debug)]
pub struct SelectedCache {
    /// Its name.
    pub name: CacheName,
    /// Its uid.
    pub uid: String,
    /// The generation of the spec that is acted on.
    pub generation: i64,
    /// That spec.
    pub spec: Arc<ImageCacheSpec>,
    /// The annotation that asks for a refresh.
    pub refresh: Option<Arc<str>>,
    /// The lists that select this node. Never empty.
    pub lists: Vec<SelectedList>,
}

/// An image list that selects this node.
#[derive(Clone, Debug)]
pub struct SelectedList {
    /// Its position in the spec.
    pub index: usize,
    /// The keys of its images, in the order of the spec.
    pub images: Vec<ImageKey>,
}

/// What this node should have, as far as it is known.
#[must_use]
pub fn desired(inputs: &Inputs) -> Known<Desired> {
    let (Known::Known(caches), Known::Known(node)) = (&inputs.caches, &inputs.node) else {
        return Known::Unknown;
    };
    let is_current = inputs.is_current.caches && inputs.is_current.node;
    let mut unreadable = caches
        .iter()
        .filter(|(_, cache)| cache.unreadable.is_some());
    let mut desired = Desired {
        doubt: if is_current {
            unreadable
                .next()
                .map(|(name, _)| Doubt::Unreadable(name.clone()))
        } else {
            Some(Doubt::NotCurrent)
        },
        ..Desired::default()
    };
    for (place, (name, cache)) in caches.iter().enumerate() {
        let Some((generation, spec)) = &cache.spec else {
            continue;
        };
        let secrets: Vec<_> = spec
            .image_pull_secrets
            .iter()
            .map(|secret| {
                Arc::new(SecretName {
                    namespace: name.namespace.clone(),
                    name: secret.name.clone(),
                })
            })
            .collect();
        let by = Arc::new(name.clone());
        let mut lists = Vec::new();
        for (index, list) in spec.cache_spec.iter().enumerate() {
            if !selects(list, &node.labels) {
                continue;
            }
            let want = |(position, written): (usize, &String)| {
                let place = [place, index, position].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
                let rank = (Reverse(spec.priority), place);
                match spec.ensure {
                    Ensure::Present => desired.want(written, rank, spec, &secrets, &by),
                    Ensure::Absent => desired.want_gone(written, spec.paused, &by),
                }
            };
            let images = list.images.iter().enumerate().map(want).collect();
            lists.push(SelectedList { index, images });
        }
        if !lists.is_empty() {
            desired.caches.push(SelectedCache {
                name: name.clone(),
                uid: cache.uid.clone(),
                generation: *generation,
                spec: Arc::clone(spec),
                refresh: cache.refresh.clone(),
                lists,
            });
        }
    }
    Known::Known(desired)
}

impl Desired {
    /// Whether anybody says anything of this image.
    #[must_use]
    pub fn concerns(&self, key: &ImageKey) -> bool {
        self.images.contains_key(key) || self.absent.contains_key(key)
    }

    /// The pull secrets of an image.
    #[must_use]
    pub fn secrets(&self, key: &ImageKey) -> &[Arc<SecretName>] {
        self.images.get(key).map_or(&[], |wanted| &wanted.secrets)
    }

    fn want(
        &mut self,
        written: &str,
        rank: Rank,
        spec: &ImageCacheSpec,
        secrets: &[Arc<SecretName>],
        by: &Arc<CacheName>,
    ) -> ImageKey {
        let paused = spec.paused;
        let (key, reference) = parse(written);
        let refresh = reference
            .as_ref()
            .ok()
            .and_then(|reference| refresh(spec, reference));
        let mut wanted = Wanted {
            reference,
            rank,
            paused,
            secrets: secrets.to_vec(),
            refresh,
            patience: spec.pull_progress_timeout.0.0,
            removable: spec.removal_policy == RemovalPolicy::Remove,
            pin: spec.pin,
            by: Arc::clone(by),
        };
        match self.images.entry(key) {
            Entry::Vacant(entry) => {
                let key = entry.key().clone();
                entry.insert(wanted);
                key
            }
            Entry::Occupied(mut entry) => {
                let before = entry.get_mut();
                // Whoever is paused gives no place in the order to an image that somebody else wants now.
                if (paused, rank) < (before.paused, before.rank) {
                    std::mem::swap(before, &mut wanted);
                }
                before.refresh = before.refresh.into_iter().chain(wanted.refresh).min();
                before.patience = before.patience.max(wanted.patience);
                before.removable &= wanted.removable;
                before.pin |= wanted.pin;
                for secret in wanted.secrets {
                    if !before.secrets.contains(&secret) {
                        before.secrets.push(secret);
                    }
                }
                entry.key().clone()
            }
        }
    }

    fn want_gone(&mut self, written: &str, paused: bool, by: &Arc<CacheName>) -> ImageKey {
        let (key, reference) = parse(written);
        let unwanted = self.absent.entry(key.clone()).or_insert_with(|| Unwanted {
            reference,
            paused,
            by: Arc::clone(by),
        });
        unwanted.paused &= paused;
        key
    }
}

/// The key of an image as written, and its reference.
fn parse(written: &str) -> (ImageKey, Result<Reference, Box<InvalidReference>>) {
    let reference = Reference::parse(written).map_err(Box::new);
    let key = reference
        .as_ref()
        .map_or_else(|_| written.into(), Reference::shared_key);
    (key, reference)
}

/// How often a spec has an image asked for again: by the kubelet's rule, if it names no policy.
fn refresh(spec: &ImageCacheSpec, reference: &Reference) -> Option<Duration> {
    let is_always = match spec.image_pull_policy {
        Some(policy) => policy == ImagePullPolicy::Always,
        None => matches!(reference.tag(), None | Some("latest")),
    };
    let interval = spec.refresh_interval.0.0;
    (is_always && reference.digest().is_none() && !interval.is_zero()).then_some(interval)
}

impl SelectedCache {
    /// Its images that this node should have: as written, and their keys.
    pub fn images(&self) -> impl Iterator<Item = (&str, &ImageKey)> {
        self.lists.iter().flat_map(|list| {
            let written = self.spec.cache_spec.get(list.index);
            let written = written.into_iter().flat_map(|list| &list.images);
            written.map(String::as_str).zip(&list.images)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::api::{ImageCacheSpec, ImageList, LocalSecret};
    use crate::decide::{Cache, Caches, Node};

    type Labels<'a> = &'a [(&'a str, &'a str)];

    fn spec(priority: i32, paused: bool, lists: &[(&[&str], Labels)]) -> ImageCacheSpec {
        ImageCacheSpec {
            priority,
            paused,
            cache_spec: lists
                .iter()
                .map(|(images, labels)| ImageList {
                    images: images.iter().map(ToString::to_string).collect(),
                    node_selector: labels
                        .iter()
                        .map(|(k, v)| (k.to_string(), v.to_string()))
                        .collect(),
                    match_expressions: Vec::new(),
                })
                .collect(),
            ..ImageCacheSpec::default()
        }
    }

    fn inputs(specs: Vec<(&str, Option<ImageCacheSpec>)>, labels: &[(&str, &str)]) -> Inputs {
        let caches: Caches = specs
            .into_iter()
            .map(|(name, spec)| {
                let cache = Cache {
                    uid: format!("uid-{name}"),
                    generation: 3,
                    spec: spec.map(|spec| (2, Arc::new(spec))),
                    unreadable: None,
                    refresh: None,
                };
                (
                    CacheName {
                        namespace: "ns".into(),
                        name: name.into(),
                    },
                    Arc::new(cache),
                )
            })
            .collect();
        Inputs {
            caches: Known::Known(Arc::new(caches)),
            node: Known::Known(Node {
                uid: "node".into(),
                labels: labels
                    .iter()
                    .map(|(k, v)| (k.to_string(), v.to_string()))
                    .collect(),
            }),
            ..Inputs::default()
        }
    }

    fn known(inputs: &Inputs) -> Desired {
        desired(inputs).known().unwrap().clone()
    }

    #[test]
    fn nothing_is_wanted_while_a_part_is_unknown() {
        let all = inputs(vec![("a", Some(spec(0, false, &[(&["a"], &[])])))], &[]);
        let without_caches = Inputs {
            caches: Known::Unknown,
            ..all.clone()
        };
        let without_node = Inputs {
            node: Known::Unknown,
            ..all
        };
        assert!(desired(&without_caches).known().is_none());
        assert!(desired(&without_node).known().is_none());
    }

    #[test]
    fn a_list_that_does_not_match_blocks_nothing() {
        let desired = known(&inputs(
            vec![(
                "a",
                Some(spec(
                    0,
                    false,
                    &[(&["one"], &[("tier", "x")]), (&["two"], &[])],
                )),
            )],
            &[],
        ));
        assert_eq!(desired.caches[0].lists.len(), 1);
        assert_eq!(desired.caches[0].lists[0].index, 1);
        assert_eq!(
            desired.images.keys().map(|k| &**k).collect::<Vec<_>>(),
            ["docker.io/library/two:latest"]
        );
    }

    #[test]
    fn two_spellings_are_one_image() {
        let desired = known(&inputs(
            vec![(
                "a",
                Some(spec(
                    0,
                    false,
                    &[(&["nginx", "docker.io/library/nginx:latest"], &[])],
                )),
            )],
            &[],
        ));
        assert_eq!(desired.images.len(), 1);
        assert_eq!(desired.caches[0].lists[0].images.len(), 2);
        let wanted = desired.images.values().next().unwrap();
        assert_eq!(wanted.reference.as_ref().unwrap().as_written(), "nginx");
    }

    #[test]
    fn the_best_rank_counts_and_a_paused_one_does_not() {
        let desired = known(&inputs(
            vec![
                ("a", Some(spec(0, false, &[(&["x", "y"], &[])]))),
                ("b", Some(spec(5, false, &[(&["y"], &[])]))),
                ("c", Some(spec(9, true, &[(&["x", "z"], &[])]))),
            ],
            &[],
        ));
        let rank = |image: &str| &desired.images[&format!("docker.io/library/{image}:latest")[..]];
        assert_eq!(rank("y").rank.0, Reverse(5));
        assert_eq!((rank("x").rank.0, rank("x").paused), (Reverse(0), false));
        assert!(rank("z").paused);
    }

    #[test]
    fn an_invalid_reference_is_wanted_under_its_own_text() {
        let desired = known(&inputs(
            vec![("a", Some(spec(0, false, &[(&["Bad//x"], &[])])))],
            &[],
        ));
        assert!(desired.images["Bad//x"].reference.is_err());
    }

    #[test]
    fn an_object_that_was_never_readable_asks_for_nothing() {
        let desired = known(&inputs(vec![("a", None)], &[]));
        assert!(desired.caches.is_empty() && desired.images.is_empty());
    }

    #[test]
    fn the_pull_secrets_of_everybody_who_wants_an_image_count_once_each() {
        let with = |priority, secrets: &[&str]| ImageCacheSpec {
            image_pull_secrets: secrets
                .iter()
                .map(|name| LocalSecret {
                    name: (*name).to_owned(),
                })
                .collect(),
            ..spec(priority, false, &[(&["r.io/app:1"], &[])])
        };
        let specs = vec![
            ("a", Some(with(0, &["x", "y"]))),
            ("b", Some(with(9, &["y", "z"]))),
        ];
        let desired = known(&inputs(specs, &[]));
        let secrets = desired.secrets(&"r.io/app:1".into());
        let names: Vec<_> = secrets.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ns/y", "ns/z", "ns/x"]);
        assert!(desired.secrets(&"r.io/other:1".into()).is_empty());
    }
}
