//! What `exec --json` prints: how the command ended, what it wrote, and that its sandbox is gone.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::id::{RunId, SandboxId};
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use cofferdam_contracts::sandbox::{ErrCode, SessionState, WipeStatus};
use cofferdam_contracts::session::WipeView;
use cofferdam_contracts::step::TaskOutcome;
use serde::Serialize;

use super::exit::Exit;

/// The one object that `exec --json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecReport {
    run_id: RunId,
    status: RunStatus,
    /// The command's own; `null` where it never ran.
    exit: Option<i32>,
    err_code: Option<ErrCode>,
    /// Why it failed or which limit it reached, in words.
    error: Option<String>,
    /// With U+FFFD for bytes that are not UTF-8.
    stdout: String,
    /// The bytes themselves, where `stdout` is not them.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// Bytes of output that are in neither.
    dropped: u64,
    limits_reached: Vec<LimitKind>,
    wall_ms: u64,
    build_ms: u64,
    /// Files that it leaves, without the two streams.
    artifacts: Vec<ArtifactRow>,
    wipe: Vec<WipeLine>,
}

/// A sandbox of the run and the newest evidence that it is gone.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WipeLine {
    sandbox_id: SandboxId,
    state: SessionState,
    status: Option<WipeStatus>,
}

/// A stream as far as the report has it.
#[derive(Debug, Default)]
pub(crate) struct StreamText {
    pub bytes: Vec<u8>,
    /// Bytes of it that are kept and not here.
    pub more: u64,
}

impl StreamText {
    /// The text, and the bytes in base64 where it is not exactly them.
    fn parts(self) -> (String, Option<String>) {
        match String::from_utf8(self.bytes) {
            Ok(text) => (text, None),
            Err(error) => {
                let bytes = error.into_bytes();
                (String::from_utf8_lossy(&bytes).into_owned(), Some(STANDARD.encode(bytes)))
            }
        }
    }
}

impl ExecReport {
    /// Of a run that is over, whose command came to `outcome`. Pure.
    pub(crate) fn of(
        header: &RunHeader,
        outcome: TaskOutcome,
        why: Option<&str>,
        stdout: StreamText,
        stderr: StreamText,
    ) -> Self {
        let metrics = outcome.metrics.unwrap_or_default();
        let dropped = outcome.dropped_bytes.saturating_add(stdout.more).saturating_add(stderr.more);
        let (stdout, stdout_base64) = stdout.parts();
        let (stderr, stderr_base64) = stderr.parts();
        Self {
            run_id: header.run_id.clone(),
            status: header.status,
            exit: outcome.exit.filter(|exit| *exit >= 0),
            err_code: outcome.err_code,
            error: why.or(header.error.as_deref()).map(str::to_owned),
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            dropped,
            limits_reached: outcome.limits_reached,
            wall_ms: metrics.wall_ms,
            build_ms: metrics.build_ms,
            artifacts: Vec::new(),
            wipe: Vec::new(),
        }
    }

    /// With what the command leaves, of all that its run has.
    pub(crate) fn with_artifacts(mut self, rows: &[ArtifactRow]) -> Self {
        let is_own =
            |row: &&ArtifactRow| matches!(row.kind, ArtifactKind::File | ArtifactKind::Patch);
        self.artifacts = rows.iter().filter(is_own).cloned().collect();
        self
    }

    /// With what is known of its sandboxes.
    pub(crate) fn with_wipes(mut self, wipes: Vec<WipeView>) -> Self {
        let line = |wipe: WipeView| {
            let WipeView { sandbox_id, state, status, .. } = wipe;
            WipeLine { sandbox_id, state, status }
        };
        self.wipe = wipes.into_iter().map(line).collect();
        self
    }
}

/// A refusal with the flags of `exec` in place of the request's fields. Pure.
pub(crate) fn by_flags(why: &str) -> String {
    let fields = [
        ("limits.memMB", "--mem"),
        ("limits.cpu", "--cpu"),
        ("limits.pids", "--pids"),
        ("limits.diskMB", "--disk"),
    ];
    fields.iter().fold(why.to_owned(), |why, (field, flag)| why.replace(field, flag))
}

