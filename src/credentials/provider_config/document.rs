//! The document of a configuration, field by field, before anything is checked.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::ConfigError;

/// A `CredentialProviderConfig`, of any version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    pub kind: Option<String>,
    pub api_version: Option<String>,
    pub providers: Option<Vec<Item>>,
}

/// A provider.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    pub name: Option<String>,
    pub match_images: Option<Vec<String>>,
    pub default_cache_duration: Option<String>,
    pub api_version: Option<String>,
    pub args: Option<Vec<String>>,
    pub env: Option<Vec<Variable>>,
    pub token_attributes: Option<TokenAttributes>,
}

/// A variable of its environment.
#[derive(Deserialize)]
pub struct Variable {
    pub name: Option<String>,
    pub value: Option<String>,
}

/// Only whether a token is needed is of use here; the rest is read so that it is known.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenAttributes {
    pub require_service_account: Option<bool>,
    #[serde(rename = "serviceAccountTokenAudience")]
    _audience: Option<String>,
    #[serde(rename = "cacheType")]
    _cache_type: Option<String>,
    #[serde(rename = "requiredServiceAccountAnnotationKeys")]
    _required: Option<Vec<String>>,
    #[serde(rename = "optionalServiceAccountAnnotationKeys")]
    _optional: Option<Vec<String>>,
}

/// Reads a document that has no unknown field. The error quotes no value.
pub fn read(text: &[u8], path: &Path) -> Result<Document, ConfigError> {
    // The parser's own message can quote a password.
    let document: Value = serde_saphyr::from_slice(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        place: error.location().map_or_else(String::new, |at| {
            format!(": line {}, column {}", at.line(), at.column())
        }),
    })?;
    let mut unknown = None;
    let mut track = serde_path_to_error::Track::new();
    let read = serde_ignored::deserialize(
        serde_path_to_error::Deserializer::new(&document, &mut track),
        |field| {
            unknown.get_or_insert_with(|| name_of(&field));
        },
    );
    let document = read.map_err(|_: serde_json::Error| {
        // What serde says of a wrong type quotes the value.
        let field = match track.path().to_string() {
            root if root == "." => "document".to_owned(),
            field => field,
        };
        ConfigError::field(path, field, "has a wrong type")
    })?;
    match unknown {
        Some(field) => Err(ConfigError::field(path, field, "there is no such field")),
        None => Ok(document),
    }
}

/// As in `providers[0].env[1].name`.
fn name_of(field: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match field {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", name_of(parent)),
        Path::Map { parent, key } => match name_of(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => name_of(parent),
    }
}
