//! What a sandbox is asked to be, what it answered, and the evidence that it is gone.
//!
//! ```text
//! SandboxRequest --(sandbox::plan)--> Plan --(provision)--> Sandbox --(exec, collect)--> SandboxResult
//!                                                              \--(wipe)--> WipeEvidence
//! ```
//! A field that the host cannot enforce fails the request before anything runs; it is never ignored.
//!
//! One file: a request and its result are one exchange, and their fields are read side by side.

mod input;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::artifact::{FileOmission, OutputFile};
use crate::artifact_spec::ArtifactSpec;
pub use crate::cache::{CacheReport, CacheSpec};
pub use crate::egress::{Egress, EgressGrant, Phase, Violation, ViolationReason};
use crate::enum_names::named;
use crate::id::TaskKey;
pub use crate::input::InputMode;
pub use crate::limit::LimitKind;
use crate::model::ModelsSpec;
use crate::patch::{self, GitId, InputRepo, REPO_MOUNT};
use crate::secret::SecretUse;
use crate::service::{Service, ServiceReport};
use crate::task_outputs::TaskOutputs;
use crate::test_report::{MAX_REPORT_SPECS, ReportSpec};
use crate::toolchain::{MAX_TOOLCHAINS, Toolchain};
use crate::user::{EffectiveUser, UserName};
pub use crate::wipe::{
    ProcessIdentity, WipeCheck, WipeEvidence, WipeKind, WipeMethod, WipeStatus, WipeSubject,
};

pub use input::{AccessMode, BuildPhase, InputFile};

/// Longest wall time one task may ask for: one day. A bound so that a lost sandbox cannot hold a
/// slot for ever.
pub const MAX_TIMEOUT_MS: u64 = 86_400_000;
/// Wall time when a request does not say: ten minutes.
pub const DEFAULT_TIMEOUT_MS: u64 = 600_000;
/// Memory when a request does not say, in MiB.
pub const DEFAULT_MEM_MB: u64 = 512;
/// Processes and threads when a request does not say.
pub const DEFAULT_PIDS: u64 = 256;
/// Writable layer when a request does not say, in MiB. It is memory (tmpfs), so it is small.
pub const DEFAULT_DISK_MB: u64 = 512;
/// Bytes of each output stream that are kept; the rest is counted and dropped. 8 MiB holds the log
/// of a large test suite and keeps 100 floods on one host within reach of its memory.
pub const MAX_STREAM_BYTES: u64 = 8 * 1024 * 1024;
/// Fewest open files: below it the agent, whose limit it is too, could not serve its host.
pub const MIN_NOFILE: u64 = 64;
/// Bytes of all collected files of one task.
pub const MAX_COLLECT_BYTES: u64 = 64 * 1024 * 1024;
/// Collected files of one task.
pub const MAX_COLLECT_FILES: usize = 1_000;

/// Resource limits. Omitted: the operator's default, which is recorded as effective.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = publish_aliases)]
pub struct Limits {
    /// CPUs, fractions allowed: 0.01 to 1024.
    #[schemars(range(min = 0.01, max = 1024.0))]
    pub cpu: Option<f64>,
    /// Memory in MiB, the writable layer included: 16 to 4,194,304.
    #[serde(rename = "memMB", alias = "mem_mb")]
    #[schemars(range(min = 16, max = 4_194_304))]
    pub mem_mb: Option<u64>,
    /// Processes and threads: 1 to 1,000,000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub pids: Option<u64>,
    /// Writable layer in MiB: 1 to 4,194,304.
    #[serde(rename = "diskMB", alias = "disk_mb")]
    #[schemars(range(min = 1, max = 4_194_304))]
    pub disk_mb: Option<u64>,
    /// Bytes of each output stream that are kept: 1 to 8,388,608. The rest is counted and dropped.
    #[serde(rename = "outputBytes", alias = "output_bytes")]
    #[schemars(range(min = 1, max = 8_388_608))]
    pub output_bytes: Option<u64>,
    /// Open files of each process: 64 to 1,048,576, and at most the host's own hard limit.
    #[schemars(range(min = 64, max = 1_048_576))]
    pub nofile: Option<u64>,
}

/// Recipes write `mem_mb` where requests write `memMB`: both are read, so the schema names both.
fn publish_aliases(schema: &mut schemars::Schema) {
    let Some(serde_json::Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (name, alias) in
        [("memMB", "mem_mb"), ("diskMB", "disk_mb"), ("outputBytes", "output_bytes")]
    {
        if let Some(property) = properties.get(name).cloned() {
            properties.insert(alias.to_owned(), property);
        }
    }
}

named! {
    /// The weakest boundary that a request accepts, weakest first.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
    )]
    pub enum IsolationClass {
        /// Namespaces, cgroups and a system call filter on the host's kernel.
        Container = "container",
        /// A user-space kernel (gVisor).
        Gvisor = "gvisor",
        /// A kernel of its own on virtual hardware.
        Microvm = "microvm",
        /// A provider elsewhere.
        Remote = "remote",
    }
}

