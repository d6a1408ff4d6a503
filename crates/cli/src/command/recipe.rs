//! `recipe ls | versions | promote | export | import`.

use anyhow::Context;
use clap::{Args, Subcommand};
use cofferdam_contracts::recipe_book::{RecipeRow, RecipeVersionRow};
use cofferdam_server::recipes::{RecipeImportResponse, RecipePromoteResponse};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::output;
use super::table::{self, Column, extra, key, usual};

#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    #[command(subcommand)]
    pub command: RecipeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecipeCommand {
    /// List recipes with their newest versions
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List a recipe's versions, newest first
    Versions {
        /// Recipe id without a version, as `recipe ls` shows it
        id: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Make a version stable, which is immutable from then on
    Promote {
        /// Recipe version, as id@v
        recipe: String,
        /// Promote to candidate instead
        #[arg(long)]
        candidate: bool,
        /// Hash of the content; default: the last import
        #[arg(long, value_name = "SHA256")]
        hash: Option<String>,
        /// Reason, for the audit
        #[arg(long, default_value = "")]
        reason: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Print a version (id@v), or a bundle of all of them (id), in canonical form
    Export {
        /// Recipe id or id@v
        recipe: String,
    },
    /// Import a bundle that export printed
    Import {
        /// File of the bundle; - is stdin
        file: std::path::PathBuf,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

pub(crate) async fn recipe(at: &Locations, args: &RecipeArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |session| act(&session.client, &args.command).await)
        .await?;
    Ok(Exit::Ok)
}

async fn act(client: &Client, command: &RecipeCommand) -> anyhow::Result<()> {
    match command {
        RecipeCommand::Ls { json } => {
            let rows: Vec<RecipeRow> = client.get("/api/recipes").await?;
            let cells = |row: &RecipeRow| {
                let versions = row.versions.to_string();
                vec![row.id.to_string(), row.latest_v.clone(), versions, row.name.clone()]
            };
            list(
                "recipes",
                &[key("ID").least(12), key("LATESTV"), extra("VERSIONS"), usual("NAME").least(12)],
                &rows,
                cells,
                *json,
            );
        }
        RecipeCommand::Versions { id, json } => {
            let path = format!("/api/recipes/{}/versions", segment(id));
            let rows: Vec<RecipeVersionRow> = client.get(&path).await?;
            let cells = |row: &RecipeVersionRow| {
                vec![row.v.clone(), row.status.as_str().to_owned(), row.hash.to_string()]
            };
            list(
                "versions",
                &[key("V").least(6), key("STATUS"), usual("HASH").least(12)],
                &rows,
                cells,
                *json,
            );
        }
        RecipeCommand::Promote { recipe, candidate, hash, reason, json } => {
            let (id, v) = reference(recipe)?;
            let to = if *candidate { "candidate" } else { "stable" };
            let mut body = json!({"v": v, "to": to, "reason": reason});
            if let (Some(hash), Some(fields)) = (hash, body.as_object_mut()) {
                fields.insert("hash".into(), json!(hash));
            }
            let path = format!("/api/recipes/{}/promote", segment(id));
            let now: RecipePromoteResponse = client.post(&path, &body).await?;
            let line = format!("{recipe} is {to}");
            said(&now, &line, *json);
        }
        RecipeCommand::Export { recipe } => {
            let body = match recipe.split_once('@') {
                Some((id, v)) => json!({"id": id, "v": v}),
                None => json!({"id": recipe}),
            };
            output::json(&client.post::<Value>("/api/recipes/export", &body).await?);
        }
        RecipeCommand::Import { file, json } => {
            let text = match file.to_str() {
                Some("-") => std::io::read_to_string(std::io::stdin())?,
                _ => std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read {}", file.display()))?,
            };
            let bundle: Value = serde_json::from_str(&text)
                .map_err(|e| Misuse(format!("{}: {e}", file.display())))?;
            let body = json!({"bundle": bundle, "origin": file.to_string_lossy()});
            let now: RecipeImportResponse = client.post("/api/recipes/import", &body).await?;
            let count = now.versions.len();
            said(&now, &format!("{count} versions imported"), *json);
        }
    }
    Ok(())
}

fn reference(text: &str) -> Result<(&str, &str), Misuse> {
    text.split_once('@')
        .filter(|(id, v)| !id.is_empty() && !v.is_empty())
        .ok_or_else(|| Misuse(format!("{text:?} does not name a version; write id@v")))
}

fn said(answer: &impl Serialize, line: &str, as_json: bool) {
    if as_json {
        output::json(&json!(answer));
    } else {
        output::line(line);
    }
}

fn list<T: Serialize>(
    name: &str,
    heads: &[Column<'_>],
    rows: &[T],
    cells: impl Fn(&T) -> Vec<String>,
    as_json: bool,
) {
    if as_json {
        return output::json_rows(name, json!(rows));
    }
    table::print(heads, rows.iter().map(cells));
}
