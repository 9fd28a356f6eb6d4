//! What moves on the node: the downloads of its own pulls, which of these have stalled, and the downloads of others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::desired::ImageKey;
use super::timing::Timing;

/// containerd 2 downloads so many layers at once, of all pulls together; the versions before it so many of each pull.
const SLOTS: usize = 3;

/// A download that has not ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ingest {
    /// What is downloaded. Two pulls that need the same share it.
    pub name: String,
    /// Bytes so far.
    pub offset: u64,
}

/// What a pull was seen to do.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Download {
    /// Bytes of the image on the disk, and in all, which is 0 until that is known.
    pub bytes: (u64, u64),
    /// Its downloads that have not ended.
    pub ingests: Vec<Ingest>,
    /// How many of its downloads are complete.
    pub complete: usize,
    /// How many layers it has begun to unpack.
    pub snapshots: usize,
}

/// The node's downloads at one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sight {
    /// Those of the own pulls.
    pub pulls: BTreeMap<ImageKey, Download>,
    /// What own pulls may have left that do not run now. If it moves, somebody else goes on with it.
    pub kept: Vec<Ingest>,
    /// All others, parts of interrupted ones among them. `None`: it is not known which of these and of what is kept are others'.
    pub others: Option<Vec<Ingest>>,
}

/// What is remembered of the node's downloads from one look to the next.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pulls: BTreeMap<ImageKey, Course>,
    others: Others,
    /// The downloads that were seen take all the slots that pulls share: one that has begun nothing may wait for them.
    is_crowded: bool,
}

/// The course of one pull.
#[derive(Clone, Debug)]
struct Course {
    /// The newest look at it.
    latest: Download,
    /// Since then nothing has moved, although its turn had come.
    still_since: Duration,
    /// When it was last looked at. `None`: not yet.
    seen_at: Option<Duration>,
    /// An earlier attempt has left something.
    resumes: bool,
    /// Something has moved since the pull began.
    has_moved: bool,
    /// When it was first seen to wait for layers.
    queued_at: Option<Duration>,
    /// The furthest offset of each ingest, and whether it has moved since the pull began.
    ingests: BTreeMap<String, (u64, bool)>,
    /// When it was last said how far it is, and the bytes then.
    told: (Duration, u64),
}

/// The downloads of others.
#[derive(Clone, Debug, Default)]
struct Others {
    /// `None` until the first look.
    seen: Option<BTreeMap<String, Other>>,
    /// When own pulls that ran last had these: what is seen of them right afterwards was brought by these.
    ours: BTreeMap<String, Duration>,
    /// When others began to download without a pause, and when they were last seen to.
    busy: Option<(Duration, Duration)>,
}

/// A download of somebody else.
#[derive(Clone, Copy, Debug)]
struct Other {
    offset: u64,
    /// When it moved last, as far as that was seen.
    moved: Option<Duration>,
    /// It may be what an interrupted download has left: it was there at the first look, or was or is kept for an own pull.
    may_be_left: bool,
}

/// How far the own pulls make way for the downloads of others.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Yielding {
    /// There are no others.
    #[default]
    No,
    /// Nothing is pulled.
    Wholly,
    /// It has been so for a long time: one image at a time is pulled.
    OneAtATime,
}

/// How a pull gets on, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advance {
    /// Bytes of the image on the disk.
    pub done: u64,
    /// Bytes in all. 0: not known.
    pub total: u64,
    /// Bytes a second since it was told last.
    pub rate: f64,
}

