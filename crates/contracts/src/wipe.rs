//! The evidence that a sandbox is gone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Digest, SandboxId};
use crate::named::named;

named! {
    /// Whether the sandbox is provably gone.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum WipeStatus {
        /// Every check found the thing absent.
        Verified = "verified",
        /// At least one check found something left.
        Failed = "failed",
    }
}

/// One thing that was looked for after the wipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WipeCheck {
    /// `mount`, `layer` (the file system that took all writes, kept by nobody), `cgroup`, `process`, `netns`,
    /// `directory`, `runtime-state`, `sentinel`, `base`, `cache-base`, or `host` where there is nobody to look.
    pub kind: String,
    /// What exactly: a path, a pid, an inode.
    pub subject: String,
    /// Whether it is as it must be (absent; for a base: unchanged).
    pub ok: bool,
    /// What was seen, where not ok.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<String>,
}

/// The evidence of one wipe: `app.secure_wipe_evidence`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WipeEvidence {
    /// The sandbox that is gone.
    pub sandbox_id: SandboxId,
    /// How: `tmpfs-unmount`; of a layer on disk `fscrypt-key-destroyed`, or `fscrypt-image-deleted`
    /// where the key had gone before; `absence` for an orphan that the kernel had already taken
    /// away; `none` where nobody could look.
    pub method: String,
    /// Why: `task-end`, `boot-fail`, `canceled`, `orphan`.
    pub reason: String,
    /// The verdict.
    pub status: WipeStatus,
    /// When it was verified, ms since the epoch.
    pub wiped_at_ms: i64,
    /// Bytes in the writable layer just before.
    pub upper_bytes: u64,
    /// Inodes in the writable layer just before.
    pub upper_inodes: u64,
    /// Digest of the base (its file list and metadata) before the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_before: Option<Digest>,
    /// The same after; equal, or the wipe is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_after: Option<Digest>,
    /// Digest of the cached dependencies' base before the task, where it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_before: Option<Digest>,
    /// The same after; equal, or the wipe is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_after: Option<Digest>,
    /// Everything that was looked for.
    pub checks: Vec<WipeCheck>,
    /// What nobody can check again later, said plainly.
    pub not_recheckable: Vec<String>,
}
