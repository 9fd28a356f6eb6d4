//! containerd's own records of images: the one of an image's ID, which carries our marks, and
//! those of single names.

use std::time::Duration;

use jiff::Timestamp;
use prost_types::FieldMask;
use tonic::transport::Channel;
use tonic::{Code, Response};

use super::connect::MAX_ANSWER_BYTES;
use super::containerd::{Containerd, namespaced, or};
use super::error::RuntimeError;
use super::marks::{self, Change, Labels, Marks};
use super::proto::containerd::images::images_client::ImagesClient;
use super::proto::containerd::images::{
    DeleteImageRequest, GetImageRequest, GetImageResponse, Image, ListImagesRequest,
    UpdateImageRequest, UpdateImageResponse,
};

/// How long the disk may take: a large image has many small files.
const DISK: Duration = Duration::from_mins(2);

/// The record that containerd keeps under an image's ID: one for all its names.
///
/// Images with the same configuration have the same ID and share the record, such as all
/// artifacts whose configuration is empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IdRecord {
    /// As in [`Image::id`](super::Image::id).
    pub id: String,
    /// The digest of the manifest or the index. Of images that share the ID, the last one pulled.
    pub target: String,
    /// What its labels say.
    pub marks: Marks,
    /// When it was made: when the image came to the node.
    pub created: Option<Timestamp>,
}

impl IdRecord {
    /// Whether somebody else has brought the image before this time.
    #[must_use]
    pub fn is_foreign_since(&self, time: Timestamp) -> bool {
        self.marks.pulled.is_empty() && self.created.is_none_or(|created| created < time)
    }
}

impl From<Image> for IdRecord {
    fn from(image: Image) -> Self {
        Self {
            target: image.target.map(|target| target.digest).unwrap_or_default(),
            marks: Marks::of(&image.labels),
            created: image.created_at.and_then(timestamp),
            id: image.name,
        }
    }
}

impl Containerd {
    /// The record of every image's ID, in no order.
    pub async fn id_records(&self) -> Result<Vec<IdRecord>, RuntimeError> {
        let request = namespaced(ListImagesRequest {
            filters: vec!["name~=\"^sha256:\"".to_owned()],
        });
        let answer = async { self.images_client().list(request).await };
        let images = self.call("list image records", answer).await?.images;
        Ok(images.into_iter().map(IdRecord::from).collect())
    }

    /// The record of one image's ID. `None`: it is not there.
    pub async fn id_record(&self, id: &str) -> Result<Option<IdRecord>, RuntimeError> {
        Ok(self.record(id).await?.map(IdRecord::from))
    }

    /// Notes on the image that we have pulled it under this reference, and whether it is to be
    /// removed when nobody wants it any more; `None` takes the note away. False when the record
    /// is not there.
    pub async fn mark_pulled(
        &self,
        id: &str,
        reference: &str,
        removable: Option<bool>,
    ) -> Result<bool, RuntimeError> {
        let relabelled = self.relabel(id, |_| marks::mark(reference, removable));
        Ok(relabelled.await?.is_some())
    }

    /// Pins the image: the kubelet does not collect it. Somebody else's pin stays as it is, and
    /// is not ours. False when the record is not there.
    pub async fn pin(&self, id: &str) -> Result<bool, RuntimeError> {
        Ok(self.relabel(id, marks::pin).await?.is_some())
    }

    /// Takes our pin away; somebody else's stays. False when the record is not there.
    pub async fn unpin(&self, id: &str) -> Result<bool, RuntimeError> {
        Ok(self.relabel(id, marks::unpin).await?.is_some())
    }

    /// Takes all away that we have noted on the image, our pin too, and answers what that was.
    /// `None` when the record is not there.
    pub async fn clear_marks(&self, id: &str) -> Result<Option<Marks>, RuntimeError> {
        let labels = self.relabel(id, marks::clear).await?;
        Ok(labels.as_ref().map(Marks::of))
    }

    /// Deletes the record of exactly this name, and no other name of the same image, unlike
    /// [`Runtime::remove`](super::Runtime::remove). One that is not there is no error.
    ///
    /// With `sync` it waits until what nothing else refers to is gone from the disk, 2 min at
    /// most; the record is gone also when that time is up.
    pub async fn delete_record(&self, name: &str, sync: bool) -> Result<(), RuntimeError> {
        let request = namespaced(DeleteImageRequest {
            name: name.to_owned(),
            sync,
        });
        let answer = async { or(Code::NotFound, self.images_client().delete(request).await) };
        let action = "delete an image record";
        if sync {
            self.runtime.call_within(DISK, action, answer).await
        } else {
            self.call(action, answer).await
        }
    }

    /// Whether a lease keeps the snapshot of this chain ID, which is all layers of an image
    /// unpacked. It does when a pull under it has unpacked them, and from containerd 1.7 on also
    /// when the pull found them unpacked. A lease that is not there keeps nothing.
    pub async fn lease_has_snapshot(
        &self,
        lease: &str,
        chain_id: &str,
    ) -> Result<bool, RuntimeError> {
        let resources = self.resources(lease).await?;
        Ok(resources
            .iter()
            .any(|held| held.r#type.starts_with("snapshots/") && held.id == chain_id))
    }

    /// Changes labels of a record, and leaves all others to whoever else writes them. Answers
    /// the labels before; `None` when the record is not there.
    async fn relabel(
        &self,
        name: &str,
        change: impl FnOnce(&Labels) -> Change,
    ) -> Result<Option<Labels>, RuntimeError> {
        let Some(image) = self.record(name).await? else {
            return Ok(None);
        };
        let change = marks::missing(&image.labels, change(&image.labels));
        if change.is_empty() {
            return Ok(Some(image.labels));
        }
        let paths = change.keys().map(|key| format!("labels.{key}")).collect();
        let request = namespaced(UpdateImageRequest {
            image: Some(Image {
                name: image.name,
                labels: change.into_iter().collect(),
                // As it was: without it containerd 1.7 and 2 end. The mask keeps it as it is now.
                target: image.target,
                created_at: None,
            }),
            update_mask: Some(FieldMask { paths }),
        });
        let answer = async {
            match self.images_client().update(request).await {
                // Deleted in between.
                Err(status) if status.code() == Code::NotFound => {
                    Ok(Response::new(UpdateImageResponse::default()))
                }
                answer => answer,
            }
        };
        let updated = self.call("label an image record", answer).await?.image;
        Ok(updated.map(|_| image.labels))
    }

    /// The record of this name. One without a target, which containerd never stores, is none.
    async fn record(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        let request = namespaced(GetImageRequest {
            name: name.to_owned(),
        });
        let answer = async {
            match self.images_client().get(request).await {
                Err(status) if status.code() == Code::NotFound => {
                    Ok(Response::new(GetImageResponse::default()))
                }
                answer => answer,
            }
        };
        let image = self.call("read an image record", answer).await?.image;
        Ok(image.filter(|image| image.target.is_some()))
    }

    fn images_client(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.runtime.channel()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }
}

pub(super) fn timestamp(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}
