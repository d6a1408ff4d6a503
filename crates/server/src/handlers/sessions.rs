//! `/api/sessions`.

use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::SessionState;
use cofferdam_contracts::session::SettleRequest;

use crate::answer::{Answered, ok};
use crate::call::{Call, query_error};

pub(crate) async fn list(call: Call) -> Answered {
    let limit = call.number("limit", 1..=1_000, 100)?;
    let state = match call.query.get("state") {
        None => None,
        Some(text) => Some(SessionState::parse(text).ok_or_else(|| {
            let names: Vec<&str> = SessionState::ALL.iter().map(|s| s.as_str()).collect();
            query_error("state", &format!("one of {}", names.join(", ")))
        })?),
    };
    ok(&call.flows().ledger.session_list(&call.who.tenant, state, limit).await?)
}

pub(crate) async fn get(call: Call) -> Answered {
    let id: SandboxId = call.id("sandbox")?;
    let found = call.flows().ledger.session_get(&call.who.tenant, &id).await?;
    ok(&found.ok_or_else(|| Refusal::not_found("session"))?)
}

pub(crate) async fn settle(mut call: Call) -> Answered {
    let (id, request): (SandboxId, SettleRequest) = (call.id("sandbox")?, call.body()?);
    ok(&call.flows().session_settle(&call.who, &id, &request).await?)
}
