//! Pure functions: no async, no clock, no input or output.
