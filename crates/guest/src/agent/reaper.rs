//! Waits for every child: commands that we started and orphans that fell to pid 1.
//!
//! `waitpid(-1)` takes any child, so nobody else in this process may wait. The usage of one child
//! is the difference of `RUSAGE_CHILDREN` around the wait that took it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_guest::wire::CommandExit;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::signal;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use tokio::signal::unix::SignalKind;
use tokio::sync::oneshot;

/// The task's processes rather than the agent: a whole sandbox without its agent cannot even report
/// that memory ran out.
const TASK_OOM_SCORE: &str = "500";
const AGENT_OOM_SCORE: &str = "0";

/// A child that is gone.
#[derive(Debug)]
pub struct ChildExit {
    pub ended: CommandExit,
    pub cpu_ms: u64,
    pub max_rss_kb: u64,
}

/// Who waits for which pid.
#[derive(Debug, Default)]
pub struct Reaper {
    waiting: Mutex<HashMap<i32, Waiter>>,
    /// Our own score; opened once, because opening it takes longer than writing it.
    score: Option<File>,
    /// There are others in this sandbox, who are none of our commands'.
    is_subreaper: bool,
}

#[derive(Debug)]
struct Waiter {
    sender: oneshot::Sender<ChildExit>,
    /// It and its descendants are spared when a command ends.
    service: bool,
}

impl Reaper {
    /// Of this process.
    pub fn new() -> Self {
        // Not merely for writing: a kernel that lets the score be raised and not lowered again, as
        // gVisor's does, refuses to truncate it.
        let score = File::create("/proc/self/oom_score_adj").ok();
        Self { score, ..Self::default() }
    }

    /// Of a process that is not the sandbox's first. Its score is its provider's to set.
    pub fn of_subreaper() -> Self {
        Self { is_subreaper: true, ..Self::default() }
    }

    /// Whether somebody else holds the sandbox.
    pub fn is_subreaper(&self) -> bool {
        self.is_subreaper
    }

    /// Starts a command. The lock is held meanwhile, so that its end cannot be reaped before it is
    /// known who waits for it.
    pub fn start(
        &self,
        command: &mut Command,
        service: bool,
    ) -> io::Result<(Child, Pid, oneshot::Receiver<ChildExit>)> {
        let mut waiting = self.lock();
        // Raising our own score for the moment of the fork lets the child inherit it without a race;
        // going back down to the value we were started with needs no capability.
        let set =
            |score: &str| self.score.as_ref().map(|file| file.write_all_at(score.as_bytes(), 0));
        let raised = set(TASK_OOM_SCORE);
        let child = command.spawn();
        if let Some(Ok(())) = raised {
            set(AGENT_OOM_SCORE).transpose()?;
        }
        let child = child?;
        let pid = Pid::from_child(&child);
        let (sender, receiver) = oneshot::channel();
        waiting.insert(pid.as_raw_pid(), Waiter { sender, service });
        Ok((child, pid, receiver))
    }

    /// Sends a signal to a running command's group; `false` if it has ended.
    pub fn signal(&self, group: Pid, signal: Signal) -> bool {
        self.lock().contains_key(&group.as_raw_pid()) && kill_process_group(group, signal).is_ok()
    }

    /// Kills one command's process group, and everything else in the sandbox too once no command
    /// runs, but for services: a daemon must not outlive the command that left it.
    pub fn sweep(&self, group: Pid) {
        let waiting = self.lock();
        // ESRCH is the good case: nobody is left.
        let _ = kill_process_group(group, Signal::KILL);
        if waiting.contains_key(&group.as_raw_pid()) {
            // With a terminal it leads its group only from its first moments on.
            let _ = kill_process(group, Signal::KILL);
        }
        if waiting.values().any(|waiter| !waiter.service) {
            return;
        }
        let services: HashSet<i32> = waiting.keys().copied().collect();
        if self.is_subreaper {
            super::subreaper::kill_descendants(&services);
        } else if services.is_empty() {
            everybody(signal::SIGKILL);
        } else {
            kill_strangers(&services);
        }
    }

    /// Ends a command that is not to go on: its group alone, where what it leaves may live on.
    pub fn end(&self, group: Pid, leaves: bool) {
        if !leaves {
            return self.sweep(group);
        }
        let waiting = self.lock();
        let _ = kill_process_group(group, Signal::KILL);
        if waiting.contains_key(&group.as_raw_pid()) {
            let _ = kill_process(group, Signal::KILL);
        }
    }

    /// Reaps until the runtime ends.
    pub async fn run(&self) -> io::Result<()> {
        let mut children = tokio::signal::unix::signal(SignalKind::child())?;
        while children.recv().await.is_some() {
            self.reap();
        }
        Ok(())
    }

    /// Takes every child that has ended; the sandbox's pids limit bounds the loop. An error means
    /// that there is no child.
    fn reap(&self) {
        loop {
            let before = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
            let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) else { return };
            let Some(waiter) = self.lock().remove(&pid.as_raw_pid()) else { continue };
            let ended = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => CommandExit::Exit(code),
                (None, signal) => CommandExit::Signal(signal.unwrap_or(0)),
            };
            let after = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
            let cpu_ms = cpu_ms(after.as_ref()).saturating_sub(cpu_ms(before.as_ref()));
            let max_rss_kb = after.map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0));
            // The command's task is gone when the host hung up; then nobody wants to know.
            let _ = waiter.sender.send(ChildExit { ended, cpu_ms, max_rss_kb });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills everybody but the services and their descendants.
///
/// All are stopped first, which one call does for every process at once and which also stops what is
/// in the middle of a fork: nobody can slip away between the looking and the killing.
fn kill_strangers(services: &HashSet<i32>) {
    everybody(signal::SIGSTOP);
    let parents = parents();
    for pid in parents.keys().filter(|pid| **pid != 1 && !descends(**pid, services, &parents)) {
        super::subreaper::send(*pid, Signal::KILL);
    }
    everybody(signal::SIGCONT);
}

/// Sends a signal to every process of the sandbox but this one.
fn everybody(signal: signal::Signal) {
    let _ = signal::kill(nix::unistd::Pid::from_raw(-1), signal);
}

pub(super) fn descends(pid: i32, services: &HashSet<i32>, parents: &HashMap<i32, i32>) -> bool {
    let mut at = pid;
    // A chain has no more links than there are processes.
    for _ in 0..=parents.len() {
        if services.contains(&at) {
            return true;
        }
        match parents.get(&at) {
            Some(parent) => at = *parent,
            None => return false,
        }
    }
    false
}

/// The parent of every process.
pub(super) fn parents() -> HashMap<i32, i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything, parentheses included; what follows the last one does not.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        Some((pid, rest.split_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

fn cpu_ms(usage: Option<&Usage>) -> u64 {
    let Some(usage) = usage else { return 0 };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let micros = u64::try_from(time.tv_usec()).unwrap_or(0);
            seconds * 1_000 + micros / 1_000
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descent_is_followed_to_a_service_and_a_loop_ends() {
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 7), (7, 6)]);
        let services = HashSet::from([2]);
        for (pid, spared) in [(2, true), (4, true), (5, false), (6, false), (9, false)] {
            assert_eq!(descends(pid, &services, &parents), spared, "{pid}");
        }
    }

    #[test]
    fn our_own_parent_is_found() {
        let ours = i32::try_from(std::process::id()).unwrap();
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        assert_eq!(parents().get(&ours), Some(&parent));
    }
}
