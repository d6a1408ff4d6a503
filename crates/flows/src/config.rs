//! Configuration: read, changed, and resolved for a plan.

use cofferdam_contracts::config::{
    self, ConfigEntry, ConfigKey, ConfigPut, ConfigRow, ConfigScope, ConfigVersion, WriteScope,
};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::floor::{check_own, classes_seen_by};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::image_reference::registries_seen_by;
use cofferdam_contracts::key::Role;
use cofferdam_contracts::policy::grants_seen_by;
use cofferdam_contracts::profile::{Settings, hosts_quota};
use cofferdam_contracts::quota::TenantQuotas;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::config::NewConfig;
use cofferdam_ledger::keys::{DEFAULT_TENANT, Principal};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The table that a tenant's plans are compiled with now.
///
/// # Errors
/// The ledger does not answer, or a row does not hold together.
pub async fn settings(ledger: &Ledger, tenant: &TenantId) -> Result<Settings> {
    table(&ledger.config().rows(tenant).await?, tenant)
}

/// The table of rows that are read already.
pub(crate) fn table(rows: &[ConfigRow], tenant: &TenantId) -> Result<Settings> {
    config::settings(rows, tenant).map_err(Error::corrupt("dynamic_config.value"))
}

/// A value as a tenant may see it: what names tenants is shown whole to the host's own alone.
fn shown(key: ConfigKey, value: Value, tenant: &TenantId) -> Value {
    if tenant.as_str() == DEFAULT_TENANT {
        return value;
    }
    let seen = match key {
        ConfigKey::Mirrors => serde_json::from_value(value)
            .and_then(|grants| serde_json::to_value(grants_seen_by(grants, tenant))),
        ConfigKey::TenantClasses => serde_json::from_value(value)
            .and_then(|classes| serde_json::to_value(classes_seen_by(classes, tenant))),
        ConfigKey::Registries => serde_json::from_value(value)
            .and_then(|grants| serde_json::to_value(registries_seen_by(grants, tenant))),
        ConfigKey::TenantQuotas => serde_json::from_value(value).and_then(|all: TenantQuotas| {
            let own = all.into_iter().filter(|(name, _)| name == tenant.as_str());
            serde_json::to_value(own.collect::<TenantQuotas>())
        }),
        _ => return value,
    };
    seen.unwrap_or(Value::Null)
}

/// Configuration of the installation and of its tenants.
#[derive(Debug, Clone)]
pub struct Config {
    ledger: Ledger,
}

impl Config {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self { ledger: ledger.clone() }
    }

    /// Every key as it is in force for the caller's tenant.
    pub async fn list(&self, who: &Principal) -> Result<Vec<ConfigEntry>> {
        let mut entries = config::entries(&self.ledger.config().rows(&who.tenant).await?);
        for entry in &mut entries {
            entry.value = shown(entry.key, std::mem::take(&mut entry.value), &who.tenant);
        }
        Ok(entries)
    }

    /// One key as it is in force for the caller's tenant.
    pub async fn get(&self, who: &Principal, key: ConfigKey) -> Result<ConfigEntry> {
        let found = self.list(who).await?.into_iter().find(|entry| entry.key == key);
        Ok(found.ok_or_else(|| Refusal::not_found("key"))?)
    }

    /// A key's versions, newest first.
    pub async fn history(
        &self,
        who: &Principal,
        key: ConfigKey,
        limit: i64,
    ) -> Result<Vec<ConfigVersion>> {
        let mut versions = self.ledger.config().history(&who.tenant, key, limit).await?;
        for version in &mut versions {
            version.value = shown(key, std::mem::take(&mut version.value), &who.tenant);
        }
        Ok(versions)
    }

    /// Writes the next version. Every check comes before the write.
    pub async fn put(
        &self,
        who: &Principal,
        key: ConfigKey,
        put: &ConfigPut,
    ) -> Result<ConfigEntry> {
        if put.scope == WriteScope::Global && !who.is_host_admin() {
            let why = "the host's configuration needs an admin key of the host's own tenant";
            return Err(Refusal::new(ErrorCode::Forbidden, why).into());
        }
        if key.is_hosts_alone() && put.scope != WriteScope::Global {
            let why = format!("{key} is the host's to say: scope `global`");
            return Err(Refusal::new(ErrorCode::Forbidden, why).into());
        }
        let admins = match key {
            ConfigKey::ExecAllowed | ConfigKey::BuildAllowed => {
                Some("which names tasks reach without a person's consent is for an admin to say")
            }
            ConfigKey::ClassMin => {
                Some("which isolation class is the least is for an admin to say")
            }
            _ => None,
        };
        if let Some(why) = admins.filter(|_| !who.has(Role::Admin)) {
            return Err(Refusal::new(ErrorCode::Forbidden, why).into());
        }
        let value = config::check(&key, &put.value)?;
        let rows = self.ledger.config().rows(&who.tenant).await?;
        within_hosts(key, put.scope, &value, &rows, &who.tenant)?;
        let name = key.to_string();
        let entry = Audit {
            detail: Some(json!({
                "scope": put.scope, "version": put.expected_version + 1, "value": value,
            })),
            ..Audit::by(who, "config.set", &name)
        };
        let new =
            NewConfig { scope: put.scope, key, expected: put.expected_version, value: &value };
        if !self.ledger.config().put(&new, &entry).await? {
            return Err(self.outdated(who, key, put).await?.into());
        }
        self.get(who, key).await
    }

    async fn outdated(&self, who: &Principal, key: ConfigKey, put: &ConfigPut) -> Result<Refusal> {
        let now = self.get(who, key).await?;
        let newest = match put.scope {
            WriteScope::Tenant => now.tenant_version,
            WriteScope::Global => now.global_version,
        };
        let why = format!("{key} has version {newest}, not {}", put.expected_version);
        let details = json!({"expectedVersion": put.expected_version, "version": newest});
        Ok(Refusal::new(ErrorCode::Conflict, why).with(details))
    }
}

