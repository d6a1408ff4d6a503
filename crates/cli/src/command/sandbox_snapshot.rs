//! `sandbox pause | resume | fork | snapshot`: files of sandboxes that are kept.

use clap::{Args, Subcommand};
use cofferdam_contracts::live::LiveView;
use cofferdam_contracts::snapshot::{LiveForkResult, SnapshotView};
use serde_json::json;

use super::client::{Client, segment};
use super::exit::Exit;
use super::output;
use super::sandbox::SandboxCommand;
use super::table::{self, extra, key, usual};

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Keep the files of a sandbox, which goes on; prints the snapshot's id
    Create {
        id: String,
        /// A name for people
        #[arg(long)]
        name: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List what is kept
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Delete a snapshot: its key is destroyed and its file removed
    Rm { id: String },
}

pub(crate) async fn kept(client: &Client, command: &SandboxCommand) -> anyhow::Result<Exit> {
    let path = |id: &str| format!("/api/sandboxes/{}", segment(id));
    match command {
        SandboxCommand::Pause { id, files_only, json: as_json } => {
            let body = if *files_only { json!({"memory": false}) } else { json!({}) };
            let view: LiveView = client.post(&format!("{}/pause", path(id)), &body).await?;
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "sandbox": view})),
                false => output::line("paused"),
            }
        }
        SandboxCommand::Resume { id, files_only, timeout, json: as_json } => {
            let mut body = json!({"timeoutS": timeout});
            if *files_only && let Some(fields) = body.as_object_mut() {
                fields.insert("memory".into(), json!(false));
            }
            let view: LiveView = client.post(&format!("{}/resume", path(id)), &body).await?;
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "sandbox": view})),
                false => output::line("running"),
            }
        }
        SandboxCommand::Fork { id, count, timeout, json: as_json } => {
            let body = json!({"count": count, "timeoutS": timeout});
            let forks: Vec<LiveForkResult> =
                client.post(&format!("{}/fork", path(id)), &body).await?;
            return Ok(forked(&forks, *as_json));
        }
        SandboxCommand::Snapshot(args) => return snapshot(client, &args.command).await,
        // The others are not of this module.
        _ => {}
    }
    Ok(Exit::Ok)
}

/// Each sandbox that was made; and whether all were.
fn forked(forks: &[LiveForkResult], as_json: bool) -> Exit {
    if as_json {
        output::json(&json!({"schemaVersion": 1, "forks": forks}));
    }
    for fork in forks {
        match (&fork.sandbox, &fork.error) {
            (Some(made), _) if !as_json => output::line(made.id.as_str()),
            (None, Some(why)) => output::note(why),
            _ => {}
        }
    }
    if forks.iter().all(|fork| fork.sandbox.is_some()) { Exit::Ok } else { Exit::No }
}

async fn snapshot(client: &Client, command: &SnapshotCommand) -> anyhow::Result<Exit> {
    match command {
        SnapshotCommand::Create { id, name, json: as_json } => {
            let path = format!("/api/sandboxes/{}/snapshots", segment(id));
            let body = name.as_ref().map_or_else(|| json!({}), |name| json!({"name": name}));
            let made: SnapshotView = client.post(&path, &body).await?;
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "snapshot": made})),
                false => output::line(made.id.as_str()),
            }
        }
        SnapshotCommand::Ls { json: as_json } => {
            let all: Vec<SnapshotView> = client.get("/api/snapshots").await?;
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "snapshots": all})),
                false => print(&all),
            }
        }
        SnapshotCommand::Rm { id } => {
            let _: SnapshotView = client.delete(&format!("/api/snapshots/{}", segment(id))).await?;
            output::line("deleted");
        }
    }
    Ok(Exit::Ok)
}

fn print(all: &[SnapshotView]) {
    let rows = all.iter().map(|one| {
        vec![
            one.id.to_string(),
            one.kind.as_str().to_owned(),
            one.sandbox.to_string(),
            one.bytes.to_string(),
            output::time(one.created_at),
            one.sealed_at.map(output::time).unwrap_or_default(),
            if one.plain { "plain" } else { "" }.to_owned(),
            one.name.clone().unwrap_or_default(),
        ]
    });
    table::print(
        &[
            key("SNAPSHOT"),
            key("KIND"),
            usual("SANDBOX"),
            usual("BYTES"),
            extra("CREATED (UTC)"),
            extra("SEALED (UTC)"),
            extra("MEMORY"),
            usual("NAME").least(8),
        ],
        rows,
    );
}
