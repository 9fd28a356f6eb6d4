//! What the kubelet's and containerd's parser says to the same texts.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::string::string_regex;

use super::*;

const SHA256: &str = "sha256:e6693c20186f837fc393390135d8a598a96a833917917789d63766cab6c59582";

fn parse(text: &str) -> Reference {
    Reference::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn refusal(text: &str) -> InvalidReference {
    match Reference::parse(text) {
        Ok(reference) => panic!("{text:?} parsed as {}", reference.key()),
        Err(error) => error,
    }
}

#[test]
fn the_key_is_what_containerd_stores_the_image_under() {
    let at_digest = |name: &str| format!("{name}@{SHA256}");
    for (written, key) in [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:latest", "docker.io/library/busybox:latest"),
        ("library/busybox", "docker.io/library/busybox:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("docker.io/busybox:1.36", "docker.io/library/busybox:1.36"),
        (
            "index.docker.io/busybox",
            "docker.io/library/busybox:latest",
        ),
        ("index.docker.io/a/b", "docker.io/a/b:latest"),
        (
            "index.docker.io",
            "docker.io/library/index.docker.io:latest",
        ),
        ("docker.io/library/a/b", "docker.io/library/a/b:latest"),
        ("docker.io:443/a", "docker.io:443/a:latest"),
        ("gcr.io/library/busybox", "gcr.io/library/busybox:latest"),
        ("registry/team/app", "docker.io/registry/team/app:latest"),
        // One component and a port are a repository and its tag.
        ("foo:5000", "docker.io/library/foo:5000"),
        ("localhost:5000", "docker.io/library/localhost:5000"),
        ("test.com", "docker.io/library/test.com:latest"),
        ("localhost/a", "localhost/a:latest"),
        ("localhost/a/b:1", "localhost/a/b:1"),
        ("test:5000/repo", "test:5000/repo:latest"),
        ("test:5000/repo:tag", "test:5000/repo:tag"),
        ("192.168.1.1:5000/repo:5050", "192.168.1.1:5000/repo:5050"),
        ("[2001:db8::1]/repo", "[2001:db8::1]/repo:latest"),
        ("[2001:db8::1]:5000/repo:tag", "[2001:db8::1]:5000/repo:tag"),
        // An uppercase first component is taken for a host.
        ("Docker/docker", "Docker/docker:latest"),
        (
            "LOCALDOMAIN/library/debian",
            "LOCALDOMAIN/library/debian:latest",
        ),
        (
            "lowercase:Uppercase",
            "docker.io/library/lowercase:Uppercase",
        ),
        // An underscore cannot be in a host; the whole is then a repository without a registry.
        ("a_b.c/d", "a_b.c/d:latest"),
        ("a_b/c", "docker.io/a_b/c:latest"),
        (
            "dock__er/docker---x",
            "docker.io/dock__er/docker---x:latest",
        ),
    ] {
        assert_eq!(parse(written).key(), key, "{written}");
    }
    for (written, name) in [
        ("busybox", "docker.io/library/busybox"),
        ("gcr.io/library/busybox:latest", "gcr.io/library/busybox"),
        ("test:5000/repo:tag", "test:5000/repo"),
    ] {
        assert_eq!(parse(&at_digest(written)).key(), at_digest(name));
    }
    // A digest without a name reads as a repository of that name with a tag.
    assert_eq!(parse(SHA256).key(), format!("docker.io/library/{SHA256}"));
}

#[test]
fn the_pull_form_is_the_text_as_written_with_a_tag_if_it_has_none() {
    let digested = format!("busybox@{SHA256}");
    let both = format!("test:5000/repo:1@{SHA256}");
    for (written, pull_form) in [
        ("busybox", "busybox:latest"),
        ("busybox:1.36", "busybox:1.36"),
        ("test:5000/repo", "test:5000/repo:latest"),
        ("test:5000/repo:tag", "test:5000/repo:tag"),
        ("index.docker.io/busybox", "index.docker.io/busybox:latest"),
        (&digested, &digested),
        (&both, &both),
    ] {
        assert_eq!(parse(written).pull_form(), pull_form);
    }
}

#[test]
fn the_parts_are_those_that_are_written_and_the_name_is_in_full() {
    let reference = parse(&format!("index.docker.io/busybox:1.36@{SHA256}"));
    assert_eq!(reference.name(), "docker.io/library/busybox");
    assert_eq!(reference.registry(), "docker.io");
    assert_eq!(reference.tag(), Some("1.36"));
    assert_eq!(reference.digest(), Some(SHA256));
    assert_eq!(reference.as_written(), reference.to_string());

    let reference = parse("[::1]:5000/a/b");
    assert_eq!(reference.registry(), "[::1]:5000");
    assert_eq!((reference.tag(), reference.digest()), (None, None));
}

#[test]
fn two_spellings_of_one_image_are_one_reference() {
    let spellings = [
        "busybox",
        "busybox:latest",
        "library/busybox",
        "docker.io/busybox",
        "index.docker.io/library/busybox:latest",
    ];
    assert_eq!(
        spellings
            .map(parse)
            .into_iter()
            .collect::<BTreeSet<_>>()
            .len(),
        1
    );
    assert_eq!(
        parse(&format!("a:1@{SHA256}")),
        parse(&format!("a@{SHA256}"))
    );
    assert_ne!(parse("a:1"), parse("a:2"));
}

#[test]
fn a_refusal_names_what_is_wrong() {
    use InvalidReference as E;
    let owned = str::to_owned;
    let sha256_of_length = |digits| format!("a@sha256:{}", "f".repeat(digits));
    for (written, expected) in [
        ("", E::Empty),
        (" ", E::Character(' ')),
        ("busybox ", E::Character(' ')),
        ("busybox\n", E::Character('\n')),
        ("büsybox", E::Character('ü')),
        ("aa/asdf$$^/aa", E::Character('$')),
        ("[fe80::1%eth0]:5000/repo", E::Character('%')),
        (
            "https://github.com/docker/docker",
            E::Scheme(owned("https://")),
        ),
        (&"0123456789abcdef".repeat(4), E::ImageId),
        ("-docker.io/docker", E::Registry(owned("-docker.io"))),
        ("fc00::1:5000/debian", E::Registry(owned("fc00::1:5000"))),
        (
            "[2001:db8:3:4::192.0.2.33]/a",
            E::Registry(owned("[2001:db8:3:4::192.0.2.33]")),
        ),
        ("A_b/c", E::Registry(owned("A_b"))),
        ("foo:tag/bar", E::Registry(owned("foo:tag"))),
        ("Uppercase:tag", E::Uppercase(owned("Uppercase"))),
        ("docker/Docker", E::Uppercase(owned("docker/Docker"))),
        ("test:5000/Up/low:tag", E::Uppercase(owned("Up/low"))),
        (":justtag", E::NoRepository),
        ("docker.io/", E::NoRepository),
        ("test:5000/:tag", E::NoRepository),
        ("/busybox", E::EmptyComponent(owned("/busybox"))),
        ("docker/", E::EmptyComponent(owned("docker/"))),
        (
            "docker///docker",
            E::EmptyComponent(owned("docker///docker")),
        ),
        ("-docker", E::Component(owned("-docker"))),
        ("dock_.er/docker", E::Registry(owned("dock_.er"))),
        ("docker/dock_.er", E::Component(owned("dock_.er"))),
        ("____/____", E::Component(owned("____"))),
        ("[2001:db8::1]:5000", E::Component(owned("[2001:db8::1]"))),
        ("a:b:c", E::Component(owned("a:b"))),
        (
            &format!("domain/{}:tag", "a".repeat(256)),
            E::RepositoryLength(263),
        ),
        ("busybox:", E::EmptyTag),
        (&format!("a:{}", "b".repeat(129)), E::TagLength(129)),
        ("a:-b", E::Tag(owned("-b"))),
        ("a:b+c", E::Tag(owned("b+c"))),
        ("a@", E::Digest(owned(""))),
        ("a@latest", E::Digest(owned("latest"))),
        (&format!("@{SHA256}"), E::NoRepository),
        (
            "a@md5:ffffffffffffffffffffffffffffffff",
            E::DigestAlgorithm(owned("md5")),
        ),
        ("a@SHA256:f", E::DigestAlgorithm(owned("SHA256"))),
        (
            &sha256_of_length(34),
            E::DigestLength {
                expected: 64,
                found: 34,
            },
        ),
        (
            &sha256_of_length(65),
            E::DigestLength {
                expected: 64,
                found: 65,
            },
        ),
        ("a@sha256:FF", E::DigestDigits(owned("FF"))),
        ("a@sha256:0g", E::DigestDigits(owned("0g"))),
        (
            &format!("a@{SHA256}@{SHA256}"),
            E::DigestDigits(format!("{}@{SHA256}", &SHA256[7..])),
        ),
    ] {
        assert_eq!(refusal(written), expected, "{written}");
    }
}

#[test]
fn the_messages_are_sentences_that_a_person_understands() {
    for (written, message) in [
        ("busybox ", "' ' cannot be part of an image reference"),
        (
            "https://ghcr.io/a/b",
            "\"https://\" has to go: a reference starts with the registry's host name",
        ),
        ("Busybox", "the repository \"Busybox\" has to be lowercase"),
        (
            "a@sha256:ff",
            "a digest of this algorithm has 64 hexadecimal digits, this one has 2",
        ),
    ] {
        assert_eq!(refusal(written).to_string(), message);
    }
}

#[test]
fn a_repository_has_at_most_255_characters_without_its_registry() {
    // `library/` counts, because it is part of what is asked for.
    for (prefix, most) in [
        ("example.com/", 255),
        ("", 247),
        ("a/", 253),
        ("a_b.c/", 249),
    ] {
        let of_length = |length| format!("{prefix}{}", "a".repeat(length));
        parse(&of_length(most));
        assert_eq!(
            refusal(&of_length(most + 1)),
            InvalidReference::RepositoryLength(256)
        );
    }
}

#[test]
fn an_image_id_is_refused_only_when_it_stands_alone() {
    let id = "0123456789abcdef".repeat(4);
    assert_eq!(refusal(&id), InvalidReference::ImageId);
    assert_eq!(
        parse(&format!("docker.io/{id}")).key(),
        format!("docker.io/library/{id}:latest")
    );
    parse(&format!("{id}:1"));
    parse(id.split_at(1).1);
    parse(&format!("{id}0"));
}

#[test]
fn the_three_algorithms_that_runtimes_know_have_digests() {
    for (algorithm, length) in [("sha256", 64), ("sha384", 96), ("sha512", 128)] {
        let digest = format!("{algorithm}:{}", "f".repeat(length));
        let reference = parse(&format!("test:5000/repo:tag@{digest}"));
        assert_eq!(reference.key(), format!("test:5000/repo@{digest}"));
        assert_eq!(reference.tag(), Some("tag"));
    }
}

/// References as they may be written, most of them in the grammar.
fn written() -> impl Strategy<Value = String> {
    let registry = "(([a-zA-Z0-9]([a-z0-9-]{0,5}[a-z0-9])?(\\.[a-z0-9]{1,3}){0,2}|\\[[0-9a-f]{0,4}:[0-9a-f:]{1,6}\\])(:[0-9]{1,5})?/)?";
    let repository = "[a-z0-9]{1,4}((\\.|_|__|-{1,3}|/)[a-z0-9]{1,4}){0,4}";
    let tag = "(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,8})?";
    let digest = "(@(sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}))?";
    string_regex(&format!("{registry}{repository}{tag}{digest}")).unwrap()
}

proptest! {
    #[test]
    fn no_text_panics(text in ".*") {
        let _ = Reference::parse(&text);
    }

    #[test]
    fn no_text_of_the_grammars_own_characters_panics(text in "[a-zA-Z0-9:/@._+\\[\\]-]{0,300}") {
        let _ = Reference::parse(&text);
    }

    #[test]
    fn a_reference_of_the_grammar_parses(text in written()) {
        prop_assert!(Reference::parse(&text).is_ok(), "{:?}", Reference::parse(&text));
    }

    #[test]
    fn the_key_means_the_same_image(text in written()) {
        let reference = parse(&text);
        prop_assert_eq!(parse(reference.key()), reference);
    }

    #[test]
    fn the_pull_form_means_the_same_image(text in written()) {
        let reference = parse(&text);
        let pulled = parse(&reference.pull_form());
        prop_assert_eq!(&pulled, &reference);
        prop_assert_eq!(pulled.pull_form(), reference.pull_form());
        prop_assert!(pulled.tag().is_some() || pulled.digest().is_some());
    }

    #[test]
    fn the_key_is_the_name_and_one_of_tag_and_digest(text in written()) {
        let reference = parse(&text);
        let rest = reference.key().strip_prefix(reference.name()).unwrap();
        let expected = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => format!("@{digest}"),
            (None, tag) => format!(":{}", tag.unwrap_or("latest")),
        };
        prop_assert_eq!(rest, expected);
        let (registry, _) = reference.name().split_once('/').unwrap();
        prop_assert_eq!(registry, reference.registry());
    }
}
