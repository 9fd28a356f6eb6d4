//! Who comes from kube-fledged changes one line of a file: the `apiVersion`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::{ClusterOptions, Mark, Version, wait_for};

use super::fleet::{Fleet, SOON, story};
use super::guarded::{Guarded, User, config, let_agents_read};
use super::secrets::secret_in;

const NAMESPACE: &str = "kube-fledged";
const SECRET: &str = "myregistrykey";
const ROBOT: User = ("bitnami+robot", "hunter2-correct-horse");

/// In the shape of kube-fledged's own sample: names, lists, selector and Secret.
const SAMPLE: &str = "
apiVersion: kubefledged.io/v1alpha2
kind: ImageCache
metadata:
  name: imagecache1
  namespace: kube-fledged
  labels:
    app: kubefledged
    kubefledged: imagecache
spec:
  cacheSpec:
  - images:
    - quay.io/bitnami/nginx:1.21.1
    - quay.io/bitnami/tomcat:10.0.8
  - images:
    - quay.io/bitnami/redis:6.2.4
    - quay.io/bitnami/mariadb:10.5.11
    nodeSelector:
      tier: backend
  imagePullSecrets:
  - name: myregistrykey
";

/// A watch would begin well within this time. And a Secret that was read so long ago is read anew by the next pull.
const QUIET: Duration = Duration::from_secs(10);

const EVERYWHERE: [&str; 2] = ["bitnami/nginx:1.21.1", "bitnami/tomcat:10.0.8"];
const BACKEND: [&str; 2] = ["bitnami/redis:6.2.4", "bitnami/mariadb:10.5.11"];

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_sample_of_kube_fledged_works_with_another_api_version() -> Result<()> {
    story(ClusterOptions::runtimes(&Version::ALL), async |fleet| {
        fleet
            .cluster
            .kubectl(&["create", "namespace", NAMESPACE])
            .await?;
        fleet.label("n1", "tier", Some("backend")).await?;
        fleet.push(&[EVERYWHERE, BACKEND].concat()).await?;
        for node in fleet.cluster.nodes() {
            let registry = fleet.cluster.registry().url();
            node.containerd().mirror("quay.io", &registry, None)?;
        }

        // The images are public. The Secret is not there, nor may the agents look for it; then they may.
        works(fleet).await?;
        let_agents_read(fleet, NAMESPACE).await?;
        works(fleet).await?;

        // The images are private now, and the Secret is for them.
        let quay = Guarded::start(fleet, "quay", ROBOT, false).await?;
        quay.push([EVERYWHERE[0], EVERYWHERE[1], BACKEND[0], BACKEND[1]])
            .await?;
        quay.serves(fleet, "quay.io")?;
        secret_in(fleet, NAMESPACE, SECRET, &config(&[("quay.io", ROBOT)])).await?;
        works(fleet).await?;
        quay.until_asked_as(&["bitnami+robot:hunter2-correct-horse"])
            .await
    })
    .await
}

/// The sample is applied, fulfilled and deleted, and what it brought is removed.
async fn works(fleet: &Fleet) -> Result<()> {
    let mark = fleet.cluster.api_mark();
    let sample = SAMPLE.replace("kubefledged.io/v1alpha2", "imagecache.dev/v1alpha1");
    fleet.cluster.apply(&sample).await?;
    let wait = [
        "wait",
        "--for=condition=Ready",
        "--timeout=20s",
        "imagecache/imagecache1",
        "--namespace",
        NAMESPACE,
    ];
    fleet.cluster.kubectl(&wait).await?;
    for node in fleet.cluster.nodes() {
        let tier = if node.name() == "n1" {
            "backend"
        } else {
            "none"
        };
        for name in EVERYWHERE {
            ensure!(
                node.containerd().has(&quay(name)).await?,
                "{name} is not on {}",
                node.name()
            );
        }
        for name in BACKEND {
            let has = node.containerd().has(&quay(name)).await?;
            ensure!(
                has == (tier == "backend"),
                "{name} on {}: {has}",
                node.name()
            );
        }
    }
    costs_no_more_than_reading(fleet, mark).await?;
    fleet
        .cluster
        .kubectl(&["delete", "imagecache/imagecache1", "--namespace", NAMESPACE])
        .await?;
    for node in fleet.cluster.nodes() {
        wait_for(
            format!("{} to want nothing", node.name()),
            SOON,
            async || {
                let report = fleet.report(node.name()).await?.context("no report")?;
                ensure!(report.images.is_empty(), "{:?}", report.images);
                Ok(())
            },
        )
        .await?;
        for name in [EVERYWHERE, BACKEND].concat() {
            if node.containerd().has(&quay(name)).await? {
                node.containerd().remove(&quay(name)).await?;
            }
        }
    }
    Ok(())
}

/// Whether the Secret is there or not, and whether it may be read or not: since `mark` it was read for pulls, never watched, and now
/// that all images are there nobody asks for it.
async fn costs_no_more_than_reading(fleet: &Fleet, mark: Mark) -> Result<()> {
    let asked = |since: Mark| {
        let mut asked = fleet.cluster.api_requests(since);
        asked.retain(|request| {
            request.resource == "secrets" && request.user.contains("imagecache-agent")
        });
        asked
    };
    let ready = fleet.cluster.api_mark();
    tokio::time::sleep(QUIET).await;
    let later = asked(ready);
    ensure!(later.is_empty(), "{later:?}");
    let all = asked(mark);
    let is_read = all.iter().all(|request| request.verb == "get");
    ensure!(!all.is_empty() && is_read, "{all:?}");
    Ok(())
}

fn quay(name: &str) -> String {
    format!("quay.io/{name}")
}
