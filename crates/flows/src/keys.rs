//! API keys: made, shown once, revoked.

use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{GroupId, TenantId};
use cofferdam_contracts::key::{KeyCreated, KeyRequest, KeyRow, Role};
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::audit::Audit;
pub use cofferdam_ledger::keys::DEFAULT_TENANT;
use cofferdam_ledger::keys::Principal;
use serde_json::json;

use crate::Flows;

/// Bytes of a secret: 256 bits, so that its plain hash is safe at rest.
const SECRET_BYTES: usize = 32;

fn foreign() -> Refusal {
    Refusal::new(ErrorCode::Forbidden, "another tenant's keys need the host's admin key")
}

/// The host's own admin makes and ends tenants; a tenant's admin stays in its tenant.
fn within_reach(who: &Principal, tenant: &TenantId) -> Result<(), Refusal> {
    match *tenant == who.tenant || who.is_host_admin() {
        true => Ok(()),
        false => Err(foreign()),
    }
}

impl Flows {
    /// Makes a key; only its hash is kept.
    pub async fn key_create(
        &self,
        who: &Principal,
        request: &KeyRequest,
    ) -> Result<KeyCreated, LedgerError> {
        let mut roles = request.roles.clone();
        roles.sort_unstable();
        roles.dedup();
        let tenant = request.tenant.clone().unwrap_or_else(|| who.tenant.clone());
        within_reach(who, &tenant)?;
        let mut groups = request.groups.clone();
        groups.sort_unstable();
        groups.dedup();
        let created = self.key_mint(&tenant, &roles, &groups, request.label.as_deref()).await?;
        self.ledger
            .audit_append(&Audit {
                tenant: &tenant,
                reason: request.label.as_deref().unwrap_or(""),
                detail: Some(json!({"roles": roles, "groups": groups})),
                ..Audit::by(who, "key.create", &created.key_id)
            })
            .await?;
        Ok(created)
    }

    /// The keys of a tenant: the caller's, where none is named.
    pub async fn key_list(
        &self,
        who: &Principal,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<KeyRow>, LedgerError> {
        let tenant = tenant.unwrap_or(&who.tenant);
        within_reach(who, tenant)?;
        self.ledger.key_list(Some(tenant)).await
    }

    /// Every tenant's keys, for the host's own admin.
    pub async fn key_list_all(&self, who: &Principal) -> Result<Vec<KeyRow>, LedgerError> {
        if !who.is_host_admin() {
            return Err(foreign().into());
        }
        self.ledger.key_list(None).await
    }

    /// Revokes a key of a tenant: of the caller's, where none is named.
    pub async fn key_revoke(
        &self,
        who: &Principal,
        tenant: Option<&TenantId>,
        key_id: &str,
    ) -> Result<(), LedgerError> {
        let tenant = tenant.unwrap_or(&who.tenant);
        within_reach(who, tenant)?;
        if !self.ledger.key_revoke(tenant, key_id).await? {
            return Err(Refusal::not_found("key").into());
        }
        self.ledger.audit_append(&Audit { tenant, ..Audit::by(who, "key.revoke", key_id) }).await
    }

    /// A fresh admin key for this host's state directory, for instance after its file was lost.
    pub async fn key_local(&self) -> Result<KeyCreated, LedgerError> {
        let tenant = TenantId::parse(DEFAULT_TENANT)
            .map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
        self.key_mint(&tenant, &[Role::Admin], &[], Some("state directory")).await
    }

    async fn key_mint(
        &self,
        tenant: &TenantId,
        roles: &[Role],
        groups: &[GroupId],
        label: Option<&str>,
    ) -> Result<KeyCreated, LedgerError> {
        let key = format!("cfd_{}", secret_hex(SECRET_BYTES));
        let key_id = format!("k_{}", secret_hex(8));
        self.ledger.key_create(&key_id, &key, tenant, roles, groups, label).await?;
        Ok(KeyCreated { key_id, key, tenant: tenant.clone(), roles: roles.to_vec() })
    }
}
