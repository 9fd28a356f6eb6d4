//! A CRI server in this process, for what no real runtime can be made to do.
//!
//! It speaks the CRI alone, none of containerd's own services, so it also stands for every
//! runtime that is not containerd.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use imagecache_agent::runtime::Endpoint;

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod cri {
    include!(concat!(env!("OUT_DIR"), "/server/runtime.v1.rs"));
}
use cri::image_service_server::{ImageService, ImageServiceServer};
use cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// What a pull comes to.
#[derive(Clone, Debug)]
pub enum Pull {
    /// The image is there afterwards.
    Succeeds,
    /// A status with this code and text.
    Fails(Code, String),
    /// No answer, until the client gives up.
    Hangs,
}

/// A fake runtime on a socket in a temporary folder. It ends when it is dropped.
#[derive(Debug)]
pub struct FakeCri {
    folder: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    /// A runtime of its own: when it goes, the connections go with it.
    server: Option<Runtime>,
}

#[derive(Debug, Default)]
struct State {
    images: BTreeSet<String>,
    pulls: BTreeMap<String, Pull>,
    requests: Vec<String>,
    silent: bool,
    cancelled: usize,
}

#[derive(Clone)]
struct Service(Arc<Mutex<State>>);

impl FakeCri {
    /// Starts one without images, whose pulls succeed.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut fake = Self {
            folder,
            state: Arc::default(),
            server: None,
        };
        fake.start_again();
        fake
    }

    /// Starts again after [`FakeCri::stop`], with the same images.
    pub fn start_again(&mut self) {
        let service = Service(self.state.clone());
        let routes = Server::builder()
            .add_service(RuntimeServiceServer::new(service.clone()))
            .add_service(ImageServiceServer::new(service));
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let entered = server.enter();
        let listener = listen(&self.socket());
        drop(entered);
        server.spawn(routes.serve_with_incoming(connections(listener)));
        self.server = Some(server);
    }

    /// Ends the server and every connection. The socket stays, as after a `kill -9`.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            // Not in this thread: a runtime may not wait inside another one.
            std::thread::spawn(|| drop(server)).join().unwrap();
        }
    }

    /// Its address.
    pub fn endpoint(&self) -> Endpoint {
        endpoint(&self.socket())
    }

    /// From now on, or no longer: no call is answered.
    pub fn be_silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    /// Puts an image there, without a pull.
    pub fn add(&self, reference: &str) {
        self.state().images.insert(reference.to_owned());
    }

    /// Takes an image away, as the kubelet does.
    pub fn remove(&self, reference: &str) {
        self.state().images.remove(reference);
    }

    /// What a pull of this reference comes to from now on.
    pub fn on_pull(&self, reference: &str, pull: Pull) {
        self.state().pulls.insert(reference.to_owned(), pull);
    }

    /// Every call so far, as in `PullImage r.example/x:1`.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// How many calls the client has given up.
    pub fn cancelled(&self) -> usize {
        self.state().cancelled
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("cri.sock")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The address of a socket.
pub fn endpoint(path: &Path) -> Endpoint {
    path.to_str().unwrap().parse().unwrap()
}

/// Listens on a path, in place of what is there.
pub fn listen(path: &Path) -> UnixListener {
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path).unwrap()
}

/// What a server accepts.
pub fn connections(
    listener: UnixListener,
) -> impl futures::Stream<Item = Result<UnixStream, std::io::Error>> {
    futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

/// Counts a call that ends before its answer.
struct Waiting(Arc<Mutex<State>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lock().unwrap().cancelled += 1;
    }
}

