//! A run's last words: totals, the slowest, evidence and artifacts, a line each.

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::sandbox::WipeStatus;
use cofferdam_contracts::session::WipeView;
use cofferdam_contracts::step::{StepRow, StepStatus};

use super::super::file_transfer::byte_count;
use super::super::task_choice::newest_attempts;
use super::super::task_time::{TaskTime, duration};
use super::task_line::{Count, counted};

/// The slowest tasks that are named.
const SLOWEST: usize = 3;
/// Sandboxes without a verified wipe that are named.
const MAX_NAMES: usize = 5;

/// How a task ended, and how long it took.
struct TaskEnd<'a> {
    name: &'a str,
    status: StepStatus,
    time: TaskTime,
}

/// `3 ok, 1 failed in 41.0 s (build 30.0 s) · slowest shard-7 12.1 s, shard-2 9.0 s`; `None` where nothing has ended. The time is
/// from the submission to the last task's end, and the build the longest of one task.
pub(crate) fn totals(header: &RunHeader, steps: &[StepRow]) -> Option<String> {
    let newest = newest_attempts(steps);
    let ends: Vec<TaskEnd<'_>> = newest.iter().filter_map(|step| end(step)).collect();
    let at = newest.iter().filter(|step| !step.status.is_open()).map(|step| step.at).max()?;
    let count = |is: fn(StepStatus) -> bool| newest.iter().filter(|step| is(step.status)).count();
    let counts = counted(&[
        Count { tasks: count(|status| status == StepStatus::Ok), what: "ok" },
        Count { tasks: count(|status| status == StepStatus::Failed), what: "failed" },
        Count { tasks: count(|status| status == StepStatus::Canceled), what: "canceled" },
        Count { tasks: count(|status| status == StepStatus::Skipped), what: "skipped" },
        Count { tasks: count(StepStatus::is_open), what: "not ended" },
    ]);
    let took = u64::try_from(at.saturating_sub(header.created_at)).unwrap_or(0);
    let build = match ends.iter().map(|end| end.time.build_ms()).max() {
        Some(build @ 1..) => format!(" (build {})", duration(build)),
        _ => String::new(),
    };
    let mut line = format!("{counts} in {}{build}", duration(took));
    let mut slowest: Vec<&TaskEnd<'_>> =
        ends.iter().filter(|end| end.status != StepStatus::Canceled).collect();
    slowest.sort_by(|a, b| b.time.total_ms().cmp(&a.time.total_ms()).then(a.name.cmp(b.name)));
    if slowest.len() > 1 {
        let named = slowest.iter().take(SLOWEST);
        let named: Vec<String> =
            named.map(|end| format!("{} {}", end.name, end.time.total())).collect();
        line.push_str(&format!(" · slowest {}", named.join(", ")));
    }
    Some(line)
}

fn end<'a>(step: &'a StepRow) -> Option<TaskEnd<'a>> {
    let metrics = step.outcome().ok().flatten()?.metrics.filter(|_| !step.status.is_open())?;
    let time = TaskTime::of(&metrics, step.error.as_deref());
    Some(TaskEnd { name: step.task_name(), status: step.status, time })
}

/// `3 sandboxes, wipes verified`; those of which that is not so are named. `None` where there was none.
pub(crate) fn evidence(wipes: &[WipeView]) -> Option<String> {
    let sandboxes = match wipes.len() {
        0 => return None,
        1 => "1 sandbox".to_owned(),
        count => format!("{count} sandboxes"),
    };
    let open: Vec<String> = wipes.iter().filter_map(unverified).collect();
    if open.is_empty() {
        let wipes = if wipes.len() == 1 { "wipe" } else { "wipes" };
        return Some(format!("{sandboxes}, {wipes} verified"));
    }
    let mut named = open.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = open.len().checked_sub(MAX_NAMES) {
        named.push_str(&format!(" and {more} more"));
    }
    let verified = wipes.len().saturating_sub(open.len());
    Some(format!(
        "{sandboxes}, {verified} wipes verified; not verified: {named} (cofferdam session ls)"
    ))
}

/// A sandbox whose wipe is not verified, with what is known instead.
fn unverified(wipe: &WipeView) -> Option<String> {
    let what = match (&wipe.settlement, wipe.status) {
        (Some(_), _) => "settled by an operator",
        (None, Some(WipeStatus::Verified)) => return None,
        (None, Some(_)) => "held",
        (None, None) => wipe.state.as_str(),
    };
    Some(format!("{} ({what})", wipe.sandbox_id))
}

/// What the tasks left, without what Cofferdam itself writes beside it and without streams that nothing was written to.
pub(crate) fn own_artifacts(rows: &[ArtifactRow]) -> impl Iterator<Item = &ArtifactRow> {
    let ours = [ArtifactKind::ArtifactIndex, ArtifactKind::Raw, ArtifactKind::Timings];
    rows.iter().filter(move |row| !ours.contains(&row.kind) && !is_empty_log(row))
}

/// Whether it is an output stream of a task that wrote nothing to it.
fn is_empty_log(row: &ArtifactRow) -> bool {
    matches!(row.kind, ArtifactKind::Stdout | ArtifactKind::Stderr) && row.size == 0
}

