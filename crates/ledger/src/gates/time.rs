//! What time does to a gate: reminders, one escalation, and in the end what the recipe says silence is.

use cofferdam_ambient::clock;
use cofferdam_contracts::gate::GateMessage;
use cofferdam_contracts::gate_spec::DeadlineAction;
use cofferdam_contracts::id::{GateKey, GroupId, RunId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;

use super::{deliver, spec_of};
use crate::engine::{CONTROL_QUEUE, ESCALATION_WORKFLOW, Enqueue};
use crate::error::{LedgerError, Result, json};
use crate::executors::LeaderTerm;
use crate::families::Gates;

/// What a wait finds when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// A reply was accepted first, and its message is there.
    Answered,
    /// It waits on, so many milliseconds: escalated just now, or not due yet.
    Waits(u64),
    /// Nobody is left to ask.
    Over(DeadlineAction),
}

impl Gates<'_> {
    /// The wait's deadline passed: escalates once where the recipe says so, otherwise times the gate
    /// out. Either starts the escalation workflow, once. `longer_s` is how long an escalated gate may
    /// still wait. A replay finds its own work done.
    pub async fn time_out(
        self,
        run: &RunId,
        workflow: &str,
        key: &GateKey,
        topic: &str,
        longer_s: u32,
    ) -> Result<Deadline> {
        let mut tx = self.pool().begin().await?;
        let row = sqlx::query(
            "SELECT state, spec, escalated_at IS NULL AS fresh, app.ms(deadline_at) - app.ms(clock_timestamp()) AS left_ms
               FROM app.human_gates WHERE run_id = $1 AND gate_key = $2 AND topic = $3 FOR UPDATE",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(topic)
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| LedgerError::Row { what: "human_gates", why: format!("no {key}") })?;
        let spec = spec_of(key, row.try_get("spec")?)?;
        let state: String = row.try_get("state")?;
        let left_ms: i64 = row.try_get("left_ms")?;
        let found = match state.as_str() {
            "open" if left_ms > 0 => Deadline::Waits(u64::try_from(left_ms).unwrap_or(0)),
            "open" => {
                let escalates = spec.on_timeout.escalate.is_some() && row.try_get("fresh")?;
                let longer = if escalates { Some(longer_s) } else { None };
                self.pass(&mut tx, run, workflow, key, topic, longer).await?;
                match longer {
                    Some(s) => Deadline::Waits(u64::from(s) * 1_000),
                    None => {
                        self.silence(&mut tx, run, key, spec.on_timeout.then).await?;
                        Deadline::Over(spec.on_timeout.then)
                    }
                }
            }
            "timed_out" => Deadline::Over(spec.on_timeout.then),
            _ => Deadline::Answered,
        };
        tx.commit().await?;
        Ok(found)
    }

    /// Past the deadline: longer, or over; with the escalation either way.
    async fn pass(
        self,
        conn: &mut sqlx::PgConnection,
        run: &RunId,
        workflow: &str,
        key: &GateKey,
        topic: &str,
        longer_s: Option<u32>,
    ) -> Result<()> {
        let escalation = format!("esc:{workflow}:{key}");
        sqlx::query(
            "UPDATE app.human_gates SET
               state = CASE WHEN $5::int IS NULL THEN 'timed_out' ELSE state END,
               decided_at = CASE WHEN $5::int IS NULL THEN clock_timestamp() END,
               deadline_at = CASE WHEN $5::int IS NULL THEN deadline_at
                                  ELSE clock_timestamp() + make_interval(secs => $5) END,
               escalated_at = coalesce(escalated_at, clock_timestamp()), escalation_workflow_id = $4
              WHERE run_id = $1 AND gate_key = $2 AND topic = $3 AND state = 'open'",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(topic)
        .bind(&escalation)
        .bind(longer_s.map(|s| i32::try_from(s).unwrap_or(86_400)))
        .execute(&mut *conn)
        .await?;
        let item = Enqueue {
            id: &escalation,
            name: ESCALATION_WORKFLOW,
            queue: CONTROL_QUEUE,
            partition: None,
            priority: 1,
        };
        self.queues().enqueue_on(conn, &item).await?;
        Ok(())
    }

    /// Silence that the recipe calls a yes is a consent, where the gate is of a plan, and says whose.
    async fn silence(
        self,
        conn: &mut sqlx::PgConnection,
        run: &RunId,
        key: &GateKey,
        silence: DeadlineAction,
    ) -> Result<()> {
        if silence == DeadlineAction::Deny {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO app.plan_approvals (run_id, intent_id, plan_digest, approved_by, key_id, notes, origin, gate_key,
               round, sandbox_digest, egress_digest, image_digest, budget_digest, parts)
             SELECT g.run_id, r.intent_id, g.plan_digest, 'recipe', r.key_id, 'timeout', 'engine-dbos', g.gate_key,
                    g.round, g.bindings->>'sandbox', g.bindings->>'egress', g.bindings->>'image',
                    g.bindings->>'budget', g.parts
               FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id
              WHERE g.run_id = $1 AND g.gate_key = $2 AND g.plan_digest IS NOT NULL
             ON CONFLICT (run_id, round) DO NOTHING",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .execute(conn)
        .await?;
        Ok(())
    }

    /// What a waiting workflow still has, in milliseconds; for a wait that was interrupted.
    pub async fn left_ms(self, run: &RunId, key: &GateKey) -> Result<u64> {
        let left: i64 = sqlx::query_scalar(
            "SELECT greatest(0, app.ms(deadline_at) - app.ms(clock_timestamp()))
               FROM app.human_gates WHERE run_id = $1 AND gate_key = $2",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .fetch_one(self.pool())
        .await?;
        Ok(u64::try_from(left).unwrap_or(0))
    }

    /// Wakes the waits of gates that are still open seconds after their deadline, which is the database's: a
    /// wait that another worker began ends by the wall clock of that worker. The woken one asks how long it
    /// has left. Only for the leader.
    pub async fn late_wake(self, lead: &LeaderTerm) -> Result<()> {
        let mut conn = self.steady().acquire().await?;
        let late: Vec<(String, String)> = sqlx::query_as(
            "SELECT g.workflow_id, g.topic FROM app.human_gates g
               JOIN dbos.workflow_status w ON w.workflow_uuid = g.workflow_id
              WHERE g.state = 'open' AND g.plan_digest IS NOT NULL AND w.status = 'PENDING'
                AND g.deadline_at < clock_timestamp() - interval '5 seconds' AND app.leads($1, $2)
                AND NOT EXISTS (SELECT 1 FROM dbos.notifications n
                                 WHERE n.destination_uuid = g.workflow_id AND n.topic = g.topic AND NOT n.consumed)
              LIMIT 100",
        )
        .bind(lead.executor.as_str())
        .bind(lead.term)
        .fetch_all(&mut *conn)
        .await?;
        let message = GateMessage {
            payload: None,
            payload_hash: None,
            at: clock::now_ms(),
            sys: Some("sys:late".into()),
        };
        for (workflow, topic) in late {
            deliver(&mut conn, &workflow, &topic, &message).await?;
        }
        Ok(())
    }

    /// The n-th reminder of an open gate, once.
    pub async fn remind(self, run: &RunId, key: &GateKey, n: u32) -> Result<()> {
        sqlx::query(
            "WITH j AS (
               INSERT INTO app.gate_journal (run_id, gate_key, event, n, detail)
               SELECT run_id, gate_key, 'reminded', $3, jsonb_build_object('deadlineAt', app.ms(deadline_at))
                 FROM app.human_gates WHERE run_id = $1 AND gate_key = $2 AND state = 'open'
               ON CONFLICT DO NOTHING RETURNING run_id)
             SELECT pg_notify('cofferdam', 'g:' || run_id) FROM j",
        )
        .bind(run.as_str())
        .bind(key.as_str())
        .bind(i32::try_from(n).unwrap_or(i32::MAX))
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The escalation's own work: more people, a higher place, and a line in the journal, once.
    /// `false`: there is no such gate.
    pub async fn escalate(self, workflow: &str, key: &GateKey) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let row = sqlx::query(
            "SELECT run_id, state, spec, groups FROM app.human_gates WHERE workflow_id = $1 AND gate_key = $2 FOR UPDATE",
        )
        .bind(workflow)
        .bind(key.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(false) };
        let run: String = row.try_get("run_id")?;
        let spec = spec_of(key, row.try_get("spec")?)?;
        let state: String = row.try_get("state")?;
        let escalate = spec.on_timeout.escalate.filter(|_| state == "open");
        let detail = json!({"state": state, "escalate": json("gate_journal.detail", &escalate)?});
        let fresh = sqlx::query(
            "INSERT INTO app.gate_journal (run_id, gate_key, event, n, detail) VALUES ($1, $2, 'escalated', 1, $3)
             ON CONFLICT DO NOTHING",
        )
        .bind(&run)
        .bind(key.as_str())
        .bind(&detail)
        .execute(&mut *tx)
        .await?;
        if let Some(escalate) = escalate.filter(|_| fresh.rows_affected() == 1) {
            // A gate that everybody may answer has nobody left to add.
            sqlx::query(
                "UPDATE app.human_gates SET priority = greatest(priority, $3),
                   groups = CASE WHEN $4::text IS NULL OR groups = '{}' OR $4 = ANY (groups) THEN groups
                                 ELSE groups || $4::text END
                  WHERE run_id = $1 AND gate_key = $2",
            )
            .bind(&run)
            .bind(key.as_str())
            .bind(i32::from(escalate.priority.unwrap_or(1)))
            .bind(escalate.group.as_ref().map(GroupId::as_str))
            .execute(&mut *tx)
            .await?;
            sqlx::query("SELECT pg_notify('cofferdam', 'g:' || $1)")
                .bind(&run)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(true)
    }
}
