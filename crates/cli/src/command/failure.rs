//! Why a run failed, in its failed task's own words: the end of its standard error.

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::printable;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::step::{StepRow, StepStatus};

use super::client::Client;
use super::host_program::HostProgram;
use super::output;

/// A screen has room for them beside the summary; `logs` has the rest.
const LINES: usize = 10;
/// Of one that has no line breaks.
const MAX_BYTES: usize = 2 * 1024;

/// Shows the last lines of the standard error of the task that failed last, where the run failed and it said
/// something.
pub(crate) async fn last_words(
    client: &Client,
    header: &RunHeader,
    steps: &[StepRow],
    artifacts: &[ArtifactRow],
) -> anyhow::Result<()> {
    if !header.status.is_retryable() {
        return Ok(());
    }
    let failed = steps.iter().rev().filter(|step| step.status == StepStatus::Failed);
    let Some((step, key)) = failed.filter_map(|step| Some((step, step.task_key.as_ref()?))).next()
    else {
        return Ok(());
    };
    let is_its = |one: &&ArtifactRow| one.kind == ArtifactKind::Stderr && one.task_key == *key;
    let Some(log) = artifacts.iter().find(is_its) else { return Ok(()) };
    let (shown, is_whole) = last_lines(&client.artifact(&log.uri).await?);
    if shown.is_empty() {
        return Ok(());
    }
    let part = if is_whole { "" } else { ", its last lines" };
    output::line(&format!("stderr of {}{part} (cofferdam logs {key} shows all):", step.name));
    output::block(&shown);
    let path = cofferdam_ambient::env::var("PATH").unwrap_or_default();
    if let Some(absent) = HostProgram::of(&shown, &path).filter(|_| client.is_on_this_host()) {
        output::note(&absent.for_recipe());
    }
    Ok(())
}

/// The end of what was said, printable, and whether it is all of it. Pure.
fn last_lines(bytes: &[u8]) -> (String, bool) {
    let said = bytes.trim_ascii_end();
    let breaks = said.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let from = breaks.map(|(at, _)| at + 1).nth(LINES - 1).unwrap_or(0);
    let from = from.max(said.len().saturating_sub(MAX_BYTES));
    let shown = said.get(from..).unwrap_or_default();
    (printable::bytes(shown), from == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_shown_within_its_bounds_and_acts_on_no_terminal() {
        let lines: String = (1..=12).map(|i| format!("line {i}\n")).collect();
        let (shown, is_whole) = last_lines(lines.as_bytes());
        assert_eq!((shown.lines().next(), shown.lines().count()), (Some("line 3"), LINES));
        assert!(!is_whole);
        assert_eq!(last_lines(b"one\n\n"), ("one".to_owned(), true));
        assert_eq!(last_lines(b""), (String::new(), true));
        let (shown, is_whole) = last_lines(&vec![b'x'; 1_000_000]);
        assert_eq!((shown.len(), is_whole), (MAX_BYTES, false));
        assert_eq!(last_lines(b"\x1b[2J\xff").0, "\\x1b[2J\\xff");
    }
}
