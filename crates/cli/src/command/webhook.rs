//! `webhook add | ls | rm | deliveries | replay`.

use clap::{Args, Subcommand};
use cofferdam_contracts::webhook::{
    DeliveryReplay, DeliveryRow, WebhookRemoval, WebhookResponse, WebhookRow,
};
use serde_json::json;

use super::client::segment;
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::output;
use super::table::{self, extra, key, run_ids, usual};

#[derive(Debug, Args)]
pub(crate) struct WebhookArgs {
    #[command(subcommand)]
    pub command: WebhookCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Create a webhook; its secret is shown once
    Add {
        url: String,
        /// Event: gate.opened, gate.reminded, gate.decided, gate.timed_out, gate.escalated, gate.canceled or
        /// run.terminal (repeatable); default: all
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<String>,
        /// Label, shown in lists
        #[arg(long)]
        label: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List webhooks, without their secrets
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Remove a webhook and drop its pending deliveries
    Rm { webhook: String },
    /// List a webhook's deliveries, newest first
    Deliveries {
        webhook: String,
        /// Only deliveries in this state: pending, delivered or dead
        #[arg(long)]
        status: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Send a delivered or dead delivery again
    Replay { webhook: String, delivery: String },
}

pub(crate) async fn webhook(at: &Locations, args: &WebhookArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |session| act(session, &args.command).await).await?;
    Ok(Exit::Ok)
}

async fn act(session: &Connection, command: &WebhookCommand) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        WebhookCommand::Add { url, events, label, json: as_json } => {
            let mut body = json!({"url": url});
            if let Some(fields) = body.as_object_mut() {
                if !events.is_empty() {
                    fields.insert("events".into(), json!(events));
                }
                if let Some(label) = label {
                    fields.insert("label".into(), json!(label));
                }
            }
            let made: WebhookResponse = client.post("/api/webhooks", &body).await?;
            if *as_json {
                output::json(&serde_json::to_value(&made)?);
            } else {
                output::line(&made.secret);
                output::note(&format!(
                    "secret of webhook {}; store it now, it is not shown again",
                    made.webhook_id
                ));
            }
        }
        WebhookCommand::Ls { json: as_json } => {
            let rows: Vec<WebhookRow> = client.get("/api/webhooks").await?;
            if *as_json {
                output::json(&json!({"schemaVersion": 1, "webhooks": rows}));
            } else {
                list(&rows);
            }
        }
        WebhookCommand::Rm { webhook } => {
            let _: WebhookRemoval =
                client.delete(&format!("/api/webhooks/{}", segment(webhook))).await?;
            output::line("removed");
        }
        WebhookCommand::Deliveries { webhook, status, limit, json: as_json } => {
            let state = status.as_deref().map(|s| format!("&state={}", segment(s)));
            let path = format!(
                "/api/webhooks/{}/deliveries?limit={limit}{}",
                segment(webhook),
                state.unwrap_or_default()
            );
            let rows: Vec<DeliveryRow> = client.get(&path).await?;
            if *as_json {
                output::json(&json!({"schemaVersion": 1, "deliveries": rows}));
            } else {
                deliveries(&rows);
            }
        }
        WebhookCommand::Replay { webhook, delivery } => {
            let path = format!(
                "/api/webhooks/{}/deliveries/{}/replay",
                segment(webhook),
                segment(delivery)
            );
            let _: DeliveryReplay = client.post(&path, &json!({})).await?;
            output::line("queued for delivery");
        }
    }
    Ok(())
}

fn list(rows: &[WebhookRow]) {
    let rows = rows.iter().map(|w| {
        let events: Vec<&str> = w.events.iter().map(|e| e.as_str()).collect();
        vec![
            w.webhook_id.to_string(),
            if w.removed_at.is_some() { "removed" } else { "works" }.to_owned(),
            w.pending.to_string(),
            w.dead.to_string(),
            w.url.clone(),
            events.join(","),
            w.label.clone().unwrap_or_default(),
        ]
    });
    table::print(
        &[
            key("WEBHOOK"),
            key("STATE"),
            usual("PENDING"),
            usual("DEAD"),
            usual("URL").least(16),
            extra("EVENTS").least(10),
            extra("LABEL").least(8),
        ],
        rows,
    );
}

fn deliveries(rows: &[DeliveryRow]) {
    let runs = run_ids(rows.iter().map(|d| &d.run_id));
    let rows = rows.iter().zip(runs).map(|(d, run)| {
        vec![
            d.delivery_id.to_string(),
            d.event.as_str().to_owned(),
            d.state.as_str().to_owned(),
            d.attempts.to_string(),
            d.next_at.map(output::time).unwrap_or_default(),
            run,
            d.last_error.clone().unwrap_or_default(),
        ]
    });
    let heads = [
        key("DELIVERY"),
        usual("EVENT").least(10),
        key("STATE"),
        extra("ATTEMPTS"),
        extra("NEXT (UTC)"),
        usual("RUN"),
        usual("LAST ERROR").least(12),
    ];
    table::print(&heads, rows);
}
