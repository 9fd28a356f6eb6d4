//! The node's own docker configuration: which of its files counts, in the kubelet's order.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::docker_config::{Entry, InvalidConfig, read_config_json, read_dockercfg};

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The kubelet's own folder, where it looks first.
const KUBELET: &str = "/var/lib/kubelet";

/// The folders in which the two kinds of file are looked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DockerFiles {
    config_json: Vec<PathBuf>,
    dockercfg: Vec<PathBuf>,
}

/// What the files say.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Found {
    /// The first file that can be read, and its entries.
    pub file: Option<(PathBuf, Vec<Entry>)>,
    /// The first file that is there and cannot be read. It is passed over, as by the kubelet.
    pub broken: Option<BrokenFile>,
}

/// A file that is there and cannot be read. Its content is never quoted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct BrokenFile {
    path: PathBuf,
    cause: String,
}

impl DockerFiles {
    /// A `config.json` in the first of these folders that has one, else a `.dockercfg`.
    #[must_use]
    pub fn in_folders(folders: &[PathBuf]) -> Self {
        Self {
            config_json: folders.to_vec(),
            dockercfg: folders.to_vec(),
        }
    }

    /// Where the kubelet of this machine looks: its own folder, the working directory, the home, and the root.
    #[must_use]
    pub fn of_kubelet(working_directory: Option<&Path>, home: Option<&Path>) -> Self {
        let folders = |home: Option<PathBuf>, root: &str| {
            let working_directory = working_directory.map(Path::to_owned);
            let first = [Some(KUBELET.into()), working_directory, home];
            first.into_iter().flatten().chain([root.into()]).collect()
        };
        Self {
            config_json: folders(home.map(|home| home.join(".docker")), "/.docker"),
            dockercfg: folders(home.map(Path::to_owned), "/"),
        }
    }

    /// Looks for the first file that can be read.
    #[must_use]
    pub fn read(&self) -> Found {
        let mut found = Found::default();
        let config_json = self.config_json.iter().map(|folder| {
            let read: fn(&[u8]) -> _ = read_config_json;
            (folder.join("config.json"), read)
        });
        let dockercfg = self.dockercfg.iter().map(|folder| {
            let read: fn(&[u8]) -> _ = read_dockercfg;
            (folder.join(".dockercfg"), read)
        });
        for (path, read) in config_json.chain(dockercfg) {
            match entries(&path, read) {
                Ok(None) => {}
                Ok(Some(entries)) => {
                    found.file = Some((path, entries));
                    break;
                }
                Err(cause) => {
                    found.broken.get_or_insert(BrokenFile { path, cause });
                }
            }
        }
        found
    }
}

/// `None`: there is no such file. The error never quotes the file.
fn entries(
    path: &Path,
    read: fn(&[u8]) -> Result<Vec<Entry>, InvalidConfig>,
) -> Result<Option<Vec<Entry>>, String> {
    match bytes(path) {
        Ok(bytes) => read(&bytes).map(Some).map_err(|error| error.to_string()),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

/// What stands in the place of a folder has no file in it either.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The content of a regular file, which is not too large: whoever opens a pipe waits for its other end.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_BYTES) {
        Ok(bytes)
    } else {
        Err(io::Error::other("it has more than 1 MiB"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    const GOOD: &str = r#"{"auths":{"r.io":{"username":"u","password":"hunter2"}}}"#;
    const GOOD_OLD: &str = r#"{"r.io":{"username":"u","password":"hunter2"}}"#;
    const BROKEN: &str = r#"{"auths":{"r.io":"hunter2"}}"#;

    #[test]
    fn the_kubelets_folders_are_looked_through_in_its_order() {
        let paths = |folders: &[PathBuf]| -> Vec<String> {
            folders
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        let files = DockerFiles::of_kubelet(Some("/work".as_ref()), Some("/root".as_ref()));
        assert_eq!(
            paths(&files.config_json),
            ["/var/lib/kubelet", "/work", "/root/.docker", "/.docker"]
        );
        assert_eq!(
            paths(&files.dockercfg),
            ["/var/lib/kubelet", "/work", "/root", "/"]
        );
        let homeless = DockerFiles::of_kubelet(None, None);
        assert_eq!(
            paths(&homeless.config_json),
            ["/var/lib/kubelet", "/.docker"]
        );
    }

    /// Files by name, the one that counts, and what is said of the one that is broken.
    type Row<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>, Option<&'a str>);

    #[test]
    fn the_first_file_that_can_be_read_counts_and_the_first_that_cannot_is_named() {
        let rows: &[Row<'_>] = &[
            (&[], None, None),
            (&[("a/config.json", GOOD)], Some("a/config.json"), None),
            (
                &[("a/.dockercfg", GOOD_OLD), ("b/config.json", GOOD)],
                Some("b/config.json"),
                None,
            ),
            (
                &[("a/config.json", GOOD), ("b/config.json", GOOD)],
                Some("a/config.json"),
                None,
            ),
            (&[("b/.dockercfg", GOOD_OLD)], Some("b/.dockercfg"), None),
            (
                &[("a/config.json", BROKEN), ("b/config.json", GOOD)],
                Some("b/config.json"),
                Some(
                    "a/config.json: entry 1 is not an object with the texts username, password and auth",
                ),
            ),
            (
                &[("a/config.json", "{"), ("a/.dockercfg", "[]")],
                None,
                Some("a/config.json: it is not JSON: line 1, column 1"),
            ),
            // A folder in its place.
            (
                &[("a/config.json/x", ""), ("b/.dockercfg", GOOD_OLD)],
                Some("b/.dockercfg"),
                Some("a/config.json: it cannot be read: it is not a file"),
            ),
        ];
        for (files, counts, broken) in rows {
            let dir = tempfile::tempdir().unwrap();
            for (name, content) in *files {
                let path = dir.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            let folders = ["a", "b", "c"].map(|name| dir.path().join(name));
            let found = DockerFiles::in_folders(&folders).read();
            let path = |name: &str| dir.path().join(name);
            assert_eq!(
                found.file.as_ref().map(|(path, _)| path.clone()),
                counts.map(path),
                "{files:?}"
            );
            assert!(
                found.file.iter().all(|(_, entries)| entries.len() == 1),
                "{files:?}"
            );
            let broken = broken.map(|broken| path(broken).display().to_string());
            let said = found.broken.as_ref().map(ToString::to_string);
            assert_eq!(said, broken, "{files:?}");
            assert!(!format!("{found:?}").contains("hunter2"));
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
        let found = DockerFiles::in_folders(&[dir.path().into()]).read();
        let said = found.broken.unwrap().to_string();
        assert!(said.ends_with("it has more than 1 MiB"), "{said}");
    }
}
