//! Delegations: made by who gives them, listed for everybody of the tenant.

use axum::http::StatusCode;
use cofferdam_contracts::delegation::{DelegationEnd, DelegationRequest};
use cofferdam_contracts::error::{ErrorCode, Refusal};

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.delegations().list(&call.who.tenant).await?)
}

pub(crate) async fn create(mut call: Call) -> AnswerResult {
    let request: DelegationRequest = call.body()?;
    answer(StatusCode::CREATED, &call.flows().gates.delegate(&call.who, &request).await?)
}

pub(crate) async fn end(call: Call) -> AnswerResult {
    let id =
        call.param("delegation").parse::<i64>().ok().filter(|id| *id > 0).ok_or_else(|| {
            Refusal::new(
                ErrorCode::InvalidId,
                "a delegation's id is its number, as `cofferdam gate delegations` lists it",
            )
        })?;
    call.flows().gates.end_delegation(&call.who, id).await?;
    ok(&DelegationEnd { ended: true })
}
