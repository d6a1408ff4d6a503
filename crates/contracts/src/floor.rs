//! The least isolation class that an operator accepts: of the installation, and of single tenants.
//!
//! ```text
//! isolation.class_min of the host     every tenant
//! isolation.tenants   of the host     one tenant by its name; the tenant can neither change nor lower it
//! isolation.class_min of the tenant   its own, never below what the host says
//!      the strongest of them raises a request that accepts less; no request is ever lowered
//! ```
//! So a recipe stays as it is while its installation moves from containers to gVisor or to machines (decision 0147).

use std::collections::BTreeMap;

use crate::config::{ConfigKey, ConfigRow, ConfigScope};
use crate::error::{ErrorCode, Refusal};
use crate::id::TenantId;
use crate::profile::ConfigValue;
use crate::sandbox::{IsolationClass, IsolationSpec, SandboxRequest, SandboxSpec};

/// The key of the host, and of each tenant for itself.
pub const CLASS_MIN: &str = "isolation.class_min";
/// The key of the host alone: least classes of single tenants.
pub const TENANTS: &str = "isolation.tenants";

/// Least classes by tenant.
pub type TenantClasses = BTreeMap<String, IsolationClass>;

/// A least class and the configuration that sets it.
pub type ClassFloor = ConfigValue<IsolationClass>;

/// The least classes that bind a tenant, one for each value that is configured.
///
/// # Errors
/// A row whose value does not fit its key.
pub fn floors(rows: &[ConfigRow], tenant: &TenantId) -> Result<Vec<ClassFloor>, serde_json::Error> {
    let mut found = Vec::new();
    for row in rows.iter().filter(|row| !row.value.is_null()) {
        let value = match row.key {
            ConfigKey::ClassMin => Some(serde_json::from_value(row.value.clone())?),
            ConfigKey::TenantClasses => {
                let all: TenantClasses = serde_json::from_value(row.value.clone())?;
                all.get(tenant.as_str()).copied()
            }
            _ => None,
        };
        found.extend(value.map(|value| ConfigValue { value, source: row.reference() }));
    }
    Ok(found)
}

/// The strongest of them; of equal ones the host's.
#[must_use]
pub fn strongest(floors: &[ClassFloor]) -> Option<&ClassFloor> {
    let own = |floor: &ClassFloor| floor.source.scope == ConfigScope::Tenant;
    floors.iter().max_by_key(|floor| (floor.value, !own(floor)))
}

/// Has a request accept no class below this one.
pub fn raise(request: &mut SandboxRequest, least: IsolationClass) {
    if request.class_min() < least {
        let spec = request.spec.get_or_insert_with(SandboxSpec::default);
        spec.isolation = Some(IsolationSpec { class_min: least });
    }
}

/// The least classes as a tenant sees them: its own alone.
#[must_use]
pub fn classes_seen_by(mut all: TenantClasses, tenant: &TenantId) -> TenantClasses {
    all.retain(|who, _| who == tenant.as_str());
    all
}

/// Refuses a tenant's own least class that is below the host's. A row that does not fit is refused as a fault of the host's.
///
/// # Errors
/// [`ErrorCode::PolicyViolation`] with the class that the host sets, and by which value.
pub fn check_own(
    own: IsolationClass,
    rows: &[ConfigRow],
    tenant: &TenantId,
) -> Result<(), Refusal> {
    let of_host = |row: &&ConfigRow| row.scope == ConfigScope::Global;
    let rows: Vec<ConfigRow> = rows.iter().filter(of_host).cloned().collect();
    let hosts = floors(&rows, tenant).map_err(|_| Refusal::internal())?;
    match strongest(&hosts) {
        Some(least) if own < least.value => Err(least.refuse("a tenant's own least class", own)),
        _ => Ok(()),
    }
}

impl IsolationClass {
    /// What sandboxes of this class promise at least, for the person who approves a plan. Whether a machine is emulated is known
    /// only where it runs.
    #[must_use]
    pub const fn promise(self) -> &'static str {
        match self {
            Self::Container => "shares the host's kernel, which is not hardware isolation",
            Self::Gvisor => "a kernel in user space, which is not hardware isolation",
            Self::Microvm => {
                "a virtual machine; hardware isolation where the host has KVM, emulated elsewhere"
            }
            Self::Remote => "a provider elsewhere; its isolation is stated by it, not tried here",
        }
    }
}

