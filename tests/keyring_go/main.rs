//! A second opinion on pull secrets: the kubelet's own code, asked which credentials it would try for an image.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod configs;
mod keys;

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use imagecache_agent::credentials::{Entry, InvalidConfig, InvalidSecret, Keyring, secret};
use serde::{Deserialize, Serialize};
use serde_json::json;
use testbed::Oracle;

/// The same cases in each run. Another seed is as good.
const SEED: u64 = 20;

const CASES: usize = 20_000;

/// A pull secret: its type and its data.
#[derive(Clone, Debug)]
struct Secret {
    name: String,
    kind: &'static str,
    data: Vec<u8>,
}

impl Secret {
    fn config_json(name: &str, data: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.to_owned(),
            kind: "kubernetes.io/dockerconfigjson",
            data: data.into(),
        }
    }

    fn key(&self) -> &'static str {
        match self.kind {
            "kubernetes.io/dockercfg" => ".dockercfg",
            _ => ".dockerconfigjson",
        }
    }

    /// What we read in it.
    fn read(&self) -> Result<Vec<Entry>, InvalidSecret> {
        secret::read(
            self.kind,
            &BTreeMap::from([(self.key().to_owned(), &self.data)]),
        )
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = json!({self.key(): STANDARD.encode(&self.data)});
        json!({"metadata": {"name": self.name}, "type": self.kind, "data": data})
            .serialize(serializer)
    }
}

/// What the kubelet is asked, and we are.
#[derive(Clone, Debug, Serialize)]
struct Case {
    image: String,
    secrets: Vec<Secret>,
}

/// An error, or what is tried, in this order.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Answer {
    error: String,
    found: Vec<Found>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Found {
    secret: String,
    username: String,
    password: String,
}

/// What we find in the Secrets that can be read.
fn ours(case: &Case) -> Vec<Found> {
    let mut keyring = Keyring::default();
    for secret in &case.secrets {
        keyring.add(
            &secret.name.as_str().into(),
            secret.read().unwrap_or_default(),
        );
    }
    let found = keyring.lookup(&case.image).into_iter();
    found
        .map(|named| Found {
            secret: named.source.to_string(),
            username: named.credential.username,
            password: named.credential.password,
        })
        .collect()
}

fn ask(cases: &[Case]) -> anyhow::Result<Vec<Answer>> {
    Oracle::Keyring.ask(cases)
}

fn cases(number: usize, one: fn(&mut Rng) -> Case) -> Vec<Case> {
    let rng = &mut Rng::with_seed(SEED);
    std::iter::repeat_with(|| one(rng)).take(number).collect()
}

/// Fails with the first few of what went wrong.
fn none(wrong: &[String]) {
    let (number, first) = (wrong.len(), wrong.iter().take(12));
    let first: Vec<_> = first.map(String::as_str).collect();
    assert!(
        number == 0,
        "{number} cases, of which the first are:\n{}",
        first.join("\n\n")
    );
}

fn shown(case: &Case) -> String {
    let secrets: Vec<_> = case
        .secrets
        .iter()
        .map(|secret| {
            format!(
                "  {} {}: {}",
                secret.name,
                secret.kind,
                secret.data.escape_ascii()
            )
        })
        .collect();
    format!("{}\n{}", case.image, secrets.join("\n"))
}

#[test]
#[ignore = "needs the servers: make test"]
fn what_can_be_read_is_tried_in_the_kubelets_order() -> anyhow::Result<()> {
    // The kubelet refuses them all together if it refuses one: it is asked about those that we can read.
    let mut cases = cases(CASES, configs::case);
    for case in &mut cases {
        case.secrets.retain(|secret| secret.read().is_ok());
    }
    let (mut wrong, mut several) = (Vec::new(), 0);
    for (case, kubelet) in cases.iter().zip(ask(&cases)?) {
        let ours = ours(case);
        if !kubelet.error.is_empty() || ours != kubelet.found {
            wrong.push(format!(
                "{}\nours: {ours:?}\nthe kubelet's: {kubelet:?}",
                shown(case)
            ));
        }
        several += usize::from(kubelet.found.len() > 1);
    }
    none(&wrong);
    // The comparison is worth something only while there is an order.
    assert!(several > CASES / 5, "{several} cases with an order");
    Ok(())
}

