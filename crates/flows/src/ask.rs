//! A running task asks for names: what its proxy was refused becomes a gate, what a person granted
//! becomes its policy. The task is never parked: its client was refused and tries again.

use cofferdam_contracts::egress::EgressGrant;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::grants::{AskSummary, NewAsk};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{NameRequest, Sandbox};

/// Ticks between looks at gates whose wake-up may have been lost: a second's.
const LOOK_EVERY: u32 = 10;
/// A gate waits as long as the phase that asks may run, within what any gate may.
const MAX_TTL_S: u32 = 86_400;

/// The asks of one execution.
pub(crate) struct Asks<'a> {
    ledger: &'a Ledger,
    task: &'a TaskContext,
    /// Requests that are not on record yet.
    new: Vec<NameRequest>,
    waiting: bool,
    granted: Vec<EgressGrant>,
    ticks: u32,
}

impl<'a> Asks<'a> {
    pub(crate) fn new(ledger: &'a Ledger, task: &'a TaskContext) -> Self {
        Self { ledger, task, new: Vec::new(), waiting: false, granted: Vec::new(), ticks: 0 }
    }

    /// One look, some times a second while a command runs; `woken` where a gate of the run moved. It asks
    /// the database only where this task asked for something.
    pub(crate) async fn turn(&mut self, sandbox: &Sandbox, timeout_ms: u64, woken: bool) {
        self.new.extend(sandbox.traffic().name_requests());
        let ledger = self.ledger;
        while let Some(asked) = self.new.first() {
            let ask = NewAsk {
                run: &self.task.run,
                tenant: &self.task.tenant,
                task: &self.task.key,
                phase: asked.phase,
                name: &asked.name,
                ttl_s: ttl_s(timeout_ms),
            };
            match ledger.egress().ask(&ask).await {
                Ok(gate) => {
                    tracing::info!(task = %self.task.key, name = asked.name, gate = ?gate, "a task asks for a name");
                    // An earlier execution's answer may be there already.
                    self.waiting = true;
                    self.ticks = 0;
                    self.new.remove(0);
                }
                Err(error) => {
                    tracing::warn!(%error, "a name was not asked for; trying again");
                    return;
                }
            }
        }
        let due = woken || self.ticks == 0;
        self.ticks = if self.ticks == 0 { LOOK_EVERY } else { self.ticks - 1 };
        if !self.waiting || !due {
            return;
        }
        match ledger.egress().settle(&self.task.key).await {
            Ok(settled) => self.apply(sandbox, settled),
            Err(error) => tracing::warn!(%error, "answers to a task's asks were not read"),
        }
    }

    fn apply(&mut self, sandbox: &Sandbox, settled: AskSummary) {
        self.waiting = settled.waiting > 0;
        for grant in settled.grants {
            if self.granted.iter().any(|known| known.gate == grant.gate) {
                continue;
            }
            let asked = NameRequest { phase: grant.phase, name: grant.name.clone() };
            // A grant of an earlier execution waits until this one asks too.
            if sandbox.traffic().grant(&asked, grant.until) {
                self.granted.push(grant);
            }
        }
    }

    /// What was granted to this execution and in force in it.
    pub(crate) fn granted(self) -> Vec<EgressGrant> {
        self.granted
    }
}

pub(crate) fn ttl_s(timeout_ms: u64) -> u32 {
    u32::try_from(timeout_ms.div_ceil(1_000)).unwrap_or(MAX_TTL_S).clamp(1, MAX_TTL_S)
}

#[cfg(test)]
mod tests {
    use super::ttl_s;

    #[test]
    fn a_gate_waits_as_long_as_its_phase_may_run() {
        assert_eq!([0, 1, 30_000, u64::MAX].map(ttl_s), [1, 1, 30, 86_400]);
    }
}
