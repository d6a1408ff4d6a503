//! Pid 1 of a sandbox.
//!
//! ```text
//! stdin (socket) -> serve -> route -> { health | metrics | file, collect, tree, pack, unpack, watch | dial | doors
//!                                       | exec, run, job, follow | sleep | keep }
//!                                           |
//! SIGCHLD -> reaper --- status -------------+
//! end of stdin -> run returns -> the pid namespace ends; a subreaper agent waits for the next stream at its socket
//! ```
//! One thread and no blocking pool, so the agent is exactly one of the sandbox's processes. Its
//! memory is not readable from inside, although the task has the same user: it is not dumpable.

mod agent_sleep;
mod answer;
mod clock;
mod collect;
mod dial;
mod doors;
mod exec;
mod file;
mod freeze;
mod identity;
mod jail;
mod jobs;
mod layer_stream;
mod metrics;
mod outlet;
mod pack;
mod persistent_stream;
mod poll_fd;
mod port;
mod reaper;
mod run;
mod serve;
mod subreaper;
mod terminal;
mod tree;
mod unpack;
mod watch;

pub use clock::{now_ms, sleep_blocking_ms, sleep_ms};

use std::io::Write as _;
use std::process::ExitCode;

use nix::unistd::{Uid, setresuid};
use reaper::Reaper;
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setpriority_process};

/// The same, once somebody has put the stream there.
pub fn run_in(prepare: impl FnOnce() -> std::io::Result<()>) -> ExitCode {
    ended(prepare().and_then(|()| start(Reaper::new())))
}

/// The same in a sandbox that somebody else holds, and whose first process is theirs.
pub fn run_as_subreaper() -> ExitCode {
    ended(subreaper::adopt().and_then(|()| start(Reaper::of_subreaper())))
}

/// Carries this process's own stdin and stdout to the agent that runs already, until either ends.
pub fn attach() -> ExitCode {
    ended(run_alone(subreaper::attach()))
}

/// The agent's saved user id: one that no task has by chance.
const APART: u32 = 65_533;

/// Serves until the stream on stdin ends. What goes wrong is one line on stderr, the host's pipe.
pub fn run() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    ended(match args.next() {
        Some(word) if word == terminal::SESSION => Err(terminal::lead(args)),
        Some(word) if word == jail::JAIL => Err(jail::enter(args)),
        _ => start(Reaper::new()),
    })
}

fn ended(ended: std::io::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With stderr gone there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "cofferdam-guest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(reaper: Reaper) -> std::io::Result<()> {
    // A server goes before its sandboxes, and what started this process had that from it.
    let _ = setpriority_process(None, 0);
    // Both hold already under an OCI runtime that was asked for them; in a microVM this is the
    // only place that asks.
    rustix::thread::set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Its limits are not a task's to lower: the kernel lets a process set those of another only where all three ids are its
    // own. What is executed from here on has the effective one as its saved one again.
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(APART))?;
    run_alone(serve::serve(reaper))
}

fn run_alone(work: impl Future<Output = std::io::Result<()>>) -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
