//! The evidence that a sandbox is gone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{Digest, SandboxId};
use crate::own_schema::own_schema;
pub use crate::wipe_subject::{ProcessIdentity, WipeKind, WipeSubject};

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

named! {
    /// How a sandbox was taken away.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum WipeMethod {
        /// Its writable layer lay in memory and was unmounted.
        TmpfsUnmount = "tmpfs-unmount",
        /// Its writable layer lay encrypted on disk, and the kernel destroyed the key.
        FscryptKeyDestroyed = "fscrypt-key-destroyed",
        /// The same, and the key had gone before.
        FscryptImageDeleted = "fscrypt-image-deleted",
        /// Its writable layer lay in memory and stays there, held by a pause, until it is sealed or the next life has it.
        LayerKept = "layer-kept",
        /// The kernel had taken it away before anybody looked: an orphan.
        Absence = "absence",
        /// The provider that held it says that it has no such sandbox.
        RemoteAbsence = "remote-absence",
        /// No worker of its host was there to look.
        None = "none",
    }
}

impl PartialEq<&str> for WipeMethod {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

/// One thing that was looked for after the wipe. In JSON it is `{kind, subject, ok, observed}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WipeCheckJson", into = "WipeCheckJson")]
pub struct WipeCheck {
    /// What was looked for.
    pub looked: WipeSubject,
    /// Whether it is as it must be (absent; for a base: unchanged).
    pub ok: bool,
    /// What was seen, where not ok.
    pub observed: Option<String>,
}

impl WipeCheck {
    /// A look that found this, or nothing.
    #[must_use]
    pub fn new(looked: WipeSubject, observed: Option<String>) -> Self {
        Self { looked, ok: observed.is_none(), observed }
    }

    /// What kind of thing.
    #[must_use]
    pub fn kind(&self) -> WipeKind {
        self.looked.kind()
    }

    /// Which one, in words.
    #[must_use]
    pub fn subject(&self) -> String {
        self.looked.subject()
    }
}

/// One thing that was looked for after the wipe.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WipeCheckJson {
    /// What kind of thing.
    kind: WipeKind,
    /// What exactly: a path, a pid, an inode.
    subject: String,
    /// Whether it is as it must be (absent; for a base: unchanged).
    ok: bool,
    /// What was seen, where not ok.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    observed: Option<String>,
}

impl From<WipeCheckJson> for WipeCheck {
    fn from(WipeCheckJson { kind, subject, ok, observed }: WipeCheckJson) -> Self {
        Self { looked: WipeSubject::read(kind, subject), ok, observed }
    }
}

impl From<WipeCheck> for WipeCheckJson {
    fn from(check: WipeCheck) -> Self {
        let (kind, subject) = (check.kind(), check.subject());
        Self { kind, subject, ok: check.ok, observed: check.observed }
    }
}

own_schema!(WipeCheck, |generator| WipeCheckJson::json_schema(generator));

/// The evidence of one wipe: `app.secure_wipe_evidence`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WipeEvidence {
    /// The sandbox that is gone.
    pub sandbox_id: SandboxId,
    /// How it was taken away.
    pub method: WipeMethod,
    /// Why: `task-end`, `boot-fail`, `canceled`, `orphan`.
    pub reason: String,
    /// `verified` only where every check is ok.
    pub status: WipeStatus,
    /// When it was verified, ms since the epoch.
    pub wiped_at_ms: i64,
    /// Bytes in the writable layer just before.
    pub upper_bytes: u64,
    /// Inodes in the writable layer just before.
    pub upper_inodes: u64,
    /// Digest of the base (its file list and metadata) before the task.
    pub base_before: Option<Digest>,
    /// The same after; equal, or the wipe is not verified.
    pub base_after: Option<Digest>,
    /// Digest of the cached dependencies' base before the task, where it had one.
    pub cache_before: Option<Digest>,
    /// The same after; equal, or the wipe is not verified.
    pub cache_after: Option<Digest>,
    /// Everything that was looked for.
    pub checks: Vec<WipeCheck>,
    /// What nobody can check again later, said plainly.
    pub not_recheckable: Vec<String>,
}
