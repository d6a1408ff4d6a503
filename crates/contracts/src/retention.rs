//! How long content stays, what went, and who uses what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::enum_names::named;
use crate::id::{RunId, TenantId};

named! {
    /// What of a run is erased.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum Content {
        /// What was asked for: inputs, plan, requests of its tasks, answers of its gates, prompts of agents.
        Prompt = "prompt",
        /// What came of it: results, artifacts, streams, reports, answers of models.
        Output = "output",
    }
}

named! {
    /// What somebody erases of a run.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum Erasable {
        /// Its prompt, and that of every run of the same intent.
        Prompt = "prompt",
        /// What its tasks left: artifacts, streams, reports.
        Output = "output",
        /// The prompt and the output together.
        Run = "run",
    }
}

named! {
    /// Why a content went.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum ErasureCause {
        /// Somebody asked for it.
        Asked = "asked",
        /// Retention: its run ended longer ago than `ageDays`.
        Age = "age",
        /// Retention: `runs` newer runs of its tenant have their content.
        Count = "count",
        /// Retention: newer runs of its tenant have `contentMB` of artifacts.
        Bytes = "bytes",
    }
}

/// How long content of ended runs stays: the widest of these rules holds, and none where there is no rule. What proofs need of a run
/// stays for ever.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retention {
    /// Days after its end for which a run has its content.
    #[serde(alias = "age_days")]
    #[schemars(range(min = 1, max = 36_500))]
    pub age_days: Option<u32>,
    /// How many of the newest ended runs have their content.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub runs: Option<u32>,
    /// MiB of artifacts that the newest ended runs have together.
    #[serde(rename = "contentMB", alias = "content_mb")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub content_mb: Option<u32>,
}

impl Retention {
    /// Whether nothing ever goes.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// Body of `POST /api/runs/{id}/erase`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EraseRequest {
    /// What goes: `prompt`, `output`, or both as `run`.
    pub content: Erasable,
    /// Reason, for the record.
    #[schemars(
        length(min = 1, max = 1_000),
        regex(pattern = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$")
    )]
    pub why: String,
}

/// Body of `POST /api/secrets/{secret}/erase`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretErasure {
    /// Reason, for the record.
    #[schemars(
        length(min = 1, max = 1_000),
        regex(pattern = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$")
    )]
    pub why: String,
}

/// What an erasure or a part of a collection took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErasureTotals {
    /// Runs whose content went.
    pub runs: u64,
    /// Bytes of that content.
    pub bytes: u64,
    /// Stored files that no run had any more.
    pub blobs: u64,
}

impl ErasureTotals {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            runs: self.runs.saturating_add(other.runs),
            bytes: self.bytes.saturating_add(other.bytes),
            blobs: self.blobs.saturating_add(other.blobs),
        }
    }
}

/// An erasure on record.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErasureRow {
    /// What went: `prompt`, `output` or `secret`.
    pub content: String,
    /// Why it went.
    pub cause: ErasureCause,
    /// By which key.
    pub key_id: String,
    /// Reason on record; of retention the rule in force.
    pub why: String,
    /// Bytes of the content.
    pub bytes: u64,
    /// Copies that were removed, with rows, bytes and SHA-256; the hash of every other part stands in its own row.
    pub removed: Value,
    /// When, ms since the epoch.
    pub at: i64,
}

/// Where a collection goes on.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcPosition {
    /// Tenant whose runs are next; absent: stored files without a run are.
    pub tenant: Option<TenantId>,
    /// The last run or stored file that was looked at.
    #[schemars(length(max = 128))]
    pub after: Option<String>,
}

/// Body of `POST /api/gc`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcRequest {
    /// Where to go on: `next` of the last answer; absent: at the beginning.
    pub from: Option<GcPosition>,
}

/// What one request of a collection did: about two seconds of work.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcStep {
    /// Runs whose content went, with its bytes.
    pub erased: ErasureTotals,
    /// Cached bases that were given up; their hosts remove them.
    pub bases: u64,
    /// Where to go on; absent: it is done.
    pub next: Option<GcPosition>,
    /// What keeps its content, since its erasure failed; the rest went on. The server's log says why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<GcFailure>,
}

/// A run or a tenant that a collection could not take.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcFailure {
    /// Tenant that owns the runs.
    pub tenant: TenantId,
    /// The run that was left out; absent: the runs of the tenant that come after those that went.
    pub run: Option<RunId>,
    /// The public error.
    pub why: String,
}

/// What retention would take of a tenant now.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GcDue {
    /// Tenant that owns the runs.
    pub tenant: TenantId,
    /// The retention in force.
    pub retention: Retention,
    /// The rule that takes most; absent: nothing is due.
    pub cause: Option<ErasureCause>,
    /// Runs that ended then or before are due, ms since the epoch.
    pub until: Option<i64>,
    /// Runs that are due.
    pub runs: u64,
    /// Bytes of their artifacts.
    pub bytes: u64,
}

/// What a collection would take now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GcPreview {
    /// Version of this form.
    pub schema_version: u32,
    /// By tenant; those without a rule are left out.
    pub due: Vec<GcDue>,
    /// Stored files that no run has.
    pub blobs: u64,
    /// Bytes of those blobs.
    pub blob_bytes: u64,
}

/// A count with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoredBytes {
    /// How many there are.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// What a tenant uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantStorage {
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Runs on record.
    pub runs: u64,
    /// Runs of them without content.
    pub erased_runs: u64,
    /// Attempts of tasks on record.
    pub tasks: u64,
    /// Artifacts that have their bytes; what several share counts for each.
    pub artifacts: StoredBytes,
    /// Cached bases of dependencies, on the disks of their hosts.
    pub cache: StoredBytes,
    /// Files of paused sandboxes, snapshots and templates, on the disks of their hosts.
    pub pauses: StoredBytes,
    /// Copies of host directories that a run needs, on the disks of their hosts; before what they share as hard links.
    pub trees: StoredBytes,
    /// Directories that clients sent to the server that was asked, on its disk: those that are whole, and the bytes of all that counts
    /// for `quota.trees_mb`.
    pub sent: StoredBytes,
    /// What counts for `quota.blobs_mb`.
    pub quota_bytes: u64,
}

/// A table of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TableBytes {
    /// Schema and name.
    pub table: String,
    /// Bytes on the disk, with indexes and long values.
    pub bytes: u64,
    /// Rows, as the database last counted them.
    pub rows: u64,
    /// Rows that are gone and whose room is not given back yet.
    pub dead_rows: u64,
}

/// Who uses what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageReport {
    /// Version of this form.
    pub schema_version: u32,
    /// By tenant: the caller's; for the host's admin every one.
    pub tenants: Vec<TenantStorage>,
    /// Bytes of the whole database on its disk; 0 for other keys than the host's admin's.
    pub database_bytes: u64,
    /// Its largest tables, for the host's admin.
    pub tables: Vec<TableBytes>,
}
