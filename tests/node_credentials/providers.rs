//! What is found for an image. No runtime is needed for that, and no registry.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::future::join_all;
use imagecache_agent::api::{CredentialReason, NodeSource};
use imagecache_agent::credentials::{NodeCredentials, NodeKeys};
use testbed::wait_for;

use crate::plugin::{PASSWORD, Providers};

const IMAGE: &str = "r.io/team/app";
const LIMIT: Duration = Duration::from_mins(1);
const SOON: Duration = Duration::from_secs(20);

fn credentials(providers: &Providers, limit: Duration) -> NodeCredentials {
    let mut credentials = NodeCredentials::default();
    credentials
        .ask_providers(&providers.config(), &providers.bin(), limit)
        .unwrap();
    credentials
}

/// Who gave the credentials that were found, in their order.
fn sources(keys: &NodeKeys) -> Vec<&str> {
    keys.found.iter().map(|named| &*named.source).collect()
}

/// Why a provider gave none.
fn problem(keys: &NodeKeys, provider: &str) -> String {
    let source = NodeSource::Provider(provider.into());
    let problem = keys.read[&source].as_ref().expect("a problem");
    assert_eq!(problem.reason, Some(CredentialReason::ProviderFailed));
    assert!(!format!("{keys:?}").contains(PASSWORD), "{keys:?}");
    problem.message.clone()
}

#[tokio::test]
async fn a_provider_is_asked_once_for_many_images_of_one_registry() {
    let providers = Providers::new();
    providers.add("p", "*.io", &["answer", "Registry", "1h", "*.io"]);
    let credentials = credentials(&providers, LIMIT);
    let images: Vec<_> = (0..8).map(|n| format!("r.io/team/app{n}")).collect();
    let found = join_all(images.iter().map(|image| credentials.find(image))).await;
    for keys in &found {
        assert_eq!(sources(keys), ["provider p"]);
        assert!(keys.found[0].credential.password == PASSWORD);
    }
    let asked = providers.asked();
    assert!(asked.len() == 1 && images.contains(&asked[0]), "{asked:?}");
    assert_eq!(
        found
            .iter()
            .filter(|keys| keys.remembered.is_empty())
            .count(),
        1
    );

    credentials.find("q.io/app").await;
    assert_eq!(providers.asked()[1..], ["q.io/app"], "another registry");
    assert!(credentials.find("r.dev/app").await.read.is_empty());
    assert_eq!(providers.asked().len(), 2, "it is not for this registry");
}

#[tokio::test]
async fn what_a_registry_refused_is_forgotten_and_read_anew() {
    let providers = Providers::new();
    let password = providers.add_with_file("p", "r.io", &["answer", "Global", "1h", "r.io"]);
    fs::write(&password, "old").unwrap();
    let credentials = credentials(&providers, LIMIT);
    credentials.find(IMAGE).await;
    fs::write(&password, PASSWORD).unwrap();
    let keys = credentials.find(IMAGE).await;
    assert!(keys.found[0].credential.password == "old");
    credentials.forget(IMAGE, &keys.remembered);
    let keys = credentials.find(IMAGE).await;
    assert!(keys.found[0].credential.password == PASSWORD);
    assert!(keys.remembered.is_empty());
}

#[tokio::test]
async fn an_answer_that_is_not_to_be_kept_is_asked_for_each_time() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["answer", "Image", "0s", "r.io"]);
    let credentials = credentials(&providers, LIMIT);
    for _ in 0..2 {
        assert_eq!(sources(&credentials.find(IMAGE).await), ["provider p"]);
    }
    assert_eq!(providers.asked(), [IMAGE, IMAGE]);
}

#[tokio::test]
async fn a_credential_is_for_the_registry_that_it_names_and_no_other() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["answer", "Global", "1h", "q.io"]);
    let keys = credentials(&providers, LIMIT).find(IMAGE).await;
    assert_eq!(sources(&keys), [""; 0]);
    assert_eq!(keys.read.values().flatten().count(), 0, "{keys:?}");
}

#[tokio::test]
async fn a_provider_that_hangs_is_ended_with_its_children() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["hang"]);
    providers.add("q", "r.io", &["answer", "Image", "1h", "r.io"]);
    let limit = Duration::from_secs(2);
    let credentials = credentials(&providers, limit);
    let keys = credentials.find(IMAGE).await;
    assert_eq!(
        problem(&keys, "p"),
        "it did not answer within 2 s and was ended"
    );
    assert_eq!(sources(&keys), ["provider q"], "the others are asked");
    until_the_child_is_gone(&providers).await;
}

