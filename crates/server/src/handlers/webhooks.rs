//! Handlers of `/api/webhooks`: addresses, deliveries, replays.

use axum::http::StatusCode;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::{DeliveryId, WebhookId};
use cofferdam_contracts::webhook::{DeliveryState, WebhookRemoval};

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.webhooks().list(&call.who.tenant).await?)
}

pub(crate) async fn add(mut call: Call) -> AnswerResult {
    let request = call.body()?;
    answer(StatusCode::CREATED, &call.flows().webhooks.add(&call.who, &request).await?)
}

pub(crate) async fn remove(call: Call) -> AnswerResult {
    let webhook: WebhookId = call.id("webhook")?;
    call.flows().webhooks.remove(&call.who, &webhook).await?;
    ok(&WebhookRemoval { removed: webhook })
}

pub(crate) async fn deliveries(call: Call) -> AnswerResult {
    let webhook: WebhookId = call.id("webhook")?;
    let limit = call.number("limit", 1..=200, 50)?;
    let state = call.one_of("state", DeliveryState::ALL, DeliveryState::as_str)?;
    let tenant = &call.who.tenant;
    let found = call.flows().ledger.webhooks().deliveries(tenant, &webhook, state, limit).await?;
    ok(&found.ok_or_else(|| Refusal::not_found("webhook"))?)
}

pub(crate) async fn replay(call: Call) -> AnswerResult {
    let webhook: WebhookId = call.id("webhook")?;
    let delivery: DeliveryId = call.id("delivery")?;
    let replayed = call.flows().webhooks.replay(&call.who, &webhook, &delivery).await?;
    answer(StatusCode::ACCEPTED, &replayed)
}
