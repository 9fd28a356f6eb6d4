//! Images made from nothing: random bytes and given files, so that no test needs the network.

use std::io::Write as _;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use serde_json::{Map, Value, json};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const BYTES: &str = "application/octet-stream";

/// What an image shall be. The same specification always gives the same digests.
#[derive(Clone, Debug)]
pub struct ImageSpec {
    layers: Vec<Layer>,
    entrypoint: Vec<String>,
    user: String,
    architecture: String,
    artifact: bool,
    indexed: Option<Vec<ImageSpec>>,
}

#[derive(Clone, Debug)]
enum Layer {
    Random {
        seed: u64,
        bytes: usize,
    },
    Zeros {
        bytes: usize,
    },
    Files(Vec<File>),
    /// What is no layer, or a broken one.
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
struct File {
    path: String,
    mode: u32,
    content: Vec<u8>,
}

/// An image as a registry takes it.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) blobs: Vec<Blob>,
    /// Those that others refer to come first; the last is the image itself.
    pub(crate) manifests: Vec<Blob>,
}

#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) media_type: &'static str,
    pub(crate) digest: String,
    pub(crate) bytes: Vec<u8>,
}

impl ImageSpec {
    /// An image `FROM scratch`, without a layer, for this machine's architecture.
    #[must_use]
    pub fn scratch() -> Self {
        Self {
            layers: Vec::new(),
            entrypoint: Vec::new(),
            user: String::new(),
            architecture: architecture().to_owned(),
            artifact: false,
            indexed: None,
        }
    }

    /// An image with one random layer of 1,000 bytes; another seed gives another image.
    #[must_use]
    pub fn small(seed: u64) -> Self {
        Self::scratch().layer(seed, 1_000)
    }

    /// Something that is no image, with 1,000 random bytes. Its configuration is the empty one, which all such have in common.
    #[must_use]
    pub fn artifact(seed: u64) -> Self {
        Self {
            artifact: true,
            ..Self::small(seed)
        }
    }

    /// One that runs: busybox, which does nothing for ever.
    pub fn busybox() -> Result<Self> {
        let busybox = std::fs::read(crate::servers::program("busybox")?)?;
        Ok(Self::scratch()
            .files(&[
                ("bin/busybox", 0o755, &busybox),
                ("bin/sh", 0o755, &busybox),
            ])
            .entrypoint(&["/bin/busybox", "sleep", "2147483647"]))
    }

    /// Several images under one digest, one for each platform.
    #[must_use]
    pub fn index(images: Vec<ImageSpec>) -> Self {
        Self {
            indexed: Some(images),
            ..Self::scratch()
        }
    }

    /// Adds a layer of random bytes, which do not compress; layers of the same seed and size are the same layer.
    #[must_use]
    pub fn layer(mut self, seed: u64, bytes: usize) -> Self {
        self.layers.push(Layer::Random { seed, bytes });
        self
    }

    /// Adds a layer of zeros: its download is a thousandth of what it is unpacked.
    #[must_use]
    pub fn zeros(mut self, bytes: usize) -> Self {
        self.layers.push(Layer::Zeros { bytes });
        self
    }

    /// Adds a layer of files: path, mode, content.
    #[must_use]
    pub fn files(mut self, files: &[(&str, u32, &[u8])]) -> Self {
        let files = files.iter().map(|&(path, mode, content)| File {
            path: path.to_owned(),
            mode,
            content: content.to_vec(),
        });
        self.layers.push(Layer::Files(files.collect()));
        self
    }

    /// Adds a layer that is just these bytes, whatever they are; its digest is right.
    #[must_use]
    pub fn bytes(mut self, bytes: Vec<u8>) -> Self {
        self.layers.push(Layer::Bytes(bytes));
        self
    }

    /// Sets the command.
    #[must_use]
    pub fn entrypoint(mut self, command: &[&str]) -> Self {
        self.entrypoint = command.iter().map(|&a| a.to_owned()).collect();
        self
    }

    /// Sets the user that the command runs as.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    /// Sets the architecture, in Go's words (`amd64`, `arm64`).
    #[must_use]
    pub fn architecture(mut self, architecture: &str) -> Self {
        architecture.clone_into(&mut self.architecture);
        self
    }

    /// The digest that a push will return.
    pub fn digest(&self) -> Result<String> {
        Ok(self
            .content()?
            .manifests
            .pop()
            .map(|m| m.digest)
            .unwrap_or_default())
    }

    pub(crate) fn content(&self) -> Result<Content> {
        let mut content = Content::default();
        match &self.indexed {
            None => self.write(&mut content)?,
            Some(images) => {
                let mut entries = Vec::new();
                for image in images {
                    image.write(&mut content)?;
                    if let Some(manifest) = content.manifests.last() {
                        let mut entry = manifest.descriptor();
                        let platform = json!({"os": "linux", "architecture": image.architecture});
                        entry.insert("platform".to_owned(), platform);
                        entries.push(entry);
                    }
                }
                let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
                content
                    .manifests
                    .push(Blob::new(INDEX, serde_json::to_vec(&index)?));
            }
        }
        Ok(content)
    }

