//! The real binary from outside: every test of the whole in one binary, a file a subject.

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

mod admission;
mod agents;
mod ahead;
mod architecture;
mod archive;
mod artifacts;
mod auditors;
mod browser;
mod busy;
mod cache;
mod capacity;
mod chaos;
mod check;
mod cli;
mod config;
mod contract;
mod databases;
mod determinism;
mod dispatch_bad_input;
mod dispatch_import;
mod dispatch_records;
mod dispatches;
mod docker;
mod doors;
mod e2b;
mod egress_asks;
mod exec;
mod exec_input;
mod failures_of_the_known;
mod gate_consent;
mod gate_failpoints;
mod gate_links;
mod gate_people;
mod gates;
mod git_results;
mod github_actions;
mod hooks;
mod host_paths;
mod http;
mod keys;
mod language;
mod least_class;
mod leftovers;
mod logs;
mod memory;
mod mirrors;
mod models;
mod names;
mod objects;
mod opencode;
mod outages;
mod own_names;
mod own_runs;
mod packages;
mod permanent;
mod pipeline_gates;
mod pipelines;
mod pipes;
mod places;
mod planner;
mod policies;
mod progress;
mod projects;
mod prompts;
mod proofs;
#[path = "../../crates/sandbox/tests/support/provider.rs"]
#[allow(dead_code, reason = "the list of the class `remote` uses the rest")]
mod provider;
mod python_tools;
mod quota;
mod reference;
mod registries;
mod release_gates;
mod remote;
mod reports;
mod reports_world;
mod retention;
mod retries;
mod run_lists;
mod schedules;
mod secrets;
mod services;
mod skips;
mod soak;
mod statements;
mod storm;
mod storms;
mod stranded;
mod strange_projects;
mod strict;
mod supply;
mod support;
mod terminal;
mod test_reports;
mod timeouts;
mod toolchains;
mod trees;
mod uploads;
mod users;
mod waiting;
mod webhooks;
mod wipes;

use cofferdam_tests::port_reservation;
