//! How the phases of a task add up to its result. Pure.
//!
//! | what ran out | `errCode` | session | attempt | run |
//! |---|---|---|---|---|
//! | wall time of the build phase | `TIMEOUT` | `FAILED` | final | `failed` |
//! | wall time of the task | `TIMEOUT` | `FAILED` | final | `failed` |
//! | room or time of the artifact store | `DOWNLOAD_FAIL` | `FAILED` | tried again | `retries_exceeded` |
//! | time to collect its files | `DOWNLOAD_FAIL` | `FAILED` | tried again | `retries_exceeded` |
//! | files or bytes of its artifacts | `DOWNLOAD_FAIL` | `FAILED` | final | `failed` |
//! | the run's deadline | `CMD_NONZERO`, canceled | `CANCELED` | final | `failed`, with a diagnosis |
//!
//! The last row is the run's own: its tasks are canceled, whatever they were doing.

use cofferdam_contracts::artifact::{ArtifactBound, FileOmission};
use cofferdam_contracts::artifact_spec::ArtifactSpec;
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::sandbox::{ErrCode, SandboxResult};
use cofferdam_contracts::step::IN_BUILD;
use cofferdam_sandbox::{ExecOutcome, SandboxError};

use crate::error::Error;
use crate::output_files::NoFiles;

/// Characters of an agent's last words that its cause repeats.
const MAX_LAST: usize = 300;

/// The command that decides: the task's, or the build's where that failed.
pub(crate) fn ran(result: &mut SandboxResult, outcome: &ExecOutcome, in_build: bool) {
    result.exit = outcome.exit;
    result.err_code = outcome.err_code;
    let phase = |cause: &String| match in_build {
        true => format!("{IN_BUILD}{cause}"),
        false => cause.clone(),
    };
    result.cause = outcome.cause.as_ref().map(phase);
    result.dropped_bytes = outcome.dropped.stdout.saturating_add(outcome.dropped.stderr);
    result.metrics.wall_ms = outcome.wall_ms;
    result.metrics.cpu_ms = outcome.cpu_ms;
    result.limits_reached.extend(&outcome.reached);
    result.limits_reached.sort_unstable();
    result.limits_reached.dedup();
}

/// Characters of a glob that a cause repeats: it may have 1,024.
const MAX_GLOB: usize = 200;

/// Its files were read out as far as they fit: which of its globs, by their place, matched nothing, and what is beyond a bound.
/// A task that would be a success fails where files are left out, or where one that it must leave is absent.
pub(crate) fn collected(
    result: &mut SandboxResult,
    artifacts: &[ArtifactSpec],
    unmatched: &[usize],
    omitted: Option<FileOmission>,
) {
    let unmatched: Vec<&ArtifactSpec> =
        unmatched.iter().filter_map(|index| artifacts.get(*index)).collect();
    result.unmatched = unmatched.iter().map(|artifact| artifact.path.clone()).collect();
    let mut why = Vec::new();
    if let Some(omitted) = &omitted {
        result.limits_reached.push(LimitKind::Artifacts);
        why.push(beyond(omitted));
    }
    let required: Vec<String> = unmatched
        .iter()
        .filter(|artifact| artifact.required)
        .map(|artifact| format!("`{}`", artifact.path.chars().take(MAX_GLOB).collect::<String>()))
        .collect();
    if let Some((first, others)) = required.split_first() {
        let more = match others.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        why.push(format!(
            "required artifacts are absent: {first}{more} matched nothing in the working directory"
        ));
    }
    result.omitted = omitted;
    if result.err_code == ErrCode::None && !why.is_empty() {
        result.err_code = ErrCode::DownloadFail;
        result.cause = Some(why.join("; "));
        // The task did its work and would leave the same another time, wherever.
        result.permanent = true;
        result.permanent_everywhere = true;
    }
}

fn beyond(omitted: &FileOmission) -> String {
    let advice = match omitted.bound {
        ArtifactBound::Bytes => "match fewer, compress them, or split the task",
        ArtifactBound::Files => "match fewer, or pack them into one archive",
    };
    format!("`artifacts` matches more than is kept: {omitted}; the others were kept: {advice}")
}

/// Its files could not be read out, or not be stored. A task that failed by itself stays what it is.
pub(crate) fn uncollected(result: &mut SandboxResult, error: &NoFiles) {
    let is_excess = matches!(error, NoFiles::Sandbox(SandboxError::Excess(_)));
    if is_excess {
        result.limits_reached.push(LimitKind::Artifacts);
    }
    if result.err_code == ErrCode::None {
        result.err_code = ErrCode::DownloadFail;
        result.cause = Some(match error {
            NoFiles::Sandbox(error) => {
                let source = std::error::Error::source(error);
                let source = source.map(|source| format!(": {source}")).unwrap_or_default();
                format!("its files could not be collected: {error}{source}")
            }
            NoFiles::Object(error) => {
                let fault = error.fault().as_str();
                format!("its files could not be stored ({fault}): {error}")
            }
            NoFiles::Ledger(error) => {
                let why = match error {
                    Error::Ledger(_) => "the database does not answer",
                    _ => "what is on record of it does not hold together",
                };
                format!("its files could not be collected: {why}")
            }
        });
        // The task did its work and would leave as much another time, wherever.
        result.permanent = is_excess;
        result.permanent_everywhere = is_excess;
    }
}

