//! Reads `ImageCache`s from YAML or JSON that no API server has checked.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_saphyr::Spanned;

use crate::api::{Ensure, GROUP, ImageCacheSpec, ImageList, SpecError, VERSION};
use crate::decide::{Cache, CacheName, Caches};
use crate::image::{InvalidReference, Reference};

/// Where documents come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// Standard input, written as `-`.
    Input,
}

impl From<&str> for Source {
    fn from(text: &str) -> Self {
        match text {
            "-" => Self::Input,
            path => Self::File(path.into()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Input => f.write_str("standard input"),
        }
    }
}

/// Why documents cannot be acted on.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// It is not YAML.
    #[error("{file}: document {number}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The document's number, from 1.
        number: usize,
        /// What is wrong, with the line.
        message: String,
    },
    /// It is YAML, and not an `ImageCache` that can be acted on.
    #[error("{place}: {cause}")]
    Object {
        /// Which document.
        place: Place,
        /// What is wrong with it.
        cause: Box<ObjectError>,
    },
    /// There is nothing in it.
    #[error("{file}: no ImageCache in it")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Where an object stands.
#[derive(Clone, Debug)]
pub struct Place {
    file: String,
    document: usize,
    line: u64,
    item: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            document,
            line,
            item,
        } = self;
        write!(f, "{file}: document {document} (line {line})")?;
        item.map_or(Ok(()), |item| write!(f, ": items[{item}]"))
    }
}

/// What is wrong with an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Another kind of object.
    #[error("kind: {0} is not ImageCache of {GROUP}/{VERSION}, nor a list of these")]
    Kind(String),
    /// A field that has to be there.
    #[error("{0}: is missing")]
    Missing(&'static str),
    /// A field that has to be a text.
    #[error("{0}: is not a text")]
    NoText(&'static str),
    /// The specification cannot be acted on.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An image's name.
    #[error("{field}: {image:?}: {cause}")]
    Image {
        /// The field.
        field: String,
        /// The name.
        image: String,
        /// What is wrong with it.
        cause: InvalidReference,
    },
    /// Two objects with one name.
    #[error("metadata.name: {0} stands in an earlier document too")]
    Twice(CacheName),
}

/// The largest file that is read, in bytes: a hundred times what the API server takes for one object.
const MAX_BYTES: u64 = 150 << 20;

fn read_source(source: &Source) -> io::Result<String> {
    let input: Box<dyn Read> = match source {
        Source::File(path) => Box::new(fs::File::open(path)?),
        Source::Input => Box::new(io::stdin()),
    };
    let mut text = String::new();
    let bytes = input.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_BYTES) {
        let limit = MAX_BYTES >> 20;
        return Err(io::Error::other(format!("it has more than {limit} MiB")));
    }
    Ok(text)
}

/// Reads every document of every source.
pub fn read(sources: &[Source]) -> Result<Caches, DocumentError> {
    let mut caches = Caches::new();
    for source in sources {
        let file = source.to_string();
        match read_source(source) {
            Ok(text) => read_text(&text, &file, &mut caches)?,
            Err(source) => return Err(DocumentError::Read { file, source }),
        }
    }
    Ok(caches)
}

/// The images of a command line: one list for this machine, without a name.
pub fn from_arguments(images: &[String]) -> Result<(CacheName, Arc<Cache>), ObjectError> {
    for image in images {
        check_image(image, || "argument".to_owned())?;
    }
    let list = ImageList {
        images: images.to_vec(),
        ..ImageList::default()
    };
    let spec = ImageCacheSpec {
        cache_spec: vec![list],
        ..ImageCacheSpec::default()
    };
    let name = CacheName {
        namespace: String::new(),
        name: String::new(),
    };
    Ok((name, cache(spec)))
}

/// One run asks for nothing again that is present.
fn cache(mut spec: ImageCacheSpec) -> Arc<Cache> {
    spec.refresh_interval.0.0 = Duration::ZERO;
    Arc::new(Cache {
        uid: String::new(),
        generation: 1,
        spec: Some((1, Arc::new(spec))),
        unreadable: None,
        refresh: None,
    })
}

fn read_text(text: &str, file: &str, caches: &mut Caches) -> Result<(), DocumentError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let mut bytes = text.as_bytes();
    let documents = serde_saphyr::read_with_options::<_, Spanned<Value>>(&mut bytes, options);
    let before = caches.len();
    for (index, document) in documents.enumerate() {
        let number = index + 1;
        let document = document.map_err(|error| DocumentError::Syntax {
            file: file.to_owned(),
            number,
            message: error.to_string(),
        })?;
        let place = Place {
            file: file.to_owned(),
            document: number,
            line: document.referenced.line(),
            item: None,
        };
        take(&document.value, &place, caches)?;
    }
    if caches.len() == before {
        return Err(DocumentError::Empty {
            file: file.to_owned(),
        });
    }
    Ok(())
}

