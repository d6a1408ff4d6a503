//! `app.secrets`, `app.secret_uses`: sealed values by version, and where each was sent.
//!
//! This module holds no key: it stores and gives sealed bytes, which `flows` seals and opens.

use cofferdam_contracts::egress::Name;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, RunId, SandboxId, SecretName, TaskKey, TenantId};
use cofferdam_contracts::sandbox::Phase;
use cofferdam_contracts::secret::{SecretRow, SecretUseRow};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::audit::{Audit, append};
use crate::error::{LedgerError, OpResult, Result, id};
use crate::families::Secrets;

/// Secrets of one tenant: each is one more thing to rotate.
const MAX_SECRETS: i64 = 256;
/// Uses of one run that are listed: each sandbox has a few.
const MAX_USES: i64 = 1_000;

/// A version to be stored.
#[derive(Debug, Clone, Copy)]
pub struct NewSecret<'a> {
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// Name in the tenant: lower-case letters, digits, `_` and `-`, at most 63.
    pub name: &'a SecretName,
    /// The version that was sealed.
    pub version: u32,
    /// The only hosts that may get it; `None` keeps those of the version before.
    pub hosts: Option<&'a [Name]>,
    /// Nonce, ciphertext and tag.
    pub sealed: &'a [u8],
    /// sha256 of the key.
    pub sealed_by: &'a Digest,
}

/// A phase of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunPhase<'a> {
    /// Run whose egress policy is the consent.
    pub run: &'a RunId,
    /// Phase that the secret is used in: `build` or `exec`.
    pub phase: Phase,
}

/// A version in force, sealed.
#[derive(Debug, Clone)]
pub struct SealedSecret {
    /// Number of the version, from 1; each new value gets the next.
    pub version: u32,
    /// The only hosts that may get it.
    pub hosts: Vec<Name>,
    /// Nonce, ciphertext and tag.
    pub sealed: Vec<u8>,
    /// sha256 of the key.
    pub sealed_by: Digest,
    /// Whether a person or the host's admin consented to the run's names in the phase that was asked for.
    pub is_consented: bool,
}

/// Requests of one phase of a sandbox that carried a version to a host.
#[derive(Debug, Clone, Copy)]
pub struct SecretUseRecord<'a> {
    /// The run, whose egress policy of the phase is the consent.
    pub run: &'a RunId,
    /// Task whose sandbox sent the requests.
    pub task: &'a TaskKey,
    /// Sandbox that sent the requests; the secret was added outside it.
    pub sandbox: &'a SandboxId,
    /// In which phase.
    pub phase: Phase,
    /// Name of the secret in its tenant.
    pub name: &'a SecretName,
    /// Version whose value the requests carried, from 1.
    pub version: u32,
    /// Host that received the requests, in lower case.
    pub host: &'a Name,
    /// How many requests, at least one.
    pub count: u64,
}

fn number(row: &PgRow, column: &'static str) -> Result<u32> {
    let number: i32 = row.try_get(column)?;
    u32::try_from(number).map_err(|e| LedgerError::Row { what: column, why: e.to_string() })
}

fn name_of(text: &str) -> Result<Name> {
    let fault = || LedgerError::Row { what: "secrets.hosts", why: text.to_owned() };
    Name::parse(text).ok_or_else(fault)
}

fn hosts_of(row: &PgRow) -> Result<Vec<Name>> {
    row.try_get::<Vec<String>, _>("hosts")?.iter().map(|text| name_of(text)).collect()
}