    fn write(&self, content: &mut Content) -> Result<()> {
        let (layer_type, config_type) = if self.artifact {
            (BYTES, EMPTY)
        } else {
            (LAYER, CONFIG)
        };
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for layer in &self.layers {
            let tar = layer.tar()?;
            diff_ids.push(digest(&tar));
            // To compress what does not compress costs time.
            let level = match layer {
                Layer::Zeros { .. } => Compression::fast(),
                _ => Compression::none(),
            };
            let bytes = match layer {
                Layer::Bytes(_) => tar,
                _ => compressed(&tar, level)?,
            };
            let blob = Blob::new(layer_type, bytes);
            layers.push(blob.descriptor());
            content.blobs.push(blob);
        }
        let config = if self.artifact {
            json!({})
        } else {
            json!({
                "architecture": self.architecture,
                "os": "linux",
                "config": {"User": self.user, "Entrypoint": self.entrypoint},
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
            })
        };
        let config = Blob::new(config_type, serde_json::to_vec(&config)?);
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": layers});
        content.blobs.push(config);
        content
            .manifests
            .push(Blob::new(MANIFEST, serde_json::to_vec(&manifest)?));
        Ok(())
    }
}

impl Layer {
    fn tar(&self) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut append = |path: &str, mode: u32, content: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(mode);
            tar.append_data(&mut header, path, content)
        };
        match self {
            Self::Random { seed, bytes } => {
                append(&format!("data-{seed}"), 0o644, &random(*seed, *bytes))?;
            }
            Self::Zeros { bytes } => append("zeros", 0o644, &vec![0; *bytes])?,
            Self::Files(files) => {
                for file in files {
                    append(&file.path, file.mode, &file.content)?;
                }
            }
            Self::Bytes(bytes) => return Ok(bytes.clone()),
        }
        Ok(tar.into_inner()?)
    }
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self {
            media_type,
            digest: digest(&bytes),
            bytes,
        }
    }

    fn descriptor(&self) -> Map<String, Value> {
        let size = self.bytes.len().into();
        let entries = [
            ("mediaType", self.media_type.into()),
            ("digest", self.digest.clone().into()),
            ("size", size),
        ];
        entries
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// The bytes as gzip packs them, without compressing: they stay readable in it.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    compressed(bytes, Compression::none())
}

fn compressed(bytes: &[u8], level: Compression) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), level);
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

/// `sha256:` and the hash in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, bytes);
    hash.as_ref()
        .iter()
        .fold("sha256:".to_owned(), |text, byte| {
            format!("{text}{byte:02x}")
        })
}

/// This machine's architecture in Go's words.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An architecture that this machine does not run.
#[must_use]
pub fn other_architecture() -> &'static str {
    if architecture() == "s390x" {
        "amd64"
    } else {
        "s390x"
    }
}

/// `SplitMix64`: fast also without optimisation, and the same on every machine.
fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        data.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    data.truncate(bytes);
    data
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use super::*;

    #[test]
    fn the_same_specification_gives_the_same_digest_and_another_seed_another() {
        let image = ImageSpec::small(1);
        assert_eq!(image.digest().unwrap(), image.clone().digest().unwrap());
        assert_ne!(
            image.digest().unwrap(),
            ImageSpec::small(2).digest().unwrap()
        );
    }

    #[test]
    fn images_with_the_same_seed_share_the_layer() {
        let one = ImageSpec::small(1).content().unwrap();
        let two = ImageSpec::small(1).layer(2, 10).content().unwrap();
        assert_eq!(one.blobs[0].digest, two.blobs[0].digest);
        assert_eq!(one.blobs[0].media_type, LAYER);
    }

    #[test]
    fn an_index_names_each_platform_and_comes_last() {
        let images = vec![
            ImageSpec::small(1),
            ImageSpec::small(1).architecture(other_architecture()),
        ];
        let content = ImageSpec::index(images).content().unwrap();
        let index: Value =
            serde_json::from_slice(&content.manifests.last().unwrap().bytes).unwrap();
        assert_eq!(
            index["manifests"][1]["platform"]["architecture"],
            other_architecture()
        );
        assert_eq!(
            index["manifests"][0]["digest"],
            content.manifests[0].digest.as_str()
        );
    }

    #[test]
    fn files_keep_their_mode() {
        let layer = Layer::Files(vec![File {
            path: "bin/run".into(),
            mode: 0o755,
            content: b"x".to_vec(),
        }]);
        let bytes = layer.tar().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(entry.header().mode().unwrap(), 0o755);
        assert_eq!(entry.path().unwrap().to_str(), Some("bin/run"));
    }
}
