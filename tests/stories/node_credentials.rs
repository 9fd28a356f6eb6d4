//! Private images without any Secret: with what the node itself has.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use imagecache_agent::api::Reason;
use imagecache_agent::api::condition::find;
use serde_json::json;
use testbed::{
    ClusterOptions, ImageSpec, Listen, Registry, RegistryOptions, Tls, Version, wait_for,
};

use super::fleet::{Fleet, SOON};
use super::plugin::{PASSWORD, Providers, assert_no_secret};

#[tokio::test]
#[ignore = "needs root and the servers: make test"]
async fn a_private_image_comes_with_what_the_node_has_and_what_is_lacking_is_named() -> Result<()> {
    let mut fleet = Fleet::without_agents(ClusterOptions::runtimes(&[Version::ALL[0]])).await?;
    fleet.apply_manifests().await?;
    let private = registry(&fleet, "private").await?;
    let cloud = registry(&fleet, "cloud").await?;
    let (folder, providers) = (tempfile::tempdir()?, Providers::new());
    let host = cloud.host();
    let password = providers.add_with_file("cloud", &host, &["answer", "Registry", "1h", &host]);
    fs::write(&password, "wrong")?;
    let [config, bin] = providers.flags();
    let docker = format!("--node-docker-config-dir={}", folder.path().display());
    let flags = [
        "--log-level=trace,imagecache_agent=trace",
        "--divide-delays=20",
        &docker,
        &config,
        &bin,
    ];
    fleet.start_agents(&flags).await?;
    let message = credentials(&fleet, "True", "Ready").await?;
    ensure!(
        message.ends_with("the node has: docker config, provider cloud"),
        "{message}"
    );
    let (app, other) = (
        private.reference("team/app:1"),
        cloud.reference("team/app:2"),
    );

    // The file is replaced, as whoever rotates a password does.
    write(folder.path(), &private, "wrong")?;
    want(&fleet, "docker", &app).await?;
    let said = fails(&fleet, &app, "config.json").await?;
    ensure!(said.contains("tried with "), "{said}");
    write(folder.path(), &private, PASSWORD)?;
    fleet.until_ready("docker", SOON).await?;

    // A provider that fails is named, for as long as something waits for it.
    providers.fail(true);
    want(&fleet, "provider", &other).await?;
    let message = credentials(&fleet, "False", "ProviderFailed").await?;
    let words = "provider cloud: exit status: 3: cannot log in as alice:… with password …";
    ensure!(message.starts_with(words), "{message}");
    fails(&fleet, &other, "provider cloud: exit status: 3").await?;

    // It works again, with a password that the registry refuses: that is kept no longer than until then.
    providers.fail(false);
    credentials(&fleet, "True", "Ready").await?;
    fails(&fleet, &other, "tried with provider cloud").await?;
    fs::write(&password, PASSWORD)?;
    fleet.until_ready("provider", SOON).await?;

    let mut written = fleet.agent("n1")?.log();
    ensure!(written.contains("TRACE"), "the log is not at trace level");
    let said = written.matches("credentials are lacking").count();
    ensure!(said == 1, "said {said} times that credentials are lacking");
    let objects = [
        "get",
        "imagecaches,nodeimagecaches,events,leases",
        "-A",
        "-o",
        "yaml",
    ];
    written += &fleet.cluster.kubectl(&objects).await?;
    assert_no_secret(&written);
    Ok(())
}

async fn registry(fleet: &Fleet, name: &str) -> Result<Registry> {
    let lab = fleet.cluster.lab().clone();
    let options = RegistryOptions {
        listen: Listen::Bridge,
        tls: Tls::Off,
        user: Some(("alice".to_owned(), PASSWORD.to_owned())),
        tokens: false,
    };
    let registry = Registry::start(&lab, name, options).await?;
    for (image, seed) in [("team/app:1", 5), ("team/app:2", 6)] {
        registry.push(image, &ImageSpec::small(seed)).await?;
    }
    fleet.cluster.node("n1")?.containerd().knows(&registry)?;
    Ok(registry)
}

/// Puts a docker configuration into the folder, in the place of the one before.
fn write(folder: &Path, registry: &Registry, password: &str) -> Result<()> {
    let entry = json!({"username": "alice", "password": password});
    let config = json!({"auths": {registry.host(): entry}});
    let new = folder.join("config.json.new");
    fs::write(&new, config.to_string())?;
    Ok(fs::rename(new, folder.join("config.json"))?)
}

async fn want(fleet: &Fleet, name: &str, image: &str) -> Result<()> {
    let spec = json!({"cacheSpec": [{"images": [image]}]});
    fleet.set(name, spec).await.map(drop)
}

/// Waits until the node says so of its credentials, and returns its message.
async fn credentials(fleet: &Fleet, status: &str, reason: &str) -> Result<String> {
    wait_for(format!("CredentialsReady {reason}"), SOON, async || {
        let report = fleet.report("n1").await?.context("no report")?;
        let ready = find(&report.conditions, "CredentialsReady").context("no condition")?;
        let message = &ready.message;
        ensure!(
            ready.status == status && ready.reason == reason,
            "{}: {message}",
            ready.reason
        );
        Ok(message.clone())
    })
    .await
}

/// Waits until the image is refused with these words, and returns all of them.
async fn fails(fleet: &Fleet, image: &str, words: &str) -> Result<String> {
    wait_for(
        format!("{image} to fail with {words:?}"),
        SOON,
        async || {
            let report = fleet.report("n1").await?.context("no report")?;
            let mut images = report.images.iter();
            let image = images
                .find(|seen| seen.image == image)
                .context("no image")?;
            let said = image.message.clone().unwrap_or_default();
            ensure!(
                image.reason == Some(Reason::Unauthorized) && said.contains(words),
                "{image:?}"
            );
            Ok(said)
        },
    )
    .await
}
