//! Wall times and limits by language: defaults in code, overridden by configuration, under ceilings.
//!
//! ```text
//! defaults (here) <- profile.LANGUAGE of the host <- profile.LANGUAGE of the tenant
//!      what a task itself says <------------------------ fills what it leaves out
//!           limits.ceiling of the host, limits.ceiling of the tenant: refuse what is above
//!           quota.cpu, quota.disk_mb, quota.tenants: the same, since more would wait for ever
//!           isolation.class_min, isolation.tenants: raise what accepts a weaker class
//! ```
//! [`Settings`] is that table for one tenant at one moment. It is resolved when a plan is compiled and
//! never looked at again: what an approver agrees to has its numbers in it.

use std::collections::BTreeMap;
use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{ConfigKey, ConfigRef, ConfigRow, ConfigScope};
use crate::enum_names::named;
use crate::error::{ErrorCode, Refusal};
use crate::floor::{self, ClassFloor};
use crate::id::TenantId;
use crate::image_reference;
use crate::quota::TenantQuotas;
use crate::sandbox::{
    DEFAULT_DISK_MB, DEFAULT_MEM_MB, DEFAULT_PIDS, DEFAULT_TIMEOUT_MS, Limits, MAX_STREAM_BYTES,
    SandboxRequest,
};

named! {
    /// A language that has a profile.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    #[allow(missing_docs, reason = "languages are known by their names")]
    pub enum Language {
        Python = "python",
        Node = "node",
        Rust = "rust",
        Go = "go",
        Java = "java",
        Dotnet = "dotnet",
        Ruby = "ruby",
        Php = "php",
        C = "c",
        Shell = "shell",
    }
}

impl Language {
    /// The profile where no configuration says otherwise. Compiled languages get longer, because
    /// their tests compile first; a compiler or a virtual machine gets more memory and processes.
    #[must_use]
    pub fn profile(self) -> Profile {
        let (build_s, exec_s, mem_mb, pids, disk_mb) = match self {
            Self::Python => (600, 300, 1_024, 256, 1_024),
            Self::Node => (600, 300, 2_048, 512, 2_048),
            Self::Rust => (1_800, 1_200, 4_096, 512, 4_096),
            Self::Go => (900, 600, 2_048, 512, 2_048),
            Self::Java | Self::Dotnet => (1_200, 900, 4_096, 1_024, 2_048),
            Self::Ruby | Self::Php => (600, 300, 1_024, 256, 1_024),
            Self::C => (900, 600, 2_048, 512, 2_048),
            Self::Shell => (300, 120, DEFAULT_MEM_MB, DEFAULT_PIDS, DEFAULT_DISK_MB),
        };
        Profile {
            build_timeout_ms: build_s * 1_000,
            exec_timeout_ms: exec_s * 1_000,
            limits: Limits {
                mem_mb: Some(mem_mb),
                pids: Some(pids),
                disk_mb: Some(disk_mb),
                ..Limits::default()
            },
        }
    }
}

/// What a task of a language gets where it does not say: the value of `profile.LANGUAGE`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// Wall time of the build phase in milliseconds.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub build_timeout_ms: u64,
    /// Wall time of the task in milliseconds.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub exec_timeout_ms: u64,
    /// Limits; what is left out is the host's default.
    #[serde(default)]
    pub limits: Limits,
}

/// What nothing may exceed: the value of `limits.ceiling`. What is left out has no ceiling but the
/// contract's own.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ceiling {
    /// Wall time of a phase in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400_000))]
    pub timeout_ms: Option<u64>,
    /// Limits of CPU, memory, processes, disk, files and output.
    #[serde(default)]
    pub limits: Limits,
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigValue<T> {
    /// Value of the configuration key, parsed.
    pub value: T,
    /// Which version of which key.
    pub source: ConfigRef,
}

/// The configuration that one plan is compiled with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    profiles: BTreeMap<Language, ConfigValue<Profile>>,
    ceilings: Vec<ConfigValue<Ceiling>>,
    floors: Vec<ClassFloor>,
    /// Absent where they are not known, as beside a recipe that is only checked.
    registries: Option<Vec<String>>,
}

impl Default for Settings {
    /// Nothing is configured.
    fn default() -> Self {
        let profiles = Language::ALL.iter().copied().map(|language| {
            let source = ConfigRef {
                key: ConfigKey::Profile(language),
                scope: ConfigScope::Default,
                version: 0,
            };
            (language, ConfigValue { value: language.profile(), source })
        });
        Self {
            profiles: profiles.collect(),
            ceilings: Vec::new(),
            floors: Vec::new(),
            registries: None,
        }
    }
}

/// A wall time, and the field that says it.
struct WallTime {
    field: &'static str,
    ms: u64,
}

