//! The demo: the agent at work on three real nodes, told on the terminal.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::wait::await_condition;
use testbed::{Cluster, ClusterOptions, ImageSpec, ROLLOUT_STATUS, wait_for};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::terminal::{Terminal, seconds};

/// More than anything here takes on a busy machine.
const LONG: Duration = Duration::from_mins(2);

const SHOP: &str = "\
apiVersion: imagecache.dev/v1alpha1
kind: ImageCache
metadata:
  name: shop
spec:
  cacheSpec:
  - images:                # on every node
    - shop/web:2.4
    - shop/session-cache:7
  - images:                # where the label says so
    - shop/database:18
    - shop/migrations:18
    nodeSelector:
      tier: backend
";

const DATABASE: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: database
spec:
  nodeSelector:
    tier: backend
  hostNetwork: true        # these nodes have no network plugin
  containers:
  - name: database
    image: shop/database:18
    imagePullPolicy: Never # it is there, or the Pod does not start
";

/// What the second list of [`SHOP`] names, as runtimes do.
const OF_BACKEND: [&str; 2] = ["docker.io/shop/database:18", "docker.io/shop/migrations:18"];

/// Plays it from the start of a cluster to its end.
pub(crate) async fn play(keep: bool) -> Result<()> {
    let demo = Demo::begin(keep).await?;
    demo.nodes().await?;
    demo.agents().await?;
    demo.images().await?;
    demo.label().await?;
    demo.pod().await?;
    demo.look_closer().await?;
    demo.end(keep)
}

struct Demo {
    cluster: Cluster,
    terminal: Terminal,
}

impl Demo {
    async fn begin(keep: bool) -> Result<Self> {
        let terminal = Terminal::new();
        let stays = if keep {
            "it goes on running when this has ended"
        } else {
            "nothing of it stays"
        };
        terminal.say(&format!(
            "imagecache-agent keeps the images that you list on the nodes that you choose, before a Pod asks for them.\n\
             This is a real cluster on this machine: nothing of it is simulated, and {stays}."
        ));
        terminal.title("A cluster of three nodes");
        let start = Box::pin(Cluster::start(ClusterOptions::three_nodes()));
        let cluster = terminal
            .step(
                "etcd, API server, scheduler, controllers, registry, and three nodes",
                start,
            )
            .await?;
        let images = Box::pin(push(&cluster));
        terminal.step("images for the registry", images).await?;
        Ok(Self { cluster, terminal })
    }

    async fn nodes(&self) -> Result<()> {
        let columns = "custom-columns=NAME:.metadata.name,KUBELET:.status.nodeInfo.kubeletVersion,\
                       RUNTIME:.status.nodeInfo.containerRuntimeVersion,TIER:.metadata.labels.tier";
        self.kubectl(&["get", "nodes", "-o", columns]).await
    }

    async fn agents(&self) -> Result<()> {
        self.terminal.title("An agent on each of them");
        let overlay = self.cluster.rollout_folder().await?;
        self.terminal
            .say("The manifests, with the image that was built from this source a moment ago:");
        self.kubectl(&["apply", "-k", &overlay.to_string_lossy()])
            .await?;
        self.kubectl_as_it_comes(&ROLLOUT_STATUS, |_| false).await
    }

    async fn images(&self) -> Result<()> {
        let terminal = &self.terminal;
        terminal.title("Two lists of images");
        terminal
            .say("One is for all nodes. The other is for nodes with a label that no node has yet.");
        self.apply("shop.yaml", SHOP).await?;
        let ready = |line: &str| line.split_whitespace().any(|word| word == "True");
        self.kubectl_as_it_comes(&["get", "ic", "shop", "--watch"], ready)
            .await?;
        terminal.result(
            "Ready: all that was asked for is there. A list that matches no node is no error:",
        );
        let message = "jsonpath={.status.conditions[?(@.type=='Ready')].message}";
        self.kubectl(&["get", "ic", "shop", "-o", message]).await
    }

    /// From the moment that the label is written (which a watch tells, as it tells the agent) to the images' presence.
    async fn label(&self) -> Result<()> {
        let terminal = &self.terminal;
        terminal.title("A node gets the label");
        let nodes = Api::<Node>::all(self.cluster.client());
        let labelled = await_condition(nodes, "n2", |node: Option<&Node>| {
            node.and_then(|node| node.metadata.labels.as_ref())
                .is_some_and(|labels| labels.contains_key("tier"))
        });
        let arrived = Box::pin(async {
            labelled.await?;
            let labelled = Instant::now();
            let (present, reported) =
                tokio::try_join!(self.presence(labelled), self.report(labelled))?;
            anyhow::Ok((present, reported))
        });
        let label = Box::pin(self.kubectl(&["label", "node", "n2", "tier=backend"]));
        let ((present, reported), ()) = tokio::try_join!(
            async { timeout(LONG, arrived).await.context("no image came")? },
            label
        )?;
        terminal.result(&format!(
            "{present} after the label, both images were on n2; after {reported} the status said so."
        ));
        self.kubectl(&["get", "nodeic"]).await
    }

