//! `app.gate_delegations`: who answers in whose place, and until when. Never rewritten: an end is a row.

use cofferdam_contracts::delegation::DelegationRow;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{GroupId, TenantId};
use cofferdam_contracts::tally::{ActiveDelegation, Person};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{LedgerError, OpResult, Result, id};
use crate::families::Delegations;
use crate::keys::roles_of;

/// A delegation to be made.
#[derive(Debug, Clone)]
pub struct NewDelegation<'a> {
    /// Tenant of the giver; the other key must belong to it too.
    pub tenant: &'a TenantId,
    /// Who gives it.
    pub from: &'a str,
    /// Who gets it.
    pub to: &'a str,
    /// Only for gates of this group.
    pub group: Option<&'a GroupId>,
    /// For how long, in seconds.
    pub ttl_s: u32,
    /// Reason, for the record.
    pub reason: &'a str,
}

const ROW: &str =
    "SELECT d.id, d.from_key, d.to_key, d.group_name, d.reason, app.ms(d.created_at) AS created,
    app.ms(d.expires_at) AS expires, app.ms(e.ended_at) AS ended
  FROM app.gate_delegations d LEFT JOIN app.gate_delegation_ends e ON e.delegation_id = d.id";

impl Delegations<'_> {
    /// Delegates. The other key must work in the same tenant, and the group be the giver's own.
    pub async fn create(self, new: &NewDelegation<'_>) -> OpResult<DelegationRow> {
        let mut tx = self.pool().begin().await?;
        let known: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.api_keys WHERE key_id = $1 AND tenant_id = $2 AND revoked_at IS NULL)",
        )
        .bind(new.to)
        .bind(new.tenant.as_str())
        .fetch_one(&mut *tx)
        .await?;
        if !known {
            let why = "key not found: name the other key by its id, which `cofferdam key ls` lists beside its label";
            return Err(Refusal::new(ErrorCode::NotFound, why).into());
        }
        if let Some(group) = new.group
            && !groups_of(&mut tx, new.from).await?.contains(group)
        {
            let why = format!("the key is not in the group {group}");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        let made: Option<i64> = sqlx::query_scalar(
            "INSERT INTO app.gate_delegations (tenant_id, from_key, to_key, group_name, reason, expires_at)
             SELECT $1, key_id, $3, $4, $5, clock_timestamp() + make_interval(secs => $6)
               FROM app.api_keys WHERE key_id = $2 RETURNING id",
        )
        .bind(new.tenant.as_str())
        .bind(new.from)
        .bind(new.to)
        .bind(new.group.map(GroupId::as_str))
        .bind(new.reason)
        .bind(i32::try_from(new.ttl_s).unwrap_or(i32::MAX))
        .fetch_optional(&mut *tx)
        .await?;
        // A listener without keys has nobody who could be stood in for.
        let made = made.ok_or_else(|| Refusal::not_found("key"))?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!("{ROW} WHERE d.id = $1")))
            .bind(made)
            .fetch_one(&mut *tx)
            .await?;
        let row = row_of(&row)?;
        tx.commit().await?;
        Ok(row)
    }

    /// Ends a delegation early. `anybody`: an admin ends those of others too.
    pub async fn end(
        self,
        tenant: &TenantId,
        delegation: i64,
        key_id: &str,
        anybody: bool,
    ) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        let found: Option<bool> = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.gate_delegation_ends e WHERE e.delegation_id = d.id)
               FROM app.gate_delegations d
              WHERE d.id = $1 AND d.tenant_id = $2 AND ($4 OR d.from_key = $3) FOR UPDATE",
        )
        .bind(delegation)
        .bind(tenant.as_str())
        .bind(key_id)
        .bind(anybody)
        .fetch_optional(&mut *tx)
        .await?;
        match found {
            None => return Err(Refusal::not_found("delegation").into()),
            Some(true) => {
                return Err(Refusal::new(ErrorCode::StateConflict, "it has ended already").into());
            }
            Some(false) => {}
        }
        sqlx::query("INSERT INTO app.gate_delegation_ends (delegation_id, key_id) VALUES ($1, $2)")
            .bind(delegation)
            .bind(key_id)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    /// A tenant's delegations, newest first.
    pub async fn list(self, tenant: &TenantId) -> Result<Vec<DelegationRow>> {
        let text = format!("{ROW} WHERE d.tenant_id = $1 ORDER BY d.id DESC LIMIT 500");
        let rows = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(tenant.as_str())
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(row_of).collect()
    }
}