/// A number above a ceiling.
struct Excess {
    field: &'static str,
    limit: String,
    observed: String,
}

fn excess<T: PartialOrd + Display>(
    field: &'static str,
    asked: Option<T>,
    most: Option<T>,
) -> Option<Excess> {
    match (asked, most) {
        (Some(asked), Some(most)) if asked > most => {
            Some(Excess { field, limit: most.to_string(), observed: asked.to_string() })
        }
        _ => None,
    }
}

impl Ceiling {
    /// The first number above it.
    fn exceeded(&self, limits: &Limits, times: &[WallTime]) -> Option<Excess> {
        let most = &self.limits;
        let numbers = [
            excess("limits.cpu", limits.cpu, most.cpu),
            excess("limits.memMB", limits.mem_mb, most.mem_mb),
            excess("limits.pids", limits.pids, most.pids),
            excess("limits.diskMB", limits.disk_mb, most.disk_mb),
            excess("limits.outputBytes", limits.output_bytes, most.output_bytes),
            excess("limits.nofile", limits.nofile, most.nofile),
        ];
        let times = times.iter().map(|time| excess(time.field, Some(time.ms), self.timeout_ms));
        numbers.into_iter().chain(times).flatten().next()
    }
}

impl ConfigValue<Ceiling> {
    fn refuse(&self, what: &str, excess: &Excess) -> Refusal {
        let Excess { field, limit, observed } = excess;
        let hint = match self.source.key {
            ConfigKey::CpuQuota | ConfigKey::DiskQuota | ConfigKey::TenantQuotas => {
                ": ask for less, or let the host's admin raise the quota"
            }
            _ => "",
        };
        let message =
            format!("{what}: {field} is {observed}, {} allows {limit}{hint}", self.source);
        Refusal::new(ErrorCode::PolicyViolation, message).with(serde_json::json!({
            "metric": field, "limit": limit, "observed": observed, "setBy": self.source,
        }))
    }
}

impl Settings {
    /// With the values that are configured. A default that nobody wrote down gives way to a ceiling;
    /// what somebody wrote is held against it when it is used.
    #[must_use]
    pub fn new(
        profiles: BTreeMap<Language, ConfigValue<Profile>>,
        ceilings: Vec<ConfigValue<Ceiling>>,
    ) -> Self {
        let mut settings = Self { ceilings, ..Self::default() };
        let most_ms = settings.most_ms();
        for profile in settings.profiles.values_mut() {
            let Profile { build_timeout_ms, exec_timeout_ms, limits } = &mut profile.value;
            *build_timeout_ms =
                most_ms.map_or(*build_timeout_ms, |most| most.min(*build_timeout_ms));
            *exec_timeout_ms = most_ms.map_or(*exec_timeout_ms, |most| most.min(*exec_timeout_ms));
            for ceiling in &settings.ceilings {
                *limits = lowered(*limits, ceiling.value.limits);
            }
        }
        settings.profiles.extend(profiles);
        settings
    }

    /// Adds the least isolation classes that bind the tenant.
    #[must_use]
    pub fn with_floors(self, floors: Vec<ClassFloor>) -> Self {
        Self { floors, ..self }
    }

    /// Sets the registries that images of the tenant's services may come from; without, all are taken.
    #[must_use]
    pub fn with_registries(self, registries: Vec<String>) -> Self {
        Self { registries: Some(registries), ..self }
    }

    /// The registries that images of the tenant's services may come from, if they are known.
    #[must_use]
    pub fn registries(&self) -> Option<&[String]> {
        self.registries.as_deref()
    }

    /// The least isolation class in force.
    #[must_use]
    pub fn floor(&self) -> Option<&ClassFloor> {
        floor::strongest(&self.floors)
    }

    /// What shapes every plan, whatever its recipe says.
    pub fn always(&self) -> impl Iterator<Item = ConfigRef> {
        let floor = self.floor().map(|floor| floor.source);
        self.ceilings.iter().map(|ceiling| ceiling.source).chain(floor)
    }

    /// A language's profile in force.
    #[must_use]
    pub fn profile(&self, language: Language) -> Option<&ConfigValue<Profile>> {
        self.profiles.get(&language)
    }

    /// The ceilings in force.
    #[must_use]
    pub fn ceilings(&self) -> &[ConfigValue<Ceiling>] {
        &self.ceilings
    }

    fn most_ms(&self) -> Option<u64> {
        self.ceilings.iter().filter_map(|ceiling| ceiling.value.timeout_ms).min()
    }

    /// Wall time of a phase that does not say.
    #[must_use]
    pub fn default_timeout_ms(&self) -> u64 {
        self.most_ms().map_or(DEFAULT_TIMEOUT_MS, |most| most.min(DEFAULT_TIMEOUT_MS))
    }