/// `artifacts: 4, 3.4 MB; 2 empty logs are left out`; `None` where no artifact has anything in it and no log is left out.
pub(crate) fn artifacts(rows: &[ArtifactRow]) -> Option<String> {
    let some: Vec<&ArtifactRow> = own_artifacts(rows).filter(|row| row.size > 0).collect();
    let bytes: u64 = some.iter().filter_map(|row| u64::try_from(row.size).ok()).sum();
    let counts =
        (!some.is_empty()).then(|| format!("artifacts: {}, {}", some.len(), byte_count(bytes)));
    let empty = match rows.iter().filter(|row| is_empty_log(row)).count() {
        0 => None,
        1 => Some("1 empty log is left out".to_owned()),
        several => Some(format!("{several} empty logs are left out")),
    };
    let parts: Vec<String> = [counts, empty].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::task_choice::attempt;
    use serde_json::{Value, json};

    fn header() -> RunHeader {
        serde_json::from_value(json!({
            "workflowID": "wf_1", "runId": format!("rn_{}", "0".repeat(32)), "intentId": format!("it_{}", "0".repeat(32)),
            "status": "failed", "workflowName": "w", "createdAt": 1_000, "updatedAt": 50_000, "recipeRef": null,
            "recipeHash": null, "intentHash": null, "traceId": null, "nextAction": "NONE", "lastStep": null,
            "error": null, "appVersion": "1", "durableStatus": null, "executionMode": "LOCAL_NATIVE", "retryCount": 0,
        }))
        .unwrap()
    }

    fn ended(name: &str, status: &str, wall_ms: u64, build_ms: u64) -> StepRow {
        let mut step = attempt(name, 1, status);
        step.at = 42_000;
        let metrics = json!({"wallMs": wall_ms, "cpuMs": 1, "memPeakMB": 1, "buildMs": build_ms});
        step.output = Some(json!({"metrics": metrics}));
        step
    }

    #[test]
    fn totals_name_the_slowest_where_there_are_several() {
        let mut steps = vec![
            ended("build", "ok", 1_000, 30_000),
            ended("shard-7", "ok", 12_100, 0),
            ended("shard-8", "failed", 900, 0),
            ended("lint", "canceled", 60_000, 0),
        ];
        let line = totals(&header(), &steps).unwrap();
        assert_eq!(
            line,
            "2 ok, 1 failed, 1 canceled in 41.0 s (build 30.0 s) · slowest build 31.0 s, shard-7 12.1 s, shard-8 900 ms"
        );
        steps.truncate(0);
        assert_eq!(totals(&header(), &steps), None);
        steps.push(ended("only", "ok", 12, 0));
        assert_eq!(totals(&header(), &steps).unwrap(), "1 ok in 41.0 s");
        steps.push(attempt("late", 1, "running"));
        assert_eq!(totals(&header(), &steps).unwrap(), "1 ok, 1 not ended in 41.0 s");
    }

    fn artifact(name: &str, kind: &str, size: i64) -> ArtifactRow {
        serde_json::from_value(json!({
            "stepId": "ExecuteST:t", "taskKey": "a".repeat(64), "attempt": 1, "idx": 1, "kind": kind, "name": name,
            "uri": format!("artifact://{name}"), "sha256": "a".repeat(64), "size": size, "createdAt": 5,
        }))
        .unwrap()
    }

    #[test]
    fn an_empty_log_is_counted_and_not_listed_and_an_empty_file_is_listed() {
        let rows = [
            artifact("stdout.log", "stdout", 5),
            artifact("stderr.log", "stderr", 0),
            artifact("files/touched", "file", 0),
            artifact("files/a", "file", 7),
            artifact("index.json", "artifact_index", 9),
        ];
        let names = |rows: &[ArtifactRow]| -> Vec<String> {
            own_artifacts(rows).map(|row| row.name.clone()).collect()
        };
        assert_eq!(names(&rows), ["stdout.log", "files/touched", "files/a"]);
        assert_eq!(artifacts(&rows).unwrap(), "artifacts: 2, 12 bytes; 1 empty log is left out");
        assert_eq!(artifacts(&rows[2..]).unwrap(), "artifacts: 1, 7 bytes");
        let silent = [artifact("stdout.log", "stdout", 0), artifact("stderr.log", "stderr", 0)];
        assert!(names(&silent).is_empty());
        assert_eq!(artifacts(&silent).unwrap(), "2 empty logs are left out");
        assert_eq!(artifacts(&[]), None);
    }

    fn wipe(n: usize, status: Value) -> WipeView {
        serde_json::from_value(json!({
            "sandboxId": format!("sb{n:020}"), "taskKey": "a".repeat(64), "state": "EXECUTING", "terminalState": null,
            "status": status, "reason": null, "method": null, "at": null, "evidence": null, "looks": 1, "settlement": null,
        }))
        .unwrap()
    }

    #[test]
    fn evidence_is_a_line_and_names_what_is_not_verified() {
        assert_eq!(evidence(&[]), None);
        let one = [wipe(1, json!("verified"))];
        assert_eq!(evidence(&one).unwrap(), "1 sandbox, wipe verified");
        let three: Vec<WipeView> = (0..3).map(|n| wipe(n, json!("verified"))).collect();
        assert_eq!(evidence(&three).unwrap(), "3 sandboxes, wipes verified");
        let mut mixed = three;
        mixed.push(wipe(7, json!("failed")));
        mixed.push(wipe(8, Value::Null));
        let said = evidence(&mixed).unwrap();
        let named = "sb00000000000000000007 (held), sb00000000000000000008 (EXECUTING)";
        assert_eq!(
            said,
            format!("5 sandboxes, 3 wipes verified; not verified: {named} (cofferdam session ls)")
        );
        let many: Vec<WipeView> = (0..9).map(|n| wipe(n, Value::Null)).collect();
        assert!(evidence(&many).unwrap().contains(" and 4 more"));
    }
}
