//! What the generated schema of a resource leaves out, so that it promises no more than the agents write and read.

use schemars::Schema;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::Value;

/// Takes `default` and `null` out of a schema and of all schemas in it.
///
/// A default would be written into every stored object, `null` reads as nothing that the types know:
/// a field that is not there is left out, in the specs as in the reports.
#[derive(Clone, Copy, Debug)]
pub struct WithoutDefaultsAndNulls;

impl Transform for WithoutDefaultsAndNulls {
    fn transform(&mut self, schema: &mut Schema) {
        schema.remove("default");
        if let Some(Value::Array(types)) = schema.get_mut("type") {
            types.retain(|name| name != "null");
            if let [one] = types.as_slice() {
                let one = one.clone();
                schema.insert("type".to_owned(), one);
            }
        }
        if let Some(inner) = only_alternative_to_null(schema) {
            schema.remove("anyOf");
            for (key, value) in inner {
                schema.ensure_object().entry(key).or_insert(value);
            }
        }
        transform_subschemas(self, schema);
    }
}

/// The schema `T` of an `Option<T>` that is written as `anyOf: [T, null]`, as for enums.
fn only_alternative_to_null(schema: &Schema) -> Option<serde_json::Map<String, Value>> {
    let alternatives = schema.get("anyOf")?.as_array()?;
    let is_null = |schema: &&Value| schema.get("type").is_some_and(|name| name == "null");
    match alternatives.as_slice() {
        [first, second] if is_null(&second) => first.as_object().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use schemars::json_schema;

    use super::*;

    #[test]
    fn an_optional_field_is_left_out_and_never_null() {
        let mut schema = json_schema!({
            "type": "object",
            "properties": {
                "text": { "type": ["string", "null"], "default": null },
                "state": { "anyOf": [{ "type": "string", "enum": ["A"] }, { "type": "null" }], "description": "d" },
                "list": { "type": "array", "items": { "type": "integer", "default": 0 }, "default": [] },
            },
        });
        WithoutDefaultsAndNulls.transform(&mut schema);
        assert_eq!(
            schema,
            json_schema!({
                "type": "object",
                "properties": {
                    "text": { "type": "string" },
                    "state": { "type": "string", "enum": ["A"], "description": "d" },
                    "list": { "type": "array", "items": { "type": "integer" } },
                },
            })
        );
    }
}