fn row_of(row: &PgRow) -> Result<DelegationRow> {
    Ok(DelegationRow {
        id: row.try_get("id")?,
        from: row.try_get("from_key")?,
        to: row.try_get("to_key")?,
        group: row
            .try_get::<Option<String>, _>("group_name")?
            .map(|g| id("gate_delegations.group_name", &g))
            .transpose()?,
        reason: row.try_get("reason")?,
        created_at: row.try_get("created")?,
        expires_at: row.try_get("expires")?,
        ended_at: row.try_get("ended")?,
    })
}

/// The groups of a key now; none where there is no such key.
pub(super) async fn groups_of(conn: &mut sqlx::PgConnection, key_id: &str) -> Result<Vec<GroupId>> {
    let groups: Option<Vec<String>> = sqlx::query_scalar(
        "SELECT groups FROM app.api_keys WHERE key_id = $1 AND revoked_at IS NULL",
    )
    .bind(key_id)
    .fetch_optional(conn)
    .await?;
    parsed(&groups.unwrap_or_default())
}

/// Whoever made the reply link of this dedupe key, while that key works.
pub(super) async fn link_maker(
    conn: &mut sqlx::PgConnection,
    dedupe_key: &str,
) -> Result<Option<Person>> {
    let row = sqlx::query(
        "SELECT k.key_id, k.roles, k.groups
           FROM app.reply_links l JOIN app.api_keys k ON k.key_id = l.key_id
          WHERE l.id = substr($1, 6) AND $1 LIKE 'link:%' AND k.revoked_at IS NULL",
    )
    .bind(dedupe_key)
    .fetch_optional(conn)
    .await?;
    row.as_ref().map(person).transpose()
}

/// The delegations that a key holds now.
pub(super) async fn delegated_to(
    conn: &mut sqlx::PgConnection,
    tenant: &TenantId,
    key_id: &str,
) -> Result<Vec<ActiveDelegation>> {
    let rows = sqlx::query(
        "SELECT d.id, d.group_name, k.key_id, k.roles, k.groups
           FROM app.gate_delegations d JOIN app.api_keys k ON k.key_id = d.from_key
          WHERE d.to_key = $1 AND d.tenant_id = $2 AND d.expires_at > clock_timestamp() AND k.revoked_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM app.gate_delegation_ends e WHERE e.delegation_id = d.id)
          ORDER BY d.id LIMIT 500",
    )
    .bind(key_id)
    .bind(tenant.as_str())
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(ActiveDelegation {
                id: row.try_get("id")?,
                from: person(row)?,
                group: row
                    .try_get::<Option<String>, _>("group_name")?
                    .map(|g| id("gate_delegations.group_name", &g))
                    .transpose()?,
            })
        })
        .collect()
}

fn person(row: &PgRow) -> Result<Person> {
    Ok(Person {
        key_id: row.try_get("key_id")?,
        roles: roles_of(row)?,
        groups: parsed(&row.try_get::<Vec<String>, _>("groups")?)?,
    })
}

fn parsed(groups: &[String]) -> Result<Vec<GroupId>> {
    groups
        .iter()
        .map(|g| {
            GroupId::parse(g)
                .map_err(|e| LedgerError::Row { what: "api_keys.groups", why: e.to_string() })
        })
        .collect()
}
