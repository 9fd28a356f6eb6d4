//! What a real API server accepts of the two resources, and how it refuses the rest.

#![allow(clippy::unwrap_used)]

mod refused;

use imagecache_agent::api::{ImageCache, ImageCacheSpec};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use refused::{of_expression, of_images, of_labels, of_lists};
use serde_json::{Value, json};
use testbed::{Cluster, ClusterOptions};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/samples");

/// An API server with our resources. A warning is an error here.
async fn cluster() -> Cluster {
    const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/crds");
    let cluster = Cluster::start(ClusterOptions::control_plane())
        .await
        .unwrap();
    let apply = ["apply", "--warnings-as-errors", "-k", CRDS];
    cluster.kubectl(&apply).await.unwrap();
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=30s",
        "crd/imagecaches.imagecache.dev",
        "crd/nodeimagecaches.imagecache.dev",
    ];
    cluster.kubectl(&wait).await.unwrap();
    cluster
}

/// What the API server says to this spec: nothing, or the message of its refusal.
async fn answer(cluster: &Cluster, spec: &Value) -> Result<(), String> {
    let resource = ApiResource::erase::<ImageCache>(&());
    let caches = Api::<DynamicObject>::namespaced_with(cluster.client(), "default", &resource);
    let cache = json!({
        "apiVersion": "imagecache.dev/v1alpha1",
        "kind": "ImageCache",
        "metadata": { "name": "test" },
        "spec": spec,
    });
    let cache = serde_json::from_value(cache).unwrap();
    match caches.create(&PostParams::default(), &cache).await {
        Ok(_) => {
            let delete = caches.delete("test", &DeleteParams::default()).await;
            delete.map(drop).map_err(|error| error.to_string())
        }
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_spec_that_cannot_be_meant_is_refused_with_the_field_and_the_cause() {
    let cluster = cluster().await;
    for (what, spec, field, words) in [
        refused::lists(),
        refused::secrets(),
        refused::labels(),
        refused::expressions(),
        refused::lengths_of_time(),
    ]
    .concat()
    {
        let message = answer(&cluster, &spec).await.unwrap_err();
        assert!(
            message.contains(&format!("{field}: ")) && message.contains(words),
            "{what}: expected {field}: ... {words}\n{message}"
        );
        // One cause, said once: not a list of what follows from it.
        assert!(message.len() < 1000, "{what}:\n{message}");
        // Without an API server, the agent's own check refuses the same.
        let own = ImageCacheSpec::read(&spec).and_then(|spec| spec.check());
        assert!(own.is_err(), "{what} passes without an API server");
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_extremes_are_accepted() {
    let cluster = cluster().await;
    let reference = |n: usize| format!("{n:03}{}", "a".repeat(509));
    let long: Vec<_> = (0..250).map(reference).collect();
    let label = |n: usize| {
        (
            format!("{}/{n:063}", "a".repeat(253)),
            json!("b".repeat(63)),
        )
    };
    let labels: serde_json::Map<_, _> = (0..64).map(label).collect();
    let values: Vec<_> = (0..64).map(|n| format!("{n:063}")).collect();
    let expression = json!({ "key": format!("{}/{}", "a".repeat(253), "b".repeat(63)), "operator": "In", "values": values });
    let full =
        json!({ "images": long, "nodeSelector": labels, "matchExpressions": vec![expression; 32] });
    let rows = [
        ("64 lists", of_lists(64, 15)),
        ("256 images in a list", of_lists(1, 256)),
        ("1000 images in all", of_lists(4, 250)),
        (
            "1000 images of 512 characters, and full selectors",
            json!({ "cacheSpec": vec![&full; 4] }),
        ),
        (
            "the bounds of the priority",
            json!({ "cacheSpec": [{ "images": ["a"] }], "priority": -1000, "paused": true }),
        ),
        ("an empty selector", of_labels(&json!({}))),
        (
            "an empty label value",
            of_labels(&json!({ "node-role.kubernetes.io/worker": "" })),
        ),
        (
            "In with an empty value",
            of_expression(&json!({ "key": "a", "operator": "In", "values": [""] })),
        ),
        (
            "Lt with a sign",
            of_expression(&json!({ "key": "a", "operator": "Lt", "values": ["-5"] })),
        ),
        (
            "Exists with an empty list",
            of_expression(&json!({ "key": "a", "operator": "Exists", "values": [] })),
        ),
        (
            "a digest and a port",
            of_images(&[&format!("r.example:5000/a/b:1@sha256:{}", "0".repeat(64))]),
        ),
    ];
    for (what, spec) in rows {
        assert_eq!(answer(&cluster, &spec).await, Ok(()), "{what}");
        let own = ImageCacheSpec::read(&spec).and_then(|spec| spec.check());
        assert_eq!(own, Ok(()), "{what}");
    }
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn kubectl_knows_the_short_names_the_category_and_the_columns() {
    let cluster = cluster().await;
    cluster
        .kubectl(&["apply", "--warnings-as-errors", "-f", SAMPLES])
        .await
        .unwrap();
    let node = "apiVersion: imagecache.dev/v1alpha1\nkind: NodeImageCache\nmetadata: {name: n1}\n";
    cluster.apply(node).await.unwrap();
    let status = json!({ "status": { "ready": 3, "total": 4, "pulling": 1, "failed": 0, "runtime": { "name": "containerd", "version": "v2.4.2" } } });
    let patch = [
        "patch",
        "nodeic",
        "n1",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status.to_string(),
    ];
    cluster.kubectl(&patch).await.unwrap();

    let columns = |table: &str| {
        table
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let table = cluster.kubectl(&["get", "ic"]).await.unwrap();
    assert_eq!(
        columns(&table),
        "NAME IMAGES DESIRED READY FAILED STATUS REASON AGE"
    );
    let table = cluster.kubectl(&["get", "ic", "-o", "wide"]).await.unwrap();
    assert_eq!(
        columns(&table),
        "NAME IMAGES DESIRED READY FAILED STATUS REASON MESSAGE GENERATION AGE"
    );
    let table = cluster.kubectl(&["get", "nodeic"]).await.unwrap();
    assert_eq!(
        columns(&table),
        "NAME READY TOTAL PULLING FAILED RUNTIME AGE"
    );
    assert!(table.contains("n1 "), "{table}");
    let all = cluster
        .kubectl(&["get", "imagecaching", "-o", "name"])
        .await
        .unwrap();
    assert!(
        all.contains("imagecache.imagecache.dev/two-lists")
            && all.contains("nodeimagecache.imagecache.dev/n1"),
        "{all}"
    );
    let explained = cluster
        .kubectl(&["explain", "ic.spec.cacheSpec.matchExpressions.operator"])
        .await
        .unwrap();
    assert!(
        explained.contains("ENUM:\n    In\n    NotIn\n"),
        "{explained}"
    );
}
