//! What a person sees while images are pulled: bars on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{DecimalBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::outcome::{ATTEMPTS, is_final, was_asked};
use crate::agent::Downloads;
use crate::api::node_image_cache::ImageReport;
use crate::api::{ImageState, NodeImageCacheStatus, condition};
use crate::cli::say;
use crate::decide::report::CREDENTIALS_READY;
use crate::runtime::Progress;

/// How often a line tells how far a pull is, where there are no bars.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How often a bar is drawn when nothing new is known, to show that something is alive.
const TICK: Duration = Duration::from_millis(120);

const BYTES: &str = "{wide_msg} {bar:12} {decimal_bytes:>9} of {decimal_total_bytes:9} {decimal_bytes_per_sec:>11} {eta:>3}";
const UNPACKING: &str = "{wide_msg} unpacking {decimal_total_bytes:>9} {spinner} {elapsed:>3}";
const NO_BYTES: &str = "{wide_msg} {spinner} {elapsed:>3}";
const TOTAL: &str = "{pos} of {len} images {elapsed:>3}";

/// What a person sees. Everything goes to standard error.
pub struct Screen {
    bars: Option<Bars>,
    images: BTreeMap<String, Seen>,
    /// The runtime has answered before: what becomes ready from now on was pulled.
    asked: bool,
    /// What was last said of credentials that are lacking.
    lacking: Option<String>,
}

/// What was last seen of an image.
#[derive(Clone, Debug)]
struct Seen {
    state: ImageState,
    attempts: Option<i32>,
    pulling_since: Option<Instant>,
    told: Option<Instant>,
}

struct Bars {
    all: MultiProgress,
    total: ProgressBar,
    images: BTreeMap<String, ProgressBar>,
}

impl Screen {
    /// Lines alone.
    #[must_use]
    pub fn of_lines() -> Self {
        Self {
            bars: None,
            images: BTreeMap::new(),
            asked: false,
            lacking: None,
        }
    }

    /// Lines, and below them a bar for each pull.
    #[must_use]
    pub fn of_bars(target: ProgressDrawTarget) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let total = all.add(ProgressBar::no_length().with_style(style(TOTAL)));
        total.enable_steady_tick(TICK);
        let bars = Bars {
            all,
            total,
            images: BTreeMap::new(),
        };
        Self {
            bars: Some(bars),
            ..Self::of_lines()
        }
    }

    /// Shows a line.
    pub fn line(&self, text: &str) {
        match &self.bars {
            // A terminal that has gone away is no reason to stop pulling.
            Some(bars) => drop(bars.all.println(text)),
            None => say(text),
        }
    }

    /// Shows what a report says anew.
    pub fn report(&mut self, status: &NodeImageCacheStatus) {
        let lines = self.take(status, Instant::now());
        if let Some(bars) = &self.bars {
            bars.total.set_length(status.total.unsigned_abs().into());
            bars.total.set_position(status.ready.unsigned_abs().into());
        }
        for line in lines {
            self.line(&line);
        }
        let Some(bars) = &mut self.bars else { return };
        for image in &status.images {
            bars.set_pulling(&image.image, image.state == ImageState::Pulling);
        }
    }

    /// Shows how far the pulls are.
    pub fn downloads(&mut self, downloads: &Downloads) {
        if let Some(bars) = &mut self.bars {
            for (key, progress) in downloads {
                bars.set_progress(key, *progress);
            }
            return;
        }
        for line in self.take_downloads(downloads, Instant::now()) {
            self.line(&line);
        }
    }

    /// Takes the bars away; the lines stay.
    pub fn finish(&self) {
        if let Some(bars) = &self.bars {
            bars.total.finish_and_clear();
            let _ = bars.all.clear();
        }
    }

    fn take(&mut self, status: &NodeImageCacheStatus, now: Instant) -> Vec<String> {
        let lines_of_pulls = self.bars.is_none();
        let mut lines = Vec::new();
        let credentials = condition::find(&status.conditions, CREDENTIALS_READY);
        let lacking = credentials
            .filter(|ready| ready.status == "False")
            .map(|ready| ready.message.clone());
        if lacking != self.lacking {
            let line = lacking.as_ref().map(|what| format!("lacking  {what}"));
            lines.extend(line);
            self.lacking = lacking;
        }
        for image in &status.images {
            let before = self.images.get(&image.image);
            let line = match image.state {
                ImageState::Ready if before.is_some_and(|seen| seen.state == ImageState::Ready) => {
                    None
                }
                ImageState::Ready if self.asked => Some(pulled(image, before, now)),
                ImageState::Ready => Some(format!("present  {}", image.image)),
                ImageState::Failed
                    if before.is_some_and(|seen| {
                        seen.state == ImageState::Failed && seen.attempts == image.attempts
                    }) =>
                {
                    None
                }
                ImageState::Failed => Some(failed(image)),
                ImageState::Pulling
                    if lines_of_pulls
                        && before.is_none_or(|seen| seen.state != ImageState::Pulling) =>
                {
                    Some(format!("pulling  {}", image.image))
                }
                ImageState::Pulling
                | ImageState::Waiting
                | ImageState::Removing
                | ImageState::Removed => None,
            };
            lines.extend(line);
            let pulling_since = (image.state == ImageState::Pulling)
                .then(|| before.and_then(|seen| seen.pulling_since).unwrap_or(now));
            let told = before.and_then(|seen| seen.told);
            let seen = Seen {
                state: image.state,
                attempts: image.attempts,
                pulling_since,
                told,
            };
            self.images.insert(image.image.clone(), seen);
        }
        self.asked |= was_asked(status);
        lines
    }

    fn take_downloads(&mut self, downloads: &Downloads, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for (key, progress) in downloads {
            let Some(seen) = self.images.get_mut(&**key) else {
                continue;
            };
            let last = seen.told.max(seen.pulling_since).unwrap_or(now);
            if progress.total_bytes > 0 && now.saturating_duration_since(last) >= LINE_INTERVAL {
                seen.told = Some(now);
                let (done, total) = (
                    DecimalBytes(progress.done_bytes),
                    DecimalBytes(progress.total_bytes),
                );
                lines.push(format!("pulling  {key}: {done} of {total}"));
            }
        }
        lines
    }
}

