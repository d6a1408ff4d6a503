//! `app.plan_approvals` and what voids them.

use std::collections::BTreeMap;

use cofferdam_contracts::consent::{Bindings, Difference, Edit, Facts};
use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, GateKey, RunId};
use cofferdam_contracts::run::Budget;
use serde_json::Value;
use sqlx::Row;

use crate::error::{LedgerError, Result, id, json, load};
use crate::families::Gates;
use crate::steps::{CompileRecord, compiled_insert};

/// A consent, as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Approval {
    /// Round of the gate that asked for the consent, from 1.
    pub round: u32,
    /// Who gave it.
    pub approved_by: String,
    /// Whether the recipe said so when nobody did.
    pub by_silence: bool,
    /// What it is bound to.
    pub facts: Facts,
    /// Why it no longer holds, once it was voided.
    pub voided: Option<Vec<Difference>>,
}

/// What execution is about to use, read afresh.
#[derive(Debug, Clone)]
pub struct CurrentPlan {
    /// The plan that the run names now.
    pub plan_digest: Option<Digest>,
    /// Its budget now.
    pub budget: Budget,
    /// Its wall time now.
    pub timeout_ms: Option<u64>,
    /// The newest consent.
    pub approval: Option<Approval>,
}

impl Gates<'_> {
    /// What a run's consent is compared with, and the consent.
    pub async fn consent_standing(self, run: &RunId) -> Result<CurrentPlan> {
        let row = sqlx::query(
            "SELECT r.plan_digest AS now_plan, r.budget, r.timeout_ms, p.round, p.approved_by, p.origin, p.plan_digest, p.sandbox_digest,
                    p.egress_digest, p.image_digest, p.budget_digest, p.parts, v.difference
               FROM app.runs r LEFT JOIN LATERAL (
                 SELECT a.* FROM app.plan_approvals a WHERE a.run_id = r.id ORDER BY a.round DESC LIMIT 1) p ON true
               LEFT JOIN app.plan_consents_void v ON v.run_id = p.run_id AND v.round = p.round
              WHERE r.id = $1",
        )
        .bind(run.as_str())
        .fetch_one(self.pool())
        .await?;
        let digest = |column: &'static str| -> Result<Option<Digest>> {
            row.try_get::<Option<String>, _>(column)?.map(|t| id(column, &t)).transpose()
        };
        let bindings = (
            digest("plan_digest")?,
            digest("sandbox_digest")?,
            digest("egress_digest")?,
            digest("image_digest")?,
            digest("budget_digest")?,
        );
        let round: Option<i32> = row.try_get("round")?;
        let approval = match (round, bindings) {
            (Some(round), (Some(plan), Some(sandbox), Some(egress), Some(image), Some(budget))) => {
                let parts: Option<Value> = row.try_get("parts")?;
                let parts: Option<BTreeMap<String, Value>> =
                    parts.map(|v| load("plan_approvals.parts", v)).transpose()?;
                Some(Approval {
                    round: u32::try_from(round).unwrap_or(1),
                    approved_by: row.try_get("approved_by")?,
                    // People answer through the API; only the engine writes for nobody.
                    by_silence: row.try_get::<String, _>("origin")? == Origin::EngineDbos.as_str(),
                    facts: Facts {
                        bindings: Bindings { plan, sandbox, egress, image, budget },
                        parts: parts.unwrap_or_default(),
                    },
                    voided: row
                        .try_get::<Option<Value>, _>("difference")?
                        .map(|v| load("plan_consents_void.difference", v))
                        .transpose()?,
                })
            }
            _ => None,
        };
        Ok(CurrentPlan {
            plan_digest: digest("now_plan")?,
            budget: row
                .try_get::<Option<Value>, _>("budget")?
                .map(|v| load("runs.budget", v))
                .transpose()?
                .unwrap_or_default(),
            timeout_ms: row
                .try_get::<Option<i64>, _>("timeout_ms")?
                .and_then(|ms| u64::try_from(ms).ok()),
            approval,
        })
    }

    /// Voids a consent, once, unless work has begun under it: `false`, and the run must not go on.
    pub async fn consent_void(
        self,
        run: &RunId,
        round: u32,
        now: &Bindings,
        difference: &[Difference],
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let begun: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM app.sbx_runs WHERE run_id = $1)")
                .bind(run.as_str())
                .fetch_one(&mut *tx)
                .await?;
        if begun {
            return Ok(false);
        }
        sqlx::query(
            "INSERT INTO app.plan_consents_void (run_id, round, bindings, difference) VALUES ($1, $2, $3, $4)
             ON CONFLICT DO NOTHING",
        )
        .bind(run.as_str())
        .bind(i32::try_from(round).unwrap_or(i32::MAX))
        .bind(json("plan_consents_void.bindings", now)?)
        .bind(json("plan_consents_void.difference", &difference)?)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The edits of every round whose consent was given, in order. A fork that inherited a consent has
    /// no gate of that name: its edits are those of the nearest run before it that was asked.
    pub async fn edits_approved(self, run: &RunId, also: &GateKey) -> Result<Vec<Edit>> {
        let rows = sqlx::query(
            "WITH RECURSIVE line AS (
               SELECT id, workflow_id, 0 AS back FROM app.runs WHERE id = $1
               UNION ALL
               SELECT r.id, r.workflow_id, l.back + 1 FROM line l
                 JOIN dbos.workflow_status w ON w.workflow_uuid = l.workflow_id
                 JOIN app.runs r ON r.workflow_id = w.forked_from),
             asked AS (
               SELECT DISTINCT ON (g.gate_key) g.run_id, g.gate_key FROM line l JOIN app.human_gates g ON g.run_id = l.id
                WHERE (l.back = 0 AND g.gate_key = $2) OR EXISTS (
                        SELECT 1 FROM app.plan_approvals p WHERE p.run_id = $1 AND p.gate_key = g.gate_key)
                ORDER BY g.gate_key, l.back)
             SELECT e.op, e.path, e.from_value, e.value FROM asked a
               JOIN app.gate_edits e ON e.run_id = a.run_id AND e.gate_key = a.gate_key
              ORDER BY e.interaction_id, e.n",
        )
        .bind(run.as_str())
        .bind(also.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Edit {
                    op: row.try_get("op")?,
                    path: row.try_get("path")?,
                    from: row.try_get("from_value")?,
                    value: row.try_get("value")?,
                })
            })
            .collect()
    }

    /// The edited plan, and the editor's consent to exactly it, together. A replay changes nothing.
    pub async fn consent_edited(
        self,
        compiled: &CompileRecord<'_>,
        key: &GateKey,
        facts: &Facts,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        compiled_insert(&mut tx, compiled).await?;
        let b = &facts.bindings;
        let done = sqlx::query(
            "INSERT INTO app.plan_approvals (run_id, intent_id, plan_digest, approved_by, key_id, notes, origin, gate_key,
               round, sandbox_digest, egress_digest, image_digest, budget_digest, parts)
             SELECT g.run_id, r.intent_id, $3, i.key_id, i.key_id, i.payload->>'rationale', i.origin, g.gate_key,
                    g.round, $4, $5, $6, $7, $8
               FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id
               JOIN app.human_interactions i ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key
                    AND i.topic = g.topic AND i.outcome = 'accepted'
              WHERE g.run_id = $1 AND g.gate_key = $2
             ON CONFLICT (run_id, round) DO NOTHING",
        )
        .bind(compiled.run.as_str())
        .bind(key.as_str())
        .bind(b.plan.as_str())
        .bind(b.sandbox.as_str())
        .bind(b.egress.as_str())
        .bind(b.image.as_str())
        .bind(b.budget.as_str())
        .bind(json("plan_approvals.parts", &facts.parts)?)
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 0 {
            let there: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM app.plan_approvals WHERE run_id = $1 AND gate_key = $2)",
            )
            .bind(compiled.run.as_str())
            .bind(key.as_str())
            .fetch_one(&mut *tx)
            .await?;
            if !there {
                let why = format!("{key} of {} has no accepted reply", compiled.run);
                return Err(LedgerError::Row { what: "human_interactions", why });
            }
        }
        tx.commit().await?;
        Ok(())
    }
}
