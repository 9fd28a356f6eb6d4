//! The command of the test bed: builds its servers, starts a cluster to look around in, ends it, shows a demo.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use testbed::{Cluster, ClusterOptions, Lab};
use tokio::signal::unix::{SignalKind, signal};

mod demo;
mod terminal;

/// A real Kubernetes cluster on one machine.
#[derive(Parser)]
enum Command {
    /// Builds the servers, and as root installs the Debian packages that they need.
    Build,
    /// Starts a cluster (needs root) and keeps it until Ctrl-C.
    Up(Up),
    /// Shows the agent at work on a cluster of three nodes (needs root).
    Demo {
        /// Leave the cluster running.
        #[arg(long)]
        keep: bool,
    },
    /// Ends what `up` and `demo --keep` have left running.
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
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Build => testbed::build(),
        Command::Up(options) => up(&options).await,
        Command::Demo { keep } => demo::play(keep).await,
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

async fn up(up: &Up) -> Result<()> {
    let options = if up.control_plane_only {
        ClusterOptions::control_plane()
    } else {
        ClusterOptions::three_nodes()
    };
    let cluster = Cluster::start(options).await?;
    println!("{}", usage(&cluster)?);
    if up.detach {
        println!("{}", how_to_end()?);
        return cluster.leave_running();
    }
    cluster.lab().keep()?;
    println!("To end it: Ctrl-C");
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

/// This program need not be in the reader's PATH.
fn how_to_end() -> Result<String> {
    Ok(format!(
        "To end it: {} down",
        std::env::current_exe()?.display()
    ))
}
