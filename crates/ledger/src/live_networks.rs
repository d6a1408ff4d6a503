//! `app.live_networks`: changes of the network of long-lived sandboxes while they run.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{LiveId, TenantId};
use cofferdam_contracts::live_network::LiveNetworkChange;
use cofferdam_contracts::sandbox::Egress;
use serde_json::{Value, json as value};
use sqlx::Row;

use crate::audit::{Audit, append};
use crate::error::{OpResult, Result, id, json, load};
use crate::families::LiveRows;
use crate::keys::Principal;
use crate::policies::NewPolicySnapshot;

/// Changes that one list shows; a sandbox's latest.
const MAX_LISTED: i64 = 1_000;

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkOutcome<'a> {
    /// The proxy has it.
    InForce {
        /// Names that it admits.
        names: &'a [String],
        /// Connections that were ended.
        cut: usize,
    },
    /// The network before it stayed.
    Failed(&'a str),
}

impl LiveRows<'_> {
    /// Writes a change of a running sandbox's network before it is made, and gives its number. `None`: it is not running.
    /// An earlier one without an outcome was taken back by the caller, which holds the sandbox.
    pub async fn network_begins(
        self,
        who: &Principal,
        live: &LiveId,
        wanted: &Egress,
        consent: &NewPolicySnapshot,
    ) -> OpResult<Option<i32>> {
        let mut tx = self.pool().begin().await?;
        let row = sqlx::query(
            "SELECT run_id, sandbox_id, app.live_network(id, egress) AS before FROM app.lives
              WHERE id = $1 AND tenant_id = $2 AND life = 'running' FOR UPDATE",
        )
        .bind(live.as_str())
        .bind(who.tenant.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        sqlx::query(
            "UPDATE app.live_networks SET outcome = 'failed', settled_at = clock_timestamp(),
                    why = 'its outcome could not be written, so it was taken back'
              WHERE live_id = $1 AND outcome IS NULL",
        )
        .bind(live.as_str())
        .execute(&mut *tx)
        .await?;
        let before: Value = row.try_get("before")?;
        let requested = json("live_networks.requested", wanted)?;
        if before == requested {
            let why = "the sandbox has this network already";
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        let n: i32 = sqlx::query_scalar(
            "INSERT INTO app.live_networks
                    (live_id, n, tenant_id, run_id, sandbox_id, key_id, before, requested, source, policy_version, approver)
             SELECT $1, 1 + coalesce(max(n), 0), $2, $3, $4, $5, $6, $7, $8, $9, $10
               FROM app.live_networks WHERE live_id = $1
             RETURNING n",
        )
        .bind(live.as_str())
        .bind(who.tenant.as_str())
        .bind(row.try_get::<String, _>("run_id")?)
        .bind(row.try_get::<String, _>("sandbox_id")?)
        .bind(&who.key_id)
        .bind(&before)
        .bind(&requested)
        .bind(consent.source.as_str())
        .bind(consent.policy_version)
        .bind(consent.approver.as_deref())
        .fetch_one(&mut *tx)
        .await?;
        let detail = Some(value!({"n": n, "from": before, "to": requested}));
        let audit = Audit { detail, ..Audit::by(who, "sandbox.network", live.as_str()) };
        append(&mut tx, &audit).await?;
        tx.commit().await?;
        Ok(Some(n))
    }

    /// Writes what became of a change, once. `false`: its sandbox ended meanwhile.
    pub async fn network_settles(
        self,
        live: &LiveId,
        n: i32,
        outcome: &NetworkOutcome<'_>,
    ) -> Result<bool> {
        let (what, names, cut, why) = match outcome {
            NetworkOutcome::InForce { names, cut } => {
                let cut = i32::try_from(*cut).unwrap_or(i32::MAX);
                ("in-force", Some(value!(names)), Some(cut), None)
            }
            NetworkOutcome::Failed(why) => ("failed", None, None, Some(why.replace('\0', ""))),
        };
        // A repetition whose first answer was lost finds what it wrote.
        let settled: Option<String> = sqlx::query_scalar(
            "WITH settled AS (
               UPDATE app.live_networks SET outcome = $3, observed = $4, cut = $5, why = $6, settled_at = clock_timestamp()
                WHERE live_id = $1 AND n = $2 AND outcome IS NULL RETURNING outcome)
             SELECT outcome FROM settled
              UNION ALL SELECT outcome FROM app.live_networks WHERE live_id = $1 AND n = $2 AND outcome IS NOT NULL",
        )
        .bind(live.as_str())
        .bind(n)
        .bind(what)
        .bind(names)
        .bind(cut)
        .bind(why)
        .fetch_optional(self.pool())
        .await?;
        Ok(settled.as_deref() == Some(what))
    }

    /// Changes of a tenant's sandbox, in order.
    pub async fn networks(
        self,
        tenant: &TenantId,
        live: &LiveId,
    ) -> Result<Vec<LiveNetworkChange>> {
        let rows = sqlx::query(
            "SELECT *, app.ms(created_at) AS created_ms, app.ms(settled_at) AS settled_ms FROM (
               SELECT * FROM app.live_networks WHERE live_id = $1 AND tenant_id = $2 ORDER BY n DESC LIMIT $3) c
              ORDER BY n",
        )
        .bind(live.as_str())
        .bind(tenant.as_str())
        .bind(MAX_LISTED)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let outcome: Option<String> = row.try_get("outcome")?;
                let outcome = outcome.unwrap_or_else(|| "open".to_owned());
                let observed: Option<Value> = row.try_get("observed")?;
                Ok(LiveNetworkChange {
                    n: row.try_get("n")?,
                    before: load("live_networks.before", row.try_get("before")?)?,
                    requested: load("live_networks.requested", row.try_get("requested")?)?,
                    outcome: load("live_networks.outcome", Value::String(outcome))?,
                    observed: observed.map(|v| load("live_networks.observed", v)).transpose()?,
                    cut: row.try_get("cut")?,
                    why: row.try_get("why")?,
                    source: load("live_networks.source", Value::String(row.try_get("source")?))?,
                    policy_version: row.try_get("policy_version")?,
                    key_id: row.try_get("key_id")?,
                    run_id: id("live_networks.run_id", row.try_get("run_id")?)?,
                    created_at: row.try_get("created_ms")?,
                    settled_at: row.try_get("settled_ms")?,
                })
            })
            .collect()
    }
}
