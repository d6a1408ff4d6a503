//! `app.dynamic_config`: append-only; a change is one more version, and its audit row goes with it.

use cofferdam_contracts::config::{ConfigKey, ConfigRow, ConfigScope, ConfigVersion, WriteScope};
use cofferdam_contracts::id::TenantId;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{self, Audit};
use crate::error::{LedgerError, Result, id, load};
use crate::families::Config;

/// Whom the host's own value belongs to: no tenant's id has this shape.
const HOST: &str = "*";

/// The keys of this version, as a parameter.
pub(crate) fn known() -> Vec<String> {
    ConfigKey::all().map(|key| key.to_string()).collect()
}

/// SQL: the newest version of every key in one value, for a statement that reads more.
pub(crate) fn rows_json(host: &str, tenant: &str, keys: &str) -> String {
    format!(
        "(SELECT jsonb_agg(jsonb_build_array(c.tenant_id, c.key, c.version, c.value)) FROM (
            SELECT DISTINCT ON (tenant_id, key) tenant_id, key, version, value
              FROM app.dynamic_config WHERE tenant_id IN ({host}, {tenant}) AND key = ANY({keys})
             ORDER BY tenant_id, key, version DESC) c)"
    )
}

/// Reads [`rows_json`] back.
pub(crate) fn rows_of(value: Option<Value>) -> Result<Vec<ConfigRow>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let rows: Vec<(String, String, u32, Value)> = load("dynamic_config", value)?;
    rows.into_iter()
        .map(|(owner, key, version, value)| {
            let key = key
                .parse()
                .map_err(|_| LedgerError::Row { what: "dynamic_config.key", why: key.clone() })?;
            let scope = if owner == HOST { ConfigScope::Global } else { ConfigScope::Tenant };
            Ok(ConfigRow { key, scope, version, value })
        })
        .collect()
}

/// Whom the host's own value belongs to.
pub(crate) const fn host() -> &'static str {
    HOST
}

/// One more version.
#[derive(Debug, Clone)]
pub struct NewConfig<'a> {
    /// Owner: the host, or one tenant.
    pub scope: WriteScope,
    /// Setting to change, from `dynamic_config.key`.
    pub key: ConfigKey,
    /// The newest version, as the writer knows it.
    pub expected: u32,
    /// Value to store; the caller has checked it against the setting's rules.
    pub value: &'a Value,
}

fn scope_of(row: &PgRow) -> Result<ConfigScope> {
    let owner: String = row.try_get("tenant_id")?;
    Ok(if owner == HOST { ConfigScope::Global } else { ConfigScope::Tenant })
}

fn key_of(row: &PgRow) -> Result<ConfigKey> {
    let text: String = row.try_get("key")?;
    text.parse().map_err(|_| LedgerError::Row { what: "dynamic_config.key", why: text.clone() })
}

fn version_of(row: &PgRow) -> Result<u32> {
    let version: i32 = row.try_get("version")?;
    u32::try_from(version)
        .map_err(|e| LedgerError::Row { what: "dynamic_config.version", why: e.to_string() })
}

impl Config<'_> {
    /// The newest version of every key, of the host and of the tenant. Keys that this version does
    /// not know are a newer one's, and none of its business.
    pub async fn rows(self, tenant: &TenantId) -> Result<Vec<ConfigRow>> {
        let rows = sqlx::query(
            "SELECT DISTINCT ON (tenant_id, key) tenant_id, key, version, value
               FROM app.dynamic_config WHERE tenant_id IN ($1, $2) AND key = ANY($3)
              ORDER BY tenant_id, key, version DESC",
        )
        .bind(HOST)
        .bind(tenant.as_str())
        .bind(known())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ConfigRow {
                    key: key_of(row)?,
                    scope: scope_of(row)?,
                    version: version_of(row)?,
                    value: row.try_get("value")?,
                })
            })
            .collect()
    }

    /// A key's versions, newest first. Who wrote the host's is only for the host's own tenant.
    pub async fn history(
        self,
        tenant: &TenantId,
        key: ConfigKey,
        limit: i64,
    ) -> Result<Vec<ConfigVersion>> {
        let rows = sqlx::query(
            "SELECT c.tenant_id, c.key, c.version, c.value, app.ms(c.created_at) AS at,
                    CASE WHEN c.tenant_id = $2 OR EXISTS (
                      SELECT 1 FROM app.api_keys k WHERE k.key_id = c.actor AND k.tenant_id = $2)
                    THEN c.actor ELSE 'host' END AS actor
               FROM app.dynamic_config c WHERE c.tenant_id IN ($1, $2) AND c.key = $3
              ORDER BY c.created_at DESC, c.version DESC LIMIT $4",
        )
        .bind(HOST)
        .bind(tenant.as_str())
        .bind(key.to_string())
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ConfigVersion {
                    key: key_of(row)?,
                    scope: scope_of(row)?,
                    version: version_of(row)?,
                    value: row.try_get("value")?,
                    actor: row.try_get("actor")?,
                    created_at: row.try_get("at")?,
                })
            })
            .collect()
    }

    /// Appends the next version and its audit, together; `false` where the newest version is another
    /// than expected. Two writers at once: the primary key lets one through.
    pub async fn put(self, new: &NewConfig<'_>, entry: &Audit<'_>) -> Result<bool> {
        let owner = match new.scope {
            WriteScope::Tenant => entry.tenant.as_str(),
            WriteScope::Global => HOST,
        };
        let expected: i32 = id("dynamic_config.version", &new.expected.to_string())?;
        let mut tx = self.pool().begin().await?;
        let written = sqlx::query(
            "INSERT INTO app.dynamic_config (tenant_id, key, version, value, actor)
             SELECT $1, $2, $3 + 1, $4, $5
              WHERE $3 = (SELECT coalesce(max(version), 0) FROM app.dynamic_config
                           WHERE tenant_id = $1 AND key = $2)
             ON CONFLICT DO NOTHING",
        )
        .bind(owner)
        .bind(new.key.to_string())
        .bind(expected)
        .bind(new.value)
        .bind(entry.key_id)
        .execute(&mut *tx)
        .await?;
        if written.rows_affected() != 1 {
            return Ok(false);
        }
        audit::append(&mut tx, entry).await?;
        tx.commit().await?;
        Ok(true)
    }
}
