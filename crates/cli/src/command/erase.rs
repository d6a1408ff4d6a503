//! `erase prompt | output | run | secret`: content goes everywhere, its record stays.

use clap::{Args, Subcommand};
use cofferdam_contracts::retention::{Erasable, EraseRequest, ErasureTotals, SecretErasure};
use serde_json::json;

use super::client::segment;
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::output;

#[derive(Debug, Args)]
pub(crate) struct EraseArgs {
    #[command(subcommand)]
    pub command: EraseCommand,
}

// Without a text of its own: each command's is shown.
#[derive(Debug, Args)]
pub(crate) struct ErasureTarget {
    /// Run: its id, the beginning of one, its workflow's id, or `last`; of a secret its name
    #[arg(value_name = "ID")]
    pub id: String,
    /// Reason, for the record: 1 to 1,000 characters
    #[arg(long, value_name = "TEXT")]
    pub why: String,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EraseCommand {
    /// Erase what a run was asked, with every run of the same intent and a draft recipe that no other run names
    Prompt(ErasureTarget),
    /// Erase what a run made: results, artifacts, streams, reports
    Output(ErasureTarget),
    /// Erase both; the run's row stays with hashes, sizes, who, when and why
    Run(ErasureTarget),
    /// Erase the bytes of a secret; running sandboxes are refused it within a second
    Secret(ErasureTarget),
}

pub(crate) async fn erase(at: &Locations, args: &EraseArgs) -> anyhow::Result<Exit> {
    let (of, content) = match &args.command {
        EraseCommand::Prompt(of) => (of, Some(Erasable::Prompt)),
        EraseCommand::Output(of) => (of, Some(Erasable::Output)),
        EraseCommand::Run(of) => (of, Some(Erasable::Run)),
        EraseCommand::Secret(of) => (of, None),
    };
    let erased: ErasureTotals = within(Connection::reading(at), async |session| {
        let (id, why) = (segment(&of.id), of.why.clone());
        match content {
            Some(content) => {
                let body = serde_json::to_value(EraseRequest { content, why })?;
                session.client.post(&format!("/api/runs/{id}/erase"), &body).await
            }
            None => {
                let body = serde_json::to_value(SecretErasure { why })?;
                session.client.post(&format!("/api/secrets/{id}/erase"), &body).await
            }
        }
    })
    .await?;
    match of.json {
        true => output::json(&json!({"erased": erased})),
        false => output::line(&format!("{} bytes erased", erased.bytes)),
    }
    Ok(Exit::Ok)
}