/// Its command was ended by us, if it had not ended well by then, and what it left is there all the same. Whether
/// somebody canceled it.
pub(crate) fn ended(result: &mut SandboxResult, is_unwanted: bool, why: Option<String>) -> bool {
    if result.err_code == ErrCode::None || !(is_unwanted || why.is_some()) {
        return false;
    }
    result.err_code = ErrCode::CmdNonzero;
    result.cause = if is_unwanted { Some("canceled".to_owned()) } else { why };
    is_unwanted
}

/// What an agent itself says went wrong stands first; what the host saw follows. An agent that exits with 0 after an
/// error has not succeeded.
pub(crate) fn complained(result: &mut SandboxResult, words: Option<String>) {
    let Some(words) = words else { return };
    match (result.err_code, result.cause.take()) {
        (ErrCode::None, _) => {
            result.err_code = ErrCode::CmdNonzero;
            result.cause = Some(words);
        }
        (_, Some(cause)) => result.cause = Some(format!("{words}; {cause}")),
        (_, None) => result.cause = Some(words),
    }
}

/// An agent that says nothing of its failure: the last line that it wrote as an error is why.
pub(crate) fn silent(result: &mut SandboxResult) {
    let bare = format!("exit status {}", result.exit);
    let last = result.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    if let (Some(last), true) = (last, result.cause.as_ref() == Some(&bare)) {
        let last: String = last.chars().filter(|one| !one.is_control()).take(MAX_LAST).collect();
        result.cause = Some(format!("{bare}: {last}"));
    }
}

/// An agent says that all is well, and could do nothing.
pub(crate) fn idle(result: &mut SandboxResult, why: Option<String>) {
    if let (ErrCode::None, Some(why)) = (result.err_code, why) {
        result.err_code = ErrCode::CmdNonzero;
        result.cause = Some(why);
    }
}

