//! Registries that are left alone for a while: as a whole when they do not answer, and for whoever asks with the same credentials
//! when they say that these ask too much.
//!
//! A limit is one of the credentials that were used, and not of the pull secrets that are named for an image: of one Secret for
//! `docker.io/team`, the images of `docker.io/library` are asked for by nobody, with nobody's limit. Who asks is known once a pull
//! has read its credentials. So an image of which that is not known yet reads them first, and does not ask if there is a limit for
//! these.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::backoff;
use super::desired::Wanted;
use super::inputs::SecretName;
use super::memory::{Failed, later};
use super::timing::Timing;
use super::world::Now;
use crate::api::Reason;

/// The sources that gave credentials for an image, by their names: with whose rights it is asked for. None: with nobody's.
pub type Credentials = BTreeSet<Arc<str>>;

/// Registries that are being left alone, by their host and port.
#[derive(Clone, Debug, Default)]
pub struct Registries {
    held: BTreeMap<String, Holds>,
}

/// What holds for one registry.
#[derive(Clone, Debug, Default)]
struct Holds {
    /// It does not answer.
    whole: Option<Hold>,
    /// It answers "too many requests" to these.
    limited: BTreeMap<Credentials, Hold>,
}

/// A registry is left alone. When the time is over it is asked for one image at a time, until it answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hold {
    /// Failures in a row.
    pub failures: u32,
    /// The time is over then, and the same for people.
    pub until: (Duration, Timestamp),
    /// The last failure, and the image that it was about.
    pub cause: (String, Failed),
    /// When it began, or was made longer.
    since: Duration,
}

/// Whom a hold is for: of one scope, one image at a time is asked for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Scope<'a> {
    registry: &'a str,
    credentials: Option<&'a Credentials>,
}

/// A registry begins to be left alone, or is so no more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct News {
    /// Its host and port.
    pub registry: String,
    /// Until then, and why. `None`: it answers again.
    pub held: Option<(Timestamp, Reason)>,
}

