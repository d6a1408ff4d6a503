//! What the test reports of a run say, for a person: totals, failed cases, slowest cases.

use std::cmp::Reverse;

use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::test_report::{
    Coverage, Ratio, ReportRow, RunReports, TaskReports, TestFailure, TestReport, TestTime,
    TestTotals,
};

use super::client::{Client, segment};
use super::output;
use super::task_time::seconds;

/// Failed cases that are shown: with the summary they fill a screen.
const MAX_FAILURES: usize = 20;
/// Slowest cases that are shown.
const MAX_SLOW: usize = 5;
/// Characters of a message's first line.
const MAX_MESSAGE: usize = 200;

/// The reports of a run.
pub(crate) async fn of_run(client: &Client, header: &RunHeader) -> anyhow::Result<RunReports> {
    client.get(&format!("/api/runs/{}/reports", segment(header.run_id.as_str()))).await
}

/// Prints what the reports of a run say; nothing where there are none.
pub(crate) async fn print(client: &Client, header: &RunHeader) -> anyhow::Result<()> {
    let lines = lines(&of_run(client, header).await?, header.run_id.as_str());
    if !lines.is_empty() {
        output::line("");
    }
    lines.iter().for_each(|line| output::line(line));
    Ok(())
}

/// A line each; control characters of the reports are the caller's to escape. Pure.
fn lines(reports: &RunReports, run: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(total) = &reports.total {
        lines.extend(summary(total));
        lines.extend(uncounted(reports, total));
        failed(reports, total, run, &mut lines);
        slowest(reports, total, &mut lines);
    }
    let faulty = reports.reports().filter_map(|(task, row)| fault(task, row));
    let unmatched = reports.tasks.iter().flat_map(|task| {
        let name = &task.name;
        task.unmatched.iter().map(move |glob| format!("reports of {name}: {glob} matched no file"))
    });
    let more = format!("cofferdam show {run} --json");
    bounded(faulty.chain(unmatched).collect(), &more, &mut lines);
    lines
}

/// `tests: 412 passed, 3 failed, 1 error, 8 skipped in 12.3 s, lines 81.2 %`
fn summary(total: &TestReport) -> Option<String> {
    let lines = total.coverage.as_ref().map(|coverage| format!("lines {}", percent(coverage)));
    match (&total.totals, lines) {
        (Some(totals), lines) => {
            let lines = lines.map(|lines| format!(", {lines}")).unwrap_or_default();
            Some(format!("tests: {}{lines}", counts(totals)))
        }
        (None, Some(lines)) => Some(format!("coverage: {lines}")),
        (None, None) if total.fault.is_some() => {
            Some("tests: no totals, since a report could not be read to its end".to_owned())
        }
        (None, None) => None,
    }
}

fn counts(totals: &TestTotals) -> String {
    let TestTotals { cases, failed, errored, skipped, flaky, took_ms, .. } = *totals;
    let passed = cases.saturating_sub(failed).saturating_sub(errored).saturating_sub(skipped);
    let errors = if errored == 1 { "error" } else { "errors" };
    let mut parts = vec![format!("{passed} passed"), format!("{failed} failed")];
    let others = [(errored, errors), (skipped, "skipped"), (flaky, "flaky")];
    parts.extend(others.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    // Not every kind of report has times.
    let took = (took_ms > 0).then(|| format!(" in {}", seconds(took_ms)));
    parts.join(", ") + &took.unwrap_or_default()
}

/// One digit after the point, rounded down: 100 % are all lines.
fn percent(Coverage { lines: Ratio { total, covered }, .. }: &Coverage) -> String {
    let mills = covered.saturating_mul(1_000).checked_div(*total).unwrap_or(0);
    format!("{}.{} %", mills / 10, mills % 10)
}

/// Coverage of several reports, whose sum is unknown.
fn uncounted(reports: &RunReports, total: &TestReport) -> Option<String> {
    let covered = reports.reports().filter(|(_, row)| row.report.coverage.is_some()).count();
    (covered > 1 && total.coverage.is_none())
        .then(|| format!("coverage: {covered} reports, each with its own lines in --json"))
}

/// A task's name, where another task has reports, too: cases of shards have equal names.
fn shard<'a>(reports: &RunReports, task: &'a TaskReports) -> Option<&'a str> {
    (reports.tasks.len() > 1).then_some(task.name.as_str())
}

