//! Why a run failed, in its failed tasks' own words: the end of what each of them wrote.
//!
//! ```text
//! steps, artifacts -> view: at most 8 tasks, of each its streams that are not empty  (pure)
//!                  -> the last 4 KiB of a stream                                     (fetched)
//!                  -> excerpt: its last 10 lines, or 2 KiB                           (pure)
//! ```

use std::collections::BTreeSet;
use std::convert::Infallible;

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_contracts::printable;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::shell::quoted;
use cofferdam_contracts::step::{StepRow, StepStatus};

use super::client::Client;
use super::exit::Negative;
use super::host_program::HostProgram;
use super::line_buffer::last_lines;
use super::output;
use super::task_choice::newest_attempts;

/// A screen shows them beside the summary; `logs` has the others.
const TASKS: usize = 8;
/// Of each stream.
const LINES: usize = 10;
/// Of lines that are long.
const MAX_BYTES: usize = 2 * 1024;
/// What is fetched of a stream: empty lines at its end are left out.
const FETCHED_BYTES: u64 = 4 * 1024;

/// The failed tasks of a run, as far as they are shown.
#[derive(Debug, PartialEq)]
struct FailureView<'a> {
    tasks: Vec<TaskFailure<'a>>,
    /// Failed tasks beyond these.
    more: usize,
}

/// A failed task.
#[derive(Debug, PartialEq)]
struct TaskFailure<'a> {
    name: &'a str,
    /// Standard output before standard error; a stream without a byte is left out.
    logs: Vec<&'a ArtifactRow>,
}

impl<'a> FailureView<'a> {
    /// Of a run with these steps and artifacts. The standard output of `printed` is on the screen already. Pure.
    fn of(steps: &'a [StepRow], artifacts: &'a [ArtifactRow], printed: Option<&TaskKey>) -> Self {
        let mut failed: Vec<(&str, &TaskKey)> = newest_attempts(steps)
            .into_iter()
            .filter(|step| step.status == StepStatus::Failed)
            .filter_map(|step| Some((step.task_name(), step.task_key.as_ref()?)))
            .collect();
        let more = failed.len().saturating_sub(TASKS);
        failed.truncate(TASKS);
        let logs = |key: &TaskKey| {
            let is_log =
                |kind, row: &&ArtifactRow| row.kind == kind && row.task_key == *key && row.size > 0;
            let kinds = [ArtifactKind::Stdout, ArtifactKind::Stderr].into_iter();
            let kinds = kinds.filter(|kind| *kind != ArtifactKind::Stdout || printed != Some(key));
            kinds.filter_map(|kind| artifacts.iter().find(|row| is_log(kind, row))).collect()
        };
        let tasks = failed.into_iter().map(|(name, key)| TaskFailure { name, logs: logs(key) });
        Self { tasks: tasks.collect(), more }
    }
}

/// Shows the end of both streams of each task that failed, where the run failed.
pub(crate) async fn last_words(
    client: &Client,
    header: &RunHeader,
    steps: &[StepRow],
    artifacts: &[ArtifactRow],
    printed: Option<&TaskKey>,
) -> anyhow::Result<()> {
    if !header.status.is_retryable() {
        return Ok(());
    }
    let view = FailureView::of(steps, artifacts, printed);
    let path = cofferdam_ambient::env::var("PATH").unwrap_or_default();
    let mut absent = BTreeSet::new();
    for task in &view.tasks {
        for log in &task.logs {
            let end = match client.artifact_end(log, FETCHED_BYTES).await {
                // It was erased, and the record goes on without it.
                Err(error) if error.is::<Negative>() => {
                    output::line(&format!("{} of {}: {error}", log.kind.as_str(), task.name));
                    continue;
                }
                end => end?,
            };
            let is_all = u64::try_from(log.size).is_ok_and(|size| size <= FETCHED_BYTES);
            let Some(excerpt) = excerpt(&end, is_all) else { continue };
            output::line(&heading(&header.run_id, task.name, log.kind, excerpt.is_whole));
            output::block(&excerpt.text);
            let program = HostProgram::of(&excerpt.text, &path);
            absent.extend(program.map(|program| program.for_recipe()));
        }
    }
    if view.more > 0 {
        let run = &header.run_id;
        output::line(&format!("{} more failed tasks: cofferdam logs {run} --failed", view.more));
    }
    if client.is_on_this_host() {
        absent.iter().for_each(|program| output::note(program));
    }
    Ok(())
}

/// What stands above a stream's end; with the command that shows all of it, where more was written. Pure.
fn heading(run: &RunId, task: &str, kind: ArtifactKind, is_whole: bool) -> String {
    let stream = kind.as_str();
    match is_whole {
        true => format!("{stream} of {task}:"),
        false => format!(
            "{stream} of {task}, its last lines (cofferdam logs {run} --task {} --{stream} shows all):",
            word(task)
        ),
    }
}

/// A name as a shell takes it for one word.
pub(crate) fn word(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-/:@%+=,".contains(c);
    if name.chars().all(is_safe) {
        return name.to_owned();
    }
    let mut word = String::new();
    let Ok(()) = quoted(name, |part| {
        word.push_str(part);
        Ok::<(), Infallible>(())
    });
    word
}

/// The end of what was written, printable.
#[derive(Debug, PartialEq, Eq)]
struct LogExcerpt {
    text: String,
    /// Nothing was written before it.
    is_whole: bool,
}

