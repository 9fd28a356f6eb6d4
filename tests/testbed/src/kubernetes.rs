//! The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::lab::Lab;
use crate::pki::{Identity, token_keys};
use crate::process::{Process, lock, log_from};
use crate::registry::Mark;
use crate::servers::server;
use crate::wait::wait_for;

const SERVICES: &str = "10.96.0.0/16";
/// The first address of [`SERVICES`], which Pods of a real cluster know the API server by.
const SERVICE_IP: [u8; 4] = [10, 96, 0, 1];

/// A node that says nothing for this long is `NotReady`. The kubelet renews its lease every 2 s.
pub(crate) const NODE_GRACE: Duration = Duration::from_secs(7);

#[derive(Debug)]
pub(crate) struct ControlPlane {
    lab: Arc<Lab>,
    address: SocketAddr,
    arguments: Vec<String>,
    admin: PathBuf,
    audit: PathBuf,
    etcd: Process,
    api_server: Mutex<Option<Process>>,
    others: Mutex<Vec<Process>>,
}

/// A request that the API server has answered, or a watch that it has begun to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    /// The user, for example `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// The resource in the plural, empty for paths such as `/readyz`.
    pub resource: String,
    /// `status`, `token`, ... or empty.
    pub subresource: String,
    /// The object's namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The status of the answer.
    pub code: u16,
    /// What the client calls itself.
    pub agent: String,
}

impl ControlPlane {
    /// Starts etcd and the API server; [`ControlPlane::ready`] waits for them.
    pub(crate) async fn start(lab: &Arc<Lab>) -> Result<Self> {
        let ip = IpAddr::from(lab.network()?.address());
        let dir = lab.folder("control-plane")?;
        let etcd = start_etcd(lab, &dir, ip)?;
        wait_for("etcd", Duration::from_secs(20), async || {
            ensure!(etcd.status().is_none(), "it ended");
            TcpStream::connect((ip, 2379)).await?;
            Ok(())
        })
        .await
        .map_err(|e| etcd.explain(e))?;

        let address = SocketAddr::new(ip, 6443);
        let audit = dir.join("audit.log");
        let arguments = api_server_arguments(lab, &dir, address, &audit)?;
        let admin = lab
            .authority()?
            .client("admin", "admin", "system:masters")?;
        let admin = kubeconfig(lab, address, "admin", &by_certificate(&admin)?)?;
        let plane = Self {
            lab: lab.clone(),
            address,
            arguments,
            admin,
            audit,
            etcd,
            api_server: Mutex::default(),
            others: Mutex::default(),
        };
        plane.start_api_server()?;
        Ok(plane)
    }

    /// Waits until the API server is ready, then starts what needs it. Without kubelets nobody reports for the Nodes and runs
    /// the Pods that a test makes: what would judge them for that is left out.
    pub(crate) async fn ready(&self, kubelets: bool) -> Result<kube::Client> {
        let client = self.wait_ready().await?;
        let admin = format!("--kubeconfig={}", self.admin.display());
        let mut command = Command::new(server("kubernetes", "kube-controller-manager")?);
        command.args([
            &admin,
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        ]);
        command.args([
            "--node-monitor-period=1s",
            &format!("--node-monitor-grace-period={}s", NODE_GRACE.as_secs()),
        ]);
        command.arg(format!(
            "--root-ca-file={}",
            self.lab.authority()?.certificate().display()
        ));
        command.arg(format!(
            "--service-account-private-key-file={}",
            self.lab.dir().join("pki/tokens.key").display()
        ));
        // It would make the one below /usr.
        let plugins = self.lab.folder("control-plane/volume-plugins")?;
        command.arg(format!("--flex-volume-plugin-dir={}", plugins.display()));
        if !kubelets {
            command.arg(
                "--controllers=*,-node-lifecycle-controller,-pod-garbage-collector-controller",
            );
        }
        lock(&self.others).push(self.lab.spawn("controller-manager", command)?);
        if kubelets {
            let mut command = Command::new(server("kubernetes", "kube-scheduler")?);
            command.args([&admin, "--leader-elect=false", "--secure-port=0"]);
            lock(&self.others).push(self.lab.spawn("scheduler", command)?);
        }
        Ok(client)
    }

    pub(crate) fn start_api_server(&self) -> Result<()> {
        let mut command = Command::new(server("kubernetes", "kube-apiserver")?);
        command.args(&self.arguments);
        let process = self.lab.spawn("apiserver", command)?;
        *lock(&self.api_server) = Some(process);
        Ok(())
    }

    pub(crate) async fn wait_ready(&self) -> Result<kube::Client> {
        let client = self.client().await?;
        let answered = wait_for("the API server", Duration::from_secs(40), async || {
            let ended = lock(&self.api_server).as_ref().and_then(Process::status);
            ensure!(ended.is_none(), "it ended");
            let request = hyper::Request::get("/readyz").body(Vec::new())?;
            // One look is short: the client would repeat it for long by itself.
            Ok(
                tokio::time::timeout(Duration::from_secs(2), client.request_text(request))
                    .await??,
            )
        });
        answered
            .await
            .map_err(|e| match lock(&self.api_server).as_ref() {
                Some(process) => process.explain(e),
                None => e,
            })?;
        Ok(client)
    }

    /// Takes the API server away, for a stop or a kill.
    pub(crate) fn take_api_server(&self) -> Option<Process> {
        lock(&self.api_server).take()
    }

