//! Handlers of `/api/cache`: bases of the dependency cache, listed and evicted.

use axum::http::StatusCode;
use cofferdam_contracts::id::Digest;

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

/// What the command line can ask for, and five hundred thousand years: beyond it a number is a mistake.
pub(crate) const MAX_AGE_S: i64 = 15_461_882_262_000;

pub(crate) async fn list(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.cache().list(&call.who.tenant).await?)
}

pub(crate) async fn evict(call: Call) -> AnswerResult {
    let older_than_s = call.number("olderThanS", 0..=MAX_AGE_S, 0)?;
    answer(StatusCode::ACCEPTED, &call.flows().bases.evict(&call.who, older_than_s).await?)
}

pub(crate) async fn forget(call: Call) -> AnswerResult {
    let key: Digest = call.id("key")?;
    answer(StatusCode::ACCEPTED, &call.flows().bases.forget(&call.who, &key).await?)
}
