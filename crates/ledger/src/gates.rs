//! `app.human_gates`, `app.human_interactions`, `app.plan_approvals`.
//!
//! A reply is one transaction: the ledger row, the gate's new state, the approval and the message
//! to the workflow commit together, so there is no moment between them at which a crash could leave
//! one without the others.

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::{
    Choice, GateMessage, GateState, GateView, InboxRow, Origin, SlaStatus, choice_of,
};
use cofferdam_contracts::id::{Digest, GateKey, RunId, TenantId, WorkflowId};
use cofferdam_contracts::schema::Validator;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::engine::{CONTROL_QUEUE, ESCALATION_WORKFLOW, Enqueue};
use crate::error::{LedgerError, Result, id, load};
use crate::keys::Principal;

/// A gate to be opened.
#[derive(Debug, Clone)]
pub struct NewGate<'a> {
    /// Its run.
    pub run: &'a RunId,
    /// The waiting workflow.
    pub workflow: &'a str,
    /// Whose.
    pub tenant: &'a TenantId,
    /// Its key.
    pub key: &'a GateKey,
    /// Its topic.
    pub topic: &'a str,
    /// The form that a reply must fit.
    pub form: &'a Value,
    /// What is being approved.
    pub plan_digest: Option<&'a Digest>,
    /// How long it waits, in seconds.
    pub ttl_s: u32,
}

/// When a gate opened and until when it waits, ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateTimes {
    /// Opened.
    pub created_at: i64,
    /// Deadline.
    pub deadline_at: i64,
}

/// A reply to a gate.
#[derive(Debug, Clone)]
pub struct Reply<'a> {
    /// Who answers.
    pub principal: &'a Principal,
    /// The run or its workflow.
    pub run_or_workflow: &'a str,
    /// The gate.
    pub key: &'a GateKey,
    /// Its topic, where the caller says one.
    pub topic: Option<&'a str>,
    /// The answer.
    pub payload: &'a Value,
    /// Equal replies with equal keys are one.
    pub dedupe_key: &'a str,
    /// From where.
    pub origin: Origin,
    /// Who approves, as they say.
    pub approved_by: &'a str,
}

/// An accepted reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replied {
    /// Its run.
    pub run: RunId,
    /// Whether this very reply was there already.
    pub is_replay: bool,
    /// ms since the epoch.
    pub at: i64,
}

struct Open {
    run: RunId,
    workflow: String,
    topic: String,
    state: String,
    form: Value,
    plan_digest: Option<String>,
    late: bool,
    intent: String,
}

