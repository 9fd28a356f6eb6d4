//! Image references: how an image is written, and which image is meant.

mod grammar;
pub mod reference;

pub use reference::{InvalidReference, Reference};
