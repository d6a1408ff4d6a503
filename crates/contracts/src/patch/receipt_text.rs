//! What a receipt tells besides the patch: how the run's tasks ended, and the message that the commit will have.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::printable;
use crate::step::{StepRow, StepStatus};

/// Lines of tasks that a receipt shows; what failed comes first.
const MAX_TASKS: usize = 50;
/// Bytes of a commit's message.
pub const MAX_MESSAGE: usize = 8 * 1024;

/// What begins the part about tasks.
const TASKS: &str = "tasks:\n";
/// What begins the message.
const MESSAGE: &str = "message:\n";
/// What a line of a message begins with.
const INDENT: &str = "    ";

/// How the newest attempt of a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEnd {
    name: String,
    status: StepStatus,
    exit: Option<i32>,
}

impl TaskEnd {
    /// Of each task of a run, in the order of their names.
    #[must_use]
    pub fn of_run(rows: &[StepRow]) -> Vec<Self> {
        let mut newest: BTreeMap<&str, &StepRow> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.task_key.is_some()) {
            let known = newest.entry(row.task_name()).or_insert(row);
            if row.attempt > known.attempt {
                *known = row;
            }
        }
        let of = |(name, row): (&str, &StepRow)| Self {
            name: name.to_owned(),
            status: row.status,
            exit: row.outcome().ok().flatten().and_then(|outcome| outcome.exit),
        };
        newest.into_iter().map(of).collect()
    }

    fn is_ok(&self) -> bool {
        self.status == StepStatus::Ok
    }
}

/// The part of a receipt about tasks: a line a task, those that did not succeed first.
pub(super) fn tasks_text(ends: &[TaskEnd]) -> String {
    let mut out = TASKS.to_owned();
    let (ok, other): (Vec<&TaskEnd>, Vec<&TaskEnd>) = ends.iter().partition(|end| end.is_ok());
    let all: Vec<&TaskEnd> = other.into_iter().chain(ok).collect();
    let (shown, rest) = all.split_at(all.len().min(MAX_TASKS));
    for TaskEnd { name, status, exit } in shown {
        let exit = exit.map(|exit| format!(", exit {exit}")).unwrap_or_default();
        let _ = writeln!(out, "  {}: {}{exit}", printable::line(name), status.as_str());
    }
    if !rest.is_empty() {
        let failed = rest.iter().filter(|end| !end.is_ok()).count();
        let _ = writeln!(out, "  and {} more, of which {failed} did not succeed", rest.len());
    }
    out
}

/// Whether a text may be the part about tasks of some run: the run was retried since it was shown.
pub(super) fn may_be_tasks(text: &str) -> bool {
    let lines = text.strip_prefix(TASKS).unwrap_or(text);
    lines.lines().all(|line| line.starts_with("  "))
}

/// The part of a receipt with the commit's message; nothing without one.
pub(super) fn message_text(message: Option<&str>) -> String {
    let Some(message) = message else { return String::new() };
    let mut out = MESSAGE.to_owned();
    for line in message.lines() {
        let _ = writeln!(out, "{INDENT}{line}");
    }
    out
}

/// Divides what follows a receipt's head into the message and the rest.
pub(super) fn message_in(text: &str) -> (Option<String>, &str) {
    let Some(mut rest) = text.strip_prefix(MESSAGE) else { return (None, text) };
    let mut lines = Vec::new();
    while let Some((line, more)) =
        rest.split_once('\n').and_then(|(line, more)| Some((line.strip_prefix(INDENT)?, more)))
    {
        lines.push(line);
        rest = more;
    }
    (Some(lines.join("\n")), rest)
}

/// How lines begin that only the approval may add.
const OURS: [&str; 2] = ["Patch: sha256:", "Approved-In:"];

/// Why a text is no commit's message; a receipt shows it as it is.
#[must_use]
pub fn message_fault(message: &str) -> Option<&'static str> {
    match message {
        text if text.trim().is_empty() => Some("it is empty"),
        text if text.len() > MAX_MESSAGE => Some("it has more than 8 KiB"),
        text if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) => {
            Some("it begins or ends with a space or an empty line")
        }
        text if printable::block(text) != text => Some("it has a character that no terminal shows"),
        text if text.lines().any(|line| OURS.iter().any(|ours| line.starts_with(ours))) => {
            Some("a line begins as one of those that are added below it")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(name: &str, attempt: i32, status: &str, exit: i32) -> StepRow {
        let step = format!("ExecuteST:{name}");
        serde_json::from_value(json!({
            "stepId": step, "stepID": step, "name": name, "taskKey": "a".repeat(64), "attempt": attempt,
            "status": status, "startedAt": null, "at": 5, "error": null, "artifactRefs": [],
            "output": {"errCode": null, "exit": exit, "metrics": null, "sandboxRef": null,
                "effective": null, "limitsReached": [], "cache": null},
        }))
        .unwrap()
    }

    #[test]
    fn a2_the_newest_attempt_of_each_task_is_told_and_what_failed_comes_first() {
        let rows = [
            row("b", 2, "ok", 0),
            row("b", 1, "failed", 3),
            row("a", 1, "ok", 0),
            row("unit", 1, "failed", 1),
        ];
        let text = tasks_text(&TaskEnd::of_run(&rows));
        assert_eq!(text, "tasks:\n  unit: failed, exit 1\n  a: ok, exit 0\n  b: ok, exit 0\n");
        assert!(may_be_tasks(&text) && may_be_tasks("") && !may_be_tasks("tasks:\nbase commit\n"));
        let many: Vec<StepRow> = (0..60).map(|n| row(&format!("{n:02}"), 1, "failed", 1)).collect();
        let text = tasks_text(&TaskEnd::of_run(&many));
        assert!(text.ends_with("  and 10 more, of which 10 did not succeed\n"), "{text}");
    }

    #[test]
    fn b5_a_message_is_read_back_as_it_was_said_and_shows_no_line_of_ours() {
        for message in ["one line", "subject\n\nbody\n    indented\nmessage:\ntasks:"] {
            assert_eq!(message_fault(message), None, "{message}");
            let text = message_text(Some(message)) + "tasks:\n  a: ok\n";
            assert_eq!(message_in(&text), (Some(message.to_owned()), "tasks:\n  a: ok\n"));
        }
        assert_eq!(message_in("tasks:\n"), (None, "tasks:\n"));
        for bad in [
            "",
            " ",
            "a\n",
            "\u{1b}[2J",
            "a\rb",
            "a\nApproved-In: rn_1",
            "a\nPatch: sha256:b",
            "\u{202e}a",
        ] {
            assert!(message_fault(bad).is_some(), "{bad:?}");
        }
        assert!(message_fault(&"a".repeat(MAX_MESSAGE + 1)).is_some());
    }
}
