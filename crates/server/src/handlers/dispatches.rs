//! Handlers of `/api/dispatches`: agents that are spawned, followed, settled, pruned.

use std::time::Duration;

use axum::http::StatusCode;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::dispatch::{
    DispatchOutput, DispatchStatus, ImportRequest, PruneRequest, SpawnRequest,
};
use cofferdam_contracts::id::DispatchId;
use cofferdam_ledger::dispatches::DispatchFilter;
use cofferdam_ledger::listen::{Wake, notified};

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::{Call, query_error};

pub(crate) async fn spawn(mut call: Call) -> AnswerResult {
    let request: SpawnRequest = call.body()?;
    answer(StatusCode::CREATED, &call.flows().dispatches.spawn(&call.who, &request).await?)
}

pub(crate) async fn list(call: Call) -> AnswerResult {
    let filter = DispatchFilter {
        status: call.one_of("status", DispatchStatus::ALL, DispatchStatus::as_str)?,
        active: call.flag("active")?,
        scope: call.query.get("scope").map(String::as_str),
        limit: call.number("limit", 1..=1_000, 100)?,
    };
    ok(&call.flows().ledger.dispatches().list(&call.who.tenant, &filter).await?)
}

/// Answers at once unless the dispatch goes on and the caller would wait.
pub(crate) async fn get(call: Call) -> AnswerResult {
    let id: DispatchId = call.id("id")?;
    let wait_s = call.number("timeoutS", 0..=30, 0)?;
    let wait = Duration::from_secs(u64::try_from(wait_s).unwrap_or(0));
    let waited = Stopwatch::start();
    let mut wakes = call.flows().wakes.subscribe();
    loop {
        let view = call.flows().dispatches.view(&call.who, &id).await?;
        let left = wait.saturating_sub(waited.elapsed());
        if view.status.is_terminal() || left.is_zero() {
            return ok(&view);
        }
        let run = view.run_id.as_ref().map(|run| run.as_str().to_owned()).unwrap_or_default();
        let moved = |wake: &Wake| matches!(wake, Wake::Run(r) | Wake::Task(r) if *r == run);
        tokio::select! {
            () = notified(&mut wakes, moved) => {}
            () = clock::sleep(left.min(Duration::from_secs(1))) => {}
        }
    }
}

/// The URI of what it wrote on standard output.
pub(crate) async fn output(call: Call) -> AnswerResult {
    let id: DispatchId = call.id("id")?;
    let view = call.flows().dispatches.view(&call.who, &id).await?;
    let uri = match &view.run_id {
        Some(run) => call.flows().ledger.dispatches().output(run).await?,
        None => None,
    };
    ok(&DispatchOutput { uri })
}

pub(crate) async fn kill(call: Call) -> AnswerResult {
    let id: DispatchId = call.id("id")?;
    answer(StatusCode::ACCEPTED, &call.flows().dispatches.kill(&call.who, &id).await?)
}

pub(crate) async fn retry(call: Call) -> AnswerResult {
    let id: DispatchId = call.id("id")?;
    answer(StatusCode::CREATED, &call.flows().dispatches.retry(&call.who, &id).await?)
}

pub(crate) async fn prune(mut call: Call) -> AnswerResult {
    let request: PruneRequest = call.body()?;
    ok(&call.flows().dispatches.prune(&call.who, &request).await?)
}

pub(crate) async fn import(mut call: Call) -> AnswerResult {
    let request: ImportRequest = call.body()?;
    ok(&call.flows().dispatches.import(&call.who, &request).await?)
}

pub(crate) async fn tokens(call: Call) -> AnswerResult {
    let id: Option<DispatchId> = match call.query.get("id") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| query_error("id", "a dispatch's id"))?),
    };
    if let Some(id) = &id {
        call.flows().dispatches.view(&call.who, id).await?;
    }
    let scope = call.query.get("scope").map(String::as_str);
    ok(&call.flows().ledger.dispatches().tokens(&call.who.tenant, id.as_ref(), scope).await?)
}
