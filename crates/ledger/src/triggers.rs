//! `app.triggers`: schedules and hooks, each a key's consent to runs of one recipe.

use std::collections::BTreeMap;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, HookAddress, TenantId, TriggerId, TriggerName};
use cofferdam_contracts::recipe::RecipeRef;
use cofferdam_contracts::schedule::ScheduleSpec;
use cofferdam_contracts::trigger::{FiringRow, FiringState, HookSpec, TriggerKind, TriggerState};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{LedgerError, OpResult, Result, id, json, load};
use crate::families::Triggers;
use crate::keys::DEFAULT_TENANT;

/// Schedules of one tenant, and hooks: a look for what is due reads them all.
const MAX_TRIGGERS: i64 = 256;

/// What a trigger fires by.
#[derive(Debug, Clone, PartialEq)]
pub enum TriggerSpec {
    /// It fires at instants of a clock.
    Schedule(ScheduleSpec),
    /// It fires at each delivery that is signed.
    Hook(HookSpec),
}

impl TriggerSpec {
    /// The kind, as its column says it.
    #[must_use]
    pub const fn kind(&self) -> TriggerKind {
        match self {
            Self::Schedule(_) => TriggerKind::Schedule,
            Self::Hook(_) => TriggerKind::Hook,
        }
    }

    fn row(&self) -> Result<Value> {
        match self {
            Self::Schedule(spec) => json("triggers.spec", spec),
            Self::Hook(spec) => json("triggers.spec", spec),
        }
    }
}

/// The next instant of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextInstant {
    /// ms since the epoch.
    pub at_ms: i64,
    /// The same with its jitter: when it fires.
    pub due_ms: i64,
}

/// A trigger to be made.
#[derive(Debug, Clone)]
pub struct NewTrigger<'a> {
    /// New id: `sc_` or `hk_` by its kind, and 32 hex digits.
    pub id: &'a TriggerId,
    /// Its name: one of its kind in the tenant.
    pub name: &'a TriggerName,
    /// Recipe of its runs.
    pub recipe: &'a RecipeRef,
    /// The recipe's content.
    pub recipe_hash: &'a Digest,
    /// What it fires by.
    pub spec: &'a TriggerSpec,
    /// A schedule's first instant.
    pub next: Option<NextInstant>,
}

/// A trigger on record.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// Given by the server; firings name it.
    pub id: TriggerId,
    /// Tenant that owns it, and its runs.
    pub tenant: TenantId,
    /// Given by who added it, one of its kind in the tenant.
    pub name: TriggerName,
    /// Key whose rights its runs have.
    pub key_id: String,
    /// Recipe of its runs.
    pub recipe: RecipeRef,
    /// The recipe's content, as it was consented to.
    pub recipe_hash: Digest,
    /// What it fires by.
    pub spec: TriggerSpec,
    /// Whether it fires.
    pub state: TriggerState,
    /// A schedule's next instant, ms since the epoch.
    pub next_ms: Option<i64>,
    /// Firings on record.
    pub firings: i64,
    /// Deliveries whose signature or time was refused.
    pub unsigned: i64,
    /// ms since the epoch.
    pub created_at: i64,
}

pub(crate) const COLUMNS: &str = "t.id, t.kind, t.tenant_id, t.name, t.key_id, t.recipe_id, t.recipe_v, t.recipe_hash, t.spec, t.state,
    t.next_ms, t.firings, t.unsigned, app.ms(t.created_at) AS created";

