//! The agent's binary: see [`agent`], and [`probe`] for the escape self-test.

mod agent;
mod probe;

use cofferdam_guest::escape::{NEIGHBOUR, PROBE};

fn main() -> std::process::ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [PROBE, setting] => probe::all(setting),
        [PROBE, setting, id] => probe::one(setting, id),
        [NEIGHBOUR, marker] => probe::neighbour(marker),
        _ => agent::run(),
    }
}
