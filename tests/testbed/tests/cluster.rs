//! A control plane and nodes, for real.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, ListParams, PostParams};
use testbed::{Bound, Cluster, ClusterOptions, ImageSpec, Version, client, wait_for};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn three_nodes_pull_run_and_are_cut_off() {
    let start = Instant::now();
    let cluster = Cluster::start(ClusterOptions::three_nodes()).await.unwrap();
    println!("three nodes were Ready after {:?}", start.elapsed());
    let dir = cluster.lab().dir().to_owned();

    let image = cluster.registry().reference("team/app:1");
    cluster
        .registry()
        .push("team/app:1", &ImageSpec::small(1))
        .await
        .unwrap();
    for node in cluster.nodes() {
        node.containerd().pull(&image).await.unwrap();
        assert!(node.containerd().has(&image).await.unwrap());
        let pod = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: on-{0}}}, spec: {{hostNetwork: true, nodeName: {0}, containers: \
             [{{name: a, image: testbed/busybox:1, args: [sh, -c, 'echo hello from {0}; sleep 1000']}}]}}}}",
            node.name()
        );
        cluster
            .apply(&pod.replace("args:", "command: [/bin/busybox], args:"))
            .await
            .unwrap();
    }
    for node in cluster.nodes() {
        let pod = format!("on-{}", node.name());
        let running = wait_for(format!("{pod} to say hello"), LONG, async || {
            let said = cluster.kubectl(&["logs", &pod]).await?;
            ensure!(said.contains("hello from"), "{said:?}");
            Ok(())
        });
        if let Err(error) = running.await {
            panic!("{error:#}\n{}", cluster.log_tail(15));
        }
    }
    println!("pods ran after {:?}", start.elapsed());

    let cut = Instant::now();
    let node = cluster.node("n2").unwrap();
    node.cut().unwrap();
    wait_for("n2 to be not Ready", LONG, async || {
        let ready = cluster.node_ready("n2").await?;
        ensure!(ready == "Unknown", "Ready is {ready}");
        Ok(())
    })
    .await
    .unwrap();
    println!("a cut node was Unknown after {:?}", cut.elapsed());
    assert_eq!(cluster.node_ready("n1").await.unwrap(), "True");
    let joined = Instant::now();
    node.join().unwrap();
    cluster.wait_ready(LONG).await.unwrap();
    println!("it was Ready again after {:?}", joined.elapsed());

    let sh = |command: &str, tasks: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("LAB", &dir)
            .env("TASKS", tasks);
        String::from_utf8_lossy(&shell.output().unwrap().stdout).into_owned()
    };
    let tasks = sh(
        "ls $LAB/n*/run/io.containerd.runtime.v2.task/k8s.io | grep -x '[0-9a-f]\\+'",
        "",
    );
    assert_eq!(tasks.lines().count(), 6, "{tasks}");
    let end = Instant::now();
    drop(cluster);
    println!("all was gone after {:?}", end.elapsed());
    assert!(!dir.exists());
    assert_eq!(
        sh(
            "grep -l $LAB /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo 2>/dev/null",
            ""
        ),
        ""
    );
    assert_eq!(
        sh(
            "for task in $TASKS; do find /sys/fs/cgroup -name $task*; done",
            &tasks
        ),
        ""
    );
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_control_plane_counts_requests_and_survives_a_kill() {
    let start = Instant::now();
    let cluster = Cluster::start(ClusterOptions::control_plane())
        .await
        .unwrap();
    println!("the control plane was ready after {:?}", start.elapsed());
    cluster
        .kubectl(&["create", "serviceaccount", "agent"])
        .await
        .unwrap();

    // A token tells its node, also before the Node exists.
    let kubeconfig = cluster
        .agent_kubeconfig("default", "agent", "n1")
        .await
        .unwrap();
    let agent = client(&kubeconfig).await.unwrap();
    let mark = cluster.api_mark();
    let me = Api::<SelfSubjectReview>::all(agent.clone())
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .unwrap();
    let user = me.status.unwrap().user_info.unwrap();
    let user_name = "system:serviceaccount:default:agent";
    assert_eq!(user.username.as_deref(), Some(user_name));
    let extra = user.extra.unwrap();
    assert_eq!(
        extra.get("authentication.kubernetes.io/node-name"),
        Some(&vec!["n1".to_owned()])
    );
    let forbidden = Api::<Node>::all(agent)
        .list(&ListParams::default())
        .await
        .unwrap_err();
    assert!(forbidden.to_string().contains("forbidden"), "{forbidden}");
    let of_agent: Vec<_> = cluster
        .api_requests(mark)
        .into_iter()
        .filter(|r| r.user == user_name)
        .collect();
    let seen: Vec<_> = of_agent
        .iter()
        .map(|r| (r.verb.as_str(), r.resource.as_str(), r.code))
        .collect();
    assert_eq!(
        seen,
        [
            ("create", "selfsubjectreviews", 201),
            ("list", "nodes", 403)
        ]
    );

    cluster.create_node("n1").await.unwrap();
    cluster
        .kubeconfig_for_service_account("default", "agent", Bound::Node("n1".to_owned()))
        .await
        .unwrap();
    cluster
        .kubeconfig_for_service_account("default", "agent", Bound::Not)
        .await
        .unwrap();
    cluster
        .kubectl(&["create", "configmap", "kept"])
        .await
        .unwrap();

    let kill = Instant::now();
    cluster.kill9_api_server().unwrap();
    assert!(cluster.kubectl(&["get", "nodes"]).await.is_err());
    cluster.start_api_server().await.unwrap();
    println!("killed and ready again after {:?}", kill.elapsed());
    Api::<ConfigMap>::default_namespaced(cluster.client())
        .get("kept")
        .await
        .unwrap();
    assert_eq!(cluster.node_ready("n1").await.unwrap(), "True");
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_program_on_a_node_sees_its_runtime_and_its_network() {
    let cluster = Cluster::start(ClusterOptions::runtimes(&[Version::V1_7]))
        .await
        .unwrap();
    let node = cluster.node("n1").unwrap();
    let mut command = node.command("sh");
    command
        .args([
            "-c",
            "ls /run/containerd; ip -br addr; echo $GREETING; sleep 1000",
        ])
        .env("GREETING", "hello");
    let process = node.spawn("look", command).unwrap();
    wait_for("the greeting", LONG, async || {
        ensure!(process.log().contains("hello"), "{}", process.log());
        Ok(())
    })
    .await
    .unwrap();
    let said = process.log();
    assert!(said.contains("containerd.sock\n"), "{said}");
    assert!(said.contains(&node.address().to_string()), "{said}");
    process.terminate().unwrap();
    assert!(!process.wait(LONG).await.unwrap().success());
}