/// How `exec` ends, with `--json` or without: as its command did, where there is a status to pass on. What the host does not make
/// as it was asked for is an error, as what the server refuses to plan is one. Pure.
pub(crate) fn exit_of(status: RunStatus, outcome: &TaskOutcome) -> Exit {
    match u8::try_from(outcome.exit.unwrap_or(-1)) {
        Ok(0) if status == RunStatus::Succeeded => Exit::Ok,
        Ok(code) if code > 0 => Exit::Of(code),
        _ if outcome.err_code == Some(ErrCode::BootFail) && status != RunStatus::Canceled => {
            Exit::Error
        }
        _ => Exit::No,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn header(status: &str, error: Value) -> RunHeader {
        let hex = "1".repeat(32);
        serde_json::from_value(json!({
            "workflowID": "w", "runId": format!("rn_{hex}"), "intentId": format!("it_{hex}"), "status": status,
            "workflowName": "run", "createdAt": 1, "updatedAt": 2, "nextAction": "NONE", "error": error,
            "appVersion": "v", "executionMode": "LOCAL_NATIVE", "retryCount": 0,
        }))
        .unwrap()
    }

    fn stream(bytes: &[u8], more: u64) -> StreamText {
        StreamText { bytes: bytes.to_vec(), more }
    }

    #[test]
    fn the_output_is_text_and_its_bytes_stand_beside_what_is_not() {
        let outcome: TaskOutcome = serde_json::from_value(json!({
            "errCode": "CMD_NONZERO", "exit": 4, "limitsReached": ["output"], "droppedBytes": 7,
            "metrics": {"wallMs": 12, "cpuMs": 1, "memPeakMB": 1, "buildMs": 30},
        }))
        .unwrap();
        let header = header("failed", Value::Null);
        let report = ExecReport::of(
            &header,
            outcome,
            Some("why"),
            stream("größer\n".as_bytes(), 0),
            stream(b"a\xff", 5),
        );
        let object = serde_json::to_value(report).unwrap();
        let wanted = json!({
            "runId": header.run_id, "status": "failed", "exit": 4, "errCode": "CMD_NONZERO", "error": "why",
            "stdout": "größer\n", "stderr": "a\u{fffd}", "stderrBase64": "Yf8=", "dropped": 12,
            "limitsReached": ["output"], "wallMs": 12, "buildMs": 30, "artifacts": [], "wipe": [],
        });
        assert_eq!(object, wanted);
    }

    #[test]
    fn a_command_that_never_ran_has_no_exit_and_a_reason() {
        let unstarted = TaskOutcome { exit: Some(-1), ..TaskOutcome::default() };
        for outcome in [TaskOutcome::default(), unstarted] {
            let header = header("failed", json!("no worker"));
            let report = ExecReport::of(
                &header,
                outcome,
                None,
                StreamText::default(),
                StreamText::default(),
            );
            let object = serde_json::to_value(report).unwrap();
            assert_eq!((&object["exit"], &object["error"]), (&Value::Null, &json!("no worker")));
        }
    }

    #[test]
    fn the_exit_is_the_commands_own() {
        let exit = |status, exit| exit_of(status, &TaskOutcome { exit, ..TaskOutcome::default() });
        let why = "this host cannot enforce limits.memMB: 16 to 8192";
        assert_eq!(by_flags(why), "this host cannot enforce --mem: 16 to 8192");
        assert_eq!(exit(RunStatus::Succeeded, Some(0)), Exit::Ok);
        assert_eq!(exit(RunStatus::Failed, Some(4)), Exit::Of(4));
        assert_eq!(exit(RunStatus::Failed, Some(137)), Exit::Of(137));
        for (status, none) in [
            (RunStatus::Failed, None),
            (RunStatus::Failed, Some(-1)),
            (RunStatus::Canceled, Some(0)),
            (RunStatus::Failed, Some(256)),
        ] {
            assert_eq!(exit(status, none), Exit::No, "{status:?} {none:?}");
        }
    }

    #[test]
    fn a_sandbox_that_could_not_be_made_as_asked_is_an_error() {
        let of = |status, code| {
            let outcome =
                TaskOutcome { err_code: Some(code), exit: Some(-1), ..TaskOutcome::default() };
            exit_of(status, &outcome)
        };
        assert_eq!(of(RunStatus::Failed, ErrCode::BootFail), Exit::Error);
        for (status, code) in [
            (RunStatus::Canceled, ErrCode::BootFail),
            (RunStatus::Failed, ErrCode::Timeout),
            (RunStatus::Failed, ErrCode::UploadFail),
        ] {
            assert_eq!(of(status, code), Exit::No, "{status:?} {code:?}");
        }
    }
}