/// Its sandbox ended before its command did. Whether somebody canceled it.
pub(crate) fn broke(result: &mut SandboxResult, error: &SandboxError) -> bool {
    let canceled = matches!(error, SandboxError::Killed);
    result.cause = Some(if canceled { "canceled".to_owned() } else { error.to_string() });
    canceled
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::TaskKey;
    use cofferdam_contracts::run::{Budget, RunStatus};
    use cofferdam_contracts::sandbox::SessionState;
    use cofferdam_ledger::tasks::terminal_state;
    use cofferdam_sandbox::DropCounts;

    use super::*;
    use crate::decide::{Miss, Next, Round, after_round};

    fn blank() -> SandboxResult {
        SandboxResult::unanswered("0".repeat(64).parse().unwrap(), None)
    }

    fn outcome(err_code: ErrCode) -> ExecOutcome {
        let timed_out = err_code == ErrCode::Timeout;
        ExecOutcome {
            exit: if err_code == ErrCode::None { 0 } else { 137 },
            err_code,
            wall_ms: 5,
            cpu_ms: 1,
            oom: false,
            timed_out,
            dropped: DropCounts::default(),
            reached: if timed_out { vec![LimitKind::Wall] } else { Vec::new() },
            seen: None,
            cause: timed_out.then(|| "the wall time of 5 ms ran out".to_owned()),
        }
    }

    /// The run's status once every attempt that it is given has ended so.
    fn run_status(err_code: ErrCode) -> RunStatus {
        for attempt in 1.. {
            let miss = Miss { index: 0, name: "t".into(), err_code, cause: None, permanent: false };
            let round = Round { missed: vec![miss], ..Round::none() };
            match after_round(&round, attempt, &Budget::default()) {
                Next::Finish { status, .. } => return status,
                Next::Again { .. } => assert!(attempt < 100),
            }
        }
        unreachable!("a run ends")
    }

    #[test]
    fn a_glob_without_a_file_is_told_and_fails_the_task_where_it_is_required() {
        let spec = |path: &str, required| ArtifactSpec { path: path.to_owned(), required };
        let specs = [spec("dist/*", false), spec("report.xml", true), spec("logs/**", false)];
        let fresh = |err_code| {
            let key = TaskKey::parse(&"a".repeat(64)).unwrap();
            SandboxResult { err_code, ..SandboxResult::unanswered(key, None) }
        };
        let mut result = fresh(ErrCode::None);
        collected(&mut result, &specs, &[0, 2], None);
        assert_eq!((result.err_code, result.unmatched.len()), (ErrCode::None, 2));
        let mut result = fresh(ErrCode::None);
        collected(&mut result, &specs, &[0, 1], None);
        assert_eq!((result.err_code, result.permanent), (ErrCode::DownloadFail, true));
        let why = result.cause.unwrap();
        assert!(why.contains("`report.xml` matched nothing"), "{why}");
        let omitted = FileOmission {
            files: 3,
            bytes: 9,
            first: "b".into(),
            bound: ArtifactBound::Files,
            most: 1_000,
        };
        let mut result = fresh(ErrCode::None);
        collected(&mut result, &specs, &[1], Some(omitted.clone()));
        let why = result.cause.as_deref().unwrap();
        for words in ["at most 1000 files", "3 files with 9 bytes", "\"b\"", "report.xml"] {
            assert!(why.contains(words), "{words}: {why}");
        }
        assert_eq!(result.limits_reached, [LimitKind::Artifacts]);
        assert_eq!(result.omitted, Some(omitted.clone()));
        // A task that failed by itself stays what it is.
        let mut result = fresh(ErrCode::CmdNonzero);
        collected(&mut result, &specs, &[1], Some(omitted));
        assert_eq!((result.err_code, result.cause), (ErrCode::CmdNonzero, None));
        assert_eq!(
            (result.unmatched.as_slice(), result.permanent),
            (&["report.xml".to_owned()][..], false)
        );
    }

    #[test]
    fn every_timeout_ends_in_one_state() {
        type Apply = fn(&mut SandboxResult) -> bool;
        let table: [(&str, Apply, ErrCode, SessionState, RunStatus); 4] = [
            (
                "build",
                |result| {
                    ran(result, &outcome(ErrCode::Timeout), true);
                    false
                },
                ErrCode::Timeout,
                SessionState::Failed,
                RunStatus::Failed,
            ),
            (
                "exec",
                |result| {
                    ran(result, &outcome(ErrCode::Timeout), false);
                    // What a timed out task left may be incomplete too: that changes nothing.
                    uncollected(result, &NoFiles::Sandbox(SandboxError::Silent(7)));
                    false
                },
                ErrCode::Timeout,
                SessionState::Failed,
                RunStatus::Failed,
            ),
            (
                "collect",
                |result| {
                    ran(result, &outcome(ErrCode::None), false);
                    uncollected(result, &NoFiles::Sandbox(SandboxError::Silent(7)));
                    false
                },
                ErrCode::DownloadFail,
                SessionState::Failed,
                RunStatus::RetriesExceeded,
            ),
            (
                "deadline of the run",
                |result| broke(result, &SandboxError::Killed),
                ErrCode::CmdNonzero,
                SessionState::Canceled,
                RunStatus::Failed,
            ),
        ];
        for (what, apply, code, session, run) in table {
            let mut result = blank();
            let canceled = apply(&mut result);
            assert_eq!(result.err_code, code, "{what}");
            assert!(result.cause.is_some(), "{what} has a cause in words");
            assert_eq!(terminal_state(canceled, code), session, "{what}");
            assert_eq!(run_status(code), run, "{what}");
        }
    }

    #[test]
    fn d_r10_an_agents_own_words_stand_before_what_the_host_saw() {
        let said = || Some("codex: 401 bad key".to_owned());
        let mut result = blank();
        ran(&mut result, &outcome(ErrCode::CmdNonzero), false);
        result.cause = Some("exit status 1".into());
        complained(&mut result, said());
        assert_eq!(result.cause.as_deref(), Some("codex: 401 bad key; exit status 1"));
        let mut result = blank();
        ran(&mut result, &outcome(ErrCode::None), false);
        complained(&mut result, said());
        assert_eq!(result.err_code, ErrCode::CmdNonzero);
        assert_eq!(result.cause, said());
    }

    #[test]
    fn the_last_words_of_an_agent_that_told_nothing_are_why() {
        let mut result = blank();
        ran(&mut result, &outcome(ErrCode::CmdNonzero), false);
        (result.exit, result.cause) = (127, Some("exit status 127".into()));
        result.stderr = "sh: 1\nsh: 2: \u{1b}[1mit: not found\n\n".into();
        silent(&mut result);
        let told = Some("exit status 127: sh: 2: [1mit: not found");
        assert_eq!(result.cause.as_deref(), told);
        // Once, and not where something else was said.
        silent(&mut result);
        assert_eq!(result.cause.as_deref(), told);
    }

    #[test]
    fn a_build_that_ran_out_of_time_says_that_it_was_the_build() {
        let mut result = blank();
        ran(&mut result, &outcome(ErrCode::Timeout), true);
        let cause = result.cause.unwrap();
        assert_eq!(cause, "in the build phase: the wall time of 5 ms ran out");
        assert_eq!(result.limits_reached, [LimitKind::Wall]);
    }
}
