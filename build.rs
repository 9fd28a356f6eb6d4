//! Compiles `proto/`: clients for the program, servers for the tests. No protoc is needed.

use std::path::PathBuf;

const PROTOS: [&str; 7] = [
    "proto/cri/v1.proto",
    "proto/containerd/version.proto",
    "proto/containerd/leases.proto",
    "proto/containerd/content.proto",
    "proto/containerd/events.proto",
    "proto/containerd/images.proto",
    "proto/containerd/snapshots.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::create_dir_all(out.join("server"))?;

    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(&out)
        .compile_fds(files.clone())?;
    // Only the tests include these: they need tonic's `server`, which the program does without.
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(out.join("server"))
        .compile_fds(files)?;
    Ok(())
}