impl Advance {
    /// How long the rest takes at this rate.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let left = self.total.checked_sub(self.done).filter(|left| *left > 0)?;
        #[allow(clippy::cast_precision_loss, reason = "a time for people")]
        let seconds = left as f64 / self.rate;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl Traffic {
    /// A pull begins. `resumes`: an earlier attempt has left something.
    pub fn began(&mut self, key: ImageKey, resumes: bool, now: Duration) {
        let course = Course {
            latest: Download::default(),
            still_since: now,
            seen_at: None,
            resumes,
            // Whatever a pull has that resumes nothing, it has brought itself.
            has_moved: !resumes,
            queued_at: None,
            ingests: BTreeMap::new(),
            told: (now, 0),
        };
        self.pulls.insert(key, course);
    }

    /// Whether a pull goes on with what an earlier attempt has left.
    #[must_use]
    pub fn resumes(&self, key: &ImageKey) -> bool {
        self.pulls.get(key).is_some_and(|course| course.resumes)
    }

    /// The runtime is asked for the image now: what came before, such as reading credentials, is over.
    pub fn asked(&mut self, key: &ImageKey, now: Duration) {
        if let Some(course) = self.pulls.get_mut(key) {
            course.still_since = now;
        }
    }

    /// A pull has ended.
    pub fn ended(&mut self, key: &ImageKey) {
        self.pulls.remove(key);
    }

    /// Nobody looks for a while: what others do meanwhile is not known later.
    pub fn forget_others(&mut self) {
        self.others = Others::default();
    }

    /// Takes what was seen. `shared_slots`: the runtime downloads a few layers at once of all pulls together.
    pub fn saw(&mut self, sight: &Sight, shared_slots: bool, now: Duration, timing: &Timing) {
        let own = sight.pulls.values().flat_map(|pull| &pull.ingests);
        let others = sight.others.iter().flatten();
        self.is_crowded = shared_slots && own.clone().chain(others).count() >= SLOTS;
        self.others.ours(own, now, timing);
        if let Some(others) = &sight.others {
            self.others.saw(&sight.kept, others, now, timing);
        }
        for (key, seen) in &sight.pulls {
            if let Some(course) = self.pulls.get_mut(key) {
                course.saw(seen, now, timing);
            }
        }
        if shared_slots {
            let waiting: Vec<_> = self
                .pulls
                .iter()
                .filter(|(key, course)| {
                    course.may_wait() && self.ahead_of(key, course, now, timing) >= SLOTS
                })
                .map(|(key, _)| key.clone())
                .collect();
            for key in waiting {
                if let Some(course) = self.pulls.get_mut(&key) {
                    course.still_since = now;
                }
            }
        }
    }

    /// How many downloads have their turn before those of this pull.
    fn ahead_of(&self, key: &ImageKey, course: &Course, now: Duration, timing: &Timing) -> usize {
        let place = (course.queued_at, key);
        let earlier = self
            .pulls
            .iter()
            .filter(|(other, course)| {
                course.queued_at.is_some() && (course.queued_at, *other) < place
            })
            .map(|(_, course)| course.latest.ingests.len());
        earlier.sum::<usize>() + self.others.moving(now, timing)
    }

    /// Why a pull counts as stalled, if it does: nothing of it moves for `patience`. Nothing is said of a pull that nobody sees.
    #[must_use]
    pub fn stalled(
        &self,
        key: &ImageKey,
        patience: Duration,
        now: Duration,
        timing: &Timing,
    ) -> Option<String> {
        let course = self.pulls.get(key)?;
        if now.saturating_sub(course.seen_at?) > timing.traffic_unseen {
            return None;
        }
        let still = now.saturating_sub(course.still_since);
        let unpacks =
            course.has_moved && course.latest.ingests.is_empty() && course.latest.complete > 0;
        let limit = if unpacks { timing.unpack } else { patience };
        if still < limit {
            return None;
        }
        let limit = jiff::SignedDuration::try_from(limit).unwrap_or_default();
        let (done, total) = course.latest.bytes;
        Some(if unpacks {
            format!("unpacking has made no progress for {limit:#}")
        } else if course.is_empty() {
            format!("the registry has not answered for {limit:#} (pullProgressTimeout)")
        } else {
            format!(
                "no byte has come for {limit:#} (pullProgressTimeout); {done} of {total} bytes are there and are kept"
            )
        })
    }

    /// Nothing of this pull has come yet, not even its manifest, and it waits for nothing else: the registry has not answered at all.
    /// Where nobody sees bytes this is said of no pull.
    #[must_use]
    pub fn is_unanswered(&self, key: &ImageKey) -> bool {
        let course = self.pulls.get(key);
        let is_empty = |course: &Course| course.seen_at.is_some() && course.is_empty();
        course.is_some_and(is_empty) && !self.is_crowded
    }

    /// Whether own pulls make way for others.
    #[must_use]
    pub fn yielding(&self, now: Duration, timing: &Timing) -> Yielding {
        match self.others.busy {
            Some((_, last)) if now >= last + timing.yield_after => Yielding::No,
            Some((since, _)) if now >= since + timing.yield_wholly => Yielding::OneAtATime,
            Some(_) => Yielding::Wholly,
            None => Yielding::No,
        }
    }

    /// How many bytes each pull has brought and has in all.
    pub fn bytes(&self) -> impl Iterator<Item = (&ImageKey, (u64, u64))> {
        self.pulls
            .iter()
            .map(|(key, course)| (key, course.latest.bytes))
    }

    /// The pulls of which nothing was told for the time `every`, and how they get on.
    pub fn tell(&mut self, every: Duration, now: Duration) -> Vec<(ImageKey, Advance)> {
        let mut told = Vec::new();
        for (key, course) in &mut self.pulls {
            let (at, before) = course.told;
            let since = now.saturating_sub(at);
            if since < every {
                continue;
            }
            let (done, total) = course.latest.bytes;
            course.told = (now, done);
            #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = done.saturating_sub(before) as f64 / since.as_secs_f64();
            told.push((key.clone(), Advance { done, total, rate }));
        }
        told
    }
}

impl Course {
    fn saw(&mut self, seen: &Download, now: Duration, timing: &Timing) {
        let before = self.seen_at.replace(now);
        // What moved while nobody looked is not known.
        if let Some(before) = before
            && now.saturating_sub(before) > timing.traffic_unseen
        {
            self.still_since = now;
        }
        let mut moved =
            seen.complete > self.latest.complete || seen.snapshots > self.latest.snapshots;
        for ingest in &seen.ingests {
            match self.ingests.get_mut(&ingest.name) {
                Some((furthest, has_moved)) if ingest.offset > *furthest => {
                    (*furthest, *has_moved) = (ingest.offset, true);
                    moved = true;
                }
                Some(_) => {}
                None => {
                    self.ingests
                        .insert(ingest.name.clone(), (ingest.offset, false));
                    moved = true;
                }
            }
        }
        if !seen.ingests.is_empty() {
            self.queued_at.get_or_insert(now);
        }
        if moved {
            self.still_since = now;
            // What an attempt finds at its beginning it has not brought.
            self.has_moved |= before.is_some();
        }
        self.latest = seen.clone();
    }