impl Registries {
    /// What holds for an image that is asked for with these credentials, if that is known: of two holds the longer one.
    #[must_use]
    pub fn hold<'a>(
        &'a self,
        wanted: &'a Wanted,
        credentials: Option<&'a Credentials>,
    ) -> Option<(Scope<'a>, &'a Hold)> {
        let registry = wanted.reference.as_ref().ok()?.registry();
        let holds = self.held.get(registry)?;
        let scope = |credentials| Scope {
            registry,
            credentials,
        };
        let whole = holds.whole.iter().map(|hold| (scope(None), hold));
        let limited = credentials.and_then(|credentials| {
            Some((scope(Some(credentials)), holds.limited.get(credentials)?))
        });
        whole.chain(limited).max_by_key(|(_, hold)| hold.until.0)
    }

    /// With which credentials the image's registry is not to be asked, other than with these, with which it may be.
    #[must_use]
    pub fn limits(&self, wanted: &Wanted, but: Option<&Credentials>) -> BTreeSet<Credentials> {
        let reference = wanted.reference.as_ref().ok();
        let holds = reference.and_then(|reference| self.held.get(reference.registry()));
        let limited = holds.into_iter().flat_map(|holds| holds.limited.keys());
        limited
            .filter(|credentials| Some(*credentials) != but)
            .cloned()
            .collect()
    }

    /// A pull with these credentials that began at `began` failed.
    pub(super) fn failed(
        &mut self,
        (wanted, credentials): (&Wanted, &Credentials),
        failed: &Failed,
        began: Duration,
        now: Now,
        timing: &Timing,
        chance: f64,
    ) -> Option<News> {
        let reference = wanted.reference.as_ref().ok()?;
        let registry = reference.registry();
        match failed.reason {
            Reason::RegistryUnavailable => {}
            Reason::RateLimited => drop(self.answered(wanted, credentials, false)),
            // These say nothing about the registry.
            Reason::Stalled | Reason::Tls | Reason::PullFailed | Reason::InvalidReference => {
                return None;
            }
            _ => return self.answered(wanted, credentials, true),
        }
        let holds = self.held.entry(registry.to_owned()).or_default();
        let before = if failed.reason == Reason::RateLimited {
            holds.limited.get(credentials)
        } else {
            holds.whole.as_ref()
        };
        // Pulls that were under way together say the same thing once.
        let repeats = before.filter(|hold| began < hold.since);
        let failures = before.map_or(0, |hold| hold.failures) + u32::from(repeats.is_none());
        let delay = backoff::delay(failed.reason, failures, timing, chance);
        let hold = Hold {
            failures,
            until: repeats.map_or_else(|| later(now, delay), |hold| hold.until),
            cause: (reference.as_written().to_owned(), failed.clone()),
            since: repeats.map_or(now.monotonic, |hold| hold.since),
        };
        let news = before.is_none().then(|| News {
            registry: registry.to_owned(),
            held: Some((hold.until.1, failed.reason)),
        });
        if failed.reason == Reason::RateLimited {
            holds.limited.insert(credentials.clone(), hold);
        } else {
            holds.whole = Some(hold);
        }
        news
    }

    /// The registry gave an answer about this image, and not that there were too many questions if `is_served`.
    pub(super) fn answered(
        &mut self,
        wanted: &Wanted,
        credentials: &Credentials,
        is_served: bool,
    ) -> Option<News> {
        let registry = wanted.reference.as_ref().ok()?.registry();
        let holds = self.held.get_mut(registry)?;
        let whole = holds.whole.take();
        let limited = is_served
            .then(|| holds.limited.remove(credentials))
            .flatten();
        let freed = whole.or(limited).map(|_| News {
            registry: registry.to_owned(),
            held: None,
        });
        if holds.limited.is_empty() {
            self.held.remove(registry);
        }
        freed
    }

    /// What a registry said to these Secrets as they were says nothing about them as they are.
    pub(super) fn secrets_changed(&mut self, news: &BTreeSet<SecretName>) {
        let changed: Vec<String> = news.iter().map(ToString::to_string).collect();
        for holds in self.held.values_mut() {
            holds.limited.retain(|credentials, _| {
                let mut changed = changed.iter();
                changed.all(|secret| !credentials.contains(secret.as_str()))
            });
        }
    }

    /// Forgets what is over and concerns nobody any more.
    pub(super) fn forget<'a>(&mut self, wanted: impl Iterator<Item = &'a Wanted>, now: Duration) {
        if self.held.is_empty() {
            return;
        }
        let registries: BTreeSet<&str> = wanted
            .filter_map(|wanted| Some(wanted.reference.as_ref().ok()?.registry()))
            .collect();
        self.held.retain(|registry, holds| {
            let mut all = holds.whole.iter().chain(holds.limited.values());
            registries.contains(registry.as_str()) || all.any(|hold| hold.until.0 > now)
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cmp::Reverse;

    use super::*;
    use crate::image::Reference;

    /// An image, and whose credentials it is asked for with.
    type Asked = (Wanted, Credentials);

    fn wanted(image: &str, secrets: &[&str]) -> Asked {
        let credentials = secrets.iter().map(|name| format!("ns/{name}").into());
        let wanted = Wanted {
            reference: Ok(Reference::parse(image).unwrap()),
            rank: (Reverse(0), [0; 3]),
            paused: false,
            patience: Duration::from_mins(5),
            refresh: None,
            removable: false,
            pin: false,
            by: Arc::default(),
            secrets: Vec::new(),
        };
        (wanted, credentials.collect())
    }

    fn at(seconds: u64) -> Now {
        Now {
            monotonic: Duration::from_secs(seconds),
            wall: Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap(),
        }
    }

    fn fail(
        registries: &mut Registries,
        (wanted, credentials): &Asked,
        reason: Reason,
        began: u64,
        ended: u64,
    ) -> Option<News> {
        let failed = Failed {
            reason,
            message: "no".to_owned(),
        };
        let began = Duration::from_secs(began);
        let asked = (wanted, credentials);
        registries.failed(asked, &failed, began, at(ended), &Timing::default(), 0.5)
    }

    /// Until when, in seconds, and after how many failures.
    fn hold(registries: &Registries, (wanted, credentials): &Asked) -> Option<(u64, u32)> {
        let (_, hold) = registries.hold(wanted, Some(credentials))?;
        Some((hold.until.0.as_secs(), hold.failures))
    }

    #[test]
    fn a_registry_that_does_not_answer_is_left_alone_as_a_whole_until_it_answers() {
        let mut registries = Registries::default();
        let (a, b, other) = (
            wanted("r.io/a", &[]),
            wanted("r.io/b", &["s"]),
            wanted("q.io/a", &[]),
        );
        let news = fail(&mut registries, &a, Reason::RegistryUnavailable, 0, 1);
        assert_eq!(news.unwrap().registry, "r.io");
        assert_eq!(hold(&registries, &b), Some((11, 1)));
        assert_eq!(hold(&registries, &other), None);
        // It was under way already.
        assert_eq!(
            fail(&mut registries, &b, Reason::RegistryUnavailable, 0, 5),
            None
        );
        assert_eq!(hold(&registries, &a), Some((11, 1)));
        fail(&mut registries, &b, Reason::RegistryUnavailable, 11, 12);
        assert_eq!(hold(&registries, &a), Some((32, 2)));
        let news = fail(&mut registries, &a, Reason::NotFound, 32, 33);
        assert_eq!(news.unwrap().held, None);
        assert_eq!(hold(&registries, &b), None);
    }

    #[test]
    fn a_limit_is_one_of_those_who_ask_with_the_same_credentials() {
        let mut registries = Registries::default();
        let (nobody, team) = (wanted("r.io/a", &[]), wanted("r.io/b", &["s"]));
        fail(&mut registries, &nobody, Reason::RateLimited, 0, 0);
        assert_eq!(hold(&registries, &team), None);
        assert_eq!(hold(&registries, &nobody), Some((600, 1)));
        assert_eq!(
            registries.hold(&nobody.0, None),
            None,
            "who asks is not known"
        );
        assert_eq!(registries.answered(&team.0, &team.1, true), None);
        assert_eq!(hold(&registries, &nobody), Some((600, 1)));
        fail(&mut registries, &team, Reason::RateLimited, 1, 1);
        let all = [nobody.1.clone(), team.1.clone()].into();
        assert_eq!(registries.limits(&nobody.0, None), all);
        let others = [team.1.clone()].into();
        assert_eq!(registries.limits(&nobody.0, Some(&nobody.1)), others);
        let secret = SecretName {
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
        };
        registries.secrets_changed(&[secret].into());
        assert_eq!(hold(&registries, &team), None);
        assert!(registries.answered(&nobody.0, &nobody.1, true).is_some());
        assert_eq!(hold(&registries, &nobody), None);
    }

    #[test]
    fn what_concerns_nobody_is_forgotten_when_it_is_over() {
        let mut registries = Registries::default();
        let a = wanted("r.io/a", &[]);
        fail(&mut registries, &a, Reason::RegistryUnavailable, 0, 0);
        let forget = |registries: &mut Registries, wanted: &[&Wanted], at| {
            registries.forget(wanted.iter().copied(), Duration::from_secs(at));
            registries.held.len()
        };
        assert_eq!(forget(&mut registries, &[], 9), 1);
        assert_eq!(forget(&mut registries, &[&a.0], 11), 1);
        assert_eq!(forget(&mut registries, &[], 11), 0);
    }
}
