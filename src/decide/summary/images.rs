//! What the selected nodes have of each image of a spec.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::count;
use super::sentences::Names;
use crate::api::image_cache::{Ensure, ImageCacheSpec, ImageResult};
use crate::api::reason::{ImageState, Reason};
use crate::decide::fleet::{self, Report};
use crate::image::Reference;

/// The most images in a status.
const MOST_IMAGES: usize = 50;

/// The most digests of one image in a status: those that most nodes have.
const MOST_DIGESTS: usize = 5;

/// The distinct images of a spec, in its order.
pub struct Images<'a> {
    all: Vec<Image<'a>>,
    ensure: Ensure,
}

/// One image of a spec, and what the selected nodes have of it.
pub struct Image<'a> {
    /// Its name where the spec names it first.
    pub written: &'a str,
    key: String,
    /// The lists that name it: twice, if a list spells it in two ways.
    lists: Vec<usize>,
    ready: usize,
    failed: usize,
    /// The nodes on which it failed, and the first cause, by reason.
    pub failures: BTreeMap<&'a str, (Names<'a>, &'a str)>,
    /// The nodes on which it stays although it is to be gone, and the first cause, by reason.
    pub kept: BTreeMap<&'a str, (Names<'a>, &'a str)>,
    /// The nodes on which the budget has no room for its pin.
    pub unpinned: Names<'a>,
    /// The nodes that have it, by digest.
    pub digests: BTreeMap<&'a str, Names<'a>>,
}

/// What one node has of the images that its lists name.
#[derive(Default)]
pub struct Found<'a> {
    /// Images that it has, counted in each list, as in a report.
    pub ready: usize,
    /// The first image that waits for something, as the spec names it.
    pub waiting: Option<(&'a str, &'a fleet::Image)>,
}

impl<'a> Images<'a> {
    pub fn new(spec: &'a ImageCacheSpec) -> Self {
        let mut images: Vec<Image> = Vec::new();
        let mut places = HashMap::new();
        for (index, list) in spec.cache_spec.iter().enumerate() {
            for written in &list.images {
                let key = Reference::parse(written)
                    .map_or_else(|_| written.clone(), |reference| reference.key().to_owned());
                let place = *places.entry(key.clone()).or_insert(images.len());
                match images.get_mut(place) {
                    Some(image) => image.lists.push(index),
                    None => images.push(Image::new(written, key, index)),
                }
            }
        }
        Self {
            all: images,
            ensure: spec.ensure,
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Image<'a>> {
        self.all.iter()
    }

    /// Counts what this node has, or of what it is rid. Failures on a node that nobody hears from are none of now.
    pub fn add(
        &mut self,
        node: &'a str,
        selected: &[usize],
        report: Option<&'a Report>,
        is_reachable: bool,
    ) -> Found<'a> {
        let mut found = Found::default();
        let Some(report) = report else {
            return found;
        };
        for image in &mut self.all {
            let lists = image.lists.iter();
            let times = lists
                .filter(|list| selected.binary_search(list).is_ok())
                .count();
            if times == 0 {
                continue;
            }
            let Some(reported) = report.image(&image.key) else {
                if report.unlisted_are_ready() || self.ensure == Ensure::Absent {
                    image.ready += 1;
                    found.ready += times;
                }
                continue;
            };
            match reported.state {
                ImageState::Ready if self.ensure == Ensure::Absent => {
                    let reason = reported.reason.as_deref().unwrap_or_default();
                    let stays = [Reason::NotOwned, Reason::WantedElsewhere];
                    if stays.iter().any(|stays| stays.as_str() == reason) {
                        image.ready += 1;
                        found.ready += times;
                    } else {
                        found.waiting.get_or_insert((image.written, reported));
                    }
                    let message = reported.message.as_deref().unwrap_or_default();
                    let kept = image.kept.entry(reason);
                    kept.or_insert((Names::default(), message)).0.add(node);
                }
                ImageState::Ready => {
                    if reported.reason.as_deref() == Some(Reason::PinBudget.as_str()) {
                        image.unpinned.add(node);
                    }
                    image.ready += 1;
                    found.ready += times;
                    if let Some(digest) = &reported.digest {
                        image.digests.entry(digest).or_default().add(node);
                    }
                }
                ImageState::Failed if is_reachable => {
                    image.failed += 1;
                    let reason = reported.reason.as_deref().unwrap_or_default();
                    let message = reported.message.as_deref().unwrap_or_default();
                    let failures = image.failures.entry(reason);
                    failures.or_insert((Names::default(), message)).0.add(node);
                }
                ImageState::Waiting | ImageState::Removing => {
                    found.waiting.get_or_insert((image.written, reported));
                }
                _ => {}
            }
        }
        found
    }

    /// The results that go into the status, in the order of the spec if all do, and how many do not.
    pub fn results(&self) -> (Vec<ImageResult>, usize) {
        let mut images: Vec<_> = self.iter().collect();
        if images.len() > MOST_IMAGES {
            images.sort_by_key(|image| Reverse((image.failed > 0, image.has_drifted())));
            images.truncate(MOST_IMAGES);
        }
        let omitted = self.len() - images.len();
        (images.into_iter().map(Image::result).collect(), omitted)
    }
}

impl<'a> Image<'a> {
    fn new(written: &'a str, key: String, list: usize) -> Self {
        Self {
            written,
            key,
            lists: vec![list],
            ready: 0,
            failed: 0,
            failures: BTreeMap::new(),
            kept: BTreeMap::new(),
            unpinned: Names::default(),
            digests: BTreeMap::new(),
        }
    }

    /// Its name means different images on different nodes.
    pub fn has_drifted(&self) -> bool {
        self.digests.len() > 1
    }

    /// Its digests, those that most nodes have first.
    pub fn digests(&self) -> impl Iterator<Item = (&'a str, &Names<'a>)> {
        let mut digests: Vec<_> = self.digests.iter().collect();
        digests.sort_by_key(|(_, nodes)| Reverse(nodes.count()));
        digests.into_iter().map(|(digest, nodes)| (*digest, nodes))
    }

    fn result(&self) -> ImageResult {
        ImageResult {
            image: self.written.to_owned(),
            ready_nodes: count(self.ready),
            failed_nodes: count(self.failed),
            digests: self
                .digests()
                .take(MOST_DIGESTS)
                .map(|(digest, _)| digest.to_owned())
                .collect(),
        }
    }
}
