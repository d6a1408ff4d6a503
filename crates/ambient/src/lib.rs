//! The one place that touches the clock, randomness, the environment and sleep, and takes locks of files.
//!
//! Everywhere else `clippy.toml` refuses those calls, so that a run replays from its seed and a
//! reader can see at a glance where nondeterminism enters.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! clock file_lock random
//! env own
//! ```

pub mod clock;
pub mod env;
pub mod file_lock;
pub mod own;
pub mod random;
