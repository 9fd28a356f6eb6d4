//! `crd`: prints the custom resource definitions, generated from the types in [`crate::api`].

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::api::{ImageCache, NodeImageCache};

/// Print the custom resource definitions as YAML, one document each.
#[derive(Args, Debug)]
pub struct Flags {
    /// Print this one alone.
    #[arg(value_enum)]
    only: Option<Resource>,
}

/// The resources of this project.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Resource {
    /// What users ask for.
    ImageCaches,
    /// What nodes report.
    NodeImageCaches,
}

impl Resource {
    /// Both, in the order in which they are printed.
    pub const ALL: [Self; 2] = [Self::ImageCaches, Self::NodeImageCaches];

    /// The definition that is installed into a cluster.
    #[must_use]
    pub fn definition(self) -> CustomResourceDefinition {
        match self {
            Self::ImageCaches => ImageCache::crd(),
            Self::NodeImageCaches => NodeImageCache::crd(),
        }
    }

    /// The definition as a YAML document, as `manifests/crds` has it.
    pub fn manifest(self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(&self.definition())
    }
}

/// Prints what the flags ask for.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let wanted = Resource::ALL
        .into_iter()
        .filter(|resource| flags.only.is_none_or(|only| only == *resource));
    let documents = wanted
        .map(Resource::manifest)
        .collect::<Result<Vec<_>, _>>()?;
    std::io::stdout().write_all(documents.join("---\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_committed_manifests_are_the_generated_ones() {
        for resource in Resource::ALL {
            let name = resource.definition().spec.names.plural;
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("manifests/crds")
                .join(format!("{name}.yaml"));
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == resource.manifest().unwrap(),
                "{} differs from the types in src/api; this writes it anew: make crds",
                path.display()
            );
        }
    }

    #[test]
    fn a_manifest_reads_as_the_definition_that_it_was_made_of() {
        for resource in Resource::ALL {
            let read: CustomResourceDefinition =
                serde_saphyr::from_str(&resource.manifest().unwrap()).unwrap();
            assert_eq!(read, resource.definition());
        }
    }

    #[test]
    fn a_schema_has_nothing_that_api_servers_warn_about() {
        for resource in Resource::ALL {
            let text = resource.manifest().unwrap();
            for word in ["uint", "default:", "x-kubernetes-preserve-unknown-fields"] {
                assert!(!text.contains(word), "{resource:?} has {word}");
            }
            // Each array says how an apply merges it; a `nullable` one could be refused later.
            let arrays = text.matches("type: array").count();
            assert_eq!(text.matches("x-kubernetes-list-type").count(), arrays);
            assert_eq!(text.matches("nullable").count(), 1, "the status alone");
        }
    }
}