fn take(object: &Value, place: &Place, caches: &mut Caches) -> Result<(), DocumentError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let kind = (
        text("/apiVersion").unwrap_or_default(),
        text("/kind").unwrap_or_default(),
    );
    let ours = format!("{GROUP}/{VERSION}");
    let is_list = kind == ("v1", "List") || kind == (ours.as_str(), "ImageCacheList");
    if is_list && place.item.is_none() {
        let items = object.get("items").and_then(Value::as_array);
        return items
            .into_iter()
            .flatten()
            .enumerate()
            .try_for_each(|(index, item)| {
                let place = Place {
                    item: Some(index),
                    ..place.clone()
                };
                take(item, &place, caches)
            });
    }
    let read = match kind {
        (version, "ImageCache") if version == ours => read_object(object, caches),
        ("", "") => Err(ObjectError::Missing("kind")),
        (version, kind) => Err(ObjectError::Kind(format!("{kind:?} of {version:?}"))),
    };
    let (name, spec) = read.map_err(|cause| DocumentError::Object {
        place: place.clone(),
        cause: Box::new(cause),
    })?;
    caches.insert(name, cache(spec));
    Ok(())
}

fn read_object(
    object: &Value,
    caches: &Caches,
) -> Result<(CacheName, ImageCacheSpec), ObjectError> {
    let text = |pointer, field| match object.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ObjectError::NoText(field)),
    };
    let namespace = text("/metadata/namespace", "metadata.namespace")?;
    let name = text("/metadata/name", "metadata.name")?;
    let name = CacheName {
        namespace: namespace.unwrap_or_else(|| "default".to_owned()),
        name: name.ok_or(ObjectError::Missing("metadata.name"))?,
    };
    if caches.contains_key(&name) {
        return Err(ObjectError::Twice(name));
    }
    let spec = ImageCacheSpec::read(object.get("spec").ok_or(ObjectError::Missing("spec"))?)?;
    spec.check()?;
    if spec.ensure == Ensure::Absent {
        let (field, message) = (
            "spec.ensure",
            "Absent removes images, and pull only brings them",
        );
        return Err(SpecError::Invalid {
            field: field.to_owned(),
            message: message.to_owned(),
        }
        .into());
    }
    for (list, images) in spec.cache_spec.iter().map(|list| &list.images).enumerate() {
        for (index, image) in images.iter().enumerate() {
            check_image(image, || format!("spec.cacheSpec[{list}].images[{index}]"))?;
        }
    }
    Ok((name, spec))
}

fn check_image(image: &str, field: impl FnOnce() -> String) -> Result<(), ObjectError> {
    match Reference::parse(image) {
        Ok(_) => Ok(()),
        Err(cause) => Err(ObjectError::Image {
            field: field(),
            image: image.to_owned(),
            cause,
        }),
    }
}

