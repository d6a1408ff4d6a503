//! `app.opencode_calls`: prompts to agents, each once.

use cofferdam_contracts::id::{Digest, RunId, SandboxId, StepId};
use serde_json::Value;

use crate::error::Result;
use crate::families::Models;

/// A prompt to be sent.
#[derive(Debug, Clone)]
pub struct NewPrompt<'a> {
    /// `sha256(canonical [session, step, attempt])`.
    pub op_key: &'a Digest,
    /// Run of the task that starts the agent.
    pub run: &'a RunId,
    /// Step id of the task that starts the agent.
    pub step: &'a StepId,
    /// The step's attempt, from 1.
    pub attempt: u32,
    /// The session, which is the sandbox's.
    pub session: &'a SandboxId,
    /// The agent's type.
    pub agent: &'a str,
    /// What the agent is told.
    pub prompt: &'a str,
    /// Hash of the schema that its answer has to fit, where it has one.
    pub schema_hash: Option<&'a Digest>,
    /// How it is run.
    pub request: Value,
}

/// What came of a prompt.
#[derive(Debug, Clone, Default)]
pub struct PromptEnd<'a> {
    /// The answer that fits the schema.
    pub structured: Option<Value>,
    /// The answer as it came, cut at its bound.
    pub raw: Option<&'a str>,
    /// Tools that it used, by name.
    pub tool_calls: Option<Value>,
    /// Tokens in and out, in the agent's own words.
    pub tokens: Option<(u64, u64)>,
    /// Micro-units, in the agent's own words.
    pub micros: Option<u64>,
    /// How long it took, ms.
    pub wall_ms: u64,
    /// Why it failed.
    pub error: Option<&'a str>,
}

fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Models<'_> {
    /// Writes a prompt before it is sent. `false`: its key is on record already, and it is not sent again.
    pub async fn prompt_begin(self, new: &NewPrompt<'_>) -> Result<bool> {
        let written = sqlx::query(
            "INSERT INTO app.opencode_calls
               (op_key, run_id, step_id, attempt, session_id, agent, prompt, schema_hash, request, origin)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'engine-dbos') ON CONFLICT (op_key) DO NOTHING",
        )
        .bind(new.op_key.as_str())
        .bind(new.run.as_str())
        .bind(new.step.as_str())
        .bind(i32::try_from(new.attempt).unwrap_or(i32::MAX))
        .bind(new.session.as_str())
        .bind(new.agent)
        .bind(new.prompt)
        .bind(new.schema_hash.map(Digest::as_str))
        .bind(&new.request)
        .execute(self.pool())
        .await?;
        Ok(written.rows_affected() == 1)
    }

    /// Writes what came of a prompt, once. `false`: that is on record already.
    pub async fn prompt_end(self, op_key: &Digest, end: &PromptEnd<'_>) -> Result<bool> {
        let written = sqlx::query(
            "UPDATE app.opencode_calls
                SET structured = $2, raw = $3, tool_calls = $4, tokens_in = $5, tokens_out = $6, micros = $7,
                    wall_ms = $8, error = $9, ended_at = clock_timestamp()
              WHERE op_key = $1 AND ended_at IS NULL",
        )
        .bind(op_key.as_str())
        .bind(&end.structured)
        .bind(end.raw)
        .bind(&end.tool_calls)
        .bind(end.tokens.map(|(input, _)| big(input)))
        .bind(end.tokens.map(|(_, output)| big(output)))
        .bind(end.micros.map(big))
        .bind(big(end.wall_ms))
        .bind(end.error)
        .execute(self.pool())
        .await?;
        Ok(written.rows_affected() == 1)
    }
}
