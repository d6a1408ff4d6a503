//! `app.audit`: who did what, append-only.

use cofferdam_contracts::id::TenantId;
use serde_json::Value;

use crate::error::Result;
use crate::keys::Principal;

/// One action by hand.
#[derive(Debug, Clone)]
pub struct Audit<'a> {
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// By which key.
    pub key_id: &'a str,
    /// Who, as they say.
    pub actor: &'a str,
    /// Operation, such as `cancel`.
    pub op: &'a str,
    /// Object of the action, such as a workflow id or the name of a secret.
    pub target: &'a str,
    /// Reason, for the record.
    pub reason: &'a str,
    /// Further facts, by operation.
    pub detail: Option<Value>,
}

impl<'a> Audit<'a> {
    /// What a key did to a target, in nobody else's name and without more to say.
    #[must_use]
    pub fn by(who: &'a Principal, op: &'a str, target: &'a str) -> Self {
        Self {
            tenant: &who.tenant,
            key_id: &who.key_id,
            actor: &who.key_id,
            op,
            target,
            reason: "",
            detail: None,
        }
    }
}

impl Audit<'_> {
    /// Its row, for a statement that takes it whole.
    pub(crate) fn row(&self) -> Value {
        let Self { tenant, key_id, actor, op, target, reason, detail } = self;
        serde_json::json!({
            "tenant_id": tenant, "key_id": key_id, "actor": actor, "op": op, "target": target, "reason": reason,
            "detail": detail,
        })
    }
}

/// Appends in the caller's transaction: an action and its record commit together, so nothing appends on its own.
pub(crate) async fn append(conn: &mut sqlx::PgConnection, entry: &Audit<'_>) -> Result<()> {
    sqlx::query(
        "INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, detail)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(entry.tenant.as_str())
    .bind(entry.key_id)
    .bind(entry.actor)
    .bind(entry.op)
    .bind(entry.target)
    .bind(entry.reason)
    .bind(&entry.detail)
    .execute(conn)
    .await?;
    Ok(())
}
