//! What is said of images that are to be gone, or to be pinned.

use super::*;
use crate::api::{Ensure, Reason};

impl Cluster {
    fn with(mut self, edit: impl Fn(&mut ImageCacheSpec)) -> Self {
        if let Some((_, spec)) = &mut self.cache.spec {
            edit(Arc::make_mut(spec));
        }
        self
    }

    fn absent(images: &[&str]) -> Self {
        Self::of(images).with(|spec| spec.ensure = Ensure::Absent)
    }

    fn pinned(images: &[&str]) -> Self {
        Self::of(images).with(|spec| spec.pin = true)
    }

    /// The runtime of this node, which has all images, does not heed pins.
    fn cannot_pin(mut self, name: &str) -> Self {
        let entry = Entry {
            uid: UID.to_owned(),
            generation: 2,
            state: NodeState::Ready,
            ..Entry::default()
        };
        let report = report(name, vec![entry], &[]).with_pins(false);
        self = self.node(name);
        self.fleet.apply_report(name, report);
        self
    }
}

const fn stays(image: &str, reason: Reason) -> Reported<'_> {
    (image, Ready, reason.as_str(), "why", "")
}

#[test]
fn what_is_to_be_gone_counts_when_nothing_is_left_to_do() {
    let on = |lists: &[(usize, i32, i32)], images: &[Reported]| {
        Cluster::absent(&["a", "b"])
            .node("n1")
            .reports("n1", 2, lists, images)
    };
    let removing = ("b", ImageState::Removing, "", "", "");
    let rows = [
        (
            on(&[(0, 2, 2)], &[]),
            "True AllNodesReady: 1 of 1 node is rid of all 2 images",
        ),
        (
            on(&[(0, 2, 2)], &[stays("a", Reason::NotOwned)]),
            "True AllNodesReady: 1 of 1 node is rid of all 2 images; a stays on n1: NotOwned: why",
        ),
        (
            on(&[(0, 1, 2)], &[removing]),
            "False NodesNotReady: 0 of 1 node are rid of all 2 images; n1: b is about to be removed",
        ),
        (
            on(&[(0, 1, 2)], &[stays("b", Reason::InUse)]),
            "False NodesNotReady: 0 of 1 node are rid of all 2 images; n1: b InUse: why; b stays on n1: InUse: why",
        ),
    ];
    for (cluster, said) in rows {
        assert_eq!(cluster.says("Ready"), said);
    }
    let done = on(&[(0, 2, 2)], &[]);
    assert_eq!(
        done.says("Progressing"),
        "False Complete: every node is rid of its images"
    );
}

#[test]
fn a_node_that_cannot_pin_and_an_image_without_a_pin_are_named() {
    let cannot = Cluster::pinned(&["a"]).cannot_pin("n1").cannot_pin("n2");
    assert_eq!(
        cannot.says("Degraded"),
        "True PinningUnavailable: the runtime cannot pin images on n1, n2 (is it older than containerd 1.6.21?)"
    );
    let unasked = Cluster::of(&["a"]).cannot_pin("n1");
    assert!(unasked.says("Degraded").starts_with("False Healthy"));
    let beyond = Cluster::pinned(&["a"]).node("n1").reports(
        "n1",
        2,
        &[(0, 1, 1)],
        &[stays("a", Reason::PinBudget)],
    );
    assert_eq!(
        beyond.says("Degraded"),
        "True PinningUnavailable: a is not pinned on n1: PinBudget"
    );
    assert!(beyond.says("Ready").starts_with("True AllNodesReady"));
}
