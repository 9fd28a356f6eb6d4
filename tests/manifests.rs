//! What `kubectl apply -k manifests/` gives: on a real API server, with the rights of the agent's service account.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use imagecache_agent::api::NodeImageCache;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tempfile::TempDir;
use testbed::{Bound, Cluster, ClusterOptions, wait_for};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
const AGENT: &str = "system:serviceaccount:imagecache-system:imagecache-agent";

/// Where containerd keeps images.
const IMAGES: &str = "/var/lib/containerd";

/// As the agents' `ServiceAccount`, for `kubectl auth can-i`.
const AS_AGENT: &str = "--as=system:serviceaccount:imagecache-system:imagecache-agent";

async fn cluster() -> Cluster {
    let cluster = Cluster::start(ClusterOptions::control_plane())
        .await
        .unwrap();
    let apply = ["apply", "--warnings-as-errors", "-k", MANIFESTS];
    cluster.kubectl(&apply).await.unwrap();
    cluster
}

/// A folder with a kustomization of the manifests with these components.
fn kustomization(components: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    // A kustomization takes no absolute paths.
    let depth = folder.path().canonicalize().unwrap().components().count() - 1;
    let manifests = format!(
        "{}{}",
        "../".repeat(depth),
        MANIFESTS.trim_start_matches('/')
    );
    let components: Vec<_> = components
        .iter()
        .map(|name| format!("{manifests}/components/{name}"))
        .collect();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [manifests],
        "components": components,
    });
    let file = folder.path().join("kustomization.yaml");
    fs::write(file, kustomization.to_string()).unwrap();
    folder
}

