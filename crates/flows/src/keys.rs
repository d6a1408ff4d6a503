//! API keys: made, shown once, revoked.

use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{GroupId, TenantId};
use cofferdam_contracts::key::{KeyFormat, KeyRequest, KeyResponse, KeyRow, Role};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
pub use cofferdam_ledger::keys::DEFAULT_TENANT;
use cofferdam_ledger::keys::{KEYLESS, NewKey, Principal};
use serde_json::json;

use crate::error::{Error, Result};

/// Bytes of a secret: 256 bits, so that its plain hash is safe at rest.
const SECRET_BYTES: usize = 32;

/// Bytes of a secret as clients of E2B ask for: 160 bits, still beyond guessing.
const E2B_BYTES: usize = 20;

/// Who makes the state directory's own key: whoever is root here, without a key.
const HOST: &str = "host";

/// Stands for callers of routes that are open to everybody, such as a reply link.
const ANYBODY: &str = "no-key";

/// A caller without a key, where none is asked for (`--no-auth`): submitter and approver of the default tenant.
///
/// # Errors
/// The default tenant's name is not one.
pub fn keyless_caller() -> Result<Principal, Refusal> {
    keyless(KEYLESS, vec![Role::Submitter, Role::Approver])
}

/// A caller of a route that is open to everybody: without a role, in the default tenant.
///
/// # Errors
/// The default tenant's name is not one.
pub fn anybody() -> Result<Principal, Refusal> {
    keyless(ANYBODY, Vec::new())
}

fn keyless(key_id: &str, roles: Vec<Role>) -> Result<Principal, Refusal> {
    let tenant = TenantId::parse(DEFAULT_TENANT)
        .map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
    Ok(Principal { key_id: key_id.into(), tenant, roles })
}

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

/// What a key is made with.
struct KeyTerms<'a> {
    tenant: &'a TenantId,
    roles: &'a [Role],
    groups: &'a [GroupId],
    label: Option<&'a str>,
    format: KeyFormat,
    /// The state directory whose own it is.
    state_dir: Option<&'a str>,
}

/// API keys of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Keys {
    ledger: Ledger,
}

impl Keys {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self { ledger: ledger.clone() }
    }

    /// Makes a key; only its hash is kept.
    pub async fn create(&self, who: &Principal, request: &KeyRequest) -> Result<KeyResponse> {
        let mut roles = request.roles.clone();
        roles.sort_unstable();
        roles.dedup();
        let tenant = request.tenant.clone().unwrap_or_else(|| who.tenant.clone());
        within_reach(who, &tenant)?;
        let mut groups = request.groups.clone();
        groups.sort_unstable();
        groups.dedup();
        let label = request.label.as_deref();
        let terms = KeyTerms {
            tenant: &tenant,
            roles: &roles,
            groups: &groups,
            label,
            format: request.format,
            state_dir: None,
        };
        self.mint(&who.key_id, &terms).await
    }

    /// The keys of a tenant: the caller's, where none is named.
    pub async fn list(&self, who: &Principal, tenant: Option<&TenantId>) -> Result<Vec<KeyRow>> {
        let tenant = tenant.unwrap_or(&who.tenant);
        within_reach(who, tenant)?;
        Ok(self.ledger.keys().list(Some(tenant)).await?)
    }

    /// Every tenant's keys, for the host's own admin.
    pub async fn list_all(&self, who: &Principal) -> Result<Vec<KeyRow>> {
        if !who.is_host_admin() {
            return Err(foreign().into());
        }
        Ok(self.ledger.keys().list(None).await?)
    }

    /// Revokes a key of a tenant: of the caller's, where none is named.
    pub async fn revoke(
        &self,
        who: &Principal,
        tenant: Option<&TenantId>,
        key_id: &str,
    ) -> Result<()> {
        let tenant = tenant.unwrap_or(&who.tenant);
        within_reach(who, tenant)?;
        let audit = Audit { tenant, ..Audit::by(who, "key.revoke", key_id) };
        if !self.ledger.keys().revoke(tenant, key_id, &audit).await? {
            return Err(Refusal::not_found("key").into());
        }
        Ok(())
    }

    /// A fresh admin key for this state directory, for instance after its file was lost; the one that it had is revoked.
    pub async fn local(&self, state_dir: Option<&str>) -> Result<KeyResponse> {
        let tenant = TenantId::parse(DEFAULT_TENANT).map_err(Error::corrupt("id"))?;
        let terms = KeyTerms {
            tenant: &tenant,
            roles: &[Role::Admin],
            groups: &[],
            label: Some("state directory"),
            format: KeyFormat::Cofferdam,
            state_dir,
        };
        self.mint(HOST, &terms).await
    }

    async fn mint(&self, by: &str, terms: &KeyTerms<'_>) -> Result<KeyResponse> {
        let KeyTerms { tenant, roles, groups, label, format, state_dir } = *terms;
        let key = match format {
            KeyFormat::Cofferdam => format!("cfd_{}", secret_hex(SECRET_BYTES)),
            KeyFormat::E2b => format!("e2b_{}", secret_hex(E2B_BYTES)),
        };
        let key_id = format!("k_{}", secret_hex(8));
        let new = NewKey { key_id: &key_id, secret: &key, tenant, roles, groups, label, state_dir };
        let audit = Audit {
            tenant,
            key_id: by,
            actor: by,
            op: "key.create",
            target: &key_id,
            reason: label.unwrap_or(""),
            detail: Some(json!({"roles": roles, "groups": groups})),
        };
        self.ledger.keys().create(&new, &audit).await?;
        Ok(KeyResponse { key_id, key, tenant: tenant.clone(), roles: roles.to_vec() })
    }
}
