//! What an exec credential provider answered before, and for which images and how long that is good.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::docker_config::Entry;
use super::provider_answer::{Answer, Scope};

/// The answers of one provider.
#[derive(Debug, Default)]
pub struct ProviderCache {
    answers: BTreeMap<Key, (Instant, Arc<Vec<Entry>>)>,
}

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Key {
    Image(String),
    Registry(String),
    Global,
}

impl Key {
    fn new(scope: Scope, image: &str) -> Self {
        match scope {
            Scope::Image => Self::Image(image.to_owned()),
            Scope::Registry => Self::Registry(registry(image).to_owned()),
            Scope::Global => Self::Global,
        }
    }

    /// Under which keys there can be an answer for an image, in the order in which they are looked up.
    fn of(image: &str) -> [Self; 3] {
        [Scope::Image, Scope::Registry, Scope::Global].map(|scope| Self::new(scope, image))
    }
}

/// The registry of an image that is named in full.
pub fn registry(image: &str) -> &str {
    image.split('/').next().unwrap_or(image)
}

impl ProviderCache {
    /// An answer for the image, registry and repository in full, that is still good.
    #[must_use]
    pub fn get(&self, image: &str, now: Instant) -> Option<Arc<Vec<Entry>>> {
        Key::of(image)
            .iter()
            .filter_map(|key| self.answers.get(key))
            .find(|(until, _)| now < *until)
            .map(|(_, entries)| Arc::clone(entries))
    }

    /// Keeps an answer, an empty one too, for as long as it says, else for `default`. Those that are not good any more go.
    pub fn put(
        &mut self,
        image: &str,
        answer: Answer,
        default: Duration,
        now: Instant,
    ) -> Arc<Vec<Entry>> {
        self.answers.retain(|_, (until, _)| now < *until);
        let entries = Arc::new(answer.entries);
        let duration = answer.duration.unwrap_or(default);
        // One that is good for longer than a clock can count is asked for again.
        if let Some(until) = now.checked_add(duration).filter(|until| now < *until) {
            let key = Key::new(answer.scope, image);
            self.answers.insert(key, (until, Arc::clone(&entries)));
        }
        entries
    }

    /// What was kept for an image is not good any more.
    pub fn forget(&mut self, image: &str) {
        for key in Key::of(image) {
            self.answers.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn answer(scope: Scope, duration: Option<Duration>) -> Answer {
        Answer {
            scope,
            duration,
            entries: Vec::new(),
        }
    }

    #[test]
    fn an_answer_is_good_for_its_scope_even_an_empty_one() {
        let now = Instant::now();
        for (scope, same, other_image, other_registry) in [
            (Scope::Image, true, false, false),
            (Scope::Registry, true, true, false),
            (Scope::Global, true, true, true),
        ] {
            let mut cache = ProviderCache::default();
            cache.put("r.io/a", answer(scope, None), HOUR, now);
            let hit = |image| cache.get(image, now).is_some();
            assert_eq!(
                (hit("r.io/a"), hit("r.io/b"), hit("q.io/a")),
                (same, other_image, other_registry),
                "{scope:?}"
            );
            cache.forget("q.io/b");
            let is_global = scope == Scope::Global;
            assert_eq!(cache.get("r.io/a", now).is_none(), is_global, "{scope:?}");
            cache.forget("r.io/a");
            assert!(cache.get("r.io/a", now).is_none(), "{scope:?}");
        }
    }

    #[test]
    fn an_answer_is_good_for_as_long_as_it_says_or_else_by_default() {
        let now = Instant::now();
        for (said, default, good_for) in [
            (None, HOUR, HOUR),
            (Some(SECOND), HOUR, SECOND),
            (Some(Duration::ZERO), HOUR, Duration::ZERO),
            (None, Duration::ZERO, Duration::ZERO),
            (Some(Duration::MAX), HOUR, Duration::ZERO),
        ] {
            let mut cache = ProviderCache::default();
            cache.put("r.io/a", answer(Scope::Image, said), default, now);
            let hit = |at| cache.get("r.io/a", at).is_some();
            assert!(!hit(now + good_for), "{said:?} {default:?}");
            let before = good_for.checked_sub(Duration::from_millis(1));
            assert!(
                before.is_none_or(|before| hit(now + before)),
                "{said:?} {default:?}"
            );
        }
    }

    #[test]
    fn answers_that_are_over_are_not_kept() {
        let now = Instant::now();
        let mut cache = ProviderCache::default();
        cache.put("r.io/a", answer(Scope::Image, None), SECOND, now);
        cache.put("r.io/b", answer(Scope::Image, None), SECOND, now + HOUR);
        assert_eq!(cache.answers.len(), 1);
    }
}
