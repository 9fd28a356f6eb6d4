//! What containerd offers beside the CRI, on the same socket: leases and its content store.

use std::collections::HashMap;
use std::future::Future;

use jiff::Timestamp;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::connect::MAX_ANSWER_BYTES;
use super::error::{RuntimeError, Unavailable};
use super::images::Runtime;
use super::proto::containerd::leases::leases_client::LeasesClient;
use super::proto::containerd::leases::{
    AddResourceRequest, CreateRequest, DeleteRequest, ListRequest, ListResourcesRequest,
    ListResourcesResponse, Resource,
};
use super::proto::containerd::version::version_client::VersionClient;
use super::records::timestamp;

/// Everything of the CRI is in this namespace.
pub(super) const NAMESPACE: &str = "k8s.io";

/// Marks a lease as ours; its value is the image that it is for.
const OURS: &str = "imagecache.dev/lease";

/// Marks the lease of an image that is to be removed once nobody wants it.
const REMOVABLE: &str = "imagecache.dev/removable";

/// Names the image that a pull under the lease may replace.
const REPLACES: &str = "imagecache.dev/replaces";

/// From this time on containerd may collect the lease.
const EXPIRES: &str = "containerd.io/gc.expire";

/// The runtime is containerd.
#[derive(Clone, Debug)]
pub struct Containerd {
    pub(super) runtime: Runtime,
    version: String,
}

/// A lease of ours: it keeps what a pull has downloaded, also when the pull ends without the
/// image. Without one containerd throws everything away within 0.6 s.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    /// What a pull names it by.
    pub id: String,
    /// The image that it was made for.
    pub image: String,
    /// The image is to be removed once nobody wants it.
    pub removable: bool,
    /// The ID of the image that was there under this name when the lease was made: a pull that ends with it has brought nothing.
    pub replaces: Option<String>,
    /// When it was made, if it is there.
    pub created: Option<Timestamp>,
    /// When containerd may collect it. It does so with the next collection that something else
    /// causes, which may be much later.
    pub expires: Option<Timestamp>,
}

