//! `imagecache-agent pull` on a machine whose node has credentials, with a real registry that wants a password.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testbed::{
    Containerd, ContainerdOptions, ImageSpec, Lab, Registry, RegistryOptions, Version, wait_for,
};

use crate::plugin::{PASSWORD, Providers, assert_no_secret};

const SOON: Duration = Duration::from_secs(20);

/// A runtime, and a registry for alice alone.
struct Machine {
    registry: Registry,
    _runtime: Containerd,
    socket: String,
    /// An empty home.
    home: tempfile::TempDir,
    _lab: Arc<Lab>,
}

impl Machine {
    async fn start(version: Version) -> Self {
        let lab = Lab::new().unwrap();
        let options = RegistryOptions {
            user: Some(("alice".to_owned(), PASSWORD.to_owned())),
            ..RegistryOptions::default()
        };
        let registry = Registry::start(&lab, "registry", options).await.unwrap();
        for (tag, seed) in [("1", 1), ("2", 2), ("3", 3)] {
            let name = format!("team/app:{tag}");
            registry.push(&name, &ImageSpec::small(seed)).await.unwrap();
        }
        let runtime = Containerd::start(&lab, "containerd", version, ContainerdOptions::default())
            .await
            .unwrap();
        runtime.knows(&registry).unwrap();
        Self {
            socket: format!("--runtime-endpoint=unix://{}", runtime.socket().display()),
            registry,
            _runtime: runtime,
            home: tempfile::tempdir().unwrap(),
            _lab: lab,
        }
    }

    fn image(&self, tag: &str) -> String {
        self.registry.reference(&format!("team/app:{tag}"))
    }

    /// `imagecache-agent pull` with this machine's home as home and working directory, which logs all it can.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imagecache-agent"));
        command
            .args([
                "pull",
                "--log-level=trace,imagecache_agent=trace",
                &self.socket,
            ])
            .args(arguments)
            .env("HOME", self.home.path())
            .current_dir(self.home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Whether it succeeded, and all that it wrote, in which no secret stands.
    fn pull(&self, arguments: &[&str]) -> (bool, String) {
        told(&self.command(arguments).output().unwrap())
    }

    fn write_config(&self, path: impl AsRef<Path>, password: &str) {
        let path = self.home.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let entry = json!({"username": "alice", "password": password});
        let config = json!({"auths": {self.registry.host(): entry}});
        fs::write(path, config.to_string()).unwrap();
    }
}

fn told(output: &Output) -> (bool, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let written = text(&output.stdout) + &text(&output.stderr);
    assert!(written.contains("TRACE"), "not at trace level: {written}");
    assert_no_secret(&written);
    (output.status.success(), written)
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_docker_configuration_of_the_host_is_used_and_named_when_it_is_of_no_use() {
    for version in Version::ALL {
        let machine = Machine::start(version).await;
        let image = machine.image("1");
        let (success, said) = machine.pull(&[&image]);
        assert!(!success, "{said}");
        assert!(
            said.contains("the node has no credentials for this image"),
            "{said}"
        );

        machine.write_config(".docker/config.json", "wrong");
        let (success, said) = machine.pull(&[&image]);
        assert!(!success, "{said}");
        assert!(
            said.contains(" Unauthorized ") && said.contains("/.docker/config.json"),
            "{said}"
        );

        machine.write_config(".docker/config.json", PASSWORD);
        let (success, said) = machine.pull(&[&image]);
        assert!(success, "{version}: {said}");
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_broken_docker_configuration_is_named_and_the_next_one_counts() {
    let machine = Machine::start(Version::ALL[0]).await;
    machine.write_config(".docker/config.json", PASSWORD);
    // The working directory comes before the home.
    fs::write(machine.home.path().join("config.json"), PASSWORD).unwrap();
    let (success, said) = machine.pull(&[&machine.image("1")]);
    assert!(success, "{said}");
    let broken = format!(
        "lacking  docker config: {}/config.json: it is not JSON: line 1, column 1\n",
        machine.home.path().display()
    );
    assert!(said.contains(&broken), "{said}");
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_provider_is_asked_once_for_all_images_of_a_registry() {
    for version in Version::ALL {
        let machine = Machine::start(version).await;
        let providers = Providers::new();
        let host = machine.registry.host();
        providers.add("p", &host, &["answer", "Registry", "1h", &host]);
        let [config, bin] = providers.flags();
        let images = ["1", "2", "3"].map(|tag| machine.image(tag));
        let arguments = [&config, &bin, &images[0], &images[1], &images[2]];
        let (success, said) = machine.pull(&arguments.map(String::as_str));
        assert!(success, "{version}: {said}");
        let repository = machine.registry.reference("team/app");
        assert_eq!(providers.asked(), [repository], "{said}");
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_provider_that_fails_is_named_and_stops_no_pull() {
    let machine = Machine::start(Version::ALL[0]).await;
    let providers = Providers::new();
    let host = machine.registry.host();
    providers.add("broken", &host, &["fail"]);
    providers.add_without_loader("dynamic", &host);
    let [config, bin] = providers.flags();
    let image = machine.image("1");
    let (success, said) = machine.pull(&[&config, &bin, &image]);
    assert!(!success, "{said}");
    assert!(
        said.contains(
            "lacking  provider broken: exit status: 3: cannot log in as alice:… with password …"
        ),
        "{said}"
    );
    assert!(
        said.contains("provider dynamic: ") && said.contains("the dynamic loader"),
        "{said}"
    );
    // What else the node has is tried all the same.
    machine.write_config(".docker/config.json", PASSWORD);
    let (success, said) = machine.pull(&[&config, &bin, &image]);
    assert!(success, "{said}");
    assert!(said.contains("lacking  provider broken: "), "{said}");
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_provider_that_hangs_ends_with_the_agent_and_when_its_time_is_up() {
    let machine = Machine::start(Version::ALL[0]).await;
    let providers = Providers::new();
    providers.add("p", &machine.registry.host(), &["hang"]);
    let [config, bin] = providers.flags();

    let mut slow = machine.command(&[&config, &bin, &machine.image("1")]);
    let slow = slow.spawn().unwrap();
    let pid = Pid::from_child(&slow);
    // Somebody has to read what it writes, or it waits for that.
    let slow = std::thread::spawn(move || slow.wait_with_output().unwrap());
    until_child(&providers, true).await;
    kill_process(pid, Signal::INT).unwrap();
    let (success, _) = told(&slow.join().unwrap());
    assert!(!success);
    until_child(&providers, false).await;

    // The minute that it has is divided too.
    let arguments = [&config, &bin, "--divide-delays=20", &machine.image("1")];
    let (success, said) = machine.pull(&arguments);
    assert!(!success, "{said}");
    assert!(
        said.contains("provider p: it did not answer within 3 s and was ended"),
        "{said}"
    );
    until_child(&providers, false).await;
}

async fn until_child(providers: &Providers, runs: bool) {
    let what = if runs {
        "the child to run"
    } else {
        "the child to be gone"
    };
    wait_for(what, SOON, async || {
        let does_run = providers.child_runs().context("it was not started")?;
        ensure!(does_run == runs, "it runs: {does_run}");
        Ok(())
    })
    .await
    .unwrap();
}
