//! `cache ls | rm | evict` by the API, for the key's tenant; `cache verify` on this host's own disk.

use std::path::Path;

use clap::{Args, Subcommand};
use cofferdam_contracts::cache::{CacheEntry, CacheEviction};
use cofferdam_sandbox::{BaseLookup, Caches, HostError};
use serde_json::json;

use super::client::{Client, segment};
use super::connection::Connection;
use super::exit::{Exit, Misuse, Negative};
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::{output, state};

const MIB: u64 = 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub command: CacheCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List bases of the key's tenant with their sizes, least recently used first
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Evict one base: no task gets it any more, and its host removes it
    Rm {
        /// Key of the base, complete or as abbreviated by `ls`
        #[arg(value_name = "KEY")]
        base: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Evict bases that were unused for some time
    Evict {
        /// Hours without use; 0: all bases
        #[arg(long, value_name = "HOURS", default_value_t = 0)]
        unused_hours: u32,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Read every byte of this host's bases and remove damaged ones
    #[command(after_help = "Exit codes: 0 all intact; 1 some were damaged.")]
    Verify {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

pub(crate) async fn cache(at: &Locations, args: &CacheArgs) -> anyhow::Result<Exit> {
    if let CacheCommand::Verify { json } = &args.command {
        return verify(&state::dir(at)?, *json);
    }
    let session = Connection::reading(at).await?;
    let outcome = act(&session.client, &args.command).await;
    let local = session.is_local();
    session.close().await?;
    if local && !matches!(args.command, CacheCommand::Ls { .. }) && outcome.is_ok() {
        output::note("no worker runs here; the next one removes it from the disk");
    }
    outcome.map(|()| Exit::Ok)
}

async fn act(client: &Client, command: &CacheCommand) -> anyhow::Result<()> {
    match command {
        CacheCommand::Ls { json } => {
            let entries: Vec<CacheEntry> = client.get("/api/cache").await?;
            list(&entries, *json);
        }
        CacheCommand::Rm { base, json } => {
            let key = whole_key(client, base).await?;
            let path = format!("/api/cache/{}", segment(&key));
            say(&client.delete(&path).await?, *json);
        }
        CacheCommand::Evict { unused_hours, json } => {
            let path = format!("/api/cache?olderThanS={}", u64::from(*unused_hours) * 3_600);
            say(&client.delete(&path).await?, *json);
        }
        CacheCommand::Verify { .. } => {}
    }
    Ok(())
}

/// The one key that begins so.
async fn whole_key(client: &Client, key: &str) -> anyhow::Result<String> {
    let entries: Vec<CacheEntry> = client.get("/api/cache").await?;
    let mut keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    keys.retain(|known| known.starts_with(key));
    keys.dedup();
    match keys.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => Err(Negative(format!("no base has the key {key}; see `cofferdam cache ls`")).into()),
        _ => Err(Misuse(format!("{} bases match {key}; give more characters", keys.len())).into()),
    }
}

fn say(doomed: &CacheEviction, as_json: bool) {
    if as_json {
        output::json(&json!({"schemaVersion": 1, "doomed": doomed.doomed}));
    } else {
        output::line(&format!("{} given up", doomed.doomed));
    }
}

fn list(entries: &[CacheEntry], as_json: bool) {
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if as_json {
        return output::json(&json!({"schemaVersion": 1, "bytes": bytes, "entries": entries}));
    }
    let rows = entries.iter().map(|entry| {
        vec![
            entry.key.as_str().chars().take(16).collect(),
            entry.repo.clone(),
            entry.state.clone(),
            entry.bytes.div_ceil(MIB).to_string(),
            entry.files.to_string(),
            entry.host_id.clone(),
            output::time(entry.created_at),
            output::time(entry.last_used_at),
        ]
    });
    let heads = [
        key("KEY"),
        usual("REPO").least(10),
        usual("STATE"),
        usual("MIB"),
        extra("FILES"),
        extra("HOST").least(10),
        extra("CREATED (UTC)"),
        usual("LAST USED (UTC)"),
    ];
    table::print(&heads, rows);
    output::note(&format!("{} bases, {} MiB", entries.len(), bytes.div_ceil(MIB)));
}

/// Reads every byte of every base of this state directory. A damaged one is taken away: a task that
/// wants it builds it again.
fn verify(state_dir: &Path, as_json: bool) -> anyhow::Result<Exit> {
    if !rustix::process::geteuid().is_root() {
        return Err(HostError::NotRoot.into());
    }
    let caches = Caches::open(state_dir)?;
    let mut whole: u64 = 0;
    let mut damaged = Vec::new();
    for key in caches.keys()? {
        match caches.verify(&key)? {
            BaseLookup::Base(_) => whole += 1,
            BaseLookup::Missing => {}
            BaseLookup::Damaged(why) => {
                let removal = caches.remove(&key)?;
                if !as_json {
                    output::line(&format!("{key} is damaged, {removal:?}: {why}"));
                }
                damaged.push(json!({"key": key, "why": why}));
            }
        }
    }
    if as_json {
        output::json(&json!({"schemaVersion": 1, "whole": whole, "damaged": damaged}));
    } else {
        output::line(&format!("{whole} whole, {} damaged", damaged.len()));
    }
    match damaged.is_empty() {
        true => Ok(Exit::Ok),
        false => Err(Negative(format!("{} bases were damaged", damaged.len())).into()),
    }
}