impl Containerd {
    /// Asks whether this runtime is containerd. `None` from another one.
    pub async fn ask(runtime: &Runtime) -> Result<Option<Self>, RuntimeError> {
        let question = async { VersionClient::new(runtime.channel()).version(()).await };
        match runtime.call("say whether it is containerd", question).await {
            Ok(answer) => Ok(Some(Self {
                runtime: runtime.clone(),
                version: answer.version,
            })),
            // The CRI's own version was not asked: an unknown service says only this.
            Err(RuntimeError::Unavailable(Unavailable::NotCri { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One that nobody has asked.
    #[cfg(test)]
    pub(crate) fn assumed(runtime: Runtime) -> Self {
        let version = String::new();
        Self { runtime, version }
    }

    /// As in "v2.4.2".
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether all pulls together share the few layers that it downloads at once, as from version 2 on. Before, each pull has its own.
    #[must_use]
    pub fn shares_slots(&self) -> bool {
        let version = self.version.trim_start_matches('v');
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse::<u32>().ok());
        major.is_none_or(|major| major >= 2)
    }

    /// Creates a lease for an image. One that exists already stays as it is: its labels, the
    /// time among them, cannot be changed.
    pub async fn create_lease(&self, lease: &Lease) -> Result<(), RuntimeError> {
        let mut labels = HashMap::from([(OURS.to_owned(), lease.image.clone())]);
        if let Some(id) = &lease.replaces {
            labels.insert(REPLACES.to_owned(), id.clone());
        }
        if lease.removable {
            labels.insert(REMOVABLE.to_owned(), "true".to_owned());
        }
        if let Some(time) = lease.expires {
            labels.insert(EXPIRES.to_owned(), time.to_string());
        }
        let request = namespaced(CreateRequest {
            id: lease.id.clone(),
            labels,
        });
        let answer = async {
            or(
                Code::AlreadyExists,
                self.leases_client().create(request).await,
            )
        };
        self.runtime.call("create a lease", answer).await
    }

    /// Deletes a lease; what only it kept is collected some time later. One that is not there
    /// is no error.
    ///
    /// Never while its pull runs: the pull would fail.
    pub async fn delete_lease(&self, id: &str) -> Result<(), RuntimeError> {
        self.delete(id, false).await
    }

    /// Deletes a lease and waits until what only it kept is gone from the disk.
    ///
    /// Never while its pull runs: the pull would fail.
    pub async fn discard_lease(&self, id: &str) -> Result<(), RuntimeError> {
        self.delete(id, true).await
    }

    /// Replaces a lease by a new one that keeps the same: the time of the old one cannot be changed.
    ///
    /// Never while its pull runs.
    pub async fn renew_lease(&self, old: &str, new: &Lease) -> Result<(), RuntimeError> {
        self.create_lease(new).await?;
        for resource in self.resources(old).await? {
            let request = namespaced(AddResourceRequest {
                id: new.id.clone(),
                resource: Some(resource),
            });
            let answer = async { self.leases_client().add_resource(request).await };
            self.call("add to a lease", answer).await?;
        }
        self.delete_lease(old).await
    }

    /// The leases that this program has made, in this process or before.
    pub async fn leases(&self) -> Result<Vec<Lease>, RuntimeError> {
        let request = namespaced(ListRequest {
            filters: vec![format!("labels.{OURS:?}")],
        });
        let answer = async { self.leases_client().list(request).await };
        let leases = self.runtime.call("list leases", answer).await?.leases;
        Ok(leases
            .into_iter()
            .filter_map(|mut lease| {
                Some(Lease {
                    removable: lease.labels.contains_key(REMOVABLE),
                    created: lease.created_at.and_then(timestamp),
                    replaces: lease.labels.remove(REPLACES),
                    image: lease.labels.remove(OURS)?,
                    expires: lease.labels.get(EXPIRES).and_then(|time| time.parse().ok()),
                    id: lease.id,
                })
            })
            .collect())
    }

    /// Whether a lease keeps nothing: no content, no part of any, no snapshot. One that is not there keeps nothing.
    pub async fn is_empty_lease(&self, id: &str) -> Result<bool, RuntimeError> {
        Ok(self.resources(id).await?.is_empty())
    }

    pub(super) async fn resources(&self, id: &str) -> Result<Vec<Resource>, RuntimeError> {
        let request = namespaced(ListResourcesRequest { id: id.to_owned() });
        let answer = async {
            match self.leases_client().list_resources(request).await {
                Err(status) if status.code() == Code::NotFound => {
                    Ok(Response::new(ListResourcesResponse::default()))
                }
                answer => answer,
            }
        };
        let answer = self.runtime.call("list what a lease holds", answer).await?;
        Ok(answer.resources)
    }

    async fn delete(&self, id: &str, sync: bool) -> Result<(), RuntimeError> {
        let request = namespaced(DeleteRequest {
            id: id.to_owned(),
            sync,
        });
        let answer = async { or(Code::NotFound, self.leases_client().delete(request).await) };
        self.runtime.call("delete a lease", answer).await
    }

    pub(super) async fn call<T>(
        &self,
        action: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        self.runtime.call(action, answer).await
    }

    pub(super) fn leases_client(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.runtime.channel()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }
}

/// A request in the namespace of the CRI.
pub(super) fn namespaced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(
        "containerd-namespace",
        MetadataValue::from_static(NAMESPACE),
    );
    request
}

/// What is wanted is the case already.
pub(super) fn or<T>(
    already: Code,
    answer: Result<Response<T>, Status>,
) -> Result<Response<()>, Status> {
    match answer {
        Err(status) if status.code() != already => Err(status),
        _ => Ok(Response::new(())),
    }
}
