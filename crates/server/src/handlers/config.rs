//! Handlers of `/api/config`: values of the host and of tenants, with their versions.

use cofferdam_contracts::config::{ConfigKey, ConfigPut};
use cofferdam_contracts::error::Refusal;

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

fn key(call: &Call) -> Result<ConfigKey, Refusal> {
    call.param("name").parse()
}

pub(crate) async fn list(call: Call) -> AnswerResult {
    ok(&call.flows().config.list(&call.who).await?)
}

pub(crate) async fn get(call: Call) -> AnswerResult {
    ok(&call.flows().config.get(&call.who, key(&call)?).await?)
}

pub(crate) async fn history(call: Call) -> AnswerResult {
    let limit = call.number("limit", 1..=500, 100)?;
    ok(&call.flows().config.history(&call.who, key(&call)?, limit).await?)
}

pub(crate) async fn put(mut call: Call) -> AnswerResult {
    let key = key(&call)?;
    let body: ConfigPut = call.body()?;
    ok(&call.flows().config.put(&call.who, key, &body).await?)
}
