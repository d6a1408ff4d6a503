//! Sessions as readers see them, and an operator's decision over one whose wipe stays unverified.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{Digest, RunId, SandboxId, TaskKey};
use crate::sandbox::{IsolationClass, SessionState, WipeEvidence, WipeStatus};

/// Body of `POST /api/sessions/:id/settle`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettleRequest {
    /// Who, for the record; the authority is the key's.
    #[schemars(length(min = 1, max = 256))]
    pub actor: String,
    /// Why it is accepted that this sandbox may not be gone.
    #[schemars(length(min = 1, max = 4_000))]
    pub reason: String,
}

/// An operator's recorded decision: the session ended without a verified wipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settlement {
    /// Sandbox whose session was settled.
    pub sandbox_id: SandboxId,
    /// The state that its session ended in.
    pub terminal_state: SessionState,
    /// Actor as named by the caller, for the record.
    pub actor: String,
    /// With which key.
    pub key_id: String,
    /// Reason, for the record.
    pub reason: String,
    /// The look whose failed evidence was accepted, from 1.
    pub evidence_look: i32,
    /// The digest of that evidence: sha256 over its text as SQL shows it (`evidence::text`).
    pub evidence_digest: Digest,
    /// When, ms since the epoch.
    pub settled_at: i64,
}

/// One look at a wipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WipeLook {
    /// Number of the look at this sandbox's wipe, from 1.
    pub look: i32,
    /// What was looked for, and found.
    pub evidence: WipeEvidence,
}

named! {
    /// Whether the processor itself keeps a sandbox apart from its host.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum HardwareIsolation {
        /// A virtual machine that the processor runs, as its worker has tried.
        Yes = "yes",
        /// A virtual machine that software emulates: a kernel of its own, kept apart by the emulator alone.
        Emulated = "emulated",
        /// Namespaces of the host's kernel, or a kernel in user space.
        No = "no",
        /// A provider says what it is; nothing of it was tried.
        Stated = "stated",
    }
}

impl HardwareIsolation {
    /// The disclosure in words: whether it is hardware isolation, and how that is known.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Yes => "hardware isolation (tried: a machine booted with KVM on this host)",
            Self::Emulated => {
                "not hardware isolation: a machine of its own, emulated in software (tried: it boots)"
            }
            Self::No => "not hardware isolation",
            Self::Stated => "not known to be hardware isolation: the provider's word, not tried",
        }
    }
}

/// What a sandbox really was, as its worker saw it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attestation {
    /// The class that was used, at least as strong as the one that was asked for.
    pub class: IsolationClass,
    /// The runtime, such as `crun`.
    pub runtime: String,
    /// Its version, as it prints it.
    pub runtime_version: String,
    /// The digest of its program; absent where it could not be read.
    pub runtime_digest: Option<Digest>,
    /// Kernel release: the host's, a machine's own, or `remote`.
    pub kernel: String,
    /// Version of the host's control groups: `v1`, `hybrid`, `v2`.
    pub cgroups: String,
    /// Whether the processor keeps it apart; absent in rows that earlier versions wrote.
    pub hardware_isolation: Option<HardwareIsolation>,
    /// What the host could not enforce though nobody asked for it.
    pub weak: Vec<String>,
}

/// Record of one sandbox's life, until a verified wipe or a settlement ends it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionView {
    /// Sandbox that the session is the record of.
    pub sandbox_id: SandboxId,
    /// Run whose task the sandbox executes.
    pub run_id: RunId,
    /// Its task's attempt.
    pub task_key: TaskKey,
    /// Which physical start of it, from 1.
    pub execution_no: i32,
    /// Where it is in its life.
    pub state: SessionState,
    /// Whether it waits for a verified wipe or an operator: its run does not end before.
    pub held: bool,
    /// Isolation class: the one that was asked for, and once its sandbox exists the one that was used.
    pub class: String,
    /// What its sandbox really was, once it exists.
    pub attestation: Option<Attestation>,
    /// When its worker last saw it alive, ms since the epoch.
    pub last_heartbeat_at: Option<i64>,
    /// Whether its worker lives and has not seen it alive for 10 s.
    #[serde(default)]
    pub stale: bool,
    /// Stable id of the worker's host: 16 hex digits.
    pub host_id: String,
    /// Executor id of the worker process that has the session, or had it last.
    pub executor_id: String,
    /// Looks at its wipe so far.
    pub wipe_looks: i32,
    /// When the next look is due, ms since the epoch.
    pub next_look_at: Option<i64>,
    /// ms since the epoch.
    pub created_at: i64,
    /// ms since the epoch.
    pub updated_at: i64,
    /// ms since the epoch; absent while it has not ended.
    pub ended_at: Option<i64>,
    /// What the last look found wrong, in a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
    /// The decision that ended it, where no verified wipe did.
    pub settlement: Option<Settlement>,
    /// Every look, for one session that is asked for by its id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub looks: Vec<WipeLook>,
}

/// A sandbox of a run and the newest evidence that it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WipeView {
    /// Sandbox of the run, wiped or not.
    pub sandbox_id: SandboxId,
    /// Its task's attempt.
    pub task_key: TaskKey,
    /// Where its session is.
    pub state: SessionState,
    /// The state that the evidence ended it in; `null` before the first look.
    pub terminal_state: Option<SessionState>,
    /// What the newest look found; `null` before the first.
    pub status: Option<WipeStatus>,
    /// Why it was wiped.
    pub reason: Option<String>,
    /// How it was wiped.
    pub method: Option<String>,
    /// When the look was, ms since the epoch.
    pub at: Option<i64>,
    /// Everything that was looked for, and found.
    pub evidence: Option<WipeEvidence>,
    /// Looks so far.
    pub looks: i32,
    /// The operator's decision that ended it, where no verified wipe did.
    pub settlement: Option<WipeSettlement>,
}

/// An operator's decision beside the evidence that it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WipeSettlement {
    /// Operator as the caller named it, for the record; the authority is the key's.
    pub actor: String,
    /// Reason, for the record.
    pub reason: String,
    /// The digest of the evidence that was accepted.
    pub evidence_digest: Digest,
    /// ms since the epoch.
    pub settled_at: i64,
}

/// What a look found wrong, in a line each.
#[must_use]
pub fn findings(evidence: &WipeEvidence) -> Vec<String> {
    evidence
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| {
            let seen = check.observed.as_deref().unwrap_or("not as it must be");
            format!("{} {}: {seen}", check.kind().as_str(), check.subject())
        })
        .collect()
}
