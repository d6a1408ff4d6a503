//! Files of a run: what its tasks declared and left, as `GET /api/runs/{id}/files` lists them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactMode;
use crate::enum_names::named;
use crate::id::{Digest, StepId, TaskKey};

/// Files of one list; more are read as an archive, or chosen by a glob.
pub const MAX_RUN_FILES: usize = 100_000;

/// What the names of these artifacts begin with.
pub const FILES: &str = "files/";

named! {
    /// A form of a run's files.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FilesFormat {
        /// JSON, without their bytes.
        List = "list",
        /// A tar archive, with pax headers where a name needs them.
        Tar = "tar",
        /// A zip archive whose files are stored as they are.
        Zip = "zip",
    }
}

/// A file, link or empty directory that a task left: of its last attempt that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunFile {
    /// Name of the task that left it.
    pub task: String,
    /// The step of its task.
    pub step_id: StepId,
    /// The attempt that left it.
    pub task_key: TaskKey,
    /// Which attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: i32,
    /// Path relative to the task's working directory. Bytes that are not UTF-8 are written as `%80` to `%FF`, and a `%` that
    /// would be read as one of these as `%25`.
    pub path: String,
    /// What it is.
    #[serde(default, skip_serializing_if = "ArtifactMode::is_file")]
    pub mode: ArtifactMode,
    /// Of a symbolic link where it leads, written as `path` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Digest of its bytes, of a link of its target's.
    pub sha256: Digest,
    /// Size in bytes.
    pub size: u64,
    /// Where it is.
    pub uri: String,
    /// ms since the epoch.
    pub created_at: i64,
}

/// Files of a run, by task and path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunFiles {
    /// Tasks that the run has. Where there are several, an archive has a directory for each.
    pub tasks: u64,
    /// The files that were asked for, at most 100,000.
    pub files: Vec<RunFile>,
    /// Whether there are more.
    pub more: bool,
}

/// The directory of a task's files beside those of others: what follows the first `:` of its step. It is one name, never `.` or
/// `..`, and no other task's.
#[must_use]
pub fn directory_of(step: &StepId) -> String {
    let step = step.as_str();
    let name = step.split_once(':').map_or(step, |(_, name)| name);
    // One that has the mark already gets another, so that both have directories of their own.
    match name.trim_start_matches('_') {
        "" | "." | ".." => format!("_{name}"),
        _ => name.to_owned(),
    }
}

impl RunFile {
    /// The directory of its task.
    #[must_use]
    pub fn directory(&self) -> String {
        directory_of(&self.step_id)
    }

    /// Its path in an archive of a run with so many tasks, written as `path` is.
    #[must_use]
    pub fn path_among(&self, tasks: u64) -> String {
        if tasks > 1 { format!("{}/{}", self.directory(), self.path) } else { self.path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(step: &str) -> RunFile {
        let key = "a".repeat(64);
        let row = json!({"task": "t", "stepId": step, "taskKey": key, "attempt": 1, "path": "dist/a", "sha256": key,
            "size": 3, "uri": "artifact://x", "createdAt": 5});
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn several_tasks_have_a_directory_each_and_none_leads_out() {
        assert_eq!(file("ExecuteST:build").path_among(1), "dist/a");
        assert_eq!(file("ExecuteST:build").path_among(2), "build/dist/a");
        for (step, name) in [
            ("ExecuteST:..", "_.."),
            ("ExecuteST:.", "_."),
            ("ExecuteST:", "_"),
            ("ExecuteST:_.", "__."),
            ("ExecuteST:_", "__"),
        ] {
            assert_eq!(file(step).path_among(2), format!("{name}/dist/a"));
        }
        assert_eq!(file("ExecuteST").directory(), "ExecuteST");
    }

    #[test]
    fn a_plain_file_says_nothing_of_its_mode() {
        let plain = file("ExecuteST:t");
        assert_eq!(plain.mode, ArtifactMode::File);
        let value = serde_json::to_value(&plain).unwrap();
        assert!(value.get("mode").is_none() && value.get("target").is_none(), "{value}");
    }
}