    /// Holds a profile against every ceiling.
    pub fn check_profile(&self, what: &str, profile: &Profile) -> Result<(), Refusal> {
        let times = [
            WallTime { field: "buildTimeoutMs", ms: profile.build_timeout_ms },
            WallTime { field: "execTimeoutMs", ms: profile.exec_timeout_ms },
        ];
        self.check(what, &profile.limits, &times)
    }

    /// Holds a ceiling against the others: a tenant's may be lower than the host's, never higher.
    pub fn check_ceiling(&self, what: &str, ceiling: &Ceiling) -> Result<(), Refusal> {
        let time = ceiling.timeout_ms.map(|ms| WallTime { field: "timeoutMs", ms });
        self.check(what, &ceiling.limits, time.as_slice())
    }

    fn check(&self, what: &str, limits: &Limits, times: &[WallTime]) -> Result<(), Refusal> {
        for ceiling in &self.ceilings {
            if let Some(excess) = ceiling.value.exceeded(limits, times) {
                return Err(ceiling.refuse(what, &excess));
            }
        }
        Ok(())
    }

    /// Gives a request what it leaves out, raises its class to the least one, then holds all of it against every ceiling.
    pub fn settle(&self, what: &str, request: &mut SandboxRequest) -> Result<(), Refusal> {
        if let Some(least) = self.floor() {
            floor::raise(request, least.value);
        }
        image_reference::check(what, request, self.registries())?;
        for ceiling in &self.ceilings {
            // What has a ceiling and was not asked for: the default, or the ceiling if that is less.
            request.limits = merged(request.limits, lowered(ceiling.value.limits, DEFAULTS));
            if let (Some(_), Some(build)) = (ceiling.value.timeout_ms, &mut request.build) {
                build.timeout_ms = Some(build.timeout_ms.unwrap_or(self.default_timeout_ms()));
            }
        }
        let mut times = vec![WallTime { field: "timeoutMs", ms: request.timeout_ms }];
        let build_ms = request.build.as_ref().and_then(|build| build.timeout_ms);
        times.extend(build_ms.map(|ms| WallTime { field: "build.timeoutMs", ms }));
        self.check(what, &request.limits, &times)
    }
}

/// The host's quota of a tenant, and where it stands: the tenant's by name before that of every tenant.
///
/// # Errors
/// A row whose value does not fit its key.
pub fn hosts_quota(
    key: ConfigKey,
    rows: &[ConfigRow],
    tenant: &TenantId,
) -> Result<Option<(u64, ConfigRef)>, serde_json::Error> {
    let of = |key: ConfigKey| {
        let is_hosts = |row: &&ConfigRow| row.key == key && row.scope == ConfigScope::Global;
        rows.iter().find(is_hosts).filter(|row| !row.value.is_null())
    };
    if let Some(row) = of(ConfigKey::TenantQuotas) {
        let mut all: TenantQuotas = serde_json::from_value(row.value.clone())?;
        let own = all.remove(tenant.as_str()).unwrap_or_default();
        let named = match key {
            ConfigKey::CpuQuota => own.cpu,
            ConfigKey::DiskQuota => own.disk_mb,
            ConfigKey::StartsQuota => own.starts_per_minute,
            _ => None,
        };
        if let Some(most) = named {
            return Ok(Some((most, row.reference())));
        }
    }
    Ok(of(key).and_then(|row| Some((row.value.as_u64()?, row.reference()))))
}

/// What the quotas in force allow a single task: one that asks for more would wait for ever.
///
/// # Errors
/// A row whose value does not fit its key.
pub fn quota_ceilings(
    rows: &[ConfigRow],
    tenant: &TenantId,
) -> Result<Vec<ConfigValue<Ceiling>>, serde_json::Error> {
    let mut ceilings = Vec::new();
    for key in [ConfigKey::CpuQuota, ConfigKey::DiskQuota] {
        let own = |row: &&ConfigRow| row.key == key && row.scope == ConfigScope::Tenant;
        let own =
            rows.iter().find(own).and_then(|row| Some((row.value.as_u64()?, row.reference())));
        for (most, source) in hosts_quota(key, rows, tenant)?.into_iter().chain(own) {
            let limits = match key {
                // No request may ask for more cores than the contract's own bound.
                ConfigKey::CpuQuota => {
                    let cores = u16::try_from(most).map_or(f64::from(u16::MAX), f64::from);
                    Limits { cpu: Some(cores), ..Limits::default() }
                }
                _ => Limits { disk_mb: Some(most), ..Limits::default() },
            };
            ceilings.push(ConfigValue { value: Ceiling { timeout_ms: None, limits }, source });
        }
    }
    Ok(ceilings)
}

