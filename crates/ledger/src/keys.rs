//! `app.api_keys`: hashed, belonging to a tenant, carrying roles.

use std::collections::BTreeSet;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{GroupId, TenantId};
use cofferdam_contracts::key::{KeyRow, Role};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{LedgerError, Result, id};
use crate::families::Keys;

/// The tenant of the host's own keys, the first one's among them.
pub const DEFAULT_TENANT: &str = "default";

/// Stands for who reaches a listener that asks for no key.
pub const KEYLESS: &str = "no-auth";

/// Who is asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Id of the key as rows have it; `link:NAME` for a reply link.
    pub key_id: String,
    /// Tenant that the key belongs to; `default` has the host's own keys.
    pub tenant: TenantId,
    /// Roles of the key; `admin` includes all others.
    pub roles: Vec<Role>,
}

impl Principal {
    /// Whether it may act as `role`; an admin may act as any.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role) || self.roles.contains(&Role::Admin)
    }

    /// Whether it is the host's own admin, whose key is worth as much as the host's root. In SQL, of
    /// whoever wrote a row: `app.is_host_admin`.
    #[must_use]
    pub fn is_host_admin(&self) -> bool {
        self.tenant.as_str() == DEFAULT_TENANT && self.roles.contains(&Role::Admin)
    }
}

/// A key to be stored.
#[derive(Debug, Clone, Copy)]
pub struct NewKey<'a> {
    /// Public id of the key in rows and lists: `k_` and 16 hex digits.
    pub key_id: &'a str,
    /// Only its hash is kept.
    pub secret: &'a str,
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// What it may do.
    pub roles: &'a [Role],
    /// Which gates may ask it by group.
    pub groups: &'a [GroupId],
    /// Note that tells people whose or what the key is; absent where none was given.
    pub label: Option<&'a str>,
    /// The state directory whose admin key it is: it takes the place of the one that this directory had.
    pub state_dir: Option<&'a str>,
}

pub(crate) fn roles_of(row: &PgRow) -> Result<Vec<Role>> {
    row.try_get::<Vec<String>, _>("roles")?
        .iter()
        .map(|text| {
            Role::parse(text)
                .ok_or_else(|| LedgerError::Row { what: "api_keys.roles", why: text.clone() })
        })
        .collect()
}

fn principal_of(row: &PgRow) -> Result<Principal> {
    Ok(Principal {
        key_id: row.try_get("key_id")?,
        tenant: id("api_keys.tenant_id", row.try_get("tenant_id")?)?,
        roles: roles_of(row)?,
    })
}

