//! Attempts that have no way out and so never reach the proxy, or that are made where there is none: an
//! address dialled directly, a datagram.
//!
//! ```text
//! services run -> [commands of build] -> enter(exec): look -> [commands] -> look at the end
//!
//! on the host's kernel   the namespace's own counters, read by us     no address
//! in a machine           the same of its kernel, told by its agent    address and port, where it traced them
//! in gVisor              each connect, told by gVisor itself          address and port
//! ```
//! The kernel counts them for each network namespace: every connect and send that it refuses because no
//! route leads there moves `OutNoRoutes` of its IP version by one. It keeps no address, so neither do we.
//! gVisor counts nothing of the kind, but tells of one system call what we ask; a datagram that is sent
//! without a connect is not seen there. A resolver that connects a datagram socket, only to see whether it
//! could, has tried. A look costs some 40 microseconds, so a command that ends well costs none: one that
//! failed does, the end of its phase, and whoever asks. What services try meanwhile belongs to the command
//! beside them.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::{Phase, Violation, ViolationReason};
use cofferdam_guest::snmp;
use cofferdam_guest::wire::NoRoute;

use super::policy::EgressRefusal;
use super::violation::Log;

/// Attempts between two looks: more than any kernel refuses meanwhile, and sums of it can be stored. An agent
/// may say more.
const MOST: u64 = 1 << 32;

/// What is left after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadStatus {
    /// Nothing for now.
    Nothing,
    /// The reader stopped at its bound, and more may wait.
    More,
    /// Nothing will come any more.
    Ended,
}

/// One report of connects that no route led anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRouteConnect {
    /// A connect that no route led anywhere: its address, and its port where there is one.
    To(IpAddr, Option<u16>),
    /// So many connects of which nothing is known.
    Lost(u32),
}

/// A kernel of its own that tells each attempt.
pub(crate) trait AttemptReporter: fmt::Debug + Send + Sync {
    /// Gives what was told and not taken yet.
    fn take(&self, give: &mut dyn FnMut(NoRouteConnect)) -> ReadStatus;
}

/// Where attempts are seen.
#[derive(Debug)]
enum AttemptSource {
    /// By the host's kernel, in the network namespace of this process.
    Namespace(u32),
    /// By a machine's kernel; its agent says it with every command's end.
    Machine,
    /// By gVisor, which tells each.
    Reporter(Arc<dyn AttemptReporter>),
}

/// The attempts of one sandbox, and what came of them.
#[derive(Debug)]
pub(crate) struct NoRouteAttempts {
    by: AttemptSource,
    state: Mutex<AttemptState>,
    log: Log,
}

#[derive(Debug)]
struct AttemptState {
    /// How many were counted, where they are.
    seen: u64,
    /// `None`: no command has run.
    phase: Option<Phase>,
}

impl NoRouteAttempts {
    /// Those of the namespace of this process, from now on.
    pub(crate) fn in_namespace(init_pid: u32) -> Self {
        Self::of(AttemptSource::Namespace(init_pid), read(init_pid).unwrap_or(0))
    }

    /// Those that a machine's agent tells, beyond so many.
    pub(crate) fn in_machine(before: u64) -> Self {
        Self::of(AttemptSource::Machine, before)
    }

    /// Those that gVisor tells, from the first command on.
    pub(crate) fn by_reporter(reporter: Arc<dyn AttemptReporter>) -> Self {
        Self::of(AttemptSource::Reporter(reporter), 0)
    }

    fn of(by: AttemptSource, seen: u64) -> Self {
        Self { by, state: Mutex::new(AttemptState { seen, phase: None }), log: Log::default() }
    }