impl Service {
    /// Takes note of a call, and does not go on while the runtime is silent.
    async fn hear(&self, request: String) {
        self.state().requests.push(request);
        if self.state().silent {
            self.hang().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    async fn hang(&self) -> Infallible {
        let _waiting = Waiting(self.0.clone());
        std::future::pending().await
    }
}

fn named(image: Option<cri::ImageSpec>) -> String {
    image.unwrap_or_default().image
}

fn repository(reference: &str) -> &str {
    let name = reference
        .split_once('@')
        .map_or(reference, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// The ID of an image: the same for all names of a repository.
fn id(reference: &str) -> String {
    let number = repository(reference)
        .bytes()
        .fold(0_u64, |sum, byte| sum.wrapping_mul(131) + u64::from(byte));
    format!("sha256:{number:064x}")
}

/// The images that have these names.
fn images(names: &BTreeSet<String>) -> Vec<cri::Image> {
    let mut images = BTreeMap::<String, cri::Image>::new();
    for name in names {
        let id = id(name);
        let image = images.entry(id.clone()).or_insert_with(|| cri::Image {
            repo_digests: vec![format!("{}@{id}", repository(name))],
            id,
            size: 1000,
            ..cri::Image::default()
        });
        if !name.contains('@') {
            image.repo_tags.push(name.clone());
        } else if !image.repo_digests.contains(name) {
            image.repo_digests.push(name.clone());
        }
    }
    images.into_values().collect()
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(
        &self,
        _: Request<cri::VersionRequest>,
    ) -> Result<Response<cri::VersionResponse>, Status> {
        self.hear("Version".to_owned()).await;
        Ok(Response::new(cri::VersionResponse {
            runtime_name: "fake".to_owned(),
            runtime_version: "1.0".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn status(
        &self,
        _: Request<cri::StatusRequest>,
    ) -> Result<Response<cri::StatusResponse>, Status> {
        self.hear("Status".to_owned()).await;
        let conditions = ["RuntimeReady", "NetworkReady"].map(|name| cri::RuntimeCondition {
            r#type: name.to_owned(),
            status: true,
            ..cri::RuntimeCondition::default()
        });
        let status = cri::RuntimeStatus {
            conditions: conditions.to_vec(),
        };
        Ok(Response::new(cri::StatusResponse {
            status: Some(status),
        }))
    }

    async fn list_containers(
        &self,
        _: Request<cri::ListContainersRequest>,
    ) -> Result<Response<cri::ListContainersResponse>, Status> {
        self.hear("ListContainers".to_owned()).await;
        Ok(Response::new(cri::ListContainersResponse::default()))
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(
        &self,
        _: Request<cri::ListImagesRequest>,
    ) -> Result<Response<cri::ListImagesResponse>, Status> {
        self.hear("ListImages".to_owned()).await;
        let images = images(&self.state().images);
        Ok(Response::new(cri::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Result<Response<cri::ImageStatusResponse>, Status> {
        let reference = named(request.into_inner().image);
        self.hear(format!("ImageStatus {reference}")).await;
        let state = self.state();
        let is_there = state.images.contains(&reference);
        let id = if is_there { id(&reference) } else { reference };
        let mut all = images(&state.images).into_iter();
        let image = all.find(|image| image.id == id);
        Ok(Response::new(cri::ImageStatusResponse {
            image,
            ..cri::ImageStatusResponse::default()
        }))
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Result<Response<cri::PullImageResponse>, Status> {
        let reference = named(request.into_inner().image);
        self.hear(format!("PullImage {reference}")).await;
        let pull = self.state().pulls.get(&reference).cloned();
        match pull {
            None | Some(Pull::Succeeds) => {
                self.state().images.insert(reference.clone());
                Ok(Response::new(cri::PullImageResponse {
                    image_ref: id(&reference),
                }))
            }
            Some(Pull::Fails(code, message)) => Err(Status::new(code, message)),
            Some(Pull::Hangs) => match self.hang().await {},
        }
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Result<Response<cri::RemoveImageResponse>, Status> {
        let reference = named(request.into_inner().image);
        self.hear(format!("RemoveImage {reference}")).await;
        // Every name of the image goes, as with real runtimes.
        self.state()
            .images
            .retain(|name| id(name) != id(&reference));
        Ok(Response::new(cri::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Result<Response<cri::ImageFsInfoResponse>, Status> {
        self.hear("ImageFsInfo".to_owned()).await;
        Ok(Response::new(cri::ImageFsInfoResponse::default()))
    }
}
