//! Services inside a sandbox's boundary, as they are started and asked.
//!
//! ```text
//! PlannedService --start--> agent's child --probe--> healthy -> task
//!                                |
//!                  exits, or not in time: BOOT_FAIL, last words
//! ```
//! They share the sandbox's loopback, limits and end; the sweep after a command spares them.

mod env;
mod probe;
mod start;

pub use start::ServiceEnd;
pub(crate) use start::{ServiceError, Services, start};