impl SandboxRequest {
    /// Where its repository is outside the sandbox: a path of the host, or a URL.
    #[must_use]
    pub fn repository(&self) -> Option<&str> {
        let repo = self.repo.as_ref()?;
        match repo.from == REPO_MOUNT {
            true => self.files_in.iter().find(|file| file.path == REPO_MOUNT)?.host_source(),
            false => Some(&repo.from),
        }
    }

    /// Binds the `ref` of its repository to a commit, which the build phase checks out then.
    pub fn bind_ref(&mut self, commit: &GitId) {
        let Some(repo) = &mut self.repo else { return };
        repo.commit = Some(commit.clone());
        if let Some(build) = &mut self.build {
            patch::check_out(build, repo);
        }
    }

    /// One command on a root file system, within this wall time in ms: no files, no environment, no network, and every
    /// limit by default.
    #[must_use]
    pub fn plain(env_ref: &str, cmd: Vec<String>, timeout_ms: u64) -> Self {
        Self {
            env_ref: env_ref.to_owned(),
            cmd,
            files_in: Vec::new(),
            env: BTreeMap::new(),
            workdir: None,
            user: None,
            stdin: None,
            input: None,
            timeout_ms,
            limits: Limits::default(),
            egress: Egress::None,
            egress_ask: false,
            secrets: Vec::new(),
            template_key: None,
            deps_hash: None,
            artifacts: Vec::new(),
            reports: Vec::new(),
            outputs: None,
            toolchains: Vec::new(),
            build: None,
            repo: None,
            spec: None,
        }
    }

    /// The weakest class that it accepts.
    #[must_use]
    pub fn class_min(&self) -> IsolationClass {
        let isolation = self.spec.as_ref().and_then(|spec| spec.isolation);
        isolation.map_or(IsolationClass::Container, |isolation| isolation.class_min)
    }

    /// The models that it may call, if any.
    #[must_use]
    pub fn models(&self) -> Option<&ModelsSpec> {
        self.spec.as_ref()?.models.as_ref()
    }

    /// Whether a person may be asked for names, or for more of its budget of models, on its behalf.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.egress_ask
            || self.build.as_ref().is_some_and(|build| build.ask)
            || self.models().is_some_and(|models| models.budget.ask)
    }
}

/// A mount that a sandbox spec asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path on the worker's host, within its allowed directories.
    pub source: String,
    /// Absolute path inside.
    pub target: String,
    /// What the task may do with it.
    #[serde(default)]
    pub access: AccessMode,
}

/// One phase of a spec.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseSpec {
    /// Network of the phase; where it is given, the request's own must be equal.
    pub egress: Option<Egress>,
    /// Secrets of the phase; where they are given, the request's own must be equal.
    pub secrets: Option<Vec<SecretUse>>,
    /// Wall time in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// Phases of a spec.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhasesSpec {
    /// Dependencies are fetched here.
    pub build: Option<PhaseSpec>,
    /// The task runs here.
    pub exec: Option<PhaseSpec>,
}

/// The isolation that a spec asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IsolationSpec {
    /// A weaker host refuses the request.
    pub class_min: IsolationClass,
}

/// Executables that an agent may run, by name or absolute path.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandPolicy {
    /// What may be executed beside the agent itself; absent: everything that is not denied.
    pub allowed: Option<Vec<String>>,
    /// What may not be executed.
    pub denied: Option<Vec<String>>,
}

/// The requested policy, immutable. Everything optional: omitted = unconstrained or the default.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the field names are the contract's own terms")]
pub struct SandboxSpec {
    /// The agent's own tools that it may use, such as `Read` or `Bash`; absent: all.
    pub tools_allowed: Option<Vec<String>>,
    /// The agent's own tools that it may not use.
    pub tools_denied: Option<Vec<String>>,
    /// The executables that it may run. Needs the class `container`.
    pub commands: Option<CommandPolicy>,
    pub working_dir: Option<String>,
    pub access_mode: Option<AccessMode>,
    pub max_turns: Option<u64>,
    pub max_commands: Option<u64>,
    pub image: Option<String>,
    /// Whom the commands run as: a name or number, and after a colon a group.
    pub user: Option<UserName>,
    pub mounts: Option<Vec<Mount>>,
    pub phases: Option<PhasesSpec>,
    pub services: Option<Vec<Service>>,
    pub limits: Option<Limits>,
    pub cache: Option<CacheSpec>,
    pub isolation: Option<IsolationSpec>,
    pub models: Option<ModelsSpec>,
}

