//! The prompt of a dispatch: on record before its agent starts, and its end before the sandbox is wiped.

use cofferdam_contracts::canonical;
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::sandbox::SandboxResult;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::prompts::{NewPrompt, PromptEnd};
use cofferdam_ledger::tasks::TaskContext;
use serde_json::json;

use crate::patience::patiently;

/// A prompt that is on record.
#[derive(Debug)]
pub(crate) struct PromptRecord(Digest);

/// Writes the prompt of an agent's session. An agent is started once in a session, so its key is fresh.
pub(crate) async fn prompt_begin(
    ledger: &Ledger,
    task: &TaskContext,
    sandbox: &SandboxId,
    agent: &AgentWork,
) -> Option<PromptRecord> {
    let key = canonical::digest(&json!([sandbox.as_str(), task.step_id.as_str(), task.attempt]));
    let op_key = key.ok()?;
    let prompt = agent.request.files_in.iter().find(|file| file.path == agent.stdin);
    let new = NewPrompt {
        op_key: &op_key,
        run: &task.run,
        step: &task.step_id,
        attempt: task.attempt,
        session: sandbox,
        agent: agent.agent_type.as_str(),
        prompt: prompt.and_then(|file| file.inline.as_deref()).unwrap_or_default(),
        schema_hash: None,
        request: json!({"dispatch": agent.dispatch, "cmd": agent.request.cmd}),
    };
    match patiently(|| ledger.models().prompt_begin(&new)).await {
        Ok(_) => Some(PromptRecord(op_key)),
        Err(error) => {
            tracing::warn!(%error, task = %task.key, "a prompt was not written");
            None
        }
    }
}

/// Writes what came of it.
pub(crate) async fn prompt_end(ledger: &Ledger, sent: &PromptRecord, result: &SandboxResult) {
    let report = result.agent.as_ref();
    let end = PromptEnd {
        raw: Some(&result.stdout),
        tool_calls: report.and_then(|report| report.effective.get("tools_used").cloned()),
        tokens: report.map(|report| (report.tally.input_tokens, report.tally.output_tokens)),
        wall_ms: result.metrics.wall_ms,
        error: result.cause.as_deref(),
        ..PromptEnd::default()
    };
    if let Err(error) = patiently(|| ledger.models().prompt_end(&sent.0, &end)).await {
        tracing::warn!(%error, call = %sent.0, "what came of a prompt was not written");
    }
}
