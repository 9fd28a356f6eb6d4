//! What came of it: when the work is over, and what is said then.

use jiff::Timestamp;

use crate::api::condition::whole_seconds;
use crate::api::node_image_cache::ImageReport;
use crate::api::{ImageState, NodeImageCacheStatus, Reason, condition};
use crate::decide::report::RUNTIME_READY;

/// A failure that another attempt may mend is final after this many.
pub const ATTEMPTS: i32 = 3;

/// Whether nothing more will come of an image without somebody's help.
#[must_use]
pub fn is_final(image: &ImageReport) -> bool {
    match (image.state, image.reason) {
        (ImageState::Ready | ImageState::Removing | ImageState::Removed, _)
        | (ImageState::Waiting, Some(Reason::Paused)) => true,
        (ImageState::Pulling | ImageState::Waiting, _) => false,
        (
            ImageState::Failed,
            Some(
                Reason::RegistryUnavailable
                | Reason::Stalled
                | Reason::Corrupt
                | Reason::PullFailed
                | Reason::Evicted,
            ),
        ) => image.attempts.unwrap_or(0) >= ATTEMPTS,
        // One for another platform may have been there before: it is asked for once all the same.
        (ImageState::Failed, Some(Reason::NoMatchingPlatform)) => image.next_attempt.is_some(),
        (ImageState::Failed, _) => true,
    }
}

/// What is known before the runtime was asked: these images are wanted.
#[must_use]
pub fn unasked<'a>(images: impl Iterator<Item = &'a str>) -> NodeImageCacheStatus {
    let image = |image: &str| ImageReport {
        image: image.to_owned(),
        state: ImageState::Waiting,
        digest: None,
        bytes: None,
        origin: None,
        removal_policy: None,
        pinned: false,
        evictions: None,
        attempts: None,
        next_attempt: None,
        progress: None,
        last_transition_time: whole_seconds(Timestamp::now()),
        reason: Some(Reason::Queued),
        message: None,
    };
    let images: Vec<_> = images.map(image).collect();
    NodeImageCacheStatus {
        total: i32::try_from(images.len()).unwrap_or(i32::MAX),
        images,
        ..NodeImageCacheStatus::default()
    }
}

/// Whether the runtime has been asked what it has.
#[must_use]
pub fn was_asked(status: &NodeImageCacheStatus) -> bool {
    condition::find(&status.conditions, RUNTIME_READY).is_some_and(|ready| ready.status == "True")
}

/// Whether the work is over.
#[must_use]
pub fn is_over(status: &NodeImageCacheStatus) -> bool {
    let listed = status
        .images
        .iter()
        .filter(|image| image.state != ImageState::Ready);
    // Those that are not ready come first in a report. If it leaves out some of them all the same, their number is what is known.
    let is_whole = i32::try_from(listed.count()) == Ok(status.total - status.ready);
    let is_quiet = status.ready + status.failed == status.total;
    was_asked(status) && (is_whole || is_quiet) && status.images.iter().all(is_final)
}

/// Whether every wanted image is there.
#[must_use]
pub fn is_success(status: &NodeImageCacheStatus) -> bool {
    status.ready == status.total
}

/// What is there and what is not, with the cause of each image that is missing. `end` says what cut the work short.
#[must_use]
pub fn summary(status: &NodeImageCacheStatus, end: Option<&str>) -> String {
    let missing: Vec<_> = status
        .images
        .iter()
        .filter(|image| image.state != ImageState::Ready)
        .map(|image| row(image, end))
        .collect();
    let counts = format!("{} of {} images are present\n", status.ready, status.total);
    if missing.is_empty() {
        return counts;
    }
    let header = ["IMAGE", "REASON", "CAUSE"].map(str::to_owned);
    counts
        + "\n"
        + &table(
            std::iter::once(header)
                .chain(missing)
                .collect::<Vec<_>>()
                .as_slice(),
        )
}

fn row(image: &ImageReport, end: Option<&str>) -> [String; 3] {
    let reason = image
        .reason
        .map_or_else(|| format!("{:?}", image.state), |reason| reason.to_string());
    let message = image.message.clone().unwrap_or_default();
    // What was still under way has no cause of its own but the end.
    let cause = if is_final(image) || !message.is_empty() {
        message
    } else {
        end.unwrap_or_default().to_owned()
    };
    // A runtime's text may have line breaks.
    let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
    [image.image.clone(), reason, cause]
}

