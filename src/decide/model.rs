//! A model of a node that is edited, relabelled, evicted from and restarted at random: whatever
//! happens, the decisions keep their promises, and once it stops they converge.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;

use super::desired::{ImageKey, Wanted};
use super::disk::{Disk, Limits};
use super::memory::Failed;
use super::report::RUNTIME_READY;
use super::usage::Usage;
use super::world::{Outcome, PresentImage, World};
use super::{Cache, CacheName, Caches, Inputs, Known, Node, Now, Timing, desired, plan, report};
use crate::api::condition::find;
use crate::api::image_cache::NodeState;
use crate::api::node_image_cache::RuntimeStatus;
use crate::api::{
    ImageCacheSpec, ImageList, ImagePullPolicy, ImageState, NodeImageCacheStatus, Reason,
};
use crate::decide::selector::selects;
use crate::image::Reference;

const SLOTS: usize = 2;

/// Two spellings of one image, and a name that does not parse, among others.
const IMAGES: [&str; 6] = [
    "r.io/a:1",
    "r.io/b:1",
    "nginx",
    "docker.io/library/nginx:latest",
    "r.io/c:1",
    "Bad//",
];

const CAUSES: [Reason; 7] = [
    Reason::NotFound,
    Reason::RegistryUnavailable,
    Reason::Unauthorized,
    Reason::Stalled,
    Reason::NoMatchingPlatform,
    Reason::PullFailed,
    Reason::NoSpace,
];

const LIMITS: Limits = Limits {
    high_percent: 80,
    max_pinned_percent: 50,
    reclaim: false,
};

#[derive(Clone, Debug)]
enum Step {
    Edit(usize, ImageCacheSpec),
    Delete(usize),
    Label(bool),
    /// The nth running pull has brought its image, and has not ended yet.
    Land(usize, Platform),
    /// The nth running pull ends.
    End(usize, End),
    /// The runtime goes away, and with it all pulls.
    LoseRuntime,
    /// The runtime answers again.
    FindRuntime,
    Evict(usize),
    /// So many percent of the disk are used from now on.
    Fill(u64),
    Restart,
    Wait(u64),
}

/// How a pull ends that nobody has cancelled.
#[derive(Clone, Copy, Debug)]
enum End {
    Pulled(Platform),
    Failed(Reason),
}

/// What an image is made for.
#[derive(Clone, Copy, Debug)]
enum Platform {
    Ours,
    Foreign,
}

fn platform() -> impl Strategy<Value = Platform> {
    prop_oneof![3 => Just(Platform::Ours), 1 => Just(Platform::Foreign)]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        platform().prop_map(End::Pulled),
        (0..CAUSES.len()).prop_map(|cause| End::Failed(CAUSES[cause])),
    ]
}

fn spec() -> impl Strategy<Value = ImageCacheSpec> {
    let list = (vec(0..IMAGES.len(), 1..4), any::<Option<bool>>()).prop_map(|(images, tier)| {
        let images: BTreeSet<_> = images.into_iter().map(|n| IMAGES[n].to_owned()).collect();
        ImageList {
            images: images.into_iter().collect(),
            node_selector: tier
                .map(|yes| ("tier".to_owned(), yes.to_string()))
                .into_iter()
                .collect(),
            match_expressions: Vec::new(),
        }
    });
    (
        vec(list, 1..3),
        prop::bool::weighted(0.1),
        -1..2,
        any::<bool>(),
    )
        .prop_map(|(cache_spec, paused, priority, refreshed)| ImageCacheSpec {
            cache_spec,
            paused,
            priority,
            image_pull_policy: (!refreshed).then_some(ImagePullPolicy::IfNotPresent),
            ..ImageCacheSpec::default()
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_usize..3, spec()).prop_map(|(cache, spec)| Step::Edit(cache, spec)),
        1 => (0_usize..3).prop_map(Step::Delete),
        1 => any::<bool>().prop_map(Step::Label),
        2 => (any::<usize>(), platform()).prop_map(|(nth, platform)| Step::Land(nth, platform)),
        6 => (any::<usize>(), end()).prop_map(|(nth, end)| Step::End(nth, end)),
        1 => Just(Step::LoseRuntime),
        2 => Just(Step::FindRuntime),
        1 => (0..IMAGES.len()).prop_map(Step::Evict),
        1 => (60_u64..100).prop_map(Step::Fill),
        1 => Just(Step::Restart),
        3 => (0_u64..4000).prop_map(Step::Wait),
    ]
}

