//! A run's steps and its tasks' attempts, as readers see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact::FileOmission;
use crate::cache::CacheReport;
use crate::enum_names::named;
use crate::id::{StepId, TaskKey};
use crate::sandbox::{EffectivePolicy, ErrCode, LimitKind, Metrics, SessionState, is_zero};
use crate::service::ServiceReport;

/// How the cause of an attempt begins whose build phase failed: its task's command did not run.
pub const IN_BUILD: &str = "in the build phase: ";

named! {
    /// How far a step came.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum StepStatus {
        /// It ended as asked.
        Ok = "ok",
        /// It ended otherwise.
        Failed = "failed",
        /// It was canceled.
        Canceled = "canceled",
        /// A task of a graph that is not started: its condition does not hold, or the run stops.
        Skipped = "skipped",
        /// A task's attempt that waits for other tasks, a place, a worker or memory: nothing of it runs.
        Queued = "queued",
        /// A task's attempt that has no result yet and does not wait for its turn.
        Running = "running",
    }
}

/// How a person names a step: a task by its own name, so that `ExecuteST:build` is `build`, and another step by its id.
#[must_use]
pub fn shown_name(step: &StepId) -> &str {
    step.as_str().trim_start_matches("ExecuteST:")
}

impl StepStatus {
    /// Whether it has no result yet.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Queued | Self::Running)
    }
}

named! {
    /// What a running attempt does, as its worker last said; a state that passes within a tenth of a second may never be seen.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum TaskPhase {
        /// Its sandbox is being made.
        Boot = "boot",
        /// Its dependencies are being installed.
        Build = "build",
        /// Its command runs.
        Exec = "exec",
        /// Its files are read out.
        Collect = "collect",
        /// Its sandbox is being taken away, and looked for.
        Wipe = "wipe",
    }
}

impl TaskPhase {
    /// The phase of a task whose session is in this state; `None` once that has ended.
    #[must_use]
    pub const fn of(state: SessionState) -> Option<Self> {
        match state {
            SessionState::Provisioning => Some(Self::Boot),
            SessionState::Building => Some(Self::Build),
            SessionState::Executing => Some(Self::Exec),
            SessionState::Collecting => Some(Self::Collect),
            SessionState::RemoteWipeVerifying => Some(Self::Wipe),
            SessionState::Completed
            | SessionState::Failed
            | SessionState::Canceled
            | SessionState::Orphaned => None,
        }
    }
}

/// A step of a run (`CompileST`, ..), or one attempt of one of its tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepRow {
    /// The step; of a task `ExecuteST:` and its name.
    pub step_id: StepId,
    /// The same id, as clients of the engine's own API spell it.
    #[serde(rename = "stepID")]
    pub engine_step_id: StepId,
    /// The step, or the task's name.
    pub name: String,
    /// The attempt's key; `null` for a step of the run itself, and for a task that was not queued.
    pub task_key: Option<TaskKey>,
    /// Which attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: i32,
    /// How far it came.
    pub status: StepStatus,
    /// When it first started, ms since the epoch; `null` before that.
    pub started_at: Option<i64>,
    /// When it ended, ms since the epoch; of a running attempt when it was written.
    pub at: i64,
    /// Of a task's attempt a [`TaskOutcome`]; of another step what that step recorded.
    #[schemars(schema_with = "output")]
    pub output: Option<Value>,
    /// What a queued attempt waits for, in words, such as `memory: 3 before you`; absent elsewhere, and where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// What a running attempt does; absent where it does not run, and where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<TaskPhase>,
    /// Why it failed, in words.
    pub error: Option<String>,
    /// URIs of its artifacts, in their order.
    pub artifact_refs: Vec<String>,
}

fn output(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let task = generator.subschema_for::<TaskOutcome>();
    schemars::json_schema!({"anyOf": [
        task,
        {"description": "What another step recorded.", "type": ["object", "array", "string", "number", "boolean", "null"]}
    ]})
}

impl StepRow {
    /// What a task's attempt came to; `None` for a step of the run itself.
    ///
    /// # Errors
    /// An output that is not a task's.
    pub fn outcome(&self) -> Result<Option<TaskOutcome>, serde_json::Error> {
        match (&self.task_key, &self.output) {
            (Some(_), Some(output)) => serde_json::from_value(output.clone()).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether it is of a task: an attempt, or one that was not started.
    #[must_use]
    pub fn is_task(&self) -> bool {
        self.task_key.is_some() || self.step_id.as_str().starts_with("ExecuteST:")
    }

    /// The task's name without the step's: `ExecuteST:build` is `build`.
    #[must_use]
    pub fn task_name(&self) -> &str {
        shown_name(&self.step_id)
    }
}

/// What came of one attempt of a task. Everything is `null` while it runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TaskOutcome {
    /// How it ended.
    pub err_code: Option<ErrCode>,
    /// Exit status of the task's command.
    pub exit: Option<i32>,
    /// What it used.
    pub metrics: Option<Metrics>,
    /// The sandbox that ran it.
    pub sandbox_ref: Option<String>,
    /// The policy as it was enforced.
    pub effective: Option<EffectivePolicy>,
    /// The limits that it reached.
    pub limits_reached: Vec<LimitKind>,
    /// How its services fared, and the images that they ran from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceReport>,
    /// What came of the dependency cache.
    pub cache: Option<CacheReport>,
    /// Bytes of its output beyond what is kept of each stream: they are counted and lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// Globs of its `artifacts` that matched nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// Files that match its `artifacts` and are beyond a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<FileOmission>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(task_key: Option<&str>, output: Value) -> StepRow {
        serde_json::from_value(json!({
            "stepId": "ExecuteST:a", "stepID": "ExecuteST:a", "name": "a", "taskKey": task_key,
            "attempt": 1, "status": "running", "startedAt": null, "at": 5, "output": output,
            "error": null, "artifactRefs": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_session_that_has_ended_has_no_phase_and_older_rows_have_no_word_of_one() {
        let phases: Vec<TaskPhase> =
            SessionState::ALL.iter().filter_map(|state| TaskPhase::of(*state)).collect();
        assert_eq!(phases, TaskPhase::ALL);
        let old = row(None, Value::Null);
        assert!(!serde_json::to_string(&old).unwrap().contains("phase"));
    }

    #[test]
    fn a_running_attempt_has_an_outcome_without_a_word() {
        let empty = json!({"errCode": null, "exit": null, "metrics": null, "sandboxRef": null,
            "effective": null, "limitsReached": [], "cache": null});
        let key = "a".repeat(64);
        assert_eq!(row(Some(&key), empty).outcome().unwrap(), Some(TaskOutcome::default()));
        assert_eq!(row(None, json!({"tasks": 3})).outcome().unwrap(), None);
        assert!(row(Some(&key), json!({"tasks": 3})).outcome().is_err());
        assert_eq!(row(None, Value::Null).task_name(), "a");
    }
}
