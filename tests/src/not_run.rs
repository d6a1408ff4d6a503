//! A test whose part this machine lacks is reported by its name, never passed over in silence.
//!
//! Every crate's tests include this file; `make test` prints what it collected, and `make release` refuses it.

#![allow(
    dead_code,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test's own report; every test file is a crate of its own"
)]

use std::io::Write as _;

/// The file that `make test` names, a line for each: the test, the part, why it is not there.
pub const FILE: &str = "COFFERDAM_NOT_RUN";

/// Says that this test, or its half about `part`, does not run here, and why.
pub fn not_run(part: &str, why: &str) {
    // The test harness gives each test's thread its name.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test}\t{part}\t{}\n", why.replace(['\t', '\n'], " "));
    eprint!("NOT RUN: {line}");
    let Some(file) = std::env::var_os(FILE) else { return };
    let file = std::fs::File::options().create(true).append(true).open(file);
    // One write, so that lines of many processes do not mix.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!("NOT RUN could not be reported: {error}");
        std::process::abort();
    }
}

/// Why a part is left out.
pub const PART: &str = "COFFERDAM_TEST_PART=1";

/// Whether a part stands for all of it, as in CI: of what is held in machines, which take seconds for each boot where they are emulated.
pub fn is_in_part() -> bool {
    std::env::var_os("COFFERDAM_TEST_PART").is_some_and(|part| part == "1")
}

/// Whether a test of many classes leaves this one out, which is reported.
pub fn left_out(class: &str) -> bool {
    let is_left_out = class == "microvm" && is_in_part();
    if is_left_out {
        not_run("the class microvm", PART);
    }
    is_left_out
}