#[test]
fn the_image_has_the_version_of_the_package() {
    let tag = concat!("newTag: ", env!("CARGO_PKG_VERSION"), "\n");
    for folder in ["base", "cleanup"] {
        let path = Path::new(MANIFESTS).join(folder).join("kustomization.yaml");
        let file = fs::read_to_string(path).unwrap();
        assert!(file.contains(tag), "{folder}: {file}");
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn one_apply_gives_everything_and_a_second_changes_nothing() {
    let cluster = cluster().await;
    let said = cluster
        .kubectl(&["apply", "--warnings-as-errors", "-k", MANIFESTS])
        .await
        .unwrap();
    assert_eq!(said.lines().count(), 15, "{said}");
    assert!(
        said.lines().all(|line| line.ends_with(" unchanged")),
        "{said}"
    );
    for overlay in ["k3s", "k0s", "microk8s", "cri-o", "metrics"] {
        let path = format!("{MANIFESTS}/overlays/{overlay}");
        let apply = [
            "apply",
            "--warnings-as-errors",
            "--dry-run=server",
            "-k",
            &path,
        ];
        let said = cluster.kubectl(&apply).await.unwrap();
        let changed: Vec<_> = said
            .lines()
            .filter(|line| !line.contains(" unchanged"))
            .collect();
        assert_eq!(
            changed,
            ["daemonset.apps/imagecache-agent configured (server dry run)"],
            "{overlay}"
        );
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_component_lets_the_agents_read_secrets_everywhere() {
    let cluster = cluster().await;
    let secret = ["auth", "can-i", "get", "secrets", "-n", "team", AS_AGENT];
    assert!(
        cluster.kubectl(&secret).await.is_err(),
        "without it they may not"
    );
    let folder = kustomization(&["pull-secrets-everywhere"]);
    let path = folder.path().to_string_lossy();
    let apply = ["apply", "--warnings-as-errors", "-k", &path];
    let said = cluster.kubectl(&apply).await.unwrap();
    let changed: Vec<_> = said
        .lines()
        .filter(|line| !line.ends_with(" unchanged"))
        .collect();
    let binding = "clusterrolebinding.rbac.authorization.k8s.io/imagecache-pull-secrets created";
    assert_eq!(changed, [binding]);
    assert_eq!(cluster.kubectl(&secret).await.unwrap().trim(), "yes");
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_components_for_the_nodes_credentials_mount_folders_of_their_own_and_make_nothing() {
    let cluster = cluster().await;
    let all = [
        "pull-secrets-everywhere",
        "node-credentials",
        "node-credentials-libraries",
    ];
    let credentials = [
        "/etc/imagecache/credential-providers",
        "/etc/imagecache/credentials",
    ];
    let libraries = ["/lib", "/lib64", "/usr/lib"];
    for (components, added) in [
        (&all[1..2], &credentials[..]),
        (&all[..], &[credentials.as_slice(), &libraries].concat()),
    ] {
        let folder = kustomization(components);
        let path = folder.path().to_string_lossy();
        let apply = ["apply", "--warnings-as-errors", "-k", &path];
        cluster.kubectl(&apply).await.unwrap();
        let agents = Api::<DaemonSet>::namespaced(cluster.client(), "imagecache-system");
        let agent = agents.get("imagecache-agent").await.unwrap();
        let pod = agent.spec.unwrap().template.spec.unwrap();
        let container = pod.containers.first().unwrap();

        // A folder of the host is mounted where it is there, read-only, and has to be there.
        let mut mounted = Vec::new();
        for volume in pod.volumes.iter().flatten() {
            let host = volume.host_path.as_ref().unwrap();
            // Without this one an agent does its work all the same.
            let kind = if host.path == IMAGES {
                "DirectoryOrCreate"
            } else {
                "Directory"
            };
            assert_eq!(host.type_.as_deref(), Some(kind), "{volume:?}");
            let mut mounts = container.volume_mounts.iter().flatten();
            let mount = mounts.find(|mount| mount.name == volume.name);
            let mount = mount.unwrap();
            assert_eq!(mount.mount_path, host.path);
            assert_eq!(mount.read_only, Some(true), "{mount:?}");
            assert_eq!(mount.sub_path, None, "{mount:?}");
            mounted.push(host.path.as_str());
        }
        mounted.sort_unstable();
        let expected = [added, &["/run/containerd", IMAGES]].concat();
        let expected: BTreeSet<_> = expected.into_iter().collect();
        assert_eq!(mounted, Vec::from_iter(expected), "{components:?}");

        let variables = container.env.iter().flatten();
        let variables: BTreeMap<_, _> = variables
            .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)))
            .collect();
        let expected = [
            (
                "IMAGECACHE_IMAGE_CREDENTIAL_PROVIDER_BIN_DIR",
                credentials[0],
            ),
            (
                "IMAGECACHE_IMAGE_CREDENTIAL_PROVIDER_CONFIG",
                "/etc/imagecache/credentials/providers",
            ),
            ("IMAGECACHE_NODE_DOCKER_CONFIG_DIR", credentials[1]),
        ];
        assert_eq!(variables, BTreeMap::from(expected));
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_cleanup_runs_where_the_agent_ran_and_asks_the_api_server_for_nothing() {
    let cluster = cluster().await;
    let path = format!("{MANIFESTS}/cleanup");
    let apply = ["apply", "--warnings-as-errors", "-k", &path];
    let said = cluster.kubectl(&apply).await.unwrap();
    assert_eq!(said, "daemonset.apps/imagecache-cleanup created\n");

    let sets = Api::<DaemonSet>::namespaced(cluster.client(), "imagecache-system");
    let pod = async |name: &str| {
        let set = sets.get(name).await.unwrap();
        set.spec.unwrap().template.spec.unwrap()
    };
    let (agent, cleanup) = (
        pod("imagecache-agent").await,
        pod("imagecache-cleanup").await,
    );
    assert_eq!(cleanup.automount_service_account_token, Some(false));
    assert_eq!(cleanup.service_account_name, None);
    assert_eq!(cleanup.node_selector, agent.node_selector);
    assert_eq!(cleanup.tolerations, agent.tolerations);
    assert_eq!(cleanup.priority_class_name, agent.priority_class_name);
    assert_eq!(cleanup.host_network, agent.host_network);
    assert_eq!(cleanup.security_context, agent.security_context);
    // It has no use for the images.
    let runtime = agent.volumes.iter().flatten();
    let runtime: Vec<_> = runtime.filter(|volume| volume.name == "runtime").collect();
    assert_eq!(
        cleanup.volumes.iter().flatten().collect::<Vec<_>>(),
        runtime
    );
    let serves = agent.containers.first().unwrap();
    let endpoint = serves.args.as_ref().unwrap().get(1).unwrap().as_str();
    let init = cleanup.init_containers.unwrap_or_default();
    let all: Vec<_> = init.iter().chain(&cleanup.containers).collect();
    for container in &all {
        assert_eq!(container.image, serves.image);
        assert_eq!(container.security_context, serves.security_context);
        let mounts = serves.volume_mounts.iter().flatten();
        let mounts: Vec<_> = mounts.filter(|mount| mount.name == "runtime").collect();
        assert_eq!(
            container.volume_mounts.iter().flatten().collect::<Vec<_>>(),
            mounts
        );
        assert_eq!(container.resources, serves.resources);
        assert_eq!(container.env, None);
    }
    let arguments: Vec<_> = all.into_iter().flat_map(|all| all.args.iter()).collect();
    let first = ["cleanup", endpoint];
    let then = ["cleanup", endpoint, "--stay"];
    assert_eq!(arguments, [&first[..], &then[..]]);
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_agent_may_do_what_it_needs_and_nothing_more() {
    let cluster = cluster().await;
    let may = async |verb: &str, what: &str, namespace: &str| {
        // As in `group/resource/subresource=name`.
        let (path, name) = what.split_once('=').unwrap_or((what, ""));
        let mut parts = path.split('/');
        let mut part = || Some(parts.next().unwrap_or_default().to_owned());
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: part(),
            resource: part(),
            subresource: part(),
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(AGENT.to_owned()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let reviews = Api::<SubjectAccessReview>::all(cluster.client());
        let answer = reviews
            .create(&PostParams::default(), &review)
            .await
            .unwrap();
        answer.status.unwrap().allowed
    };
    let allowed = [
        ("watch", "imagecache.dev/imagecaches", "team"),
        ("patch", "imagecache.dev/imagecaches/status", "team"),
        ("watch", "imagecache.dev/nodeimagecaches", ""),
        ("create", "imagecache.dev/nodeimagecaches", ""),
        ("patch", "imagecache.dev/nodeimagecaches", ""),
        ("patch", "imagecache.dev/nodeimagecaches/status", ""),
        ("watch", "/nodes", ""),
        ("create", "coordination.k8s.io/leases", "imagecache-system"),
        (
            "update",
            "coordination.k8s.io/leases=imagecache-agent",
            "imagecache-system",
        ),
    ];
    for (verb, what, namespace) in allowed {
        assert!(may(verb, what, namespace).await, "may not {verb} {what}");
    }
    let refused = [
        ("get", "/secrets", "imagecache-system"),
        ("list", "/secrets", "team"),
        ("list", "/pods", "team"),
        ("create", "/pods", "imagecache-system"),
        ("list", "/configmaps", "imagecache-system"),
        ("patch", "/nodes", ""),
        ("create", "imagecache.dev/imagecaches", "team"),
        ("patch", "imagecache.dev/imagecaches", "team"),
        ("delete", "imagecache.dev/nodeimagecaches", ""),
        (
            "update",
            "coordination.k8s.io/leases=other",
            "imagecache-system",
        ),
        (
            "update",
            "coordination.k8s.io/leases=imagecache-agent",
            "kube-system",
        ),
        ("create", "coordination.k8s.io/leases", "team"),
    ];
    for (verb, what, namespace) in refused {
        assert!(!may(verb, what, namespace).await, "may {verb} {what}");
    }
}

/// Applies the report of a node with these rights, as its agent does.
async fn report(client: &kube::Client, node: &str) -> kube::Result<()> {
    let reports = Api::<NodeImageCache>::all(client.clone());
    let as_agent = PatchParams::apply("imagecache-agent").force();
    let mut object = json!({
        "apiVersion": "imagecache.dev/v1alpha1",
        "kind": "NodeImageCache",
        "metadata": { "name": node },
    });
    reports
        .patch(node, &as_agent, &Patch::Apply(&object))
        .await?;
    object
        .as_object_mut()
        .unwrap()
        .insert("status".to_owned(), json!({ "ready": 1 }));
    reports
        .patch_status(node, &as_agent, &Patch::Apply(&object))
        .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn an_agent_reports_for_its_own_node_only() {
    const NAMESPACE: &str = "imagecache-system";
    const NAME: &str = "imagecache-agent";
    let cluster = cluster().await;
    let admin = cluster.client();
    let n1 = cluster
        .agent_kubeconfig(NAMESPACE, NAME, "n1")
        .await
        .unwrap();
    let n1 = testbed::client(&n1).await.unwrap();

    // A policy takes a moment until it is in force.
    wait_for(
        "the policy to be in force",
        Duration::from_secs(20),
        async || {
            let other = report(&n1, "n2").await;
            ensure!(other.is_err(), "n1's agent wrote the report of n2");
            Ok(())
        },
    )
    .await
    .unwrap();
    let words = "the agent on node n1 may write the report of its own node only, not of ";
    let refused = report(&n1, "n2").await.unwrap_err().to_string();
    assert!(refused.contains(&format!("{words}n2")), "{refused}");
    report(&n1, "n1").await.unwrap();
    report(&n1, "n1").await.unwrap();

    // Others are not concerned, and what they wrote is none of the agent's.
    report(&admin, "n3").await.unwrap();
    let reports = Api::<NodeImageCache>::all(n1.clone());
    let patch = Patch::Merge(json!({ "status": { "ready": 2 } }));
    let refused = reports
        .patch_status("n3", &PatchParams::default(), &patch)
        .await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(&format!("{words}n3")), "{refused}");

    let unbound = cluster
        .kubeconfig_for_service_account(NAMESPACE, NAME, Bound::Not)
        .await
        .unwrap();
    let unbound = testbed::client(&unbound).await.unwrap();
    let refused = report(&unbound, "n1").await.unwrap_err().to_string();
    assert!(
        refused.contains("the agent's token names no node"),
        "{refused}"
    );
}
