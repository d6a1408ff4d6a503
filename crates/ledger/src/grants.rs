//! `app.egress_asks`, `app.egress_grants`: names that a running task asks for and a person grants.
//!
//! An ask is a gate of the run that parks nothing: the task goes on. The task's own worker takes the
//! answer: decision, grant and the gate's end are one transaction.

use cofferdam_contracts::egress::{EgressGrant, Phase, grant_form};
use cofferdam_contracts::gate::{
    Choice, Decision, Prompt, PromptResult, Rationale, ResultState, choice_of,
};
use cofferdam_contracts::id::{GateKey, RunId, TaskKey, TenantId};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{LedgerError, Result, id, json as encode};
use crate::families::EgressRows;

/// A name to be asked for.
#[derive(Debug, Clone)]
pub struct NewAsk<'a> {
    /// Run of the task that asks; the gate opens in this run.
    pub run: &'a RunId,
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// The task's attempt.
    pub task: &'a TaskKey,
    /// For which phase.
    pub phase: Phase,
    /// The exact name.
    pub name: &'a str,
    /// How long the gate waits: as long as the phase may run.
    pub ttl_s: u32,
}

/// A task's asks after every answer was taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AskSummary {
    /// Everything that was granted to it.
    pub grants: Vec<EgressGrant>,
    /// Gates that still wait.
    pub waiting: i64,
}

fn phase_of(text: &str) -> Result<Phase> {
    match text {
        "build" => Ok(Phase::Build),
        "exec" => Ok(Phase::Exec),
        _ => Err(LedgerError::Row { what: "egress_asks.phase", why: text.to_owned() }),
    }
}

/// An event in the engine's own format, once.
pub(crate) async fn event<T: Serialize + Sync>(
    conn: &mut sqlx::PgConnection,
    workflow: &str,
    key: String,
    value: &T,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO dbos.workflow_events (workflow_uuid, key, value, serialization)
         VALUES ($1, $2, $3, 'rust_serde') ON CONFLICT (workflow_uuid, key) DO NOTHING",
    )
    .bind(workflow)
    .bind(key)
    .bind(encode("workflow_events.value", value)?.to_string())
    .execute(conn)
    .await?;
    Ok(())
}

/// A gate at which a task asks while it runs on.
pub(crate) struct TaskGate<'a> {
    pub run: &'a RunId,
    pub tenant: &'a TenantId,
    pub key: &'a GateKey,
    pub form: Value,
    pub ttl_s: u32,
    pub hints: Value,
}

impl TaskGate<'_> {
    /// Opens it and publishes its prompt; `false` where the run is over.
    pub(crate) async fn open(self, conn: &mut sqlx::PgConnection) -> Result<bool> {
        let row = sqlx::query(
            "INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, form, ttl_s, deadline_at)
             SELECT r.id, r.workflow_id, $2, 'human:' || $2, r.tenant_id, $3, $4,
                    clock_timestamp() + make_interval(secs => $4)
               FROM app.runs r WHERE r.id = $1 AND r.tenant_id = $5 AND NOT app.is_over(r.status)
                FOR SHARE OF r
             RETURNING workflow_id, app.ms(created_at) AS created, app.ms(deadline_at) AS deadline",
        )
        .bind(self.run.as_str())
        .bind(self.key.as_str())
        .bind(&self.form)
        .bind(i32::try_from(self.ttl_s).unwrap_or(86_400))
        .bind(self.tenant.as_str())
        .fetch_optional(&mut *conn)
        .await?;
        let Some(row) = row else { return Ok(false) };
        let prompt = Prompt {
            schema_version: 1,
            form_schema: self.form,
            ttl_s: self.ttl_s,
            created_at: row.try_get("created")?,
            deadline_at: row.try_get("deadline")?,
            ui_hints: Some(self.hints),
            defaults: None,
        };
        event(conn, row.try_get("workflow_id")?, format!("ui:{}", self.key), &prompt).await?;
        sqlx::query("SELECT pg_notify('cofferdam', 'g:' || $1)")
            .bind(self.run.as_str())
            .execute(conn)
            .await?;
        Ok(true)
    }
}

