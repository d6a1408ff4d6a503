//! `app.models`, `app.model_calls`, `app.model_usage`: providers of models, and every call of one.
//!
//! ```text
//! call_admit: row + sums, one transaction -> the request is sent -> call_settle: outcome, sums by the difference
//!             \-> refused: a row too                     \-> worker lost: `unknown` with the session's end
//! ```
//!
//! One file: the statements of one call and the sums that they keep.

use cofferdam_contracts::id::{Digest, ProviderName, RunId, SandboxId, TenantId};
use cofferdam_contracts::model::{
    CallAllowance, ModelCallRow, ModelLimit, ModelOutcome, ModelProtocol, ModelProvider,
    ModelSpend, ModelUsage, ProviderRow,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{self, Audit};
use crate::error::{LedgerError, Result, id, json, load};
use crate::families::Models;

/// Calls of a run that one answer lists, newest last.
const MAX_LISTED: i64 = 10_000;

/// A provider as a call needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    /// Address, protocols, prices and budgets as operators configured them.
    pub provider: ModelProvider,
    /// Counts its changes.
    pub version: i32,
    /// Whether it may lie on an address of this host or its networks.
    pub private: bool,
}

/// Bounds of a call by scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CallLimits {
    /// Of the sandbox.
    pub sandbox: ModelLimit,
    /// Of the run.
    pub run: ModelLimit,
    /// Of the tenant's day.
    pub day: ModelLimit,
    /// Of the tenant.
    pub tenant: ModelLimit,
}

impl CallLimits {
    /// Whether one of them bounds what a call costs.
    #[must_use]
    pub fn bounds_cost(&self) -> bool {
        [self.sandbox, self.run, self.day, self.tenant].iter().any(ModelLimit::bounds_cost)
    }
}

/// A call to be decided.
#[derive(Debug, Clone)]
pub struct NewCall<'a> {
    /// Digest that identifies the call; a digest on record is never sent again.
    pub op_key: &'a Digest,
    /// The sandbox that calls.
    pub sandbox: &'a SandboxId,
    /// Which call of the sandbox, from 1.
    pub n: u64,
    /// The agent's type.
    pub agent: Option<&'a str>,
    /// The provider and the version of its configuration.
    pub provider: Option<(&'a ProviderName, i32)>,
    /// Model that the request names; absent where no provider was chosen for the call.
    pub model: Option<&'a str>,
    /// The wire format.
    pub protocol: ModelProtocol,
    /// Hash of the body.
    pub request_hash: &'a Digest,
    /// Bytes of the body.
    pub request_bytes: u64,
    /// Bounds in force.
    pub limits: CallLimits,
    /// Tokens to set aside.
    pub tokens: u64,
    /// Micro-units to set aside.
    pub micros: u64,
    /// Why it is refused without a look at budgets.
    pub refused: Option<&'a str>,
}

/// The bound that a call would pass.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetRefusal {
    /// Scope of the budget: `sandbox`, `run`, `day` or `tenant`; absent for another reason.
    #[serde(default)]
    pub scope: Option<String>,
    /// Which of its bounds.
    #[serde(default)]
    pub metric: Option<String>,
    /// Bound of the metric, a person's grants included: a count, micro-units or ms.
    #[serde(default)]
    pub limit: Option<u64>,
    /// What was used or set aside already.
    #[serde(default)]
    pub observed: Option<u64>,
    /// Another reason than a budget.
    #[serde(default)]
    pub why: Option<String>,
}

/// What was decided of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallDecision {
    /// It may be sent, once.
    Allowed {
        /// Until a wall budget cuts it, ms; `None`: none does.
        left_ms: Option<i64>,
    },
    /// It may not.
    Refused(BudgetRefusal),
    /// It was decided before: it is not sent again.
    Known,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DecisionRow {
    #[serde(default)]
    known: bool,
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    left_ms: Option<i64>,
    #[serde(default)]
    refused: Option<BudgetRefusal>,
}

/// What a call takes of budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCost {
    /// Tokens, read and written.
    pub tokens: u64,
    /// Micro-units of money.
    pub micros: u64,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallEnd<'a> {
    /// In one word.
    pub outcome: ModelOutcome,
    /// The provider's status.
    pub status: Option<u16>,
    /// Tokens that it claims.
    pub usage: Option<ModelUsage>,
    /// What counts; `None`: not known, and what was set aside counts.
    pub counted: Option<CallCost>,
    /// Hash and bytes of what was passed on.
    pub answer: Option<(&'a Digest, u64)>,
    /// To the first byte of the body, ms.
    pub first_ms: Option<u64>,
    /// To the end, ms.
    pub wall_ms: u64,
    /// Why, where it failed.
    pub why: Option<&'a str>,
}

