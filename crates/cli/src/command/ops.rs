//! `cancel`, `resume`, `retry`, `fork`.

use clap::Args;
use cofferdam_contracts::ops::OpsResponse;
use cofferdam_contracts::run::{RetryResponse, RunHeader};
use cofferdam_contracts::run_name::RunName;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::Connection;
use super::exit::Exit;
use super::locations::Locations;
use super::{output, plan_show};

#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    pub id: String,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ActArgs {
    #[arg(help = super::flag::RUN_OR_TASK, value_parser = super::flag::run)]
    pub id: String,
    /// Reason, for the audit
    #[arg(long, default_value = "asked for on the command line")]
    pub reason: String,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    pub id: String,
    /// The first step that executes again, from 0, as `show --steps` counts them
    #[arg(long)]
    pub step: i32,
    /// Reason, for the audit
    #[arg(long, default_value = "asked for on the command line")]
    pub reason: String,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

pub(crate) async fn cancel(at: &Locations, args: &ActArgs) -> anyhow::Result<Exit> {
    act(at, &args.id, "cancel", json!({"actor": "cli", "reason": args.reason}), args.json).await
}

pub(crate) async fn resume(at: &Locations, args: &ActArgs) -> anyhow::Result<Exit> {
    act(at, &args.id, "resume", json!({"actor": "cli", "reason": args.reason}), args.json).await
}

pub(crate) async fn fork(at: &Locations, args: &ForkArgs) -> anyhow::Result<Exit> {
    let body = json!({"actor": "cli", "reason": args.reason, "stepN": args.step});
    act(at, &args.id, "fork", body, args.json).await
}

pub(crate) async fn retry(at: &Locations, args: &IdArgs) -> anyhow::Result<Exit> {
    let session = Connection::reading(at).await?;
    let answer: anyhow::Result<RetryResponse> =
        session.client.post(&format!("/api/runs/{}/retry", segment(&args.id)), &json!({})).await;
    let mut bound = false;
    if let Ok(answer) = &answer {
        session.note_if_idle().await;
        bound = binds_directories(&session.client, answer.new_run_id.as_str()).await;
    }
    session.close().await?;
    let answer = answer?;
    match args.json {
        true => output::json(&serde_json::to_value(&answer)?),
        false => output::line(answer.new_run_id.as_str()),
    }
    output::note(&format!("the run goes on from {}", answer.from_step));
    if bound {
        output::note(
            "it uses its directories as they were when the run began; `cofferdam run` takes them as they are now",
        );
    }
    Ok(Exit::Ok)
}

/// Whether a run's tasks have host directories, whose content its plan names.
async fn binds_directories(client: &Client, run: &str) -> bool {
    let plan = plan_show::fetch(client, run).await.ok().flatten();
    plan.is_some_and(|plan| {
        let requests = plan.all_tasks().filter_map(|task| task.work.request());
        requests.flat_map(|request| &request.files_in).any(|file| file.tree.is_some())
    })
}

async fn act(
    at: &Locations,
    id: &str,
    op: &str,
    body: Value,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let session = Connection::reading(at).await?;
    let outcome = async {
        let workflow = workflow_of(&session.client, id).await?;
        session
            .client
            .post::<OpsResponse>(&format!("/api/ops/wf/{}/{op}", segment(&workflow)), &body)
            .await
    }
    .await;
    if outcome.is_ok() && op != "cancel" {
        session.note_if_idle().await;
    }
    session.close().await?;
    let accepted = outcome?;
    match (as_json, &accepted.new_run_id) {
        (true, _) => output::json(&serde_json::to_value(&accepted)?),
        (false, Some(run)) => output::line(run.as_str()),
        (false, None) => output::line(accepted.workflow_id.as_str()),
    }
    Ok(Exit::Ok)
}

/// The engine's id behind whatever the person typed.
async fn workflow_of(client: &Client, id: &str) -> anyhow::Result<String> {
    let is_whole = matches!(id.parse(), Ok(RunName::Id(_)) | Err(_));
    if is_whole && !id.starts_with("rn_") {
        return Ok(id.to_owned());
    }
    let header: RunHeader = client.get(&format!("/api/runs/{}", segment(id))).await?;
    Ok(header.workflow_id.into())
}
