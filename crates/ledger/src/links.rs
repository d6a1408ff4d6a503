//! `app.reply_links`: links that answer one gate once. The reply itself is `gates`'s; a trigger on its
//! ledger row consumes the link in the same transaction, so no way of replying can forget it.

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::egress::EgressAsk;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::{Digest, GateKey, RunId, TenantId};
use cofferdam_contracts::link::LinkClaim;
use cofferdam_contracts::model::BudgetAsk;
use cofferdam_contracts::start_ask::{MAX_SHOWN, MAX_SHOWN_CHARS, StartAsk};
use serde_json::Value;
use sqlx::Row;

use crate::audit::Audit;
use crate::error::{OpResult, Result, id};
use crate::families::Links;
use crate::gates::{asked, asked_budget, asked_start};

/// A gate as a link sees it.
#[derive(Debug, Clone)]
pub struct LinkGate {
    /// Run of the gate, also where the caller named a workflow.
    pub run: RunId,
    /// Channel of the gate's messages, such as `human:approve-plan`.
    pub topic: String,
    /// JSON Schema that an answer must fit.
    pub form: Value,
    /// The plan that waits there, where one does.
    pub plan_digest: Option<Digest>,
    /// What an answer approves: the plan's digest, that of what a task would start with, or that of the form where it is neither.
    pub digest: Digest,
    /// The name that a task asks for, where the gate is such a question.
    pub asks: Option<EgressAsk>,
    /// The bound of a budget that a task asks to raise, where the gate is such a question.
    pub budget: Option<BudgetAsk>,
    /// The task group that waits to start, where the gate stands before one.
    pub start: Option<StartAsk>,
    /// Whether it waits, in time, for the plan that its run still has.
    pub is_waiting: bool,
    /// ms since the epoch.
    pub deadline_at: i64,
}

/// Where a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// Whether it answered already.
    pub is_used: bool,
    /// Whether its time is over.
    pub is_expired: bool,
    /// Whether the key that made it was revoked.
    pub is_revoked: bool,
}

impl Links<'_> {
    /// A gate that a link is made for, or leads to.
    pub async fn gate(
        self,
        tenant: &TenantId,
        run_or_workflow: &str,
        gate: &GateKey,
    ) -> OpResult<LinkGate> {
        let run: Option<String> = sqlx::query_scalar(
            "SELECT id FROM app.runs WHERE (id = $1 OR workflow_id = $1) AND tenant_id = $2",
        )
        .bind(run_or_workflow)
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        let run = run.ok_or_else(|| Refusal::not_found("run"))?;
        let row = sqlx::query(
            "SELECT g.topic, g.form, g.plan_digest, app.ms(g.deadline_at) AS deadline,
                    a.name AS asked_name, a.phase AS asked_phase, m.asked AS asked_budget,
                    app.graph_start_asked(g.run_id, g.gate_key, $3, $4) AS asked_start,
                    g.state = 'open' AND g.deadline_at > clock_timestamp()
                      AND (g.plan_digest IS NULL OR g.plan_digest = r.plan_digest) AS waiting
               FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id
               LEFT JOIN app.egress_asks a ON a.run_id = g.run_id AND a.gate_key = g.gate_key
               LEFT JOIN app.model_asks m ON m.run_id = g.run_id AND m.gate_key = g.gate_key
              WHERE g.run_id = $1 AND g.gate_key = $2 ORDER BY g.created_at DESC LIMIT 1",
        )
        .bind(&run)
        .bind(gate.as_str())
        .bind(MAX_SHOWN)
        .bind(MAX_SHOWN_CHARS)
        .fetch_optional(self.pool())
        .await?
        .ok_or_else(|| Refusal::not_found("gate"))?;
        let form: Value = row.try_get("form")?;
        let plan_digest = row
            .try_get::<Option<String>, _>("plan_digest")?
            .map(|text| id("human_gates.plan_digest", &text))
            .transpose()?;
        let start = asked_start(&row)?;
        let digest = match (&plan_digest, &start) {
            (Some(plan), _) => Digest::clone(plan),
            (None, Some(start)) => start.digest.clone(),
            (None, None) => digest(&form)?,
        };
        Ok(LinkGate {
            run: id("runs.id", &run)?,
            topic: row.try_get("topic")?,
            form,
            plan_digest,
            digest,
            asks: asked(&row)?,
            budget: asked_budget(&row)?,
            start,
            is_waiting: row.try_get::<Option<bool>, _>("waiting")?.unwrap_or(false),
            deadline_at: row.try_get("deadline")?,
        })
    }

    /// Records a link together with who made it.
    pub async fn create(
        self,
        claim: &LinkClaim,
        plan: Option<&Digest>,
        audit: &Audit<'_>,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query(
            "INSERT INTO app.reply_links (id, tenant_id, run_id, gate_key, topic, plan_digest, digest, choice, name,
                                          key_id, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp($11::float8 / 1000))",
        )
        .bind(&claim.id)
        .bind(claim.tenant.as_str())
        .bind(claim.run.as_str())
        .bind(claim.gate.as_str())
        .bind(&claim.topic)
        .bind(plan.map(Digest::as_str))
        .bind(claim.digest.as_str())
        .bind(claim.choice.map(Choice::as_str))
        .bind(&claim.name)
        .bind(audit.key_id)
        .bind(claim.expires_at)
        .execute(&mut *tx)
        .await?;
        crate::audit::append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Where a link stands; `None` where this database never recorded it.
    pub async fn link_state(self, claim: &LinkClaim) -> Result<Option<LinkState>> {
        let row = sqlx::query(
            "SELECT used_at IS NOT NULL AS used, expires_at <= clock_timestamp() AS expired,
                    EXISTS (SELECT 1 FROM app.api_keys k
                             WHERE k.key_id = l.key_id AND k.revoked_at IS NOT NULL) AS revoked
               FROM app.reply_links l WHERE id = $1 AND tenant_id = $2 AND run_id = $3 AND gate_key = $4",
        )
        .bind(&claim.id)
        .bind(claim.tenant.as_str())
        .bind(claim.run.as_str())
        .bind(claim.gate.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(LinkState {
                is_used: row.try_get("used")?,
                is_expired: row.try_get("expired")?,
                is_revoked: row.try_get("revoked")?,
            })
        })
        .transpose()
    }
}
