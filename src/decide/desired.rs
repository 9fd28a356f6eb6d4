//! Which images this node should have, and for whom.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::inputs::{CacheName, Inputs, Known};
use super::selector::selects;
use crate::image::{InvalidReference, Reference};

/// The identity of an image: the full name under which the runtime keeps it, or, if the name
/// does not parse, the name as written. Two spellings of one image have one key.
pub type ImageKey = Arc<str>;

/// Where an image stands in the order of pulls: higher priority first, then by name of the
/// `ImageCache`, then by position.
pub type Rank = (Reverse<i32>, CacheName, usize, usize);

/// Everything that this node should have.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    /// The wanted images, each once.
    pub images: BTreeMap<ImageKey, Wanted>,
    /// The `ImageCache`s that select this node, each with the lists that do.
    pub caches: Vec<SelectedCache>,
}

/// One wanted image.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The reference, in the spelling that stands first in the order of pulls.
    pub reference: Result<Reference, InvalidReference>,
    /// Where it stands in the order of pulls: the best place that anybody who is not paused gives it.
    pub rank: Rank,
    /// Everybody who wants it is paused.
    pub paused: bool,
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
    /// The lists that select this node. Never empty.
    pub lists: Vec<SelectedList>,
}

/// An image list that selects this node.
#[derive(Clone, Debug)]
pub struct SelectedList {
    /// Its position in the spec.
    pub index: usize,
    /// Its images: as written, and their keys.
    pub images: Vec<(String, ImageKey)>,
}

/// What this node should have, as far as it is known.
#[must_use]
pub fn desired(inputs: &Inputs) -> Known<Desired> {
    let (Known::Known(caches), Known::Known(node)) = (&inputs.caches, &inputs.node) else {
        return Known::Unknown;
    };
    let mut desired = Desired::default();
    for (name, cache) in caches.iter() {
        let Some((generation, spec)) = &cache.spec else {
            continue;
        };
        let mut lists = Vec::new();
        for (index, list) in spec.cache_spec.iter().enumerate() {
            if !selects(list, &node.labels) {
                continue;
            }
            let mut images = Vec::with_capacity(list.images.len());
            for (position, written) in list.images.iter().enumerate() {
                let rank = (Reverse(spec.priority), name.clone(), index, position);
                let key = desired.want(written, rank, spec.paused);
                images.push((written.clone(), key));
            }
            lists.push(SelectedList { index, images });
        }
        if !lists.is_empty() {
            desired.caches.push(SelectedCache {
                name: name.clone(),
                uid: cache.uid.clone(),
                generation: *generation,
                lists,
            });
        }
    }
    Known::Known(desired)
}

impl Desired {
    fn want(&mut self, written: &str, rank: Rank, paused: bool) -> ImageKey {
        let reference = Reference::parse(written);
        let key = reference.as_ref().map_or(written, Reference::key);
        if let Some((key, wanted)) = self.images.get_key_value(key) {
            // Whoever is paused gives no place in the order to an image that somebody else wants now.
            let key = key.clone();
            if (paused, &rank) < (wanted.paused, &wanted.rank) {
                self.images.insert(
                    key.clone(),
                    Wanted {
                        reference,
                        rank,
                        paused,
                    },
                );
            }
            return key;
        }
        let key: ImageKey = key.into();
        self.images.insert(
            key.clone(),
            Wanted {
                reference,
                rank,
                paused,
            },
        );
        key
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::api::{ImageCacheSpec, ImageList};
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
            reported: None,
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
}
