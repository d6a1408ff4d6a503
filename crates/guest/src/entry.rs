//! What the binary is asked to be: the agent, or the init of a machine.

use std::process::ExitCode;

use cofferdam_guest::job::ATTACH;
use cofferdam_guest::setup::{ENTER, INIT, REHEARSAL};
use cofferdam_guest::users::HOLD;
use cofferdam_guest::wire::SUBREAPER;

use crate::{agent, machine, user_namespace};

/// By its name and its arguments; without any it is the agent.
pub fn run() -> ExitCode {
    let mut words = std::env::args();
    if words.next().as_deref() == Some(INIT) {
        return machine::run();
    }
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [ENTER] => agent::run_in(machine::enter),
        [REHEARSAL] => agent::run_in(machine::rehearse),
        [SUBREAPER] => agent::run_as_subreaper(),
        [ATTACH] => agent::attach(),
        [HOLD, owner] => user_namespace::run(owner),
        _ => agent::run(),
    }
}
