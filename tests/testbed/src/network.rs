//! The lab's bridge in the machine's own network namespace, with a subnet that nobody else uses.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// A bridge, and the addresses on it.
#[derive(Debug)]
pub struct Network {
    bridge: String,
    number: u16,
}

impl Network {
    /// Subnets come from 198.18.0.0/15, which is reserved for tests of networks (RFC 2544). The bridge's name holds the
    /// subnet's number and the kernel refuses a name that is taken: that is the lock between two labs.
    pub(crate) fn make(record: &Path) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a network of its own needs root"
        );
        let used = ip(&["-4", "-o", "addr", "show"])?;
        let start = u16::try_from(std::process::id() % 512)?;
        for number in (0..512).map(|n| (start + n) % 512) {
            let network = Self {
                bridge: format!("ictb{number}"),
                number,
            };
            let gateway = network.address();
            if used.contains(&format!(" {gateway}/"))
                || ip(&["link", "add", &network.bridge, "type", "bridge"]).is_err()
            {
                continue;
            }
            std::fs::write(record, &network.bridge)?;
            ip(&[
                "addr",
                "add",
                &format!("{gateway}/24"),
                "dev",
                &network.bridge,
            ])?;
            ip(&["link", "set", &network.bridge, "up"])?;
            return Ok(network);
        }
        bail!("no free subnet in 198.18.0.0/15")
    }

    /// The machine's own address on the bridge; only this lab has it, so servers can have their usual ports.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.host(1)
    }

    /// An address on the bridge.
    #[must_use]
    pub fn host(&self, last: u8) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(198, 18 + high, low, last)
    }

    /// Connects the network namespace of a process: a cable from the bridge to its `eth0`.
    pub(crate) fn plug(&self, pid: u32, last: u8) -> Result<Link> {
        let link = Link(format!("{}n{last}", self.bridge));
        let (pid, gateway) = (pid.to_string(), self.address().to_string());
        ip(&[
            "link", "add", &link.0, "type", "veth", "peer", "name", "eth0", "netns", &pid,
        ])?;
        ip(&["link", "set", &link.0, "master", &self.bridge, "up"])?;
        let inside = format!(
            "ip addr add {}/24 dev eth0 && ip link set eth0 up && ip link set lo up && ip route add default via {gateway}",
            self.host(last)
        );
        run(Command::new("nsenter").args(["--net", "--target", &pid, "sh", "-c", &inside]))?;
        Ok(link)
    }
}

/// The bridge's end of a cable to a node.
#[derive(Debug)]
pub(crate) struct Link(String);

impl Link {
    pub(crate) fn set(&self, up: bool) -> Result<()> {
        ip(&["link", "set", &self.0, if up { "up" } else { "down" }]).map(drop)
    }
}

fn ip(args: &[&str]) -> Result<String> {
    run(Command::new("ip").args(args))
}

/// What a command prints, or an error with what it says went wrong.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| format!("run {name}"))?;
    if !done.status.success() {
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        bail!(
            "{name} {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
