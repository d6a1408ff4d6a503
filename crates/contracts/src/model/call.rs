//! Calls on record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ModelProtocol;
use super::price::ModelUsage;
use crate::enum_names::named;
use crate::id::{Digest, ModelName, ProviderName, RunId, SandboxId, TaskKey};

named! {
    /// What came of a call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ModelOutcome {
        /// Answered to its end.
        Ok = "ok",
        /// Not sent: not allowed, or beyond a budget.
        Refused = "refused",
        /// The provider answered with an error, by status or inside an answer.
        ProviderError = "provider_error",
        /// Not sent: the provider could not be reached.
        Unreachable = "unreachable",
        /// Sent, and its answer ended early: what was paid is not known.
        Cut = "cut",
        /// A count of tokens, answered to its end: nothing is paid for it, and it is no turn.
        Counted = "counted",
        /// Sent, and its worker ended before the answer did: what was paid is not known.
        Unknown = "unknown",
    }
}

named! {
    /// Whose budget bounds a call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CallScope {
        /// All calls of one sandbox, bounded by `budget` of its spec.
        Sandbox = "sandbox",
        /// All calls of one run's sandboxes, bounded by `run_budget`.
        Run = "run",
        /// A tenant's calls to a provider on one day (UTC).
        Day = "day",
        /// A tenant's calls to a provider.
        Tenant = "tenant",
    }
}

/// One call of a model by a sandbox, refused ones included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelCallRow {
    /// `sha256(canonical [sandboxId, n])`: one call, one key.
    pub op_key: Digest,
    /// Run whose sandbox made the call.
    pub run_id: RunId,
    /// The task's attempt.
    pub task_key: TaskKey,
    /// The sandbox that called.
    pub sandbox_id: SandboxId,
    /// Which call of the sandbox, from 1.
    pub n: i64,
    /// The agent's type, where a dispatch called.
    pub agent: Option<String>,
    /// The provider; absent where the call was refused before one was chosen.
    pub provider: Option<ProviderName>,
    /// The model that the call named.
    pub model: Option<ModelName>,
    /// The wire format.
    pub protocol: ModelProtocol,
    /// Hash of the request's body.
    pub request_hash: Digest,
    /// Hash of the bytes of the answer that were passed on; absent before it ended.
    pub answer_hash: Option<Digest>,
    /// The provider's status.
    pub status: Option<i32>,
    /// What came of it; absent while it is on its way.
    pub outcome: Option<ModelOutcome>,
    /// Tokens as the provider claims them; absent where that is not known.
    pub usage: Option<ModelUsage>,
    /// Tokens that count against budgets: those claimed, or those set aside where that is not known.
    pub tokens: i64,
    /// Micro-units that count against budgets: likewise.
    pub micros: i64,
    /// From the request to the first byte of the answer's body, ms.
    pub first_ms: Option<i64>,
    /// From the request to the answer's end, ms.
    pub wall_ms: Option<i64>,
    /// Why, where it was refused or failed.
    pub why: Option<String>,
    /// When it was allowed or refused, ms since the epoch.
    pub created_at: i64,
}

/// What the calls of one run took, by model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpend {
    /// Provider that was called, by the tenant's name for it.
    pub provider: ProviderName,
    /// Model that the calls named.
    pub model: ModelName,
    /// Calls on record but for refused ones.
    pub calls: i64,
    /// Tokens that count against budgets.
    pub tokens: i64,
    /// Micro-units that count against budgets.
    pub micros: i64,
    /// Calls of which it is not known what was paid: they count as what was set aside.
    pub unknown: i64,
}
