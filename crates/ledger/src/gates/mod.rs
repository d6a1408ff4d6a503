//! Gates: `app.human_gates`, `app.human_interactions`, `app.gate_votes`, `app.plan_approvals`.
//!
//! ```text
//! open --reply: quorum or veto--> received --> resolved
//!  | \--deadline, nothing left to ask--> timed_out
//!  |  \-deadline, escalate--> open, longer, more people
//!  \---cancel--> canceled --resume--> open
//! ```
//! A reply is one transaction: the ledger row, the vote, the gate's new state, the approval and the
//! message to the workflow commit together, so there is no moment between them at which a crash could
//! leave one without the others.

mod consent;
mod delegations;
mod read;
mod reply;
mod time;

pub use consent::{Approval, CurrentPlan};
pub use delegations::NewDelegation;
pub use reply::{GateLock, Reply, ReplyReceipt};
pub use time::Deadline;

pub(crate) use read::{asked, asked_budget, asked_start};

use cofferdam_contracts::consent::Facts;
use cofferdam_contracts::gate::GateMessage;
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::id::{GateKey, GroupId, RunId, TenantId};
use serde_json::Value;
use sqlx::Row;

use crate::error::{LedgerError, Result, json};
use crate::families::Gates;

/// A gate to be opened.
#[derive(Debug, Clone)]
pub struct NewGate<'a> {
    /// Run that waits for the answer; it becomes `waiting_input`.
    pub run: &'a RunId,
    /// The waiting workflow.
    pub workflow: &'a str,
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// Name of the gate in its run; each round has a name of its own.
    pub key: &'a GateKey,
    /// Channel of the reply's message: `human:` and the gate key.
    pub topic: &'a str,
    /// Round of the gate, from 1; the consent gets the same number.
    pub round: u32,
    /// The recipe's rules for the gate: who answers, quorum, deadline and silence.
    pub spec: &'a GateSpec,
    /// The form that a reply must fit.
    pub form: &'a Value,
    /// The editable inputs as they stand.
    pub inputs: Option<&'a Value>,
    /// What is being approved.
    pub facts: &'a Facts,
    /// How long it waits, in seconds.
    pub ttl_s: u32,
}

/// When a gate opened and until when it waits, ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateTimes {
    /// Time of opening, ms since the epoch.
    pub created_at: i64,
    /// Time of the deadline, ms since the epoch.
    pub deadline_at: i64,
}

impl Gates<'_> {
    /// Opens a gate and parks its run, once; a replay finds the times of the first opening.
    pub async fn open(self, new: &NewGate<'_>) -> Result<GateTimes> {
        let mut tx = self.pool().begin().await?;
        let groups: Vec<&str> = new.spec.group.iter().map(GroupId::as_str).collect();
        sqlx::query(
            "WITH g AS (
               INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, form, plan_digest, ttl_s,
                 deadline_at, round, spec, bindings, parts, inputs, groups)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp() + make_interval(secs => $8), $9, $10, $11,
                 $12, $13, $14)
               ON CONFLICT DO NOTHING RETURNING run_id)
             UPDATE app.runs SET status = 'waiting_input', next_action = 'APPROVE_PLAN' FROM g
              WHERE id = g.run_id AND status IN ('queued','running','repairing')",
        )
        .bind(new.run.as_str())
        .bind(new.workflow)
        .bind(new.key.as_str())
        .bind(new.topic)
        .bind(new.tenant.as_str())
        .bind(new.form)
        .bind(new.facts.bindings.plan.as_str())
        .bind(i32::try_from(new.ttl_s).unwrap_or(86_400))
        .bind(i32::try_from(new.round).unwrap_or(i32::MAX))
        .bind(json("human_gates.spec", new.spec)?)
        .bind(json("human_gates.bindings", &new.facts.bindings)?)
        .bind(json("human_gates.parts", &new.facts.parts)?)
        .bind(new.inputs)
        .bind(&groups)
        .execute(&mut *tx)
        .await?;
        let row = sqlx::query(
            "SELECT app.ms(created_at) AS created, app.ms(deadline_at) AS deadline,
                    pg_notify('cofferdam', 'g:' || run_id) AS g, pg_notify('cofferdam', 'r:' || run_id) AS r
               FROM app.human_gates WHERE run_id = $1 AND gate_key = $2 AND topic = $3",
        )
        .bind(new.run.as_str())
        .bind(new.key.as_str())
        .bind(new.topic)
        .fetch_one(&mut *tx)
        .await?;
        let times = GateTimes {
            created_at: row.try_get("created")?,
            deadline_at: row.try_get("deadline")?,
        };
        tx.commit().await?;
        Ok(times)
    }

    /// The decision is published: the gate is resolved and its run goes on.
    pub async fn resolve(self, run: &RunId, key: &GateKey, topic: &str) -> Result<()> {
        sqlx::query(
            "WITH g AS (
               UPDATE app.human_gates SET state = 'resolved'
                WHERE run_id = $1 AND gate_key = $2 AND topic = $3 AND state = 'received'),
             u AS (
               UPDATE app.runs SET status = 'running', next_action = 'NONE'
                WHERE id = $1 AND status = 'waiting_input')
             SELECT pg_notify('cofferdam', 'g:' || $1), pg_notify('cofferdam', 'r:' || $1)",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(topic)
        .execute(self.pool())
        .await?;
        Ok(())
    }
}

/// The law of a gate; a row without one is from before there was any.
pub(crate) fn spec_of(key: &GateKey, spec: Option<Value>) -> Result<GateSpec> {
    match spec {
        Some(spec) => crate::error::load("human_gates.spec", spec),
        None => Ok(GateSpec::plain(key.clone())),
    }
}

/// A message to a workflow, in the engine's own format; its trigger wakes the engine.
pub(crate) async fn deliver(
    conn: &mut sqlx::PgConnection,
    workflow: &str,
    topic: &str,
    message: &GateMessage,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO dbos.notifications (destination_uuid, topic, message, serialization)
         SELECT $1, $2, $3, 'rust_serde' WHERE EXISTS (SELECT 1 FROM dbos.workflow_status WHERE workflow_uuid = $1)",
    )
    .bind(workflow)
    .bind(topic)
    .bind(message_text(message)?)
    .execute(conn)
    .await?;
    Ok(())
}

/// As the engine's own `send` writes it.
fn message_text(message: &GateMessage) -> Result<String> {
    serde_json::to_string(message)
        .map_err(|e| LedgerError::Row { what: "notifications.message", why: e.to_string() })
}
