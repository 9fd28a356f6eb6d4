//! A real registry (distribution), with or without passwords and TLS, whose requests can be counted.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use crate::http;
use crate::image::ImageSpec;
use crate::lab::Lab;
use crate::pki::Authority;
use crate::process::{Process, log_from};
use crate::servers::server;
use crate::token::TokenServer;
use crate::wait::wait_for;

/// Who the test bed's own requests say they are: [`Registry::requests`] leaves them out.
const AGENT: &str = "testbed";

/// Where a server listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// 127.0.0.1: for runtimes that share the machine's network.
    #[default]
    Loopback,
    /// The lab's bridge: for nodes with a network of their own.
    Bridge,
}

impl Listen {
    pub(crate) fn ip(self, lab: &Lab) -> Result<IpAddr> {
        Ok(match self {
            Self::Loopback => Ipv4Addr::LOCALHOST.into(),
            Self::Bridge => lab.network()?.address().into(),
        })
    }
}

/// How a registry proves who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Plain HTTP.
    #[default]
    Off,
    /// A certificate of the lab's authority, which a client can be told to trust.
    Trusted,
    /// A certificate of an authority that nobody knows.
    SelfSigned,
}

/// How a registry shall be.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    /// Where it listens.
    pub listen: Listen,
    /// User and password without which it answers 401.
    pub user: Option<(String, String)>,
    /// Whether a token is asked for, which a server of its own gives to that user, instead of the password itself.
    pub tokens: bool,
    /// Plain HTTP, or which certificate.
    pub tls: Tls,
}

/// A registry that runs.
#[derive(Debug)]
pub struct Registry {
    lab: Arc<Lab>,
    name: String,
    address: SocketAddr,
    user: Option<(String, String)>,
    tokens: Option<TokenServer>,
    authority: Option<Authority>,
    tls: Tls,
    file: PathBuf,
    process: Option<Process>,
    log: PathBuf,
}

/// One line of the registry's access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryRequest {
    /// `GET`, `HEAD`, ...
    pub method: String,
    /// The path, with its query.
    pub path: String,
    /// The status that it was answered with.
    pub status: u16,
    /// What the client calls itself.
    pub agent: String,
}

/// A moment in a server's log, to count from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark(pub(crate) u64);