fn failed(reports: &RunReports, total: &TestReport, run: &str, lines: &mut Vec<String>) {
    let counted = total.totals.as_ref().map_or(0, |totals| totals.failed + totals.errored);
    let all = usize::try_from(counted).unwrap_or(usize::MAX).max(total.failures.len());
    let cases = reports.reports().flat_map(|(task, row)| {
        let of = shard(reports, task);
        row.report.failures.iter().map(move |failure| format!("  {}", failure_line(failure, of)))
    });
    let shown: Vec<String> = cases.take(MAX_FAILURES).collect();
    let more = all.saturating_sub(shown.len());
    lines.extend(shown);
    if more > 0 {
        lines.push(format!("  and {more} more failed: cofferdam show {run} --json"));
    }
}

/// `test_sum (tests.money) in shard-2: assert 1 == 2 (tests/money.py:12)`
fn failure_line(failure: &TestFailure, of: Option<&str>) -> String {
    let mut text = format!("FAILED {}", failure.name);
    if let Some(class) = failure.class.as_ref().filter(|class| **class != failure.name) {
        text.push_str(&format!(" ({class})"));
    }
    if let Some(task) = of {
        text.push_str(&format!(" in {task}"));
    }
    if let Some(message) = failure.message.lines().map(str::trim).find(|line| !line.is_empty()) {
        text.push_str(": ");
        text.extend(message.chars().take(MAX_MESSAGE));
    }
    match (&failure.file, failure.line) {
        (Some(file), Some(line)) => text.push_str(&format!(" ({file}:{line})")),
        (Some(file), None) => text.push_str(&format!(" ({file})")),
        (None, _) => {}
    }
    text
}

fn slowest(reports: &RunReports, total: &TestReport, lines: &mut Vec<String>) {
    if total.totals.as_ref().is_none_or(|totals| totals.cases < 2) {
        return;
    }
    let times = reports.reports().flat_map(|(task, row)| {
        let of = shard(reports, task);
        row.report.slowest.iter().map(move |time| (time, of))
    });
    let mut times: Vec<(&TestTime, Option<&str>)> = times.collect();
    times.sort_by_key(|(time, _)| Reverse(time.took_ms));
    let row = |(time, of): &(&TestTime, Option<&str>)| {
        let of = of.map(|task| format!(" in {task}")).unwrap_or_default();
        format!("  slow {:>8}  {}{of}", seconds(time.took_ms), time.name)
    };
    // What takes no tenth of a second is not slow.
    let slow = times.iter().filter(|(time, _)| time.took_ms >= 100);
    lines.extend(slow.take(MAX_SLOW).map(row));
}

fn fault(task: &TaskReports, row: &ReportRow) -> Option<String> {
    let fault = row.report.fault?;
    Some(format!("report {} of {}: {fault}", row.path, task.name))
}

