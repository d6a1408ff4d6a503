//! `app.egress_policy_snapshots`, and the keys of `app.dynamic_config` that consent to names.

use cofferdam_contracts::egress::{Egress, Entry, Phase};
use cofferdam_contracts::id::{IntentId, RunId, TenantId};
use cofferdam_contracts::policy::{
    EgressSnapshot, MIRRORS, MirrorGrants, PolicySource, allowed_key,
};
use serde_json::Value;
use sqlx::Row;

use crate::error::{Result, id, json, load};
use crate::families::EgressRows;

/// A snapshot to be written with the first tasks of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPolicySnapshot {
    /// Phase of the sandbox that the policies are for: `build` or `exec`.
    pub phase: Phase,
    /// Each distinct policy.
    pub policy: Vec<Egress>,
    /// Who let it be.
    pub source: PolicySource,
    /// The version of the organisation's policy, where that let it be.
    pub policy_version: Option<i32>,
    /// Who approved the gate, is the host's admin or wrote the list; else absent.
    pub approver: Option<String>,
}

/// The organisation's list of names and mirrors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrgPolicy {
    /// Version of the list in `app.dynamic_config`, from 1.
    pub version: i32,
    /// The names and mirrors.
    pub entries: Vec<Entry>,
    /// Who wrote it.
    pub actor: String,
}

/// What a worker compares a task with: a phase's policies, and whether their digest holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhasePolicy {
    /// Phase of the sandbox that the policies are for: `build` or `exec`.
    pub phase: Phase,
    /// Each distinct policy.
    pub policy: Vec<Egress>,
    /// Whether the digest on record is that of the policy on record.
    pub whole: bool,
}

impl EgressRows<'_> {
    /// A run's snapshots, build first.
    pub async fn snapshot_list(self, run: &RunId) -> Result<Vec<EgressSnapshot>> {
        let rows = sqlx::query(
            "SELECT phase, policy, policy_digest, source, policy_key, policy_version, approver, app.ms(created_at) AS at
               FROM app.egress_policy_snapshots WHERE run_id = $1 ORDER BY phase",
        )
        .bind(run.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let text = |column: &'static str| -> Result<Value> {
                    Ok(Value::String(row.try_get(column)?))
                };
                Ok(EgressSnapshot {
                    phase: load("egress_policy_snapshots.phase", text("phase")?)?,
                    policy: load("egress_policy_snapshots.policy", row.try_get("policy")?)?,
                    policy_digest: id(
                        "egress_policy_snapshots.policy_digest",
                        row.try_get("policy_digest")?,
                    )?,
                    source: load("egress_policy_snapshots.source", text("source")?)?,
                    policy_key: row.try_get("policy_key")?,
                    policy_version: row.try_get("policy_version")?,
                    approver: row.try_get("approver")?,
                    created_at: row.try_get("at")?,
                })
            })
            .collect()
    }

    /// The newest list of names that the tenant's tasks may reach in a phase without a gate: its own,
    /// else the host's. A `null` takes a list back.
    pub async fn policy_allowed(
        self,
        tenant: &TenantId,
        phase: Phase,
    ) -> Result<Option<OrgPolicy>> {
        let row = sqlx::query(
            "SELECT c.version, c.value, c.actor FROM (
               SELECT DISTINCT ON (tenant_id) tenant_id, version, value, actor FROM app.dynamic_config
                WHERE key = $1 AND tenant_id IN ($2, '*') ORDER BY tenant_id, version DESC) c
              WHERE c.value <> 'null' ORDER BY (c.tenant_id = $2) DESC LIMIT 1",
        )
        .bind(allowed_key(phase))
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(OrgPolicy {
                version: row.try_get("version")?,
                entries: load("dynamic_config.value", row.try_get("value")?)?,
                actor: row.try_get("actor")?,
            })
        })
        .transpose()
    }

    /// Which tenant may use which mirror: the host's newest word, and no tenant's own.
    pub async fn mirror_grants(self) -> Result<MirrorGrants> {
        let value: Option<Value> = sqlx::query_scalar(
            "SELECT value FROM app.dynamic_config WHERE key = $1 AND tenant_id = '*' ORDER BY version DESC LIMIT 1",
        )
        .bind(MIRRORS)
        .fetch_optional(self.pool())
        .await?;
        match value.filter(|value| !value.is_null()) {
            Some(value) => load("dynamic_config.value", value),
            None => Ok(MirrorGrants::new()),
        }
    }

    /// Whether the host's own admin wrote an intent; one that is not there yet is nobody else's.
    pub async fn is_host_admins(self, intent: &IntentId) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "SELECT coalesce((SELECT app.is_host_admin(i.key_id) FROM app.intents i WHERE i.id = $1), true)",
        )
        .bind(intent.as_str())
        .fetch_one(self.pool())
        .await?)
    }
}

/// The snapshots as one parameter of the statement that queues a run's first tasks.
pub(crate) fn snapshots_json(snapshots: &[NewPolicySnapshot]) -> Result<Value> {
    let rows: Result<Vec<Value>> = snapshots
        .iter()
        .map(|new| {
            let of_org = new.source == PolicySource::OrgPolicy;
            Ok(serde_json::json!({
                "phase": new.phase.as_str(),
                "policy": json("egress_policy_snapshots.policy", &new.policy)?,
                "source": new.source.as_str(),
                "policy_key": of_org.then_some(allowed_key(new.phase)),
                "policy_version": new.policy_version.filter(|_| of_org),
                "approver": new.approver,
            }))
        })
        .collect();
    Ok(Value::Array(rows?))
}