/// What the calls of one sandbox come to, as its agent's record says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelTurns {
    /// Calls that were answered.
    pub turns: u64,
    /// Tokens that they read, where their providers said so.
    pub input: u64,
    /// Tokens that they wrote.
    pub output: u64,
    /// Tokens that a cache spared.
    pub cached: u64,
}

/// As much of a number as a column holds.
fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn provider_of(row: &PgRow) -> Result<ProviderRecord> {
    Ok(ProviderRecord {
        provider: load("models.provider", row.try_get("provider")?)?,
        version: row.try_get("version")?,
        private: row.try_get("private")?,
    })
}

impl Models<'_> {
    /// Appends the next version of a provider and its audit.
    pub async fn provider_put(
        self,
        provider: &ModelProvider,
        private: bool,
        audit: &Audit<'_>,
    ) -> Result<()> {
        let value = json("models.provider", provider)?;
        self.version_append(&provider.name, Some(value), private, audit).await.map(|_| ())
    }

    /// Removes a provider. `false` where the tenant has no such one.
    pub async fn provider_remove(self, name: &ProviderName, audit: &Audit<'_>) -> Result<bool> {
        self.version_append(name, None, false, audit).await
    }

    async fn version_append(
        self,
        name: &ProviderName,
        value: Option<Value>,
        private: bool,
        audit: &Audit<'_>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        // Two that write the same name take turns.
        sqlx::query(
            "SELECT pg_advisory_xact_lock(hashtextextended('models:' || $1 || '/' || $2, 0))",
        )
        .bind(audit.tenant.as_str())
        .bind(name.as_str())
        .execute(&mut *tx)
        .await?;
        let written = sqlx::query(
            "INSERT INTO app.models (tenant_id, name, version, provider, private, actor)
             SELECT $1, $2, coalesce(max(version), 0) + 1, $3, $4, $5 FROM app.models
              WHERE tenant_id = $1 AND name = $2
             HAVING $3::jsonb IS NOT NULL
                 OR (array_agg(provider ORDER BY version DESC))[1] IS NOT NULL",
        )
        .bind(audit.tenant.as_str())
        .bind(name.as_str())
        .bind(value)
        .bind(private)
        .bind(audit.actor)
        .execute(&mut *tx)
        .await?;
        if written.rows_affected() == 0 {
            return Ok(false);
        }
        audit::append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// A tenant's providers by name.
    pub async fn provider_list(self, tenant: &TenantId) -> Result<Vec<ProviderRow>> {
        let rows = sqlx::query(
            "SELECT * FROM (SELECT DISTINCT ON (name) name, provider, version, private, actor, app.ms(created_at) AS at
                              FROM app.models WHERE tenant_id = $1 ORDER BY name, version DESC) m
              WHERE provider IS NOT NULL ORDER BY name",
        )
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ProviderRow {
                    provider: load("models.provider", row.try_get("provider")?)?,
                    version: row.try_get("version")?,
                    actor: row.try_get("actor")?,
                    created_at: row.try_get("at")?,
                })
            })
            .collect()
    }

    /// The tenant's providers of these names, in the order of the list.
    pub async fn providers(
        self,
        tenant: &TenantId,
        names: &[ProviderName],
    ) -> Result<Vec<ProviderRecord>> {
        let names: Vec<&str> = names.iter().map(ProviderName::as_str).collect();
        let rows = sqlx::query(
            "SELECT * FROM (SELECT DISTINCT ON (name) name, provider, version, private
                              FROM app.models WHERE tenant_id = $1 AND name = ANY($2) ORDER BY name, version DESC) m
              WHERE provider IS NOT NULL ORDER BY array_position($2, name)",
        )
        .bind(tenant.as_str())
        .bind(&names)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(provider_of).collect()
    }

    /// What the budgets leave to one more call of a sandbox, a person's grants included. Another call may take it meanwhile.
    pub async fn room(
        self,
        sandbox: &SandboxId,
        provider: &ProviderName,
        limits: &CallLimits,
    ) -> Result<CallAllowance> {
        let row = sqlx::query(
            "WITH grants AS (
               SELECT coalesce(sum(g.tokens), 0) AS tokens, coalesce(sum(g.micros), 0) AS micros
                 FROM app.model_grants g JOIN app.remote_execution_sessions s USING (task_key)
                WHERE s.sandbox_id = $1),
             left_over AS (
               SELECT (l.value ->> 'tokens')::numeric - coalesce(u.tokens, 0)
                        + CASE l.key WHEN 'sandbox' THEN g.tokens ELSE 0 END AS tokens,
                      (l.value ->> 'micros')::numeric - coalesce(u.micros, 0)
                        + CASE l.key WHEN 'sandbox' THEN g.micros ELSE 0 END AS micros
                 FROM app.remote_execution_sessions s CROSS JOIN grants g CROSS JOIN jsonb_each($3) l
                 LEFT JOIN app.model_usage u
                   ON u.tenant_id = s.tenant_id AND u.scope = l.key
                  AND u.key = app.model_scope_key(l.key, $1, s.run_id, $2, clock_timestamp())
                WHERE s.sandbox_id = $1)
             SELECT greatest(min(tokens), 0)::bigint AS tokens, greatest(min(micros), 0)::bigint AS micros,
                    min(tokens) IS NULL AS any_tokens, min(micros) IS NULL AS any_micros FROM left_over",
        )
        .bind(sandbox.as_str())
        .bind(provider.as_str())
        .bind(json("model_calls.limits", limits)?)
        .fetch_one(self.pool())
        .await?;
        let left = |any: &str, column: &str| -> Result<Option<u64>> {
            match row.try_get(any)? {
                true => Ok(None),
                false => Ok(u64::try_from(row.try_get::<i64, _>(column)?).ok()),
            }
        };
        Ok(CallAllowance {
            tokens: left("any_tokens", "tokens")?,
            micros: left("any_micros", "micros")?,
        })
    }

    /// Decides a call and writes its row. The same key a second time decides nothing.
    pub async fn call_admit(self, new: &NewCall<'_>) -> Result<CallDecision> {
        let value: Value = sqlx::query_scalar(
            "SELECT app.model_call_admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        )
        .bind(new.op_key.as_str())
        .bind(new.sandbox.as_str())
        .bind(big(new.n))
        .bind(new.agent)
        .bind(new.provider.map(|(name, _)| name.as_str()))
        .bind(new.provider.map(|(_, version)| version))
        .bind(new.model)
        .bind(new.protocol.as_str())
        .bind(new.request_hash.as_str())
        .bind(big(new.request_bytes))
        .bind(json("model_calls.limits", &new.limits)?)
        .bind(big(new.tokens))
        .bind(big(new.micros))
        .bind(new.refused)
        .fetch_one(self.pool())
        .await?;
        let decided: DecisionRow = load("model_call_admit", value)?;
        match decided {
            DecisionRow { known: true, .. } => Ok(CallDecision::Known),
            DecisionRow { allowed: true, left_ms, .. } => Ok(CallDecision::Allowed { left_ms }),
            DecisionRow { refused: Some(over), .. } => Ok(CallDecision::Refused(over)),
            _ => Err(LedgerError::Row { what: "model_call_admit", why: "no decision".to_owned() }),
        }
    }

    /// Writes what came of a call, once. `false`: that is on record already.
    pub async fn call_settle(self, op_key: &Digest, end: &CallEnd<'_>) -> Result<bool> {
        let settled = sqlx::query_scalar(
            "SELECT app.model_call_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
        )
        .bind(op_key.as_str())
        .bind(end.outcome.as_str())
        .bind(end.status.map(i32::from))
        .bind(end.usage.map(|usage| big(usage.input)))
        .bind(end.usage.map(|usage| big(usage.output)))
        .bind(end.usage.map(|usage| big(usage.cached)))
        .bind(end.counted.map(|cost| big(cost.tokens)))
        .bind(end.counted.map(|cost| big(cost.micros)))
        .bind(end.answer.map(|(hash, _)| hash.as_str()))
        .bind(end.answer.map(|(_, bytes)| big(bytes)))
        .bind(end.first_ms.map(big))
        .bind(big(end.wall_ms))
        .bind(end.why)
        .bind(end.usage.map(|usage| big(usage.written)))
        .bind(end.usage.map(|usage| big(usage.written_hour)))
        .fetch_one(self.pool())
        .await?;
        Ok(settled)
    }

    /// Keeps a body of a call, redacted already; `side`: `request` or `answer`.
    pub async fn body_store(self, op_key: &Digest, side: &str, body: &str) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.model_bodies (op_key, side, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(op_key.as_str())
        .bind(side)
        .bind(body)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The calls of a run in the order of their decisions; at most 10,000.
    pub async fn calls(self, run: &RunId) -> Result<Vec<ModelCallRow>> {
        let rows = sqlx::query(
            "SELECT op_key, run_id, task_key, sandbox_id, n, agent, provider, model, protocol, request_hash, answer_hash,
                    status, outcome, tokens_in, tokens_out, tokens_cached, tokens_written,
                    tokens_written_hour, tokens, micros, first_ms, wall_ms, why,
                    app.ms(created_at) AS at
               FROM app.model_calls WHERE run_id = $1 ORDER BY created_at, sandbox_id, n LIMIT $2",
        )
        .bind(run.as_str())
        .bind(MAX_LISTED)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(call_of).collect()
    }

    /// What the calls of a run took, by provider and model; refused ones are left out.
    pub async fn spent(self, run: &RunId) -> Result<Vec<ModelSpend>> {
        self.spent_by("run_id", run.as_str()).await
    }

    /// The same of one sandbox.
    pub async fn spent_in(self, sandbox: &SandboxId) -> Result<Vec<ModelSpend>> {
        self.spent_by("sandbox_id", sandbox.as_str()).await
    }

    /// The turns of a sandbox's agent: calls that a provider answered, or may have answered.
    pub async fn turns(self, sandbox: &SandboxId) -> Result<ModelTurns> {
        let row = sqlx::query(
            "SELECT count(*) FILTER (WHERE reserved_tokens > 0 AND (outcome IS NULL OR outcome IN ('ok','cut','unknown')))
                      AS turns,
                    coalesce(sum(tokens_in), 0)::bigint AS input, coalesce(sum(tokens_out), 0)::bigint AS output,
                    coalesce(sum(tokens_cached), 0)::bigint AS cached
               FROM app.model_calls WHERE sandbox_id = $1",
        )
        .bind(sandbox.as_str())
        .fetch_one(self.pool())
        .await?;
        let number = |column: &str| -> Result<u64> {
            Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
        };
        Ok(ModelTurns {
            turns: number("turns")?,
            input: number("input")?,
            output: number("output")?,
            cached: number("cached")?,
        })
    }

    async fn spent_by(self, column: &'static str, of: &str) -> Result<Vec<ModelSpend>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT provider, model, count(*) AS calls, sum(tokens)::bigint AS tokens, sum(micros)::bigint AS micros,
                    count(*) FILTER (WHERE tokens_in IS NULL AND tokens > 0) AS unknown
               FROM app.model_calls
              WHERE {column} = $1 AND outcome IS DISTINCT FROM 'refused'
              GROUP BY provider, model ORDER BY provider, model",
        )))
        .bind(of)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ModelSpend {
                    provider: id("model_calls.provider", row.try_get("provider")?)?,
                    model: id("model_calls.model", row.try_get("model")?)?,
                    calls: row.try_get("calls")?,
                    tokens: row.try_get("tokens")?,
                    micros: row.try_get("micros")?,
                    unknown: row.try_get("unknown")?,
                })
            })
            .collect()
    }
}