#[tokio::test]
async fn who_waited_for_a_provider_that_hung_does_not_wait_once_more() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["hang"]);
    let credentials = credentials(&providers, Duration::from_secs(2));
    let images = ["r.io/a", "r.io/b", "r.io/c"];
    let found = join_all(images.map(|image| credentials.find(image))).await;
    for keys in &found {
        assert!(problem(keys, "p").contains("did not answer"), "{keys:?}");
    }
    assert_eq!(providers.asked().len(), 1);
    until_the_child_is_gone(&providers).await;
}

#[tokio::test]
async fn a_provider_that_nobody_waits_for_any_more_is_ended_with_its_children() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["hang"]);
    let credentials = credentials(&providers, LIMIT);
    let started = wait_for("the child to run", SOON, async || {
        ensure!(providers.child_runs() == Some(true), "it does not run");
        Ok(())
    });
    tokio::select! {
        keys = credentials.find(IMAGE) => panic!("{keys:?}"),
        started = started => started.unwrap(),
    }
    until_the_child_is_gone(&providers).await;
}

async fn until_the_child_is_gone(providers: &Providers) {
    wait_for("the child to be gone", SOON, async || {
        ensure!(
            !providers.child_runs().context("there was none")?,
            "it runs"
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_provider_that_fails_is_explained_without_what_it_knows() {
    let providers = Providers::new();
    for mode in ["fail", "garble", "flood"] {
        providers.add(mode, "r.io", &[mode]);
    }
    providers.add_without_loader("dynamic", "r.io");
    let keys = credentials(&providers, LIMIT).find(IMAGE).await;
    assert_eq!(
        problem(&keys, "fail"),
        "exit status: 3: cannot log in as alice:… with password …"
    );
    assert_eq!(
        problem(&keys, "garble"),
        "its answer is not JSON: line 1, column 14"
    );
    assert_eq!(
        problem(&keys, "flood"),
        "it answered with more than 1 MiB and was ended"
    );
    let said = problem(&keys, "dynamic");
    assert!(
        said.contains("is there, but what starts it is not: the dynamic loader")
            && said.contains("node-credentials-libraries"),
        "{said}"
    );
    assert_eq!(sources(&keys), [""; 0]);
}

#[tokio::test]
async fn a_provider_that_needs_a_service_account_is_named_and_skipped() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["fail"]);
    let file = providers.config().join("p.json");
    let config = fs::read_to_string(&file).unwrap();
    let token = r#""tokenAttributes":{"requireServiceAccount":true},"args""#;
    fs::write(&file, config.replace("\"args\"", token)).unwrap();
    fs::remove_file(providers.bin().join("p")).unwrap();
    let keys = credentials(&providers, LIMIT).find(IMAGE).await;
    let said = problem(&keys, "p");
    assert!(
        said.contains("only the kubelet has: it is skipped"),
        "{said}"
    );
    assert!(providers.asked().is_empty());
}

#[tokio::test]
async fn the_docker_configuration_comes_first_and_is_read_again_when_it_is_old() {
    let providers = Providers::new();
    providers.add("p", "r.io", &["answer", "Image", "1h", "r.io"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let write = |password: &str| {
        let config =
            format!(r#"{{"auths":{{"r.io":{{"username":"u","password":"{password}"}}}}}}"#);
        let new = dir.path().join("new");
        fs::write(&new, config).unwrap();
        fs::rename(new, &file).unwrap();
    };
    write("old");
    let first = async |credentials: &NodeCredentials| {
        let keys = credentials.find(IMAGE).await;
        assert_eq!(sources(&keys), [file.to_str().unwrap(), "provider p"]);
        keys.found[0].credential.password.clone()
    };
    let with_docker = |folder: &Path, kept| {
        let mut credentials = credentials(&providers, LIMIT);
        credentials
            .read_docker_folders(&[folder.to_owned()], kept)
            .unwrap();
        credentials
    };
    let kept = with_docker(dir.path(), LIMIT);
    let read_each_time = with_docker(dir.path(), Duration::ZERO);
    assert!(first(&kept).await == "old" && first(&read_each_time).await == "old");
    write("new");
    assert!(first(&kept).await == "old" && first(&read_each_time).await == "new");
    kept.forget(IMAGE, &[NodeSource::DockerConfig].into());
    assert!(first(&kept).await == "new");

    // Broken later, it is named, and everything else goes on.
    fs::write(&file, PASSWORD).unwrap();
    let keys = read_each_time.find(IMAGE).await;
    assert_eq!(sources(&keys), ["provider p"]);
    let broken = keys.read[&NodeSource::DockerConfig].as_ref().unwrap();
    assert_eq!(broken.reason, Some(CredentialReason::InvalidSecret));
    let expected = format!("{}: it is not JSON: line 1, column 1", file.display());
    assert_eq!(broken.message, expected);
}
