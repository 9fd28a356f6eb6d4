//! The command of the test bed: builds its servers, starts a cluster to look around in, ends it.

use std::fs;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use testbed::{Cluster, ClusterOptions, Lab, wait_for};
use tokio::signal::unix::{SignalKind, signal};

/// The last line that `up` prints when all is ready.
const READY: &str = "Ready.";

/// A real Kubernetes cluster on one machine.
#[derive(Parser)]
enum Command {
    /// Builds the servers, and as root installs the Debian packages that they need.
    Build,
    /// Starts a cluster (needs root) and keeps it until Ctrl-C.
    Up(Up),
    /// Ends what `up` has started.
    Down,
}

#[derive(clap::Args)]
struct Up {
    /// Only etcd, the API server and the controllers: no nodes.
    #[arg(long)]
    control_plane_only: bool,
    /// Leave it running in the background.
    #[arg(long)]
    detach: bool,
    /// This is the background process.
    #[arg(long, hide = true)]
    background: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Build => testbed::build(),
        Command::Up(up) if up.detach => detach(&up).await,
        Command::Up(up) => keep(&up).await,
        Command::Down => down().await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn keep(up: &Up) -> Result<()> {
    if up.background {
        // The terminal's end is not ours.
        rustix::process::setsid()?;
    }
    let options = if up.control_plane_only {
        ClusterOptions::control_plane()
    } else {
        ClusterOptions::three_nodes()
    };
    let cluster = Cluster::start(options).await?;
    cluster.lab().keep()?;
    println!("{}", usage(&cluster)?);
    println!(
        "{}",
        if up.background {
            "To end it: testbed down"
        } else {
            "To end it: Ctrl-C"
        }
    );
    println!("{READY}");
    // Until here both signals end the process at once, and the lab with it.
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    drop(cluster);
    Ok(())
}

async fn detach(up: &Up) -> Result<()> {
    let said = tempfile::NamedTempFile::new()?;
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command
        .args(["up", "--background"])
        .args(up.control_plane_only.then_some("--control-plane-only"));
    command
        .stdin(Stdio::null())
        .stdout(said.as_file().try_clone()?)
        .stderr(said.as_file().try_clone()?);
    let mut background = command.spawn()?;
    let ended = wait_for("the cluster", Duration::from_mins(3), async || {
        let ended = background.try_wait()?;
        let ready = fs::read_to_string(said.path())?
            .lines()
            .any(|line| line == READY);
        (ready || ended.is_some())
            .then_some(ended)
            .context("it is starting")
    });
    let ended = ended.await?;
    let text = fs::read_to_string(said.path())?;
    if ended.is_some() {
        bail!("{}", text.trim());
    }
    print!("{text}");
    Ok(())
}

async fn down() -> Result<()> {
    let ended = Lab::end_kept().await?;
    if ended.is_empty() {
        println!("nothing is up");
    }
    for dir in ended {
        println!("{} is gone", dir.display());
    }
    Ok(())
}

/// How to look around.
fn usage(cluster: &Cluster) -> Result<String> {
    let mut lines = vec![
        format!("export KUBECONFIG={}", cluster.kubeconfig_admin().display()),
        format!(
            "export PATH={}:$PATH    # kubectl",
            testbed::kubectl_folder()?.display()
        ),
        format!(
            "registry  {}    # plain HTTP; the nodes know it as docker.io too",
            cluster.registry().host()
        ),
        format!("logs      {}", cluster.lab().dir().join("log").display()),
    ];
    for node in cluster.nodes() {
        let (version, address) = (node.containerd().version(), node.address());
        lines.push(format!(
            "node      {} {address} containerd {version} unix://{}",
            node.name(),
            node.socket().display()
        ));
    }
    Ok(lines.join("\n"))
}
