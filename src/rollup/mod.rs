//! The elected agent's loop.
