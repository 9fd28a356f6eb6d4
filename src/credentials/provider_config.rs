//! The kubelet's configuration of exec credential providers: kind `CredentialProviderConfig`, read as strictly as the kubelet does.

mod document;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use document::Item;

use super::docker_files::bytes;
use super::{duration, keyring};

const KIND: &str = "CredentialProviderConfig";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const CONFIG_GROUP: &str = "kubelet.config.k8s.io";
const PROVIDER_GROUP: &str = "credentialprovider.kubelet.k8s.io";

/// One provider of the configuration.
#[derive(Clone, Eq, PartialEq)]
pub struct ProviderConfig {
    /// Its name, and that of its program.
    pub name: String,
    /// Which images it is asked for, as the keyring matches them.
    pub match_images: Vec<String>,
    /// How long an answer is good that does not say so itself. Zero: for one pull.
    pub default_cache_duration: Duration,
    /// The version of requests and answers, with its group.
    pub api_version: String,
    /// The arguments of its program.
    pub args: Vec<String>,
    /// What its environment has beside that of this process.
    pub env: Vec<(String, String)>,
    /// It wants a token of the Pod's service account, which no agent has.
    pub needs_service_account: bool,
}

/// Arguments and variables can hold passwords.
impl fmt::Debug for ProviderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderConfig({})", self.name)
    }
}

/// Why a configuration cannot be used. It names file and field, and quotes no value but names of providers.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file or folder cannot be read.
    #[error("{}: it cannot be read", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no configuration in the folder.
    #[error("{}: there is no *.json, *.yaml or *.yml in it", .0.display())]
    EmptyFolder(PathBuf),
    /// It is not YAML.
    #[error("{}: it is not one document of YAML or JSON{place}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// As in `: line 3, column 1`, if that is known.
        place: String,
    },
    /// A field is wrong.
    #[error("{}: {field}: {problem}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// As in `providers[0].name`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl ConfigError {
    /// A field of a file is wrong.
    pub fn field(
        path: impl Into<PathBuf>,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Field {
            path: path.into(),
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// A provider, and the file and the field where its name stands.
#[derive(Debug)]
pub struct Placed {
    /// The provider.
    pub provider: ProviderConfig,
    /// The file.
    pub file: PathBuf,
    /// As in `providers[0].name`.
    pub field: String,
}

/// Reads a file, or every `*.json`, `*.yaml` and `*.yml` of a folder in the order of their names.
pub fn read(path: &Path) -> Result<Vec<Placed>, ConfigError> {
    let mut providers = Vec::new();
    let mut names = BTreeSet::new();
    for file in files(path)? {
        let text = bytes(&file).map_err(|source| ConfigError::Read {
            path: file.clone(),
            source,
        })?;
        for (index, provider) in parse(&text, &file)?.into_iter().enumerate() {
            let field = format!("providers[{index}].name");
            if !names.insert(provider.name.clone()) {
                let problem = format!("{:?} is the name of an earlier provider", provider.name);
                return Err(ConfigError::field(file, field, problem));
            }
            providers.push(Placed {
                provider,
                file: file.clone(),
                field,
            });
        }
    }
    Ok(providers)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let cannot_read = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    if !fs::metadata(path).map_err(cannot_read)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries: io::Result<Vec<_>> = fs::read_dir(path)
        .map_err(cannot_read)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let is_config = |file: &PathBuf| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("json" | "yaml" | "yml")) && !file.is_dir()
    };
    let mut files: Vec<_> = entries
        .map_err(cannot_read)?
        .into_iter()
        .filter(is_config)
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(ConfigError::EmptyFolder(path.to_owned()));
    }
    Ok(files)
}

fn parse(text: &[u8], path: &Path) -> Result<Vec<ProviderConfig>, ConfigError> {
    let document = document::read(text, path)?;
    let wrong = |field: &str, problem: String| Err(ConfigError::field(path, field, problem));
    if document.kind.as_deref() != Some(KIND) {
        return wrong("kind", format!("it has to be {KIND}"));
    }
    let Some(version) = version(document.api_version.as_deref(), CONFIG_GROUP) else {
        return wrong("apiVersion", one_of_versions(CONFIG_GROUP));
    };
    let items = document.providers.unwrap_or_default();
    if items.is_empty() {
        return wrong("providers", "at least one is needed".to_owned());
    }
    let check = |(index, item)| {
        let at = format!("providers[{index}]");
        checked(item, version)
            .map_err(|(field, problem)| ConfigError::field(path, format!("{at}.{field}"), problem))
    };
    items.into_iter().enumerate().map(check).collect()
}

/// The version of a group, as in `v1` of `kubelet.config.k8s.io/v1`.
fn version(text: Option<&str>, group: &str) -> Option<&'static str> {
    let version = text?.strip_prefix(group)?.strip_prefix('/')?;
    VERSIONS.into_iter().find(|known| *known == version)
}

fn one_of_versions(group: &str) -> String {
    let versions = VERSIONS.map(|version| format!("{group}/{version}"));
    format!("it has to be one of {}", versions.join(", "))
}

/// The error is the field, and what is wrong with it.
fn checked(item: Item, config_version: &str) -> Result<ProviderConfig, (String, String)> {
    let wrong = |field: &str, problem: &str| Err((field.to_owned(), problem.to_owned()));
    let name = item.name.unwrap_or_default();
    let is_name = !name.is_empty()
        && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
        && !matches!(name.as_str(), "." | "..");
    if !is_name {
        return wrong(
            "name",
            "it has to be the name of a program, without a path and spaces",
        );
    }
    let match_images = item.match_images.unwrap_or_default();
    if match_images.is_empty() {
        return wrong("matchImages", "at least one is needed");
    }
    if let Some(index) = match_images
        .iter()
        .position(|one| !keyring::is_pattern(one))
    {
        let field = format!("matchImages[{index}]");
        return wrong(&field, "it is no registry, nor a pattern of one");
    }
    let Some(duration) = item
        .default_cache_duration
        .as_deref()
        .and_then(duration::read)
    else {
        return wrong(
            "defaultCacheDuration",
            "a length of time is needed, such as 12h, 10m or 0s",
        );
    };
    let version = version(item.api_version.as_deref(), PROVIDER_GROUP);
    let (Some(version), Some(api_version)) = (version, item.api_version) else {
        return wrong("apiVersion", &one_of_versions(PROVIDER_GROUP));
    };
    let mut env = Vec::new();
    for (index, variable) in item.env.into_iter().flatten().enumerate() {
        let name = variable.name.unwrap_or_default();
        if name.is_empty() || name.contains(['=', '\0']) {
            let field = format!("env[{index}].name");
            return wrong(&field, "it has to be the name of a variable");
        }
        env.push((name, variable.value.unwrap_or_default()));
    }
    let mut needs_service_account = false;
    if let Some(token) = item.token_attributes {
        if (config_version, version) != ("v1", "v1") {
            return wrong("tokenAttributes", "only v1 of both kinds has this field");
        }
        let Some(needed) = token.require_service_account else {
            let field = "tokenAttributes.requireServiceAccount";
            return wrong(field, "true or false is needed");
        };
        needs_service_account = needed;
    }
    Ok(ProviderConfig {
        name,
        match_images,
        default_cache_duration: duration,
        api_version,
        args: item.args.unwrap_or_default(),
        env,
        needs_service_account,
    })
}
