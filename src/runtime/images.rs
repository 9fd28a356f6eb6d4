//! The runtime's images, over the CRI.

use std::future::Future;
use std::time::Duration;

use serde::Deserialize;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::connect::{self, MAX_ANSWER_BYTES};
use super::endpoint::Endpoint;
use super::error::{PullError, RuntimeError, Unavailable};
use super::proto::cri;
use super::proto::cri::image_service_client::ImageServiceClient;
use super::proto::cri::runtime_service_client::RuntimeServiceClient;

/// The metadata key under which containerd takes the lease of a call, also of a CRI call.
pub(super) const LEASE: &str = "containerd-lease";

/// A node's container runtime. Clones share one connection, which is made at the first call and
/// again after every loss.
///
/// References for questions and removals must be fully qualified, with registry and tag or
/// digest: runtimes take a short one that happens to be hexadecimal for the beginning of an
/// image ID, and `remove("2e")` has deleted an image.
#[derive(Clone, Debug)]
pub struct Runtime {
    endpoint: Endpoint,
    channel: Channel,
    call_timeout: Duration,
}

/// Who the runtime says it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Version {
    /// As in "containerd" or "cri-o".
    pub name: String,
    /// As in "2.4.2".
    pub version: String,
}

/// What a runtime says of one of its conditions, of which `RuntimeReady` and `NetworkReady`
/// are always there. Images can be pulled without a network for pods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RuntimeCondition {
    /// The condition's name.
    pub kind: String,
    /// Whether it holds.
    pub holds: bool,
    /// A word on why not.
    pub reason: String,
    /// A sentence on why not.
    pub message: String,
}

/// An image that the runtime has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Image {
    /// The digest of the image's configuration, as in `sha256:…`: the same for all its names.
    pub id: String,
    /// Its names with a tag.
    pub tags: Vec<String>,
    /// Its names with the digest of the manifest or the index. Empty when it was loaded by hand.
    pub digests: Vec<String>,
    /// Its size as downloaded: compressed.
    pub bytes: u64,
    /// The kubelet does not collect it.
    pub pinned: bool,
}

/// An image, and what the runtime tells of it only when it is asked for more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Described {
    /// The image.
    pub image: Image,
    /// What it runs on, if the runtime tells.
    pub platform: Option<Platform>,
    /// The name of the snapshot that has all its layers, as in `sha256:…`. Only containerd
    /// tells, and an image without layers has none.
    pub chain_id: Option<String>,
}

/// What an image runs on.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct Platform {
    /// As in "linux".
    pub os: String,
    /// In Go's words, as in "amd64" and "arm64".
    pub architecture: String,
}

/// With whose rights an image is pulled. It is sent to whatever registry the runtime asks for the image.
#[derive(Clone, Copy)]
pub struct Auth<'a> {
    /// The user's name.
    pub username: &'a str,
    /// The password.
    pub password: &'a str,
}

/// A filesystem that images are stored on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ImageFilesystem {
    /// A path on it.
    pub path: String,
    /// What the images take. containerd says 0 until it has counted, some 10 s after its start.
    pub used_bytes: u64,
}

/// A container, and what it was made from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Container {
    /// The container's ID.
    pub id: String,
    /// The image as it was asked for.
    pub image: String,
    /// The image as the runtime knows it: on containerd and CRI-O the image's ID.
    pub image_id: String,
    /// It is not running and will not again.
    pub exited: bool,
}

