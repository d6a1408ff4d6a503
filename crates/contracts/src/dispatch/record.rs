//! The record of what held a dispatch: `app.dispatches.sandbox_effective`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::egress::{Egress, Phase, ViolationReason};
use crate::model::{ModelSpend, ModelsSpec};
use crate::sandbox::{
    AccessMode, CacheSpec, CommandPolicy, IsolationClass, Limits, Mount, PhasesSpec,
};
use crate::service::Service;

/// The version of the record.
const SCHEMA_VERSION: u32 = 2;

/// What was refused, or overstepped.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentViolation {
    /// Rule that was broken; it decides what `subject` names.
    pub kind: ViolationKind,
    /// The program, path, name or limit.
    pub subject: String,
    /// The port that was asked for.
    pub port: Option<u16>,
    /// Why the egress proxy refused it.
    pub why: Option<ViolationReason>,
    /// When in the sandbox's life.
    pub phase: Phase,
    /// Number of refused attempts; for a limit, turns or commands beyond it.
    pub count: u64,
    /// ms since the epoch.
    pub first_ms: i64,
    /// ms since the epoch.
    pub last_ms: i64,
}

/// Kinds of violations.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ViolationKind {
    /// A program that the policy does not allow; the kernel refused to execute it.
    ToolDenied,
    /// A write outside the working directory; the kernel refused it.
    WriteDenied,
    /// A network socket where the phase has no names; the kernel refused it.
    SocketDenied,
    /// A name or address that the egress proxy refused.
    EgressDenied,
    /// More turns than `max_turns`.
    TurnsExceeded,
    /// More commands than `max_commands`.
    CommandsExceeded,
}

/// The calls of models that a dispatch could make, and what it made of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EffectiveModels {
    /// Providers, models and bounds that were in force.
    pub spec: ModelsSpec,
    /// What it called, by provider and model; absent where the ledger did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<Vec<ModelSpend>>,
}

/// The effective policy: `app.dispatches.sandbox_effective`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the field names are the contract's own terms")]
pub struct SandboxEffective {
    pub schema_version: u32,
    /// Whether a sandbox was made; where not, nothing ran.
    pub started: bool,
    pub tools_allowed: Option<Vec<String>>,
    pub tools_denied: Option<Vec<String>>,
    /// The executables that the kernel held.
    pub commands: Option<CommandPolicy>,
    /// Names that were not held, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools_unenforced: BTreeMap<String, String>,
    pub working_dir: String,
    pub access_mode: AccessMode,
    pub max_turns: Option<u64>,
    pub max_commands: Option<u64>,
    /// Whether the two limits above end the dispatch, or are only reported.
    pub enforce: bool,
    pub image: Option<String>,
    pub mounts: Option<Vec<Mount>>,
    pub phases: Option<PhasesSpec>,
    pub services: Option<Vec<Service>>,
    pub limits: Option<Limits>,
    pub cache: Option<CacheSpec>,
    /// The models that it could call, and those that it did: what it read went to their providers.
    pub models: Option<EffectiveModels>,
    /// Fields of the spec that were kept verbatim and that nothing enforced.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub unenforced: Map<String, Value>,
    /// The agent's own tools that it used, in order of their names; absent where its events do not tell them.
    pub tools_used: Option<Vec<String>>,
    /// Programs that were executed, and how often; absent where nothing counted them.
    pub programs_used: Option<BTreeMap<String, u64>>,
    pub turns_used: Option<u64>,
    /// By what its turns are counted; absent where nothing counts them.
    pub turns_from: Option<CountSource>,
    /// By what the tokens of the dispatch are counted; absent where nobody told any: then they are not known, whatever the
    /// dispatch's own figures, which are 0.
    pub tokens_from: Option<CountSource>,
    pub commands_used: Option<u64>,
    pub runtime: Option<String>,
    pub runtime_version: Option<String>,
    pub kernel: Option<String>,
    pub isolation_class: Option<IsolationClass>,
    /// The image's digest; absent where the root is the host's.
    pub image_digest: Option<String>,
    pub egress_observed: ObservedEgress,
    pub peaks: Peaks,
    pub violations: Vec<AgentViolation>,
    /// Attempts beyond those that are listed.
    pub violations_unlisted: u64,
    /// What the host could not enforce though nobody asked for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weak: Vec<String>,
    /// Why it ended as it did, where that was not by itself.
    pub cause: Option<String>,
}

impl SandboxEffective {
    /// The record of a dispatch whose agent was never sent off: nothing was held, since nothing ran.
    #[must_use]
    pub fn never_started(working_dir: String, access_mode: AccessMode, cause: String) -> Self {
        Self { cause: Some(cause), ..Self::unknown(working_dir, access_mode) }
    }

    /// A record of which nothing is known yet but where the agent works, and how.
    #[must_use]
    pub fn unknown(working_dir: String, access_mode: AccessMode) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            started: false,
            tools_allowed: None,
            tools_denied: None,
            commands: None,
            tools_unenforced: BTreeMap::new(),
            working_dir,
            access_mode,
            max_turns: None,
            max_commands: None,
            enforce: false,
            image: None,
            mounts: None,
            phases: None,
            services: None,
            limits: None,
            cache: None,
            models: None,
            unenforced: Map::new(),
            tools_used: None,
            programs_used: None,
            turns_used: None,
            turns_from: None,
            tokens_from: None,
            commands_used: None,
            runtime: None,
            runtime_version: None,
            kernel: None,
            isolation_class: None,
            image_digest: None,
            egress_observed: ObservedEgress::default(),
            peaks: Peaks::default(),
            violations: Vec::new(),
            violations_unlisted: 0,
            weak: Vec::new(),
            cause: None,
        }
    }
}

/// By what a figure of a dispatch is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CountSource {
    /// The ledger of calls: what the provider answered.
    Calls,
    /// What the agent says itself.
    Agent,
    /// Results of its tools, for the agent says no turns: as many at least. Turns without a tool, and with one that it
    /// does not report, are not among them.
    ToolResults,
}

/// What the network of a dispatch saw.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObservedEgress {
    /// What could be reached.
    pub allowed: Egress,
    /// Attempts that were refused.
    pub refused: u64,
}

/// The most that a dispatch used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Peaks {
    pub mem_mb: u64,
    pub wall_ms: u64,
    pub cpu_ms: u64,
}
