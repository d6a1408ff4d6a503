//! Configuration that changes while it runs: known keys, typed values, versions.
//!
//! A key has one value for the host and may have one for a tenant; each is a row of its own, and a
//! change is one more row. A `null` takes an override back.
//!
//! One file: a key is a line of one table, and its type, bounds and default stand beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use serde_with::SerializeDisplay;

use crate::egress::{Entry, MAX_ENTRIES, Mirror};
use crate::error::{ErrorCode, Refusal, Violation};
use crate::floor::{self, CLASS_MIN, TENANTS, TenantClasses};
use crate::id::TenantId;
use crate::own_schema::own_schema;
use crate::policy::{BUILD_ALLOWED, EXEC_ALLOWED, MIRRORS, MirrorGrants};
use crate::profile::{Ceiling, ConfigValue, Language, Profile, Settings};
use crate::sandbox::IsolationClass;
use crate::schema::{Validator, schema_of};

/// MiB of stored artifacts that a tenant may have where nobody has configured it: thousands of runs that
/// keep all that they may, on a disk of its own; what a host with a smaller one should lower.
pub const DEFAULT_BLOBS_MB: u64 = 65_536;

/// Sandboxes that a tenant may have running or starting at once where nobody has configured it: their memory is admitted
/// beside it.
pub const DEFAULT_LIVE_SANDBOXES: u64 = 1_000;

/// Seconds for which a paused sandbox's sealed files rest in memory besides, where nobody has configured it: most of those that
/// are paused between two requests are asked for within minutes.
pub const DEFAULT_REST_S: u64 = 600;

/// How deep a dispatch sends off further ones, as in SQL: `app.dispatch_limits`.
pub const DEFAULT_SPAWN_DEPTH: u64 = 5;
/// Live dispatches of one scope, as in SQL: `app.dispatch_limits`.
pub const DEFAULT_LIVE_PER_SCOPE: u64 = 256;

/// What can be configured. A closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay)]
pub enum ConfigKey {
    /// `limits.ceiling`, see [`Ceiling`].
    Ceiling,
    /// `egress.exec.allowed`: names and mirrors that a task may list without a person's consent.
    ExecAllowed,
    /// `egress.build.allowed`: names that a build phase may list without a person's consent.
    BuildAllowed,
    /// `egress.mirrors`: which tenant may use which of the host's mirrors. The host's alone.
    Mirrors,
    /// `quota.blobs_mb`: MiB of stored artifacts, after which a tenant's work is refused. A tenant's own
    /// value may only be lower than the host's.
    BlobsMb,
    /// `quota.live_sandboxes`: long-lived sandboxes that a tenant may have at once, paused ones not counted. A tenant's own
    /// value may only be lower than the host's.
    LiveSandboxes,
    /// `pause.rest_s`: seconds for which the sealed files of a paused sandbox may rest in memory besides, for a resume that comes
    /// soon; 0: not at all. A tenant's own value may only be lower than the host's.
    PauseRest,
    /// `e2b.internet`: whether a sandbox of E2B's clients whose user says nothing of its network reaches what
    /// `egress.exec.allowed` lists.
    E2bInternet,
    /// `dispatch.max_spawn_depth`: how deep a dispatch may send off further ones. The host's alone.
    SpawnDepth,
    /// `dispatch.max_live_per_scope`: live dispatches of one scope of a tenant. The host's alone.
    LivePerScope,
    /// `isolation.class_min`: no sandbox is of a weaker class. A tenant's own value may only be stronger than the host's.
    ClassMin,
    /// `isolation.tenants`: the same for single tenants, by name. The host's alone.
    TenantClasses,
    /// `profile.LANGUAGE`, see [`Profile`].
    Profile(Language),
}

