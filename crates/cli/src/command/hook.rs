//! `hook add | ls | firings | rm | git`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use cofferdam_contracts::trigger::{FiringRow, HookRow, HookScheme, TriggerRemoval};
use serde_json::json;

use super::client::segment;
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::hook_git::{GitArgs, git};
use super::locations::Locations;
use super::run::meant_by;
use super::schedule::firings;
use super::table::{self, extra, key, usual};
use super::{flag, output};

#[derive(Debug, Args)]
pub(crate) struct HookArgs {
    #[command(subcommand)]
    pub command: HookCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    /// Add a hook: the recipe runs by signed deliveries to the path that this prints, with the rights of your key
    Add {
        /// Name of the hook
        name: String,
        /// A recipe file, or the id (or id@v) of an imported recipe
        #[arg(long)]
        recipe: String,
        /// How deliveries are signed
        #[arg(long, value_parser = flag::one_of(HookScheme::ALL, HookScheme::as_str))]
        scheme: String,
        /// Name of the tenant's secret that they are signed with (`cofferdam secret set`)
        #[arg(long, value_name = "NAME")]
        secret: String,
        /// Event that starts a run, such as push (repeatable); default: each
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<String>,
        /// An input of the recipe's form and the JSON Pointer of its value in a delivery, such as commit=/after (repeatable)
        #[arg(short, long = "input", value_name = "NAME=POINTER")]
        inputs: Vec<String>,
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// List the hooks of the tenant
    Ls {
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// List the deliveries of a hook that started runs, and those of GitHub that --event left out, newest first
    Firings {
        name: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// Remove a hook; its firings stay on record
    Rm { name: String },
    /// Run a recipe for each commit that is pushed, and show its tests in the push's output
    Git(GitArgs),
}

pub(crate) async fn hook(at: &Locations, args: &HookArgs) -> anyhow::Result<Exit> {
    if let HookCommand::Git(args) = &args.command {
        return git(at, args).await;
    }
    within(Connection::reading(at), async |session| act(session, &args.command).await).await?;
    Ok(Exit::Ok)
}

async fn act(session: &Connection, command: &HookCommand) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        HookCommand::Add { name, recipe, scheme, secret, events, inputs, json: as_json } => {
            let inputs = pointers(inputs)?;
            let meant = meant_by(client, recipe).await?;
            let hook =
                json!({"scheme": scheme, "secret": secret, "events": events, "inputs": inputs});
            let mut body = json!({"name": name, "recipeRef": meant.reference, "hook": hook});
            if let (Some(fields), Some(hash)) = (body.as_object_mut(), meant.hash) {
                fields.insert("recipeHash".into(), json!(hash));
            }
            let row: HookRow = client.post("/api/hooks", &body).await?;
            match as_json {
                true => output::json(&json!(row)),
                false => output::line(&row.path),
            }
        }
        HookCommand::Ls { json: as_json } => {
            let rows: Vec<HookRow> = client.get("/api/hooks").await?;
            match as_json {
                true => output::json_rows("hooks", json!(rows)),
                false => list(&rows),
            }
        }
        HookCommand::Firings { name, limit, json } => {
            let path = format!("/api/hooks/{}/firings?limit={limit}", segment(name));
            firings(&client.get::<Vec<FiringRow>>(&path).await?, *json);
        }
        HookCommand::Rm { name } => {
            let _: TriggerRemoval = client.delete(&format!("/api/hooks/{}", segment(name))).await?;
            output::line("removed");
        }
        // It has no connection of this kind.
        HookCommand::Git(_) => {}
    }
    Ok(())
}

fn pointers(pairs: &[String]) -> Result<BTreeMap<&str, &str>, Misuse> {
    let mut inputs = BTreeMap::new();
    for pair in pairs {
        let (name, pointer) = pair
            .split_once('=')
            .filter(|(name, pointer)| !name.is_empty() && pointer.starts_with('/'))
            .ok_or_else(|| Misuse(format!("-i {pair:?}: write name=/json/pointer")))?;
        if inputs.insert(name, pointer).is_some() {
            return Err(Misuse(format!("-i {name} was given twice; give it once")));
        }
    }
    Ok(inputs)
}

fn list(rows: &[HookRow]) {
    let cells = rows.iter().map(|row| {
        vec![
            row.name.to_string(),
            row.scheme.as_str().to_owned(),
            format!("{}@{}", row.recipe_ref.id, row.recipe_ref.v),
            row.firings.to_string(),
            row.unsigned.to_string(),
            row.path.clone(),
            row.events.join(","),
        ]
    });
    table::print(
        &[
            key("HOOK").least(10),
            usual("SCHEME"),
            usual("RECIPE").least(10),
            usual("FIRINGS"),
            usual("UNSIGNED"),
            extra("PATH").least(16),
            extra("EVENTS").least(8),
        ],
        cells,
    );
}
