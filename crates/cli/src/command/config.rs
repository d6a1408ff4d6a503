//! `config get | set | ls | history`.

use anyhow::Context;
use clap::{Args, Subcommand};
use cofferdam_contracts::config::{ConfigEntry, ConfigScope, ConfigVersion};
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::output;
use super::table::{self, extra, key, usual};

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the value in force of a key
    Get {
        /// Key, such as limits.ceiling, isolation.class_min, egress.exec.allowed, profile.LANGUAGE; see ls
        name: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Write a key's next version
    Set {
        /// Key, such as limits.ceiling, isolation.class_min, egress.exec.allowed, profile.LANGUAGE; see ls
        name: String,
        /// The complete value as JSON; null removes an override
        value: String,
        /// Set for every tenant; needs an admin key of the host's own tenant
        #[arg(long)]
        global: bool,
        /// Version that the change is based on; default: the newest
        #[arg(long, value_name = "VERSION")]
        expect: Option<u32>,
    },
    /// List keys with the value in force and its owner
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List a key's versions, newest first
    History {
        /// Key, such as limits.ceiling, isolation.class_min, egress.exec.allowed, profile.LANGUAGE; see ls
        name: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

pub(crate) async fn config(at: &Locations, args: &ConfigArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |session| act(&session.client, &args.command).await)
        .await?;
    Ok(Exit::Ok)
}

fn path(name: &str) -> String {
    format!("/api/config/{}", segment(name))
}

async fn act(client: &Client, command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Get { name, json: whole } => {
            let entry: ConfigEntry = client.get(&path(name)).await?;
            match whole {
                true => output::json(&serde_json::to_value(&entry)?),
                false => output::json_value(&entry.value),
            }
        }
        ConfigCommand::Set { name, value, global, expect } => {
            let value: Value = serde_json::from_str(value)
                .map_err(|e| Misuse(format!("VALUE is not JSON: {e}")))?;
            let expected = match expect {
                Some(version) => *version,
                None => newest(client, name, *global).await?,
            };
            let scope = if *global { "global" } else { "tenant" };
            let body = json!({"value": value, "expectedVersion": expected, "scope": scope});
            let entry: ConfigEntry =
                client.put(&path(name), &body).await.context("nothing was written")?;
            output::note(&format!(
                "{} is in force: {}",
                entry.key,
                whose(entry.scope, entry.version)
            ));
        }
        ConfigCommand::Ls { json: whole } => {
            let entries: Vec<ConfigEntry> = client.get("/api/config").await?;
            match whole {
                true => output::json(&json!({"schemaVersion": 1, "config": entries})),
                false => list(&entries),
            }
        }
        ConfigCommand::History { name, json: whole } => {
            let versions: Vec<ConfigVersion> =
                client.get(&format!("{}/history", path(name))).await?;
            match whole {
                true => output::json(&json!({"schemaVersion": 1, "versions": versions})),
                false => history(&versions),
            }
        }
    }
    Ok(())
}

async fn newest(client: &Client, name: &str, global: bool) -> anyhow::Result<u32> {
    let entry: ConfigEntry = client.get(&path(name)).await?;
    Ok(if global { entry.global_version } else { entry.tenant_version })
}

fn whose(scope: ConfigScope, version: u32) -> String {
    match scope {
        ConfigScope::Default => "default".to_owned(),
        ConfigScope::Global => format!("global v{version}"),
        ConfigScope::Tenant => format!("tenant v{version}"),
    }
}

fn list(entries: &[ConfigEntry]) {
    let rows = entries
        .iter()
        .map(|e| vec![e.key.to_string(), whose(e.scope, e.version), e.value.to_string()]);
    table::print(&[key("KEY"), usual("FROM"), key("VALUE").least(8)], rows);
}

fn history(versions: &[ConfigVersion]) {
    let rows = versions.iter().map(|v| {
        let when = output::time(v.created_at);
        vec![whose(v.scope, v.version), when, v.actor.clone(), v.value.to_string()]
    });
    table::print(
        &[key("VERSION"), usual("WRITTEN (UTC)"), extra("BY").least(8), key("VALUE").least(8)],
        rows,
    );
}