impl ConfigKey {
    /// Every key that can be parsed, with one profile key for each language.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Ceiling, Self::ExecAllowed, Self::BuildAllowed, Self::Mirrors, Self::BlobsMb]
            .into_iter()
            .chain([Self::LiveSandboxes, Self::PauseRest, Self::E2bInternet])
            .chain([Self::SpawnDepth, Self::LivePerScope])
            .chain([Self::ClassMin, Self::TenantClasses])
            .chain(Language::ALL.iter().copied().map(Self::Profile))
    }

    /// What it is where nobody has configured it.
    #[must_use]
    pub fn default_value(self) -> Value {
        match self {
            Self::Ceiling => serde_json::to_value(Ceiling::default()).unwrap_or_default(),
            Self::ExecAllowed | Self::BuildAllowed => json!([]),
            Self::Mirrors | Self::TenantClasses => json!({}),
            Self::ClassMin => json!(IsolationClass::Container),
            Self::BlobsMb => json!(DEFAULT_BLOBS_MB),
            Self::LiveSandboxes => json!(DEFAULT_LIVE_SANDBOXES),
            Self::PauseRest => json!(DEFAULT_REST_S),
            Self::E2bInternet => json!(false),
            Self::SpawnDepth => json!(DEFAULT_SPAWN_DEPTH),
            Self::LivePerScope => json!(DEFAULT_LIVE_PER_SCOPE),
            Self::Profile(language) => serde_json::to_value(language.profile()).unwrap_or_default(),
        }
    }

    /// The JSON Schema of its value.
    #[must_use]
    pub fn schema(self) -> Value {
        match self {
            Self::Ceiling => schema_of::<Ceiling>(),
            // As many as a phase may list; exact names, never a wildcard or an address with a port.
            Self::ExecAllowed | Self::BuildAllowed => json!({
                "type": "array", "maxItems": MAX_ENTRIES, "uniqueItems": true,
                "items": schema_of::<Entry>(),
            }),
            // As many tenants as a host serves; `*` is all of them.
            Self::Mirrors => json!({
                "type": "object", "maxProperties": 1024,
                "propertyNames": {"pattern": "^(\\*|[a-z0-9][a-z0-9_-]{0,62})$"},
                "additionalProperties": {
                    "type": "array", "uniqueItems": true, "items": {"enum": Mirror::ALL},
                },
            }),
            Self::BlobsMb => json!({"type": "integer", "minimum": 1, "maximum": 1_000_000_000}),
            // 0: none may be made.
            Self::LiveSandboxes => json!({"type": "integer", "minimum": 0, "maximum": 1_000_000}),
            // The proof of retained layers allows no longer retention.
            Self::PauseRest => json!({"type": "integer", "minimum": 0, "maximum": 3_600}),
            Self::E2bInternet => json!({"type": "boolean"}),
            // Deeper than anybody can follow; as many as a host's memory admits many times over.
            Self::SpawnDepth => json!({"type": "integer", "minimum": 0, "maximum": 64}),
            Self::LivePerScope => json!({"type": "integer", "minimum": 1, "maximum": 100_000}),
            Self::ClassMin => schema_of::<IsolationClass>(),
            // As many as a host serves.
            Self::TenantClasses => json!({
                "type": "object", "maxProperties": 1024,
                "propertyNames": {"pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"},
                "additionalProperties": {"enum": IsolationClass::ALL},
            }),
            Self::Profile(_) => schema_of::<Profile>(),
        }
    }

    /// Whether no tenant has a value of its own.
    #[must_use]
    pub const fn is_hosts_alone(self) -> bool {
        matches!(self, Self::Mirrors | Self::SpawnDepth | Self::LivePerScope | Self::TenantClasses)
    }
}

impl fmt::Display for ConfigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ceiling => f.write_str("limits.ceiling"),
            Self::ExecAllowed => f.write_str(EXEC_ALLOWED),
            Self::BuildAllowed => f.write_str(BUILD_ALLOWED),
            Self::Mirrors => f.write_str(MIRRORS),
            Self::BlobsMb => f.write_str("quota.blobs_mb"),
            Self::LiveSandboxes => f.write_str("quota.live_sandboxes"),
            Self::PauseRest => f.write_str("pause.rest_s"),
            Self::E2bInternet => f.write_str("e2b.internet"),
            Self::SpawnDepth => f.write_str("dispatch.max_spawn_depth"),
            Self::LivePerScope => f.write_str("dispatch.max_live_per_scope"),
            Self::ClassMin => f.write_str(CLASS_MIN),
            Self::TenantClasses => f.write_str(TENANTS),
            Self::Profile(language) => write!(f, "profile.{}", language.as_str()),
        }
    }
}

impl FromStr for ConfigKey {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::all().find(|key| key.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Self::all().map(|key| key.to_string()).collect();
            Refusal::new(
                ErrorCode::InvalidId,
                format!("unknown configuration key {text:?}; the keys are {}", known.join(", ")),
            )
        })
    }
}

impl<'de> Deserialize<'de> for ConfigKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|refusal: Refusal| serde::de::Error::custom(refusal.message))
    }
}

own_schema!(ConfigKey, |_| {
    let names: Vec<String> = Self::all().map(|key| key.to_string()).collect();
    json_schema!({"type": "string", "enum": names})
});