impl Keys<'_> {
    /// Stores a key by its hash, with its audit row. One of a state directory revokes, in the same transaction, what
    /// that directory had.
    pub async fn create(self, new: &NewKey<'_>, audit: &Audit<'_>) -> Result<()> {
        let groups: Vec<&str> = new.groups.iter().map(GroupId::as_str).collect();
        let roles: Vec<&str> = new.roles.iter().map(|r| r.as_str()).collect();
        let mut tx = self.pool().begin().await?;
        if let Some(state_dir) = new.state_dir {
            let lost: Vec<String> = sqlx::query_scalar(
                "UPDATE app.api_keys SET revoked_at = clock_timestamp()
                  WHERE state_dir = $1 AND revoked_at IS NULL RETURNING key_id",
            )
            .bind(state_dir)
            .fetch_all(&mut *tx)
            .await?;
            for key in &lost {
                let reason = "its state directory has another one";
                let revoked =
                    Audit { op: "key.revoke", target: key, reason, detail: None, ..*audit };
                append(&mut tx, &revoked).await?;
            }
        }
        sqlx::query(
            "INSERT INTO app.api_keys (key_id, key_hash, tenant_id, roles, label, groups, state_dir)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(new.key_id)
        .bind(digest_bytes(new.secret.as_bytes()).as_str())
        .bind(new.tenant.as_str())
        .bind(&roles)
        .bind(new.label)
        .bind(&groups)
        .bind(new.state_dir)
        .execute(&mut *tx)
        .await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Who a secret belongs to; `None` where it is unknown or revoked.
    pub async fn principal(self, secret: &str) -> Result<Option<Principal>> {
        let row = sqlx::query(
            "SELECT key_id, tenant_id, roles FROM app.api_keys WHERE key_hash = $1 AND revoked_at IS NULL",
        )
        .bind(digest_bytes(secret.as_bytes()).as_str())
        .fetch_optional(self.pool())
        .await?;
        row.as_ref().map(principal_of).transpose()
    }

    /// Who a key acts for, by its id; `None` where it is unknown or revoked.
    pub async fn by_id(self, key_id: &str) -> Result<Option<Principal>> {
        let row = sqlx::query(
            "SELECT key_id, tenant_id, roles FROM app.api_keys WHERE key_id = $1 AND revoked_at IS NULL",
        )
        .bind(key_id)
        .fetch_optional(self.pool())
        .await?;
        row.as_ref().map(principal_of).transpose()
    }

    /// Says of a key from before keys had one which state directory it belongs to.
    pub async fn of_state_dir(self, key_id: &str, state_dir: &str) -> Result<()> {
        sqlx::query(
            "UPDATE app.api_keys SET state_dir = $2
              WHERE key_id = $1 AND state_dir IS NULL AND revoked_at IS NULL
                AND NOT EXISTS (SELECT 1 FROM app.api_keys WHERE state_dir = $2 AND revoked_at IS NULL)",
        )
        .bind(key_id)
        .bind(state_dir)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Whether a key was revoked, by its id.
    pub async fn is_revoked(self, key_id: &str) -> Result<bool> {
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.api_keys WHERE key_id = $1 AND revoked_at IS NOT NULL)",
        )
        .bind(key_id)
        .fetch_one(self.pool())
        .await?;
        Ok(found)
    }

    /// Those of these keys that were revoked.
    pub async fn revoked_of(self, key_ids: &BTreeSet<String>) -> Result<Vec<String>> {
        let key_ids: Vec<&str> = key_ids.iter().map(String::as_str).collect();
        let found = sqlx::query_scalar(
            "SELECT key_id FROM app.api_keys WHERE key_id = ANY($1) AND revoked_at IS NOT NULL",
        )
        .bind(&key_ids)
        .fetch_all(self.pool())
        .await?;
        Ok(found)
    }

    /// A tenant's keys, or every tenant's, newest first.
    pub async fn list(self, tenant: Option<&TenantId>) -> Result<Vec<KeyRow>> {
        let rows = sqlx::query(
            "SELECT key_id, tenant_id, roles, groups, label, app.ms(created_at) AS created, app.ms(revoked_at) AS revoked
               FROM app.api_keys WHERE tenant_id = $1 OR $1::text IS NULL ORDER BY created_at DESC LIMIT 500",
        )
        .bind(tenant.map(TenantId::as_str))
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(KeyRow {
                    key_id: row.try_get("key_id")?,
                    tenant: id("api_keys.tenant_id", row.try_get("tenant_id")?)?,
                    roles: roles_of(row)?,
                    groups: row
                        .try_get::<Vec<String>, _>("groups")?
                        .iter()
                        .map(|g| id("api_keys.groups", g))
                        .collect::<Result<_>>()?,
                    label: row.try_get("label")?,
                    created_at: row.try_get("created")?,
                    revoked_at: row.try_get("revoked")?,
                })
            })
            .collect()
    }

    /// Revokes a key, with its audit row; `false` where the tenant has no such working key.
    pub async fn revoke(self, tenant: &TenantId, key_id: &str, audit: &Audit<'_>) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let done = sqlx::query(
            "UPDATE app.api_keys SET revoked_at = clock_timestamp()
              WHERE key_id = $1 AND tenant_id = $2 AND revoked_at IS NULL",
        )
        .bind(key_id)
        .bind(tenant.as_str())
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() != 1 {
            return Ok(false);
        }
        append(&mut tx, audit).await?;
        sqlx::query("SELECT pg_notify('cofferdam', 'k:' || $1)")
            .bind(key_id)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(true)
    }
}