    /// It has nothing, and brings nothing.
    fn is_empty(&self) -> bool {
        self.latest.complete == 0 && self.latest.ingests.is_empty()
    }

    /// None of its downloads has moved since it began: each may be waiting for its turn.
    fn may_wait(&self) -> bool {
        let mut ingests = self.latest.ingests.iter();
        !self.latest.ingests.is_empty()
            && ingests.all(|ingest| {
                self.ingests
                    .get(&ingest.name)
                    .is_none_or(|(_, moved)| !moved)
            })
    }
}

impl Others {
    /// These are or were the own pulls'.
    fn ours<'a>(&mut self, own: impl Iterator<Item = &'a Ingest>, now: Duration, timing: &Timing) {
        self.ours
            .retain(|_, last| now.saturating_sub(*last) < timing.yield_after);
        self.ours
            .extend(own.map(|ingest| (ingest.name.clone(), now)));
    }

    fn saw(&mut self, kept: &[Ingest], others: &[Ingest], now: Duration, timing: &Timing) {
        let is_first = self.seen.is_none();
        let before = self.seen.take().unwrap_or_default();
        let mut is_busy = false;
        let mut seen = BTreeMap::new();
        let kept = kept.iter().map(|ingest| (ingest, true));
        let others = others.iter().map(|ingest| (ingest, is_first));
        for (ingest, may_be_left) in kept.chain(others) {
            let is_ours = self.ours.contains_key(&ingest.name);
            let known = before.get(&ingest.name).filter(|_| !is_ours);
            let may_be_left =
                may_be_left || is_ours || known.is_some_and(|known| known.may_be_left);
            let moved = known.and_then(|known| {
                // One that is new is believed when it is there at the next look too.
                let is_confirmed = known.moved.is_none() && !may_be_left;
                if ingest.offset > known.offset || is_confirmed {
                    Some(now)
                } else {
                    known.moved
                }
            });
            is_busy |= moved.is_some_and(|at| now.saturating_sub(at) < timing.others_stand_still);
            let other = Other {
                offset: ingest.offset,
                moved,
                may_be_left,
            };
            seen.insert(ingest.name.clone(), other);
        }
        self.seen = Some(seen);
        if is_busy {
            let quiet = |(_, last): &(Duration, Duration)| now >= *last + timing.yield_after;
            let since = self
                .busy
                .filter(|busy| !quiet(busy))
                .map_or(now, |(since, _)| since);
            self.busy = Some((since, now));
        }
    }

    /// How many of them move.
    fn moving(&self, now: Duration, timing: &Timing) -> usize {
        let is_recent = |at: Duration| now.saturating_sub(at) < timing.others_stand_still;
        let seen = self.seen.iter().flatten();
        seen.filter(|(_, other)| other.moved.is_some_and(is_recent))
            .count()
    }
}

#[cfg(test)]
mod tests;