/// What a task gets that has a ceiling and does not ask. All CPUs of a host is not a number that is
/// known here, so one is, which every host has; open files are what programs are used to.
const DEFAULTS: Limits = Limits {
    cpu: Some(1.0),
    mem_mb: Some(DEFAULT_MEM_MB),
    pids: Some(DEFAULT_PIDS),
    disk_mb: Some(DEFAULT_DISK_MB),
    output_bytes: Some(MAX_STREAM_BYTES),
    nofile: Some(1_024),
};

/// Each number that is there, at most the other's.
fn lowered(limits: Limits, most: Limits) -> Limits {
    let least = |value: Option<u64>, most: Option<u64>| {
        value.map(|value| most.map_or(value, |most| most.min(value)))
    };
    Limits {
        cpu: limits.cpu.map(|cpu| most.cpu.map_or(cpu, |most| most.min(cpu))),
        mem_mb: least(limits.mem_mb, most.mem_mb),
        pids: least(limits.pids, most.pids),
        disk_mb: least(limits.disk_mb, most.disk_mb),
        output_bytes: least(limits.output_bytes, most.output_bytes),
        nofile: least(limits.nofile, most.nofile),
    }
}

/// What a task says comes before its profile.
#[must_use]
pub fn merged(asked: Limits, profile: Limits) -> Limits {
    Limits {
        cpu: asked.cpu.or(profile.cpu),
        mem_mb: asked.mem_mb.or(profile.mem_mb),
        pids: asked.pids.or(profile.pids),
        disk_mb: asked.disk_mb.or(profile.disk_mb),
        output_bytes: asked.output_bytes.or(profile.output_bytes),
        nofile: asked.nofile.or(profile.nofile),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check;

    fn ceiling(scope: ConfigScope, timeout_ms: u64, mem_mb: u64) -> ConfigValue<Ceiling> {
        let limits = Limits { mem_mb: Some(mem_mb), cpu: Some(2.0), ..Limits::default() };
        ConfigValue {
            value: Ceiling { timeout_ms: Some(timeout_ms), limits },
            source: ConfigRef { key: ConfigKey::Ceiling, scope, version: 4 },
        }
    }

    #[test]
    fn every_default_is_a_value_that_could_be_configured() {
        for language in Language::ALL.iter().copied() {
            assert_eq!(Language::parse(language.as_str()), Some(language));
            let value = serde_json::to_value(language.profile()).unwrap();
            check(&ConfigKey::Profile(language), &value).unwrap();
        }
    }

    #[test]
    fn a_default_gives_way_to_a_ceiling_and_a_written_profile_is_refused() {
        let most = vec![ceiling(ConfigScope::Global, 200_000, 900)];
        let settings = Settings::new(BTreeMap::new(), most);
        let python = settings.profile(Language::Python).unwrap().value;
        assert_eq!((python.build_timeout_ms, python.exec_timeout_ms), (200_000, 200_000));
        assert_eq!((python.limits.mem_mb, python.limits.pids), (Some(900), Some(256)));
        settings.check_profile("default", &python).unwrap();
        let refusal =
            settings.check_profile("profile.rust", &Language::Rust.profile()).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation);
        let details = refusal.details.unwrap();
        assert_eq!(
            (&details["metric"], &details["limit"]),
            (&"limits.memMB".into(), &"900".into())
        );
        assert_eq!(details["setBy"]["version"], 4);
    }

    #[test]
    fn the_lowest_of_two_ceilings_holds_and_says_whose_it_is() {
        let both = vec![
            ceiling(ConfigScope::Global, 500_000, 2_000),
            ceiling(ConfigScope::Tenant, 100_000, 1_000),
        ];
        let settings = Settings::new(BTreeMap::new(), both);
        assert_eq!(settings.default_timeout_ms(), 100_000);
        let json = serde_json::json!({
            "envRef": "host", "cmd": ["true"], "timeoutMs": 100_000, "build": {"cmd": ["make"]},
        });
        let mut request: SandboxRequest = serde_json::from_value(json).unwrap();
        settings.settle("t", &mut request).unwrap();
        assert_eq!((request.limits.mem_mb, request.limits.cpu), (Some(512), Some(1.0)));
        assert_eq!(request.limits.pids, None, "without a ceiling it stays the host's to say");
        assert_eq!(request.build.as_ref().unwrap().timeout_ms, Some(100_000));
        request.limits.mem_mb = Some(1_500);
        let refusal = settings.settle("t", &mut request).unwrap_err();
        assert!(refusal.message.contains("limits.ceiling of the tenant, version 4"), "{refusal}");
    }
}
