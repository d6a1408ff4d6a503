//! Attempts that have no way out and so never reach the proxy, or that are made where there is none: an
//! address dialled directly, a datagram.
//!
//! ```text
//! services run -> of -> enter(build) -> [commands] -> enter(exec): look -> [commands] -> look at the end
//! ```
//! The kernel counts them for each network namespace: every connect and send that it refuses because no
//! route leads there moves `OutNoRoutes` of its IP version by one. It keeps no address, so neither do we;
//! and it does not count a raw echo request. A resolver that connects a datagram socket, only to see
//! whether it could, has tried. A look costs some 40 microseconds, so a command that ends well costs none:
//! one that failed does, the end of its phase, and whoever asks.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::{Phase, Violation, ViolationWhy};

use super::policy::Refused;
use super::violation::Log;

/// The counters of one sandbox, and what came of them.
#[derive(Debug)]
pub(crate) struct Unrouted {
    init_pid: u32,
    state: Mutex<State>,
    log: Log,
}

#[derive(Debug)]
struct State {
    seen: u64,
    /// `None`: no command has run.
    phase: Option<Phase>,
}

impl Unrouted {
    /// Those of the namespace of this process, from now on.
    pub(crate) fn of(init_pid: u32) -> Self {
        let state = State { seen: read(init_pid).unwrap_or(0), phase: None };
        Self { init_pid, state: Mutex::new(state), log: Log::default() }
    }

    /// A command of this phase starts: what was tried until now belongs to the one before.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = self.lock();
        if state.phase.is_some_and(|before| before != phase) {
            self.take(&mut state);
        }
        state.phase = Some(phase);
    }

    /// How many attempts there were.
    pub(crate) fn look(&self) -> u64 {
        self.take(&mut self.lock());
        self.log.total()
    }

    /// How many there were when somebody looked last.
    pub(crate) fn looked(&self) -> u64 {
        self.log.total()
    }

    /// At most one of each phase.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.take(&mut self.lock());
        self.log.all().0
    }

    /// Nothing where the sandbox has ended, and its counters with it.
    fn take(&self, state: &mut State) {
        let (Some(phase), Some(now)) = (state.phase, read(self.init_pid)) else { return };
        let tried = now.saturating_sub(state.seen);
        state.seen = now;
        let refused = Refused::nameless(ViolationWhy::NoRoute, None);
        self.log.record_all(phase, &refused, tried, clock::now_ms());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves counts that are still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(pid: u32) -> Option<u64> {
    let four = fs::read_to_string(format!("/proc/{pid}/net/snmp")).ok()?;
    // Absent where the kernel has no IPv6.
    let six = fs::read_to_string(format!("/proc/{pid}/net/snmp6")).unwrap_or_default();
    Some(four_of(&four).unwrap_or(0).saturating_add(six_of(&six).unwrap_or(0)))
}

/// Names on one line, their values on the next.
fn four_of(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let at = lines.next()?.split(' ').position(|name| name == "OutNoRoutes")?;
    lines.next()?.split(' ').nth(at)?.parse().ok()
}

/// A name and its value on each line.
fn six_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Ip6OutNoRoutes"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read_by_name() {
        let four =
            "Ip: Forwarding OutRequests OutNoRoutes FragFails\nIp: 1 20 3 4\nTcp: A\nTcp: 9\n";
        assert_eq!(four_of(four), Some(3));
        assert_eq!(four_of("Ip: Forwarding\nIp: 1\n"), None);
        assert_eq!(six_of("Ip6OutRequests   7\nIp6OutNoRoutes \t 5\n"), Some(5));
        assert_eq!(six_of(""), None);
    }
}