    /// A command of this phase starts: what was tried until now belongs to the one before.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = self.lock();
        if state.phase != Some(phase) {
            self.take(&mut state);
        }
        state.phase = Some(phase);
    }

    /// What an agent says of all attempts so far, at the end of a command: as good as its word. It shares
    /// the sandbox with the task.
    pub(crate) fn told(&self, now: u64, places: &[NoRoute]) {
        if matches!(self.by, AttemptSource::Machine) {
            self.count(&mut self.lock(), now, places);
        }
    }

    /// Takes what is there now.
    pub(crate) fn drain(&self) -> ReadStatus {
        self.take(&mut self.lock())
    }

    /// How many attempts there were.
    pub(crate) fn look(&self) -> u64 {
        self.drain();
        self.log.total()
    }

    /// How many there were when somebody looked last.
    pub(crate) fn looked(&self) -> u64 {
        self.log.total()
    }

    /// One for each phase, and each address that is known; and how many attempts are not on the list.
    pub(crate) fn violations(&self) -> (Vec<Violation>, u64) {
        self.drain();
        self.log.all()
    }

    /// Nothing where the sandbox has ended, and its counters with it.
    fn take(&self, state: &mut AttemptState) -> ReadStatus {
        match &self.by {
            AttemptSource::Namespace(pid) if state.phase.is_some() => {
                if let Some(now) = read(*pid) {
                    self.count(state, now, &[]);
                }
                ReadStatus::Nothing
            }
            AttemptSource::Namespace(_) | AttemptSource::Machine => ReadStatus::Nothing,
            AttemptSource::Reporter(reporter) => reporter.take(&mut |told| {
                // Before the first command it is what a service tried while it started.
                let Some(phase) = state.phase else { return };
                match told {
                    NoRouteConnect::To(address, port) => {
                        self.log.record(phase, &to(address, port), clock::now_ms());
                    }
                    // They may have been refused.
                    NoRouteConnect::Lost(count) => self.log.lost(count.into()),
                }
            }),
        }
    }

    /// As many as the counter says: first those whose place is known, then the others.
    fn count(&self, state: &mut AttemptState, now: u64, places: &[NoRoute]) {
        let mut tried = now.saturating_sub(state.seen).min(MOST);
        state.seen = now.max(state.seen);
        let Some(phase) = state.phase else { return };
        let now_ms = clock::now_ms();
        for NoRoute { address, port, count } in places {
            let port = Some(*port).filter(|port| *port != 0);
            let count = tried.min(*count);
            self.log.record_all(phase, &to(*address, port), count, now_ms);
            tried = tried.saturating_sub(count);
        }
        let nameless = EgressRefusal::nameless(ViolationReason::NoRoute, None);
        self.log.record_all(phase, &nameless, tried, now_ms);
    }

    fn lock(&self) -> MutexGuard<'_, AttemptState> {
        // A panic elsewhere leaves counts that are still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to(address: IpAddr, port: Option<u16>) -> EgressRefusal {
    EgressRefusal { why: ViolationReason::NoRoute, name: None, address: Some(address), port }
}

fn read(pid: u32) -> Option<u64> {
    let four = fs::read_to_string(format!("/proc/{pid}/net/snmp")).ok()?;
    // Absent where the kernel has no IPv6.
    let six = fs::read_to_string(format!("/proc/{pid}/net/snmp6")).unwrap_or_default();
    Some(snmp::no_routes(&four, &six))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16, count: u64) -> NoRoute {
        NoRoute { address: [192, 0, 2, 1].into(), port, count }
    }

    fn told(attempts: &NoRouteAttempts) -> Vec<(Phase, Option<u16>, u64)> {
        let (list, unlisted) = attempts.violations();
        assert_eq!(unlisted, 0);
        list.iter().map(|violation| (violation.phase, violation.port, violation.count)).collect()
    }

    #[test]
    fn an_agents_places_are_at_most_as_many_as_it_counted_and_the_rest_has_none() {
        let attempts = NoRouteAttempts::in_machine(3);
        attempts.enter(Phase::Build);
        attempts.told(8, &[place(443, 2)]);
        attempts.enter(Phase::Exec);
        attempts.told(10, &[place(0, 1), place(80, u64::MAX), place(81, 1)]);
        // Nothing new, and a counter that goes back.
        attempts.told(10, &[place(82, 1)]);
        attempts.told(9, &[]);
        attempts.told(10, &[]);
        let build = [(Phase::Build, Some(443), 2), (Phase::Build, None, 3)];
        let exec = [(Phase::Exec, None, 1), (Phase::Exec, Some(80), 1)];
        assert_eq!(told(&attempts), [build, exec].concat());
        assert_eq!(attempts.looked(), 7);
    }

    #[test]
    fn an_agent_that_says_anything_says_no_more_than_can_be_stored() {
        let attempts = NoRouteAttempts::in_machine(0);
        attempts.enter(Phase::Exec);
        attempts.told(u64::MAX, &[place(1, u64::MAX)]);
        attempts.told(u64::MAX, &[place(2, 1)]);
        assert_eq!(told(&attempts), [(Phase::Exec, Some(1), MOST)]);
    }

    #[test]
    fn only_a_machines_agent_is_listened_to() {
        let attempts = NoRouteAttempts::in_namespace(std::process::id());
        attempts.enter(Phase::Exec);
        attempts.told(1 << 20, &[place(1, 1)]);
        assert!(told(&attempts).iter().all(|(_, port, _)| port.is_none()));
    }
}
