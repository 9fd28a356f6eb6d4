//! Configurations that are read, and what is said of those that are not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;

const PROVIDER: &str = "name: ecr\n  matchImages: ['*.dkr.ecr.*.amazonaws.com']\n  \
    defaultCacheDuration: 12h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1";

fn config(provider: &str) -> String {
    format!(
        "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n- {provider}\n"
    )
}

fn error(text: &str) -> String {
    let error = parse(text.as_bytes(), Path::new("f.yaml")).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    error.to_string()
}

#[test]
fn a_configuration_is_read() {
    let text = config(PROVIDER)
        + "  args: [get-credentials, -v]\n  env:\n  - {name: A, value: hunter2}\n  - name: B\n"
        + "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}\n";
    let providers = parse(text.as_bytes(), Path::new("f.yaml")).unwrap();
    let env = [("A", "hunter2"), ("B", "")];
    let expected = ProviderConfig {
        name: "ecr".to_owned(),
        match_images: vec!["*.dkr.ecr.*.amazonaws.com".to_owned()],
        default_cache_duration: Duration::from_hours(12),
        api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
        args: vec!["get-credentials".to_owned(), "-v".to_owned()],
        env: env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        needs_service_account: true,
    };
    assert!(providers == [expected], "{providers:?}");
    assert!(!format!("{providers:?}").contains("hunter2"));
    let json = r#"{"kind":"CredentialProviderConfig","apiVersion":"kubelet.config.k8s.io/v1beta1","providers":[
        {"name":"a","matchImages":["*"],"defaultCacheDuration":"0s","args":null,
         "apiVersion":"credentialprovider.kubelet.k8s.io/v1alpha1"}]}"#;
    let providers = parse(json.as_bytes(), Path::new("f.json")).unwrap();
    assert_eq!(providers[0].default_cache_duration, Duration::ZERO);
}

#[test]
fn what_is_wrong_is_named_with_its_field_and_its_value_is_not_quoted() {
    let with = |more: &str| config(&format!("{PROVIDER}\n  {more}"));
    let but = |from: &str, to: &str| config(PROVIDER).replace(from, to);
    for (text, expected) in [
        (String::new(), "document: has a wrong type"),
        ("hunter2".to_owned(), "document: has a wrong type"),
        (
            "kind: {hunter2\n".to_owned(),
            "it is not one document of YAML or JSON: line 1, column 7",
        ),
        (
            but("CredentialProviderConfig", "hunter2"),
            "kind: it has to be CredentialProviderConfig",
        ),
        (
            but("kubelet.config.k8s.io/v1", "hunter2"),
            "apiVersion: it has to be one of kubelet.config.k8s.io/v1, kubelet.config.k8s.io/v1beta1, kubelet.config.k8s.io/v1alpha1",
        ),
        (
            "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\n".to_owned(),
            "providers: at least one is needed",
        ),
        (
            config(PROVIDER) + "hunter: hunter2\n",
            "hunter: there is no such field",
        ),
        (
            with("args: []\n  args: [hunter2]"),
            "it is not one document of YAML or JSON: line 9, column 3",
        ),
        (
            with("password: hunter2"),
            "providers[0].password: there is no such field",
        ),
        (
            with("env: [{name: A, valu: hunter2}]"),
            "providers[0].env[0].valu: there is no such field",
        ),
        (
            with("env: [{name: A, value: {hunter2: hunter2}}]"),
            "providers[0].env[0].value: has a wrong type",
        ),
        (
            with("env: [{value: hunter2}]"),
            "providers[0].env[0].name: it has to be the name of a variable",
        ),
        (with("args: hunter2"), "providers[0].args: has a wrong type"),
        (
            with("tokenAttributes: {serviceAccountTokenAudience: a}"),
            "providers[0].tokenAttributes.requireServiceAccount: true or false is needed",
        ),
        (
            with("tokenAttributes: {requireServiceAccount: true}")
                .replace("config.k8s.io/v1", "config.k8s.io/v1beta1"),
            "providers[0].tokenAttributes: only v1 of both kinds has this field",
        ),
        (
            but("name: ecr", "name: ../hunter2"),
            "providers[0].name: it has to be the name of a program, without a path and spaces",
        ),
        (
            but("['*.dkr.ecr.*.amazonaws.com']", "[]"),
            "providers[0].matchImages: at least one is needed",
        ),
        (
            but("*.dkr.ecr.*.amazonaws.com", "r.io:x"),
            "providers[0].matchImages[0]: it is no registry, nor a pattern of one",
        ),
        (
            but("12h", "-12h"),
            "providers[0].defaultCacheDuration: a length of time is needed, such as 12h, 10m or 0s",
        ),
        (
            but("defaultCacheDuration: 12h", "args: []"),
            "providers[0].defaultCacheDuration: a length of time is needed, such as 12h, 10m or 0s",
        ),
        (
            but("credentialprovider.kubelet.k8s.io/v1", "v1"),
            "providers[0].apiVersion: it has to be one of credentialprovider.kubelet.k8s.io/v1, credentialprovider.kubelet.k8s.io/v1beta1, credentialprovider.kubelet.k8s.io/v1alpha1",
        ),
    ] {
        assert_eq!(error(&text), format!("f.yaml: {expected}"), "{text}");
    }
}

#[test]
fn the_files_of_a_folder_are_read_in_the_order_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, provider: &str| {
        let text = config(&PROVIDER.replace("ecr\n", &format!("{provider}\n")));
        fs::write(dir.path().join(name), text).unwrap();
    };
    let said = || read(dir.path()).unwrap_err().to_string();
    assert!(said().ends_with("there is no *.json, *.yaml or *.yml in it"));
    write("20.yaml", "b");
    write("10.yml", "c");
    write("notes.txt", "d");
    fs::create_dir(dir.path().join("30.yaml")).unwrap();
    let names: Vec<_> = read(dir.path())
        .unwrap()
        .into_iter()
        .map(|placed| placed.provider.name)
        .collect();
    assert_eq!(names, ["c", "b"]);
    write("40.json", "c");
    let words = "40.json: providers[0].name: \"c\" is the name of an earlier provider";
    assert!(said().ends_with(words), "{}", said());
    let missing = read(&dir.path().join("none")).unwrap_err().to_string();
    assert!(missing.ends_with("none: it cannot be read"), "{missing}");
}
