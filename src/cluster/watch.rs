//! All objects of one kind: a complete list, then every change, for as long as it is wanted.
//!
//! Written on `kube::Api` rather than on kube's own watcher, which opens a watch that ends at once again without any
//! pause, asks for ever for a version of a resource type that was deleted and created anew, and cannot fall back from
//! a streamed list to pages.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::client::Cluster;
use super::error::CallError;
use super::trouble::Trouble;
use crate::api::GROUP;
use crate::decide::Timing;

/// Objects that arrive together are given on together, at most so many: what a burst changes is acted on once.
const TOGETHER: usize = 64;

/// Objects in a page of a list, where the API server does not stream it.
const PAGE: u32 = 250;

/// How long the API server keeps a watch open, in seconds: it is opened again then, at no cost. Random between these, so
/// that the agents of a cluster do not all do it at once.
const OPEN: std::ops::Range<u32> = 240..290;

/// What happened to the objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<K> {
    /// A complete list begins. What was known stays in force until it is complete.
    Begin,
    /// The list holds this object.
    Listed(K),
    /// The list is complete: what it does not hold is not there.
    Complete,
    /// The object was created, or changed.
    Changed(K),
    /// The object is gone.
    Deleted(K),
    /// The API server tells of no changes for now. What was known stays.
    Lost,
    /// It tells of them again, from where it left off.
    Resumed,
}

