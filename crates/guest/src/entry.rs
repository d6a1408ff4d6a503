//! What the binary is asked to be: the agent, or a part of the escape self-test.

use std::process::ExitCode;

use cofferdam_guest::escape::{NEIGHBOUR, PROBE};

use crate::{agent, probe};

/// By its arguments; without any it is the agent.
pub fn run() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [PROBE, setting] => probe::all(setting),
        [PROBE, setting, id] => probe::one(setting, id),
        [NEIGHBOUR, marker] => probe::neighbour(marker),
        _ => agent::run(),
    }
}
