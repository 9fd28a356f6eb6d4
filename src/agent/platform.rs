//! The platform of this node, and which images run on it.

use crate::runtime::Platform;

/// The platform that an image is made for, if it is not one that runs here.
///
/// An image that names no architecture (an artifact, a hand-made one) is for every node.
pub fn foreign(platform: Option<&Platform>) -> Option<String> {
    foreign_to(std::env::consts::ARCH, platform)
}

fn foreign_to(arch: &str, platform: Option<&Platform>) -> Option<String> {
    let platform = platform.filter(|platform| !platform.architecture.is_empty())?;
    let os_fits = platform.os.is_empty() || platform.os == "linux";
    let fits = os_fits && runnable(arch).contains(&platform.architecture.as_str());
    (!fits).then(|| format!("{}/{}", platform.os, platform.architecture))
}

/// What containerd pulls on a machine of this kind, in Go's names, the native one first.
fn runnable(arch: &str) -> &[&str] {
    match arch {
        "x86_64" => &["amd64", "386"],
        "aarch64" => &["arm64", "arm"],
        "x86" => &["386"],
        "powerpc64" => &["ppc64le", "ppc64"],
        "loongarch64" => &["loong64"],
        "arm" => &["arm"],
        "riscv64" => &["riscv64"],
        "s390x" => &["s390x"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_for_another_machine_is_foreign() {
        let rows = [
            ("x86_64", "linux", "amd64", None),
            ("x86_64", "linux", "386", None),
            ("x86_64", "linux", "arm64", Some("linux/arm64")),
            ("x86_64", "windows", "amd64", Some("windows/amd64")),
            ("aarch64", "linux", "arm64", None),
            ("aarch64", "linux", "arm", None),
            ("aarch64", "linux", "amd64", Some("linux/amd64")),
            ("x86_64", "", "", None),
        ];
        for (arch, os, architecture, expected) in rows {
            let platform = Platform {
                os: os.into(),
                architecture: architecture.into(),
            };
            assert_eq!(
                foreign_to(arch, Some(&platform)).as_deref(),
                expected,
                "{os}/{architecture} on {arch}"
            );
        }
        assert_eq!(foreign_to("x86_64", None), None);
    }
}
