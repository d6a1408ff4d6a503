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
use crate::image_reference::{REGISTRIES, REGISTRY_PATTERN, RegistryGrants, registries_of};
use crate::own_schema::own_schema;
use crate::policy::{BUILD_ALLOWED, EXEC_ALLOWED, MIRRORS, MirrorGrants};
use crate::profile::{Ceiling, ConfigValue, Language, Profile, Settings, quota_ceilings};
use crate::quota::{NO_BOUND, TenantQuota, TenantQuotas};
use crate::retention::Retention;
use crate::sandbox::IsolationClass;
use crate::schema::{Validator, schema_of};
use crate::toolchain::DEFAULT_TOOLCHAIN_DIRS;
use crate::tree_upload::{DEFAULT_TREE_ENTRIES, DEFAULT_TREE_MB, DEFAULT_TREES_MB};

/// MiB of stored artifacts that a tenant may have where nobody has configured it: thousands of runs that
/// keep all that they may, on a disk of its own; what a host with a smaller one should lower.
pub const DEFAULT_BLOBS_MB: u64 = 65_536;

/// Sandboxes that a tenant may have running or starting at once where nobody has configured it: their memory is admitted
/// beside it.
pub const DEFAULT_LIVE_SANDBOXES: u64 = 1_000;

/// Seconds for which a paused sandbox's sealed files rest in memory besides, where nobody has configured it: most of those that
/// are paused between two requests are asked for within minutes.
pub const DEFAULT_REST_S: u64 = 600;

/// MiB of files that one task may leave where nobody has configured it: an image of a system, or a build with its symbols.
pub const DEFAULT_ARTIFACTS_MB: u64 = 1_024;

/// Files that one task may leave where nobody has configured it: a documentation site, or the output of a large bundler.
pub const DEFAULT_ARTIFACT_FILES: u64 = 20_000;

/// Seconds between two instants of a schedule where nobody has configured it: what cron itself can say.
pub const DEFAULT_SCHEDULE_INTERVAL_S: u64 = 60;

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
    /// `artifacts.max_mb`: MiB of files that one task may leave; what is beyond it is not kept. A tenant's own value may only be
    /// lower than the host's. Without an artifact store 64 at most are kept.
    ArtifactsMb,
    /// `artifacts.max_files`: files that one task may leave; what is beyond it is not kept. A tenant's own value may only be lower
    /// than the host's. Without an artifact store 1,000 at most are kept.
    ArtifactFiles,
    /// `trees.max_entries`: files, directories and links of one directory that a client sends. A tenant's own value may only be lower
    /// than the host's.
    TreeEntries,
    /// `trees.max_mb`: MiB of one directory that a client sends. A tenant's own value may only be lower than the host's.
    TreeMb,
    /// `quota.trees_mb`: MiB of sent files that a tenant may have on one server, and as many of copies of host directories; more are
    /// refused until some are unused and go. A tenant's own value may only be lower than the host's.
    TreesQuota,
    /// `toolchains.dirs`: directories of a host whose toolchains tasks may be given, `~/` being the home of the server's user. A
    /// toolchain is one of them or lies right in it. The host's alone.
    ToolchainDirs,
    /// `quota.live_sandboxes`: long-lived sandboxes that a tenant may have at once, paused ones not counted. A tenant's own
    /// value may only be lower than the host's.
    LiveSandboxes,
    /// `quota.cpu`: cores that a tenant's sandboxes may ask for together; what is beyond waits in its queue, and a task that asks for
    /// more than all of them is refused. A tenant's own value may only be lower than the host's.
    CpuQuota,
    /// `quota.disk_mb`: the same of the writable layers of a tenant's sandboxes, in MiB.
    DiskQuota,
    /// `quota.starts_per_minute`: sandboxes that a tenant may start a minute; others wait. As many may start at once after a
    /// minute without any. A tenant's own value may only be lower than the host's.
    StartsQuota,
    /// `quota.tenants`: these three for single tenants, by name, in place of the values for every tenant. The host's alone.
    TenantQuotas,
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
    /// `schedule.min_interval_s`: the least seconds between two instants of a schedule that is added. The host's alone.
    ScheduleInterval,
    /// `retention`: how long content of ended runs stays, see [`Retention`]. A tenant's own value replaces the host's.
    Retention,
    /// `isolation.class_min`: no sandbox is of a weaker class. A tenant's own value may only be stronger than the host's.
    ClassMin,
    /// `isolation.tenants`: the same for single tenants, by name. The host's alone.
    TenantClasses,
    /// `services.registries`: registries that images of services are pulled from, by tenant; `*` is every tenant. The host's alone.
    Registries,
    /// `profile.LANGUAGE`, see [`Profile`].
    Profile(Language),
}

