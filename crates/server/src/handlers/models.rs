//! `/api/models`, and the calls of a run.

use axum::http::StatusCode;
use cofferdam_contracts::id::ProviderName;
use cofferdam_contracts::model::ProviderRemoved;

use crate::answer::{Answered, json as answer, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> Answered {
    ok(&call.flows().ledger.models().provider_list(&call.who.tenant).await?)
}

pub(crate) async fn put(mut call: Call) -> Answered {
    let provider = call.body()?;
    answer(StatusCode::CREATED, &call.flows().models.put(&call.who, &provider).await?)
}

pub(crate) async fn remove(call: Call) -> Answered {
    let name: ProviderName = call.id("provider")?;
    call.flows().models.remove(&call.who, &name).await?;
    ok(&ProviderRemoved { removed: name })
}

pub(crate) async fn calls(call: Call) -> Answered {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.models().calls(&run).await?)
}

pub(crate) async fn spent(call: Call) -> Answered {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.models().spent(&run).await?)
}