/// Rows with their columns below each other.
fn table(rows: &[[String; 3]]) -> String {
    let width = |column: fn(&[String; 3]) -> &String| {
        rows.iter()
            .map(|row| column(row).chars().count())
            .max()
            .unwrap_or(0)
    };
    let (image, reason) = (width(|[image, ..]| image), width(|[_, reason, _]| reason));
    rows.iter()
        .map(|[first, second, third]| {
            format!("{first:image$}   {second:reason$}   {third}")
                .trim_end()
                .to_owned()
                + "\n"
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn image(name: &str, state: ImageState, reason: Option<Reason>, attempts: i32) -> ImageReport {
        ImageReport {
            image: name.to_owned(),
            state,
            digest: None,
            bytes: None,
            origin: None,
            removal_policy: None,
            pinned: false,
            evictions: None,
            attempts: Some(attempts),
            next_attempt: None,
            progress: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            reason,
            message: None,
        }
    }

    /// The report of a runtime that answers.
    fn asked() -> NodeImageCacheStatus {
        let now = Timestamp::UNIX_EPOCH;
        let ready = condition::condition(&[], RUNTIME_READY, true, "Ready", "", None, now);
        NodeImageCacheStatus {
            conditions: vec![ready],
            ..NodeImageCacheStatus::default()
        }
    }

    #[test]
    fn what_is_not_known_yet_is_counted_and_named_with_the_cause_of_the_end() {
        let unasked = unasked(["docker.io/library/a:1"].into_iter());
        assert!(!was_asked(&unasked) && !is_success(&unasked));
        assert_eq!(
            summary(&unasked, Some("not done after 1ms")),
            "0 of 1 images are present\n\n\
             IMAGE                   REASON   CAUSE\n\
             docker.io/library/a:1   Queued   not done after 1ms\n"
        );
    }

    #[test]
    fn the_work_is_over_when_no_attempt_can_help_any_more() {
        use ImageState::{Failed, Pulling, Ready, Waiting};
        let rows = [
            (Ready, None, 0, true),
            (Pulling, None, 0, false),
            (Waiting, Some(Reason::Queued), 0, false),
            (Waiting, Some(Reason::RuntimeUnavailable), 0, false),
            (Waiting, Some(Reason::Paused), 0, true),
            (Failed, Some(Reason::InvalidReference), 0, true),
            (Failed, Some(Reason::NoMatchingPlatform), 0, false),
            (Failed, Some(Reason::NotFound), 1, true),
            (Failed, Some(Reason::Unauthorized), 1, true),
            (Failed, Some(Reason::NoSpace), 1, true),
            (Failed, Some(Reason::RegistryUnavailable), 2, false),
            (Failed, Some(Reason::RegistryUnavailable), 3, true),
            (Failed, Some(Reason::Stalled), 1, false),
        ];
        for (state, reason, attempts, expected) in rows {
            let image = image("a", state, reason, attempts);
            assert_eq!(
                is_final(&image),
                expected,
                "{state:?} {reason:?} {attempts}"
            );
        }
    }

    #[test]
    fn images_that_a_report_leaves_out_are_waited_for_too() {
        let not_found = image("a", ImageState::Failed, Some(Reason::NotFound), 1);
        let status = |total, failed| NodeImageCacheStatus {
            total,
            failed,
            images: vec![not_found.clone()],
            ..asked()
        };
        assert!(is_over(&status(1, 1)));
        assert!(!is_over(&status(2, 1)), "one more waits");
        assert!(is_over(&status(2, 2)), "one more failed");
    }

    #[test]
    fn the_summary_has_a_line_for_each_missing_image() {
        let mut missing = image(
            "docker.io/library/a:1",
            ImageState::Failed,
            Some(Reason::NotFound),
            1,
        );
        missing.message = Some("docker.io/library/a:1:\nnot found".to_owned());
        let status = NodeImageCacheStatus {
            ready: 1,
            total: 3,
            images: vec![
                missing,
                image("r.example/long/name:1", ImageState::Pulling, None, 0),
                image("docker.io/library/b:1", ImageState::Ready, None, 0),
            ],
            ..NodeImageCacheStatus::default()
        };
        assert_eq!(
            summary(&status, Some("not done after 10m")),
            "1 of 3 images are present\n\n\
             IMAGE                   REASON     CAUSE\n\
             docker.io/library/a:1   NotFound   docker.io/library/a:1: not found\n\
             r.example/long/name:1   Pulling    not done after 10m\n"
        );
        assert!(!is_success(&status) && !is_over(&status));
    }

    #[test]
    fn a_success_is_one_line() {
        let status = NodeImageCacheStatus {
            ready: 1,
            total: 1,
            images: vec![image("a", ImageState::Ready, None, 0)],
            ..asked()
        };
        assert_eq!(summary(&status, None), "1 of 1 images are present\n");
        assert!(is_success(&status) && is_over(&status));
        let not_asked = NodeImageCacheStatus {
            conditions: vec![],
            ..status
        };
        assert!(!is_over(&not_asked));
    }
}