/// A node, its runtime, and the agent's memory of both.
struct Model {
    caches: BTreeMap<usize, (i64, ImageCacheSpec)>,
    labels: BTreeMap<String, String>,
    store: BTreeMap<ImageKey, PresentImage>,
    /// The runtime does not answer.
    down: bool,
    /// Wanted images for this platform that were there when the runtime last answered.
    seen: BTreeSet<ImageKey>,
    world: World,
    /// Percent of the disk.
    used: u64,
    seconds: u64,
    edits: i64,
    report: Option<NodeImageCacheStatus>,
}

impl Model {
    fn new() -> Self {
        Self {
            caches: BTreeMap::new(),
            labels: [("tier".to_owned(), "true".to_owned())].into(),
            store: BTreeMap::new(),
            down: false,
            seen: BTreeSet::new(),
            world: new_world(),
            used: 0,
            seconds: 0,
            edits: 0,
            report: None,
        }
    }

    fn now(&self) -> Now {
        Now {
            monotonic: Duration::from_secs(self.seconds),
            wall: Timestamp::from_second(i64::try_from(self.seconds).unwrap()).unwrap(),
        }
    }

    fn inputs(&self) -> Inputs {
        let caches: Caches = self
            .caches
            .iter()
            .map(|(name, (generation, spec))| {
                let cache = Cache {
                    uid: format!("uid-{name}"),
                    generation: *generation,
                    spec: Some((*generation, Arc::new(spec.clone()))),
                    unreadable: None,
                    refresh: None,
                };
                let name = CacheName {
                    namespace: "ns".into(),
                    name: name.to_string(),
                };
                (name, Arc::new(cache))
            })
            .collect();
        Inputs {
            caches: Known::Known(Arc::new(caches)),
            node: Known::Known(Node {
                uid: "node".into(),
                labels: self.labels.clone(),
            }),
            ..Inputs::default()
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Edit(cache, spec) => {
                self.edits += 1;
                self.caches.insert(cache, (self.edits, spec));
            }
            Step::Delete(cache) => {
                self.caches.remove(&cache);
            }
            Step::Label(tier) => {
                self.labels.insert("tier".into(), tier.to_string());
            }
            Step::Land(nth, platform) => {
                if let Some(key) = self.running(nth) {
                    self.land(&key, platform);
                }
            }
            Step::End(nth, end) => {
                if let Some(key) = self.running(nth) {
                    self.end(&key, end);
                }
            }
            Step::LoseRuntime => {
                self.down = true;
                self.world.lost_runtime("gone".into());
                for key in self.world.pulls.keys().cloned().collect::<Vec<_>>() {
                    self.world.ended(
                        &key,
                        Outcome::RuntimeLost,
                        self.now(),
                        &Timing::default(),
                        0.5,
                    );
                }
            }
            Step::FindRuntime => self.down = false,
            Step::Evict(image) => {
                self.store.remove(&key(IMAGES[image]));
            }
            // The runtime cancels the pulls of a client that is gone.
            Step::Restart => {
                self.world = new_world();
                self.seen.clear();
                if self.down {
                    self.world.lost_runtime("gone".into());
                }
            }
            Step::Fill(percent) => self.used = percent,
            Step::Wait(seconds) => self.seconds += seconds,
        }
    }

    /// The nth of the pulls under way.
    fn running(&self, nth: usize) -> Option<ImageKey> {
        let count = self.world.pulls.len().max(1);
        self.world.pulls.keys().nth(nth % count).cloned()
    }

    fn land(&mut self, key: &ImageKey, platform: Platform) {
        if !self.world.pulls[key].landed {
            self.store.insert(key.clone(), image(platform));
            self.world.landed(key);
        }
    }

    fn end(&mut self, key: &ImageKey, end: End) {
        let outcome = match end {
            _ if self.world.pulls[key].cancelled => Outcome::Cancelled,
            End::Failed(reason) => Outcome::Failed(Failed {
                reason,
                message: "no".into(),
            }),
            End::Pulled(platform) => {
                self.land(key, platform);
                // Something else may have removed it since it landed.
                let landed = self.store.get(key).cloned();
                Outcome::Pulled(landed.unwrap_or_else(|| image(platform)))
            }
        };
        let now = self.now();
        self.world.ended(key, outcome, now, &Timing::default(), 0.5);
    }

