//! A second opinion on image references: the Go library that the kubelet and the runtimes parse with.

#![allow(clippy::unwrap_used)]

use std::iter;

use fastrand::Rng;
use imagecache_agent::image::Reference;
use serde::Deserialize;
use testbed::Oracle;

/// The same texts in each run. Another seed is as good.
const SEED: u64 = 20;

const TEXTS: usize = 50_000;

/// What Go makes of a text: an error, or the parts and the name that containerd stores the image under.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Answer {
    error: String,
    name: String,
    tag: String,
    digest: String,
    key: String,
}

impl Answer {
    fn ours(text: &str) -> Self {
        let owned = |part: Option<&str>| part.unwrap_or_default().to_owned();
        match Reference::parse(text) {
            Ok(reference) => Self {
                error: String::new(),
                name: reference.name().to_owned(),
                tag: owned(reference.tag()),
                digest: owned(reference.digest()),
                key: reference.key().to_owned(),
            },
            Err(error) => Self {
                error: error.to_string(),
                ..Self::default()
            },
        }
    }

    fn is_refusal(&self) -> bool {
        !self.error.is_empty()
    }

    /// Both refuse, whatever they say, or both find the same parts.
    fn agrees(&self, other: &Self) -> bool {
        self == other || (self.is_refusal() && other.is_refusal())
    }
}

#[test]
#[ignore = "needs the servers: make test"]
fn go_finds_the_same_parts_in_every_text() -> anyhow::Result<()> {
    let rng = &mut Rng::with_seed(SEED);
    let mut texts = edges();
    texts.extend(iter::repeat_with(|| any_text(rng)).take(TEXTS));

    let mut valid = 0;
    for (text, go) in texts
        .iter()
        .zip(Oracle::References.ask::<_, Answer>(&texts)?)
    {
        let ours = Answer::ours(text);
        assert!(ours.agrees(&go), "{text:?}\nours: {ours:?}\n  go: {go:?}");
        valid += usize::from(!go.is_refusal());
    }
    // The comparison is worth something only while there is enough of both.
    assert!(
        (TEXTS / 4..TEXTS * 3 / 4).contains(&valid),
        "{valid} are valid"
    );
    Ok(())
}

#[test]
#[ignore = "needs the servers: make test"]
fn go_reads_the_key_and_the_pull_form_as_the_image_that_was_written() -> anyhow::Result<()> {
    let rng = &mut Rng::with_seed(SEED);
    let references: Vec<_> = iter::repeat_with(|| reference(rng))
        .take(TEXTS / 5)
        .filter_map(|text| Reference::parse(&text).ok())
        .collect();
    let forms: Vec<_> = references
        .iter()
        .flat_map(|reference| [reference.key().to_owned(), reference.pull_form()])
        .collect();
    let keys = references.iter().flat_map(|reference| [reference.key(); 2]);
    let answers = Oracle::References.ask::<_, Answer>(&forms)?;
    for ((form, go), key) in forms.iter().zip(answers).zip(keys) {
        assert_eq!(go.key, key, "{form:?}: {go:?}");
        assert!(
            !(go.tag.is_empty() && go.digest.is_empty()),
            "{form:?}: {go:?}"
        );
    }
    Ok(())
}

/// Every length that has a limit, one below, at it and one above.
fn edges() -> Vec<String> {
    let around = |limit: usize| limit - 1..=limit + 1;
    let mut texts = vec![String::new()];
    for length in around(128) {
        for tag in ["a", "_", ".", "A"] {
            texts.push(format!("a:{}", tag.repeat(length)));
        }
    }
    for registry in [
        "",
        "docker.io/",
        "index.docker.io/",
        "localhost/",
        "a.b:5/",
        "a/",
        "a_b.c/",
    ] {
        for length in (240..=260).chain(490..=515) {
            texts.push(format!("{registry}{}", "a".repeat(length)));
            texts.push(format!("{registry}{}b:tag", "a/".repeat(length / 2)));
        }
    }
    for length in around(64) {
        for digit in ["a", "0", "A", "g"] {
            let digits = digit.repeat(length);
            for (before, behind) in [
                ("", ""),
                ("", ":1"),
                ("a/", ""),
                ("docker.io/", ""),
                ("", "/a"),
            ] {
                texts.push(format!("{before}{digits}{behind}"));
            }
        }
    }
    for algorithm in [
        "sha256",
        "sha384",
        "sha512",
        "SHA256",
        "md5",
        "sha256+b64",
        "",
        "0sha",
    ] {
        for length in [32, 64, 96, 128].into_iter().flat_map(around).chain([0]) {
            for digit in ["f", "0", "F", "g"] {
                let digest = format!("{algorithm}:{}", digit.repeat(length));
                texts.extend(
                    ["a@", "a:1@", "a.b:5/a@", "@", ""].map(|name| format!("{name}{digest}")),
                );
            }
        }
    }
    texts
}

