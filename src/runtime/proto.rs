//! The messages and clients that `build.rs` makes from `proto/`.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

pub mod cri {
    tonic::include_proto!("runtime.v1");
}

pub mod containerd {
    pub mod content {
        tonic::include_proto!("containerd.services.content.v1");
    }
    pub mod events {
        tonic::include_proto!("containerd.services.events.v1");
    }
    pub mod images {
        tonic::include_proto!("containerd.services.images.v1");
    }
    pub mod leases {
        tonic::include_proto!("containerd.services.leases.v1");
    }
    pub mod snapshots {
        tonic::include_proto!("containerd.services.snapshots.v1");
    }
    pub mod version {
        tonic::include_proto!("containerd.services.version.v1");
    }
}
