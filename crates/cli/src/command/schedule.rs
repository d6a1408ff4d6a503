//! `schedule add | ls | firings | pause | resume | rm`.

use clap::{Args, Subcommand};
use cofferdam_contracts::trigger::{FiringRow, ScheduleRow, TriggerRemoval};
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::run::meant_by;
use super::table::{self, extra, key, usual};
use super::{flag, output};

#[derive(Debug, Args)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Add a schedule: the recipe runs at its instants, with the rights of your key
    Add {
        /// A recipe file, or the id (or id@v) of an imported recipe
        recipe: String,
        /// Name of the schedule; default: the recipe's id
        #[arg(long)]
        name: Option<String>,
        /// Cron pattern in place of the recipe's own schedule, such as "0 3 * * *"
        #[arg(long, value_name = "PATTERN")]
        cron: Option<String>,
        /// With --cron: time zone whose clock the pattern reads, such as Europe/Berlin; default: UTC
        #[arg(long, value_name = "ZONE", requires = "cron")]
        time_zone: Option<String>,
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// List the schedules of the tenant
    Ls {
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// List a schedule's firings, newest first: each with its run, or the reason why it has none
    Firings {
        name: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// Pause a schedule: instants until it is resumed are not firings
    Pause {
        name: String,
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// Resume a schedule, from its next instant on
    Resume {
        name: String,
        #[arg(long, help = flag::JSON)]
        json: bool,
    },
    /// Remove a schedule; its firings stay on record
    Rm { name: String },
}

pub(crate) async fn schedule(at: &Locations, args: &ScheduleArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |session| act(session, &args.command).await).await?;
    Ok(Exit::Ok)
}

async fn act(session: &Connection, command: &ScheduleCommand) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        ScheduleCommand::Add { recipe, name, cron, time_zone, json: as_json } => {
            let row = add(client, recipe, name.as_deref(), pattern(cron, time_zone)).await?;
            said(&row, *as_json);
            session.note_if_idle().await;
        }
        ScheduleCommand::Ls { json: as_json } => {
            let rows: Vec<ScheduleRow> = client.get("/api/schedules").await?;
            match as_json {
                true => output::json_rows("schedules", json!(rows)),
                false => list(&rows),
            }
        }
        ScheduleCommand::Firings { name, limit, json } => {
            let path = format!("/api/schedules/{}/firings?limit={limit}", segment(name));
            firings(&client.get::<Vec<FiringRow>>(&path).await?, *json);
        }
        ScheduleCommand::Pause { name, json } => said(&set(client, name, "pause").await?, *json),
        ScheduleCommand::Resume { name, json } => said(&set(client, name, "resume").await?, *json),
        ScheduleCommand::Rm { name } => {
            let path = format!("/api/schedules/{}", segment(name));
            let _: TriggerRemoval = client.delete(&path).await?;
            output::line("removed");
        }
    }
    Ok(())
}

fn pattern(cron: &Option<String>, zone: &Option<String>) -> Option<Value> {
    match (cron, zone) {
        (Some(cron), Some(zone)) => Some(json!({"cron": cron, "time_zone": zone})),
        (Some(cron), None) => Some(json!(cron)),
        (None, _) => None,
    }
}

async fn add(
    client: &Client,
    recipe: &str,
    name: Option<&str>,
    schedule: Option<Value>,
) -> anyhow::Result<ScheduleRow> {
    let meant = meant_by(client, recipe).await?;
    let mut body = json!({"recipeRef": meant.reference});
    if let Some(fields) = body.as_object_mut() {
        let hash = meant.hash.map(Value::from);
        let given = [("recipeHash", hash), ("name", name.map(Value::from)), ("schedule", schedule)];
        fields
            .extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    client.post("/api/schedules", &body).await
}

async fn set(client: &Client, name: &str, to: &str) -> anyhow::Result<ScheduleRow> {
    client.post(&format!("/api/schedules/{}/{to}", segment(name)), &json!({})).await
}

fn said(row: &ScheduleRow, as_json: bool) {
    if as_json {
        return output::json(&json!(row));
    }
    let next = row.next_at.map(|at| format!(", next at {} UTC", output::time(at)));
    let state = row.state.as_str();
    output::line(&format!("{} is {state}{}", row.name, next.unwrap_or_default()));
}

fn list(rows: &[ScheduleRow]) {
    let cells = rows.iter().map(|row| {
        let zone = row.schedule.time_zone.as_deref().unwrap_or("UTC");
        let last = row.last.as_ref();
        vec![
            row.name.to_string(),
            row.state.as_str().to_owned(),
            row.next_at.map(output::time).unwrap_or_default(),
            format!("{} {zone}", row.schedule.cron),
            format!("{}@{}", row.recipe_ref.id, row.recipe_ref.v),
            last.map(|last| last.state.as_str().to_owned()).unwrap_or_default(),
            row.firings.to_string(),
        ]
    });
    table::print(
        &[
            key("SCHEDULE").least(10),
            key("STATE"),
            usual("NEXT (UTC)"),
            usual("CRON").least(12),
            usual("RECIPE").least(10),
            extra("LAST"),
            extra("FIRINGS"),
        ],
        cells,
    );
}

/// Firings of a schedule or a hook.
pub(crate) fn firings(rows: &[FiringRow], as_json: bool) {
    if as_json {
        return output::json_rows("firings", json!(rows));
    }
    let cells = rows.iter().map(|row| {
        let why = [row.reason.as_deref(), row.detail.as_deref()];
        vec![
            row.event.clone(),
            row.state.as_str().to_owned(),
            row.run_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            why.into_iter().flatten().collect::<Vec<_>>().join(": "),
        ]
    });
    let heads = [key("FIRING").least(20), key("STATE"), usual("RUN"), usual("REASON").least(12)];
    table::print(&heads, cells);
}