fn any_text(rng: &mut Rng) -> String {
    match rng.u8(..10) {
        0..4 => reference(rng),
        4..9 => {
            let mut text: Vec<char> = reference(rng).chars().collect();
            for _ in 0..rng.usize(1..4) {
                mutate(rng, &mut text);
            }
            text.into_iter().collect()
        }
        _ => {
            let length = rng.usize(..24);
            iter::repeat_with(|| any_char(rng)).take(length).collect()
        }
    }
}

/// A text that is mostly in the grammar.
fn reference(rng: &mut Rng) -> String {
    let components = rng.usize(1..4);
    let repository: Vec<_> = iter::repeat_with(|| component(rng))
        .take(components)
        .collect();
    let mut text = registry(rng) + &repository.join("/");
    if rng.bool() {
        let length = rng.usize(..6);
        text.push(':');
        text.push(pick(rng, "aZ09_"));
        text.extend(iter::repeat_with(|| pick(rng, "aZ09_.-")).take(length));
    }
    if rng.u8(..3) == 0 {
        let (algorithm, length) = rng
            .choice([("sha256", 64), ("sha384", 96), ("sha512", 128)])
            .unwrap();
        text.push('@');
        text.push_str(algorithm);
        text.push(':');
        text.extend(iter::repeat_with(|| pick(rng, "0123456789abcdef")).take(length));
    }
    text
}

fn registry(rng: &mut Rng) -> String {
    let known = [
        "",
        "",
        "",
        "docker.io/",
        "index.docker.io/",
        "localhost/",
        "library/",
        "LOCALHOST/",
        "docker.io:443/",
        "Index.docker.io/",
        "[::1]/",
        "[2001:db8::1]:5000/",
        "[1]/",
        "[]:5/",
        "127.0.0.1:5000/",
        "a_b.c/",
        "a-b/",
        "a:5/",
    ];
    if rng.bool() {
        return (*rng.choice(&known).unwrap()).to_owned();
    }
    let labels = rng.usize(1..4);
    let mut text: Vec<String> = Vec::new();
    for _ in 0..labels {
        let length = rng.usize(1..4);
        text.push(
            iter::repeat_with(|| pick(rng, "abZ0-"))
                .take(length)
                .collect(),
        );
    }
    let port = if rng.bool() {
        format!(":{}", rng.u32(..70_000))
    } else {
        String::new()
    };
    format!("{}{port}/", text.join("."))
}

fn component(rng: &mut Rng) -> String {
    let mut text = pick(rng, "abz09").to_string();
    for _ in 0..rng.usize(..3) {
        text.push_str(rng.choice(["", ".", "_", "__", "-", "---"]).unwrap());
        text.push(pick(rng, "abz09"));
    }
    text
}

fn mutate(rng: &mut Rng, text: &mut Vec<char>) {
    let at = rng.usize(..=text.len());
    match rng.u8(..6) {
        0 => text.insert(at, any_char(rng)),
        1 => text.truncate(at),
        2 => text.rotate_left(at),
        3 => {
            let repeated = text.get(at..).unwrap_or_default().to_vec();
            text.extend(repeated);
        }
        _ => {
            if let Some(replaced) = text.get_mut(at) {
                *replaced = match rng.u8(..4) {
                    0 => replaced.to_ascii_uppercase(),
                    _ => any_char(rng),
                };
            }
        }
    }
}

/// The grammar's own characters above all, and a few that have no place in it.
fn any_char(rng: &mut Rng) -> char {
    match rng.u8(..20) {
        0 => pick(rng, " \t\n\0\"$%\\ßİéſK日🐳\u{2028}\u{feff}"),
        1..9 => pick(rng, ":/@._-+[]"),
        9..11 => pick(rng, "AFZ"),
        _ => pick(rng, "abfgz059"),
    }
}

fn pick(rng: &mut Rng, from: &str) -> char {
    from.chars().nth(rng.usize(..from.chars().count())).unwrap()
}
