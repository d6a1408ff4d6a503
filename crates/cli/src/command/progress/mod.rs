//! What a run does, while it is followed: live lines on a terminal, plain lines elsewhere.
//!
//! ```text
//! steps, LastLines -> ProgressView -> Entry (one a task) -> fold -> TaskLine -> Screen (indicatif, stderr)
//! steps            -> PhaseLog     -> plain lines
//! steps, wipes, artifacts -> summary: the run's last words
//! ```
//! `transfer` shows a directory on its way to a server, before a run is submitted.
//!
//! **All but `screen` and `transfer` is pure: time and the terminal's size are arguments.** What a task wrote is a stranger's text; it
//! reaches a terminal only through `printable`.

mod fold;
mod last_lines;
pub(crate) mod mode;
mod phase_log;
pub(crate) mod screen;
pub(crate) mod summary;
mod task_line;
pub(crate) mod transfer;

use std::collections::BTreeMap;

use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::step::{StepRow, StepStatus};

use super::task_choice::newest_attempts;
use fold::{Entry, EntryState, folded};
pub(crate) use last_lines::LastLines;
use task_line::TaskLine;

/// The tasks of a run, as they were seen. Its own clock decides how long a task runs: the server's may be another.
#[derive(Debug, Default)]
pub(crate) struct ProgressView {
    /// When an attempt was first seen at work, in milliseconds of the caller's clock.
    begun: BTreeMap<TaskKey, u64>,
}

impl ProgressView {
    /// The lines that show these steps now, the most urgent first.
    pub(crate) fn apply(
        &mut self,
        steps: &[StepRow],
        output: &LastLines,
        now_ms: u64,
    ) -> Vec<TaskLine> {
        let mut entries = Vec::new();
        for step in newest_attempts(steps) {
            let state = match step.status {
                StepStatus::Ok | StepStatus::Skipped => EntryState::Ok,
                StepStatus::Failed | StepStatus::Canceled => EntryState::Failed,
                StepStatus::Queued => EntryState::Queued,
                StepStatus::Running => EntryState::Running(step.phase),
            };
            let key = step.task_key.as_ref();
            let begun = match (state, key) {
                (EntryState::Running(_), Some(key)) => {
                    *self.begun.entry(key.clone()).or_insert(now_ms)
                }
                _ => now_ms,
            };
            entries.push(Entry {
                name: step.task_name(),
                attempt: step.attempt,
                state,
                elapsed_ms: now_ms.saturating_sub(begun),
                last: key.map_or("", |key| output.of(key.as_str())),
                waits_for: step.waits_for.as_deref().unwrap_or(""),
            });
        }
        folded(&entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::task_choice::attempt;
    use cofferdam_contracts::step::TaskPhase;

    fn texts(lines: &[TaskLine]) -> Vec<String> {
        lines.iter().map(|line| line.text(80, 0)).collect()
    }

    #[test]
    fn a_task_has_its_phase_its_time_and_its_last_line_until_it_ends() {
        let mut steps = vec![attempt("test", 1, "running"), attempt("lint", 1, "queued")];
        steps[0].phase = Some(TaskPhase::Build);
        steps[1].waits_for = Some("memory: 3 before you".to_owned());
        let mut output = LastLines::default();
        let key = steps[0].task_key.clone().unwrap();
        output.push(key.as_str(), "stdout", "one\ntwo\n");
        let mut view = ProgressView::default();
        let lines = view.apply(&steps, &output, 1_000);
        assert_eq!(texts(&lines), ["test  build 0 ms  two", "lint  queued  memory: 3 before you"]);
        steps[0].phase = Some(TaskPhase::Exec);
        let lines = view.apply(&steps, &output, 13_100);
        assert_eq!(texts(&lines)[0], "test  exec 12.1 s  two");
        steps[0] = attempt("test", 1, "ok");
        let lines = view.apply(&steps, &output, 14_000);
        assert_eq!(texts(&lines), ["lint  queued  memory: 3 before you"], "it has ended");
        let again = [attempt("test", 1, "failed"), attempt("test", 2, "running")];
        let lines = view.apply(&again, &output, 14_000);
        assert_eq!(texts(&lines), ["test  running 0 ms, attempt 2"]);
    }
}