    /// What the loop does after everything that happens, with every promise checked.
    fn act(&mut self) {
        let now = self.now();
        let timing = Timing::default();
        let inputs = self.inputs();
        self.world.wants(desired(&inputs));
        let keys: Vec<_> = self
            .world
            .desired
            .known()
            .unwrap()
            .images
            .keys()
            .cloned()
            .collect();
        if self.down {
            // What the runtime said last holds for what is still wanted.
            self.seen.retain(|key| keys.contains(key));
        } else {
            let there = keys.iter().filter(|key| self.is_ours(key));
            self.seen = there.cloned().collect();
            let answer = keys
                .into_iter()
                .map(|key| {
                    let found = self.store.get(&key).cloned().map(Arc::new);
                    (key, found)
                })
                .collect();
            self.world.has(answer, now, &timing, 0.5);
        }

        let usage = Usage {
            capacity: 100,
            used: self.used,
            ..Usage::default()
        };
        self.world
            .disk
            .saw(Some(usage), [now.monotonic; 2], &timing);
        self.world.tend(now.monotonic, &timing);
        let plan_now = plan(&self.world, SLOTS, now);
        assert!(
            self.used <= 80 || plan_now.start.is_empty(),
            "something is started although there is no room"
        );
        assert_eq!(
            plan(&self.world, SLOTS, now),
            plan_now,
            "planning twice gives the same plan"
        );
        assert!(
            !self.down || plan_now.start.is_empty(),
            "something is started while the runtime is down"
        );
        for key in plan_now.cancel {
            let desired = self.world.desired.known().unwrap();
            let has_room = self.world.disk.obstacle(&key).is_none();
            assert!(!desired.images.contains_key(&key) || !has_room, "{key}");
            self.world.cancelled(&key);
        }
        for key in plan_now.start {
            let wanted = &self.world.desired.known().unwrap().images[&key];
            let is_refresh = wanted.refresh.is_some();
            assert!(
                !self.is_ours(&key) || is_refresh,
                "{key} is pulled though it is there"
            );
            let hold = self.world.hold(&key, wanted);
            assert!(
                hold.is_none_or(|(_, hold)| hold.until.0 <= now.monotonic),
                "{key} is pulled though its registry is left alone"
            );
            assert!(
                !self.world.pulls.contains_key(&key),
                "{key} is started twice"
            );
            self.world.started(key, false, now);
        }
        let pulls = self.world.pulls.values();
        assert!(pulls.clone().filter(|pull| !pull.landed).count() <= SLOTS);
        let mut taking = pulls.filter(|pull| !pull.landed && !pull.cancelled);
        assert!(self.used <= 80 || taking.next().is_none());
        assert!(
            plan(&self.world, SLOTS, now).start.is_empty(),
            "a plan that was carried out starts nothing more"
        );

        let report = report(
            &self.world,
            &RuntimeStatus::default(),
            self.report.as_ref(),
            now,
            &timing,
        )
        .unwrap();
        self.check(&report, &inputs);
        self.report = Some(report);
    }

    /// Whether the runtime has the image, and for this platform.
    fn is_ours(&self, key: &ImageKey) -> bool {
        let image = self.store.get(key);
        image.is_some_and(|image| image.foreign_platform.is_none())
    }

