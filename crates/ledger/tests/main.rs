//! The schema and the cluster against a real PostgreSQL: one binary, a file a subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot go on should say so and stop"
)]

mod begin;
mod cancel;
mod capacity;
mod claims;
mod cluster;
mod erasures;
mod families;
mod gate_model;
mod graphs;
mod lives;
mod migrations;
#[path = "../../../tests/src/not_run.rs"]
mod not_run;
mod objects;
mod retries;
