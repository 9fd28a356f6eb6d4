//! Compiles the gRPC services.

fn main() {}