impl ConfigKey {
    /// Every key that can be parsed, with one profile key for each language.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Ceiling, Self::ExecAllowed, Self::BuildAllowed, Self::Mirrors, Self::BlobsMb]
            .into_iter()
            .chain([Self::ArtifactsMb, Self::ArtifactFiles])
            .chain([Self::TreeEntries, Self::TreeMb, Self::TreesQuota, Self::ToolchainDirs])
            .chain([Self::LiveSandboxes, Self::CpuQuota, Self::DiskQuota, Self::StartsQuota])
            .chain([Self::TenantQuotas, Self::PauseRest, Self::E2bInternet])
            .chain([Self::SpawnDepth, Self::LivePerScope, Self::ScheduleInterval, Self::Retention])
            .chain([Self::ClassMin, Self::TenantClasses, Self::Registries])
            .chain(Language::ALL.iter().copied().map(Self::Profile))
    }

    /// What it is where nobody has configured it.
    #[must_use]
    pub fn default_value(self) -> Value {
        match self {
            Self::Ceiling => serde_json::to_value(Ceiling::default()).unwrap_or_default(),
            Self::ExecAllowed | Self::BuildAllowed => json!([]),
            Self::Mirrors
            | Self::TenantClasses
            | Self::TenantQuotas
            | Self::Registries
            | Self::Retention => json!({}),
            Self::ClassMin => json!(IsolationClass::Container),
            Self::BlobsMb => json!(DEFAULT_BLOBS_MB),
            Self::ArtifactsMb => json!(DEFAULT_ARTIFACTS_MB),
            Self::ArtifactFiles => json!(DEFAULT_ARTIFACT_FILES),
            Self::TreeEntries => json!(DEFAULT_TREE_ENTRIES),
            Self::TreeMb => json!(DEFAULT_TREE_MB),
            Self::ToolchainDirs => json!(DEFAULT_TOOLCHAIN_DIRS),
            Self::TreesQuota => json!(DEFAULT_TREES_MB),
            Self::LiveSandboxes => json!(DEFAULT_LIVE_SANDBOXES),
            Self::CpuQuota | Self::DiskQuota | Self::StartsQuota => json!(NO_BOUND),
            Self::PauseRest => json!(DEFAULT_REST_S),
            Self::E2bInternet => json!(false),
            Self::SpawnDepth => json!(DEFAULT_SPAWN_DEPTH),
            Self::LivePerScope => json!(DEFAULT_LIVE_PER_SCOPE),
            Self::ScheduleInterval => json!(DEFAULT_SCHEDULE_INTERVAL_S),
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
            // As much as a disk holds; as many as one index lists.
            Self::ArtifactsMb => json!({"type": "integer", "minimum": 1, "maximum": 1_048_576}),
            Self::ArtifactFiles => json!({"type": "integer", "minimum": 1, "maximum": 100_000}),
            // As much as a directory of the host may have; as many as a manifest lists.
            Self::TreeEntries => json!({"type": "integer", "minimum": 1, "maximum": 500_000}),
            Self::TreeMb => json!({"type": "integer", "minimum": 1, "maximum": 16_384}),
            Self::TreesQuota => json!({"type": "integer", "minimum": 1, "maximum": 1_048_576}),
            // As many as package managers and version managers use.
            Self::ToolchainDirs => json!({
                "type": "array", "maxItems": 32, "uniqueItems": true,
                "items": {"type": "string", "maxLength": 1024, "pattern": "^(/|~/)[^\\x00-\\x1f]*$"},
            }),
            Self::BlobsMb | Self::CpuQuota | Self::DiskQuota | Self::StartsQuota => {
                json!({"type": "integer", "minimum": 1, "maximum": NO_BOUND})
            }
            // 0: none may be made.
            Self::LiveSandboxes => json!({"type": "integer", "minimum": 0, "maximum": 1_000_000}),
            // The proof of retained layers allows no longer retention.
            Self::PauseRest => json!({"type": "integer", "minimum": 0, "maximum": 3_600}),
            Self::E2bInternet => json!({"type": "boolean"}),
            // Deeper than anybody can follow; as many as a host's memory admits many times over.
            Self::SpawnDepth => json!({"type": "integer", "minimum": 0, "maximum": 64}),
            Self::LivePerScope => json!({"type": "integer", "minimum": 1, "maximum": 100_000}),
            // Up to a day.
            Self::ScheduleInterval => json!({"type": "integer", "minimum": 1, "maximum": 86_400}),
            Self::Retention => schema_of::<Retention>(),
            Self::ClassMin => schema_of::<IsolationClass>(),
            // As many as a host serves.
            Self::TenantClasses => json!({
                "type": "object", "maxProperties": 1024,
                "propertyNames": {"pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"},
                "additionalProperties": {"enum": IsolationClass::ALL},
            }),
            Self::TenantQuotas => json!({
                "type": "object", "maxProperties": 1024,
                "propertyNames": {"pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"},
                "additionalProperties": schema_of::<TenantQuota>(),
            }),
            // As many tenants as a host serves, and as many registries as an organisation has.
            Self::Registries => json!({
                "type": "object", "maxProperties": 1024,
                "propertyNames": {"pattern": "^(\\*|[a-z0-9][a-z0-9_-]{0,62})$"},
                "additionalProperties": {
                    "type": "array", "uniqueItems": true, "maxItems": 64,
                    "items": {"type": "string", "pattern": REGISTRY_PATTERN},
                },
            }),
            Self::Profile(_) => schema_of::<Profile>(),
        }
    }

    /// Whether no tenant has a value of its own.
    #[must_use]
    pub const fn is_hosts_alone(self) -> bool {
        matches!(
            self,
            Self::Mirrors
                | Self::SpawnDepth
                | Self::LivePerScope
                | Self::ScheduleInterval
                | Self::TenantClasses
                | Self::TenantQuotas
                | Self::ToolchainDirs
                | Self::Registries
        )
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
            Self::ArtifactsMb => f.write_str("artifacts.max_mb"),
            Self::ArtifactFiles => f.write_str("artifacts.max_files"),
            Self::TreeEntries => f.write_str("trees.max_entries"),
            Self::TreeMb => f.write_str("trees.max_mb"),
            Self::TreesQuota => f.write_str("quota.trees_mb"),
            Self::ToolchainDirs => f.write_str("toolchains.dirs"),
            Self::LiveSandboxes => f.write_str("quota.live_sandboxes"),
            Self::CpuQuota => f.write_str("quota.cpu"),
            Self::DiskQuota => f.write_str("quota.disk_mb"),
            Self::StartsQuota => f.write_str("quota.starts_per_minute"),
            Self::TenantQuotas => f.write_str("quota.tenants"),
            Self::PauseRest => f.write_str("pause.rest_s"),
            Self::E2bInternet => f.write_str("e2b.internet"),
            Self::SpawnDepth => f.write_str("dispatch.max_spawn_depth"),
            Self::LivePerScope => f.write_str("dispatch.max_live_per_scope"),
            Self::ScheduleInterval => f.write_str("schedule.min_interval_s"),
            Self::Retention => f.write_str("retention"),
            Self::ClassMin => f.write_str(CLASS_MIN),
            Self::TenantClasses => f.write_str(TENANTS),
            Self::Registries => f.write_str(REGISTRIES),
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
        | ConfigKey::ArtifactsMb
        | ConfigKey::ArtifactFiles
        | ConfigKey::TreeEntries
        | ConfigKey::TreeMb
        | ConfigKey::TreesQuota
        | ConfigKey::LiveSandboxes
        | ConfigKey::CpuQuota
        | ConfigKey::DiskQuota
        | ConfigKey::StartsQuota
        | ConfigKey::PauseRest
        | ConfigKey::SpawnDepth
        | ConfigKey::LivePerScope
        | ConfigKey::ScheduleInterval => stored::<u64>(value),
        ConfigKey::TenantQuotas => stored::<TenantQuotas>(value),
        ConfigKey::ToolchainDirs => stored::<Vec<String>>(value),
        ConfigKey::E2bInternet => stored::<bool>(value),
        ConfigKey::Retention => stored::<Retention>(value),
        ConfigKey::ClassMin => stored::<IsolationClass>(value),
        ConfigKey::TenantClasses => stored::<TenantClasses>(value),
        ConfigKey::Registries => stored::<RegistryGrants>(value),
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
    let (mut profiles, mut ceilings, mut registries) = (BTreeMap::new(), Vec::new(), Vec::new());
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
            | ConfigKey::ArtifactsMb
            | ConfigKey::ArtifactFiles
            | ConfigKey::TreeEntries
            | ConfigKey::TreeMb
            | ConfigKey::TreesQuota
            | ConfigKey::ToolchainDirs
            | ConfigKey::LiveSandboxes
            | ConfigKey::PauseRest
            | ConfigKey::E2bInternet
            | ConfigKey::SpawnDepth
            | ConfigKey::LivePerScope
            | ConfigKey::ScheduleInterval
            | ConfigKey::Retention
            // Read together below.
            | ConfigKey::CpuQuota
            | ConfigKey::DiskQuota
            | ConfigKey::StartsQuota
            | ConfigKey::TenantQuotas
            | ConfigKey::ClassMin
            | ConfigKey::TenantClasses => {}
            ConfigKey::Registries => {
                let grants = serde_json::from_value(row.value.clone())?;
                registries = registries_of(&grants, tenant);
            }
            ConfigKey::Profile(language) => {
                let value = serde_json::from_value(row.value.clone())?;
                profiles.insert(language, ConfigValue { value, source });
            }
        }
    }
    ceilings.extend(quota_ceilings(rows, tenant)?);
    let settings = Settings::new(profiles, ceilings).with_floors(floor::floors(rows, tenant)?);
    Ok(settings.with_registries(registries))
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

/// The value in force of a key. Pure.
#[must_use]
pub fn value_of(key: ConfigKey, rows: &[ConfigRow]) -> Value {
    entry(key, rows).value
}

/// Every key as it is in force.
#[must_use]
pub fn entries(rows: &[ConfigRow]) -> Vec<ConfigEntry> {
    ConfigKey::all().map(|key| entry(key, rows)).collect()
}

fn entry(key: ConfigKey, rows: &[ConfigRow]) -> ConfigEntry {
    let of = |scope: ConfigScope| rows.iter().find(|row| row.key == key && row.scope == scope);
    let (global, tenant) = (of(ConfigScope::Global), of(ConfigScope::Tenant));
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
}

#[cfg(test)]
mod tests;
