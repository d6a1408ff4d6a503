//! `gc`: takes what retention leaves no room for, until nothing is left.

use clap::Args;
use cofferdam_contracts::retention::{
    ErasureTotals, GcDue, GcFailure, GcPosition, GcPreview, GcStep,
};
use serde_json::json;

use super::client::Client;
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::output;
use super::table::{self, extra, key, usual};

const MIB: u64 = 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

pub(crate) async fn gc(at: &Locations, args: &GcArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |session| match args.dry_run {
        true => previewed(&session.client, args.json).await.map(|()| Exit::Ok),
        false => collected(&session.client, args.json).await,
    })
    .await
}

async fn previewed(client: &Client, as_json: bool) -> anyhow::Result<()> {
    let preview: GcPreview = client.get("/api/gc").await?;
    if as_json {
        output::json(&serde_json::to_value(&preview)?);
        return Ok(());
    }
    let rows = preview.due.iter().map(row);
    table::print(
        &[
            key("TENANT").least(8),
            key("RUNS"),
            usual("MIB"),
            usual("RULE"),
            extra("ENDED BEFORE (UTC)"),
        ],
        rows,
    );
    let mib = preview.blob_bytes.div_ceil(MIB);
    output::note(&format!("{} stored files without a run, {mib} MiB", preview.blobs));
    if preview.due.is_empty() {
        output::note(
            "no tenant has a retention: `cofferdam config set retention '{\"ageDays\": 30}'`",
        );
    }
    Ok(())
}

fn row(due: &GcDue) -> Vec<String> {
    vec![
        due.tenant.to_string(),
        due.runs.to_string(),
        due.bytes.div_ceil(MIB).to_string(),
        due.cause.map_or_else(String::new, |cause| cause.as_str().to_owned()),
        due.until.map(output::time).unwrap_or_default(),
    ]
}

/// [`Exit::No`] where something could not be erased.
async fn collected(client: &Client, as_json: bool) -> anyhow::Result<Exit> {
    let (mut erased, mut bases) = (ErasureTotals::default(), 0_u64);
    let (mut failed, mut from): (Vec<GcFailure>, Option<GcPosition>) = (Vec::new(), None);
    loop {
        let step: GcStep = client.post("/api/gc", &json!({"from": from})).await?;
        erased = erased.plus(step.erased);
        bases = bases.saturating_add(step.bases);
        for one in &step.failed {
            let what =
                one.run.as_ref().map_or_else(|| "its runs".to_owned(), |run| format!("run {run}"));
            output::note(&format!("{}: {what} left out: {}", one.tenant, one.why));
        }
        failed.extend(step.failed);
        from = step.next;
        if from.is_none() {
            break;
        }
        output::progress(&said(erased, bases));
    }
    output::progress("");
    let exit = if failed.is_empty() { Exit::Ok } else { Exit::No };
    match as_json {
        true => output::json(&json!({"erased": erased, "bases": bases, "failed": failed})),
        false => output::line(&said(erased, bases)),
    }
    Ok(exit)
}

fn said(erased: ErasureTotals, bases: u64) -> String {
    format!(
        "{} runs erased, {} MiB, {} stored files, {bases} cached bases",
        erased.runs,
        erased.bytes.div_ceil(MIB),
        erased.blobs
    )
}
