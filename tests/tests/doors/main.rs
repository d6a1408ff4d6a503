//! The API's doors as strangers meet them: web pages, local users, floods of connections.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that cannot go on should say so and stop"
)]

mod flood;
mod local;
mod pages;
mod privileges;
mod raw;
#[path = "../support/mod.rs"]
mod support;
