//! Where lines cannot be drawn again: that a phase began, now and then.

use std::collections::BTreeMap;

use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::step::{StepRow, StepStatus, TaskPhase};

use super::super::task_choice::newest_attempts;

/// A phase is said once it has lasted so long: what passes in a moment needs no line.
const LASTED_MS: u64 = 1_000;
/// Between two lines of one task.
const BETWEEN_MS: u64 = 10_000;

/// What was said of each task, in milliseconds of the caller's clock.
#[derive(Debug, Default)]
pub(crate) struct PhaseLog(BTreeMap<TaskKey, PhaseState>);

#[derive(Debug)]
struct PhaseState {
    phase: TaskPhase,
    since_ms: u64,
    said: Option<PhaseWord>,
}

#[derive(Debug, Clone, Copy)]
struct PhaseWord {
    phase: TaskPhase,
    at_ms: u64,
}

impl PhaseLog {
    /// The lines that these steps are worth now.
    pub(crate) fn apply(&mut self, steps: &[StepRow], now_ms: u64) -> Vec<String> {
        let mut lines = Vec::new();
        for step in newest_attempts(steps) {
            let (Some(key), Some(phase)) = (&step.task_key, step.phase) else { continue };
            if step.status != StepStatus::Running {
                continue;
            }
            let fresh = PhaseState { phase, since_ms: now_ms, said: None };
            let seen = self.0.entry(key.clone()).or_insert(fresh);
            if seen.phase != phase {
                (seen.phase, seen.since_ms) = (phase, now_ms);
            }
            let has_lasted = now_ms.saturating_sub(seen.since_ms) >= LASTED_MS;
            let is_due = seen.said.is_none_or(|said| {
                said.phase != phase && now_ms.saturating_sub(said.at_ms) >= BETWEEN_MS
            });
            if has_lasted && is_due {
                seen.said = Some(PhaseWord { phase, at_ms: now_ms });
                lines.push(format!("{}: {}", step.task_name(), phase.as_str()));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::task_choice::attempt;

    #[test]
    fn a_phase_that_lasts_is_said_once_and_the_next_at_most_every_ten_seconds() {
        let step = |phase: TaskPhase| {
            let mut step = attempt("test", 1, "running");
            step.phase = Some(phase);
            [step]
        };
        let mut log = PhaseLog::default();
        for (now_ms, phase, said) in [
            (0, TaskPhase::Boot, ""),
            (100, TaskPhase::Build, ""),
            (1_099, TaskPhase::Build, ""),
            (1_100, TaskPhase::Build, "test: build"),
            (5_000, TaskPhase::Exec, ""),
            (6_100, TaskPhase::Exec, ""),
            (11_099, TaskPhase::Exec, ""),
            (11_100, TaskPhase::Exec, "test: exec"),
            (60_000, TaskPhase::Exec, ""),
        ] {
            let lines = log.apply(&step(phase), now_ms);
            assert_eq!(lines.join("\n"), said, "{now_ms}");
        }
        let ended = [attempt("test", 1, "ok")];
        assert!(log.apply(&ended, 90_000).is_empty());
    }
}
