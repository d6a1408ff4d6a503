//! Following a run: progress on stderr, the gate's question, Ctrl-C cancels.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::client::{Client, segment};
use super::output;
use super::plan_show::{self, ASKED_LINES};

/// How the person at the other end takes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// Say yes to gates.
    pub yes: bool,
    /// Say less: the caller wants one JSON object.
    pub quiet: bool,
}

/// Between the ledger's end of a run and the engine's lie a few milliseconds.
const SETTLE: Duration = Duration::from_millis(5);
/// Progress is looked at this often besides when the run changes.
const LOOK: Duration = Duration::from_millis(250);

/// Until the run is terminal. Its header then.
pub(crate) async fn follow(
    client: &Client,
    run: &str,
    manner: Manner,
) -> anyhow::Result<RunHeader> {
    let path = format!("/api/runs/{}", segment(run));
    let answer = client.open(&format!("{path}/stream/status?follow=true")).await?;
    let mut lines = answer.bytes_stream();
    let mut shown = BTreeMap::new();
    let mut asked = false;
    let mut interrupted = false;
    // One listener for the whole time: a Ctrl-C that comes between two waits is not lost.
    let mut interrupts = signal(SignalKind::interrupt())?;
    loop {
        let header: RunHeader = client.get(&path).await?;
        if !manner.quiet {
            progress(client, &path, &mut shown).await?;
        }
        // The ledger ends a run a moment before the engine does; over means that both say so.
        if header.status.is_terminal() && !is_live(&header) {
            return Ok(header);
        }
        if header.status == RunStatus::WaitingInput && !asked {
            asked = true;
            gate(client, &header, manner).await?;
            continue;
        }
        tokio::select! {
            _ = lines.next(), if !header.status.is_terminal() => {}
            () = clock::sleep(if header.status.is_terminal() { SETTLE } else { LOOK }) => {}
            _ = interrupts.recv() => {
                if interrupted {
                    anyhow::bail!("interrupted; the run goes on being canceled");
                }
                interrupted = true;
                output::note("canceling; once more to leave it alone");
                let action = json!({"actor": "cli", "reason": "interrupted"});
                let on = segment(header.workflow_id.as_str());
                let _: Value = client.post(&format!("/api/ops/wf/{on}/cancel"), &action).await?;
            }
        }
    }
}

fn is_live(header: &RunHeader) -> bool {
    matches!(header.durable_status.as_deref(), Some("PENDING" | "ENQUEUED"))
}

/// A line for each task that ended since the last look.
async fn progress(
    client: &Client,
    path: &str,
    shown: &mut BTreeMap<String, ()>,
) -> anyhow::Result<()> {
    let steps: Vec<Value> = client.get(&format!("{path}/steps")).await?;
    for step in &steps {
        let text = |name: &str| step.get(name).and_then(Value::as_str).unwrap_or("");
        let (key, status) = (text("taskKey"), text("status"));
        if key.is_empty() || status == "running" || shown.contains_key(key) {
            continue;
        }
        shown.insert(key.to_owned(), ());
        let name = text("stepId").trim_start_matches("ExecuteST:");
        let wall = step.pointer("/output/metrics/wallMs").and_then(Value::as_u64).unwrap_or(0);
        let attempt = step.get("attempt").and_then(Value::as_u64).unwrap_or(1);
        let again = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        let why =
            step.get("error").and_then(Value::as_str).map(|e| format!(": {e}")).unwrap_or_default();
        let code = step.pointer("/output/errCode").and_then(Value::as_str).filter(|c| *c != "NONE");
        let code = code.map(|c| format!(" {c}")).unwrap_or_default();
        let cache = step.pointer("/output/cache").map(cached).unwrap_or_default();
        output::mark(status == "ok", &format!("{name} ({wall} ms{again}{cache}){code}{why}"));
    }
    Ok(())
}

/// What came of the dependency cache, after a comma.
fn cached(report: &Value) -> String {
    let outcome = report.get("outcome").and_then(Value::as_str).unwrap_or("");
    let why = report.get("why").and_then(Value::as_str);
    match (outcome, why) {
        ("", _) => String::new(),
        (_, Some(why)) => format!(", cache {outcome}: {why}"),
        (_, None) => format!(", cache {outcome}"),
    }
}

/// Shows the plan and asks; with `--yes` answers.
async fn gate(client: &Client, header: &RunHeader, manner: Manner) -> anyhow::Result<()> {
    let run = segment(header.run_id.as_str());
    let gates: Vec<Value> = client.get(&format!("/api/runs/{run}/gates")).await?;
    let open = gates.iter().find(|g| g.get("state").and_then(Value::as_str) == Some("PENDING"));
    let Some(key) = open.and_then(|g| g.get("gateKey")).and_then(Value::as_str) else {
        return Ok(());
    };
    if !manner.quiet {
        show_plan(client, header).await?;
    }
    let choice = if manner.yes {
        "yes"
    } else {
        match output::ask(&format!("{key}: execute this plan? [yes/no]")).as_deref() {
            Some("y" | "yes") => "yes",
            Some("n" | "no") => "no",
            _ => {
                output::note(&format!(
                    "waiting for an answer: cofferdam gate reply {} {key} --choice yes|no",
                    header.run_id
                ));
                return Ok(());
            }
        }
    };
    let body = json!({
        "payload": {"choice": choice},
        "dedupeKey": format!("cli:{}", cofferdam_ambient::random::secret_hex(8)),
        "origin": "manual",
    });
    let _: Value =
        client.post(&format!("/api/runs/{run}/gates/{}/reply", segment(key)), &body).await?;
    if !manner.quiet {
        output::note(&format!("{key}: {choice}"));
    }
    Ok(())
}

async fn show_plan(client: &Client, header: &RunHeader) -> anyhow::Result<()> {
    let run = header.run_id.as_str();
    let Some(plan) = plan_show::fetch(client, run).await? else { return Ok(()) };
    let lines = plan_show::lines(&plan);
    lines.iter().take(ASKED_LINES).for_each(|line| output::note(line));
    if let Some(more) = lines.len().checked_sub(ASKED_LINES).filter(|more| *more > 0) {
        output::note(&format!("  {more} more lines: cofferdam gate show {run} shows all of it"));
    }
    Ok(())
}
