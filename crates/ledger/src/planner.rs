//! Runs that OpenCode plans and builds: its prompts, what providers answered within them, and the patch.
//!
//! A prompt is taken by a sandbox before it is sent, and ended by the sandbox that took it last: one key is never
//! written from two.

use cofferdam_contracts::id::{Digest, RunId, SandboxId, StepId, TaskKey};
use cofferdam_contracts::tree_change::TreeChange;
use serde_json::{Value, json};
use sqlx::Row;

use crate::error::{LedgerError, Result, id, load};
use crate::families::Planner;

/// A prompt that a sandbox is about to take.
#[derive(Debug, Clone)]
pub struct PromptClaim<'a> {
    /// `sha256(canonical [session, step, attempt])`.
    pub op_key: &'a Digest,
    /// Run whose plan or patch the prompt is for.
    pub run: &'a RunId,
    /// Its step, with the attempt of its task.
    pub step: &'a StepId,
    /// The prompt's number within it, from 1.
    pub attempt: u32,
    /// The daemon's session.
    pub session: &'a str,
    /// `plan` or `build`.
    pub agent: &'a str,
    /// What it is told.
    pub prompt: &'a str,
    /// Hash of the schema of its answer.
    pub schema_hash: Option<&'a Digest>,
    /// The ids that are sent.
    pub request: Value,
    /// Who sends it.
    pub sandbox: &'a SandboxId,
}

/// How a prompt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptOutcome {
    /// With an answer, which may not fit its schema.
    Answered,
    /// The daemon ended the turn.
    Failed,
    /// The worker ended the turn, which did not move.
    Stalled,
}

/// The end of a prompt.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerPromptEnd {
    /// How it ended.
    pub outcome: PromptOutcome,
    /// The answer under a schema, as it came.
    pub structured: Option<Value>,
    /// The answer's text, cut at its bound.
    pub raw: Option<String>,
    /// Why it gave no answer.
    pub error: Option<String>,
}

/// What a sandbox that takes a prompt is told.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptClaimOutcome {
    /// It is this sandbox's: read back, then send.
    Open,
    /// It ended before, and is not sent again.
    Ended(PlannerPromptEnd),
    /// Another execution of the task goes on, or the session is over: nothing may be sent.
    Lost,
    /// The key stands for another prompt.
    Other,
}

/// What is reported with the end of a prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptUse<'a> {
    /// Tools of its last step.
    pub tools: &'a [String],
    /// Tokens in and out, in the agent's own words.
    pub tokens: Option<(u64, u64)>,
    /// How long it took, ms.
    pub wall_ms: u64,
}

/// An answer of a provider within a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// HTTP status of the provider's answer.
    pub status: u16,
    /// Header of that name.
    pub content_type: String,
    /// The body, whole.
    pub body: Vec<u8>,
}

/// Which answer within a prompt.
#[derive(Debug, Clone, Copy)]
pub struct AnswerKey<'a> {
    /// Key of the prompt in `app.opencode_calls`.
    pub op_key: &'a Digest,
    /// Digest of what the call asks for, and of its place among equal ones.
    pub shape: &'a Digest,
}

fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Planner<'_> {
    /// The run's plan is being made: it runs.
    pub async fn planning(self, run: &RunId) -> Result<()> {
        sqlx::query(
            "UPDATE app.runs SET status = 'running', last_step = 'CompileST' WHERE id = $1 AND status = 'queued'",
        )
        .bind(run.as_str())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Takes a prompt before it is sent: its row is there when this returns.
    pub async fn prompt_take(self, new: &PromptClaim<'_>) -> Result<PromptClaimOutcome> {
        let taken: Value =
            sqlx::query_scalar("SELECT app.prompt_take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)")
                .bind(new.op_key.as_str())
                .bind(new.run.as_str())
                .bind(new.step.as_str())
                .bind(i32::try_from(new.attempt).unwrap_or(i32::MAX))
                .bind(new.session)
                .bind(new.agent)
                .bind(new.prompt)
                .bind(new.schema_hash.map(Digest::as_str))
                .bind(&new.request)
                .bind(new.sandbox.as_str())
                .fetch_one(self.pool())
                .await?;
        if let Some(ended) = taken.get("ended") {
            return load("opencode_calls", ended.clone()).map(PromptClaimOutcome::Ended);
        }
        Ok(match (taken.get("lost"), taken.get("other")) {
            (Some(_), _) => PromptClaimOutcome::Lost,
            (_, Some(_)) => PromptClaimOutcome::Other,
            _ => PromptClaimOutcome::Open,
        })
    }

    /// Ends a prompt, once, if this sandbox took it last. `false`: it did not, or it is ended.
    pub async fn prompt_close(
        self,
        op_key: &Digest,
        sandbox: &SandboxId,
        ended: &PlannerPromptEnd,
        used: PromptUse<'_>,
    ) -> Result<bool> {
        let outcome = serde_json::to_value(ended.outcome).unwrap_or_default();
        let written = sqlx::query(
            "UPDATE app.opencode_calls
                SET outcome = $3, structured = $4, raw = $5, error = $6, tool_calls = $7, tokens_in = $8,
                    tokens_out = $9, wall_ms = $10, ended_at = clock_timestamp()
              WHERE op_key = $1 AND ended_at IS NULL AND app.prompt_is_held($1, $2)",
        )
        .bind(op_key.as_str())
        .bind(sandbox.as_str())
        .bind(outcome.as_str())
        .bind(&ended.structured)
        .bind(&ended.raw)
        .bind(&ended.error)
        .bind(json!(used.tools))
        .bind(used.tokens.map(|(input, _)| big(input)))
        .bind(used.tokens.map(|(_, output)| big(output)))
        .bind(big(used.wall_ms))
        .execute(self.pool())
        .await?;
        Ok(written.rows_affected() == 1)
    }

    /// What a provider answered to a call of this shape within a prompt.
    pub async fn answer_read(self, key: AnswerKey<'_>) -> Result<Option<StoredAnswer>> {
        let row = sqlx::query(
            "SELECT status, content_type, body FROM app.prompt_answers WHERE op_key = $1 AND shape = $2",
        )
        .bind(key.op_key.as_str())
        .bind(key.shape.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(StoredAnswer {
                status: u16::try_from(row.try_get::<i32, _>("status")?).unwrap_or(200),
                content_type: row.try_get("content_type")?,
                body: row.try_get("body")?,
            })
        })
        .transpose()
    }

    /// Keeps an answer before the agent reads its end, if this sandbox took the prompt last. `false`: it did not, and the
    /// agent may not read it.
    pub async fn answer_store(
        self,
        key: AnswerKey<'_>,
        sandbox: &SandboxId,
        call: &Digest,
        answer: &StoredAnswer,
    ) -> Result<bool> {
        // The second statement of a try whose answer was lost finds the first one's row.
        let kept = sqlx::query_scalar(
            "WITH held AS MATERIALIZED (SELECT app.prompt_is_held($1, $3) AS held),
             new AS (
               INSERT INTO app.prompt_answers (op_key, shape, call_key, status, content_type, body)
               SELECT $1, $2, $4, $5, $6, $7 FROM held WHERE held
               ON CONFLICT DO NOTHING RETURNING call_key)
             SELECT coalesce((SELECT call_key FROM new),
                             (SELECT call_key FROM app.prompt_answers WHERE op_key = $1 AND shape = $2)) = $4",
        )
        .bind(key.op_key.as_str())
        .bind(key.shape.as_str())
        .bind(sandbox.as_str())
        .bind(call.as_str())
        .bind(i32::from(answer.status))
        .bind(&answer.content_type)
        .bind(&answer.body)
        .fetch_one(self.pool())
        .await?;
        let kept: Option<bool> = kept;
        Ok(kept.unwrap_or(false))
    }

    /// The prompts of a session that were answered, in their order: key, number, text and whether it had a schema.
    pub async fn prompts_answered(
        self,
        session: &str,
        agent: &str,
    ) -> Result<Vec<(StepId, u32, String)>> {
        let rows = sqlx::query(
            "SELECT step_id, attempt, prompt FROM app.opencode_calls
              WHERE session_id = $1 AND agent = $2 AND outcome = 'answered' ORDER BY created_at, attempt LIMIT 100",
        )
        .bind(session)
        .bind(agent)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let attempt = u32::try_from(row.try_get::<i32, _>("attempt")?).unwrap_or(1);
                let step = id("opencode_calls.step_id", row.try_get("step_id")?)?;
                Ok((step, attempt, row.try_get("prompt")?))
            })
            .collect()
    }

    /// The artifact of the last build's patch, if it succeeded: its task, its URI and its digest.
    pub async fn patch_of(
        self,
        run: &RunId,
        step: &StepId,
    ) -> Result<Option<(TaskKey, String, Digest)>> {
        let row = sqlx::query(
            "SELECT s.task_key, a.uri, a.sha256 FROM app.latest_sbx_runs s
               JOIN app.artifacts a ON a.task_key = s.task_key AND a.kind = 'patch'
              WHERE s.run_id = $1 AND s.step_id = $2 AND s.err_code = 'NONE'",
        )
        .bind(run.as_str())
        .bind(step.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok((
                id("sbx_runs.task_key", row.try_get("task_key")?)?,
                row.try_get("uri")?,
                id("artifacts.sha256", row.try_get("sha256")?)?,
            ))
        })
        .transpose()
    }

    /// ApplyPatchST: each file of a patch and the step, in one statement. A replay changes nothing.
    pub async fn patch_record(
        self,
        run: &RunId,
        task: &TaskKey,
        digest: &Digest,
        patch: &TreeChange,
        attempt: u32,
    ) -> Result<()> {
        let mut rows = Vec::with_capacity(patch.entries.len());
        for (n, entry) in (1_u64..).zip(&patch.entries) {
            let diff = entry.diff().map_err(|e| LedgerError::Row {
                what: "patch_history.diff_sha256",
                why: e.to_string(),
            })?;
            let (pre, post) = (entry.pre.as_ref(), entry.post.as_ref());
            rows.push(json!({
                "n": n, "path": entry.path, "diff": diff,
                "pre_mode": pre.map(|i| i.mode), "pre_sha256": pre.and_then(|i| i.sha256.as_ref()),
                "post_mode": post.map(|i| i.mode), "post_sha256": post.and_then(|i| i.sha256.as_ref()),
            }));
        }
        let output = json!({"patch": digest, "entries": patch.entries.len()});
        sqlx::query(
            "WITH st AS (
               INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin)
               VALUES ($1, 'ApplyPatchST', $5, 'ok', $6, 'engine-dbos') ON CONFLICT DO NOTHING)
             INSERT INTO app.patch_history
               (run_id, task_key, patch_sha256, n, path, pre_mode, pre_sha256, post_mode, post_sha256, diff_sha256)
             SELECT $1, $2, $3, x.n, x.path, x.pre_mode, x.pre_sha256, x.post_mode, x.post_sha256, x.diff
               FROM jsonb_to_recordset($4) AS x(n integer, path text, pre_mode integer, pre_sha256 text,
                                                post_mode integer, post_sha256 text, diff text)
             ON CONFLICT DO NOTHING",
        )
        .bind(run.as_str())
        .bind(task.as_str())
        .bind(digest.as_str())
        .bind(json!(rows))
        .bind(i32::try_from(attempt).unwrap_or(i32::MAX))
        .bind(output)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// DecideST: the tests that the approved plan names. A replay changes nothing.
    pub async fn tests_decided(self, run: &RunId, tests: &[&str], attempt: u32) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin)
             VALUES ($1, 'DecideST', $2, 'ok', $3, 'engine-dbos') ON CONFLICT DO NOTHING",
        )
        .bind(run.as_str())
        .bind(i32::try_from(attempt).unwrap_or(i32::MAX))
        .bind(json!({"tests": tests}))
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