impl ClassFloor {
    /// The refusal of a class below this one.
    #[must_use]
    pub fn refuse(&self, what: &str, observed: IsolationClass) -> Refusal {
        let (least, observed) = (self.value.as_str(), observed.as_str());
        let why = format!(
            "{what} is {observed}, {} allows nothing below {least}: use {least}, or have the host's admin change \
             {CLASS_MIN} or {TENANTS}",
            self.source
        );
        Refusal::new(ErrorCode::PolicyViolation, why).with(serde_json::json!({
            "metric": CLASS_MIN, "limit": least, "observed": observed, "setBy": self.source,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Settings;
    use serde_json::{Value, json};

    fn row(key: &str, scope: ConfigScope, value: Value) -> ConfigRow {
        ConfigRow { key: key.parse().unwrap(), scope, version: 1, value }
    }

    fn least(rows: &[ConfigRow], tenant: &str) -> Option<(IsolationClass, String)> {
        let floors = floors(rows, &TenantId::parse(tenant).unwrap()).unwrap();
        strongest(&floors).map(|floor| (floor.value, floor.source.to_string()))
    }

    #[test]
    fn the_strongest_of_installation_tenant_and_tenants_own_holds() {
        let host = row(CLASS_MIN, ConfigScope::Global, json!("gvisor"));
        let named = row(TENANTS, ConfigScope::Global, json!({"acme": "microvm"}));
        let own = row(CLASS_MIN, ConfigScope::Tenant, json!("container"));
        assert_eq!(least(&[], "acme"), None);
        let all = [host.clone(), named, own.clone()];
        let (class, source) = least(&all, "acme").unwrap();
        assert_eq!(class, IsolationClass::Microvm);
        assert_eq!(source, "isolation.tenants of the host, version 1");
        assert_eq!(least(&all, "other").unwrap().0, IsolationClass::Gvisor);
        // What a tenant wrote before the host raised it holds nothing down, and a value that was taken back is none.
        assert_eq!(least(&[own.clone(), host], "acme").unwrap().0, IsolationClass::Gvisor);
        assert_eq!(least(&[ConfigRow { value: Value::Null, ..own }], "acme"), None);
    }

    #[test]
    fn a_request_is_raised_and_never_lowered() {
        let floors = vec![ConfigValue {
            value: IsolationClass::Gvisor,
            source: row(CLASS_MIN, ConfigScope::Global, Value::Null).reference(),
        }];
        let settings = Settings::default().with_floors(floors);
        for (asked, given) in [
            (json!({}), "gvisor"),
            (json!({"isolation": {"class_min": "container"}, "max_turns": 3}), "gvisor"),
            (json!({"isolation": {"class_min": "gvisor"}}), "gvisor"),
            (json!({"isolation": {"class_min": "microvm"}}), "microvm"),
        ] {
            let mut request = SandboxRequest::plain("host", vec!["true".to_owned()], 1_000);
            let turns = asked.get("max_turns").and_then(Value::as_u64);
            request.spec = serde_json::from_value(asked).unwrap();
            settings.settle("t", &mut request).unwrap();
            assert_eq!(request.class_min().as_str(), given);
            assert_eq!(request.spec.unwrap().max_turns, turns, "the rest of its spec stays");
        }
        let mut plain = SandboxRequest::plain("host", vec!["true".to_owned()], 1_000);
        Settings::default().settle("t", &mut plain).unwrap();
        assert!(plain.spec.is_none(), "without a least class a request stays as it was written");
    }

    #[test]
    fn a_tenants_own_class_is_at_least_the_hosts() {
        let acme = TenantId::parse("acme").unwrap();
        let rows = [
            row(CLASS_MIN, ConfigScope::Tenant, json!("microvm")),
            row(TENANTS, ConfigScope::Global, json!({"acme": "gvisor", "other": "microvm"})),
        ];
        check_own(IsolationClass::Gvisor, &rows, &acme).unwrap();
        let refusal = check_own(IsolationClass::Container, &rows, &acme).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation);
        let details = refusal.details.unwrap();
        assert_eq!(
            (&details["limit"], &details["observed"]),
            (&"gvisor".into(), &"container".into())
        );
        assert_eq!(details["setBy"]["key"], TENANTS);
    }

    #[test]
    fn a_tenant_sees_its_own_class_alone() {
        let all = BTreeMap::from([
            ("acme".to_owned(), IsolationClass::Gvisor),
            ("other".to_owned(), IsolationClass::Microvm),
        ]);
        let seen = classes_seen_by(all, &TenantId::parse("acme").unwrap());
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["acme"]);
    }
}