/// Owner of a configuration value: the code, the host, or one tenant.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ConfigScope {
    /// The one in code: nobody has written it.
    Default,
    /// The host's, for every tenant.
    Global,
    /// The tenant's own.
    Tenant,
}

/// One version of one key.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct ConfigRef {
    /// Key that the version belongs to, such as `limits.ceiling`.
    pub key: ConfigKey,
    /// Owner: the host, or one tenant.
    pub scope: ConfigScope,
    /// From 1; 0 is the default.
    pub version: u32,
}

impl fmt::Display for ConfigRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            ConfigScope::Default => write!(f, "{} by default", self.key),
            ConfigScope::Global => write!(f, "{} of the host, version {}", self.key, self.version),
            ConfigScope::Tenant => {
                write!(f, "{} of the tenant, version {}", self.key, self.version)
            }
        }
    }
}

/// Whose value a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WriteScope {
    /// The caller's tenant's own.
    #[default]
    Tenant,
    /// The host's, for every tenant: only an admin of the host's own tenant.
    Global,
}

/// Body of `PUT /api/config/{name}`: the next value of one configuration key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigPut {
    /// The whole value; `null` takes an override back.
    pub value: Value,
    /// The version of this scope that the change is based on; 0 where there is none.
    #[schemars(range(max = 1_000_000))]
    pub expected_version: u32,
    /// Owner of the value to write: the caller's tenant (default) or the host.
    #[serde(default)]
    pub scope: WriteScope,
}

/// A key as it is in force for the caller's tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigEntry {
    /// Full name of the configuration key, such as `limits.ceiling`.
    pub key: ConfigKey,
    /// The value in force.
    pub value: Value,
    /// Whose that is.
    pub scope: ConfigScope,
    /// Its version; 0 is the default.
    pub version: u32,
    /// The newest version of the host's value, taken back or not; 0 where there is none.
    pub global_version: u32,
    /// The same of the tenant's.
    pub tenant_version: u32,
}

/// One row of a key's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigVersion {
    /// Configuration key whose history the row belongs to.
    pub key: ConfigKey,
    /// Whose: `global` or `tenant`.
    pub scope: ConfigScope,
    /// Number of this version within its key and scope, from 1.
    pub version: u32,
    /// The value; `null`: an override was taken back.
    pub value: Value,
    /// The key that wrote it; another tenant's keys are not named.
    pub actor: String,
    /// When, ms since the epoch.
    pub created_at: i64,
}

/// The newest row of one scope of one key, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigRow {
    /// Configuration key that the row sets.
    pub key: ConfigKey,
    /// Owner: the host, or one tenant.
    pub scope: ConfigScope,
    /// Number of this version within its key and scope, from 1.
    pub version: u32,
    /// Value as stored; `null` where an override was taken back.
    pub value: Value,
}

impl ConfigRow {
    /// Which version of which key it is.
    #[must_use]
    pub const fn reference(&self) -> ConfigRef {
        ConfigRef { key: self.key, scope: self.scope, version: self.version }
    }
}

/// Holds a value against its key: every violation, below `/value`. Gives it as it is to be stored.
pub fn check(key: &ConfigKey, value: &Value) -> Result<Value, Refusal> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let mut violations = Validator::compile(&key.schema())?.violations(value);
    for violation in &mut violations {
        violation.instance_path = format!("/value{}", violation.instance_path);
    }
    if !violations.is_empty() {
        return Err(Refusal::violations(&violations));
    }
    match key {
        ConfigKey::Ceiling => stored::<Ceiling>(value),
        ConfigKey::ExecAllowed | ConfigKey::BuildAllowed => stored::<Vec<Entry>>(value),
        ConfigKey::Mirrors => stored::<MirrorGrants>(value),
        ConfigKey::BlobsMb
        | ConfigKey::LiveSandboxes
        | ConfigKey::PauseRest
        | ConfigKey::SpawnDepth
        | ConfigKey::LivePerScope => stored::<u64>(value),
        ConfigKey::E2bInternet => stored::<bool>(value),
        ConfigKey::ClassMin => stored::<IsolationClass>(value),
        ConfigKey::TenantClasses => stored::<TenantClasses>(value),
        ConfigKey::Profile(_) => stored::<Profile>(value),
    }
}

