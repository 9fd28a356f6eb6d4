//! containerd's image events: how a removal by somebody else is noticed at once.

use std::time::Duration;

use prost::Message;
use prost_types::Any;
use tonic::{Status, Streaming};

use super::containerd::{Containerd, NAMESPACE, namespaced};
use super::error::{RuntimeError, Unavailable};
use super::proto::containerd::events::events_client::EventsClient;
use super::proto::containerd::events::{Envelope, PublishRequest, SubscribeRequest};
use super::proto::containerd::images::{ImageCreate, ImageDelete, ImageUpdate};

/// How long the mark of a subscription is waited for before the next one is sent. It comes
/// back within 8 ms on an idle machine; only the mark itself can overtake the subscription.
const MARK_AGAIN: Duration = Duration::from_millis(50);

/// An image's record has changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ImageEvent {
    /// The record's name: a reference with a tag, one with a digest, or an image ID.
    pub name: String,
    /// What happened to it.
    pub change: ImageChange,
}

/// What happened to an image's record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ImageChange {
    /// It is new.
    Created,
    /// Its target or its labels were written. Every pull of a present image does this.
    Updated,
    /// It is gone.
    Deleted,
}

/// A stream of image events.
///
/// It ends with an error, for example when containerd restarts, and is not continued: events in
/// between are lost, so whoever opens a new one looks at everything once more.
#[derive(Debug)]
pub struct ImageEvents {
    containerd: Containerd,
    stream: Streaming<Envelope>,
}

impl Containerd {
    /// Subscribes to image events. Every change after this has returned is in the stream.
    ///
    /// containerd does not answer a subscription before there is an event for it. So this sends
    /// an event of its own, under a topic that nobody else listens to: when that comes back, the
    /// subscription holds.
    pub async fn image_events(&self) -> Result<ImageEvents, RuntimeError> {
        let mark = format!("/imagecache/subscribed/{:016x}", fastrand::u64(..));
        let subscribed = async {
            let mut client = EventsClient::new(self.runtime.channel());
            let request = namespaced(SubscribeRequest {
                filters: vec![
                    format!("namespace=={NAMESPACE},topic~=\"^/images/\""),
                    format!("namespace=={NAMESPACE},topic==\"{mark}\""),
                ],
            });
            let mut stream = client.subscribe(request).await?.into_inner();
            // What comes before the mark are changes before this has returned.
            while stream.message().await?.ok_or_else(ended)?.topic != mark {}
            Ok(tonic::Response::new(stream))
        };
        let publish = async {
            loop {
                let event = Some(Any {
                    type_url: "google.protobuf.Empty".to_owned(),
                    value: Vec::new(),
                });
                let request = namespaced(PublishRequest {
                    topic: mark.clone(),
                    event,
                });
                if let Err(status) = EventsClient::new(self.runtime.channel())
                    .publish(request)
                    .await
                {
                    return status;
                }
                tokio::time::sleep(MARK_AGAIN).await;
            }
        };
        let answer = async {
            tokio::select! {
                // In this order, so that the subscription goes out first.
                biased;
                stream = subscribed => stream,
                status = publish => Err(status),
            }
        };
        let stream = self.call("send its events", Box::pin(answer)).await?;
        Ok(ImageEvents {
            containerd: self.clone(),
            stream,
        })
    }
}

impl ImageEvents {
    /// The next event, however long it takes. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<ImageEvent, RuntimeError> {
        loop {
            let envelope = match self.stream.message().await {
                Ok(Some(envelope)) => envelope,
                Ok(None) => return Err(self.error(&ended())),
                Err(status) => return Err(self.error(&status)),
            };
            if let Some(event) = decode(envelope) {
                return Ok(event);
            }
        }
    }

    fn error(&self, status: &Status) -> RuntimeError {
        let endpoint = self.containerd.runtime.endpoint();
        // However it is said, an ended stream is a lost connection to those who read it.
        match RuntimeError::from_status(endpoint, "send its events", status) {
            RuntimeError::Failed { message, .. } => Unavailable::Gone {
                path: endpoint.path().to_owned(),
                what: message,
            }
            .into(),
            error @ RuntimeError::Unavailable(_) => error,
        }
    }
}

fn ended() -> Status {
    Status::unknown("the stream of events has ended")
}

/// `None` for what is no image event: a late mark, or a kind that is not known.
fn decode(envelope: Envelope) -> Option<ImageEvent> {
    let payload = envelope.event?.value;
    let payload = payload.as_slice();
    let (change, name) = match envelope.topic.as_str() {
        "/images/create" => (
            ImageChange::Created,
            ImageCreate::decode(payload).ok()?.name,
        ),
        "/images/update" => (
            ImageChange::Updated,
            ImageUpdate::decode(payload).ok()?.name,
        ),
        "/images/delete" => (
            ImageChange::Deleted,
            ImageDelete::decode(payload).ok()?.name,
        ),
        _ => return None,
    };
    Some(ImageEvent { name, change })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(topic: &str, name: &str) -> Envelope {
        let value = ImageUpdate {
            name: name.to_owned(),
        }
        .encode_to_vec();
        Envelope {
            namespace: NAMESPACE.to_owned(),
            topic: topic.to_owned(),
            event: Some(Any {
                type_url: String::new(),
                value,
            }),
        }
    }

    #[test]
    fn the_topic_says_what_happened_and_the_payload_to_what() {
        for (topic, change) in [
            ("/images/create", ImageChange::Created),
            ("/images/update", ImageChange::Updated),
            ("/images/delete", ImageChange::Deleted),
        ] {
            let event = ImageEvent {
                name: "r/x:1".to_owned(),
                change,
            };
            assert_eq!(decode(envelope(topic, "r/x:1")), Some(event));
        }
    }

    #[test]
    fn what_is_not_an_image_event_is_passed_over() {
        assert_eq!(decode(envelope("/imagecache/subscribed/0", "")), None);
        assert_eq!(decode(envelope("/images/renamed", "r/x:1")), None);
        assert_eq!(
            decode(Envelope {
                event: None,
                ..envelope("/images/create", "")
            }),
            None
        );
    }
}