/// A watch of all objects of one kind, or of those that a field selector names.
pub struct Watch<K> {
    cluster: Cluster,
    api: Api<K>,
    fields: Option<String>,
    /// Where to go on; without it, a list is due.
    version: Option<String>,
    /// Where to go on, if the API server turns out to have been away rather than to have had a reason to end the watch.
    doubted: Option<String>,
    /// The API server streams lists: less memory on both sides than pages.
    streams: bool,
    trouble: Trouble,
}

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// A watch of everything that this `Api` reaches.
    #[must_use]
    pub fn new(cluster: &Cluster, api: Api<K>) -> Self {
        Self {
            cluster: cluster.clone(),
            api,
            fields: None,
            version: None,
            doubted: None,
            streams: true,
            trouble: Trouble::default(),
        }
    }

    /// Only the objects that this field selector names, such as `metadata.name=node-1`.
    #[must_use]
    pub fn fields(mut self, selector: String) -> Self {
        self.fields = Some(selector);
        self
    }

    /// Gives on what happens, until `stop`. Never ends on its own: it waits out whatever is wrong, and says what it is.
    pub async fn run(mut self, stop: &CancellationToken, mut events: impl FnMut(Vec<Event<K>>)) {
        let timing = *self.cluster.timing();
        loop {
            let opened = Instant::now();
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.follow(&timing, &mut events) => ended,
            };
            match ended {
                Err(error) => {
                    events(vec![Event::Lost]);
                    self.fails(&error);
                }
                // An API server, or something before it, that ends every watch at once is not asked in a circle.
                Ok(()) if opened.elapsed() < timing.api_retry.first => {
                    let cause = "the watch ends as soon as it is opened";
                    if self.trouble.begins(cause) {
                        warn!(kind = %K::kind(&()), error = cause, "watching less often");
                    }
                }
                Ok(()) => {}
            }
            let wait = self.trouble.wait(&timing.api_retry, fastrand::f64());
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Lists where that is due, and watches until the watch ends.
    async fn follow(
        &mut self,
        timing: &Timing,
        events: &mut impl FnMut(Vec<Event<K>>),
    ) -> Result<(), CallError> {
        if self.version.is_none() && !self.streams {
            self.list(events).await?;
        }
        let mut lists = self.version.is_none();
        let seconds = fastrand::u32(OPEN);
        let params = WatchParams {
            field_selector: self.fields.clone(),
            timeout: Some(seconds),
            send_initial_events: lists,
            ..WatchParams::default()
        };
        let version = self.version.clone().unwrap_or_default();
        let stream = self.cluster.call(self.api.watch(&params, &version)).await?;
        let mut stream = pin!(stream.ready_chunks(TOGETHER));
        events(vec![if lists { Event::Begin } else { Event::Resumed }]);
        self.doubted = None;
        let opened = Instant::now();
        // A little longer than the API server takes to end it.
        let limit = Duration::from_secs(seconds.into());
        while let Ok(Some(chunk)) =
            tokio::time::timeout(limit + timing.api_call, stream.next()).await
        {
            let mut together = Vec::with_capacity(chunk.len());
            let read = chunk
                .into_iter()
                .try_for_each(|event| self.read(event, opened, &mut lists, &mut together));
            if !together.is_empty() {
                self.works();
                events(together);
            }
            read?;
        }
        // Ended before its time. The API server does that when a CustomResourceDefinition changes, and what it sent just before
        // may lack the fields that only the new one knows: a list has them.
        if K::group(&()) == GROUP && opened.elapsed() + timing.api_call < limit {
            self.doubted = self.version.take();
        }
        Ok(())
    }

    fn read(
        &mut self,
        event: kube::Result<WatchEvent<K>>,
        opened: Instant,
        lists: &mut bool,
        out: &mut Vec<Event<K>>,
    ) -> Result<(), CallError> {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) if *lists => {
                out.push(Event::Listed(object));
            }
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                self.version = object.resource_version();
                out.push(Event::Changed(object));
            }
            Ok(WatchEvent::Deleted(object)) => {
                if !*lists {
                    self.version = object.resource_version();
                }
                out.push(Event::Deleted(object));
            }
            Ok(WatchEvent::Bookmark(mark)) => {
                let completes = mark
                    .metadata
                    .annotations
                    .contains_key("k8s.io/initial-events-end");
                if *lists && completes {
                    *lists = false;
                    out.push(Event::Complete);
                }
                if !*lists {
                    self.version = Some(mark.metadata.resource_version);
                    // The only sign of life where nothing changes. One that comes at once may be all that comes of this watch.
                    if opened.elapsed() >= self.cluster.timing().api_retry.first {
                        self.works();
                    }
                }
            }
            // Whatever is wrong inside a watch, such as a version that is too old: a new list is right again.
            Ok(WatchEvent::Error(status)) => {
                self.version = None;
                return Err(CallError::Refused(status));
            }
            // The types that are watched read any object. If one does not all the same, the others go on.
            Err(kube::Error::SerdeError(error)) => {
                warn!(kind = %K::kind(&()), %error, "an object of a watch cannot be read");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The list in pages, for API servers that do not stream it.
    async fn list(&mut self, events: &mut impl FnMut(Vec<Event<K>>)) -> Result<(), CallError> {
        let mut params = ListParams {
            field_selector: self.fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut batch = vec![Event::Begin];
        loop {
            let page = self.cluster.call(self.api.list(&params)).await?;
            batch.extend(page.items.into_iter().map(Event::Listed));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                batch.push(Event::Complete);
                self.version = page.metadata.resource_version;
                self.works();
                events(batch);
                return Ok(());
            }
            events(std::mem::take(&mut batch));
        }
    }

    fn works(&mut self) {
        if self.trouble.ends() {
            info!(kind = %K::kind(&()), "watching again");
        }
    }

    fn fails(&mut self, error: &CallError) {
        self.cluster.broke_off(error);
        let lists = self.version.is_none();
        match error.code() {
            // The API server does not know the parameter, or its etcd is too old for it.
            400..=499 if lists && self.streams && !is_said_of_the_resource(error.code()) => {
                debug!(kind = %K::kind(&()), %error, "lists are not streamed: asking for pages");
                self.streams = false;
                return;
            }
            // It was away. Nothing is wrong with what it sent.
            0 if self.doubted.is_some() => self.version = self.doubted.take(),
            // The version is too old, or the resource type was deleted: a list is due.
            404 | 410 => self.version = None,
            _ => {}
        }
        if self.trouble.fails(error) {
            warn!(kind = %K::kind(&()), error = error.explain::<K>(), "cannot watch");
        }
    }
}

/// These answers mean the same with and without the parameter of a streamed list.
const fn is_said_of_the_resource(code: u16) -> bool {
    matches!(code, 401 | 403 | 404 | 410 | 429)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Config;

    use super::*;
    use crate::telemetry::Metrics;

    fn bookmark() -> WatchEvent<ConfigMap> {
        let mark = serde_json::json!({
            "type": "BOOKMARK",
            "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "7"}},
        });
        serde_json::from_value(mark).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_lasts_works_also_when_nothing_changes() {
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        let timing = Timing::default();
        let cluster = Cluster::with_config(config, &timing, Metrics::default()).unwrap();
        let mut watch = Watch::<ConfigMap>::new(&cluster, Api::all(cluster.client()));
        watch.trouble.begins("refused");
        let opened = Instant::now();
        let mut read = |lists: &mut bool| {
            let read = watch.read(Ok(bookmark()), opened, lists, &mut Vec::new());
            assert!(read.is_ok());
            watch.trouble.wait(&timing.api_retry, 1.0)
        };
        assert!(!read(&mut false).is_zero(), "it may end at once");
        tokio::time::advance(timing.api_retry.first).await;
        assert!(!read(&mut true).is_zero(), "the list is not complete");
        assert!(read(&mut false).is_zero());
    }
}
