//! The servers: pinned Go modules, built once into a cache folder, and the few Debian packages beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::image::digest;
use crate::network::run;

/// What is built from a folder of `servers/` with a `go.mod`, and how.
struct Module {
    name: &'static str,
    folder: &'static str,
    /// What `go build` is asked for: `tool` stands for the tools that `go.mod` names, anything else is a folder with a `main.go`.
    target: &'static str,
    flags: &'static [&'static str],
}

const MODULES: &[Module] = &[
    tools("etcd"),
    tools("registry"),
    tools("crictl"),
    tools("cni"),
    Module {
        target: ".",
        ..tools("reference")
    },
    tools("containerd-2.4"),
    tools("containerd-1.7"),
    Module {
        flags: &["-tags", "no_btrfs"],
        ..tools("containerd-1.6")
    },
    // Without the version, kubectl refuses the server ("v0.0.0-master").
    Module {
        flags: &[
            "-ldflags",
            "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
             -X k8s.io/component-base/version.gitMajor=1 \
             -X k8s.io/component-base/version.gitMinor=36",
        ],
        ..tools("kubernetes")
    },
    // With the kubelet's own pins, and after it: most of it is compiled by then.
    Module {
        folder: "kubernetes",
        target: "./keyring",
        ..tools("keyring")
    },
];

/// A program that a Debian package brings.
const PACKAGES: &[(&str, &str)] = &[
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("busybox", "busybox-static"),
    ("go", "golang-go"),
];

const fn tools(name: &'static str) -> Module {
    Module {
        name,
        folder: name,
        target: "tool",
        flags: &[],
    }
}

/// A program of a module, or an error that says how to build it.
pub(crate) fn server(module: &str, program: &str) -> Result<PathBuf> {
    let known = MODULES
        .iter()
        .find(|m| m.name == module)
        .with_context(|| format!("no module {module}"))?;
    let path = known.cached()?.join(program);
    ensure!(
        path.exists(),
        "{program} ({module}) is not built: run `make servers`"
    );
    Ok(path)
}

/// A program of the machine, or an error that names its package.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    // Debian keeps some of these where an ordinary user's PATH does not look; Go's own archive goes to /usr/local/go.
    let dirs = path
        .split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/local/go/bin"]);
    let found = dirs
        .map(|dir| Path::new(dir).join(name))
        .find(|p| p.is_file());
    let package = PACKAGES
        .iter()
        .find(|(program, _)| *program == name)
        .map_or(name, |(_, package)| package);
    found.with_context(|| {
        format!("{name} is missing: run `make servers` as root, or install the package {package}")
    })
}

/// Installs what is missing (as root) and builds what is not built, one line for each.
pub fn build() -> Result<()> {
    packages()?;
    for module in MODULES {
        let folder = module.cached()?;
        if !folder.exists() {
            let start = Instant::now();
            println!("{}: building", module.name);
            module.build(&folder)?;
            println!("{}: built in {} s", module.name, start.elapsed().as_secs());
        }
    }
    Ok(())
}

/// The folder that holds kubectl.
pub fn kubectl_folder() -> Result<PathBuf> {
    Ok(server("kubernetes", "kubectl")?.with_file_name(""))
}

fn packages() -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(name, _)| program(name).is_err())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        let names = missing.join(" ");
        ensure!(
            rustix::process::geteuid().is_root(),
            "these packages are missing (as root they are installed): {names}"
        );
        println!("installing {names}");
        run(Command::new("apt-get").args(["update", "-q"]))?;
        let install = ["install", "-y", "-q", "--no-install-recommends"];
        run(Command::new("apt-get")
            .args(install)
            .args(missing)
            .env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    // It becomes the whole content of an image, where no loader of libraries exists.
    let busybox = program("busybox")?;
    ensure!(
        is_static(&fs::read(&busybox)?),
        "{} is not static: install the package busybox-static",
        busybox.display()
    );
    Ok(())
}

/// Whether a 64-bit little-endian ELF file asks for no loader (it has no program header of type `PT_INTERP`, 3).
pub(crate) fn is_static(elf: &[u8]) -> bool {
    let half = |at: usize| {
        elf.get(at..at + 2)?
            .try_into()
            .ok()
            .map(|b| usize::from(u16::from_le_bytes(b)))
    };
    let headers = || {
        let start =
            usize::try_from(u64::from_le_bytes(elf.get(0x20..0x28)?.try_into().ok()?)).ok()?;
        let (size, count) = (half(0x36)?, half(0x38)?);
        Some((0..count).map(move |n| start + n * size))
    };
    headers().is_some_and(|mut h| {
        h.all(|at| elf.get(at..at + 4).is_some_and(|kind| kind != [3, 0, 0, 0]))
    })
}

impl Module {
    fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("servers")
            .join(self.folder)
    }

    /// Named after all that goes in, so that any checkout with the same pins finds it again.
    fn cached(&self) -> Result<PathBuf> {
        let mut recipe = format!("{} {:?}\n", self.target, self.flags).into_bytes();
        let mut files = vec![self.source().join("go.mod"), self.source().join("go.sum")];
        if self.target != "tool" {
            files.push(self.source().join(self.target).join("main.go"));
        }
        for path in files {
            recipe.extend(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
        let hash: String = digest(&recipe)
            .chars()
            .skip("sha256:".len())
            .take(12)
            .collect();
        Ok(cache()?.join(format!("{}-{hash}", self.name)))
    }

    fn build(&self, folder: &Path) -> Result<()> {
        let partial = folder.with_extension(format!("partial-{}", std::process::id()));
        fs::create_dir_all(&partial)?;
        let built = Command::new(program("go")?)
            .current_dir(self.source())
            .arg("build")
            .args(self.flags)
            .arg("-o")
            .arg(&partial)
            .arg(self.target)
            // The pins decide, not what the machine's owner has set; a toolchain that is too old fetches the one named in go.mod.
            .envs([("GOFLAGS", ""), ("GOWORK", "off"), ("GOTOOLCHAIN", "auto")])
            .status()
            .context("run go");
        if !built.as_ref().is_ok_and(std::process::ExitStatus::success) {
            fs::remove_dir_all(&partial)?;
            bail!("{}: go build: {}", self.name, built?);
        }
        // Somebody else may have built it in the meantime: theirs is as good.
        if fs::rename(&partial, folder).is_err() {
            fs::remove_dir_all(&partial)?;
            ensure!(folder.exists(), "{} could not be made", folder.display());
        }
        Ok(())
    }
}

fn cache() -> Result<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(base
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("imagecache-agent/servers"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_module_is_pinned() {
        for module in MODULES {
            assert!(module.cached().is_ok(), "{}", module.name);
        }
    }

    #[test]
    fn a_test_program_is_not_static() {
        assert!(!is_static(
            &fs::read(std::env::current_exe().unwrap()).unwrap()
        ));
        assert!(!is_static(b"#!/bin/sh"));
    }

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        assert!(
            server("etcd", "no-such")
                .unwrap_err()
                .to_string()
                .contains("`make servers`")
        );
        assert!(
            program("no-such")
                .unwrap_err()
                .to_string()
                .contains("no-such is missing")
        );
    }
}
