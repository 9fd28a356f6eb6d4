//! A model of a node that is edited, relabelled, evicted from and restarted at random: whatever
//! happens, the decisions keep their promises, and once it stops they converge.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;

use super::desired::ImageKey;
use super::world::{Failed, Outcome, PresentImage, World};
use super::{Cache, CacheName, Caches, Inputs, Known, Node, Now, Timing, desired, plan, report};
use crate::api::image_cache::NodeState;
use crate::api::node_image_cache::RuntimeStatus;
use crate::api::{ImageCacheSpec, ImageList, NodeImageCacheStatus, Reason};
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

const CAUSES: [Reason; 6] = [
    Reason::NotFound,
    Reason::RegistryUnavailable,
    Reason::Unauthorized,
    Reason::Stalled,
    Reason::NoMatchingPlatform,
    Reason::PullFailed,
];

#[derive(Clone, Debug)]
enum Step {
    Edit(usize, ImageCacheSpec),
    Delete(usize),
    Label(bool),
    /// The nth running pull ends; without a cause it succeeds.
    End(usize, Option<usize>),
    LoseRuntime,
    Evict(usize),
    Restart,
    Wait(u64),
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
    (vec(list, 1..3), prop::bool::weighted(0.1), -1..2).prop_map(
        |(cache_spec, paused, priority)| ImageCacheSpec {
            cache_spec,
            paused,
            priority,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_usize..3, spec()).prop_map(|(cache, spec)| Step::Edit(cache, spec)),
        1 => (0_usize..3).prop_map(Step::Delete),
        1 => any::<bool>().prop_map(Step::Label),
        6 => (any::<usize>(), proptest::option::of(0..CAUSES.len())).prop_map(|(n, cause)| Step::End(n, cause)),
        1 => Just(Step::LoseRuntime),
        1 => (0..IMAGES.len()).prop_map(Step::Evict),
        1 => Just(Step::Restart),
        3 => (0_u64..4000).prop_map(Step::Wait),
    ]
}

/// A node, its runtime, and the agent's memory of both.
struct Model {
    caches: BTreeMap<usize, (i64, ImageCacheSpec)>,
    labels: BTreeMap<String, String>,
    store: BTreeSet<ImageKey>,
    world: World,
    seconds: u64,
    edits: i64,
    report: Option<NodeImageCacheStatus>,
}

impl Model {
    fn new() -> Self {
        Self {
            caches: BTreeMap::new(),
            labels: [("tier".to_owned(), "true".to_owned())].into(),
            store: BTreeSet::new(),
            world: World::default(),
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
            reported: None,
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
            Step::End(nth, cause) => {
                let pulls: Vec<_> = self.world.pulls.keys().cloned().collect();
                if !pulls.is_empty() {
                    self.end(&pulls[nth % pulls.len()], cause.map(|cause| CAUSES[cause]));
                }
            }
            Step::LoseRuntime => {
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
            Step::Evict(image) => {
                self.store.remove(&key(IMAGES[image]));
            }
            // The runtime cancels the pulls of a client that is gone.
            Step::Restart => self.world = World::default(),
            Step::Wait(seconds) => self.seconds += seconds,
        }
    }

    fn end(&mut self, key: &ImageKey, cause: Option<Reason>) {
        let outcome = match cause {
            _ if self.world.pulls[key].cancelled => Outcome::Cancelled,
            Some(reason) => Outcome::Failed(Failed {
                reason,
                message: "no".into(),
            }),
            None => {
                self.store.insert(key.clone());
                Outcome::Pulled(image())
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
        let answer = keys
            .into_iter()
            .map(|key| (key.clone(), self.store.contains(&key).then(image)))
            .collect();
        self.world.has(answer, now, &timing, 0.5);

        let plan_now = plan(&self.world, SLOTS, now);
        assert_eq!(
            plan(&self.world, SLOTS, now),
            plan_now,
            "planning twice gives the same plan"
        );
        for key in plan_now.cancel {
            assert!(
                !self
                    .world
                    .desired
                    .known()
                    .unwrap()
                    .images
                    .contains_key(&key)
            );
            self.world.cancelled(&key);
        }
        for key in plan_now.start {
            assert!(
                !self.store.contains(&key),
                "{key} is pulled though it is there"
            );
            assert!(
                !self.world.pulls.contains_key(&key),
                "{key} is started twice"
            );
            self.world.started(key, now);
        }
        assert!(self.world.pulls.len() <= SLOTS);
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

    /// The report counts what is there, for the lists that the labels select now, and for nothing else.
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
            let here = |image: &String| self.store.contains(&key(image));
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
    }

    /// Nothing more happens from outside, and every pull succeeds.
    fn converge(&mut self) {
        for _ in 0..200 {
            self.act();
            let pulls: Vec<_> = self.world.pulls.keys().cloned().collect();
            if let Some(key) = pulls.first() {
                self.end(key, None);
            } else if let Some(wake) = plan(&self.world, SLOTS, self.now()).wake {
                self.seconds = self.seconds.max(wake.as_secs() + 1);
            } else {
                break;
            }
        }
        self.act();
        assert!(
            self.world.pulls.is_empty(),
            "something is still being pulled"
        );
        for (key, wanted) in &self.world.desired.known().unwrap().images {
            let here = self.store.contains(key);
            assert!(
                here || wanted.paused || wanted.reference.is_err(),
                "{key} never arrived"
            );
        }
    }
}

fn key(image: &str) -> ImageKey {
    Reference::parse(image).map_or_else(|_| image.into(), |reference| reference.key().into())
}

fn image() -> PresentImage {
    PresentImage {
        id: "sha256:id".into(),
        digest: None,
        bytes: 1,
        foreign_platform: None,
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
            paused: false,
            priority,
        };
        model.caches.insert(0, (1, list((0..failing).map(|n| format!("r.io/fails:{n}")).collect(), 1000)));
        model.caches.insert(1, (1, list(vec!["r.io/good:1".into()], -1000)));
        let good = key("r.io/good:1");
        for _ in 0..failing * 10 + 10 {
            model.act();
            model.seconds += seconds;
            for key in model.world.pulls.keys().cloned().collect::<Vec<_>>() {
                model.end(&key, (key != good).then(|| CAUSES[cause]));
            }
            if model.store.contains(&good) {
                return Ok(());
            }
        }
        prop_assert!(false, "it was never pulled");
    }
}