/// The first [`MAX_FAILURES`] lines of these, and how many more there are.
fn bounded(mut all: Vec<String>, more: &str, lines: &mut Vec<String>) {
    let over = all.len().saturating_sub(MAX_FAILURES);
    all.truncate(MAX_FAILURES);
    lines.append(&mut all);
    if over > 0 {
        lines.push(format!("and {over} more: {more}"));
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::test_report::{ReportBounds, ReportContent, read};

    use super::*;

    fn task(name: &str, texts: &[&str], unmatched: &[&str]) -> TaskReports {
        let row = |text: &&str| {
            let content = read(&mut text.as_bytes(), None, &ReportBounds::default());
            let ReportContent { kind, report, .. } = content;
            ReportRow { path: "r.xml".into(), kind, sha256: None, report }
        };
        TaskReports {
            name: name.to_owned(),
            step_id: "ExecuteST:t".parse().unwrap(),
            task_key: "a".repeat(64).parse().unwrap(),
            attempt: 1,
            reports: texts.iter().map(row).collect(),
            unmatched: unmatched.iter().map(|one| (*one).to_owned()).collect(),
        }
    }

    fn shown(tasks: Vec<TaskReports>) -> Vec<String> {
        lines(&RunReports::of(tasks, false), "r1")
    }

    const JUNIT: &str = "<testsuite>\
        <testcase name='quick' time='0.01'/><testcase name='slow' classname='m' time='12.34'/>\
        <testcase name='bad' classname='m' file='m.py' line='7'><failure message='&#10; 1 != 2&#10;more'/></testcase>\
        <testcase name='off'><skipped/></testcase></testsuite>";
    const LCOV: &str = "SF:a\nDA:1,1\nDA:2,0\nDA:3,1\nend_of_record\n";

    #[test]
    fn a_run_says_its_totals_its_failures_and_its_slowest_cases() {
        assert_eq!(
            shown(vec![task("t", &[JUNIT, LCOV], &[])]),
            [
                "tests: 2 passed, 1 failed, 1 skipped in 12.3 s, lines 66.6 %",
                "  FAILED bad (m): 1 != 2 (m.py:7)",
                "  slow   12.3 s  slow",
            ]
        );
        let one = "<testsuite><testcase name='a' time='1'/></testsuite>";
        let alone = shown(vec![task("t", &[one], &[])]);
        assert_eq!(alone, ["tests: 1 passed, 0 failed in 1.0 s"], "nothing is slower than another");
        assert_eq!(shown(vec![task("t", &[LCOV], &[])]), ["coverage: lines 66.6 %"]);
        let two = shown(vec![task("t", &[LCOV], &[]), task("u", &[LCOV], &[])]);
        assert_eq!(two, ["coverage: 2 reports, each with its own lines in --json"]);
        assert_eq!(shown(Vec::new()), [""; 0]);
    }

    #[test]
    fn cases_of_shards_are_said_with_their_shard_and_the_slowest_come_first() {
        let one = |time: &str| {
            format!(
                "<testsuite><testcase name='a' time='{time}'/><testcase name='b'><failure/></testcase></testsuite>"
            )
        };
        let all = shown(vec![task("s-1", &[&one("1")], &[]), task("s-2", &[&one("3")], &[])]);
        assert_eq!(all[1..3], ["  FAILED b in s-1", "  FAILED b in s-2"]);
        assert_eq!(all[3..], ["  slow    3.0 s  a in s-2", "  slow    1.0 s  a in s-1"]);
    }

    #[test]
    fn twenty_failures_are_shown_and_the_others_counted() {
        let many: String =
            (0..30).map(|n| format!("<testcase name='t{n}'><error/></testcase>")).collect();
        let all = shown(vec![task("t", &[&format!("<testsuite>{many}</testsuite>")], &[])]);
        assert_eq!(all[0], "tests: 0 passed, 0 failed, 30 errors");
        assert_eq!(all.iter().filter(|line| line.starts_with("  FAILED t")).count(), MAX_FAILURES);
        assert!(all.contains(&"  and 10 more failed: cofferdam show r1 --json".to_owned()));
        assert_eq!(shown(vec![task("t", &[], &["x"; 22])]).len(), MAX_FAILURES + 1);
    }

    #[test]
    fn a_fault_and_a_glob_without_a_file_are_said_with_their_task() {
        let cut = "<testsuite><testcase name='a'><failure/></testcase>";
        let all = shown(vec![task("one", &[JUNIT], &["*.tap"]), task("two", &[cut], &[])]);
        assert_eq!(all[0], "tests: no totals, since a report could not be read to its end");
        assert!(all.contains(&"  FAILED a in two".to_owned()), "{all:?}");
        let cut = "report r.xml of two: the report is incomplete";
        assert!(all.iter().any(|line| line.starts_with(cut)), "{all:?}");
        assert_eq!(all.last().unwrap(), "reports of one: *.tap matched no file");
    }
}
