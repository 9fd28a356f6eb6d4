//! The node's container runtime, over its socket.