pub(crate) fn trigger_of(row: &PgRow) -> Result<Trigger> {
    let kind: String = row.try_get("kind")?;
    let (state, spec): (String, Value) = (row.try_get("state")?, row.try_get("spec")?);
    let spec = match TriggerKind::parse(&kind) {
        Some(TriggerKind::Schedule) => TriggerSpec::Schedule(load("triggers.spec", spec)?),
        Some(TriggerKind::Hook) => TriggerSpec::Hook(load("triggers.spec", spec)?),
        None => return Err(LedgerError::Row { what: "triggers.kind", why: kind }),
    };
    Ok(Trigger {
        id: id("triggers.id", row.try_get("id")?)?,
        tenant: id("triggers.tenant_id", row.try_get("tenant_id")?)?,
        name: id("triggers.name", row.try_get("name")?)?,
        key_id: row.try_get("key_id")?,
        recipe: RecipeRef {
            id: id("triggers.recipe_id", row.try_get("recipe_id")?)?,
            v: row.try_get("recipe_v")?,
        },
        recipe_hash: id("triggers.recipe_hash", row.try_get("recipe_hash")?)?,
        spec,
        state: TriggerState::parse(&state)
            .ok_or(LedgerError::Row { what: "triggers.state", why: state })?,
        next_ms: row.try_get("next_ms")?,
        firings: row.try_get("firings")?,
        unsigned: row.try_get("unsigned")?,
        created_at: row.try_get("created")?,
    })
}

fn firing_of(row: &PgRow) -> Result<FiringRow> {
    let state: String = row.try_get("state")?;
    let run: Option<String> = row.try_get("run_id")?;
    Ok(FiringRow {
        event: row.try_get("event")?,
        seq: row.try_get("seq")?,
        state: FiringState::parse(&state)
            .ok_or(LedgerError::Row { what: "firings.state", why: state })?,
        run_id: run.map(|run| id("firings.run_id", &run)).transpose()?,
        reason: row.try_get("reason")?,
        detail: row.try_get("detail")?,
        created_at: row.try_get("created")?,
    })
}