/// An override above a ceiling, or a class below the host's, is refused when it is written, not only when it is used. A change of a
/// ceiling is held against those that it does not replace.
fn within_hosts(
    key: ConfigKey,
    scope: WriteScope,
    value: &serde_json::Value,
    rows: &[ConfigRow],
    tenant: &TenantId,
) -> Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let above = |row: &&ConfigRow| {
        row.key == ConfigKey::Ceiling
            && match (key, scope) {
                // The host's own ceiling is above everything; nobody else's is above it.
                (ConfigKey::Ceiling, WriteScope::Global) => false,
                (ConfigKey::Ceiling, WriteScope::Tenant) | (_, WriteScope::Global) => {
                    row.scope == ConfigScope::Global
                }
                (_, WriteScope::Tenant) => true,
            }
    };
    let settings = table(&rows.iter().filter(above).cloned().collect::<Vec<_>>(), tenant)?;
    let wrong =
        |e: serde_json::Error| Error::Corrupt { what: "dynamic_config.value", why: e.to_string() };
    let what = key.to_string();
    match key {
        ConfigKey::ExecAllowed
        | ConfigKey::BuildAllowed
        | ConfigKey::Mirrors
        | ConfigKey::E2bInternet
        | ConfigKey::SpawnDepth
        | ConfigKey::LivePerScope
        | ConfigKey::ScheduleInterval
        | ConfigKey::TenantQuotas
        | ConfigKey::Retention
        | ConfigKey::ToolchainDirs
        | ConfigKey::Registries
        | ConfigKey::TenantClasses => {}
        ConfigKey::ClassMin if scope == WriteScope::Global => {}
        ConfigKey::ClassMin => {
            let own = serde_json::from_value(value.clone()).map_err(wrong)?;
            check_own(own, rows, tenant)?;
        }
        ConfigKey::BlobsMb
        | ConfigKey::ArtifactsMb
        | ConfigKey::ArtifactFiles
        | ConfigKey::TreeEntries
        | ConfigKey::TreeMb
        | ConfigKey::TreesQuota
        | ConfigKey::LiveSandboxes
        | ConfigKey::PauseRest => {
            let of_host = |row: &&ConfigRow| {
                row.key == key && row.scope == ConfigScope::Global && !row.value.is_null()
            };
            let host = rows.iter().find(of_host).and_then(|row| row.value.as_u64());
            below_hosts_quota(key, scope, value, host)?;
        }
        ConfigKey::CpuQuota | ConfigKey::DiskQuota | ConfigKey::StartsQuota => {
            let host = hosts_quota(key, rows, tenant).map_err(wrong)?;
            below_hosts_quota(key, scope, value, host.map(|(most, _)| most))?;
        }
        ConfigKey::Ceiling => {
            settings
                .check_ceiling(&what, &serde_json::from_value(value.clone()).map_err(wrong)?)?;
        }
        ConfigKey::Profile(_) => {
            settings
                .check_profile(&what, &serde_json::from_value(value.clone()).map_err(wrong)?)?;
        }
    }
    Ok(())
}
/// A tenant takes less than the host gives it, never more.
fn below_hosts_quota(
    key: ConfigKey,
    scope: WriteScope,
    value: &serde_json::Value,
    host: Option<u64>,
) -> Result<(), Refusal> {
    let limit = host.or_else(|| key.default_value().as_u64()).unwrap_or(u64::MAX);
    let asked = value.as_u64().unwrap_or(u64::MAX);
    if scope == WriteScope::Global || asked <= limit {
        return Ok(());
    }
    let why = format!("{key} of a tenant is at most the host's, {limit}");
    let details = json!({"metric": key, "limit": limit, "observed": asked});
    Err(Refusal::new(ErrorCode::PolicyViolation, why).with(details))
}
