//! Pull secrets, of which some are not quite in order.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use fastrand::Rng;
use serde_json::{Value, json};

use super::keys::{any_char, boundary, image, key, pick};
use super::{Case, Secret};

/// A few Secrets and an image.
pub fn case(rng: &mut Rng) -> Case {
    let image = image(rng);
    let secrets = (0..rng.usize(1..4)).map(|n| secret(rng, &image, &format!("s{n}"), 1));
    Case {
        secrets: secrets.collect(),
        image,
    }
}

/// One Secret, that is broken more often than not.
pub fn alone(rng: &mut Rng) -> Case {
    let image = image(rng);
    Case {
        secrets: vec![secret(rng, &image, "alone", 12)],
        image,
    }
}

/// `nasty`: of a hundred places where something can be wrong, in so many it is.
fn secret(rng: &mut Rng, image: &str, name: &str, nasty: u8) -> Secret {
    let old = rng.u8(..5) == 0;
    let entries = entries(rng, image, nasty);
    let mut text = if old {
        entries
    } else {
        config(rng, &entries, nasty)
    };
    if rng.u8(..100) < nasty {
        text = mangled(rng, text);
    }
    Secret {
        kind: match rng.u8(..40) {
            0 => "Opaque",
            _ if old => "kubernetes.io/dockercfg",
            _ => "kubernetes.io/dockerconfigjson",
        },
        ..Secret::config_json(name, text)
    }
}

fn config(rng: &mut Rng, entries: &str, nasty: u8) -> String {
    if rng.u8(..100) < nasty {
        return pick(
            rng,
            &[
                r#"{"auths": null}"#,
                r#"{"auths": []}"#,
                r#"{"auths": "r.io"}"#,
                r#"{"auths": {"r.io": null}}"#,
                r#"{"auths": {"r.io": []}}"#,
                r#"{"auths": {"r.io": "x"}}"#,
                r#"{"auths": {"": {}}}"#,
                r#"{"auth": {}}"#,
                r#"{"credsStore": "desktop", "credHelpers": {"r.io": "x"}}"#,
                "null",
                "[]",
                "7",
                r#""auths""#,
                "{}",
                "",
            ],
        )
        .to_owned();
    }
    let before = pick(
        rng,
        &[
            "",
            "",
            "",
            r#""credsStore": "desktop", "#,
            r#""HttpHeaders": {"a": "b"}, "#,
            r#""auths": null, "#,
        ],
    );
    let name = if rng.u8(..100) < nasty {
        "Auths"
    } else {
        "auths"
    };
    format!("{{{before}\"{name}\": {entries}}}")
}

fn entries(rng: &mut Rng, image: &str, nasty: u8) -> String {
    // Each key once: what comes of two is said beside the other differences.
    let keys: BTreeSet<_> = (0..rng.usize(..6)).map(|_| key(rng, image)).collect();
    let entries: Vec<_> = (0..)
        .zip(keys)
        .map(|(n, key)| format!("{}: {}", Value::from(key), entry(rng, n, nasty)))
        .collect();
    format!("{{{}}}", entries.join(", "))
}

fn entry(rng: &mut Rng, number: u8, nasty: u8) -> String {
    let user = pick(rng, &["", "u", "ü", "a b", "_json_key"]).to_owned() + &number.to_string();
    let password = pick(
        rng,
        &["", "p", "p:q", ":", "ß\u{2028}", "\"\\", "{\"a\": \"b:c\"}"],
    );
    let pair = format!("{user}:{password}");
    let (padded, plain) = (STANDARD.encode(&pair), STANDARD_NO_PAD.encode(&pair));
    if rng.u8(..100) < nasty {
        return broken_entry(rng, &user, &padded);
    }
    match rng.u8(..8) {
        0..3 => json!({"username": user, "password": password}),
        3 => json!({"username": user, "password": password, "email": "e@x", "auth": padded}),
        4 => json!({"auth": padded, "identitytoken": "t"}),
        5 => json!({"auth": plain}),
        6 => json!({"username": "other", "password": null, "auth": plain}),
        _ => json!({"username": user, "auth": ""}),
    }
    .to_string()
}

/// What some tool or hand may write. Not all of it is an error.
fn broken_entry(rng: &mut Rng, user: &str, auth: &str) -> String {
    let nothing_to_divide = STANDARD.encode(user);
    let no_text = STANDARD.encode([b'u', b':', 0xff, 0xfe]);
    let folded = format!("{}\n{}\r\n", &auth[..2], &auth[2..]);
    match rng.u8(..22) {
        0 => "null".to_owned(),
        1 => "[]".to_owned(),
        2 => format!("{auth:?}"),
        3 => json!({"username": 7}).to_string(),
        4 => json!({"password": ["p"]}).to_string(),
        5 => json!({"auth": {}}).to_string(),
        6 => json!({"email": null, "auth": auth}).to_string(),
        7 => json!({"auth": nothing_to_divide}).to_string(),
        8 => json!({"auth": no_text}).to_string(),
        9 => json!({"auth": folded}).to_string(),
        10 => json!({"auth": format!("{auth}=")}).to_string(),
        11 => json!({"auth": format!(" {auth}")}).to_string(),
        12 => json!({"auth": format!("{auth} ")}).to_string(),
        13 => json!({"auth": auth.replace('=', "")}).to_string(),
        14 => json!({"auth": format!("{}=", auth.replace('=', ""))}).to_string(),
        15 => json!({"auth": auth.replace('d', "-").replace('M', "_")}).to_string(),
        // The last digit has bits that nobody needs.
        16 => json!({"auth": "dTE6cB=="}).to_string(),
        17 => format!("{{\"Username\": {user:?}, \"PASSWORD\": \"p\"}}"),
        18 => format!("{{\"AUTH\": {auth:?}}}"),
        19 => format!("{{\"auth\": \"%\", \"auth\": {auth:?}}}"),
        20 => format!(r#"{{"username": "\ud83d\ude00{user}", "password": "\u0000"}}"#),
        _ => json!({"auth": pick(rng, &["=", "\n", " ", "Og==", "Og", "O", "dTpw\t", "d=Tpw", "dTpw\u{a0}="])}).to_string(),
    }
}

fn mangled(rng: &mut Rng, mut text: String) -> String {
    let at = boundary(rng, &text);
    match rng.u8(..7) {
        0 => text.truncate(at),
        1 => text += " \n\t",
        2 => text += "{}",
        3 => text.insert(0, '\u{feff}'),
        4 => text.insert(at, '\0'),
        _ => text.insert(at, any_char(rng)),
    }
    text
}
