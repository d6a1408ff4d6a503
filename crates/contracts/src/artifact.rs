//! Artifacts: what a task left, addressed by content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{Digest, RunId, StepId, TaskKey};

named! {
    /// What an artifact is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[allow(missing_docs, reason = "the names are the contract's own")]
    pub enum ArtifactKind {
        ArtifactIndex = "artifact_index",
        File = "file",
        Timings = "timings",
        Raw = "raw",
        Stdout = "stdout",
        Stderr = "stderr",
        PlanCard = "plan_card",
        Patch = "patch",
        JsonDiagnostic = "json_diagnostic",
    }
}

named! {
    /// What a file of a task is, as git writes modes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum ArtifactMode {
        /// A file that may not be executed.
        #[default]
        File = "100644",
        /// A file that may be executed.
        Executable = "100755",
        /// A symbolic link, whose bytes are its target. Nobody here follows it.
        Link = "120000",
        /// An empty directory, without bytes.
        Directory = "040000",
    }
}

impl ArtifactMode {
    /// Whether it is what an artifact is that says nothing of its mode.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        matches!(self, Self::File)
    }

    /// Whether it has bytes of its own.
    #[must_use]
    pub const fn has_content(self) -> bool {
        matches!(self, Self::File | Self::Executable)
    }

    /// Permission bits of the file.
    #[must_use]
    pub const fn permissions(self) -> u32 {
        match self {
            Self::File => 0o644,
            Self::Executable | Self::Directory => 0o755,
            Self::Link => 0o777,
        }
    }
}

named! {
    /// A bound of what is kept of a task's files.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ArtifactBound {
        /// Bytes of all of them.
        Bytes = "bytes",
        /// How many files there are.
        Files = "files",
    }
}

/// Files that match a task's `artifacts` and are beyond a bound: they are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileOmission {
    /// Number of files.
    pub files: u64,
    /// Bytes that they have together.
    pub bytes: u64,
    /// The first of them in the order of their paths, at most 200 characters.
    pub first: String,
    /// The bound that the first one is beyond.
    pub bound: ArtifactBound,
    /// What is kept at most: bytes or files.
    pub most: u64,
}

impl std::fmt::Display for FileOmission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { files, bytes, first, bound, most } = self;
        let (noun, verb) = if *files == 1 { ("file", "was") } else { ("files", "were") };
        let bound = bound.as_str();
        write!(
            f,
            "{files} {noun} with {bytes} bytes {verb} not kept, the first {first:?}: at most {most} {bound} are"
        )
    }
}

/// A file that the task left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputFile {
    /// Path relative to the working directory. Bytes that are not UTF-8 are written as `%80` to `%FF`, and a
    /// `%` that would be read as one of these as `%25`.
    pub path: String,
    /// Whether the path is written so, and is not the file's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encoded: bool,
    /// Digest of the real bytes.
    pub sha256: Digest,
    /// Size in bytes.
    pub size: u64,
    /// What it is.
    #[serde(default, skip_serializing_if = "ArtifactMode::is_file")]
    pub mode: ArtifactMode,
    /// Of a symbolic link where it leads, written as `path` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// `idx = 0` of every task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactIndex {
    /// Key of the task attempt whose artifacts are listed.
    pub task_key: TaskKey,
    /// Who made them: `container`, `engine`.
    pub provider: String,
    /// The artifacts, in the order of `idx` from 1.
    pub items: Vec<ArtifactItem>,
    /// Files that match and are beyond a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<FileOmission>,
    /// The raw result.
    pub raw_ref: String,
    /// ms since the epoch.
    pub created_at: i64,
}

/// One artifact of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactItem {
    /// What it is.
    pub kind: ArtifactKind,
    /// Where it is.
    pub uri: String,
    /// Digest of its bytes.
    pub sha256: Digest,
    /// What it is.
    #[serde(default, skip_serializing_if = "ArtifactMode::is_file")]
    pub mode: ArtifactMode,
    /// Of a symbolic link where it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// An artifact of a run, in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactRow {
    /// The step that left it.
    pub step_id: StepId,
    /// The attempt that left it.
    pub task_key: TaskKey,
    /// Which attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: i32,
    /// Its place among the attempt's, from 0.
    #[schemars(range(min = 0))]
    pub idx: i32,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its name, such as `files/out.txt`.
    pub name: String,
    /// Where it is.
    pub uri: String,
    /// Digest of its bytes.
    pub sha256: Digest,
    /// Size in bytes.
    #[schemars(range(min = 0))]
    pub size: i64,
    /// What it is.
    #[serde(default, skip_serializing_if = "ArtifactMode::is_file")]
    pub mode: ArtifactMode,
    /// ms since the epoch.
    pub created_at: i64,
}

/// URI of an artifact: `artifact://run/<runId>/step/<stepId>/task/<task_key>/<name>`.
#[must_use]
pub fn uri(run: &RunId, step: &StepId, task: &TaskKey, name: &str) -> String {
    format!("artifact://run/{run}/step/{step}/task/{task}/{name}")
}

/// Files of one attempt that match a glob: `artifacts://run/<runId>/step/<stepId>/task/<task_key>/<glob>`. What an attempt left never
/// changes, so it names the same files for ever.
#[must_use]
pub fn files_uri(run: &RunId, step: &StepId, task: &TaskKey, glob: &str) -> String {
    format!("{FILES_SCHEME}run/{run}/step/{step}/task/{task}/{glob}")
}

const FILES_SCHEME: &str = "artifacts://";

/// Which files a [`files_uri`] names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFiles<'a> {
    /// Key of the attempt that left them.
    pub task: TaskKey,
    /// Glob over their paths.
    pub glob: &'a str,
}

impl<'a> AttemptFiles<'a> {
    /// Reads a URI; `None`: it is another one.
    #[must_use]
    pub fn parse(uri: &'a str) -> Option<Self> {
        // Neither a run's id nor a step's has a slash; a glob may have the words.
        let mut parts = uri.strip_prefix(FILES_SCHEME)?.splitn(7, '/');
        let fixed = [parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let ["run", _, "step", _, "task"] = fixed else { return None };
        let task = TaskKey::parse(parts.next()?).ok()?;
        Some(Self { task, glob: parts.next()? })
    }
}