impl Triggers<'_> {
    /// Makes a trigger with its audit row, unless its tenant has enough of them, or its name is taken.
    pub async fn add(self, new: &NewTrigger<'_>, audit: &Audit<'_>) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        // Two that add at the same time take turns, so that neither passes the bound.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('triggers:' || $1, 0))")
            .bind(audit.tenant.as_str())
            .execute(&mut *tx)
            .await?;
        let kind = new.spec.kind().as_str();
        let made = sqlx::query(
            "INSERT INTO app.triggers (id, kind, tenant_id, name, key_id, recipe_id, recipe_v, recipe_hash, spec, next_ms, due_ms)
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 WHERE
               (SELECT count(*) FROM app.triggers WHERE tenant_id = $3 AND kind = $2 AND state <> 'removed') < $12",
        )
        .bind(new.id.as_str())
        .bind(kind)
        .bind(audit.tenant.as_str())
        .bind(new.name.as_str())
        .bind(audit.key_id)
        .bind(new.recipe.id.as_str())
        .bind(&new.recipe.v)
        .bind(new.recipe_hash.as_str())
        .bind(new.spec.row()?)
        .bind(new.next.map(|next| next.at_ms))
        .bind(new.next.map(|next| next.due_ms))
        .bind(MAX_TRIGGERS)
        .execute(&mut *tx)
        .await;
        let made = match made.map_err(LedgerError::from) {
            Err(e) if e.is_unique_violation() => {
                let why = format!(
                    "a {kind} named {} exists: remove it first, or choose another name",
                    new.name
                );
                return Err(Refusal::new(ErrorCode::StateConflict, why).into());
            }
            made => made?,
        };
        if made.rows_affected() == 0 {
            let why = format!("a tenant has at most {MAX_TRIGGERS} {kind}s: remove one first");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// A tenant's triggers of a kind that are not removed, by name.
    pub async fn list(self, tenant: &TenantId, kind: TriggerKind) -> Result<Vec<Trigger>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM app.triggers t WHERE t.tenant_id = $1 AND t.kind = $2 AND t.state <> 'removed' ORDER BY t.name LIMIT $3"
        )))
        .bind(tenant.as_str())
        .bind(kind.as_str())
        .bind(MAX_TRIGGERS)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(trigger_of).collect()
    }

    /// The hook of an address, if it is not removed: its name for one of the host's own tenant, and for any its name with a part of
    /// its id.
    pub async fn by_address(self, address: &HookAddress) -> Result<Option<Trigger>> {
        let (name, part) = address.as_str().rsplit_once('-').unwrap_or_default();
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM app.triggers t WHERE t.kind = 'hook' AND t.state <> 'removed'
                AND (t.tenant_id = $1 AND t.name = $2 OR t.name = $3 AND substr(t.id, 4, 16) = $4)
              ORDER BY t.name = $2 LIMIT 1"
        )))
        .bind(DEFAULT_TENANT)
        .bind(address.as_str())
        .bind(name)
        .bind(part)
        .fetch_optional(self.pool())
        .await?;
        row.as_ref().map(trigger_of).transpose()
    }

    /// A tenant's trigger by its name, if it is not removed.
    pub async fn by_name(
        self,
        tenant: &TenantId,
        kind: TriggerKind,
        name: &TriggerName,
    ) -> Result<Option<Trigger>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM app.triggers t
              WHERE t.kind = $2 AND t.name = $3 AND t.state <> 'removed' AND t.tenant_id = $1"
        )))
        .bind(tenant.as_str())
        .bind(kind.as_str())
        .bind(name.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.as_ref().map(trigger_of).transpose()
    }

    /// Moves a trigger to another state, with its audit row; what waits of it is skipped with the state as its reason. `false` where
    /// it was in that state, or removed, already.
    pub async fn state_set(
        self,
        trigger: &TriggerId,
        state: TriggerState,
        next: Option<NextInstant>,
        audit: &Audit<'_>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let moved = sqlx::query(
            "UPDATE app.triggers SET state = $2, next_ms = $3, due_ms = $4
              WHERE id = $1 AND state <> $2 AND state <> 'removed'",
        )
        .bind(trigger.as_str())
        .bind(state.as_str())
        .bind(next.map(|next| next.at_ms))
        .bind(next.map(|next| next.due_ms))
        .execute(&mut *tx)
        .await?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query(
            "UPDATE app.firings SET state = 'skipped', reason = $2, settled_at = clock_timestamp()
              WHERE trigger_id = $1 AND state = 'pending' AND $2 <> 'active'",
        )
        .bind(trigger.as_str())
        .bind(state.as_str())
        .execute(&mut *tx)
        .await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// A trigger's firings, newest first.
    pub async fn firings(self, trigger: &TriggerId, limit: i64) -> Result<Vec<FiringRow>> {
        let rows = sqlx::query(
            "SELECT event, seq, state, run_id, reason, detail, app.ms(created_at) AS created
               FROM app.firings WHERE trigger_id = $1 ORDER BY seq DESC LIMIT $2",
        )
        .bind(trigger.as_str())
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(firing_of).collect()
    }

    /// The newest firing of each of these triggers that has one.
    pub async fn newest(self, triggers: &[&str]) -> Result<BTreeMap<String, FiringRow>> {
        let rows = sqlx::query(
            "SELECT t.id, f.event, f.seq, f.state, f.run_id, f.reason, f.detail, app.ms(f.created_at) AS created
               FROM unnest($1::text[]) AS t(id)
              CROSS JOIN LATERAL (SELECT * FROM app.firings WHERE trigger_id = t.id ORDER BY seq DESC LIMIT 1) f",
        )
        .bind(triggers)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(|row| Ok((row.try_get("id")?, firing_of(row)?))).collect()
    }

    /// Counts a delivery whose signature or time was refused: nothing else of it is kept.
    pub async fn unsigned(self, trigger: &TriggerId) -> Result<()> {
        sqlx::query("UPDATE app.triggers SET unsigned = unsigned + 1 WHERE id = $1")
            .bind(trigger.as_str())
            .execute(self.pool())
            .await?;
        Ok(())
    }
}
