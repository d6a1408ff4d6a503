//! Files of long-lived sandboxes that are kept: by a pause, and by a snapshot.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{LiveId, SnapshotId};
use crate::live::LiveView;

/// Sandboxes that one fork makes at most, as the clients of E2B have it.
pub const MAX_FORKS: u64 = 20;
/// Bytes of a snapshot's name.
pub const MAX_SNAPSHOT_NAME: usize = 128;

named! {
    /// What a snapshot is for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum SnapshotKind {
        /// A paused sandbox goes on from it. It is erased once that sandbox goes on or is killed.
        Pause = "pause",
        /// New sandboxes begin with it, until it is deleted.
        Snapshot = "snapshot",
        /// The files of a template that its tenant built: new sandboxes begin with them, while a tag names that build.
        Template = "template",
        /// The files after a step of such a build: later builds that begin with the same steps go on from them. They are
        /// erased by themselves, and may be deleted.
        Layer = "layer",
    }
}

/// Body of `POST /api/sandboxes/{id}/pause`: whether memory is kept beside the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LivePause {
    /// Whether its processes are to go on with a resume. `false`: its files alone are kept. Default: where its class can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// Body of `POST /api/sandboxes/{id}/resume`: time to live, and whether memory is used.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveResume {
    /// Time to live from its new start in seconds: 1 to 86,400. Default 300.
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_s: Option<u64>,
    /// `false`: it begins with its files alone, whatever the pause kept.
    pub memory: Option<bool>,
}

/// Body of `POST /api/sandboxes/{id}/fork`: how many sandboxes, and their time to live.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveFork {
    /// Time to live of each from its start in seconds: 1 to 86,400. Default 300.
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_s: Option<u64>,
    /// How many: 1 to 20. Default 1.
    #[schemars(range(min = 1, max = 20))]
    pub count: Option<u64>,
}

/// One sandbox of a fork, or why it was not made.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LiveForkResult {
    /// New sandbox with the files of the forked one; absent where `error` is set.
    pub sandbox: Option<LiveView>,
    /// Why there is none.
    pub error: Option<String>,
}

/// Body of `POST /api/sandboxes/{id}/snapshots`: an optional name of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SnapshotRequest {
    /// A name for people; at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub name: Option<String>,
}

/// Kept files of a sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SnapshotView {
    /// Id of the snapshot in API paths: 20 letters and digits, never guessable.
    pub id: SnapshotId,
    /// The sandbox whose files they are.
    pub sandbox: LiveId,
    /// What it is for.
    pub kind: SnapshotKind,
    /// Whether its memory is in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Its name for people.
    pub name: Option<String>,
    /// Root file system below the files.
    pub template: String,
    /// Bytes that count for the tenant's quota: of the sealed file; before it is sealed, what its files take at most.
    pub bytes: u64,
    /// ms since the epoch.
    pub created_at: i64,
    /// When its files were in a sealed file on the disk, in ms since the epoch; absent until then.
    pub sealed_at: Option<i64>,
    /// Whether its files are in memory, unsealed: until they are sealed, and while they rest after that (`pause.rest_s`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain: bool,
    /// When its key was destroyed, in ms since the epoch; absent while it is kept.
    pub erased_at: Option<i64>,
}