/// One task's request: what a task key is computed over.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxRequest {
    /// Root file system: `host` (the host's `/usr`, read-only), `dir:/abs/path`, or an image of the
    /// worker's host: `image:NAME`, pinned by `image:NAME@sha256:HEX`.
    pub env_ref: String,
    /// argv of the task.
    pub cmd: Vec<String>,
    /// Files that the task finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_in: Vec<InputFile>,
    /// Environment of the task and not of its build phase; nothing of the host's is inherited.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory, absolute. Default `/work`.
    pub workdir: Option<String>,
    /// Whom task and build phase run as: a name of the root file system or a number, and after a colon a group. Default: the
    /// image's user, otherwise root.
    pub user: Option<UserName>,
    /// A file of the sandbox that is the task's standard input, absolute. Default: none.
    pub stdin: Option<String>,
    /// Standard input that the client sends while the task runs, which needs a start with `output=true`. Default: none.
    pub input: Option<InputMode>,
    /// Wall time of the task in milliseconds: 1 to 86,400,000.
    pub timeout_ms: u64,
    /// Resource limits of the sandbox; an absent one is the operator's default.
    #[serde(default)]
    pub limits: Limits,
    /// Network of the task. The contract that this request extends calls it `net`.
    #[serde(default, rename = "net")]
    pub egress: Egress,
    /// Whether a person is asked when the task is refused a name.
    #[serde(default, rename = "netAsk", skip_serializing_if = "std::ops::Not::not")]
    pub egress_ask: bool,
    /// Secrets that the egress proxy adds to requests of the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// A warm template's key, unused by the container class.
    pub template_key: Option<String>,
    /// Hash of the dependencies' lock files.
    pub deps_hash: Option<String>,
    /// Globs, relative to the working directory, of the files to keep; or `{path, required}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactSpec>,
    /// Test reports to read and keep: globs, relative to the working directory, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_REPORT_SPECS))]
    pub reports: Vec<ReportSpec>,
    /// File of its outputs, relative to the working directory: `.env` or `.json`. Later tasks of its run are given its values.
    pub outputs: Option<String>,
    /// Toolchains of the host, mounted read-only and first in `PATH`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_TOOLCHAINS))]
    pub toolchains: Vec<Toolchain>,
    /// A command that runs first.
    pub build: Option<BuildPhase>,
    /// The repository that the build phase checks out at `/work`; what changes there is kept as a patch.
    pub repo: Option<InputRepo>,
    /// Policy that has no field above, such as mounts, services, cache and isolation.
    pub spec: Option<SandboxSpec>,
}

named! {
    /// How a task's sandbox ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum ErrCode {
        /// The command exited with 0.
        None = "NONE",
        /// The sandbox could not be made as requested; nothing ran.
        BootFail = "BOOT_FAIL",
        /// The command ended with another status, or by a signal.
        CmdNonzero = "CMD_NONZERO",
        /// The wall time ran out.
        Timeout = "TIMEOUT",
        /// The kernel killed a process of the sandbox for memory.
        Oom = "OOM",
        /// The network of a phase failed.
        NetFail = "NET_FAIL",
        /// A file could not be given to the sandbox.
        UploadFail = "UPLOAD_FAIL",
        /// A file could not be collected.
        DownloadFail = "DOWNLOAD_FAIL",
    }
}

impl ErrCode {
    /// Whether a fresh attempt may end otherwise: faults of the host and its network, never of the task.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::BootFail | Self::NetFail | Self::UploadFail | Self::DownloadFail)
    }
}

/// What a task used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// Wall time of the task's command in milliseconds, without the build phase; of the build's command where that failed.
    pub wall_ms: u64,
    /// User and system time of the task's command and its waited-for children in milliseconds.
    pub cpu_ms: u64,
    /// Peak memory of the whole sandbox in MiB, rounded up.
    #[serde(rename = "memPeakMB")]
    pub mem_peak_mb: u64,
    /// From the decision to make the sandbox to its agent's first answer, in milliseconds.
    #[serde(default)]
    pub boot_ms: u64,
    /// Until the dependencies were there, in milliseconds: the build phase and keeping what it left, or
    /// finding them in the cache; 0 where neither was asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub build_ms: u64,
    /// From the end of the task to verified absence, in milliseconds.
    #[serde(default)]
    pub wipe_ms: u64,
}