/// The value through its type, so that a field has one name in every row.
fn stored<T: DeserializeOwned + Serialize>(value: &Value) -> Result<Value, Refusal> {
    let typed: Result<T, _> = serde_json::from_value(value.clone());
    typed.and_then(serde_json::to_value).map_err(|error| {
        Refusal::violations(&[Violation {
            instance_path: "/value".into(),
            message: error.to_string(),
        }])
    })
}

/// The table that these rows make for a tenant. A row that does not fit its type is an error and never a default.
pub fn settings(rows: &[ConfigRow], tenant: &TenantId) -> Result<Settings, serde_json::Error> {
    let (mut profiles, mut ceilings) = (BTreeMap::new(), Vec::new());
    let mut sorted: Vec<&ConfigRow> = rows.iter().filter(|row| !row.value.is_null()).collect();
    // The tenant's after the host's: for a profile the later one stands.
    sorted.sort_by_key(|row| (row.scope, row.key));
    for row in sorted {
        let source = row.reference();
        match row.key {
            ConfigKey::Ceiling => {
                ceilings
                    .push(ConfigValue { value: serde_json::from_value(row.value.clone())?, source });
            }
            // Looked up by those who start runs: it shapes no plan.
            ConfigKey::ExecAllowed
            | ConfigKey::BuildAllowed
            | ConfigKey::Mirrors
            | ConfigKey::BlobsMb
            | ConfigKey::LiveSandboxes
            | ConfigKey::PauseRest
            | ConfigKey::E2bInternet
            | ConfigKey::SpawnDepth
            | ConfigKey::LivePerScope
            // Read together below.
            | ConfigKey::ClassMin
            | ConfigKey::TenantClasses => {}
            ConfigKey::Profile(language) => {
                let value = serde_json::from_value(row.value.clone())?;
                profiles.insert(language, ConfigValue { value, source });
            }
        }
    }
    Ok(Settings::new(profiles, ceilings).with_floors(floor::floors(rows, tenant)?))
}

/// Whether a key is on: the tenant's word, else the host's. Pure.
#[must_use]
pub fn is_on(key: ConfigKey, rows: &[ConfigRow]) -> bool {
    let of = |scope: ConfigScope| {
        let row = rows.iter().find(|row| row.key == key && row.scope == scope);
        row.and_then(|row| row.value.as_bool())
    };
    let said = of(ConfigScope::Tenant).or_else(|| of(ConfigScope::Global));
    said.or_else(|| key.default_value().as_bool()).unwrap_or(false)
}

/// The number in force of a key whose tenant may only have a lower one than its host. Pure.
#[must_use]
pub fn lower_of_both(key: ConfigKey, rows: &[ConfigRow]) -> u64 {
    let of = |scope: ConfigScope| {
        let row = rows.iter().find(|row| row.key == key && row.scope == scope);
        row.and_then(|row| row.value.as_u64())
    };
    let host = of(ConfigScope::Global).or_else(|| key.default_value().as_u64()).unwrap_or(0);
    // The host's may have been lowered since the tenant's was written.
    of(ConfigScope::Tenant).map_or(host, |own| own.min(host))
}