/// Reads `key=value` as a Node's label.
pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("a label is written as key=value")?;
    let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    // The rules for a selector's labels are those for a Node's.
    let list = ImageList {
        images: vec!["a".to_owned()],
        node_selector: labels,
        ..ImageList::default()
    };
    let spec = ImageCacheSpec {
        cache_spec: vec![list],
        ..ImageCacheSpec::default()
    };
    match spec.check() {
        Ok(()) => Ok((key.to_owned(), value.to_owned())),
        Err(SpecError::Invalid { message, .. } | SpecError::Unsupported { field: message }) => {
            Err(message)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Caches, String> {
        let mut caches = Caches::new();
        read_text(text, "file.yaml", &mut caches)
            .map(|()| caches)
            .map_err(|error| error.to_string())
    }

    fn object(name: &str, spec: &str) -> String {
        format!(
            "apiVersion: imagecache.dev/v1alpha1\nkind: ImageCache\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        )
    }

    #[test]
    fn documents_and_lists_of_objects_are_read() {
        let items = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: imagecache.dev/v1alpha1\n  kind: ImageCache\n  \
                     metadata: {name: c, namespace: team}\n  spec: {cacheSpec: [{images: [c]}]}\n  status: {imagesTotal: 1}\n";
        let text = format!(
            "# of the team\n---\n{}---\n{}---\n{items}",
            object(
                "a",
                "{cacheSpec: [{images: [a, b], nodeSelector: {tier: backend}}], priority: 5}"
            ),
            object(
                "b",
                "{paused: true, cacheSpec: [{images: [\"r.example:5000/b:1\"]}]}"
            ),
        );
        let caches = read(&text).unwrap();
        let names: Vec<_> = caches.keys().map(ToString::to_string).collect();
        assert_eq!(names, ["default/a", "default/b", "team/c"]);
        let spec = |name: &str| {
            caches
                .iter()
                .find(|(key, _)| key.name == name)
                .unwrap()
                .1
                .spec
                .clone()
                .unwrap()
                .1
        };
        assert_eq!(spec("a").priority, 5);
        assert!(spec("b").paused);
        assert_eq!(spec("c").cache_spec.first().unwrap().images, ["c"]);
    }

    #[test]
    fn json_is_read_too() {
        let text = r#"{"apiVersion": "imagecache.dev/v1alpha1", "kind": "ImageCacheList", "items": [
            {"apiVersion": "imagecache.dev/v1alpha1", "kind": "ImageCache", "metadata": {"name": "a"}, "spec": {"cacheSpec": [{"images": ["a"]}]}}]}"#;
        assert_eq!(read(text).unwrap().len(), 1);
    }

    #[test]
    fn the_samples_are_read() {
        let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/samples");
        let mut names: Vec<_> = fs::read_dir(samples)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        names.sort();
        let sources: Vec<_> = names.into_iter().map(Source::File).collect();
        assert_eq!(super::read(&sources).unwrap().len(), sources.len());
    }

    #[test]
    fn an_error_names_file_document_and_field() {
        let good = object("a", "{cacheSpec: [{images: [a]}]}");
        let rows = [
            (String::new(), "file.yaml: no ImageCache in it"),
            ("# nothing\n---\n".to_owned(), "file.yaml: no ImageCache in it"),
            (format!("{good}---\nspec: [\n"), "file.yaml: document 2: "),
            ("just a text\n".to_owned(), "file.yaml: document 1 (line 1): kind: is missing"),
            (
                format!("{good}---\napiVersion: apps/v1\nkind: Deployment\n"),
                "file.yaml: document 2 (line 6): kind: \"Deployment\" of \"apps/v1\" is not ImageCache of imagecache.dev/v1alpha1",
            ),
            (
                good.replace("imagecache.dev/v1alpha1", "kubefledged.io/v1alpha2"),
                "file.yaml: document 1 (line 1): kind: \"ImageCache\" of \"kubefledged.io/v1alpha2\" is not",
            ),
            (good.replace("name: a", "labels: {}"), "file.yaml: document 1 (line 1): metadata.name: is missing"),
            (good.replace("name: a", "name: [a]"), "file.yaml: document 1 (line 1): metadata.name: is not a text"),
            (good.replace("spec:", "sepc:"), "file.yaml: document 1 (line 1): spec: is missing"),
            (format!("{good}---\n{good}"), "file.yaml: document 2 (line 6): metadata.name: default/a stands in an earlier document too"),
            (
                object("a", "{cacheSpec: [{images: [a]}, {images: [b, UPPER]}]}"),
                "file.yaml: document 1 (line 1): spec.cacheSpec[1].images[1]: \"UPPER\": the repository \"UPPER\" has to be lowercase",
            ),
            (
                object("a", "{cacheSpec: [{images: [a], nodeSelector: {tier: 1}}]}"),
                "file.yaml: document 1 (line 1): spec.cacheSpec[0].nodeSelector.tier: invalid type",
            ),
            (object("a", "{cacheSpec: []}"), "file.yaml: document 1 (line 1): spec.cacheSpec: has 0 lists, needs 1 to 64"),
            (
                object("a", "{cacheSpec: [{images: [a]}], turnedRound: true}"),
                "file.yaml: document 1 (line 1): spec.turnedRound: this version of imagecache-agent does not know this field",
            ),
            (
                object("a", "{cacheSpec: [{images: [a]}], ensure: Absent}"),
                "file.yaml: document 1 (line 1): spec.ensure: Absent removes images, and pull only brings them",
            ),
            (object("a", "{cacheSpec: [{images: [a], images: [b]}]}"), "file.yaml: document 1: "),
            (
                "apiVersion: v1\nkind: List\nitems:\n- kind: ImageCache\n  apiVersion: imagecache.dev/v1alpha1\n- kind: Pod\n  apiVersion: v1\n"
                    .to_owned(),
                "file.yaml: document 1 (line 1): items[0]: metadata.name: is missing",
            ),
        ];
        for (text, expected) in rows {
            let message = read(&text).unwrap_err();
            assert!(
                message.starts_with(expected),
                "{text}\nexpected {expected}\ngot      {message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = super::read(&[Source::from("/no/such.yaml")]).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such.yaml");
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let error = super::read(&[Source::from("/dev/zero")]).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap();
        assert_eq!(cause.to_string(), "it has more than 150 MiB");
    }

    #[test]
    fn a_label_is_checked_as_a_nodes_is() {
        assert_eq!(
            label("tier=backend"),
            Ok(("tier".to_owned(), "backend".to_owned()))
        );
        assert_eq!(
            label("node-role.kubernetes.io/worker="),
            Ok(("node-role.kubernetes.io/worker".to_owned(), String::new()))
        );
        for text in ["tier", "=x", "a b=c", "a=b=c", "-=x"] {
            assert!(label(text).is_err(), "{text}");
        }
    }
}
