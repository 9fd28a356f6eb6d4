//! Private images: what a pod could pull with a Secret, the agent can pull with it, and nobody ever reads the password.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::Reason;
use imagecache_agent::api::condition::find;
use serde_json::json;
use testbed::{
    ClusterOptions, ImageSpec, Listen, Registry, RegistryOptions, Tls, Version, wait_for,
};

use super::fleet::{Fleet, SOON, story_with};

const PASSWORD: &str = "hunter2-correct-horse";
const SECRET: &str = "myregistrykey";
/// Read by nobody before the agents have the right to this one and no other: a Secret that was read is not read again for 10 s.
const NARROW: &str = "narrowkey";

/// How soon a change of a Secret has to be acted on.
const ACTED_ON: Duration = Duration::from_secs(5);

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_private_image_comes_with_its_secret_and_the_password_stands_nowhere() -> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        &["--log-level=trace,imagecache_agent=trace"],
        async |fleet| {
            let private = registry(fleet, "private", false).await?;
            let tokens = registry(fleet, "tokens", true).await?;
            let (app, other) = (
                private.reference("team/app:1"),
                tokens.reference("team/app:1"),
            );
            fleet.push(&["public:1"]).await?;
            let spec = json!({
                "cacheSpec": [
                    {"images": [app, other, fleet.image("public:1")]},
                    {"images": [app], "nodeSelector": {"tier": "backend"}},
                ],
                "imagePullSecrets": [{"name": SECRET}],
            });
            fleet.set("private", spec).await?;

            // Nobody gave the agent the right: it says which, and the one line that gives it.
            let line = lacks(fleet, "SecretForbidden").await?;
            let line = line
                .split_once("kubectl ")
                .and_then(|(_, line)| line.split([';', ')']).next())
                .context("no command in the message")?;
            fails(fleet, &app, "default/myregistrykey").await?;
            let words: Vec<_> = line.split_whitespace().collect();
            fleet.cluster.kubectl(&words).await?;
            lacks(fleet, "MissingSecret").await?;

            // A Secret that holds nothing that reads is named, and its content is not.
            secret(fleet, &json!({"auths": PASSWORD}).to_string()).await?;
            lacks(fleet, "InvalidSecret").await?;

            // A password that is wrong: the Secret is fine, the registry says no.
            secret(fleet, &config(&[&private, &tokens], "wrong")).await?;
            wait_for("the wrong password to be tried", SOON, async || {
                let report = fleet.report("n1").await?.context("no report")?;
                let ready = find(&report.conditions, "CredentialsReady").context("no condition")?;
                ensure!(ready.status == "True", "{}", ready.message);
                let off = "node credentials are off (--node-docker-config-dir, ";
                ensure!(ready.message.contains(off), "{}", ready.message);
                Ok(())
            })
            .await?;
            fails(fleet, &app, "tried with default/myregistrykey").await?;

            secret(fleet, &config(&[&private, &tokens], PASSWORD)).await?;
            fleet.until_ready("private", ACTED_ON).await?;

            // In steady state nobody asks for the Secret, nor watches it: for as long as what was read of it is taken without
            // asking, so that what follows reads it anew.
            let mark = fleet.cluster.api_mark();
            tokio::time::sleep(Duration::from_secs(10)).await;
            let asked = fleet.cluster.api_requests(mark);
            let asked: Vec<_> = asked
                .iter()
                .filter(|request| {
                    request.resource == "secrets" && request.user.contains("imagecache-agent")
                })
                .collect();
            ensure!(asked.is_empty(), "{asked:?}");

            // The right to this one Secret is enough: to read it, and to be told of a change.
            narrow(fleet).await?;
            let narrow = async |password| {
                secret_in(fleet, "default", NARROW, &config(&[&private], password)).await
            };
            narrow("wrong").await?;
            private.push("team/app:2", &ImageSpec::small(6)).await?;
            let app = private.reference("team/app:2");
            let spec =
                json!({"cacheSpec": [{"images": [app]}], "imagePullSecrets": [{"name": NARROW}]});
            fleet.set("narrow", spec).await?;
            fails(fleet, &app, "tried with default/narrowkey").await?;
            narrow(PASSWORD).await?;
            fleet.until_ready("narrow", ACTED_ON).await?;

            nowhere(fleet, &[("alice", PASSWORD)]).await
        },
    )
    .await
}

