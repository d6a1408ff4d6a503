//! `make test` asks it before and after the suite: is anything of ours left on this host?
//!
//! ```text
//! leftovers keep FILE        notes what is there now
//! leftovers compare FILE     fails with a list of what is there since
//! leftovers                  fails with a list of everything of ours that is there
//! ```
//! Other work on the host does not fail it. Where another suite of ours runs there too,
//! `--about TEXT` narrows the list to traces with this text. `--now` gives nothing time to go.
//! Network devices are only compared: they have no name of ours.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a tool of the build speaks to whoever builds"
)]

use std::process::ExitCode;
use std::time::Duration;

use cofferdam_tests::leftovers;

const USAGE: &str = "usage: leftovers [keep FILE | compare FILE] [--about TEXT] [--now]";

fn main() -> ExitCode {
    let mut words = Vec::new();
    let (mut about, mut patience) = (String::new(), leftovers::PATIENCE);
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--now" => patience = Duration::ZERO,
            "--about" => about = given.next().unwrap_or_default(),
            _ => words.push(word),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let before = match words.as_slice() {
        ["keep", file] => return keep(file),
        ["compare", file] => match std::fs::read_to_string(file) {
            Ok(text) => leftovers::read(&text),
            Err(error) => return fail(&format!("{file}: {error}")),
        },
        [] => leftovers::look().into_iter().filter(|trace| trace.kind == "link").collect(),
        _ => return fail(USAGE),
    };
    let left = leftovers::left_since(&before, &about, patience);
    if left.is_empty() {
        eprintln!("leftovers: nothing of ours is left on this host");
        return ExitCode::SUCCESS;
    }
    for trace in &left {
        eprintln!("leftovers: {} {}", trace.kind, trace.name);
    }
    fail(&format!("traces that are left on this host: {}", left.len()))
}

fn keep(file: &str) -> ExitCode {
    match std::fs::write(file, leftovers::write(&leftovers::look())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{file}: {error}")),
    }
}

fn fail(words: &str) -> ExitCode {
    eprintln!("leftovers: {words}");
    ExitCode::FAILURE
}
