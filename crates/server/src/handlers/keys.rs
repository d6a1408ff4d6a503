//! `/api/keys`.

use axum::http::StatusCode;
use cofferdam_contracts::error::Refusal;
use serde_json::json;

use crate::answer::{Answered, json as answer, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> Answered {
    ok(&call.flows().ledger.key_list(&call.who.tenant).await?)
}

pub(crate) async fn create(mut call: Call) -> Answered {
    let request = call.body()?;
    answer(StatusCode::CREATED, &call.flows().key_create(&call.who, &request).await?)
}

pub(crate) async fn revoke(call: Call) -> Answered {
    let key = call.param("key").to_owned();
    if key == call.who.key_id {
        return Err(Refusal::new(
            cofferdam_contracts::error::ErrorCode::StateConflict,
            "a key does not revoke itself: use another admin key",
        )
        .into());
    }
    call.flows().key_revoke(&call.who, &key).await?;
    ok(&json!({"revoked": key}))
}
