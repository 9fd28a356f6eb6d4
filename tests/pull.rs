//! `imagecache-agent pull`: one machine, a runtime, a registry, and no cluster.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use imagecache_agent::runtime::{self, Runtime};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::{
    Containerd, ContainerdOptions, FaultProxy, ImageSpec, Lab, Listen, Registry, RegistryOptions,
    Version, other_architecture, wait_for,
};

/// Runs `imagecache-agent pull` to its end, with this on standard input.
fn pull(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_imagecache-agent"))
        .arg("pull")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command line that is refused is not read further.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Exit code, standard output, standard error.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

struct Machine {
    registry: Registry,
    runtime: Containerd,
    socket: String,
    lab: Arc<Lab>,
}

async fn machine(version: Version) -> Machine {
    let lab = Lab::new().unwrap();
    let registry = Registry::start(&lab, "registry", RegistryOptions::default())
        .await
        .unwrap();
    let runtime = Containerd::start(&lab, "containerd", version, ContainerdOptions::default())
        .await
        .unwrap();
    runtime.knows(&registry).unwrap();
    let socket = format!("--runtime-endpoint=unix://{}", runtime.socket().display());
    Machine {
        registry,
        runtime,
        socket,
        lab,
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn images_of_arguments_and_files_are_pulled_and_what_is_present_costs_no_request() {
    for version in Version::ALL {
        let machine = machine(version).await;
        let registry = &machine.registry;
        for (name, seed) in [("a:1", 1), ("b:1", 2), ("c:1", 3)] {
            registry.push(name, &ImageSpec::small(seed)).await.unwrap();
        }
        let file = format!(
            "apiVersion: imagecache.dev/v1alpha1\nkind: ImageCache\nmetadata: {{name: test}}\nspec:\n  cacheSpec:\n  \
             - images: [{b}]\n    nodeSelector: {{tier: backend}}\n  - images: [{c}]\n    nodeSelector: {{tier: frontend}}\n",
            b = registry.reference("b:1"),
            c = registry.reference("c:1"),
        );
        let arguments = [
            &machine.socket,
            "-f",
            "-",
            "--label",
            "tier=backend",
            &registry.reference("a:1"),
        ];
        let (code, out, err) = told(&pull(&arguments, &file));
        assert_eq!(
            (code, out.as_str()),
            (Some(0), "2 of 2 images are present\n"),
            "{version}: {err}"
        );
        assert!(
            err.contains(&format!("pulled   {}", registry.reference("a:1"))),
            "{err}"
        );
        assert!(
            machine
                .runtime
                .has(&registry.reference("b:1"))
                .await
                .unwrap()
        );
        assert!(
            !machine
                .runtime
                .has(&registry.reference("c:1"))
                .await
                .unwrap()
        );

        let mark = registry.mark();
        let json = [&arguments[..], &["-o", "json"]].concat();
        let (code, out, err) = told(&pull(&json, &file));
        assert_eq!(code, Some(0), "{version}: {err}");
        assert_eq!(err.matches("present  ").count(), 2, "{err}");
        let status: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(status.pointer("/ready").unwrap(), 2);
        assert_eq!(status.pointer("/runtime/name").unwrap(), "containerd");
        let digest = status
            .pointer("/images/0/digest")
            .and_then(Value::as_str)
            .unwrap();
        assert!(digest.starts_with("sha256:"), "{out}");
        assert!(
            registry.requests(mark).is_empty(),
            "{:?}",
            registry.requests(mark)
        );
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn every_failure_is_a_line_with_its_cause() {
    let machine = machine(Version::ALL[0]).await;
    let registry = &machine.registry;
    registry.push("good:1", &ImageSpec::small(1)).await.unwrap();
    registry
        .push(
            "other:1",
            &ImageSpec::small(2).architecture(other_architecture()),
        )
        .await
        .unwrap();
    let missing = registry.reference("good:2");
    let images = [
        &registry.reference("good:1"),
        &missing,
        "127.0.0.1:1/closed:1",
        &registry.reference("other:1"),
    ];
    let arguments = [
        &[machine.socket.as_str(), "--divide-delays=100"],
        &images[..],
    ]
    .concat();
    let (code, out, err) = told(&pull(&arguments, ""));
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(
        out.starts_with("1 of 4 images are present\n\nIMAGE "),
        "{out}"
    );
    let line = |image: &str| {
        out.lines()
            .find(|line| line.starts_with(image))
            .unwrap()
            .to_owned()
    };
    assert!(line(&missing).contains(" NotFound "), "{out}");
    assert!(
        line("127.0.0.1:1/closed:1").contains(" RegistryUnavailable "),
        "{out}"
    );
    assert!(
        line("127.0.0.1:1/closed:1").contains("connection refused"),
        "{out}"
    );
    assert!(
        line(&registry.reference("other:1")).contains(" NoMatchingPlatform "),
        "{out}"
    );
    assert_eq!(
        err.matches("failed   127.0.0.1:1/closed:1").count(),
        3,
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and the servers: make test"]
async fn an_interrupted_run_is_gone_on_with_by_the_next_one() {
    for version in Version::ALL {
        let machine = machine(version).await;
        let size = 20_000_000;
        let image = ImageSpec::scratch().layer(1, size).layer(2, size);
        machine.registry.push("big:1", &image).await.unwrap();
        let (lab, address) = (&machine.lab, machine.registry.address());
        let proxy = FaultProxy::start(lab, Listen::default(), address)
            .await
            .unwrap();
        machine
            .runtime
            .mirror(&proxy.host(), &proxy.url(), None)
            .unwrap();
        let reference = proxy.reference("big:1");
        let bytes = || {
            let requests = proxy.requests().into_iter();
            let blobs = requests.filter(|request| request.path.contains("/blobs/"));
            usize::try_from(blobs.map(|request| request.bytes).sum::<u64>()).unwrap()
        };

        proxy.limit(Some(10_000_000));
        let mut command = Command::new(env!("CARGO_BIN_EXE_imagecache-agent"));
        command.args(["pull", &machine.socket, &reference]);
        let interrupted = command.stdout(Stdio::piped()).spawn().unwrap();
        wait_for("half of it", Duration::from_secs(20), async || {
            anyhow::ensure!(bytes() > size, "{} bytes", bytes());
            Ok(())
        })
        .await
        .unwrap();
        let pid = Pid::from_child(&interrupted);
        kill_process(pid, Signal::INT).unwrap();
        let (code, out, _) = told(&interrupted.wait_with_output().unwrap());
        assert_eq!(code, Some(1), "{out}");
        assert!(out.starts_with("0 of 1 images are present\n"), "{out}");

        proxy.limit(None);
        let (code, out, err) = told(&pull(&[&machine.socket, &reference], ""));
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(
            bytes() * 100 < 2 * size * 105,
            "{version}: {} bytes",
            bytes()
        );
        let containerd = Runtime::new(
            machine.runtime.socket().to_string_lossy().parse().unwrap(),
            Duration::from_secs(20),
        );
        let containerd = runtime::Containerd::ask(&containerd)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(containerd.leases().await.unwrap(), []);
    }
}

#[test]
fn a_mistake_is_named_and_nothing_is_pulled() {
    let rows: [(&[&str], &str, &str); 5] = [
        (&[], "", "<IMAGE|--file <FILE>>"),
        (
            &["UPPER"],
            "",
            "\"UPPER\": the repository \"UPPER\" has to be lowercase",
        ),
        (
            &["-f", "/no/such.yaml"],
            "",
            "cannot read /no/such.yaml: No such file",
        ),
        (
            &["-f", "-"],
            "apiVersion: v1\nkind: Pod\n",
            "standard input: document 1 (line 1): kind: \"Pod\"",
        ),
        (&["--timeout=soon", "a"], "", "10m"),
    ];
    for (arguments, input, expected) in rows {
        let (code, out, err) = told(&pull(arguments, input));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
    }
}

#[test]
fn a_runtime_that_is_not_there_is_waited_for_until_the_time_is_up() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let endpoint = format!("--runtime-endpoint={}", socket.display());
    let (code, out, err) = told(&pull(&[&endpoint, "--timeout=500ms", "a"], ""));
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("waiting  ") && err.contains(socket.to_str().unwrap()),
        "{err}"
    );
    assert!(
        out.contains("docker.io/library/a:latest   RuntimeUnavailable   "),
        "{out}"
    );
}

#[test]
fn a_machine_that_no_list_selects_has_nothing_to_do() {
    let file = "apiVersion: imagecache.dev/v1alpha1\nkind: ImageCache\nmetadata: {name: a}\nspec: {cacheSpec: [{images: [a], nodeSelector: {a: b}}]}\n";
    let (code, out, err) = told(&pull(&["-f", "-"], file));
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "0 of 0 images are present\n"),
        "{err}"
    );
    assert!(err.contains("--label"), "{err}");
}