/// What the sandbox answers: one row of `app.sbx_runs`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxResult {
    /// Exit status; 128 + n for signal n; -1 where nothing ran.
    pub exit: i32,
    /// The end of standard output, at most 4 KiB; the `stdout` artifact has the first 8 MiB.
    pub stdout: String,
    /// The end of standard error, at most 4 KiB; the `stderr` artifact has the first 8 MiB.
    pub stderr: String,
    /// Files that were collected after the task, each with its digest and size.
    pub files_out: Vec<OutputFile>,
    /// What it used.
    pub metrics: Metrics,
    /// The sandbox that ran it.
    pub sandbox_ref: String,
    /// How it ended.
    pub err_code: ErrCode,
    /// Bytes of output beyond what is kept of each stream: read, counted and dropped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// Whose result this is.
    pub task_key: TaskKey,
    /// The artifact index, once written.
    pub artifact_index_ref: Option<String>,
    /// How its services fared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceReport>,
    /// Why, in words, where `errCode` is not NONE or a limit was reached.
    pub cause: Option<String>,
    /// Whether another attempt on this host would end the same: what was asked for is refused here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
    /// With `permanent`: whether every other host would refuse it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent_everywhere: bool,
    /// The limits that it reached, the build phase included. A task may survive one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_reached: Vec<LimitKind>,
    /// What the egress proxy refused, in the order of the first attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// Refused attempts beyond the distinct ones that are listed: counted only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub violations_unlisted: u64,
    /// What came of the dependency cache, where one was asked for.
    pub cache: Option<CacheReport>,
    /// What an agent did, where the task was one.
    pub agent: Option<Box<crate::agent_report::AgentReport>>,
    /// Globs of its `reports` that matched no file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched_reports: Vec<String>,
    /// Globs of its `artifacts` that matched nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// Files that match its `artifacts` and are beyond a bound; those that fit are kept.
    pub omitted: Option<FileOmission>,
    /// The values of its outputs file, where it has one and succeeded.
    pub outputs: Option<TaskOutputs>,
}

impl SandboxResult {
    /// The answer of an attempt of which nothing is known: no sandbox, no output, and the cause.
    #[must_use]
    pub fn unanswered(task_key: TaskKey, cause: Option<String>) -> Self {
        Self {
            exit: -1,
            stdout: String::new(),
            stderr: String::new(),
            files_out: Vec::new(),
            metrics: Metrics::default(),
            sandbox_ref: String::new(),
            err_code: ErrCode::CmdNonzero,
            dropped_bytes: 0,
            task_key,
            artifact_index_ref: None,
            services: Vec::new(),
            cause,
            permanent: false,
            permanent_everywhere: false,
            limits_reached: Vec::new(),
            violations: Vec::new(),
            violations_unlisted: 0,
            cache: None,
            agent: None,
            unmatched_reports: Vec::new(),
            unmatched: Vec::new(),
            omitted: None,
            outputs: None,
        }
    }
}

pub(crate) fn is_zero(n: &u64) -> bool {
    *n == 0
}

named! {
    /// How a session ended, on the ledger.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SessionState {
        /// Mounts, cgroup and namespaces are being made.
        Provisioning = "PROVISIONING",
        /// The build phase runs.
        Building = "BUILDING",
        /// The task runs.
        Executing = "EXECUTING",
        /// Files are read out.
        Collecting = "COLLECTING",
        /// Everything is being taken away, and looked for.
        RemoteWipeVerifying = "REMOTE_WIPE_VERIFYING",
        /// Ended, wipe verified: the task exited 0.
        Completed = "COMPLETED",
        /// Ended, wipe verified: the task failed.
        Failed = "FAILED",
        /// Ended, wipe verified: canceled.
        Canceled = "CANCELED",
        /// Ended, wipe verified: its worker was lost.
        Orphaned = "ORPHANED",
    }
}

/// What was really enforced, recorded beside what was requested.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EffectivePolicy {
    /// Isolation class of the sandbox, at least as strong as the one asked for.
    pub isolation_class: IsolationClass,
    /// Runtime, such as `crun`.
    pub runtime: String,
    /// Its version, as it prints it.
    pub runtime_version: String,
    /// Release of the kernel below the sandbox: a microVM's own, `remote`, or the host's.
    pub kernel: String,
    /// Root file system; an image with the digest that it had.
    pub image: String,
    /// Whom the task ran as, where that was not root.
    pub user: Option<EffectiveUser>,
    /// Limits as enforced.
    pub limits: Limits,
    /// Wall time as enforced.
    pub timeout_ms: u64,
    /// Network of the task as enforced. A mirror stands there by its name, never with its address.
    #[serde(rename = "net")]
    pub egress: Egress,
    /// Network of the build phase as enforced.
    #[serde(default, rename = "buildNet", skip_serializing_if = "Egress::is_none")]
    pub build_egress: Egress,
    /// What came of the dependency cache, where one was asked for.
    pub cache: Option<CacheReport>,
    /// Names that a person granted while it ran, each to one phase and until a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<EgressGrant>,
    /// What the host could not enforce though nobody asked for it; empty on a good host.
    pub weak: Vec<String>,
}
