//! Workflow operations, and two reads beside them.

use axum::http::StatusCode;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::WorkflowId;
use cofferdam_contracts::ops::OpsRequest;

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) const STATUSES: &[&str] = &[
    "PENDING",
    "SUCCESS",
    "ERROR",
    "CANCELLED",
    "ENQUEUED",
    "DELAYED",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED",
];

pub(crate) async fn list(call: Call) -> AnswerResult {
    let limit = call.number("limit", 1..=200, 20)?;
    let status = call.one_of("status", STATUSES, |status| status)?;
    let name = call.query.get("name").map(String::as_str);
    ok(&call.flows().ledger.ops().list(&call.who.tenant, status, name, limit).await?)
}

pub(crate) async fn get(call: Call) -> AnswerResult {
    let id: WorkflowId = call.id("wid")?;
    let found = call.flows().ledger.ops().get(&call.who.tenant, &id).await?;
    ok(&found.ok_or_else(|| Refusal::not_found("workflow"))?)
}

pub(crate) async fn steps(call: Call) -> AnswerResult {
    let id: WorkflowId = call.id("wid")?;
    let ledger = &call.flows().ledger;
    if ledger.ops().get(&call.who.tenant, &id).await?.is_none() {
        return Err(Refusal::not_found("workflow").into());
    }
    ok(&ledger.ops().steps(&id).await?)
}

pub(crate) async fn cancel(mut call: Call) -> AnswerResult {
    let (id, action): (WorkflowId, OpsRequest) = (call.id("wid")?, call.body()?);
    answer(StatusCode::ACCEPTED, &call.flows().runs.cancel(&call.who, &id, &action).await?)
}

pub(crate) async fn resume(mut call: Call) -> AnswerResult {
    let (id, action): (WorkflowId, OpsRequest) = (call.id("wid")?, call.body()?);
    answer(StatusCode::ACCEPTED, &call.flows().runs.resume(&call.who, &id, &action).await?)
}

pub(crate) async fn fork(mut call: Call) -> AnswerResult {
    let (id, action): (WorkflowId, OpsRequest) = (call.id("wid")?, call.body()?);
    answer(StatusCode::ACCEPTED, &call.flows().runs.fork(&call.who, &id, &action).await?)
}

pub(crate) async fn queue_depth(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.queues().depth(&call.who.tenant).await?)
}

pub(crate) async fn throughput(call: Call) -> AnswerResult {
    let window_s = call.number("windowS", 1..=86_400, 60)?;
    ok(&call.flows().ledger.queues().throughput(&call.who.tenant, window_s).await?)
}
