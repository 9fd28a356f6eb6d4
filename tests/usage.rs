//! What `imagecache-agent run` says when it cannot start, and with which exit code.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Exit code and standard error of `imagecache-agent run`, which has to fail at once.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_imagecache-agent"))
        .arg("run")
        .args(arguments)
        .env_remove("NODE_NAME")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn a_missing_node_name_is_a_usage_error_that_names_the_flag() {
    let (code, said) = run(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.starts_with("error: --node-name (or NODE_NAME) is missing: "),
        "{said}"
    );
}

#[test]
fn an_admin_address_in_use_is_named_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = run(&["--node-name=n1", "--admin-addr", &address]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("--admin-addr") && said.contains(&address) && said.contains("in use"),
        "{said}"
    );
}

#[test]
fn a_kubeconfig_that_is_not_there_is_named_and_its_cause_said_once() {
    let (code, said) = run(&[
        "--node-name=n1",
        "--admin-addr=127.0.0.1:0",
        "--kubeconfig=/no/such",
    ]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("cannot use the kubeconfig /no/such"),
        "{said}"
    );
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn outside_a_pod_a_kubeconfig_is_asked_for() {
    let (code, said) = run(&["--node-name=n1", "--admin-addr=127.0.0.1:0"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("name a kubeconfig with --kubeconfig"),
        "{said}"
    );
}

#[test]
fn a_namespace_that_is_none_is_named_with_its_flag() {
    for namespace in ["X Y", "a.b", "-a", ""] {
        let (code, said) = run(&["--node-name=n1", &format!("--namespace={namespace}")]);
        assert_eq!(code, Some(2), "{said}");
        let words = "error: --namespace (or POD_NAMESPACE): ";
        assert!(
            said.starts_with(words) && said.contains(namespace),
            "{said}"
        );
    }
}

#[test]
fn credentials_of_the_node_that_cannot_be_used_are_named_with_flag_file_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let config = |providers: &str| {
        let head = "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\n";
        fs::write(
            path("providers.yaml"),
            format!("{head}providers: {providers}\n"),
        )
        .unwrap();
    };
    let provider = "{name: p, matchImages: [r.io], defaultCacheDuration: 1h, \
        apiVersion: credentialprovider.kubelet.k8s.io/v1";
    let docker = format!("--node-docker-config-dir={}", dir.path().display());
    let providers = format!(
        "--image-credential-provider-config={}",
        path("providers.yaml")
    );
    let bin = format!(
        "--image-credential-provider-bin-dir={}",
        dir.path().display()
    );
    let fails = |flags: &[&str], words: &[&str]| {
        let (code, said) = run(&[&["--node-name=n1"], flags].concat());
        assert_eq!(code, Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    };
    let none = "--node-docker-config-dir=/no/such";
    fails(
        &[none],
        &["--node-docker-config-dir", "/no/such", "No such file"],
    );
    fs::write(path("config.json"), r#"{"auths":{"r.io":"hunter2"}}"#).unwrap();
    fails(
        &[&docker],
        &["--node-docker-config-dir", "config.json: entry 1"],
    );
    fails(
        &[&providers],
        &["--image-credential-provider-bin-dir is missing"],
    );
    fails(&[&bin], &["--image-credential-provider-config is missing"]);
    let no_bin = "--image-credential-provider-bin-dir=/no/such";
    fails(
        &[&providers, no_bin],
        &["--image-credential-provider-bin-dir cannot be used: /no/such"],
    );
    let flag = "--image-credential-provider-config";
    fails(
        &[&providers, &bin],
        &[flag, "providers.yaml: it cannot be read: No such file"],
    );
    config(&format!("[{provider}, passwort: hunter2}}]"));
    let words = "providers.yaml: providers[0].passwort: there is no such field";
    fails(&[&providers, &bin], &[flag, words]);
    config(&format!("[{provider}}}]"));
    let words = "providers.yaml: providers[0].name: ";
    fails(
        &[&providers, &bin],
        &[flag, words, "p cannot be run: No such file"],
    );
    fs::write(path("p"), "").unwrap();
    fails(
        &[&providers, &bin],
        &[flag, words, "p cannot be run: nobody may execute it"],
    );
}

/// Standard error that takes nothing: a disk that is full.
fn with_full_stderr(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_imagecache-agent"))
        .args(arguments)
        .env_remove("NODE_NAME")
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_standard_error_that_cannot_be_written_changes_no_exit_code() {
    for arguments in [&["run"][..], &["pull", "-f", "/no/such"]] {
        let mut child = with_full_stderr(arguments);
        assert_eq!(child.wait().unwrap().code(), Some(2), "{arguments:?}");
    }
}

/// It warns of the socket and of the API server that are not there: its log lines are lost, and it goes on.
#[test]
fn a_standard_error_that_cannot_be_written_does_not_end_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let cluster = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}]}"#;
    fs::write(&kubeconfig, cluster).unwrap();
    let admin = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut agent = with_full_stderr(&[
        "run",
        "--node-name=n1",
        &format!("--kubeconfig={}", kubeconfig.display()),
        &format!("--admin-addr={admin}"),
        "--runtime-endpoint=/no/such.sock",
    ]);
    // Both are noted in what it says of its readiness, after they were logged.
    let end = Instant::now() + Duration::from_secs(20);
    let readiness = loop {
        let mut answer = String::new();
        let asked = TcpStream::connect(admin).and_then(|mut stream| {
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        if asked.is_ok() && answer.contains("cannot lock /no") || Instant::now() > end {
            break answer;
        }
        assert_eq!(agent.try_wait().unwrap(), None, "it ended");
        sleep(Duration::from_millis(25));
    };
    assert!(readiness.contains("cannot lock /no"), "{readiness}");
    assert_eq!(agent.try_wait().unwrap(), None, "it ended");
    agent.kill().unwrap();
    agent.wait().unwrap();
}