impl Runtime {
    /// A runtime at this address. Connects at the first call. Every call but a pull ends after
    /// `call_timeout`; a pull takes the time that the network takes.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(endpoint: Endpoint, call_timeout: Duration) -> Self {
        let channel = connect::channel(&endpoint);
        Self {
            endpoint,
            channel,
            call_timeout,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who it is. Answers also while the runtime starts.
    pub async fn version(&self) -> Result<Version, RuntimeError> {
        let request = cri::VersionRequest {
            version: "v1".to_owned(),
        };
        let answer = self
            .call("say its version", self.service().version(request))
            .await?;
        Ok(Version {
            name: answer.runtime_name,
            version: answer.runtime_version,
        })
    }

    /// Its conditions.
    pub async fn status(&self) -> Result<Vec<RuntimeCondition>, RuntimeError> {
        let request = cri::StatusRequest { verbose: false };
        let answer = self
            .call("say its status", self.service().status(request))
            .await?;
        let conditions = answer
            .status
            .map(|status| status.conditions)
            .unwrap_or_default();
        Ok(conditions.into_iter().map(Into::into).collect())
    }

    /// Every image, in no order.
    pub async fn list(&self) -> Result<Vec<Image>, RuntimeError> {
        let request = cri::ListImagesRequest {};
        let answer = self
            .call("list images", self.images().list_images(request))
            .await?;
        Ok(answer.images.into_iter().map(Into::into).collect())
    }

    /// The image of this fully qualified reference, if the runtime has it. A reference that is
    /// no reference is an image that is not there.
    pub async fn image(&self, reference: &str) -> Result<Option<Image>, RuntimeError> {
        Ok(self.ask(reference, false).await?.image.map(Into::into))
    }

    /// The same, with all that the runtime tells.
    pub async fn describe(&self, reference: &str) -> Result<Option<Described>, RuntimeError> {
        let answer = self.ask(reference, true).await?;
        let text = answer.info.get("info").map_or("", String::as_str);
        Ok(answer.image.map(|image| describe(image.into(), text)))
    }

    /// What the image of this fully qualified reference runs on. `None` when it is not there, or
    /// when the runtime does not tell.
    pub async fn platform(&self, reference: &str) -> Result<Option<Platform>, RuntimeError> {
        let described = self.describe(reference).await?;
        Ok(described.and_then(|described| described.platform))
    }

    /// Pulls an image with nobody's rights: see [`Self::pull_as`].
    pub async fn pull(&self, reference: &str, lease: Option<&str>) -> Result<String, PullError> {
        self.pull_as(None, reference, lease).await
    }

    /// Pulls an image, under a lease if there is one, and returns what the runtime calls it: its
    /// ID on containerd. Dropping the future cancels the pull in the runtime.
    ///
    /// Without a lease containerd throws away what was downloaded when a pull ends in any other
    /// way. It asks the registry also when the image is there, and fails when that fails.
    pub async fn pull_as(
        &self,
        auth: Option<Auth<'_>>,
        reference: &str,
        lease: Option<&str>,
    ) -> Result<String, PullError> {
        let mut request = Request::new(cri::PullImageRequest {
            image: spec(reference),
            auth: auth.map(|auth| cri::AuthConfig {
                username: auth.username.to_owned(),
                password: auth.password.to_owned(),
            }),
        });
        if let Some(lease) = lease {
            // An id that cannot be sent names no lease.
            let id = AsciiMetadataValue::try_from(lease).map_err(|_| PullError::NoLease)?;
            request.metadata_mut().insert(LEASE, id);
        }
        match self.images().pull_image(request).await {
            Ok(answer) => Ok(answer.into_inner().image_ref),
            Err(status) => Err(PullError::from_status(&self.endpoint, reference, &status)),
        }
    }

    /// Removes the image of this fully qualified reference, and with it every other name of the
    /// same image ID. An image that is not there, is pinned, or is in use is no error.
    pub async fn remove(&self, reference: &str) -> Result<(), RuntimeError> {
        let request = cri::RemoveImageRequest {
            image: spec(reference),
        };
        self.call("remove an image", self.images().remove_image(request))
            .await?;
        Ok(())
    }

    /// Where images are stored.
    pub async fn filesystems(&self) -> Result<Vec<ImageFilesystem>, RuntimeError> {
        let request = cri::ImageFsInfoRequest {};
        let answer = self
            .call("say where images are", self.images().image_fs_info(request))
            .await?;
        Ok(answer
            .image_filesystems
            .into_iter()
            .map(Into::into)
            .collect())
    }

    /// Every container, in no order.
    pub async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let request = cri::ListContainersRequest {};
        let answer = self
            .call("list containers", self.service().list_containers(request))
            .await?;
        Ok(answer.containers.into_iter().map(Into::into).collect())
    }

    async fn ask(
        &self,
        reference: &str,
        verbose: bool,
    ) -> Result<cri::ImageStatusResponse, RuntimeError> {
        let request = cri::ImageStatusRequest {
            image: spec(reference),
            verbose,
        };
        self.call(
            "say whether it has an image",
            self.images().image_status(request),
        )
        .await
    }

