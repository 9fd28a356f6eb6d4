//! Specs that the schema refuses, and what the refusal says.

use serde_json::{Value, json};

/// A spec that is refused: what is wrong with it, the spec, the field that the message names, and words in it.
pub type Row = (&'static str, Value, &'static str, &'static str);

pub fn lists() -> Vec<Row> {
    const LISTS: &str = "spec.cacheSpec";
    const IMAGES: &str = "spec.cacheSpec[0].images";
    const IMAGE: &str = "spec.cacheSpec[0].images[0]";
    let long = "a".repeat(513);
    vec![
        ("no list", json!({}), LISTS, "Required value"),
        (
            "an empty list of lists",
            json!({ "cacheSpec": [] }),
            LISTS,
            "should have at least 1 items",
        ),
        (
            "null for the lists",
            json!({ "cacheSpec": null }),
            LISTS,
            "Required value",
        ),
        (
            "a list without images",
            json!({ "cacheSpec": [{}] }),
            IMAGES,
            "Required value",
        ),
        (
            "an empty list",
            of_images(&[]),
            IMAGES,
            "should have at least 1 items",
        ),
        (
            "an image twice",
            of_images(&["a", "b", "a"]),
            "spec.cacheSpec[0].images[2]",
            "Duplicate value: \"a\"",
        ),
        (
            "an empty image",
            of_images(&[""]),
            IMAGE,
            "should be at least 1 chars long",
        ),
        (
            "a space in an image",
            of_images(&["a b"]),
            IMAGE,
            "an image reference has no white space",
        ),
        (
            "a line break in an image",
            of_images(&["a\n"]),
            IMAGE,
            "an image reference has no white space",
        ),
        (
            "a long image",
            of_images(&[&long]),
            IMAGE,
            "may not be more than 512",
        ),
        (
            "too many lists",
            of_lists(65, 1),
            LISTS,
            "must have at most 64 items",
        ),
        (
            "too many images in a list",
            of_lists(1, 257),
            IMAGES,
            "must have at most 256 items",
        ),
        (
            "too many images in all",
            of_lists(7, 143),
            "spec",
            "all lists together may name at most 1000 images: split them",
        ),
        (
            "a priority above the range",
            json!({ "cacheSpec": [{ "images": ["a"] }], "priority": 1001 }),
            "spec.priority",
            "should be less than or equal to 1000",
        ),
        (
            "a priority below the range",
            json!({ "cacheSpec": [{ "images": ["a"] }], "priority": -1001 }),
            "spec.priority",
            "should be greater than or equal to -1000",
        ),
        (
            "a word for paused",
            json!({ "cacheSpec": [{ "images": ["a"] }], "paused": "yes" }),
            "spec.paused",
            "must be of type boolean",
        ),
    ]
}

pub fn labels() -> Vec<Row> {
    const SELECTOR: &str = "spec.cacheSpec[0].nodeSelector";
    const TIER: &str = "spec.cacheSpec[0].nodeSelector.tier";
    const TIER_RULE: &str = "spec.cacheSpec[0].nodeSelector[tier]";
    let (long, prefix) = ("a".repeat(64), format!("{}/a", "a".repeat(254)));
    let key = |key: &str| of_labels(&json!({ "good": "x", key: "x" }));
    let many: Value = (0..65)
        .map(|n| (format!("l{n}"), json!("x")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    vec![
        (
            "a key that begins with -",
            key("-tier"),
            SELECTOR,
            "\"-tier\" is not a label key",
        ),
        (
            "a key with two slashes",
            key("a/b/c"),
            SELECTOR,
            "\"a/b/c\" is not a label key",
        ),
        (
            "a key with an upper-case prefix",
            key("A.io/b"),
            SELECTOR,
            "\"A.io/b\" is not a label key",
        ),
        (
            "a key with a long name",
            key(&long),
            SELECTOR,
            "aaa\" is not a label key",
        ),
        (
            "a key with a long prefix",
            key(&prefix),
            SELECTOR,
            "aaa/a\" is not a label key",
        ),
        ("an empty key", key(""), SELECTOR, "\"\" is not a label key"),
        (
            "a space in a value",
            of_labels(&json!({ "tier": "a b" })),
            TIER_RULE,
            "not a label value",
        ),
        (
            "a value that ends with _",
            of_labels(&json!({ "tier": "a_" })),
            TIER_RULE,
            "not a label value",
        ),
        (
            "a long value",
            of_labels(&json!({ "tier": long })),
            TIER,
            "may not be more than 63",
        ),
        (
            "a number for a value",
            of_labels(&json!({ "tier": 1 })),
            TIER,
            "must be of type string",
        ),
        (
            "too many labels",
            of_labels(&many),
            SELECTOR,
            "must have at most 64 items",
        ),
    ]
}

pub fn expressions() -> Vec<Row> {
    const FIRST: &str = "spec.cacheSpec[0].matchExpressions[0]";
    const OPERATOR: &str = "spec.cacheSpec[0].matchExpressions[0].operator";
    const ONE_INTEGER: &str = "the operators Gt and Lt need exactly one value, an integer";
    const VALUES: &str = "the operators In and NotIn need at least one value";
    const NO_VALUES: &str = "the operators Exists and DoesNotExist take no values";
    let on = |operator: &str, values: Value| {
        of_expression(&json!({ "key": "tier", "operator": operator, "values": values }))
    };
    let many = vec![json!({ "key": "a", "operator": "Exists" }); 33];
    vec![
        (
            "no operator",
            of_expression(&json!({ "key": "tier" })),
            OPERATOR,
            "Required value",
        ),
        (
            "an unknown operator",
            on("Like", json!(["a"])),
            OPERATOR,
            "Unsupported value: \"Like\": supported values: \"In\", \"NotIn\", \"Exists\", \"DoesNotExist\", \"Gt\", \"Lt\"",
        ),
        (
            "an expression on no label key",
            of_expression(&json!({ "key": "_", "operator": "Exists" })),
            "spec.cacheSpec[0].matchExpressions[0].key",
            "not a label key",
        ),
        ("In without values", on("In", json!([])), FIRST, VALUES),
        (
            "In without a list of values",
            of_expression(&json!({ "key": "tier", "operator": "In" })),
            FIRST,
            VALUES,
        ),
        (
            "NotIn without values",
            on("NotIn", json!([])),
            FIRST,
            VALUES,
        ),
        (
            "Exists with a value",
            on("Exists", json!(["a"])),
            FIRST,
            NO_VALUES,
        ),
        (
            "DoesNotExist with a value",
            on("DoesNotExist", json!(["a"])),
            FIRST,
            NO_VALUES,
        ),
        (
            "Gt with a word",
            on("Gt", json!(["many"])),
            FIRST,
            ONE_INTEGER,
        ),
        (
            "Gt with a fraction",
            on("Gt", json!(["1.5"])),
            FIRST,
            ONE_INTEGER,
        ),
        ("Gt with nothing", on("Gt", json!([])), FIRST, ONE_INTEGER),
        (
            "Lt with two integers",
            on("Lt", json!(["1", "2"])),
            FIRST,
            ONE_INTEGER,
        ),
        (
            "In with something that no label can be",
            on("In", json!(["a", "b c"])),
            "spec.cacheSpec[0].matchExpressions[0].values[1]",
            "Invalid value: \"b c\": spec.cacheSpec[0].matchExpressions[0].values[1] in body should match",
        ),
        (
            "too many expressions",
            json!({ "cacheSpec": [{ "images": ["a"], "matchExpressions": many }] }),
            "spec.cacheSpec[0].matchExpressions",
            "must have at most 32 items",
        ),
    ]
}

pub fn secrets() -> Vec<Row> {
    const NAME: &str = "spec.imagePullSecrets[0].name";
    let of =
        |secrets: Value| json!({ "cacheSpec": [{ "images": ["a"] }], "imagePullSecrets": secrets });
    let many: Vec<_> = (0..33)
        .map(|n| json!({ "name": format!("s{n}") }))
        .collect();
    vec![
        (
            "a Secret without a name",
            of(json!([{}])),
            NAME,
            "Required value",
        ),
        (
            "an empty name",
            of(json!([{ "name": "" }])),
            NAME,
            "at least 1 chars long",
        ),
        (
            "a name in capitals",
            of(json!([{ "name": "Key" }])),
            NAME,
            "should match",
        ),
        (
            "a name that ends with a dash",
            of(json!([{ "name": "key-" }])),
            NAME,
            "should match",
        ),
        (
            "a name with its namespace",
            of(json!([{ "name": "team/key" }])),
            NAME,
            "should match",
        ),
        (
            "a Secret twice",
            of(json!([{ "name": "a" }, { "name": "a" }])),
            "spec.imagePullSecrets[1]",
            "Duplicate value",
        ),
        (
            "too many Secrets",
            of(json!(many)),
            "spec.imagePullSecrets",
            "must have at most 32 items",
        ),
    ]
}

pub fn of_images(images: &[&str]) -> Value {
    json!({ "cacheSpec": [{ "images": images }] })
}

pub fn of_labels(labels: &Value) -> Value {
    json!({ "cacheSpec": [{ "images": ["a"], "nodeSelector": labels }] })
}

pub fn of_expression(expression: &Value) -> Value {
    json!({ "cacheSpec": [{ "images": ["a"], "matchExpressions": [expression] }] })
}

/// So many lists of so many images, no two alike.
pub fn of_lists(lists: usize, images: usize) -> Value {
    let list = |n: usize| {
        let images: Vec<_> = (0..images).map(|m| format!("r.example/{n}:{m}")).collect();
        json!({ "images": images })
    };
    json!({ "cacheSpec": (0..lists).map(list).collect::<Vec<_>>() })
}

/// Fields of the spec beside its lists.
pub fn lengths_of_time() -> Vec<Row> {
    vec![
        (
            "a timeout that is no length of time",
            json!({ "cacheSpec": [{ "images": ["a"] }], "pullProgressTimeout": "5 minutes" }),
            "spec.pullProgressTimeout",
            "should match",
        ),
        (
            "a timeout of nothing",
            json!({ "cacheSpec": [{ "images": ["a"] }], "pullProgressTimeout": "0s" }),
            "spec.pullProgressTimeout",
            "must be at least 1s, such as 90s or 5m",
        ),
    ]
}
