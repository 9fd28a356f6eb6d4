//! Images, and keys of registries that cover them often enough.

use fastrand::Rng;
use imagecache_agent::image::Reference;

/// As the kubelet looks them up: registry and repository in full.
pub fn image(rng: &mut Rng) -> String {
    let registry = pick(
        rng,
        &[
            "",
            "docker.io/",
            "index.docker.io/",
            "localhost/",
            "localhost:5000/",
            "r.io/",
            "quay.io/",
            "a.r.io/",
            "a-b.c.r.io/",
            "R.io/",
            "r.io:5000/",
            "r.io:443/",
            "127.0.0.1:5000/",
            "[::1]:5000/",
            "[::1]/",
            "[fe80::1]:443/",
            "1.io/",
            "r/",
            "r:80/",
        ],
    );
    let repository = pick(
        rng,
        &[
            "app",
            "team/app",
            "team/sub/app",
            "coreos/etcd",
            "v1/app",
            "v2/app",
            "library/busybox",
            "a/b",
            "team-2/app",
        ],
    );
    let reference = Reference::parse(&format!("{registry}{repository}")).unwrap();
    reference.name().to_owned()
}

/// One that often covers the image.
pub fn key(rng: &mut Rng, image: &str) -> String {
    let (host, path) = image.split_once('/').unwrap();
    let scheme = match rng.u8(..20) {
        0 => pick(
            rng,
            &[
                "HTTPS://",
                "ftp://",
                "https:/",
                "//",
                "https://https://",
                "http:",
                " ",
            ],
        ),
        1..6 => "https://",
        6..9 => "http://",
        _ => "",
    };
    let user = match rng.u8(..40) {
        0 => pick(
            rng,
            &[
                "u@", "u:p@", "u%20@", "u u@", "@", "u:@", "a@b@", "ü@", "%@", "u/@",
            ],
        ),
        _ => "",
    };
    let mut key = format!(
        "{scheme}{user}{}{}",
        host_key(rng, host),
        path_key(rng, path)
    );
    if rng.u8(..10) == 0 {
        let at = boundary(rng, &key);
        key.insert(at, any_char(rng));
    }
    key
}

fn host_key(rng: &mut Rng, host: &str) -> String {
    if host.starts_with("docker.io") && rng.bool() {
        return pick(
            rng,
            &[
                "index.docker.io",
                "registry-1.docker.io",
                "docker.io",
                "*.docker.io",
                "*.io",
            ],
        )
        .to_owned();
    }
    match rng.u8(..20) {
        0..8 => host.to_owned(),
        8 => host.to_uppercase(),
        9 => host.to_lowercase(),
        10 => pick(
            rng,
            &[
                "",
                "r.io",
                "quay.io",
                "*",
                "*.*",
                "*.io",
                "[::1]",
                "[::1",
                "::1",
                "[*]:5000",
                "[::1%25en0]",
                "r.io.",
                "a:1:2",
                "*:5000",
                "r.io:x",
                "r.io:",
            ],
        )
        .to_owned(),
        11 => format!(
            "{host}:{}",
            pick(rng, &["", "5000", "443", "*", "05000", "-1"])
        ),
        12 => host
            .rsplit_once(':')
            .map_or(host, |(host, _)| host)
            .to_owned(),
        _ => {
            let labels: Vec<_> = host.split('.').map(|label| pattern(rng, label)).collect();
            labels.join(".")
        }
    }
}

/// A pattern for a part of a host name; without sets of characters, which the kubelet refuses there.
fn pattern(rng: &mut Rng, label: &str) -> String {
    let mut patterned = String::new();
    for c in label.chars() {
        match rng.u8(..16) {
            0 => patterned.push('*'),
            1 => patterned.push('?'),
            2 => patterned.extend(['\\', c]),
            3 => patterned.extend([c, '*']),
            4 => {}
            _ => patterned.push(c),
        }
    }
    if rng.u8(..4) == 0 {
        "*".to_owned()
    } else {
        patterned
    }
}

fn path_key(rng: &mut Rng, path: &str) -> String {
    let part = path.get(..rng.usize(..=path.len())).unwrap_or_default();
    match rng.u8(..24) {
        0..8 => String::new(),
        8 => "/".to_owned(),
        9 => pick(
            rng,
            &[
                "/v1/", "/v2/", "/v1", "/v2", "/v1//", "/v3/", "/v1/v2/", "//",
            ],
        )
        .to_owned(),
        10 => format!("/v1/{part}"),
        11 => format!("/v2/{part}"),
        12..16 => format!("/{path}"),
        16..20 => format!("/{part}"),
        20 => format!("/{part}/"),
        21 => format!(
            "/{}",
            path.replace('/', pick(rng, &["%2F", "%2f", "%252F", "//", "/./", "%"]))
        ),
        22 => format!(
            "/{part}{}",
            pick(
                rng,
                &[
                    "*", "?", "?a=b", "#a", "%3F", "%23x", "%zz", "%", "%ff", "%00", " ", "..",
                    "[", "\\"
                ]
            )
        ),
        _ => pick(rng, &["?a", "#a", "?", "#", "%2F", "\\", "/%76%31/"]).to_owned(),
    }
}

pub fn any_char(rng: &mut Rng) -> char {
    let all = ":/@.*?]\\-%#&=+ \t\n\0\u{7f}\"<>{}|^`~!$'(),;azAZ09üİK日🐳\u{2028}";
    all.chars().nth(rng.usize(..all.chars().count())).unwrap()
}

pub fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    rng.choice(from.iter().copied()).unwrap()
}

/// A place where a character can be put in.
pub fn boundary(rng: &mut Rng, text: &str) -> usize {
    let boundaries: Vec<_> = (0..=text.len())
        .filter(|at| text.is_char_boundary(*at))
        .collect();
    *rng.choice(&boundaries).unwrap()
}