    /// Waits for an answer, but not for ever.
    pub(super) async fn call<T>(
        &self,
        action: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        self.call_within(self.call_timeout, action, answer).await
    }

    /// The same, for what takes longer than an answer.
    pub(super) async fn call_within<T>(
        &self,
        limit: Duration,
        action: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(RuntimeError::from_status(&self.endpoint, action, &status)),
            Err(_) => {
                let path = self.endpoint.path().to_owned();
                Err(Unavailable::Silent { path, after: limit }.into())
            }
        }
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    fn service(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "every request holds it as an option"
)]
fn spec(reference: &str) -> Option<cri::ImageSpec> {
    Some(cri::ImageSpec {
        image: reference.to_owned(),
    })
}

/// containerd and CRI-O put the image's configuration into a JSON text of their own.
fn describe(image: Image, text: &str) -> Described {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Verbose {
        #[serde(rename = "chainID")]
        chain_id: String,
        // An artifact may have none.
        #[serde(rename = "imageSpec")]
        spec: serde_json::Value,
    }
    let verbose: Verbose = serde_json::from_str(text).unwrap_or_default();
    let platform = Platform::deserialize(verbose.spec).ok();
    Described {
        image,
        platform: platform
            .filter(|platform| !platform.os.is_empty() && !platform.architecture.is_empty()),
        chain_id: Some(verbose.chain_id).filter(|id| !id.is_empty()),
    }
}

impl From<cri::Image> for Image {
    fn from(image: cri::Image) -> Self {
        Self {
            id: image.id,
            tags: image.repo_tags,
            digests: image.repo_digests,
            bytes: image.size,
            pinned: image.pinned,
        }
    }
}

impl From<cri::RuntimeCondition> for RuntimeCondition {
    fn from(condition: cri::RuntimeCondition) -> Self {
        Self {
            kind: condition.r#type,
            holds: condition.status,
            reason: condition.reason,
            message: condition.message,
        }
    }
}

impl From<cri::FilesystemUsage> for ImageFilesystem {
    fn from(usage: cri::FilesystemUsage) -> Self {
        Self {
            path: usage.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
            used_bytes: usage.used_bytes.map_or(0, |bytes| bytes.value),
        }
    }
}

impl From<cri::Container> for Container {
    fn from(container: cri::Container) -> Self {
        let exited = container.state() == cri::ContainerState::ContainerExited;
        Self {
            exited,
            id: container.id,
            image: container.image.map(|spec| spec.image).unwrap_or_default(),
            image_id: if container.image_id.is_empty() {
                container.image_ref
            } else {
                container.image_id
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_and_chain_id_are_read_from_what_the_runtime_tells_and_from_nothing_else() {
        let image = || Image::from(cri::Image::default());
        let linux = |architecture: &str| {
            Some(Platform {
                os: "linux".to_owned(),
                architecture: architecture.to_owned(),
            })
        };
        for (text, platform, chain_id) in [
            (
                r#"{"chainID":"sha256:0","imageSpec":{"os":"linux","architecture":"arm64","config":{}}}"#,
                linux("arm64"),
                Some("sha256:0"),
            ),
            (
                r#"{"labels":{},"imageSpec":{"architecture":"amd64","os":"linux"}}"#,
                linux("amd64"),
                None,
            ),
            (
                r#"{"chainID":"sha256:0","imageSpec":{"os":"linux","architecture":""}}"#,
                None,
                Some("sha256:0"),
            ),
            (
                r#"{"chainID":"sha256:0","imageSpec":{"os":"linux"}}"#,
                None,
                Some("sha256:0"),
            ),
            (
                r#"{"chainID":"sha256:0","imageSpec":null}"#,
                None,
                Some("sha256:0"),
            ),
            (r#"{"chainID":"sha256:0"}"#, None, Some("sha256:0")),
            (r#"{"chainID":""}"#, None, None),
            ("", None, None),
            ("not JSON", None, None),
        ] {
            let expected = Described {
                image: image(),
                platform,
                chain_id: chain_id.map(str::to_owned),
            };
            assert_eq!(describe(image(), text), expected, "{text}");
        }
    }
}