impl Bars {
    fn set_pulling(&mut self, image: &str, pulling: bool) {
        if !pulling {
            if let Some(bar) = self.images.remove(image) {
                bar.finish_and_clear();
                self.all.remove(&bar);
            }
        } else if !self.images.contains_key(image) {
            let bar = ProgressBar::no_length()
                .with_style(style(NO_BYTES))
                .with_message(familiar(image).to_owned());
            let bar = self.all.insert_before(&self.total, bar);
            bar.enable_steady_tick(TICK);
            self.images.insert(image.to_owned(), bar);
        }
    }

    fn set_progress(&mut self, image: &str, progress: Progress) {
        let Some(bar) = self.images.get(image) else {
            return;
        };
        if progress.total_bytes == 0 {
            return;
        }
        if bar.length().is_none() {
            // The rate counts from here: what came before the first byte is the registry's time.
            bar.reset();
            bar.set_style(style(BYTES));
        }
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        if progress.done_bytes >= progress.total_bytes {
            bar.set_style(style(UNPACKING));
        }
    }
}

/// An image's name as people write it, where a line is short.
fn familiar(image: &str) -> &str {
    let hub = image.strip_prefix("docker.io/").unwrap_or(image);
    hub.strip_prefix("library/")
        .filter(|_| hub.len() < image.len())
        .unwrap_or(hub)
}

fn style(template: &str) -> ProgressStyle {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

fn pulled(image: &ImageReport, before: Option<&Seen>, now: Instant) -> String {
    let size = image
        .bytes
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0);
    let size = size.map(|bytes| DecimalBytes(bytes).to_string());
    let took = before.and_then(|seen| seen.pulling_since);
    let took = took.map(|since| {
        format!(
            "in {:.1} s",
            now.saturating_duration_since(since).as_secs_f64()
        )
    });
    let words: Vec<_> = size.into_iter().chain(took).collect();
    let words = if words.is_empty() {
        String::new()
    } else {
        format!(" ({})", words.join(" "))
    };
    format!("pulled   {}{words}", image.image)
}

