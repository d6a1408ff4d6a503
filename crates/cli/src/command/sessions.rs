//! `session ls | show | settle`.

use clap::{Args, Subcommand};
use cofferdam_contracts::session::{HardwareIsolation, SessionView, Settlement};
use serde_json::json;

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::output;
use super::table::{self, extra, key, run_ids, usual};

#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    #[command(subcommand)]
    pub command: SessionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, newest first
    Ls {
        /// Only sessions in this state, such as EXECUTING
        #[arg(long, conflicts_with = "held")]
        status: Option<String>,
        /// Only held sessions, whose wipe is not verified
        #[arg(long)]
        held: bool,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100)]
        limit: u32,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Show a session with every look at its wipe
    Show {
        sandbox: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// End a held session although its sandbox may remain; recorded with actor and reason
    Settle {
        sandbox: String,
        /// Confirm that you accept this
        #[arg(long)]
        accept: bool,
        /// Reason, for the record
        #[arg(long)]
        reason: String,
        /// Actor, for the record
        #[arg(long, default_value = "cli")]
        actor: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

pub(crate) async fn session(at: &Locations, args: &SessionArgs) -> anyhow::Result<Exit> {
    if let SessionCommand::Settle { accept: false, .. } = args.command {
        let why = "the sandbox may still exist; add --accept to settle it anyway";
        return Err(Misuse(why.into()).into());
    }
    within(Connection::reading(at), async |session| act(&session.client, &args.command).await)
        .await?;
    Ok(Exit::Ok)
}

async fn act(client: &Client, command: &SessionCommand) -> anyhow::Result<()> {
    match command {
        SessionCommand::Ls { status, held, limit, json: as_json } => {
            let state = if *held { Some("REMOTE_WIPE_VERIFYING") } else { status.as_deref() };
            let state = state.map(|s| format!("&state={}", segment(s))).unwrap_or_default();
            let mut all: Vec<SessionView> =
                client.get(&format!("/api/sessions?limit={limit}{state}")).await?;
            if *held {
                all.retain(|one| one.held);
            }
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "sessions": all})),
                false => print(&all),
            }
        }
        SessionCommand::Show { sandbox, json: as_json } => {
            let one: SessionView =
                client.get(&format!("/api/sessions/{}", segment(sandbox))).await?;
            match as_json {
                true => output::json(&serde_json::to_value(&one)?),
                false => tell(&one),
            }
        }
        SessionCommand::Settle { sandbox, reason, actor, json: as_json, accept: _ } => {
            let body = json!({"actor": actor, "reason": reason});
            let settled: Settlement =
                client.post(&format!("/api/sessions/{}/settle", segment(sandbox)), &body).await?;
            match as_json {
                true => output::json(&serde_json::to_value(&settled)?),
                false => output::line(&format!(
                    "{} ended as {} without a verified wipe, by {}",
                    settled.sandbox_id,
                    settled.terminal_state.as_str(),
                    settled.actor
                )),
            }
        }
    }
    Ok(())
}

/// The state in one word, and whether it waits for a wipe or an operator.
fn state(one: &SessionView) -> String {
    let note = if one.stale {
        " (stale)"
    } else if one.held {
        " (held)"
    } else if one.settlement.is_some() {
        " (settled)"
    } else {
        ""
    };
    format!("{}{note}", one.state.as_str())
}

fn print(all: &[SessionView]) {
    let runs = run_ids(all.iter().map(|one| &one.run_id));
    let rows = all.iter().zip(runs).map(|(one, run)| {
        vec![
            one.sandbox_id.to_string(),
            state(one),
            one.class.clone(),
            run,
            output::time(one.created_at),
            one.findings.first().cloned().unwrap_or_default(),
        ]
    });
    table::print(
        &[
            key("SANDBOX"),
            key("STATE").least(10),
            usual("CLASS"),
            usual("RUN"),
            extra("CREATED (UTC)"),
            usual("NOT GONE").least(12),
        ],
        rows,
    );
}

fn tell(one: &SessionView) {
    output::line(&format!("session {} {}", one.sandbox_id, state(one)));
    output::line(&format!("run {} task {} start {}", one.run_id, one.task_key, one.execution_no));
    output::line(&format!("{} on host {} by {}", one.class, one.host_id, one.executor_id));
    if let Some(was) = &one.attestation {
        output::line(&format!(
            "{}, kernel {}, cgroups {}",
            was.runtime_version, was.kernel, was.cgroups
        ));
        output::line(
            was.hardware_isolation.map_or(
                "not on record whether it was hardware isolation",
                HardwareIsolation::words,
            ),
        );
    }
    if let Some(at) = one.last_heartbeat_at {
        output::line(&format!("last seen alive at {}", output::time(at)));
    }
    for finding in &one.findings {
        output::line(&format!("not gone: {finding}"));
    }
    if let Some(at) = one.next_look_at {
        output::line(&format!("{} looks; the next at {}", one.wipe_looks, output::time(at)));
    }
    if let Some(settled) = &one.settlement {
        output::line(&format!(
            "settled by {} (key {}) at {}: {}",
            settled.actor,
            settled.key_id,
            output::time(settled.settled_at),
            settled.reason
        ));
        output::line(&format!(
            "over the evidence of look {}, sha256 {}",
            settled.evidence_look, settled.evidence_digest
        ));
    }
    let rows: Vec<Vec<String>> = one
        .looks
        .iter()
        .map(|look| {
            let evidence = &look.evidence;
            vec![
                look.look.to_string(),
                output::time(evidence.wiped_at_ms),
                evidence.status.as_str().to_owned(),
                evidence.method.as_str().to_owned(),
                evidence.checks.iter().filter(|check| !check.ok).count().to_string(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        output::line("");
        table::print(
            &[key("LOOK"), usual("AT (UTC)"), key("WIPE"), usual("METHOD"), usual("NOT GONE")],
            rows,
        );
    }
}
