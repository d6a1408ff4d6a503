//! Handlers of `/api/sessions`: sandboxes whose wipe is not verified, and their settlement.

use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::SessionState;
use cofferdam_contracts::session::SettleRequest;

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> AnswerResult {
    let limit = call.number("limit", 1..=1_000, 100)?;
    let state = call.one_of("state", SessionState::ALL, SessionState::as_str)?;
    ok(&call.flows().ledger.sessions().list(&call.who.tenant, state, limit).await?)
}

pub(crate) async fn get(call: Call) -> AnswerResult {
    let id: SandboxId = call.id("sandbox")?;
    let found = call.flows().ledger.sessions().get(&call.who.tenant, &id).await?;
    ok(&found.ok_or_else(|| Refusal::not_found("session"))?)
}

pub(crate) async fn settle(mut call: Call) -> AnswerResult {
    let (id, request): (SandboxId, SettleRequest) = (call.id("sandbox")?, call.body()?);
    ok(&call.flows().runs.settle(&call.who, &id, &request).await?)
}