impl Ledger {
    /// Opens a gate and parks its run, once; a replay finds the times of the first opening.
    pub async fn gate_open(&self, new: &NewGate<'_>) -> Result<GateTimes> {
        let mut tx = self.pool().begin().await?;
        sqlx::query(
            "WITH g AS (
               INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, form, plan_digest, ttl_s, deadline_at)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp() + make_interval(secs => $8))
               ON CONFLICT DO NOTHING RETURNING run_id),
             u AS (
               UPDATE app.runs SET status = 'waiting_input', next_action = 'APPROVE_PLAN' FROM g
                WHERE id = g.run_id AND status IN ('queued','running','repairing') RETURNING id)
             INSERT INTO app.run_streams (run_id, key, seq, chunk)
             SELECT id, 'status', (SELECT count(*)::int FROM app.run_streams WHERE run_id = $1 AND key = 'status'), 'waiting_input'
               FROM u ON CONFLICT DO NOTHING",
        )
        .bind(new.run.as_str())
        .bind(new.workflow)
        .bind(new.key.as_str())
        .bind(new.topic)
        .bind(new.tenant.as_str())
        .bind(new.form)
        .bind(new.plan_digest.map(Digest::as_str))
        .bind(i32::try_from(new.ttl_s).unwrap_or(86_400))
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

    /// Answers a gate. Refusals after the gate is decided or late leave a ledger row and nothing else.
    pub async fn gate_reply(&self, reply: &Reply<'_>) -> Result<Replied> {
        let mut tx = self.pool().begin().await?;
        let gate = gate_lock(&mut tx, reply).await?;
        Validator::compile(&gate.form)?.check(reply.payload)?;
        let (choice, rationale) = choice_of(reply.payload)?;
        let hash = digest(reply.payload)?;
        if let Some(earlier) = interaction(&mut tx, &gate, reply).await? {
            return replay(&gate, reply, &hash, &earlier);
        }
        if reply.topic.is_some_and(|t| t != gate.topic) && gate.state == "open" {
            return Err(Refusal::new(
                ErrorCode::TopicMismatch,
                format!("the gate's topic is {}", gate.topic),
            )
            .into());
        }
        if gate.state != "open" || gate.late {
            let outcome = if gate.state == "open" || gate.state == "timed_out" {
                "late"
            } else {
                "already_decided"
            };
            interaction_insert(&mut tx, &gate, reply, &hash, outcome).await?;
            tx.commit().await?;
            return Err(not_waiting(&gate, outcome).into());
        }
        let at = interaction_insert(&mut tx, &gate, reply, &hash, "accepted").await?;
        if choice == Choice::Yes
            && let Some(plan) = &gate.plan_digest
        {
            approve(&mut tx, &gate, reply, plan, rationale.as_deref()).await?;
        }
        let message = GateMessage {
            payload: Some(reply.payload.clone()),
            payload_hash: Some(hash),
            at,
            sys: None,
        };
        deliver(&mut tx, &gate.workflow, &gate.topic, &message).await?;
        sqlx::query(
            "UPDATE app.human_gates SET state = 'received', decided_at = clock_timestamp()
              WHERE run_id = $1 AND gate_key = $2 AND topic = $3 AND state = 'open'",
        )
        .bind(gate.run.as_str())
        .bind(reply.key.as_str())
        .bind(&gate.topic)
        .execute(&mut *tx)
        .await?;
        sqlx::query("SELECT pg_notify('cofferdam', 'g:' || $1)")
            .bind(gate.run.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Replied { run: gate.run, is_replay: false, at })
    }

    /// The wait's deadline passed. `false`: a reply was accepted first, and its message is there.
    pub async fn gate_time_out(
        &self,
        run: &RunId,
        workflow: &str,
        key: &GateKey,
        topic: &str,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let escalation = format!("esc:{workflow}:{key}");
        let moved = sqlx::query(
            "UPDATE app.human_gates SET state = 'timed_out', decided_at = clock_timestamp(), escalation_workflow_id = $4
              WHERE run_id = $1 AND gate_key = $2 AND topic = $3 AND state = 'open'",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(topic)
        .bind(&escalation)
        .execute(&mut *tx)
        .await?;
        if moved.rows_affected() == 1 {
            let item = Enqueue {
                id: &escalation,
                name: ESCALATION_WORKFLOW,
                queue: CONTROL_QUEUE,
                partition: None,
                priority: 1,
            };
            self.enqueue_on(&mut tx, &item).await?;
        }
        // A replay of the step after a crash finds its own work done.
        let state: Option<String> = sqlx::query_scalar(
            "SELECT state FROM app.human_gates WHERE run_id = $1 AND gate_key = $2 AND topic = $3",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(topic)
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(state.as_deref() == Some("timed_out"))
    }

    /// The decision is published: the gate is resolved and its run goes on.
    pub async fn gate_resolve(&self, run: &RunId, key: &GateKey, topic: &str) -> Result<()> {
        sqlx::query(
            "WITH g AS (
               UPDATE app.human_gates SET state = 'resolved'
                WHERE run_id = $1 AND gate_key = $2 AND topic = $3 AND state = 'received'),
             u AS (
               UPDATE app.runs SET status = 'running', next_action = 'NONE'
                WHERE id = $1 AND status = 'waiting_input' RETURNING id),
             s AS (
               INSERT INTO app.run_streams (run_id, key, seq, chunk)
               SELECT id, 'status', (SELECT count(*)::int FROM app.run_streams WHERE run_id = $1 AND key = 'status'), 'running'
                 FROM u ON CONFLICT DO NOTHING)
             SELECT pg_notify('cofferdam', 'g:' || $1), pg_notify('cofferdam', 'r:' || $1)",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(topic)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The digest that a run's approval is bound to.
    pub async fn approval_read(&self, run: &RunId) -> Result<Option<(Digest, String)>> {
        let found = sqlx::query(
            "SELECT plan_digest, approved_by FROM app.plan_approvals WHERE run_id = $1",
        )
        .bind(run.as_str())
        .fetch_optional(self.pool())
        .await?;
        found
            .map(|row| {
                let digest = id("plan_approvals.plan_digest", row.try_get("plan_digest")?)?;
                Ok((digest, row.try_get("approved_by")?))
            })
            .transpose()
    }

    /// Adds an audit event to a gate: `ui:<gate>:audit`, in the engine's own format.
    pub async fn gate_audit_event(&self, workflow: &str, key: &str, value: &Value) -> Result<()> {
        sqlx::query(
            "INSERT INTO dbos.workflow_events (workflow_uuid, key, value, serialization)
             VALUES ($1, 'ui:' || $2 || ':audit', $3, 'rust_serde') ON CONFLICT (workflow_uuid, key) DO NOTHING",
        )
        .bind(workflow)
        .bind(key)
        .bind(value.to_string())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// One gate of a run, or all of them.
    pub async fn gate_views(&self, run: &RunId, key: Option<&GateKey>) -> Result<Vec<GateView>> {
        let rows = sqlx::query(
            "SELECT g.workflow_id, g.gate_key, g.topic, app.ms(g.created_at) AS created, app.ms(g.deadline_at) AS deadline,
                    (SELECT value FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'ui:' || g.gate_key) AS prompt,
                    (SELECT value FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'ui:' || g.gate_key || ':result') AS result,
                    (SELECT value FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'decision:' || g.gate_key) AS decision,
                    i.origin, i.payload_hash
               FROM app.human_gates g
               LEFT JOIN app.human_interactions i ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key
                     AND i.topic = g.topic AND i.outcome = 'accepted'
              WHERE g.run_id = $1 AND ($2::text IS NULL OR g.gate_key = $2) ORDER BY g.created_at LIMIT 500",
        )
        .bind(run.as_str())
        .bind(key.map(GateKey::as_str))
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(view).collect()
    }

    /// Open gates, the most urgent first.
    pub async fn gate_inbox(&self, tenant: &TenantId, limit: i64) -> Result<Vec<InboxRow>> {
        let rows = sqlx::query(
            "SELECT run_id, workflow_id, gate_key, topic, escalation_workflow_id, app.ms(created_at) AS created,
                    app.ms(deadline_at) AS deadline, app.ms(clock_timestamp()) AS now
               FROM app.human_gates WHERE tenant_id = $1 AND state = 'open' ORDER BY deadline_at, run_id LIMIT $2",
        )
        .bind(tenant.as_str())
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let deadline = row.try_get("deadline")?;
                Ok(InboxRow {
                    workflow_id: id("human_gates.workflow_id", row.try_get("workflow_id")?)?,
                    run_id: id("human_gates.run_id", row.try_get("run_id")?)?,
                    gate_key: id("human_gates.gate_key", row.try_get("gate_key")?)?,
                    topic: row.try_get("topic")?,
                    deadline,
                    sla_status: SlaStatus::at(row.try_get("now")?, deadline),
                    escalation_workflow_id: row
                        .try_get::<Option<String>, _>("escalation_workflow_id")?
                        .map(|t| id::<WorkflowId>("human_gates.escalation_workflow_id", &t))
                        .transpose()?,
                    created_at: row.try_get("created")?,
                })
            })
            .collect()
    }

    /// A run's replies, oldest first, refused ones included.
    pub async fn interaction_list(&self, run: &RunId, limit: i64) -> Result<Vec<Value>> {
        let rows: Vec<Value> = sqlx::query_scalar(
            "SELECT jsonb_build_object('workflowID', workflow_id, 'gateKey', gate_key, 'topic', topic,
                      'dedupeKey', dedupe_key, 'payloadHash', payload_hash, 'payload', payload, 'origin', origin,
                      'outcome', outcome, 'keyId', key_id, 'createdAt', app.ms(created_at))
               FROM app.human_interactions WHERE run_id = $1 ORDER BY id LIMIT $2",
        )
        .bind(run.as_str())
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        Ok(rows)
    }
}

