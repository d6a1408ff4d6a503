//! Real sandboxes of every class that the host has: one binary, a file a subject.

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

mod agent;
mod ahead;
mod archives;
mod boundary;
mod cache;
mod cache_store;
mod commands;
mod conformance;
mod copies;
mod docker;
mod doors;
mod egress;
mod flood;
mod host_paths;
mod image_server;
mod images;
mod kernel;
mod large_layers;
mod models;
mod orphans;
mod plans;
#[path = "../../../tests/src/port_reservation.rs"]
mod port_reservation;
mod probes;
#[path = "support/provider.rs"]
mod provider;
mod remote;
mod service_images;
mod services;
mod stored;
mod support;
mod threads;
mod unrouted;
mod users;
