//! A folder with exec credential providers, real programs, and the kubelet's configuration of them.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

/// The password that the providers know, and that must stand nowhere.
pub const PASSWORD: &str = "hunter2-correct-horse";

/// The providers of a node.
pub struct Providers {
    dir: TempDir,
}

impl Providers {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bin", "config"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir }
    }

    /// Adds a provider for these images, which does what the arguments say: see `credential_plugin.rs`.
    pub fn add(&self, name: &str, images: &str, arguments: &[&str]) {
        self.configure(name, images, arguments, PASSWORD);
        symlink(program(), self.bin().join(name)).unwrap();
    }

    /// Adds one that reads its password from a file at each run, and returns the file.
    pub fn add_with_file(&self, name: &str, images: &str, arguments: &[&str]) -> PathBuf {
        let password = self.path("password");
        self.configure(name, images, arguments, password.to_str().unwrap());
        symlink(program(), self.bin().join(name)).unwrap();
        password
    }

    /// Adds one whose dynamic loader is not there.
    pub fn add_without_loader(&self, name: &str, images: &str) {
        self.configure(name, images, &["fail"], PASSWORD);
        let mut bytes = fs::read(program()).unwrap();
        let loader = b"/ld-linux";
        let at = bytes
            .windows(loader.len())
            .position(|window| window == loader)
            .expect("a dynamically linked program");
        bytes[at..at + loader.len()].copy_from_slice(b"/no-linux");
        let path = self.bin().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn configure(&self, name: &str, images: &str, arguments: &[&str], password: &str) {
        let config = json!({
            "kind": "CredentialProviderConfig",
            "apiVersion": "kubelet.config.k8s.io/v1",
            "providers": [{
                "name": name,
                "matchImages": [images],
                "defaultCacheDuration": "1h",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "args": arguments,
                "env": [
                    {"name": "PLUGIN_LOG", "value": self.path("log")},
                    {"name": "PLUGIN_CHILD", "value": self.path("child")},
                    {"name": "PLUGIN_FAILS", "value": self.path("fails")},
                    {"name": "PLUGIN_PASSWORD", "value": password},
                ],
            }],
        });
        let file = self.config().join(format!("{name}.json"));
        fs::write(file, config.to_string()).unwrap();
    }

    /// Lets every provider fail from now on, or work again.
    pub fn fail(&self, fails: bool) {
        if fails {
            fs::write(self.path("fails"), "").unwrap();
        } else {
            fs::remove_file(self.path("fails")).unwrap();
        }
    }

    pub fn config(&self) -> PathBuf {
        self.path("config")
    }

    pub fn bin(&self) -> PathBuf {
        self.path("bin")
    }

    /// The kubelet's flags.
    pub fn flags(&self) -> [String; 2] {
        [
            format!(
                "--image-credential-provider-config={}",
                self.config().display()
            ),
            format!(
                "--image-credential-provider-bin-dir={}",
                self.bin().display()
            ),
        ]
    }

    /// The images that providers were asked for, in this order.
    pub fn asked(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Whether the child that a hanging provider started runs. `None`: it has not started one yet.
    pub fn child_runs(&self) -> Option<bool> {
        let pid = fs::read_to_string(self.path("child")).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state follows the name. One that has ended may wait for its parent.
        let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
        Some(!matches!(state, None | Some("Z" | "X")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The program, an example of this package: `cargo test` builds it.
fn program() -> PathBuf {
    let agent = Path::new(env!("CARGO_BIN_EXE_imagecache-agent"));
    let program = agent.with_file_name("examples").join("credential-plugin");
    assert!(program.exists(), "cargo build --example credential-plugin");
    program
}

/// Checks that neither the password nor what it is sent as is in what an agent wrote.
pub fn assert_no_secret(written: &str) {
    let pair = base64(&format!("alice:{PASSWORD}"));
    for word in [
        PASSWORD,
        &pair,
        &base64(PASSWORD),
        "alice:hunter",
        "is hunter",
    ] {
        assert!(!written.contains(word), "{word} was written: {written}");
    }
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
