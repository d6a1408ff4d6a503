//! Handlers of erasures, `/api/gc` and `/api/storage`.

use cofferdam_contracts::id::SecretName;
use cofferdam_contracts::retention::{EraseRequest, GcRequest, SecretErasure};

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

pub(crate) async fn run_erasures(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.erasures().of(&run).await?)
}

pub(crate) async fn run_erase(mut call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    let request: EraseRequest = call.body()?;
    ok(&call.flows().retention.erase(&call.who, &run, &request).await?)
}

pub(crate) async fn secret_erase(mut call: Call) -> AnswerResult {
    let name: SecretName = call.id("secret")?;
    let request: SecretErasure = call.body()?;
    ok(&call.flows().retention.erase_secret(&call.who, &name, &request.why).await?)
}

pub(crate) async fn gc_preview(call: Call) -> AnswerResult {
    ok(&call.flows().retention.preview(&call.who).await?)
}

pub(crate) async fn gc(mut call: Call) -> AnswerResult {
    let request: GcRequest = call.body()?;
    ok(&call.flows().retention.collect(&call.who, &request).await?)
}

pub(crate) async fn storage(call: Call) -> AnswerResult {
    ok(&call.flows().retention.storage(&call.who).await?)
}
