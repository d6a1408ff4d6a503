//! Handlers of `/api/schedules` and `/api/hooks`.

use axum::http::StatusCode;
use cofferdam_contracts::id::{HookAddress, TriggerName};
use cofferdam_contracts::trigger::{TriggerKind, TriggerRemoval, TriggerState};

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) async fn schedules(call: Call) -> AnswerResult {
    ok(&call.flows().triggers.schedules(&call.who).await?)
}

pub(crate) async fn schedule_add(mut call: Call) -> AnswerResult {
    let request = call.body()?;
    answer(StatusCode::CREATED, &call.flows().triggers.schedule_add(&call.who, &request).await?)
}

pub(crate) async fn pause(call: Call) -> AnswerResult {
    set(&call, TriggerState::Paused).await
}

pub(crate) async fn resume(call: Call) -> AnswerResult {
    set(&call, TriggerState::Active).await
}

async fn set(call: &Call, state: TriggerState) -> AnswerResult {
    let name: TriggerName = call.id("schedule")?;
    ok(&call.flows().triggers.schedule_set(&call.who, &name, state).await?)
}

pub(crate) async fn schedule_remove(call: Call) -> AnswerResult {
    remove(&call, TriggerKind::Schedule).await
}

pub(crate) async fn hook_remove(call: Call) -> AnswerResult {
    remove(&call, TriggerKind::Hook).await
}

async fn remove(call: &Call, kind: TriggerKind) -> AnswerResult {
    let name: TriggerName = call.id(kind.as_str())?;
    call.flows().triggers.remove(&call.who, kind, &name).await?;
    ok(&TriggerRemoval { removed: name })
}

pub(crate) async fn schedule_firings(call: Call) -> AnswerResult {
    firings(&call, TriggerKind::Schedule).await
}

pub(crate) async fn hook_firings(call: Call) -> AnswerResult {
    firings(&call, TriggerKind::Hook).await
}

async fn firings(call: &Call, kind: TriggerKind) -> AnswerResult {
    let name: TriggerName = call.id(kind.as_str())?;
    let limit = call.number("limit", 1..=500, 100)?;
    ok(&call.flows().triggers.firings(&call.who, kind, &name, limit).await?)
}

pub(crate) async fn hooks(call: Call) -> AnswerResult {
    ok(&call.flows().triggers.hooks(&call.who).await?)
}

pub(crate) async fn hook_add(mut call: Call) -> AnswerResult {
    let request = call.body()?;
    answer(StatusCode::CREATED, &call.flows().triggers.hook_add(&call.who, &request).await?)
}

/// 201 where the delivery started its run; 200 where it came before, or its event starts none.
pub(crate) async fn deliver(call: Call) -> AnswerResult {
    let address: HookAddress = call.id("hook")?;
    let receipt = call.flows().triggers.deliver(&address, &call.delivery, &call.bytes).await?;
    match receipt.run_id.is_some() && !receipt.is_replay {
        true => answer(StatusCode::CREATED, &receipt),
        false => ok(&receipt),
    }
}