async fn gate_lock(conn: &mut sqlx::PgConnection, reply: &Reply<'_>) -> Result<Open> {
    let run = sqlx::query(
        "SELECT id, intent_id FROM app.runs WHERE (id = $1 OR workflow_id = $1) AND tenant_id = $2",
    )
    .bind(reply.run_or_workflow)
    .bind(reply.principal.tenant.as_str())
    .fetch_optional(&mut *conn)
    .await?
    .ok_or_else(|| Refusal::not_found("run"))?;
    let run_id: String = run.try_get("id")?;
    let row = sqlx::query(
        "SELECT workflow_id, topic, state, form, plan_digest, clock_timestamp() > deadline_at AS late
           FROM app.human_gates WHERE run_id = $1 AND gate_key = $2 FOR UPDATE",
    )
    .bind(&run_id)
    .bind(reply.key.as_str())
    .fetch_optional(conn)
    .await?
    .ok_or_else(|| Refusal::not_found("gate"))?;
    Ok(Open {
        run: id("runs.id", &run_id)?,
        workflow: row.try_get("workflow_id")?,
        topic: row.try_get("topic")?,
        state: row.try_get("state")?,
        form: row.try_get("form")?,
        plan_digest: row.try_get("plan_digest")?,
        late: row.try_get("late")?,
        intent: run.try_get("intent_id")?,
    })
}

