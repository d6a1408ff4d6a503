//! How a dispatch ends: what its row says once its run is over and every attempt has answered. Pure.

use serde_json::Value;

use super::{AccessMode, DispatchStatus, Findings, SandboxEffective, Tally};
use crate::error::Refusal;
use crate::run::RunStatus;
use crate::sandbox::{ErrCode, SandboxResult};

/// What is on record when a dispatch ends.
#[derive(Debug, Clone, Copy)]
pub struct DispatchEndFacts<'a> {
    /// How its run ended.
    pub run: RunStatus,
    /// What its row says of its end, where that was not success.
    pub error: Option<&'a str>,
    /// The answer of its last attempt; `None` where there was no attempt.
    pub last: Option<&'a SandboxResult>,
    /// What was asked of its sandbox, where anything was.
    pub spec: Option<&'a Value>,
    /// The older policy, which `access_mode` of the spec supersedes.
    pub sandbox: Option<AccessMode>,
    /// Its working directory.
    pub project_dir: &'a str,
}

/// The end of a dispatch, in the columns of its row.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchEnd {
    /// Terminal status of the dispatch, from the end of its run and last attempt.
    pub status: DispatchStatus,
    /// The agent's exit status, where it exited.
    pub exit_code: Option<i32>,
    /// Why, where it did not complete.
    pub error_message: Option<String>,
    /// What its agent did.
    pub tally: Tally,
    /// What was enforced, where a spec was given.
    pub effective: Option<Value>,
    /// What became of the project, and the agent's verdict.
    pub findings: Findings,
}

/// Message of a dispatch that was killed, as orchestrators look for it.
const KILLED: &str = "killed by user";

/// The end of a dispatch.
///
/// # Errors
/// `internal`: a record of the product has no JSON form.
pub fn ended(of: DispatchEndFacts<'_>) -> Result<DispatchEnd, Refusal> {
    let status = match (of.run, of.last.map(|last| last.err_code)) {
        (RunStatus::Succeeded, _) => DispatchStatus::Completed,
        (RunStatus::Canceled, _) => DispatchStatus::Canceled,
        (_, Some(ErrCode::Timeout)) => DispatchStatus::Timeout,
        _ => DispatchStatus::Failed,
    };
    let cause = of.last.and_then(|last| last.cause.as_deref()).or(of.error);
    let report = of.last.and_then(|last| last.agent.as_deref());
    let effective = match (of.spec, report) {
        (None, _) => None,
        (Some(_), Some(report)) => Some(report.effective.clone()),
        (Some(spec), None) => Some(never_started(of, spec, cause)?),
    };
    Ok(DispatchEnd {
        status,
        exit_code: of.last.map(|last| last.exit).filter(|exit| *exit >= 0),
        error_message: match status {
            DispatchStatus::Completed => None,
            DispatchStatus::Canceled => Some(KILLED.to_owned()),
            _ => cause.map(str::to_owned),
        },
        tally: report.map(|report| report.tally.clone()).unwrap_or_default(),
        effective,
        findings: report.map(|report| report.findings.clone()).unwrap_or_default(),
    })
}

/// The record of a dispatch whose agent was never sent off: nothing held, since nothing ran.
fn never_started(
    of: DispatchEndFacts<'_>,
    spec: &Value,
    cause: Option<&str>,
) -> Result<Value, Refusal> {
    let asked = spec.get("access_mode").and_then(Value::as_str).and_then(AccessMode::parse);
    let mode = asked.or(of.sandbox).unwrap_or(AccessMode::WorkspaceWrite);
    let cause = cause.unwrap_or("it never started").to_owned();
    let record = SandboxEffective::never_started(of.project_dir.to_owned(), mode, cause);
    serde_json::to_value(record).map_err(|_| Refusal::internal())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::AgentReport;
    use crate::id::TaskKey;
    use serde_json::json;

    fn of<'a>(
        run: RunStatus,
        last: Option<&'a SandboxResult>,
        spec: Option<&'a Value>,
    ) -> DispatchEndFacts<'a> {
        DispatchEndFacts {
            run,
            error: Some("the run's"),
            last,
            spec,
            sandbox: None,
            project_dir: "/w",
        }
    }

    fn answer(err_code: ErrCode) -> SandboxResult {
        let key = TaskKey::parse(&"a".repeat(64)).unwrap();
        SandboxResult { err_code, exit: 3, ..SandboxResult::unanswered(key, None) }
    }

    #[test]
    fn a_dispatch_ends_as_its_run_does_and_a_timeout_is_called_one() {
        for (run, code, want) in [
            (RunStatus::Succeeded, ErrCode::None, DispatchStatus::Completed),
            (RunStatus::Canceled, ErrCode::Timeout, DispatchStatus::Canceled),
            (RunStatus::Failed, ErrCode::Timeout, DispatchStatus::Timeout),
            (RunStatus::Failed, ErrCode::CmdNonzero, DispatchStatus::Failed),
            (RunStatus::RetriesExceeded, ErrCode::BootFail, DispatchStatus::Failed),
        ] {
            let end = ended(of(run, Some(&answer(code)), None)).unwrap();
            assert_eq!((end.status, end.exit_code), (want, Some(3)));
            assert_eq!(end.error_message.is_none(), want == DispatchStatus::Completed);
            assert_eq!(end.effective, None, "what was not asked for is not answered");
        }
        let end = ended(of(RunStatus::Failed, None, None)).unwrap();
        assert_eq!((end.exit_code, end.error_message.as_deref()), (None, Some("the run's")));
    }

    #[test]
    fn what_was_enforced_is_on_record_even_where_nothing_ran() {
        let spec = json!({"access_mode": "read-only"});
        let end = ended(of(RunStatus::Canceled, None, Some(&spec))).unwrap();
        let record: SandboxEffective = serde_json::from_value(end.effective.unwrap()).unwrap();
        assert!(!record.started && !record.enforce);
        assert_eq!((record.access_mode, record.working_dir.as_str()), (AccessMode::ReadOnly, "/w"));
        assert_eq!(record.cause.as_deref(), Some("the run's"));
        let tally = Tally { turns: 2, ..Tally::default() };
        let findings = Findings { verdict_status: Some("pass".to_owned()), ..Findings::default() };
        let report = AgentReport {
            tally: tally.clone(),
            effective: json!({"started": true}),
            findings: findings.clone(),
        };
        let last = SandboxResult { agent: Some(Box::new(report)), ..answer(ErrCode::None) };
        let end = ended(of(RunStatus::Succeeded, Some(&last), Some(&spec))).unwrap();
        assert_eq!((end.tally, end.effective), (tally, Some(json!({"started": true}))));
        assert_eq!(end.findings, findings);
    }
}
