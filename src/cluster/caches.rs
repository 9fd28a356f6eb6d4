//! The `ImageCache`s of a watch, folded into what the agent is told.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tracing::warn;

use super::watch::Event;
use crate::api::{ImageCache, ImageCacheSpec, REFRESH};
use crate::decide::{Cache, CacheName, Caches, Known};
use crate::image::hash;

/// An `ImageCache` as it comes: whatever its spec holds it can be read, and its status, which may be larger than all the rest, is
/// passed over.
#[derive(Clone, Debug, Deserialize)]
pub struct RawCache {
    #[serde(deserialize_with = "lean")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

impl Resource for RawCache {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        ImageCache::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        ImageCache::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        ImageCache::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        ImageCache::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Reads the fields that decisions need. The managed fields alone can be larger than a spec.
fn lean<'de, D: Deserializer<'de>>(metadata: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lean {
        name: String,
        namespace: Option<String>,
        uid: Option<String>,
        generation: Option<i64>,
        resource_version: Option<String>,
        deletion_timestamp: Option<Time>,
        #[serde(default)]
        annotations: Annotations,
    }
    /// The only one that means something here; the others can be large.
    #[derive(Default, Deserialize)]
    struct Annotations {
        #[serde(rename = "imagecache.dev/refresh")]
        refresh: Option<String>,
    }
    Lean::deserialize(metadata).map(|lean| ObjectMeta {
        annotations: lean
            .annotations
            .refresh
            .map(|value| [(REFRESH.to_owned(), value)].into()),
        name: Some(lean.name),
        namespace: lean.namespace,
        uid: lean.uid,
        generation: lean.generation,
        resource_version: lean.resource_version,
        deletion_timestamp: lean.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// The `ImageCache`s, as far as they are known.
#[derive(Debug, Default)]
pub struct CacheFold {
    known: Known<Arc<Caches>>,
    is_current: bool,
    listed: Option<Caches>,
}

impl CacheFold {
    /// Takes an event in. True if what is known changed with it.
    pub fn take(&mut self, event: Event<RawCache>) -> bool {
        match event {
            Event::Begin => {
                self.listed = Some(Caches::new());
                std::mem::replace(&mut self.is_current, false)
            }
            Event::Complete => {
                let is_news = !std::mem::replace(&mut self.is_current, true);
                match (self.listed.take(), self.known.known()) {
                    (Some(listed), Some(known)) if is_same(&listed, known) => is_news,
                    (Some(listed), _) => {
                        self.known = Known::Known(Arc::new(listed));
                        true
                    }
                    (None, _) => is_news,
                }
            }
            // A list that broke off says nothing.
            Event::Resumed => {
                self.listed = None;
                !std::mem::replace(&mut self.is_current, true)
            }
            Event::Lost => {
                self.listed = None;
                std::mem::replace(&mut self.is_current, false)
            }
            Event::Listed(object) | Event::Changed(object) => {
                let name = name(&object);
                let cache = self.read(&name, object);
                self.put(name, cache)
            }
            Event::Deleted(object) => self.put(name(&object), None),
        }
    }

    /// What is known now.
    #[must_use]
    pub const fn known(&self) -> &Known<Arc<Caches>> {
        &self.known
    }

    /// Whether the API server tells of changes at this moment.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.is_current
    }

    /// Puts an object into the list that is under way, or else into what is known.
    fn put(&mut self, name: CacheName, cache: Option<Arc<Cache>>) -> bool {
        if let Some(listed) = &mut self.listed {
            match cache {
                Some(cache) => listed.insert(name, cache),
                None => listed.remove(&name),
            };
            return false;
        }
        let Known::Known(known) = &mut self.known else {
            return false;
        };
        let same = match (known.get(&name), &cache) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if !same {
            let known = Arc::make_mut(known);
            match cache {
                Some(cache) => known.insert(name, cache),
                None => known.remove(&name),
            };
        }
        !same
    }

    /// Reads an object; what says the same as before is the same allocation. `None` while it is being deleted: it asks for
    /// nothing any more.
    fn read(&self, name: &CacheName, object: RawCache) -> Option<Arc<Cache>> {
        let metadata = object.metadata;
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        let uid = metadata.uid.unwrap_or_default();
        let generation = metadata.generation.unwrap_or_default();
        let before = self
            .known
            .known()
            .and_then(|known| known.get(name))
            .filter(|before| before.uid == uid);
        let (spec, unreadable) = match ImageCacheSpec::read(&object.spec) {
            Ok(spec) => (Some((generation, Arc::new(spec))), None),
            Err(error) => (before.and_then(|before| before.spec.clone()), Some(error)),
        };
        let cache = Cache {
            uid,
            generation,
            spec,
            unreadable,
            refresh: metadata
                .annotations
                .and_then(|mut annotations| annotations.remove(REFRESH))
                .map(|value| short(&value)),
        };
        // The generation alone does not tell: while a CustomResourceDefinition changes, the API server can send an object
        // without the fields that only the new one knows.
        if let Some(same) = before.filter(|before| ***before == cache) {
            return Some(Arc::clone(same));
        }
        if let Some(error) = &cache.unreadable {
            let in_force = cache.spec.as_ref().map(|(generation, _)| generation);
            warn!(cache = %name, generation, in_force, %error, "spec cannot be read");
        }
        Some(Arc::new(cache))
    }
}

/// The longest value of the annotation that is kept as it is, in bytes: it stands in every node's status.
const MAX_VALUE: usize = 64;

/// The value, or what tells it from others if it is long.
fn short(value: &str) -> Arc<str> {
    if value.len() <= MAX_VALUE {
        value.into()
    } else {
        format!("hash {:016x}", hash(value)).into()
    }
}

fn name(object: &RawCache) -> CacheName {
    CacheName {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

/// What did not change is the same allocation in both.
fn is_same(a: &Caches, b: &Caches) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use serde_json::json;

    use super::*;
    use crate::api::SpecError;

    fn object(name: &str, uid: &str, generation: i64, spec: impl Into<Value>) -> RawCache {
        serde_json::from_value(json!({
            "apiVersion": "imagecache.dev/v1alpha1",
            "kind": "ImageCache",
            "metadata": {"name": name, "namespace": "ns", "uid": uid, "generation": generation, "resourceVersion": "7"},
            "spec": spec.into(),
            "status": {"lists": "what a later version may write here"},
        }))
        .unwrap()
    }

    fn wants(image: &str) -> Value {
        json!({"cacheSpec": [{"images": [image]}]})
    }

    fn listed(objects: Vec<RawCache>) -> CacheFold {
        let mut fold = CacheFold::default();
        list(&mut fold, objects);
        fold
    }

    fn list(fold: &mut CacheFold, objects: Vec<RawCache>) -> bool {
        fold.take(Event::Begin);
        for object in objects {
            assert!(
                !fold.take(Event::Listed(object)),
                "a list that is under way changes nothing"
            );
        }
        fold.take(Event::Complete)
    }

    fn cache(fold: &CacheFold, name: &str) -> Option<Arc<Cache>> {
        let name = CacheName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        fold.known().known().unwrap().get(&name).cloned()
    }

    fn images(cache: &Cache) -> Vec<String> {
        cache.spec.as_ref().unwrap().1.cache_spec[0].images.clone()
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_complete() {
        let mut fold = CacheFold::default();
        assert_eq!(fold.known(), &Known::Unknown);
        fold.take(Event::Begin);
        fold.take(Event::Listed(object("a", "1", 1, wants("x"))));
        assert_eq!(fold.known(), &Known::Unknown);
        assert!(fold.take(Event::Complete));
        assert_eq!(images(&cache(&fold, "a").unwrap()), ["x"]);
    }

    #[test]
    fn an_empty_list_is_known_to_be_empty() {
        assert_eq!(listed(Vec::new()).known().known().unwrap().len(), 0);
    }

    #[test]
    fn a_new_list_replaces_the_old_one_only_when_it_is_complete() {
        let mut fold = listed(vec![
            object("a", "1", 1, wants("x")),
            object("b", "2", 1, wants("y")),
        ]);
        for _ in 0..2 {
            fold.take(Event::Begin);
            fold.take(Event::Listed(object("b", "2", 1, wants("y"))));
            assert!(
                cache(&fold, "a").is_some(),
                "it broke off: what was known stays"
            );
        }
        assert!(fold.take(Event::Complete));
        assert!(cache(&fold, "a").is_none() && cache(&fold, "b").is_some());
    }

    #[test]
    fn only_a_new_generation_is_news() {
        let mut fold = listed(vec![object("a", "1", 1, wants("x"))]);
        assert!(
            !fold.take(Event::Changed(object("a", "1", 1, wants("x")))),
            "a status"
        );
        let before = cache(&fold, "a").unwrap();
        assert!(
            list(&mut fold, vec![object("a", "1", 1, wants("x"))]),
            "it is current again"
        );
        assert!(Arc::ptr_eq(&before, &cache(&fold, "a").unwrap()));
        assert!(fold.take(Event::Changed(object("a", "1", 2, wants("y")))));
        assert_eq!(images(&cache(&fold, "a").unwrap()), ["y"]);
        assert!(fold.take(Event::Changed(object("b", "2", 1, wants("z")))));
        assert!(fold.take(Event::Deleted(object("b", "2", 1, wants("z")))));
        assert!(!fold.take(Event::Deleted(object("b", "2", 1, wants("z")))));
        assert!(cache(&fold, "b").is_none());
    }

    #[test]
    fn a_field_that_was_cut_off_on_its_way_is_news_when_it_comes() {
        let mut fold = listed(vec![object("a", "1", 1, wants("x"))]);
        let whole = json!({"cacheSpec": [{"images": ["x"]}], "turnedRound": true});
        assert!(list(&mut fold, vec![object("a", "1", 1, whole)]));
        assert!(cache(&fold, "a").unwrap().unreadable.is_some());
    }

    #[test]
    fn an_unreadable_edit_leaves_the_last_readable_spec_in_force() {
        let mut fold = listed(vec![object("a", "1", 1, wants("x"))]);
        let newer = json!({"cacheSpec": [{"images": ["y"]}], "turnedRound": true});
        assert!(fold.take(Event::Changed(object("a", "1", 2, newer.clone()))));
        let seen = cache(&fold, "a").unwrap();
        assert_eq!((seen.generation, seen.spec.as_ref().unwrap().0), (2, 1));
        assert_eq!(images(&seen), ["x"]);
        assert!(matches!(
            seen.unreadable,
            Some(SpecError::Unsupported { .. })
        ));
        assert!(
            !fold.take(Event::Changed(object("a", "1", 2, newer))),
            "once is enough"
        );
        assert!(fold.take(Event::Changed(object("a", "1", 3, wants("z")))));
        let seen = cache(&fold, "a").unwrap();
        assert_eq!(
            (images(&seen), &seen.unreadable),
            (vec!["z".to_owned()], &None)
        );
    }

    #[test]
    fn another_object_of_the_same_name_inherits_nothing() {
        let mut fold = listed(vec![object("a", "1", 1, wants("x"))]);
        assert!(fold.take(Event::Changed(object("a", "2", 1, json!({"cacheSpec": 3})))));
        let seen = cache(&fold, "a").unwrap();
        assert!(seen.spec.is_none() && seen.unreadable.is_some());
    }

    #[test]
    fn what_cannot_be_read_does_not_hide_the_others() {
        let fold = listed(vec![
            object("a", "1", 1, Value::Null),
            object("b", "2", 1, json!("text")),
            object("c", "3", 1, wants("x")),
        ]);
        assert!(cache(&fold, "a").unwrap().unreadable.is_some());
        assert!(cache(&fold, "b").unwrap().unreadable.is_some());
        assert_eq!(images(&cache(&fold, "c").unwrap()), ["x"]);
    }

    #[test]
    fn an_object_that_is_being_deleted_asks_for_nothing() {
        let mut fold = listed(vec![object("a", "1", 1, wants("x"))]);
        let mut going = object("a", "1", 2, wants("x"));
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert!(fold.take(Event::Changed(going)));
        assert!(cache(&fold, "a").is_none());
    }
}
