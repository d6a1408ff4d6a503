//! `/api/models`, and the calls of a run.

use axum::http::StatusCode;
use cofferdam_contracts::id::ProviderName;
use cofferdam_contracts::model::ProviderRemoval;

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.models().provider_list(&call.who.tenant).await?)
}

pub(crate) async fn put(mut call: Call) -> AnswerResult {
    let provider = call.body()?;
    answer(StatusCode::CREATED, &call.flows().models.put(&call.who, &provider).await?)
}

pub(crate) async fn remove(call: Call) -> AnswerResult {
    let name: ProviderName = call.id("provider")?;
    call.flows().models.remove(&call.who, &name).await?;
    ok(&ProviderRemoval { removed: name })
}

pub(crate) async fn calls(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.models().calls(&run).await?)
}

pub(crate) async fn spent(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.models().spent(&run).await?)
}
