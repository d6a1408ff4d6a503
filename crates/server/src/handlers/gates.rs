//! Gates: reading, waiting, answering.

use std::time::Duration;

use axum::http::StatusCode;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::gate::{ApprovePlanRequest, GateState, GateView, HitlEvent, ReplyRequest};
use cofferdam_contracts::id::{GateKey, RunId};
use cofferdam_contracts::retention::Content;
use cofferdam_flows::Error;
use cofferdam_ledger::listen::{Wake, notified};

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) async fn gate_list(call: Call) -> AnswerResult {
    let run = call.run_with(Content::Prompt).await?;
    ok(&call.flows().ledger.gates().views(&run, None).await?)
}

pub(crate) async fn interaction_list(call: Call) -> AnswerResult {
    let limit = call.number("limit", 1..=500, 100)?;
    let run = call.run_with(Content::Prompt).await?;
    ok(&call.flows().ledger.gates().interactions(&run, limit).await?)
}

pub(crate) async fn inbox(call: Call) -> AnswerResult {
    let limit = call.number("limit", 1..=200, 50)?;
    ok(&call.flows().ledger.gates().inbox(&call.who.tenant, limit).await?)
}

/// Answers at once unless the gate is pending and the caller would wait.
pub(crate) async fn gate_get(call: Call) -> AnswerResult {
    let key: GateKey = call.id("gate")?;
    let wait_s = call.number("timeoutS", 0..=30, 0)?;
    let run = call.run_with(Content::Prompt).await?;
    let wait = Duration::from_secs(u64::try_from(wait_s).unwrap_or(0));
    let waited = Stopwatch::start();
    let mut wakes = call.flows().wakes.subscribe();
    loop {
        let view = read(&call, &run, &key).await?;
        let left = wait.saturating_sub(waited.elapsed());
        if view.state != GateState::Pending || left.is_zero() {
            return ok(&view);
        }
        let moved = |wake: &Wake| matches!(wake, Wake::Gate(r) | Wake::Run(r) if r == run.as_str());
        // Events of the engine do not notify us, so look again each second besides.
        tokio::select! {
            () = notified(&mut wakes, moved) => {}
            () = clock::sleep(left.min(Duration::from_secs(1))) => {}
        }
    }
}

async fn read(call: &Call, run: &RunId, key: &GateKey) -> Result<GateView, Error> {
    let found = call.flows().ledger.gates().views(run, Some(key)).await?.into_iter().next();
    Ok(found.ok_or_else(|| Refusal::not_found("gate"))?)
}

pub(crate) async fn gate_reply(mut call: Call) -> AnswerResult {
    let gate: GateKey = call.id("gate")?;
    let run = call.run_or_workflow().await?;
    let request: ReplyRequest = call.body()?;
    ok(&call.flows().gates.reply(&call.who, &run, &gate, &request).await?)
}

pub(crate) async fn hitl_event(mut call: Call) -> AnswerResult {
    let event: HitlEvent = call.body()?;
    ok(&call.flows().gates.event(&call.who, &event).await?)
}

pub(crate) async fn plan_approve(mut call: Call) -> AnswerResult {
    let run = call.run_or_workflow().await?;
    let request: ApprovePlanRequest = call.body()?;
    answer(StatusCode::ACCEPTED, &call.flows().gates.approve_plan(&call.who, &run, &request).await?)
}