fn failed(image: &ImageReport) -> String {
    let reason = image
        .reason
        .map(|reason| reason.to_string())
        .unwrap_or_default();
    let message = image.message.as_deref().unwrap_or_default();
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("failed   {}: {reason}: {message}", image.image);
    match image.attempts {
        Some(attempt) if !is_final(image) => {
            format!("{line} (attempt {attempt} of {ATTEMPTS}: it is tried again)")
        }
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use indicatif::InMemoryTerm;
    use serde_json::json;

    use super::*;

    /// A report of images, each as its name, state and attempts.
    fn status(images: &[(&str, &str, i32)]) -> NodeImageCacheStatus {
        let image = |(name, state, attempts): &(&str, &str, i32)| {
            json!({
                "image": name, "state": state, "attempts": attempts, "bytes": 12_300_000,
                "reason": (*state == "Failed").then_some("NotFound"), "message": "not\nfound",
            })
        };
        let ready = images
            .iter()
            .filter(|(_, state, _)| *state == "Ready")
            .count();
        let asked = json!({
            "type": "RuntimeReady", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
        });
        let status = json!({
            "ready": ready, "total": images.len(), "conditions": [asked], "images": images.iter().map(image).collect::<Vec<_>>(),
        });
        serde_json::from_value(status).unwrap()
    }

    fn downloads(image: &str, done_bytes: u64, total_bytes: u64) -> Downloads {
        Downloads::from([(
            Arc::from(image),
            Progress {
                done_bytes,
                total_bytes,
            },
        )])
    }

    #[test]
    fn each_change_is_one_line() {
        let mut screen = Screen::of_lines();
        let start = Instant::now();
        let mut told = |images: &[_], seconds| {
            screen.take(&status(images), start + Duration::from_millis(seconds))
        };
        assert_eq!(
            told(
                &[("a", "Ready", 0), ("b", "Waiting", 0), ("c", "Pulling", 0)],
                0
            ),
            ["present  a", "pulling  c"]
        );
        assert_eq!(
            told(
                &[("a", "Ready", 0), ("b", "Pulling", 0), ("c", "Pulling", 0)],
                100
            ),
            ["pulling  b"]
        );
        assert_eq!(
            told(
                &[("a", "Ready", 0), ("b", "Failed", 1), ("c", "Ready", 0)],
                2500
            ),
            [
                "failed   b: NotFound: not found",
                "pulled   c (12.30 MB in 2.5 s)"
            ]
        );
        assert!(
            told(
                &[("a", "Ready", 0), ("b", "Failed", 1), ("c", "Ready", 0)],
                3000
            )
            .is_empty()
        );
        assert_eq!(told(&[("b", "Failed", 2)], 4000).len(), 1);
        assert_eq!(told(&[("b", "Ready", 0)], 5000), ["pulled   b (12.30 MB)"]);
    }

    #[test]
    fn a_long_pull_says_every_ten_seconds_how_far_it_is() {
        let mut screen = Screen::of_lines();
        let start = Instant::now();
        screen.take(&status(&[("a", "Pulling", 0)]), start);
        let mut told = |seconds| {
            screen.take_downloads(
                &downloads("a", 1_000_000, 2_000_000),
                start + Duration::from_secs(seconds),
            )
        };
        assert!(told(9).is_empty());
        assert_eq!(told(10), ["pulling  a: 1.00 MB of 2.00 MB"]);
        assert!(told(19).is_empty());
        assert_eq!(told(20).len(), 1);
    }

    /// Bars are drawn a few times a second.
    fn wait_for(term: &InMemoryTerm, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let shown = term.contents();
            if shown.contains(text) {
                return shown;
            }
            assert!(Instant::now() < end, "{text} is not on\n{shown}");
            std::thread::park_timeout(TICK);
        }
    }

    #[test]
    fn a_terminal_shows_a_bar_for_each_pull_and_the_total() {
        const IMAGE: &str = "docker.io/library/a:1";
        let term = InMemoryTerm::new(10, 100);
        let mut screen = Screen::of_bars(ProgressDrawTarget::term_like(Box::new(term.clone())));
        screen.report(&status(&[(IMAGE, "Pulling", 0), ("b", "Ready", 0)]));
        screen.downloads(&downloads(IMAGE, 5_000_000, 10_000_000));
        let shown = wait_for(&term, "5.00 MB of 10.00 MB");
        assert!(shown.starts_with("present  b\na:1 "), "{shown}");
        assert!(shown.contains("======> "), "{shown}");
        wait_for(&term, "\n1 of 2 images");
        screen.downloads(&downloads(IMAGE, 10_000_000, 10_000_000));
        wait_for(&term, "unpacking  10.00 MB");
        screen.report(&status(&[(IMAGE, "Ready", 0), ("b", "Ready", 0)]));
        screen.finish();
        let shown = wait_for(&term, "pulled   docker.io/library/a:1 (12.30 MB in");
        assert_eq!(shown.lines().count(), 2, "{shown}");
    }
}
