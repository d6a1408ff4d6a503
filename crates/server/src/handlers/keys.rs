//! Handlers of `/api/keys`: keys and their roles, made and revoked.

use axum::http::StatusCode;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::key::KeyRevocation;

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::{Call, query_error};

/// How a query names every tenant; no tenant has that name.
pub(super) const ALL: &str = "*";

pub(crate) async fn list(call: Call) -> AnswerResult {
    if call.query.get("tenant").is_some_and(|tenant| tenant == ALL) {
        return ok(&call.flows().keys.list_all(&call.who).await?);
    }
    ok(&call.flows().keys.list(&call.who, tenant(&call)?.as_ref()).await?)
}

fn tenant(call: &Call) -> Result<Option<TenantId>, Refusal> {
    let asked = call.query.get("tenant");
    asked.map(|text| text.parse().map_err(|_| query_error("tenant", "a tenant's name"))).transpose()
}

pub(crate) async fn create(mut call: Call) -> AnswerResult {
    let request = call.body()?;
    answer(StatusCode::CREATED, &call.flows().keys.create(&call.who, &request).await?)
}

pub(crate) async fn revoke(call: Call) -> AnswerResult {
    let key = call.param("key").to_owned();
    if key == call.who.key_id {
        return Err(Refusal::new(
            cofferdam_contracts::error::ErrorCode::StateConflict,
            "a key cannot revoke itself; use another admin key",
        )
        .into());
    }
    call.flows().keys.revoke(&call.who, tenant(&call)?.as_ref(), &key).await?;
    ok(&KeyRevocation { revoked: key })
}
