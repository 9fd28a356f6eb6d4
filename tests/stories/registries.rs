//! Each registry is told the password that is for it, by a token or itself, and no other one is.

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::Reason;
use serde_json::json;
use testbed::{ClusterOptions, Listen, Mark, Registry, RegistryOptions, Tls, Version, wait_for};

use super::fleet::{Fleet, SOON, image_of, story_with};
use super::guarded::{Guarded, User, config, let_agents_read};
use super::secrets::{fails, nowhere, secret_in};

const ALICE: User = ("alice", "hunter2-correct-horse");
const BOB: User = ("bob", "hunter3-battery-staple");
const CAROL: User = ("carol", "hunter4-tokens-only");
/// Whom nobody knows.
const MALLORY: User = ("mallory", "hunter5-let-me-in");

const TRACE: &[&str] = &["--log-level=trace,imagecache_agent=trace"];

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_password_goes_to_the_port_that_it_is_for_and_to_no_other() -> Result<()> {
    story_with(ClusterOptions::runtimes(&Version::ALL), TRACE, async |fleet| {
        // One machine, three registries.
        let ours = Guarded::start(fleet, "ours", ALICE, false).await?;
        let theirs = Guarded::start(fleet, "theirs", BOB, false).await?;
        let tokens = Guarded::start(fleet, "tokens", CAROL, true).await?;
        let [our] = ours.push(["team/app:1"]).await?;
        let [their] = theirs.push(["team/app:2"]).await?;
        let [by_token] = tokens.push(["team/app:3"]).await?;

        let_agents_read(fleet, "default").await?;
        secret_in(fleet, "default", "ours", &config(&[(&ours.host(), ALICE)])).await?;
        let spec = |secrets: &[&str]| {
            let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
            json!({"cacheSpec": [{"images": [our, their, by_token]}], "imagePullSecrets": secrets})
        };
        fleet.set("ports", spec(&["ours"])).await?;
        for node in ["n1", "n2", "n3"] {
            fleet.until_on(node, &our, SOON).await?;
        }
        for image in [&their, &by_token] {
            fails(fleet, image, "no pull secret has credentials for this image").await?;
        }
        ours.until_asked_as(&["alice:hunter2-correct-horse"]).await?;
        theirs.until_asked_as(&[]).await?;
        tokens.until_asked_as(&[]).await?;

        let others = config(&[(&theirs.host(), BOB), (&tokens.host(), CAROL)]);
        secret_in(fleet, "default", "others", &others).await?;
        fleet.set("ports", spec(&["ours", "others"])).await?;
        fleet.until_ready("ports", SOON).await?;
        ours.until_asked_as(&["alice:hunter2-correct-horse"]).await?;
        theirs.until_asked_as(&["bob:hunter3-battery-staple"]).await?;
        // The password goes to the server that gives tokens, and what it gives comes here.
        tokens.until_asked_as(&["Bearer"]).await?;
        nowhere(fleet, &[ALICE, BOB, CAROL]).await
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn of_several_credentials_each_is_tried_once_in_the_kubelets_order_until_one_is_right()
-> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        TRACE,
        async |fleet| {
            let guarded = Guarded::start(fleet, "guarded", ALICE, false).await?;
            let tokens = Guarded::start(fleet, "tokens", CAROL, true).await?;
            let [app] = guarded.push(["team/app:1"]).await?;
            let [by_token] = tokens.push(["team/app:2"]).await?;

            let host = guarded.host();
            let (team, url) = (format!("{host}/team"), format!("https://{host}/v1/"));
            let secrets = [
                // What is for the team comes before what is for the whole registry.
                (
                    "first",
                    config(&[(&host, MALLORY), (&team, BOB), (&tokens.host(), MALLORY)]),
                ),
                // Equal to one before.
                ("second", config(&[(&url, MALLORY)])),
                ("third", config(&[(&host, ALICE), (&tokens.host(), CAROL)])),
            ];
            let_agents_read(fleet, "default").await?;
            for (name, config) in &secrets {
                secret_in(fleet, "default", name, config).await?;
            }
            let names = secrets.map(|(name, _)| json!({"name": name}));
            let spec =
                json!({"cacheSpec": [{"images": [app, by_token]}], "imagePullSecrets": names});
            fleet.set("several", spec).await?;
            fleet.until_ready("several", SOON).await?;
            guarded
                .until_asked_as(&[
                    "bob:hunter3-battery-staple",
                    "mallory:hunter5-let-me-in",
                    "alice:hunter2-correct-horse",
                ])
                .await?;
            tokens.until_asked_as(&["Bearer"]).await?;
            nowhere(fleet, &[ALICE, BOB, CAROL, MALLORY]).await
        },
    )
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn the_secret_for_docker_hub_is_for_short_names_too() -> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        TRACE,
        async |fleet| {
            let hub = Guarded::start(fleet, "hub", ALICE, false).await?;
            hub.serves(fleet, "docker.io")?;
            hub.push(["library/busybox:1", "team/app:1", "team/app:2"])
                .await?;
            let_agents_read(fleet, "default").await?;
            let config = config(&[
                ("https://index.docker.io/v1/", ALICE),
                (&hub.host(), MALLORY),
            ]);
            secret_in(fleet, "default", "hub", &config).await?;
            let images = ["busybox:1", "docker.io/team/app:1", "team/app:2"];
            let spec =
                json!({"cacheSpec": [{"images": images}], "imagePullSecrets": [{"name": "hub"}]});
            fleet.set("hub", spec).await?;
            fleet.until_ready("hub", SOON).await?;
            // The host that a mirror has does not matter: the image's own name does.
            hub.until_asked_as(&["alice:hunter2-correct-horse"]).await?;
            nowhere(fleet, &[ALICE, MALLORY]).await
        },
    )
    .await
}

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_password_is_told_only_to_a_registry_that_proves_who_it_is() -> Result<()> {
    story_with(
        ClusterOptions::runtimes(&Version::ALL),
        TRACE,
        async |fleet| {
            let known = by_tls(fleet, "known", Tls::Trusted).await?;
            let unknown = by_tls(fleet, "unknown", Tls::SelfSigned).await?;
            let images = [
                known.reference("team/app:1"),
                unknown.reference("team/app:1"),
            ];
            let_agents_read(fleet, "default").await?;
            let config = config(&[(&known.host(), ALICE), (&unknown.host(), ALICE)]);
            secret_in(fleet, "default", "both", &config).await?;
            let spec =
                json!({"cacheSpec": [{"images": images}], "imagePullSecrets": [{"name": "both"}]});
            fleet.set("tls", spec).await?;
            for node in ["n1", "n2", "n3"] {
                fleet.until_on(node, &images[0], SOON).await?;
                untrusted(fleet, node, &images[1]).await?;
            }
            let answered: Vec<_> = known.requests(Mark::default());
            ensure!(
                answered.iter().any(|request| request.status == 200),
                "{answered:?}"
            );
            let asked = unknown.requests(Mark::default());
            ensure!(asked.is_empty(), "{asked:?}");
            nowhere(fleet, &[ALICE]).await
        },
    )
    .await
}

async fn by_tls(fleet: &Fleet, name: &str, tls: Tls) -> Result<Registry> {
    let options = RegistryOptions {
        listen: Listen::Bridge,
        tls,
        user: Some((ALICE.0.to_owned(), ALICE.1.to_owned())),
        tokens: false,
    };
    let registry = Registry::start(fleet.cluster.lab(), name, options).await?;
    registry.push("team/app:1", &image_of(name)).await?;
    for node in fleet.cluster.nodes() {
        node.containerd().knows(&registry)?;
    }
    Ok(registry)
}

/// The image is refused on the node because of a certificate.
async fn untrusted(fleet: &Fleet, node: &str, image: &str) -> Result<()> {
    wait_for(format!("{image} to fail on {node}"), SOON, async || {
        let report = fleet.report(node).await?.context("no report")?;
        let seen = report.images.iter().find(|seen| seen.image == image);
        let seen = seen.context("no image")?;
        ensure!(seen.reason == Some(Reason::Tls), "{seen:?}");
        Ok(())
    })
    .await
}
