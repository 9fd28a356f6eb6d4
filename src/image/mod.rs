//! Image references.