/// Every key as it is in force.
#[must_use]
pub fn entries(rows: &[ConfigRow]) -> Vec<ConfigEntry> {
    let of = |key: ConfigKey, scope: ConfigScope| {
        rows.iter().find(|row| row.key == key && row.scope == scope)
    };
    ConfigKey::all()
        .map(|key| {
            let (global, tenant) = (of(key, ConfigScope::Global), of(key, ConfigScope::Tenant));
            let found = [tenant, global].into_iter().flatten().find(|row| !row.value.is_null());
            let version = |row: Option<&ConfigRow>| row.map_or(0, |row| row.version);
            ConfigEntry {
                key,
                value: found.map_or_else(|| key.default_value(), |row| row.value.clone()),
                scope: found.map_or(ConfigScope::Default, |row| row.scope),
                version: version(found),
                global_version: version(global),
                tenant_version: version(tenant),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(key: &str, scope: ConfigScope, version: u32, value: Value) -> ConfigRow {
        ConfigRow { key: key.parse().unwrap(), scope, version, value }
    }

    #[test]
    fn a_key_reads_as_it_is_written_and_an_unknown_one_is_refused() {
        for key in ConfigKey::all() {
            assert_eq!(key.to_string().parse::<ConfigKey>().unwrap(), key);
        }
        for bad in ["", "profile", "profile.", "profile.cobol", "PROFILE.python", "limits"] {
            assert_eq!(bad.parse::<ConfigKey>().unwrap_err().code, ErrorCode::InvalidId, "{bad}");
        }
    }

    #[test]
    fn the_tenants_value_stands_before_the_hosts_and_null_takes_it_back() {
        let value = |ms: u64| json!({"buildTimeoutMs": ms, "execTimeoutMs": ms, "limits": {}});
        let global = row("profile.go", ConfigScope::Global, 3, value(3_000));
        let tenant = row("profile.go", ConfigScope::Tenant, 5, value(5_000));
        let back = ConfigRow { version: 6, value: Value::Null, ..tenant.clone() };
        for (rows, scope, version, ms) in [
            (vec![tenant.clone(), global.clone()], ConfigScope::Tenant, 5, 5_000),
            (vec![back.clone(), global.clone()], ConfigScope::Global, 3, 3_000),
            (vec![back], ConfigScope::Default, 0, 600_000),
        ] {
            let settings = settings(&rows, &TenantId::parse("acme").unwrap()).unwrap();
            let found = settings.profile(Language::Go).unwrap();
            assert_eq!((found.source.scope, found.source.version), (scope, version));
            assert_eq!(found.value.exec_timeout_ms, ms);
            let entry = entries(&rows).into_iter().find(|e| e.key == rows[0].key).unwrap();
            assert_eq!((entry.scope, entry.version), (scope, version));
        }
    }

    #[test]
    fn a_tenants_number_is_never_above_its_hosts() {
        let key = ConfigKey::PauseRest;
        let own = |seconds: u64| row("pause.rest_s", ConfigScope::Tenant, 1, json!(seconds));
        let host = |seconds: u64| row("pause.rest_s", ConfigScope::Global, 1, json!(seconds));
        assert_eq!(lower_of_both(key, &[]), DEFAULT_REST_S);
        assert_eq!(lower_of_both(key, &[own(0)]), 0);
        assert_eq!(lower_of_both(key, &[own(900)]), DEFAULT_REST_S);
        assert_eq!(lower_of_both(key, &[own(900), host(60)]), 60);
        assert_eq!(lower_of_both(key, &[host(3_600)]), 3_600);
        assert!(check(&key, &json!(3_601)).is_err() && check(&key, &json!(-1)).is_err());
    }

    #[test]
    fn a_tenants_word_comes_before_its_hosts_and_neither_is_off() {
        let key = ConfigKey::E2bInternet;
        let own = |value: Value| row("e2b.internet", ConfigScope::Tenant, 1, value);
        let host = |value: Value| row("e2b.internet", ConfigScope::Global, 1, value);
        for (rows, wanted) in [
            (vec![], false),
            (vec![host(json!(true))], true),
            (vec![host(json!(true)), own(json!(false))], false),
            (vec![host(json!(true)), own(Value::Null)], true),
            (vec![own(json!(true))], true),
        ] {
            assert_eq!(is_on(key, &rows), wanted, "{rows:?}");
        }
        assert!(check(&key, &json!("true")).is_err());
    }

    #[test]
    fn a_value_has_one_name_for_each_field_when_it_is_stored() {
        let key = ConfigKey::Ceiling;
        let kept = check(&key, &json!({"limits": {"mem_mb": 100}})).unwrap();
        assert_eq!(kept, json!({"limits": {"memMB": 100}}));
        for (bad, path) in [
            (json!({"limits": {"memMB": 1}}), "/value/limits/memMB"),
            (json!({"limits": {"memMB": 100, "mem_mb": 100}}), "/value"),
            (json!({"limits": {"nofile": 1.5}}), "/value/limits/nofile"),
            (json!({"surprise": 1}), "/value"),
            (json!([]), "/value"),
            (json!("null"), "/value"),
        ] {
            let refusal = check(&key, &bad).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::SchemaViolation, "{bad}");
            assert_eq!(refusal.details.unwrap()[0]["instancePath"], path, "{bad}");
        }
    }

    #[test]
    fn a_list_of_names_is_held_to_what_a_recipe_may_list_and_stored_in_one_spelling() {
        let key = ConfigKey::ExecAllowed;
        let stored = check(&key, &json!(["A.Example", "@pip"])).unwrap();
        assert_eq!(stored, json!(["a.example", "@pip"]));
        for bad in ["127.1", "a..b", "*.example.org", "localhost", "@maven", "a.example:443"] {
            let refused = check(&key, &json!([bad])).unwrap_err();
            assert!(refused.message.contains("/value/0"), "{refused}");
            assert!(refused.message.contains(&format!("{bad:?}")), "{refused}");
        }
    }
}