fn call_of(row: &PgRow) -> Result<ModelCallRow> {
    let text = |column: &'static str| -> Result<Option<String>> { Ok(row.try_get(column)?) };
    let number = |column: &'static str| -> Result<u64> {
        let found: Option<i64> = row.try_get(column)?;
        Ok(u64::try_from(found.unwrap_or(0)).unwrap_or(0))
    };
    let claims: Option<i64> = row.try_get("tokens_in")?;
    let usage = match claims {
        Some(_) => Some(ModelUsage {
            input: number("tokens_in")?,
            output: number("tokens_out")?,
            cached: number("tokens_cached")?,
            written: number("tokens_written")?,
            written_hour: number("tokens_written_hour")?,
        }),
        None => None,
    };
    let named = |what: &'static str, text: &str| LedgerError::Row { what, why: text.to_owned() };
    let protocol: String = row.try_get("protocol")?;
    let outcome = text("outcome")?;
    Ok(ModelCallRow {
        op_key: id("model_calls.op_key", row.try_get("op_key")?)?,
        run_id: id("model_calls.run_id", row.try_get("run_id")?)?,
        task_key: id("model_calls.task_key", row.try_get("task_key")?)?,
        sandbox_id: id("model_calls.sandbox_id", row.try_get("sandbox_id")?)?,
        n: row.try_get("n")?,
        agent: text("agent")?,
        provider: text("provider")?.map(|t| id("model_calls.provider", &t)).transpose()?,
        model: text("model")?.map(|t| id("model_calls.model", &t)).transpose()?,
        protocol: ModelProtocol::parse(&protocol)
            .ok_or_else(|| named("model_calls.protocol", &protocol))?,
        request_hash: id("model_calls.request_hash", row.try_get("request_hash")?)?,
        answer_hash: text("answer_hash")?.map(|t| id("model_calls.answer_hash", &t)).transpose()?,
        status: row.try_get("status")?,
        outcome: outcome
            .map(|t| ModelOutcome::parse(&t).ok_or_else(|| named("model_calls.outcome", &t)))
            .transpose()?,
        usage,
        tokens: row.try_get("tokens")?,
        micros: row.try_get("micros")?,
        first_ms: row.try_get("first_ms")?,
        wall_ms: row.try_get("wall_ms")?,
        why: text("why")?,
        created_at: row.try_get("at")?,
    })
}