    /// The time until n2 has all that its new label brings it.
    async fn presence(&self, since: Instant) -> Result<String> {
        let runtime = self.cluster.node("n2")?.containerd();
        wait_for("the images on n2", LONG, async || {
            let present = runtime.images().await?;
            let missing = OF_BACKEND.iter().find(|name| {
                !present
                    .iter()
                    .any(|image| image.tags.iter().any(|tag| tag == *name))
            });
            ensure!(missing.is_none(), "{missing:?} is missing");
            Ok(())
        })
        .await?;
        Ok(seconds(since))
    }

    /// The time until the status counts n2 as ready for the second list.
    async fn report(&self, since: Instant) -> Result<String> {
        let kind = GroupVersionKind::gvk("imagecache.dev", "v1alpha1", "ImageCache");
        let caches = Api::<DynamicObject>::namespaced_with(
            self.cluster.client(),
            "default",
            &ApiResource::from_gvk(&kind),
        );
        wait_for("the status", LONG, async || {
            let shop = caches.get("shop").await?;
            let ready = shop.data.pointer("/status/lists/1/readyNodes");
            ensure!(ready.is_some_and(|n| n == 1), "{ready:?} nodes are ready");
            Ok(())
        })
        .await?;
        Ok(seconds(since))
    }

    async fn pod(&self) -> Result<()> {
        self.terminal
            .title("A Pod that may not pull starts at once");
        self.apply("database.yaml", DATABASE).await?;
        self.kubectl(&[
            "wait",
            "--for=condition=Ready",
            "pod/database",
            "--timeout=60s",
        ])
        .await?;
        self.kubectl(&["events", "--for=pod/database"]).await?;
        self.kubectl(&["logs", "database"]).await
    }

    async fn look_closer(&self) -> Result<()> {
        self.terminal.title("All of it");
        self.kubectl(&["describe", "ic", "shop"]).await
    }

    fn end(self, keep: bool) -> Result<()> {
        let Self { cluster, terminal } = self;
        if keep {
            terminal.title("It goes on running");
            println!("{}\n{}", super::usage(&cluster)?, super::how_to_end()?);
            return cluster.leave_running();
        }
        terminal.title("Everything goes again");
        let (start, dir) = (Instant::now(), cluster.lab().dir().to_owned());
        drop(cluster);
        ensure!(!dir.exists(), "{} is there still", dir.display());
        terminal.result(&format!(
            "No process, no mount, no network, no file of it is left ({}). To look around in it: make demo KEEP=1",
            seconds(start)
        ));
        Ok(())
    }

    /// Shows a file and applies it.
    async fn apply(&self, name: &str, yaml: &str) -> Result<()> {
        self.terminal.command(&format!("cat {name}"));
        Terminal::output(yaml);
        self.terminal.command(&format!("kubectl apply -f {name}"));
        Terminal::output(&self.cluster.apply(yaml).await?);
        Ok(())
    }

    /// Shows a command and what it answers.
    async fn kubectl(&self, args: &[&str]) -> Result<()> {
        self.terminal.command(&line(args));
        Terminal::output(&self.cluster.kubectl(args).await?);
        Ok(())
    }

    /// The same for one that goes on for a while: shows each line when it comes, until `last` says that this was the last one.
    async fn kubectl_as_it_comes(&self, args: &[&str], last: impl Fn(&str) -> bool) -> Result<()> {
        self.terminal.command(&line(args));
        let mut command = tokio::process::Command::from(self.cluster.kubectl_command(args)?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut kubectl = command.spawn()?;
        let mut lines = BufReader::new(kubectl.stdout.take().context("no output")?).lines();
        while let Some(line) = timeout(LONG, lines.next_line())
            .await
            .with_context(|| format!("{}: nothing new for {LONG:?}", args.join(" ")))??
        {
            println!("{line}");
            if last(&line) {
                return Ok(());
            }
        }
        let status = kubectl.wait().await?;
        ensure!(status.success(), "kubectl {}: {status}", args.join(" "));
        Ok(())
    }
}

/// A command as one would type it.
fn line(args: &[&str]) -> String {
    let quoted = args.iter().map(|arg| {
        if arg.contains(['\'', '(', '{', ' ']) {
            format!("\"{arg}\"")
        } else {
            (*arg).to_owned()
        }
    });
    std::iter::once("kubectl".to_owned())
        .chain(quoted)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Images of some megabytes; the database can be started.
async fn push(cluster: &Cluster) -> Result<()> {
    let said = "echo ready to accept connections; exec /bin/busybox sleep 2147483647";
    let images = [
        ("shop/web:2.4", ImageSpec::scratch().layer(1, 12_000_000)),
        (
            "shop/session-cache:7",
            ImageSpec::scratch().layer(2, 4_000_000),
        ),
        (
            "shop/database:18",
            ImageSpec::busybox()?
                .layer(3, 4_000_000)
                .entrypoint(&["/bin/sh", "-c", said]),
        ),
        (
            "shop/migrations:18",
            ImageSpec::scratch().layer(4, 1_000_000),
        ),
    ];
    for (name, image) in images {
        cluster.registry().push(name, &image).await?;
    }
    Ok(())
}