/// An earlier reply with the same dedupe key.
struct Earlier {
    payload_hash: String,
    outcome: String,
    at: i64,
}

async fn interaction(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    reply: &Reply<'_>,
) -> Result<Option<Earlier>> {
    let row = sqlx::query(
        "SELECT payload_hash, outcome, app.ms(created_at) AS at FROM app.human_interactions
          WHERE workflow_id = $1 AND gate_key = $2 AND topic = $3 AND dedupe_key = $4",
    )
    .bind(&gate.workflow)
    .bind(reply.key.as_str())
    .bind(&gate.topic)
    .bind(reply.dedupe_key)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(Earlier {
            payload_hash: row.try_get("payload_hash")?,
            outcome: row.try_get("outcome")?,
            at: row.try_get("at")?,
        })
    })
    .transpose()
}

fn replay(gate: &Open, reply: &Reply<'_>, hash: &Digest, earlier: &Earlier) -> Result<Replied> {
    let same_topic = reply.topic.is_none_or(|t| t == gate.topic);
    if earlier.payload_hash != hash.as_str() || !same_topic {
        let what = "this dedupe key was used with another payload or topic";
        return Err(Refusal::new(ErrorCode::DedupeConflict, what).into());
    }
    if earlier.outcome != "accepted" {
        return Err(not_waiting(gate, &earlier.outcome).into());
    }
    Ok(Replied { run: gate.run.clone(), is_replay: true, at: earlier.at })
}

