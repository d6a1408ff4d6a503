//! Reply links: one answer to one gate, by a person without a key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::egress::EgressAsk;
use crate::gate::Choice;
use crate::id::{Digest, GateKey, RunId, TenantId};
use crate::model::BudgetAsk;
use crate::start_ask::StartAsk;

/// Body of `POST /api/runs/:id/gates/:gate/links`: who may answer, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkRequest {
    /// Who answers with it, for the record: `link:<name>` is the reply's identity.
    #[serde(rename = "for")]
    /// 1 to 128 characters.
    #[schemars(length(max = 128), regex(pattern = r"^[\p{L}\p{N}][\p{L}\p{N} ._@+-]*$"))]
    pub name: String,
    /// Seconds that it works: 10 to 86400, which is as long as any gate waits, and never beyond the gate's deadline.
    #[schemars(range(min = 10, max = 86_400))]
    pub expires_s: u32,
    /// The only choice that it may make; left out: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

/// A new link. Whoever holds it answers, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkResponse {
    /// Names the link in lists and audit rows.
    pub link_id: String,
    /// Path below the server's address.
    pub path: String,
    /// The whole address: the server's `--public-url`, or where it listens.
    pub url: String,
    /// Name of the person who answers; the reply is recorded as `link:<name>`.
    #[serde(rename = "for")]
    pub name: String,
    /// ms since the epoch.
    pub expires_at: i64,
}

/// What a link's signature covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkClaim {
    /// Version of this shape: 1.
    pub v: u32,
    /// The link's id: 32 random hexadecimal digits.
    pub id: String,
    /// Tenant that owns the run.
    pub tenant: TenantId,
    /// Run that the gate belongs to.
    pub run: RunId,
    /// Key of the gate that the link answers.
    pub gate: GateKey,
    /// Topic of the gate, `human:<gate>`, which the link's reply names.
    pub topic: String,
    /// What is approved: the plan's digest, that of what a task would start with, or that of the form where it is neither.
    pub digest: Digest,
    /// The only choice that it may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// Name of the person who answers; the reply is recorded as `link:<name>`.
    pub name: String,
    /// ms since the epoch.
    pub expires_at: i64,
}

/// `GET` of a link: what would be answered. Reading changes nothing, since mail scanners read too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkView {
    /// Run that the gate belongs to.
    pub run_id: RunId,
    /// Key of the gate that the link answers.
    pub gate_key: GateKey,
    /// Name of the person who answers; the reply is recorded as `link:<name>`.
    #[serde(rename = "for")]
    pub name: String,
    /// What is approved.
    pub digest: Digest,
    /// The only choice that it may make.
    pub choice: Option<Choice>,
    /// ms since the epoch.
    pub expires_at: i64,
    /// Schema of the payload.
    pub form_schema: Value,
    /// The plan that is approved, line by line, as far as 256 KiB hold it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<String>,
    /// Lines of the plan that are not among these.
    #[serde(default)]
    pub plan_left_out: usize,
    /// The name that a task asks for, where the gate is such a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<EgressAsk>,
    /// The bound of a budget that a task asks to raise, where the gate is such a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetAsk>,
    /// The task group that waits to start, where the gate stands before one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartAsk>,
}

/// `POST` to a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkReply {
    /// The answer; must fit the gate's form.
    pub payload: Value,
}
