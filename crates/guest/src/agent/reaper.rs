//! Waits for every child: commands that we started and orphans that fell to pid 1.
//!
//! `waitpid(-1)` takes any child, so nobody else in this process may wait. The usage of one child
//! is the difference of `RUSAGE_CHILDREN` around the wait that took it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_guest::wire::Ended;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// The task's processes rather than the agent: a whole sandbox without its agent cannot even report
/// that memory ran out.
const TASK_OOM_SCORE: &str = "500";
const AGENT_OOM_SCORE: &str = "0";

/// A child that is gone.
#[derive(Debug)]
pub struct Reaped {
    pub ended: Ended,
    pub cpu_ms: u64,
    pub max_rss_kb: u64,
}

/// Who waits for which pid.
#[derive(Debug, Default)]
pub struct Reaper {
    waiting: Mutex<HashMap<i32, oneshot::Sender<Reaped>>>,
}

impl Reaper {
    /// Starts a command. The lock is held meanwhile, so that its end cannot be reaped before it is
    /// known who waits for it.
    pub fn start(
        &self,
        command: &mut Command,
    ) -> io::Result<(Child, Pid, oneshot::Receiver<Reaped>)> {
        let mut waiting = self.lock();
        // Raising our own score for the moment of the fork lets the child inherit it without a race;
        // going back down to the value we were started with needs no capability.
        let raised = fs::write("/proc/self/oom_score_adj", TASK_OOM_SCORE);
        let child = command.spawn();
        if raised.is_ok() {
            fs::write("/proc/self/oom_score_adj", AGENT_OOM_SCORE)?;
        }
        let child = child?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let (sender, receiver) = oneshot::channel();
        waiting.insert(pid, sender);
        Ok((child, Pid::from_raw(pid), receiver))
    }

    /// Kills one command's process group, and everything else in the sandbox too once no command
    /// runs: a daemon must not outlive the command that left it.
    pub fn sweep(&self, group: Pid) {
        // ESRCH is the good case: nobody is left.
        let _ = killpg(group, Signal::SIGKILL);
        if self.lock().is_empty() {
            let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        }
    }

    /// Reaps until the runtime ends.
    pub async fn run(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
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
            let Some(sender) = self.lock().remove(&pid.as_raw_nonzero().get()) else { continue };
            let ended = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ended::Exit(code),
                (None, signal) => Ended::Signal(signal.unwrap_or(0)),
            };
            let after = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
            let cpu_ms = cpu_ms(after.as_ref()).saturating_sub(cpu_ms(before.as_ref()));
            let max_rss_kb = after.map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0));
            // The command's task is gone when the host hung up; then nobody wants to know.
            let _ = sender.send(Reaped { ended, cpu_ms, max_rss_kb });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, oneshot::Sender<Reaped>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