impl Secrets<'_> {
    /// The key that secrets in force are sealed under; `None` where there are none.
    pub async fn sealed_by(self) -> Result<Option<Digest>> {
        let found: Option<String> = sqlx::query_scalar(
            "SELECT sealed_by FROM app.secrets WHERE retired_at IS NULL LIMIT 1",
        )
        .fetch_optional(self.pool())
        .await?;
        found.map(|text| id("secrets.sealed_by", &text)).transpose()
    }

    /// The version after the newest, and whether one is in force.
    pub async fn next(self, tenant: &TenantId, name: &SecretName) -> Result<(u32, bool)> {
        let row = sqlx::query(
            "SELECT coalesce(max(version), 0) + 1 AS next, coalesce(bool_or(retired_at IS NULL), false) AS held
               FROM app.secrets WHERE tenant_id = $1 AND name = $2",
        )
        .bind(tenant.as_str())
        .bind(name.as_str())
        .fetch_one(self.pool())
        .await?;
        Ok((number(&row, "next")?, row.try_get("held")?))
    }

    /// Stores a version and retires the one before, whose bytes go. `false`: another version came first.
    pub async fn put(self, new: &NewSecret<'_>, audit: &Audit<'_>) -> OpResult<bool> {
        let mut tx = self.pool().begin().await?;
        // Writers take turns, so that a tenant passes no bound and no second key comes into use.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('cofferdam.secrets', 0))")
            .execute(&mut *tx)
            .await?;
        admit(&mut tx, new).await?;
        let before: Option<Vec<String>> = sqlx::query_scalar(
            "UPDATE app.secrets SET sealed = NULL, retired_at = clock_timestamp()
              WHERE tenant_id = $1 AND name = $2 AND retired_at IS NULL RETURNING hosts",
        )
        .bind(new.tenant.as_str())
        .bind(new.name.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let given = |hosts: &[Name]| hosts.iter().map(|host| host.as_str().to_owned()).collect();
        let hosts: Vec<String> = new.hosts.map(given).or(before).unwrap_or_default();
        let made = sqlx::query(
            "INSERT INTO app.secrets (tenant_id, name, version, hosts, sealed, sealed_by, key_id)
             SELECT $1, $2, $3, $4, $5, $6, $7
              WHERE $3 = (SELECT coalesce(max(version), 0) + 1 FROM app.secrets WHERE tenant_id = $1 AND name = $2)",
        )
        .bind(new.tenant.as_str())
        .bind(new.name.as_str())
        .bind(i32::try_from(new.version).unwrap_or(i32::MAX))
        .bind(&hosts)
        .bind(new.sealed)
        .bind(new.sealed_by.as_str())
        .bind(audit.key_id)
        .execute(&mut *tx)
        .await?;
        if made.rows_affected() == 0 {
            return Ok(false);
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Retires a secret, whose bytes go. `false` where the tenant has no such one.
    pub async fn remove(
        self,
        tenant: &TenantId,
        name: &SecretName,
        audit: &Audit<'_>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done = sqlx::query(
            "UPDATE app.secrets SET sealed = NULL, retired_at = clock_timestamp()
              WHERE tenant_id = $1 AND name = $2 AND retired_at IS NULL",
        )
        .bind(tenant.as_str())
        .bind(name.as_str())
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() != 1 {
            return Ok(false);
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// A tenant's secrets by name, without their values.
    pub async fn list(self, tenant: &TenantId) -> Result<Vec<SecretRow>> {
        let rows = sqlx::query(
            "SELECT name, version, hosts, sealed_by, key_id, app.ms(created_at) AS created
               FROM app.secrets WHERE tenant_id = $1 AND retired_at IS NULL ORDER BY name LIMIT $2",
        )
        .bind(tenant.as_str())
        .bind(MAX_SECRETS)
        .fetch_all(self.pool())
        .await?;
        let one = |row: &PgRow| {
            Ok(SecretRow {
                name: id("secrets.name", row.try_get("name")?)?,
                version: number(row, "version")?,
                hosts: hosts_of(row)?,
                sealed_by: id("secrets.sealed_by", row.try_get("sealed_by")?)?,
                key_id: row.try_get("key_id")?,
                created_at: row.try_get("created")?,
            })
        };
        rows.iter().map(one).collect()
    }

    /// The version in force, sealed; `None` where the tenant has no such secret. `of`: the run and the phase
    /// that want to use it.
    pub async fn sealed(
        self,
        tenant: &TenantId,
        name: &SecretName,
        of: Option<RunPhase<'_>>,
    ) -> Result<Option<SealedSecret>> {
        let row = sqlx::query(
            "SELECT version, hosts, sealed, sealed_by, EXISTS (
                      SELECT 1 FROM app.egress_policy_snapshots s
                       WHERE s.run_id = $3 AND s.phase = $4 AND s.source IN ('gate','host-admin')) AS consented
               FROM app.secrets WHERE tenant_id = $1 AND name = $2 AND retired_at IS NULL",
        )
        .bind(tenant.as_str())
        .bind(name.as_str())
        .bind(of.map(|of| of.run.as_str()))
        .bind(of.map(|of| of.phase.as_str()))
        .fetch_optional(self.pool())
        .await?;
        let one = |row: PgRow| {
            Ok(SealedSecret {
                version: number(&row, "version")?,
                hosts: hosts_of(&row)?,
                sealed: row.try_get("sealed")?,
                sealed_by: id("secrets.sealed_by", row.try_get("sealed_by")?)?,
                is_consented: row.try_get("consented")?,
            })
        };
        row.map(one).transpose()
    }

    /// Counts requests that carry a secret. `false`: the run has no policy of the phase on record.
    pub async fn sent(self, sent: &SecretUseRecord<'_>) -> Result<bool> {
        let done = sqlx::query(
            "INSERT INTO app.secret_uses AS u
               (run_id, task_key, sandbox_id, phase, tenant_id, name, version, host, count)
             SELECT r.id, $2, $3, s.phase, r.tenant_id, $5, $6, $7, $8
               FROM app.runs r JOIN app.egress_policy_snapshots s ON s.run_id = r.id AND s.phase = $4
              WHERE r.id = $1
             ON CONFLICT (sandbox_id, phase, name, version, host)
             DO UPDATE SET count = u.count + excluded.count, last_at = greatest(u.last_at, excluded.last_at)",
        )
        .bind(sent.run.as_str())
        .bind(sent.task.as_str())
        .bind(sent.sandbox.as_str())
        .bind(sent.phase.as_str())
        .bind(sent.name.as_str())
        .bind(i32::try_from(sent.version).unwrap_or(i32::MAX))
        .bind(sent.host.as_str())
        .bind(i64::try_from(sent.count).unwrap_or(i64::MAX))
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Where a run sent secrets, by first use.
    pub async fn uses(self, run: &RunId) -> Result<Vec<SecretUseRow>> {
        let rows = sqlx::query(
            "SELECT sandbox_id, task_key, phase, name, version, host, count,
                    app.ms(first_at) AS first, app.ms(last_at) AS last
               FROM app.secret_uses WHERE run_id = $1 ORDER BY first_at, sandbox_id, name LIMIT $2",
        )
        .bind(run.as_str())
        .bind(MAX_USES)
        .fetch_all(self.pool())
        .await?;
        let phase = |text: String| {
            Phase::parse(&text).ok_or(LedgerError::Row { what: "secret_uses.phase", why: text })
        };
        let one = |row: &PgRow| {
            Ok(SecretUseRow {
                sandbox_id: id("secret_uses.sandbox_id", row.try_get("sandbox_id")?)?,
                task_key: id("secret_uses.task_key", row.try_get("task_key")?)?,
                phase: phase(row.try_get("phase")?)?,
                name: id("secret_uses.name", row.try_get("name")?)?,
                version: number(row, "version")?,
                host: name_of(row.try_get("host")?)?,
                count: u64::try_from(row.try_get::<i64, _>("count")?).unwrap_or(0),
                first_at: row.try_get("first")?,
                last_at: row.try_get("last")?,
            })
        };
        rows.iter().map(one).collect()
    }
}

/// Refuses a secret beyond the bound, and one that is sealed under a second key.
async fn admit(tx: &mut PgConnection, new: &NewSecret<'_>) -> OpResult<()> {
    let row = sqlx::query(
        "SELECT count(*) FILTER (WHERE tenant_id = $1 AND name <> $2) AS others,
                count(*) FILTER (WHERE sealed_by <> $3) AS elsewhere
           FROM app.secrets WHERE retired_at IS NULL",
    )
    .bind(new.tenant.as_str())
    .bind(new.name.as_str())
    .bind(new.sealed_by.as_str())
    .fetch_one(tx)
    .await?;
    if row.try_get::<i64, _>("others")? >= MAX_SECRETS {
        let why = format!("a tenant has at most {MAX_SECRETS} secrets: remove one first");
        return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
    }
    if row.try_get::<i64, _>("elsewhere")? > 0 {
        let why = "this host's secrets key is not the one that secrets are sealed under: give every host the same \
                   secrets.key";
        return Err(Refusal::new(ErrorCode::StateConflict, why).into());
    }
    Ok(())
}
