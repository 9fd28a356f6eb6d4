//! What a runtime that is no containerd, or no runtime at all, comes to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod fake_cri;

use std::path::Path;
use std::time::{Duration, Instant};

use fake_cri::{FakeCri, Pull, connections, endpoint, listen};
use imagecache_agent::api::reason::Reason;
use imagecache_agent::runtime::{
    Containerd, PullError, Runtime, RuntimeError, Unavailable, discover_among,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

const TIMEOUT: Duration = Duration::from_secs(5);

fn runtime(path: &Path) -> Runtime {
    Runtime::new(endpoint(path), TIMEOUT)
}

async fn unavailable(runtime: &Runtime) -> Unavailable {
    match runtime.version().await {
        Err(RuntimeError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_runtime_without_containerds_services_does_everything_else() {
    let fake = FakeCri::start();
    let runtime = Runtime::new(fake.endpoint(), TIMEOUT);

    assert_eq!(runtime.version().await.unwrap().name, "fake");
    assert!(
        runtime
            .status()
            .await
            .unwrap()
            .iter()
            .all(|condition| condition.holds)
    );
    assert!(Containerd::ask(&runtime).await.unwrap().is_none());

    assert_eq!(runtime.image("r.example/x:1").await.unwrap(), None);
    let id = runtime.pull("r.example/x:1", None).await.unwrap();
    assert_eq!(
        runtime.image("r.example/x:1").await.unwrap().unwrap().id,
        id
    );
    assert_eq!(runtime.list().await.unwrap().len(), 1);
    assert_eq!(runtime.platform("r.example/x:1").await.unwrap(), None);
    runtime.remove("r.example/x:1").await.unwrap();
    assert_eq!(runtime.list().await.unwrap(), []);
}

#[tokio::test]
async fn an_answer_that_never_comes_ends_at_the_time_limit_and_the_next_one_is_heard() {
    let fake = FakeCri::start();
    let runtime = Runtime::new(fake.endpoint(), Duration::from_millis(100));
    fake.be_silent(true);
    let started = Instant::now();
    let why = unavailable(&runtime).await;
    assert!(matches!(why, Unavailable::Silent { .. }), "{why:?}");
    assert!(started.elapsed() < TIMEOUT);
    fake.be_silent(false);
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn a_pull_has_no_time_limit_and_ends_when_it_is_dropped() {
    let fake = FakeCri::start();
    let runtime = Runtime::new(fake.endpoint(), Duration::from_millis(50));
    fake.on_pull("r.example/x:1", Pull::Hangs);
    let pull = tokio::time::timeout(
        Duration::from_millis(500),
        runtime.pull("r.example/x:1", None),
    );
    pull.await.expect_err("the pull ended by itself");
    wait_for("the runtime hears of it", || fake.cancelled() == 1).await;
}

#[tokio::test]
async fn a_runtime_that_ends_during_a_pull_is_gone_and_comes_back_by_itself() {
    let mut fake = FakeCri::start();
    let runtime = Runtime::new(fake.endpoint(), TIMEOUT);
    fake.on_pull("r.example/x:1", Pull::Hangs);
    let pull = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.pull("r.example/x:1", None).await }
    });
    wait_for("the pull has begun", || {
        fake.requests()
            .contains(&"PullImage r.example/x:1".to_owned())
    })
    .await;

    fake.stop();
    let error = pull.await.unwrap().unwrap_err();
    assert!(
        matches!(error, PullError::Unavailable(Unavailable::Gone { .. })),
        "{error:?}"
    );
    let why = unavailable(&runtime).await;
    assert!(matches!(why, Unavailable::Refused { .. }), "{why:?}");

    fake.start_again();
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn what_the_runtime_says_about_a_pull_is_classified() {
    let fake = FakeCri::start();
    let runtime = Runtime::new(fake.endpoint(), TIMEOUT);
    let text = "failed to pull and unpack image \"r.example/x:1\": failed to resolve image: r.example/x:1: not found";
    fake.on_pull(
        "r.example/x:1",
        Pull::Fails(Code::NotFound, text.to_owned()),
    );
    match runtime.pull("r.example/x:1", None).await.unwrap_err() {
        PullError::Failed { reason, message } => {
            assert_eq!(reason, Reason::NotFound);
            assert!(message.ends_with("r.example/x:1: not found"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    fake.on_pull(
        "r.example/x:1",
        Pull::Fails(Code::NotFound, "lease does not exist: not found".to_owned()),
    );
    assert_eq!(
        runtime.pull("r.example/x:1", Some("gone")).await,
        Err(PullError::NoLease)
    );
}

#[tokio::test]
async fn a_runtime_that_starts_is_not_ready() {
    let fake = FakeCri::start();
    let runtime = Runtime::new(fake.endpoint(), TIMEOUT);
    for code in [Code::Unknown, Code::Unavailable] {
        fake.on_pull(
            "r.example/x:1",
            Pull::Fails(code, "server is not initialized yet".to_owned()),
        );
        let error = runtime.pull("r.example/x:1", None).await.unwrap_err();
        assert!(
            matches!(error, PullError::Unavailable(Unavailable::NotReady { .. })),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_runtime_is_named_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    drop(listen(&at("stale")));
    let _datagrams = std::os::unix::net::UnixDatagram::bind(at("datagrams")).unwrap();

    for (name, expected) in [
        ("nothing", "there is no socket at"),
        ("file/below", "there is no socket at"),
        ("folder", "it is a folder"),
        ("file", "it is not a socket"),
        ("stale", "nobody listens on"),
        ("datagrams", "it is not a stream socket"),
    ] {
        let said = unavailable(&runtime(&at(name))).await.to_string();
        assert!(
            said.contains(expected) && said.contains(at(name).to_str().unwrap()),
            "{name}: {said}"
        );
    }
}

/// Servers that speak something else.
#[tokio::test]
async fn a_server_that_does_not_speak_the_cri_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, answer) in [
        (
            "http1",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ),
        ("ssh", "SSH-2.0-OpenSSH_9.2\r\n"),
        ("garbage", "{\"error\": \"this is no frame of HTTP/2\"}"),
    ] {
        let listener = listen(&at(name));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut preface = [0; 24];
                let _ = stream.read_exact(&mut preface).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                // Reads on, as a server that waits for the rest of a request does.
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
        });
        let why = unavailable(&runtime(&at(name))).await;
        assert!(matches!(why, Unavailable::NotCri { .. }), "{name}: {why:?}");
    }

    // A gRPC server with other services, such as Docker's own containerd.
    let server = tonic::transport::Server::builder()
        .add_routes(tonic::service::Routes::default())
        .serve_with_incoming(connections(listen(&at("grpc"))));
    tokio::spawn(server);
    let why = unavailable(&runtime(&at("grpc"))).await;
    assert!(matches!(why, Unavailable::NotCri { .. }), "{why:?}");
}

#[tokio::test]
async fn the_first_socket_that_answers_is_taken_and_the_others_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = endpoint(&folder.path().join("nowhere"));
    let stale = endpoint(&folder.path().join("stale"));
    drop(listen(stale.path()));
    let fake = FakeCri::start();

    let places = [
        ("one", nowhere.clone()),
        ("two", stale.clone()),
        ("three", fake.endpoint()),
    ];
    let found = discover_among(places, TIMEOUT).await.unwrap();
    assert_eq!(found.runtime.endpoint(), &fake.endpoint());
    assert_eq!(found.version.name, "fake");

    let nothing = discover_among([("one", nowhere), ("two", stale)], TIMEOUT)
        .await
        .unwrap_err();
    assert_eq!(nothing.tried.len(), 2);
    let said = nothing.to_string();
    assert!(said.contains("--runtime-endpoint"), "{said}");
    assert!(said.contains("nowhere (one): not there"), "{said}");
    assert!(said.contains("two: nobody listens on"), "{said}");
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
