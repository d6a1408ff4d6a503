//! The HTTP API as its users meet it: what each route does, and what it refuses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

mod bodies;
mod calls;
mod document;
mod operations;
mod paths;
mod permissions;
mod runs;
mod tasks;
mod values;
mod world;
