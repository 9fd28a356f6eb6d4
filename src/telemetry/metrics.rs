//! What is counted. No series carries an image's name: their number would grow with the cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The value of a `result` label for what went well. A failed pull has its reason there.
pub const SUCCESS: &str = "Success";

/// The metrics of one process. A clone counts into the same ones.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pulls: Family<PullLabels, Counter>,
    pull_seconds: Histogram,
    pulled_bytes: Counter,
    images: Family<ImageLabels, Gauge>,
    downloading: [Gauge; 2],
    plan_seconds: Histogram,
    evictions: Counter,
    removals: Counter,
    api_writes: Family<WriteLabels, Counter>,
    leader: Gauge,
    disk_guard: Gauge,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PullLabels {
    result: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ImageLabels {
    state: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct WriteLabels {
    resource: &'static str,
    result: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        // From a present image's 0.1 s up to the half hour of tens of gigabytes.
        let pull_seconds = Histogram::new(exponential_buckets(0.1, 2.0, 15));
        let mut metrics = Self {
            registry: Arc::default(),
            pulls: Family::default(),
            pull_seconds,
            pulled_bytes: Counter::default(),
            images: Family::default(),
            downloading: Default::default(),
            // From a tenth of a millisecond up to three seconds.
            plan_seconds: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            evictions: Counter::default(),
            removals: Counter::default(),
            api_writes: Family::default(),
            leader: Gauge::default(),
            disk_guard: Gauge::default(),
        };
        metrics.registry = Arc::new(metrics.register());
        metrics
    }
}

impl Metrics {
    fn register(&self) -> Registry {
        let mut registry = Registry::with_prefix("imagecache");
        registry.register(
            "pulls",
            "Pulls that ended, by result: Success, or the reason of the failure",
            self.pulls.clone(),
        );
        registry.register_with_unit(
            "pull_duration",
            "How long successful pulls took",
            Unit::Seconds,
            self.pull_seconds.clone(),
        );
        registry.register_with_unit(
            "pulled",
            "Size of the images that were pulled, as the runtime gives it",
            Unit::Bytes,
            self.pulled_bytes.clone(),
        );
        registry.register(
            "images",
            "Wanted images on this node, by state",
            self.images.clone(),
        );
        let [done, total] = &self.downloading;
        registry.register_with_unit(
            "downloading_done",
            "What the pulls under way have brought so far",
            Unit::Bytes,
            done.clone(),
        );
        registry.register_with_unit(
            "downloading_total",
            "Size of the images whose pulls are under way, as far as it is known",
            Unit::Bytes,
            total.clone(),
        );
        registry.register_with_unit(
            "plan_duration",
            "How long it took to decide what to do next",
            Unit::Seconds,
            self.plan_seconds.clone(),
        );
        registry.register(
            "evictions",
            "Wanted images that something else removed from this node",
            self.evictions.clone(),
        );
        registry.register(
            "removals",
            "Images that nobody wanted any more, and that were removed",
            self.removals.clone(),
        );
        registry.register(
            "api_writes",
            "Writes to the API server, by resource and result",
            self.api_writes.clone(),
        );
        registry.register(
            "leader",
            "1 while this agent is elected to write the summaries, 0 otherwise",
            self.leader.clone(),
        );
        registry.register(
            "disk_guard",
            "1 while pulls wait for the disk, 0 otherwise",
            self.disk_guard.clone(),
        );
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of this agent", version);
        registry
    }

    /// Counts a pull that succeeded.
    pub fn pulled(&self, took: Duration, bytes: u64) {
        self.pulls
            .get_or_create(&PullLabels { result: SUCCESS })
            .inc();
        self.pull_seconds.observe(took.as_secs_f64());
        self.pulled_bytes.inc_by(bytes);
    }

    /// Counts a decision that took this long.
    pub fn planned(&self, took: Duration) {
        self.plan_seconds.observe(took.as_secs_f64());
    }

    /// Counts a wanted image that something else removed.
    pub fn evicted(&self) {
        self.evictions.inc();
    }

    /// Counts an image that was removed as nobody wanted it any more.
    pub fn removed(&self) {
        self.removals.inc();
    }

    /// Counts a pull that failed for this reason.
    pub fn pull_failed(&self, reason: &'static str) {
        self.pulls
            .get_or_create(&PullLabels { result: reason })
            .inc();
    }

    /// Sets how many wanted images are in this state.
    pub fn images(&self, state: &'static str, count: usize) {
        self.images
            .get_or_create(&ImageLabels { state })
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets how far the pulls under way are: bytes so far, and in all.
    pub fn downloading(&self, done: u64, total: u64) {
        for (gauge, bytes) in self.downloading.iter().zip([done, total]) {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Counts a write of this resource, such as `nodeimagecaches`; the result is [`SUCCESS`] or a word for the failure.
    pub fn api_write(&self, resource: &'static str, result: &'static str) {
        self.api_writes
            .get_or_create(&WriteLabels { resource, result })
            .inc();
    }

    /// Sets whether this agent is the elected one.
    pub fn leader(&self, elected: bool) {
        self.leader.set(elected.into());
    }

    /// Sets whether pulls wait for the disk.
    pub fn disk_guard(&self, closed: bool) {
        self.disk_guard.set(closed.into());
    }

    /// All of them in the `OpenMetrics` text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_names_follow_the_conventions() {
        let metrics = Metrics::default();
        metrics.pulled(Duration::from_millis(1500), 4096);
        metrics.pull_failed("NotFound");
        metrics.images("Ready", 7);
        metrics.api_write("nodeimagecaches", SUCCESS);
        metrics.leader(true);
        metrics.disk_guard(true);
        let text = metrics.text().unwrap();
        for line in [
            "imagecache_pulls_total{result=\"Success\"} 1",
            "imagecache_pulls_total{result=\"NotFound\"} 1",
            "imagecache_pull_duration_seconds_sum 1.5",
            "imagecache_pull_duration_seconds_bucket{le=\"1.6\"} 1",
            "imagecache_pulled_bytes_total 4096",
            "imagecache_images{state=\"Ready\"} 7",
            "imagecache_api_writes_total{resource=\"nodeimagecaches\",result=\"Success\"} 1",
            "imagecache_leader 1",
            "imagecache_disk_guard 1",
            concat!(
                "imagecache_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
            "# EOF",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