/// Takes the right to all Secrets of the namespace away, and gives that to the one.
async fn narrow(fleet: &Fleet) -> Result<()> {
    let delete = [
        "-n",
        "default",
        "delete",
        "rolebinding",
        "imagecache-pull-secrets",
    ];
    fleet.cluster.kubectl(&delete).await?;
    let role = [
        "-n",
        "default",
        "create",
        "role",
        "one-secret",
        "--verb=get,list,watch",
        "--resource=secrets",
        "--resource-name=narrowkey",
    ];
    fleet.cluster.kubectl(&role).await?;
    let bind = [
        "-n",
        "default",
        "create",
        "rolebinding",
        "one-secret",
        "--role=one-secret",
        "--serviceaccount=imagecache-system:imagecache-agent",
    ];
    fleet.cluster.kubectl(&bind).await?;
    Ok(())
}

async fn registry(fleet: &Fleet, name: &str, tokens: bool) -> Result<Registry> {
    let lab = fleet.cluster.lab().clone();
    let options = RegistryOptions {
        listen: Listen::Bridge,
        tls: Tls::Off,
        user: Some(("alice".to_owned(), PASSWORD.to_owned())),
        tokens,
    };
    let registry = Registry::start(&lab, name, options).await?;
    registry.push("team/app:1", &ImageSpec::small(5)).await?;
    for node in fleet.cluster.nodes() {
        node.containerd().knows(&registry)?;
    }
    Ok(registry)
}

/// What `kubectl create secret docker-registry` would put into a Secret.
fn config(registries: &[&Registry], password: &str) -> String {
    let entry = json!({"username": "alice", "password": password});
    let auths: serde_json::Map<_, _> = registries
        .iter()
        .map(|registry| (registry.host(), entry.clone()))
        .collect();
    json!({"auths": auths}).to_string()
}

async fn secret(fleet: &Fleet, config: &str) -> Result<()> {
    secret_in(fleet, "default", SECRET, config).await
}

/// Creates a Secret with this configuration, or replaces what it says.
pub async fn secret_in(fleet: &Fleet, namespace: &str, name: &str, config: &str) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": config},
    });
    let object = object.to_string();
    fleet
        .cluster
        .kubectl_with(&["apply", "-f", "-"], &object)
        .await?;
    Ok(())
}

/// Waits until every node says that credentials are lacking for this reason, and returns what n1 says of it.
async fn lacks(fleet: &Fleet, reason: &str) -> Result<String> {
    let mut said = String::new();
    for node in ["n3", "n2", "n1"] {
        // A right that is given is noticed within 36 s: an API server is not asked more often by whoever it refuses.
        said = wait_for(format!("{reason} on {node}"), SOON * 2, async || {
            let report = fleet.report(node).await?.context("no report")?;
            let ready = find(&report.conditions, "CredentialsReady").context("no condition")?;
            ensure!(
                ready.reason == reason,
                "{}: {}",
                ready.reason,
                ready.message
            );
            Ok(ready.message.clone())
        })
        .await?;
    }
    Ok(said)
}

/// The image is refused on n1, with these words.
pub async fn fails(fleet: &Fleet, image: &str, words: &str) -> Result<()> {
    wait_for(
        format!("{image} to fail with {words:?}"),
        SOON,
        async || {
            let report = fleet.report("n1").await?.context("no report")?;
            let image = report
                .images
                .iter()
                .find(|seen| seen.image == image)
                .context("no image")?;
            ensure!(image.reason == Some(Reason::Unauthorized), "{image:?}");
            ensure!(
                image
                    .message
                    .as_deref()
                    .is_some_and(|said| said.contains(words)),
                "{image:?}"
            );
            Ok(())
        },
    )
    .await
}

/// Neither these passwords nor their base64 are in anything that an agent wrote, at trace level, nor in any object but the Secret.
pub async fn nowhere(fleet: &Fleet, users: &[(&str, &str)]) -> Result<()> {
    let mut written = String::new();
    for node in fleet.cluster.nodes() {
        written += &fleet.agent(node.name())?.log();
    }
    ensure!(written.contains("TRACE"), "the log is not at trace level");
    written += &fleet
        .cluster
        .kubectl(&[
            "get",
            "imagecaches,nodeimagecaches,events,leases",
            "-A",
            "-o",
            "yaml",
        ])
        .await?;
    for (user, password) in users {
        let pair = format!("{user}:{password}");
        let encoded = [pair.as_bytes(), password.as_bytes()].map(base64);
        for word in [password, &*encoded[0], &*encoded[1], &*format!("{user}:")] {
            ensure!(!written.contains(word), "{word} was written");
        }
    }
    Ok(())
}

pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