    /// The report counts what was there when the runtime last answered, for the lists that the labels select now, and
    /// for nothing else. It says whether the runtime answers.
    fn check(&self, report: &NodeImageCacheStatus, inputs: &Inputs) {
        let reported: BTreeMap<_, _> = report
            .caches
            .iter()
            .map(|cache| (cache.name.as_str(), cache))
            .collect();
        for (name, cache) in inputs.caches.known().unwrap().iter() {
            let (generation, spec) = cache.spec.as_ref().unwrap();
            let selected: Vec<_> = (0..)
                .zip(&spec.cache_spec)
                .filter(|(_, list)| selects(list, &self.labels))
                .collect();
            let Some(cache) = reported.get(name.name.as_str()) else {
                assert!(selected.is_empty());
                continue;
            };
            assert_eq!(cache.observed_generation, *generation);
            let here = |image: &String| self.seen.contains(&key(image));
            let ready = |list: &ImageList| {
                i32::try_from(list.images.iter().filter(|image| here(image)).count()).unwrap()
            };
            let expected: Vec<_> = selected
                .iter()
                .map(|(index, list)| (*index, ready(list)))
                .collect();
            let lists: Vec<_> = cache
                .lists
                .iter()
                .map(|list| (list.index, list.ready))
                .collect();
            assert_eq!(lists, expected);
            let all = selected
                .iter()
                .all(|(_, list)| list.images.iter().all(here));
            assert_eq!(
                cache.state == NodeState::Ready,
                all,
                "Ready means that everything is there"
            );
        }
        assert!(report.caches.len() <= inputs.caches.known().unwrap().len());
        for image in &report.images {
            assert_eq!(
                image.state == ImageState::Ready,
                self.seen.contains(image.image.as_str()),
                "{image:?}"
            );
        }
        let runtime = find(&report.conditions, RUNTIME_READY).unwrap();
        assert_eq!(runtime.status == "False", self.down, "{runtime:?}");
    }

    /// The runtime answers, nothing more happens from outside, and every pull succeeds.
    fn converge(&mut self) {
        (self.down, self.used) = (false, 0);
        for _ in 0..200 {
            // A disk that filled up is looked at later.
            self.seconds += 1;
            self.act();
            let desired = self.world.desired.known().unwrap();
            let needs = |wanted: &Wanted| !wanted.paused && wanted.reference.is_ok();
            let mut wanted = desired.images.iter().filter(|(_, wanted)| needs(wanted));
            if self.world.pulls.is_empty() && wanted.all(|(key, _)| self.is_ours(key)) {
                return;
            }
            let pulls: Vec<_> = self.world.pulls.keys().cloned().collect();
            if let Some(key) = pulls.first() {
                self.end(key, End::Pulled(Platform::Ours));
            } else if let Some(wake) = plan(&self.world, SLOTS, self.now()).wake {
                self.seconds = self.seconds.max(wake.as_secs() + 1);
            } else {
                break;
            }
        }
        panic!("it does not converge: {:?}", self.report);
    }
}

fn new_world() -> World {
    let mut disk = Disk::new(LIMITS);
    disk.found(Some(100));
    World {
        disk,
        ..World::default()
    }
}

fn key(image: &str) -> ImageKey {
    Reference::parse(image).map_or_else(|_| image.into(), |reference| reference.key().into())
}

fn image(platform: Platform) -> PresentImage {
    PresentImage {
        id: "sha256:id".into(),
        digest: None,
        bytes: 1,
        foreign_platform: match platform {
            Platform::Ours => None,
            Platform::Foreign => Some("linux/arm64".into()),
        },
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_promises_hold_and_the_plan_converges(steps in vec(step(), 0..60)) {
        let mut model = Model::new();
        for step in steps {
            model.take(step);
            model.act();
        }
        model.converge();
    }

    /// Images of the highest priority that fail for ever, each attempt taking a while, hold nothing up for ever.
    #[test]
    fn a_lower_priority_never_starves(failing in 1_usize..40, cause in 0..CAUSES.len(), seconds in 1_u64..60) {
        let mut model = Model::new();
        let list = |images: Vec<String>, priority| ImageCacheSpec {
            cache_spec: vec![ImageList { images, ..ImageList::default() }],
            priority,
            ..ImageCacheSpec::default()
        };
        model.caches.insert(0, (1, list((0..failing).map(|n| format!("r.io/fails:{n}")).collect(), 1000)));
        model.caches.insert(1, (1, list(vec!["r.io/good:1".into()], -1000)));
        let good = key("r.io/good:1");
        for _ in 0..failing * 10 + 10 {
            model.act();
            if model.world.pulls.is_empty() && let Some(wake) = plan(&model.world, SLOTS, model.now()).wake {
                model.seconds = model.seconds.max(wake.as_secs() + 1);
                continue;
            }
            model.seconds += seconds;
            for key in model.world.pulls.keys().cloned().collect::<Vec<_>>() {
                let end = if key == good { End::Pulled(Platform::Ours) } else { End::Failed(CAUSES[cause]) };
                model.end(&key, end);
            }
            if model.store.contains_key(&good) {
                return Ok(());
            }
        }
        prop_assert!(false, "it was never pulled");
    }
}
