//! Intents, runs and what they left.

use std::time::Duration;

use axum::http::StatusCode;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::output::{MAX_PIECE, OutputPage};
use cofferdam_contracts::patch::ApplyRecord;
use cofferdam_contracts::retention::Content;
use cofferdam_contracts::run::{IntentRequest, RecipeRunRequest, Repro, RunRequest};
use cofferdam_flows::submit::Submission;
use cofferdam_ledger::recipes::RecipeQuery;

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

pub(crate) async fn intent_create(mut call: Call) -> AnswerResult {
    let request: IntentRequest = call.body()?;
    answer(StatusCode::CREATED, &call.flows().runs.intent(&call.who, &request).await?)
}

pub(crate) async fn run_create(mut call: Call) -> AnswerResult {
    let request: RunRequest = call.body()?;
    submitted(&call.flows().runs.submit(&call.who, &request).await?)
}

pub(crate) async fn recipe_run(mut call: Call) -> AnswerResult {
    let fed = call.flag("output")?;
    let request: RecipeRunRequest = call.body()?;
    submitted(&call.flows().runs.submit_recipe(&call.who, &request, fed).await?)
}

/// The run's output for the client that started it. Waits for the first piece after those that the client has.
pub(crate) async fn run_output(call: Call) -> AnswerResult {
    let from = u64::try_from(call.number("from", 0..=MAX_PIECE, 0)?).unwrap_or(0);
    let wait_s = call.number("timeoutS", 0..=30, 0)?;
    let wait = Duration::from_secs(u64::try_from(wait_s).unwrap_or(0));
    let run = call.run().await?;
    let feeds = &call.flows().runs.feeds;
    let feed = feeds.of(&run.run_id, &call.who.key_id);
    let page = match &feed {
        Some(feed) => feed.page(from, wait).await,
        None => None,
    };
    let nothing = || OutputPage { held: false, next: from, begun: false, pieces: Vec::new() };
    let page = page.unwrap_or_else(nothing);
    // Its client asks so once it knows that the run is over.
    if page.pieces.is_empty() && wait.is_zero() && run.status.is_terminal() {
        feeds.forget(&run.run_id);
    }
    ok(&page)
}

fn submitted(run: &Submission) -> AnswerResult {
    answer(if run.is_replay { StatusCode::OK } else { StatusCode::CREATED }, &run.header)
}

pub(crate) async fn run_get(call: Call) -> AnswerResult {
    ok(&call.run().await?)
}

pub(crate) async fn run_steps(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.steps().list(&run).await?)
}

pub(crate) async fn run_artifacts(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.artifacts().list(&run).await?)
}

pub(crate) async fn run_reports(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.artifacts().reports(&run).await?)
}

pub(crate) async fn run_wipes(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.sessions().wipes(&run).await?)
}

pub(crate) async fn run_egress(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.egress().snapshot_list(&run).await?)
}

pub(crate) async fn run_secrets(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.secrets().uses(&run).await?)
}

pub(crate) async fn run_applies(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.applies().list(&run).await?)
}

pub(crate) async fn run_applied(mut call: Call) -> AnswerResult {
    let run = call.run().await?;
    let record: ApplyRecord = call.body()?;
    ok(&call.flows().applies.record(&call.who, &run, &record).await?)
}

pub(crate) async fn run_retry(call: Call) -> AnswerResult {
    let run = call.run_or_workflow().await?;
    answer(StatusCode::ACCEPTED, &call.flows().runs.retry(&call.who, &run).await?)
}

/// Recipe, inputs and digests: with these and the same seed the run can be repeated elsewhere.
pub(crate) async fn run_repro(call: Call) -> AnswerResult {
    let header = call.run().await?;
    let ledger = &call.flows().ledger;
    ledger.erasures().refuse(&header.run_id, Some(Content::Prompt)).await?;
    let context = ledger
        .runs()
        .context(header.workflow_id.as_str())
        .await?
        .ok_or_else(|| Refusal::not_found("run"))?;
    let wanted = RecipeQuery { id: &context.recipe_id, v: None, hash: Some(&context.recipe_hash) };
    let recipe = ledger.recipes().find(&call.who.tenant, wanted).await?;
    ok(&Repro {
        schema_version: 1,
        plan_digest: ledger.runs().plan_digest(&header.run_id).await?,
        run_id: header.run_id,
        intent_hash: header.intent_hash,
        recipe,
        recipe_hash: context.recipe_hash,
        form_data: context.inputs,
        constraints: context.constraints,
        budget: context.budget,
        app_version: header.app_version,
    })
}