impl EgressRows<'_> {
    /// Opens the gate of a name, once for each attempt, phase and name; the gate's key. `None` where the
    /// run is over.
    pub async fn ask(self, new: &NewAsk<'_>) -> Result<Option<GateKey>> {
        let mut tx = self.pool().begin().await?;
        // Tasks of one run number their gates in turn.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('egress:' || $1, 0))")
            .bind(new.run.as_str())
            .execute(&mut *tx)
            .await?;
        let known: Option<String> = sqlx::query_scalar(
            "SELECT gate_key FROM app.egress_asks WHERE task_key = $1 AND phase = $2 AND name = $3",
        )
        .bind(new.task.as_str())
        .bind(new.phase.as_str())
        .bind(new.name)
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(key) = known {
            return id("egress_asks.gate_key", &key).map(Some);
        }
        let n: i64 =
            sqlx::query_scalar("SELECT 1 + count(*) FROM app.egress_asks WHERE run_id = $1")
                .bind(new.run.as_str())
                .fetch_one(&mut *tx)
                .await?;
        let key: GateKey = id("egress_asks.gate_key", &format!("egress-{n}"))?;
        let gate = TaskGate {
            run: new.run,
            tenant: new.tenant,
            key: &key,
            form: grant_form(new.name),
            ttl_s: new.ttl_s,
            hints: json!({
                "kind": "egress", "name": new.name, "phase": new.phase, "taskKey": new.task,
            }),
        };
        if !gate.open(&mut tx).await? {
            return Ok(None);
        }
        sqlx::query(
            "INSERT INTO app.egress_asks (run_id, task_key, phase, name, gate_key) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(new.run.as_str())
        .bind(new.task.as_str())
        .bind(new.phase.as_str())
        .bind(new.name)
        .bind(key.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Some(key))
    }

    /// Takes the answers to a running task's asks: decisions are published, grants recorded, gates resolved.
    pub async fn settle(self, task: &TaskKey) -> Result<AskSummary> {
        let mut tx = self.pool().begin().await?;
        answers_take(&mut tx, task).await?;
        let rows = sqlx::query(
            "SELECT phase, name, gate_key, app.ms(until) AS until FROM app.egress_grants
              WHERE task_key = $1 ORDER BY created_at",
        )
        .bind(task.as_str())
        .fetch_all(&mut *tx)
        .await?;
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM app.egress_asks a JOIN app.human_gates g ON g.run_id = a.run_id AND g.gate_key = a.gate_key
              WHERE a.task_key = $1 AND g.state IN ('open', 'received')",
        )
        .bind(task.as_str())
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        let grants = rows
            .iter()
            .map(|row| {
                Ok(EgressGrant {
                    phase: phase_of(row.try_get("phase")?)?,
                    name: row.try_get("name")?,
                    gate: id("egress_grants.gate_key", row.try_get("gate_key")?)?,
                    until: row.try_get("until")?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(AskSummary { grants, waiting })
    }
}

/// A reply is in flight until its gate is locked, so that it is either taken here or comes too late.
pub(crate) async fn asks_lock(conn: &mut sqlx::PgConnection, task: &TaskKey) -> Result<()> {
    sqlx::query(
        "SELECT 1 FROM (SELECT run_id, gate_key FROM app.egress_asks WHERE task_key = $1
                         UNION ALL SELECT run_id, gate_key FROM app.model_asks WHERE task_key = $1) a
           JOIN app.human_gates g ON g.run_id = a.run_id AND g.gate_key = a.gate_key
          ORDER BY g.gate_key FOR UPDATE OF g",
    )
    .bind(task.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes the answers that came and were not taken yet.
pub(crate) async fn answers_take(conn: &mut sqlx::PgConnection, task: &TaskKey) -> Result<()> {
    for row in &answered(conn, task, "app.egress_asks", "a.phase, a.name").await? {
        answer_take(conn, task, row).await?;
    }
    Ok(())
}

/// Answers to asks of one kind that were not taken yet: gate (locked), answer, and these columns of the ask, `a`.
pub(crate) async fn answered(
    conn: &mut sqlx::PgConnection,
    task: &TaskKey,
    asks: &'static str,
    columns: &'static str,
) -> Result<Vec<PgRow>> {
    let query = format!(
        "SELECT g.run_id, g.workflow_id, g.gate_key, i.id, i.key_id, i.payload, i.payload_hash,
                app.ms(i.created_at) AS at, {columns}
           FROM {asks} a
           JOIN app.human_gates g ON g.run_id = a.run_id AND g.gate_key = a.gate_key
           JOIN app.human_interactions i ON i.run_id = g.run_id AND i.gate_key = g.gate_key
                AND i.topic = g.topic AND i.outcome = 'accepted'
          WHERE a.task_key = $1 AND g.state = 'received' ORDER BY g.gate_key FOR UPDATE OF g"
    );
    Ok(sqlx::query(sqlx::AssertSqlSafe(query)).bind(task.as_str()).fetch_all(conn).await?)
}

async fn answer_take(conn: &mut sqlx::PgConnection, task: &TaskKey, row: &PgRow) -> Result<()> {
    let gate: String = row.try_get("gate_key")?;
    let payload: Value = row.try_get("payload")?;
    let until = payload.pointer("/grant/until").and_then(Value::as_i64);
    let name: String = row.try_get("name")?;
    let is_named = payload.pointer("/grant/name").and_then(Value::as_str) == Some(name.as_str());
    // The gate service validated it already; should a row have been tampered with since, it is a no.
    let (choice, rationale) = match choice_of(&payload) {
        Ok((Choice::Yes, rationale)) if is_named && until.is_some() => (Choice::Yes, rationale),
        Ok((_, rationale)) => (Choice::No, rationale),
        Err(_) => (Choice::No, Some("unreadable reply".to_owned())),
    };
    if let (Choice::Yes, Some(until)) = (choice, until) {
        sqlx::query(
            "INSERT INTO app.egress_grants (run_id, task_key, phase, name, gate_key, interaction_id, granted_by, until)
             VALUES ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8::float8 / 1000)) ON CONFLICT DO NOTHING",
        )
        .bind(row.try_get::<String, _>("run_id")?)
        .bind(task.as_str())
        .bind(row.try_get::<String, _>("phase")?)
        .bind(&name)
        .bind(&gate)
        .bind(row.try_get::<i64, _>("id")?)
        .bind(row.try_get::<String, _>("key_id")?)
        .bind(until)
        .execute(&mut *conn)
        .await?;
    }
    answer_end(conn, row, payload, choice, rationale).await
}

/// Ends the gate of an ask: answer and decision as events, the gate resolved. `row` has the gate (`run_id`, `workflow_id`,
/// `gate_key`) and the answer (`payload_hash`, `at`).
pub(crate) async fn answer_end(
    conn: &mut sqlx::PgConnection,
    row: &PgRow,
    payload: Value,
    choice: Choice,
    rationale: Option<String>,
) -> Result<()> {
    let (workflow, gate): (String, String) =
        (row.try_get("workflow_id")?, row.try_get("gate_key")?);
    let at: i64 = row.try_get("at")?;
    let result = PromptResult {
        schema_version: 1,
        state: ResultState::Received,
        payload: Some(payload),
        payload_hash: Some(id("human_interactions.payload_hash", row.try_get("payload_hash")?)?),
        at: Some(at),
    };
    event(conn, &workflow, format!("ui:{gate}:result"), &result).await?;
    let decision = Decision {
        schema_version: 1,
        decision: choice,
        payload: Some(Rationale { rationale }),
        at,
    };
    event(conn, &workflow, format!("decision:{gate}"), &decision).await?;
    sqlx::query(
        "WITH g AS (UPDATE app.human_gates SET state = 'resolved' WHERE run_id = $1 AND gate_key = $2 AND state = 'received')
         SELECT pg_notify('cofferdam', 'g:' || $1)",
    )
    .bind(row.try_get::<String, _>("run_id")?)
    .bind(&gate)
    .execute(conn)
    .await?;
    Ok(())
}
