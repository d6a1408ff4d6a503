//! Gates as readers see them: the engine's events beside our rows.

use cofferdam_contracts::egress::EgressAsk;
use cofferdam_contracts::gate::{
    GateState, GateView, InboxRow, InteractionRow, PromptResult, ResultState, SlaStatus, VoteRow,
};
use cofferdam_contracts::id::{GateKey, RunId, TenantId, WorkflowId};
use cofferdam_contracts::model::BudgetAsk;
use cofferdam_contracts::start_ask::{MAX_SHOWN, MAX_SHOWN_CHARS, StartAsk};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{LedgerError, Result, id, load};
use crate::families::Gates;

impl Gates<'_> {
    /// One gate of a run, or all of them.
    pub async fn views(self, run: &RunId, key: Option<&GateKey>) -> Result<Vec<GateView>> {
        let rows = sqlx::query(
            "SELECT g.workflow_id, g.gate_key, g.topic, g.state, app.ms(g.created_at) AS created, app.ms(g.deadline_at) AS deadline,
                    (SELECT value FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'ui:' || g.gate_key) AS prompt,
                    (SELECT value FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'ui:' || g.gate_key || ':result') AS result,
                    (SELECT value FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'decision:' || g.gate_key) AS decision,
                    i.origin, i.payload_hash, a.name AS asked_name, a.phase AS asked_phase, m.asked AS asked_budget,
                    app.graph_start_asked(g.run_id, g.gate_key, $3, $4) AS asked_start,
                    (SELECT jsonb_agg(jsonb_build_object('voter', v.voter, 'authority', v.authority, 'choice', v.choice,
                              'at', app.ms(v.created_at)) ORDER BY v.interaction_id)
                       FROM app.gate_votes v WHERE v.run_id = g.run_id AND v.gate_key = g.gate_key) AS votes
               FROM app.human_gates g
               LEFT JOIN app.egress_asks a ON a.run_id = g.run_id AND a.gate_key = g.gate_key
               LEFT JOIN app.model_asks m ON m.run_id = g.run_id AND m.gate_key = g.gate_key
               LEFT JOIN app.human_interactions i ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key
                     AND i.topic = g.topic AND i.outcome = 'accepted'
              WHERE g.run_id = $1 AND ($2::text IS NULL OR g.gate_key = $2) ORDER BY g.created_at LIMIT 500",
        )
        .bind(run.as_str())
        .bind(key.map(GateKey::as_str))
        .bind(MAX_SHOWN)
        .bind(MAX_SHOWN_CHARS)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(view).collect()
    }

    /// Open gates, the most urgent first.
    pub async fn inbox(self, tenant: &TenantId, limit: i64) -> Result<Vec<InboxRow>> {
        let rows = sqlx::query(
            "SELECT g.run_id, g.workflow_id, g.gate_key, g.topic, g.escalation_workflow_id, app.ms(g.created_at) AS created,
                    app.ms(g.deadline_at) AS deadline, g.priority, app.ms(clock_timestamp()) AS now,
                    a.name AS asked_name, a.phase AS asked_phase, m.asked AS asked_budget,
                    app.graph_start_asked(g.run_id, g.gate_key, 0, 0) AS asked_start
               FROM app.human_gates g
               LEFT JOIN app.egress_asks a ON a.run_id = g.run_id AND a.gate_key = g.gate_key
               LEFT JOIN app.model_asks m ON m.run_id = g.run_id AND m.gate_key = g.gate_key
              WHERE g.tenant_id = $1 AND g.state = 'open' ORDER BY g.priority DESC, g.deadline_at, g.run_id LIMIT $2",
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
                    asks: asked(row)?,
                    budget: asked_budget(row)?,
                    start: asked_start(row)?,
                    priority: row.try_get("priority")?,
                })
            })
            .collect()
    }

    /// A run's replies on record, oldest first: those that came too late included, refused requests not.
    pub async fn interactions(self, run: &RunId, limit: i64) -> Result<Vec<InteractionRow>> {
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
        rows.into_iter().map(|row| load("human_interactions", row)).collect()
    }
}

fn event<T: serde::de::DeserializeOwned>(row: &PgRow, column: &str) -> Result<Option<T>> {
    row.try_get::<Option<String>, _>(column)?
        .map(|text| {
            serde_json::from_str(&text)
                .map_err(|e| LedgerError::Row { what: "workflow_events.value", why: e.to_string() })
        })
        .transpose()
}

/// What the row's gate asks for, if it is a task's question.
pub(crate) fn asked(row: &PgRow) -> Result<Option<EgressAsk>> {
    let Some(name) = row.try_get::<Option<String>, _>("asked_name")? else { return Ok(None) };
    let phase = load("egress_asks.phase", Value::String(row.try_get("asked_phase")?))?;
    Ok(Some(EgressAsk { name, phase }))
}

/// The bound of a budget that the row's gate asks to raise, if it is such a question.
pub(crate) fn asked_budget(row: &PgRow) -> Result<Option<BudgetAsk>> {
    let asked: Option<Value> = row.try_get("asked_budget")?;
    asked.map(|asked| load("model_asks.asked", asked)).transpose()
}

/// The task group that the row's gate stands before, if it does.
pub(crate) fn asked_start(row: &PgRow) -> Result<Option<StartAsk>> {
    let asked: Option<Value> = row.try_get("asked_start")?;
    asked.map(|asked| load("graph_gates", asked)).transpose()
}

fn view(row: &PgRow) -> Result<GateView> {
    let result: Option<PromptResult> = event(row, "result")?;
    let decision = event(row, "decision")?;
    let own: String = row.try_get("state")?;
    let state = match (&result, &decision) {
        // Nobody waits for an answer any more: its run, its task or its round was ended.
        (None, _) if own == "canceled" => GateState::Canceled,
        (None, _) => GateState::Pending,
        (Some(_), Some(_)) => GateState::Resolved,
        (Some(r), None) if r.state == ResultState::TimedOut => GateState::TimedOut,
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
        asks: asked(row)?,
        budget: asked_budget(row)?,
        start: asked_start(row)?,
        votes: row
            .try_get::<Option<Value>, _>("votes")?
            .map(|v| load::<Vec<VoteRow>>("gate_votes", v))
            .transpose()?
            .unwrap_or_default(),
    })
}
