//! The shapes, their schemas and their parsers: one binary, a file a subject.

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

mod bounds;
mod documents;
mod editor_schema;
mod errors;
mod examples;
mod fuzz;
mod gate_parser;
#[allow(dead_code, reason = "the pages of other crates use the rest")]
mod golden;
mod jcs;
mod recipe_page;
mod schemas;
mod shell;
