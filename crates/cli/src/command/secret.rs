//! `secret set | ls | rm | rotate`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use cofferdam_contracts::secret::{SecretRemoval, SecretRow};
use serde_json::json;

use super::client::segment;
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::{output, secret_input};

#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub command: SecretCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set a secret; the value is read from standard input, a prompt or a file, never from an argument
    Set {
        /// Name, as recipes write it
        name: String,
        /// Host that may get it (repeatable); default: any host of a plan that a person approves
        #[arg(long = "for", value_name = "HOST")]
        hosts: Vec<String>,
        /// Read the value from this file
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
    },
    /// Replace the value of a secret; running sandboxes send the new one within a second
    Rotate {
        /// Name, as recipes write it
        name: String,
        /// Read the value from this file
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
    },
    /// List secrets, without their values
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Remove a secret; running sandboxes are refused it within a second
    Rm {
        /// Name, as recipes write it
        name: String,
    },
}

pub(crate) async fn secret(at: &Locations, args: &SecretArgs) -> anyhow::Result<Exit> {
    // Before anything is started: a person is asked at once, or told what is wrong.
    let value = match &args.command {
        SecretCommand::Set { from_file, name, .. } | SecretCommand::Rotate { from_file, name } => {
            Some(value_of(name, from_file.as_deref())?)
        }
        SecretCommand::Ls { .. } | SecretCommand::Rm { .. } => None,
    };
    within(Connection::reading(at), async |session| {
        act(session, &args.command, value.as_deref()).await
    })
    .await?;
    Ok(Exit::Ok)
}

/// The value, without the line break that editors and `echo` leave.
fn value_of(name: &str, file: Option<&Path>) -> anyhow::Result<String> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the secret in {}", path.display()))?,
        None => secret_input::read(&format!("value of {name}: "))?,
    };
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        let why = "no value: type it, pipe it, or name a file with --from-file";
        return Err(Misuse(why.to_owned()).into());
    }
    Ok(value.to_owned())
}

async fn act(
    session: &Connection,
    command: &SecretCommand,
    value: Option<&str>,
) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        SecretCommand::Set { name, hosts, .. } => {
            let body = json!({"value": value, "for": hosts});
            let row: SecretRow =
                client.put(&format!("/api/secrets/{}", segment(name)), &body).await?;
            said(&row);
        }
        SecretCommand::Rotate { name, .. } => {
            let path = format!("/api/secrets/{}/rotate", segment(name));
            let row: SecretRow = client.post(&path, &json!({"value": value})).await?;
            said(&row);
        }
        SecretCommand::Ls { json: as_json } => {
            let secrets: Vec<SecretRow> = client.get("/api/secrets").await?;
            if *as_json {
                output::json(&json!({"schemaVersion": 1, "secrets": secrets}));
            } else {
                print(&secrets);
            }
        }
        SecretCommand::Rm { name } => {
            let path = format!("/api/secrets/{}", segment(name));
            let _: SecretRemoval = client.delete(&path).await?;
            output::line("removed");
        }
    }
    Ok(())
}

fn said(row: &SecretRow) {
    output::line(&format!("{} version {}", row.name, row.version));
}

fn print(secrets: &[SecretRow]) {
    let rows = secrets.iter().map(|row| {
        let hosts: Vec<&str> = row.hosts.iter().map(|host| host.as_str()).collect();
        vec![
            row.name.to_string(),
            row.version.to_string(),
            hosts.join(","),
            row.key_id.clone(),
            output::time(row.created_at),
        ]
    });
    table::print(
        &[
            key("SECRET").least(10),
            usual("VERSION"),
            key("FOR").least(12),
            extra("SET BY"),
            extra("SET (UTC)"),
        ],
        rows,
    );
}
