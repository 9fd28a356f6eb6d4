//! What `imagecache-agent run` says when it cannot start, and with which exit code.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::Command;

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
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("cannot use the kubeconfig /no/such"),
        "{said}"
    );
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn outside_a_pod_a_kubeconfig_is_asked_for() {
    let (code, said) = run(&["--node-name=n1", "--admin-addr=127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("name a kubeconfig with --kubeconfig"),
        "{said}"
    );
}