impl Registry {
    /// Starts one on a free port.
    pub async fn start(lab: &Arc<Lab>, name: &str, options: RegistryOptions) -> Result<Self> {
        let dir = lab.folder(name)?;
        let address = free_port(options.listen.ip(lab)?)?;
        let authority = match options.tls {
            Tls::Off => None,
            Tls::Trusted | Tls::SelfSigned => Some(Authority::make(&dir, &format!("{name}-ca"))?),
        };
        let mut http = json!({"addr": address});
        if let Some(unknown) = &authority {
            let signer = if options.tls == Tls::Trusted {
                lab.authority()?
            } else {
                unknown
            };
            let identity = signer.server(name, &[address.ip()])?;
            http = json!({"addr": address, "tls": {"certificate": identity.certificate, "key": identity.key}});
        }
        let mut file = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": false}},
            "storage": {
                "filesystem": {"rootdirectory": dir.join("data")},
                "delete": {"enabled": true},
                "maintenance": {"uploadpurging": {"enabled": false}},
            },
            "http": http,
        });
        let mut tokens = None;
        if let (Some((user, password)), Some(file)) = (&options.user, file.as_object_mut()) {
            let auth = if options.tokens {
                let server = TokenServer::start(&dir, address.ip(), user, password).await?;
                tokens.insert(server).configuration()
            } else {
                // The lowest cost: it is paid again at each request.
                let hash = bcrypt::hash_with_result(password, 4)?
                    .format_for_version(bcrypt::Version::TwoY);
                let path = dir.join("htpasswd");
                fs::write(&path, format!("{user}:{hash}\n"))?;
                json!({"htpasswd": {"realm": "testbed", "path": path}})
            };
            file.insert("auth".to_owned(), auth);
        }
        let path = dir.join("registry.yaml");
        fs::write(&path, serde_json::to_vec_pretty(&file)?)?;
        let mut registry = Self {
            lab: lab.clone(),
            name: name.to_owned(),
            address,
            user: options.user,
            tokens,
            authority,
            tls: options.tls,
            file: path,
            process: None,
            log: lab.dir().join("log").join(format!("{name}.log")),
        };
        registry.start_again().await?;
        Ok(registry)
    }

    /// Stops it; clients find the port closed. What was pushed stays.
    pub async fn stop(&mut self) -> Result<()> {
        match self.process.take() {
            Some(process) => process.stop(Duration::from_secs(5)).await,
            None => Ok(()),
        }
    }

    /// Starts it again at the same address.
    pub async fn start_again(&mut self) -> Result<()> {
        let mut command = Command::new(server("registry", "registry")?);
        command
            .arg("serve")
            .arg(&self.file)
            .env("OTEL_TRACES_EXPORTER", "none");
        let process = self.lab.spawn(&self.name, command)?;
        wait_for(&self.name, Duration::from_secs(10), async || {
            ensure!(process.status().is_none(), "it ended");
            self.send(Method::GET, "/v2/", None, Bytes::new()).await
        })
        .await
        .map_err(|e| process.explain(e))?;
        self.process = Some(process);
        Ok(())
    }

    /// `IP:PORT`, as it stands in a reference.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://IP:PORT` or `https://IP:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "{}://{}",
            if self.tls == Tls::Off {
                "http"
            } else {
                "https"
            },
            self.address
        )
    }

    /// How it proves who it is.
    #[must_use]
    pub fn tls(&self) -> Tls {
        self.tls
    }

    /// The full reference of an image here: `IP:PORT/NAME`.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Puts an image under `REPOSITORY:TAG` and returns its digest.
    pub async fn push(&self, name: &str, image: &ImageSpec) -> Result<String> {
        let (repository, tag) = name
            .rsplit_once(':')
            .with_context(|| format!("{name:?} has no tag"))?;
        let content = image.content()?;
        for blob in content.blobs {
            let started = self
                .send(
                    Method::POST,
                    &format!("/v2/{repository}/blobs/uploads/"),
                    None,
                    Bytes::new(),
                )
                .await?;
            let location = started
                .headers()
                .get(LOCATION)
                .context("an upload without a location")?
                .to_str()?;
            let path = location.strip_prefix(&self.url()).unwrap_or(location);
            let path = format!(
                "{path}{}digest={}",
                if path.contains('?') { '&' } else { '?' },
                blob.digest
            );
            self.send(
                Method::PUT,
                &path,
                Some("application/octet-stream"),
                blob.bytes.into(),
            )
            .await?;
        }
        let mut digest = String::new();
        let last = content.manifests.len().saturating_sub(1);
        for (at, manifest) in content.manifests.into_iter().enumerate() {
            digest = manifest.digest;
            let name = if at == last { tag } else { &digest };
            let path = format!("/v2/{repository}/manifests/{name}");
            self.send(
                Method::PUT,
                &path,
                Some(manifest.media_type),
                manifest.bytes.into(),
            )
            .await?;
        }
        Ok(digest)
    }

    /// Removes a tag; its content stays, and can be had by digest.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let (repository, tag) = name
            .rsplit_once(':')
            .with_context(|| format!("{name:?} has no tag"))?;
        self.send(
            Method::DELETE,
            &format!("/v2/{repository}/manifests/{tag}"),
            None,
            Bytes::new(),
        )
        .await
        .map(drop)
    }

    /// This moment.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.log.metadata().map_or(0, |m| m.len()))
    }

    /// What others than the test bed asked for since a moment, in the order of the answers.
    #[must_use]
    pub fn requests(&self, since: Mark) -> Vec<RegistryRequest> {
        let log = log_from(&self.log, since.0);
        log.lines()
            .filter_map(parse)
            .filter(|r| r.agent != AGENT)
            .collect()
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: Bytes,
    ) -> Result<Response<Bytes>> {
        let mut request = Request::builder()
            .method(&method)
            .uri(path)
            .header(HOST, self.host())
            .header(USER_AGENT, AGENT);
        if let Some(tokens) = &self.tokens {
            let token = tokens.all_rights(repository(path))?;
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        } else if let Some((user, password)) = &self.user {
            let pair = BASE64.encode(format!("{user}:{password}"));
            request = request.header(AUTHORIZATION, format!("Basic {pair}"));
        }
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        let authority = match (self.tls, &self.authority) {
            (Tls::Trusted, _) => Some(self.lab.authority()?),
            (_, own) => own.as_ref(),
        };
        let answer = http::send(
            self.address,
            authority.map(Authority::der),
            request.body(Full::new(body))?,
        )
        .await?;
        if answer.status() >= StatusCode::BAD_REQUEST {
            bail!(
                "{method} {path}: {}: {}",
                answer.status(),
                String::from_utf8_lossy(answer.body()).trim()
            );
        }
        Ok(answer)
    }
}

/// The repository that a path of the registry's API is about.
fn repository(path: &str) -> &str {
    let path = path.strip_prefix("/v2/").unwrap_or(path);
    path.split("/blobs/")
        .next()
        .and_then(|p| p.split("/manifests/").next())
        .unwrap_or(path)
}

/// `127.0.0.1 - - [date] "GET /v2/ HTTP/1.1" 200 2 "" "agent"`
fn parse(line: &str) -> Option<RegistryRequest> {
    let mut quoted = line.split('"');
    let mut request = quoted.nth(1)?.split(' ');
    let (method, path, version) = (request.next()?, request.next()?, request.next()?);
    let status = quoted.next()?.split_whitespace().next()?.parse().ok()?;
    let agent = quoted.nth(2)?;
    let request = || RegistryRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        status,
        agent: agent.to_owned(),
    };
    version.starts_with("HTTP/").then(request)
}

/// A port that nobody listens on at this moment.
pub(crate) fn free_port(ip: IpAddr) -> Result<SocketAddr> {
    Ok(TcpListener::bind((ip, 0))?.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_repository() {
        assert_eq!(
            repository("/v2/team/app/blobs/uploads/1?digest=sha256:a"),
            "team/app"
        );
        assert_eq!(repository("/v2/team/app/manifests/1"), "team/app");
    }

    #[test]
    fn an_access_log_line_is_a_request() {
        let line = r#"127.0.0.1 - - [30/Nov/2026:19:38:33 +0000] "HEAD /v2/lab/a/manifests/1 HTTP/1.1" 404 96 "" "containerd/2.4.2""#;
        let expected = RegistryRequest {
            method: "HEAD".into(),
            path: "/v2/lab/a/manifests/1".into(),
            status: 404,
            agent: "containerd/2.4.2".into(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(
            parse(r#"time="2026-11-30T19:38:33Z" level=warning msg="no secret""#),
            None
        );
    }
}
