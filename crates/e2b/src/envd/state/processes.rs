//! The commands of a sandbox.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use serde::Deserialize;
use serde_json::Value;

use crate::connect::fault::Fault;
use crate::envd::state::Envd;
use crate::envd::state::process::{Follower, Process, ProcessRecord};

/// The end of a command is kept so long for a follower that comes late.
const KEPT: Duration = Duration::from_secs(30);
/// Commands in one list, those that ended included. The latter make room for others before their time.
const MAX_LISTED: usize = 256;

/// A command that was started, or that a pause did not end.
pub(crate) struct NewProcess {
    pub pid: u32,
    pub running: cofferdam_live::Process,
    pub config: Value,
    pub tag: Option<String>,
    pub is_pty: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

impl Envd {
    /// Enters a started command in the list, and gives its first follower: nothing that it says is missed.
    pub(crate) fn enter(self: &Arc<Self>, new: NewProcess) -> Follower {
        let NewProcess { pid, running, config, tag, is_pty } = new;
        let cofferdam_live::Process { number, input, output, .. } = running;
        let process = Process::of(
            self.guest.clone(),
            ProcessRecord { pid, number, config, tag, is_pty },
            input,
        );
        let process = Arc::new(process);
        listed_in(&mut self.processes(), pid, Arc::clone(&process));
        // Before the first piece.
        let following = process.follow();
        let envd = Arc::clone(self);
        tokio::spawn(async move {
            process.pump(output).await;
            clock::sleep(KEPT).await;
            let mut processes = envd.processes();
            // Its number may be another's by now.
            if processes.get(&pid).is_some_and(|found| Arc::ptr_eq(found, &process)) {
                processes.remove(&pid);
            }
        });
        following
    }
}

/// Enters a command, in the place of one that ended where there are many.
fn listed_in(processes: &mut HashMap<u32, Arc<Process>>, pid: u32, process: Arc<Process>) {
    if processes.len() >= MAX_LISTED {
        let ended = processes.iter().find(|(_, process)| process.is_over()).map(|(pid, _)| *pid);
        ended.and_then(|pid| processes.remove(&pid));
    }
    processes.insert(pid, process);
}

/// A process, one that ended a moment ago included.
pub(crate) fn found(envd: &Envd, wanted: &Selector) -> Result<Arc<Process>, Fault> {
    let processes = envd.processes();
    let found = match (wanted.pid, &wanted.tag) {
        (Some(pid), None) => processes.get(&pid),
        (None, Some(tag)) => {
            let tagged =
                processes.values().filter(|process| process.known.tag.as_ref() == Some(tag));
            // Of several, one that runs.
            tagged.min_by_key(|process| process.is_over())
        }
        _ => return Err(Fault::argument("a process is selected by its pid or by its tag")),
    };
    found.cloned().ok_or_else(|| match wanted.pid {
        Some(pid) => Fault::missing(format!("process with pid {pid} not found")),
        None => Fault::missing("process with this tag not found"),
    })
}

pub(crate) fn running(envd: &Envd, wanted: &Selector) -> Result<Arc<Process>, Fault> {
    let found = found(envd, wanted)?;
    match found.is_over() {
        true => Err(Fault::missing(format!("process with pid {} not found", found.known.pid))),
        false => Ok(found),
    }
}
