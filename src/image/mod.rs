//! Image references: how an image is written, which image is meant, and a number for each name.

mod grammar;
mod hash;
pub mod reference;

pub use hash::hash;
pub use reference::{InvalidReference, Reference};