/// The last lines of a stream's end, which `is_all` of it or not; `None` where they are empty. Pure.
fn excerpt(bytes: &[u8], is_all: bool) -> Option<LogExcerpt> {
    let said = bytes.trim_ascii_end();
    if said.is_empty() {
        return None;
    }
    let by_lines = last_lines(said, LINES).unwrap_or(0);
    let by_bytes = said.len().saturating_sub(MAX_BYTES);
    let from = match by_bytes.checked_sub(1).filter(|_| by_bytes > by_lines) {
        None => by_lines,
        Some(before) => {
            // Whole lines, where one begins within the bound.
            let end = said.get(before..).unwrap_or_default();
            let first = end.iter().position(|byte| *byte == b'\n');
            first.map_or(by_bytes, |at| before + at + 1)
        }
    };
    let text = printable::bytes(said.get(from..).unwrap_or_default());
    Some(LogExcerpt { text, is_whole: is_all && from == 0 })
}

#[cfg(test)]
mod tests {
    use super::super::task_choice::attempt;
    use super::*;

    fn log(step: &StepRow, kind: &str, size: i64) -> ArtifactRow {
        let row = serde_json::json!({
            "stepId": step.step_id, "taskKey": step.task_key, "attempt": step.attempt, "idx": 1, "kind": kind,
            "name": format!("{kind}.log"), "uri": format!("artifact://{}/{kind}", step.name),
            "sha256": "a".repeat(64), "size": size, "createdAt": 5,
        });
        serde_json::from_value(row).unwrap()
    }

    fn uris(view: &FailureView<'_>) -> Vec<String> {
        let logs = view.tasks.iter().flat_map(|task| &task.logs);
        logs.map(|log| log.uri.trim_start_matches("artifact://").to_owned()).collect()
    }

    #[test]
    fn each_failed_task_has_both_streams_and_a_screen_has_eight_tasks() {
        let steps: Vec<StepRow> = [
            ("a", 1, "failed"),
            ("b", 1, "ok"),
            ("c", 1, "failed"),
            ("a", 2, "failed"),
            ("d", 1, "failed"),
            ("d", 2, "ok"),
        ]
        .map(|(name, n, status)| attempt(name, n, status))
        .to_vec();
        let sizes = [("stderr", 9), ("stdout", 5)];
        let logs = |step: &StepRow| sizes.map(|(kind, size)| log(step, kind, size));
        let mut artifacts: Vec<ArtifactRow> = steps.iter().flat_map(logs).collect();
        let view = FailureView::of(&steps, &artifacts, None);
        assert_eq!(uris(&view), ["c/stdout", "c/stderr", "a/stdout", "a/stderr"]);
        assert_eq!(view.more, 0);
        let printed = FailureView::of(&steps, &artifacts, steps[2].task_key.as_ref());
        assert_eq!(uris(&printed), ["c/stderr", "a/stdout", "a/stderr"]);
        artifacts
            .iter_mut()
            .filter(|row| row.kind == ArtifactKind::Stderr)
            .for_each(|row| row.size = 0);
        assert_eq!(uris(&FailureView::of(&steps, &artifacts, None)), ["c/stdout", "a/stdout"]);
        let many: Vec<StepRow> = (0..20).map(|n| attempt(&format!("t{n}"), 1, "failed")).collect();
        let view = FailureView::of(&many, &[], None);
        assert_eq!((view.tasks.len(), view.more, view.tasks[7].name), (8, 12, "t7"));
    }

    #[test]
    fn the_end_is_shown_within_its_bounds_and_acts_on_no_terminal() {
        let shown = |bytes: &[u8], is_all| {
            let excerpt = excerpt(bytes, is_all).unwrap();
            (excerpt.text, excerpt.is_whole)
        };
        let lines: String = (1..=12).map(|i| format!("line {i}\n")).collect();
        let (text, is_whole) = shown(lines.as_bytes(), true);
        assert_eq!((text.lines().next(), text.lines().count()), (Some("line 3"), LINES));
        assert!(!is_whole);
        assert_eq!(shown(b"one\n\n", true), ("one".to_owned(), true));
        assert_eq!(shown(b"one\n", false), ("one".to_owned(), false), "others came before it");
        assert_eq!(excerpt(b"", true), None);
        assert_eq!(excerpt(b" \n\n", true), None);
        assert_eq!(shown(&vec![b'x'; 4_000], true), ("x".repeat(MAX_BYTES), false));
        // Lines that are long are whole ones.
        let long = format!("{}\n{}\n{}", "a".repeat(900), "b".repeat(900), "c".repeat(900));
        let wanted = format!("{}\n{}", "b".repeat(900), "c".repeat(900));
        assert_eq!(shown(long.as_bytes(), true), (wanted, false));
        let exact = format!("a\n{}", "b".repeat(MAX_BYTES));
        assert_eq!(shown(exact.as_bytes(), true), ("b".repeat(MAX_BYTES), false));
        assert_eq!(shown(b"\x1b[2J\xff", true).0, "\\x1b[2J\\xff");
    }

    #[test]
    fn the_command_that_shows_all_can_be_pasted() {
        let run: RunId = format!("rn_{}", "1".repeat(32)).parse().unwrap();
        let of = |task: &str| heading(&run, task, ArtifactKind::Stdout, false);
        assert!(
            of("shard-1").ends_with("--task shard-1 --stdout shows all):"),
            "{}",
            of("shard-1")
        );
        assert!(of("it's").contains(" --task 'it'\\''s' "), "{}", of("it's"));
        assert_eq!(heading(&run, "t", ArtifactKind::Stderr, true), "stderr of t:");
    }
}
