//! The agent as a cluster runs it: an image made from the static binary, and the `DaemonSet` of `manifests/`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::image::ImageSpec;
use crate::servers::is_static;

/// The namespace that the manifests make.
pub const NAMESPACE: &str = "imagecache-system";

/// Where the agent's image is in the cluster's registry; the tag is that of the base.
const REPOSITORY: &str = "imagecache-agent";

impl Cluster {
    /// Pushes the agent's image, and writes a kustomization of `manifests/` that runs it here. Returns its folder.
    pub async fn rollout_folder(&self) -> Result<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        let binary = static_binary()?;
        // As in the Containerfile.
        let image = ImageSpec::scratch()
            .files(&[("imagecache-agent", 0o755, &binary)])
            .entrypoint(&["/imagecache-agent"]);
        self.registry()
            .push(&format!("{REPOSITORY}:{version}"), &image)
            .await?;

        let folder = self.lab().folder("rollout")?;
        let base = relative(&workspace()?.join("manifests"), &folder)?;
        let image = self.registry().reference(REPOSITORY);
        let server = self.api_server_address();
        let (host, port) = (server.ip(), server.port());
        let kustomization = format!(
            r#"apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- {base}
images:
- name: localhost/imagecache-agent
  newName: {image}
patches:
# Nothing here serves the address of the Service `kubernetes`, and a full disk of the machine is not these nodes' business.
- target:
    kind: DaemonSet
    name: imagecache-agent
  patch: |
    - {{op: add, path: /spec/template/spec/containers/0/env/-, value: {{name: KUBERNETES_SERVICE_HOST, value: "{host}"}}}}
    - {{op: add, path: /spec/template/spec/containers/0/env/-, value: {{name: KUBERNETES_SERVICE_PORT, value: "{port}"}}}}
    - {{op: add, path: /spec/template/spec/containers/0/env/-, value: {{name: IMAGECACHE_DISK_HIGH_PERCENT, value: "100"}}}}
"#
        );
        fs::write(folder.join("kustomization.yaml"), kustomization)?;
        Ok(folder)
    }

    /// Removes the agents, and has what they have left on the nodes taken away, as the pages say.
    pub async fn clean_up(&self) -> Result<()> {
        let delete = [
            "delete",
            "daemonset/imagecache-agent",
            "--cascade=foreground",
        ];
        let of_namespace = ["--namespace", NAMESPACE];
        self.kubectl(&[&delete[..], &of_namespace].concat()).await?;
        let folder = self.lab().folder("cleanup")?;
        let base = relative(&workspace()?.join("manifests/cleanup"), &folder)?;
        let image = self.registry().reference(REPOSITORY);
        let kustomization = format!(
            "resources: [{base}]\nimages:\n- {{name: localhost/imagecache-agent, newName: {image:?}}}\n"
        );
        fs::write(folder.join("kustomization.yaml"), kustomization)?;
        let folder = folder.to_string_lossy();
        self.kubectl(&["apply", "--warnings-as-errors", "-k", &folder])
            .await?;
        let wait = [
            "rollout",
            "status",
            "daemonset/imagecache-cleanup",
            "--timeout=120s",
        ];
        self.kubectl(&[&wait[..], &of_namespace].concat())
            .await
            .map(drop)
    }

    /// Applies it, and waits until each node has its agent. A warning of the API server is an error.
    pub async fn roll_out(&self) -> Result<()> {
        let folder = self.rollout_folder().await?;
        let folder = folder.to_string_lossy();
        self.kubectl(&["apply", "--warnings-as-errors", "-k", &folder])
            .await?;
        self.kubectl(&ROLLOUT_STATUS).await.map(drop)
    }
}

/// How kubectl waits until every node has the newest agent; ready to be shown, too.
pub const ROLLOUT_STATUS: [&str; 6] = [
    "rollout",
    "status",
    "daemonset/imagecache-agent",
    "--namespace",
    NAMESPACE,
    "--timeout=120s",
];

/// The content of `IMAGECACHE_AGENT`, or of what `make agent` builds without it.
fn static_binary() -> Result<Vec<u8>> {
    let default = || -> Result<PathBuf> {
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        Ok(workspace()?
            .join("target")
            .join(host)
            .join("release/imagecache-agent"))
    };
    let path = std::env::var_os("IMAGECACHE_AGENT").map_or_else(default, |path| Ok(path.into()))?;
    let name = path.display();
    let binary = fs::read(&path).with_context(|| format!("read {name}: run `make agent`"))?;
    ensure!(
        is_static(&binary),
        "{name} is not a static binary: run `make agent`"
    );
    Ok(binary)
}

fn workspace() -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    path.canonicalize()
        .with_context(|| format!("find {}", path.display()))
}

/// The way from one folder to another; kustomize takes no absolute path for a base.
fn relative(to: &Path, from: &Path) -> Result<String> {
    let from = from.canonicalize()?;
    let up = "../".repeat(from.components().count().saturating_sub(1));
    let down = to.to_str().context("a path that is not UTF-8")?;
    Ok(up + down.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_way_leads_up_to_the_root_and_down_again() {
        let way = relative(Path::new("/a/b"), Path::new("/proc/sys")).unwrap();
        assert_eq!(way, "../../a/b");
    }
}