    pub(crate) fn admin(&self) -> &Path {
        &self.admin
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn client(&self) -> Result<kube::Client> {
        client(&self.admin).await
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.audit.metadata().map_or(0, |m| m.len()))
    }

    pub(crate) fn requests(&self, since: Mark) -> Vec<ApiRequest> {
        requests(&log_from(&self.audit, since.0))
    }

    /// The last lines of all its logs.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let (api_server, others) = (lock(&self.api_server), lock(&self.others));
        let all = api_server.iter().chain(others.iter()).chain([&self.etcd]);
        let tails: Vec<_> = all
            .map(|p| format!("{}:\n{}\n", p.name(), p.log_tail(lines)))
            .collect();
        tails.concat()
    }
}

/// A client with the rights of a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

pub(crate) fn by_certificate(identity: &Identity) -> Result<Value> {
    Ok(json!({
        "client-certificate-data": BASE64.encode(fs::read(&identity.certificate)?),
        "client-key-data": BASE64.encode(fs::read(&identity.key)?),
    }))
}

/// Writes `kubeconfig-NAME`. JSON is YAML.
pub(crate) fn kubeconfig(
    lab: &Lab,
    address: SocketAddr,
    name: &str,
    user: &Value,
) -> Result<PathBuf> {
    let authority = BASE64.encode(fs::read(lab.authority()?.certificate())?);
    let cluster =
        json!({"server": format!("https://{address}"), "certificate-authority-data": authority});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": "testbed", "user": name}}],
        "current-context": name,
    });
    let path = lab.dir().join(format!("kubeconfig-{name}"));
    fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
    Ok(path)
}

fn start_etcd(lab: &Lab, dir: &Path, ip: IpAddr) -> Result<Process> {
    let (clients, peers) = (format!("http://{ip}:2379"), format!("http://{ip}:2380"));
    let file = json!({
        "name": "default",
        "data-dir": dir.join("etcd"),
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": format!("default={peers}"),
        "log-level": "warn",
        // Nothing here outlives the machine.
        "unsafe-no-fsync": true,
    });
    let path = dir.join("etcd.yaml");
    fs::write(&path, serde_json::to_vec(&file)?)?;
    let mut command = Command::new(server("etcd", "server")?);
    command.arg("--config-file").arg(path);
    lab.spawn("etcd", command)
}

fn api_server_arguments(
    lab: &Lab,
    dir: &Path,
    address: SocketAddr,
    audit: &Path,
) -> Result<Vec<String>> {
    let authority = lab.authority()?;
    let serving = authority.server(
        "apiserver",
        &[
            address.ip(),
            IpAddr::from([127, 0, 0, 1]),
            IpAddr::from(SERVICE_IP),
        ],
    )?;
    let to_kubelets =
        authority.client("apiserver-kubelet", "apiserver-kubelet", "system:masters")?;
    let (private, public) = token_keys(&lab.folder("pki")?)?;
    let policy = dir.join("audit-policy.yaml");
    let every_request = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    });
    fs::write(&policy, serde_json::to_vec(&every_request)?)?;
    let (ip, port) = (address.ip(), address.port());
    Ok(vec![
        format!("--etcd-servers=http://{ip}:2379"),
        format!("--bind-address={ip}"),
        format!("--advertise-address={ip}"),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", serving.certificate.display()),
        format!("--tls-private-key-file={}", serving.key.display()),
        format!("--client-ca-file={}", authority.certificate().display()),
        format!(
            "--kubelet-client-certificate={}",
            to_kubelets.certificate.display()
        ),
        format!("--kubelet-client-key={}", to_kubelets.key.display()),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", public.display()),
        format!("--service-account-signing-key-file={}", private.display()),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--allow-privileged=true".to_owned(),
        // It would want to be several.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit.display()),
        // Megabytes. A log that turns over would lose what is counted.
        "--audit-log-maxsize=100000".to_owned(),
    ])
}

/// A watch has two lines with one ID, at its start and at its end: the first one counts.
fn requests(log: &str) -> Vec<ApiRequest> {
    let mut ids = std::collections::HashSet::new();
    let events = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let new = events.filter(|event| ids.insert(text(event, "/auditID")));
    new.map(|event| ApiRequest {
        user: text(&event, "/user/username"),
        verb: text(&event, "/verb"),
        resource: text(&event, "/objectRef/resource"),
        subresource: text(&event, "/objectRef/subresource"),
        namespace: text(&event, "/objectRef/namespace"),
        name: text(&event, "/objectRef/name"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .and_then(|c| c.try_into().ok())
            .unwrap_or(0),
        agent: text(&event, "/userAgent"),
    })
    .collect()
}

fn text(event: &Value, pointer: &str) -> String {
    event
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]

    use super::*;

    #[test]
    fn a_watch_is_one_request() {
        let line = |stage: &str| {
            json!({
                "auditID": "1", "stage": stage, "verb": "watch", "user": {"username": "system:node:n1"}, "userAgent": "kubelet",
                "objectRef": {"resource": "pods"}, "responseStatus": {"code": 200},
            })
            .to_string()
        };
        let seen = requests(&format!(
            "{}\n{}\nhalf a li",
            line("ResponseStarted"),
            line("ResponseComplete")
        ));
        assert_eq!(seen.len(), 1);
        assert_eq!(
            (
                seen[0].verb.as_str(),
                seen[0].resource.as_str(),
                seen[0].code
            ),
            ("watch", "pods", 200)
        );
    }
}