#[test]
#[ignore = "needs the servers: make test"]
fn the_secrets_that_are_named_as_broken_are_those_that_the_kubelet_refuses() -> anyhow::Result<()> {
    let cases = cases(CASES, configs::alone);
    let (mut wrong, mut broken) = (Vec::new(), 0);
    for (case, kubelet) in cases.iter().zip(ask(&cases)?) {
        let secret = &case.secrets[0];
        let ours = secret.read();
        let agrees = match &ours {
            Ok(_) => kubelet.error.is_empty(),
            // See below.
            Err(InvalidSecret::Data(_, InvalidConfig::NoText(_))) => true,
            Err(InvalidSecret::Data(..)) => !kubelet.error.is_empty(),
            // The kubelet passes over these without a word.
            Err(InvalidSecret::Type(_) | InvalidSecret::NoData(_)) => kubelet == Answer::default(),
        };
        if !agrees {
            let ours = ours.map(|entries| entries.len());
            wrong.push(format!(
                "{}\nours: {ours:?}\nthe kubelet's: {kubelet:?}",
                shown(case)
            ));
        }
        broken += usize::from(!kubelet.error.is_empty());
    }
    none(&wrong);
    assert!(
        (CASES / 5..CASES * 4 / 5).contains(&broken),
        "{broken} are broken"
    );
    Ok(())
}

/// What the kubelet finds for `r.io/app` in a Secret, and what we find; `None`: refused.
type Difference = (&'static str, Vec<u8>, Option<usize>, Option<usize>);

fn on_purpose() -> Vec<Difference> {
    let auths = |entries: &str| format!(r#"{{"auths": {{{entries}}}}}"#).into_bytes();
    let no_text = STANDARD.encode(b"u:\xff");
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    vec![
        // Nobody reads these fields: a Secret is worth no less for them.
        (
            "an e-mail that is no text",
            auths(r#""r.io": {"email": 7}"#),
            None,
            Some(1),
        ),
        (
            "headers that are no texts",
            br#"{"HttpHeaders": 7, "auths": {"r.io": {}}}"#.to_vec(),
            None,
            Some(1),
        ),
        // Documented by Kubernetes, and lost to a kubelet whose Go (as of 1.26) takes every bracket in a URL for an IPv6 address.
        (
            "a set of characters in a host",
            auths(r#""r.i[n-p]": {}"#),
            Some(0),
            Some(1),
        ),
        // A runtime is spoken to in UTF-8: what is none cannot be sent, and Go's parser puts another character in its place.
        (
            "a password that is no text",
            auths(&format!(r#""r.io": {{"auth": "{no_text}"}}"#)),
            Some(1),
            None,
        ),
        (
            "a Secret that is no text",
            [&auths("")[..11], b"\"r.io\": {\"username\": \"\xff\"}}}"].concat(),
            Some(1),
            None,
        ),
        (
            "half a character",
            auths(r#""r.io": {"username": "\ud800"}"#),
            Some(1),
            None,
        ),
        // What no tool writes. Of two entries under one key the last counts, for both of us; the kubelet minds the first all the same.
        (
            "a broken entry, and another in its place",
            auths(r#""r.io": 7, "r.io": {}"#),
            None,
            Some(1),
        ),
        (
            "brackets without an end",
            auths(&format!(r#""r.io": {{"x": {deep}}}"#)),
            Some(1),
            None,
        ),
        (
            "a number without an end",
            auths(r#""r.io": {"x": 1e999}"#),
            Some(1),
            None,
        ),
    ]
}

#[test]
#[ignore = "needs the servers: make test"]
fn where_we_differ_from_the_kubelet_it_is_on_purpose() -> anyhow::Result<()> {
    let image = "r.io/app".to_owned();
    for (what, data, kubelets, expected) in on_purpose() {
        let secret = Secret::config_json("alone", data);
        let ours = secret.read().is_ok();
        let case = Case {
            image: image.clone(),
            secrets: vec![secret],
        };
        let kubelet = &ask(std::slice::from_ref(&case))?[0];
        let found = kubelet.error.is_empty().then_some(kubelet.found.len());
        assert_eq!(found, kubelets, "{what}: the kubelet: {kubelet:?}");
        assert_eq!(ours.then(|| self::ours(&case).len()), expected, "{what}");
    }

    // Of several Secrets the kubelet refuses all for one. We name that one, and try the others.
    let good = Secret::config_json(
        "good",
        r#"{"auths": {"r.io": {"username": "u", "password": "p"}}}"#,
    );
    let broken = Secret::config_json("broken", r#"{"auths": {"other.io": {"auth": "%"}}}"#);
    let case = Case {
        image,
        secrets: vec![broken.clone(), good],
    };
    assert!(!ask(std::slice::from_ref(&case))?[0].error.is_empty());
    assert!(broken.read().is_err());
    let found: Vec<_> = ours(&case).into_iter().map(|found| found.secret).collect();
    assert_eq!(found, ["good"]);
    Ok(())
}
