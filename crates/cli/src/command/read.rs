//! `show`.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use cofferdam_contracts::image_reference::service_images;
use cofferdam_contracts::ops::OpsStep;
use cofferdam_contracts::retention::ErasureRow;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::service::{ServiceImage, ServiceReport};
use cofferdam_contracts::step::StepRow;
use serde_json::json;

use super::client::{Client, segment};
use super::connection::Connection;
use super::exit::Exit;
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::task_time::TaskTime;
use super::{output, plan_show, run, test_reports};

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    pub id: String,
    /// List the recorded steps instead, as `fork --step` counts them (needs the role of an auditor)
    #[arg(long)]
    pub steps: bool,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

pub(crate) async fn show(at: &Locations, args: &ShowArgs) -> anyhow::Result<Exit> {
    let session = Connection::reading(at).await?;
    let outcome = if args.steps {
        recorded(&session.client, args).await
    } else {
        shown(&session.client, args).await
    };
    session.close().await?;
    outcome.map(|()| Exit::Ok)
}

async fn shown(client: &Client, args: &ShowArgs) -> anyhow::Result<()> {
    let header: RunHeader = client.get(&format!("/api/runs/{}", segment(&args.id))).await?;
    let steps = run::report(client, &header, args.json, &[]).await?;
    if args.json {
        return Ok(());
    }
    let mut rows = Vec::with_capacity(steps.len());
    let mut images = Vec::new();
    for step in &steps {
        let outcome = step.outcome()?.unwrap_or_default();
        images.extend(outcome.services.iter().filter_map(|service| image_line(step, service)));
        let key = step.task_key.as_ref().map_or("", |key| key.as_str());
        let cache = outcome.cache.as_ref().map_or("", |report| report.outcome.as_str());
        let metrics = outcome.metrics.filter(|_| !step.status.is_open());
        let took = metrics.map(|metrics| TaskTime::of(&metrics, step.error.as_deref()).total());
        let limits: Vec<&str> = outcome.limits_reached.iter().map(|kind| kind.as_str()).collect();
        rows.push(vec![
            step.task_name().to_owned(),
            step.attempt.to_string(),
            step.status.as_str().to_owned(),
            took.unwrap_or_default(),
            cache.to_owned(),
            key.chars().take(16).collect(),
            limits.join(","),
            match &step.waits_for {
                Some(what) => format!("waits for {what}"),
                None => step.error.clone().unwrap_or_default(),
            },
        ]);
    }
    output::line("");
    output::line(&format!("execution mode  {}", header.execution_mode.as_str()));
    bound(client, &header).await;
    let columns = [
        key("STEP").least(12),
        extra("ATTEMPT"),
        key("STATUS"),
        usual("TOOK"),
        extra("CACHE"),
        extra("TASK KEY"),
        usual("LIMITS").least(8),
        usual("ERROR").least(16),
    ];
    table::print(&columns, rows);
    for line in images {
        output::line(&line);
    }
    let erased: Vec<ErasureRow> =
        client.get(&format!("/api/runs/{}/erasures", segment(header.run_id.as_str()))).await?;
    for row in &erased {
        let (at, bytes) = (output::time(row.at), row.bytes);
        output::line(&format!(
            "{} erased  {at} by {}: {} ({bytes} bytes)",
            row.content, row.key_id, row.why
        ));
    }
    test_reports::print(client, &header).await
}

/// What the run's plan names of the host, of repositories and of registries, with the content that it is bound to. Of a run without a plan there are none.
async fn bound(client: &Client, header: &RunHeader) {
    let Ok(Some(plan)) = plan_show::fetch(client, header.run_id.as_str()).await else { return };
    let requests = plan.all_tasks().filter_map(|task| task.work.request());
    let files = requests.flat_map(|request| &request.files_in);
    let named = files.filter_map(|file| Some((file.host_source()?, file.tree.as_ref()?)));
    for (source, digest) in named.collect::<BTreeMap<_, _>>() {
        output::line(&format!("bound           {source} {digest}"));
    }
    let requests = plan.all_tasks().filter_map(|task| task.work.request());
    let repositories = requests.filter_map(|request| {
        let repo = request.repo.as_ref()?;
        Some((request.repository()?, repo.reference.as_ref()?, repo.commit.as_ref()?))
    });
    for (source, name, commit) in repositories.collect::<BTreeSet<_>>() {
        output::line(&format!("bound           {source} {name} {commit}"));
    }
    let requests = plan.all_tasks().filter_map(|task| task.work.request());
    let images = requests.flat_map(service_images).map(|(_, image)| image);
    for image in images.collect::<BTreeSet<_>>() {
        output::line(&format!("bound           {image}"));
    }
}

/// The image of a registry that a service ran from, if it did.
fn image_line(step: &StepRow, service: &ServiceReport) -> Option<String> {
    let ServiceImage { reference, digest, bytes, fetched_bytes } = service.image.as_ref()?;
    let (step, name) = (step.task_name(), &service.name);
    Some(format!(
        "image           {step} {name}: {reference}, manifest {digest}, {bytes} bytes, {fetched_bytes} fetched"
    ))
}

/// The steps that are recorded, as `fork --step` counts them.
async fn recorded(client: &Client, args: &ShowArgs) -> anyhow::Result<()> {
    let header: RunHeader = client.get(&format!("/api/runs/{}", segment(&args.id))).await?;
    let path = format!("/api/ops/wf/{}/steps", segment(header.workflow_id.as_str()));
    let steps: Vec<OpsStep> = client.get(&path).await?;
    if args.json {
        output::json_rows("recordedSteps", json!(steps));
        return Ok(());
    }
    let rows = steps.iter().map(|step| vec![step.step_n.to_string(), step.name.clone()]);
    table::print(&[key("N"), key("RECORDED STEP").least(16)], rows);
    Ok(())
}