fn not_waiting(gate: &Open, outcome: &str) -> Refusal {
    let why = match (outcome, gate.state.as_str()) {
        ("late", _) => "its deadline has passed",
        (_, "canceled") => "its run was canceled",
        _ => "it is decided",
    };
    Refusal::new(ErrorCode::StateConflict, format!("the gate no longer waits: {why}"))
}

async fn interaction_insert(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    reply: &Reply<'_>,
    hash: &Digest,
    outcome: &str,
) -> Result<i64> {
    Ok(sqlx::query_scalar(
        "INSERT INTO app.human_interactions
           (workflow_id, run_id, gate_key, topic, dedupe_key, payload_hash, payload, origin, outcome, key_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING app.ms(created_at)",
    )
    .bind(&gate.workflow)
    .bind(gate.run.as_str())
    .bind(reply.key.as_str())
    .bind(&gate.topic)
    .bind(reply.dedupe_key)
    .bind(hash.as_str())
    .bind(reply.payload)
    .bind(reply.origin.as_str())
    .bind(outcome)
    .bind(&reply.principal.key_id)
    .fetch_one(conn)
    .await?)
}

async fn approve(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    reply: &Reply<'_>,
    plan: &str,
    notes: Option<&str>,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO app.plan_approvals (run_id, intent_id, plan_digest, approved_by, key_id, notes, origin)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (run_id) DO NOTHING",
    )
    .bind(gate.run.as_str())
    .bind(&gate.intent)
    .bind(plan)
    .bind(reply.approved_by)
    .bind(&reply.principal.key_id)
    .bind(notes)
    .bind(reply.origin.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

/// A message to a workflow, in the engine's own format; its trigger wakes the engine.
pub(crate) async fn deliver(
    conn: &mut sqlx::PgConnection,
    workflow: &str,
    topic: &str,
    message: &GateMessage,
) -> Result<()> {
    let text = serde_json::to_string(message)
        .map_err(|e| LedgerError::Row { what: "notifications.message", why: e.to_string() })?;
    sqlx::query(
        "INSERT INTO dbos.notifications (destination_uuid, topic, message, serialization)
         SELECT $1, $2, $3, 'rust_serde' WHERE EXISTS (SELECT 1 FROM dbos.workflow_status WHERE workflow_uuid = $1)",
    )
    .bind(workflow)
    .bind(topic)
    .bind(text)
    .execute(conn)
    .await?;
    Ok(())
}

fn event<T: serde::de::DeserializeOwned>(row: &PgRow, column: &str) -> Result<Option<T>> {
    row.try_get::<Option<String>, _>(column)?
        .map(|text| {
            serde_json::from_str(&text)
                .map_err(|e| LedgerError::Row { what: "workflow_events.value", why: e.to_string() })
        })
        .transpose()
}

fn view(row: &PgRow) -> Result<GateView> {
    let result: Option<cofferdam_contracts::gate::PromptResult> = event(row, "result")?;
    let decision = event(row, "decision")?;
    let state = match (&result, &decision) {
        (None, _) => GateState::Pending,
        (Some(_), Some(_)) => GateState::Resolved,
        (Some(r), None) if r.state == cofferdam_contracts::gate::ResultState::TimedOut => {
            GateState::TimedOut
        }
        (Some(_), None) => GateState::Received,
    };
    Ok(GateView {
        workflow_id: id("human_gates.workflow_id", row.try_get("workflow_id")?)?,
        gate_key: id("human_gates.gate_key", row.try_get("gate_key")?)?,
        topic: row.try_get("topic")?,
        state,
        prompt: event(row, "prompt")?,
        result,
        decision,
        origin: row
            .try_get::<Option<String>, _>("origin")?
            .map(|o| load("human_interactions.origin", Value::String(o)))
            .transpose()?,
        payload_hash: row
            .try_get::<Option<String>, _>("payload_hash")?
            .map(|t| id("human_interactions.payload_hash", &t))
            .transpose()?,
        created_at: row.try_get("created")?,
        deadline_at: row.try_get("deadline")?,
    })
}
