//! `recipe ls | versions | promote | export | import`.

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::args::At;
use super::client::{Client, segment};
use super::exit::{Exit, Misuse};
use super::output;
use super::session::Session;

#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    #[command(subcommand)]
    pub command: RecipeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecipeCommand {
    /// List recipes with their newest versions
    Ls {
        #[arg(long)]
        json: bool,
    },
    /// List a recipe's versions, newest first
    Versions {
        /// Its id
        id: String,
        #[arg(long)]
        json: bool,
    },
    /// Make a version stable: from then on nobody changes it
    Promote {
        /// Which, as id@v
        recipe: String,
        /// A candidate for now
        #[arg(long)]
        candidate: bool,
        /// The content, by its hash; default: what was imported last
        #[arg(long, value_name = "SHA256")]
        hash: Option<String>,
        /// Why, for the audit
        #[arg(long, default_value = "")]
        reason: String,
        #[arg(long)]
        json: bool,
    },
    /// Print a version (id@v), or a bundle of all of them (id), in canonical form
    Export {
        /// Which
        recipe: String,
    },
    /// Import a bundle that export printed
    Import {
        /// Its file; - is stdin
        file: std::path::PathBuf,
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn recipe(at: &At, args: &RecipeArgs) -> anyhow::Result<Exit> {
    let session = Session::reading(at).await?;
    let outcome = act(&session.client, &args.command).await;
    session.close().await?;
    outcome.map(|()| Exit::Ok)
}

async fn act(client: &Client, command: &RecipeCommand) -> anyhow::Result<()> {
    match command {
        RecipeCommand::Ls { json } => {
            let rows: Vec<Value> = client.get("/api/recipes").await?;
            list(&rows, "recipes", &["id", "latestV", "versions", "name"], *json);
        }
        RecipeCommand::Versions { id, json } => {
            let path = format!("/api/recipes/{}/versions", segment(id));
            let rows: Vec<Value> = client.get(&path).await?;
            list(&rows, "versions", &["v", "status", "hash"], *json);
        }
        RecipeCommand::Promote { recipe, candidate, hash, reason, json } => {
            let (id, v) = reference(recipe)?;
            let to = if *candidate { "candidate" } else { "stable" };
            let mut body = json!({"v": v, "to": to, "reason": reason});
            if let (Some(hash), Some(fields)) = (hash, body.as_object_mut()) {
                fields.insert("hash".into(), json!(hash));
            }
            let path = format!("/api/recipes/{}/promote", segment(id));
            let now: Value = client.post(&path, &body).await?;
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
            let now: Value = client.post("/api/recipes/import", &body).await?;
            let count = now.get("versions").and_then(Value::as_array).map_or(0, Vec::len);
            said(&now, &format!("{count} versions imported"), *json);
        }
    }
    Ok(())
}

fn reference(text: &str) -> Result<(&str, &str), Misuse> {
    text.split_once('@')
        .filter(|(id, v)| !id.is_empty() && !v.is_empty())
        .ok_or_else(|| Misuse(format!("{text}: a version is named as id@v")))
}

fn said(answer: &Value, line: &str, as_json: bool) {
    if as_json {
        output::json(answer);
    } else {
        output::line(line);
    }
}

fn list(rows: &[Value], name: &str, columns: &[&str], as_json: bool) {
    if as_json {
        return output::json(&json!({"schemaVersion": 1, name: rows}));
    }
    let cell = |row: &Value, column: &&str| match row.get(*column) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
    let heads: Vec<String> = columns.iter().map(|column| column.to_uppercase()).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    output::table(&heads, &rows);
}
