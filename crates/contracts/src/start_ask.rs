//! What a gate between tasks asks: whether a task group may start with what the tasks that it needs have left.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Digest, GroupName, OutputName};

/// Files that a gate lists, and outputs: a person still reads them. The digest covers all.
pub const MAX_SHOWN: i32 = 100;
/// Characters of an output's value that a gate shows.
pub const MAX_SHOWN_CHARS: i32 = 200;

/// A task group that waits for a yes, and what that yes is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartAsk {
    /// The task group.
    pub group: GroupName,
    /// SHA-256 over the plan's digest, the group, and each artifact of the last attempts of the tasks that it needs.
    pub digest: Digest,
    /// Number of those tasks.
    pub tasks: u64,
    /// Number of their files.
    pub files: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// The first 100 files, by task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<AskFile>,
    /// The first 100 outputs, by task; absent once they are erased.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<AskOutput>,
}

/// A file that the gate's tasks would be given, or might.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskFile {
    /// Name of the task that left it.
    pub task: String,
    /// Path relative to that task's working directory.
    pub path: String,
    /// SHA-256 of its bytes.
    pub sha256: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// An output of a task that the gate's tasks wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskOutput {
    /// Name of the task.
    pub task: String,
    /// Name of the output.
    pub name: OutputName,
    /// Its value, cut after 200 characters.
    pub value: String,
}

impl StartAsk {
    /// In one line, such as `start of publish with 3 files`.
    #[must_use]
    pub fn words(&self) -> String {
        let files =
            if self.files == 1 { "1 file".to_owned() } else { format!("{} files", self.files) };
        format!("start of {} with {files}", self.group)
    }

    /// What a person reads before an answer. Names of files and values are a task's: escape each line before it is printed.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("{}, {} bytes, of {} tasks", self.words(), self.bytes, self.tasks),
            format!("  bound to sha256:{}", self.digest),
        ];
        let file = |f: &AskFile| {
            format!("  file {} {:?} of {}, {} bytes", f.sha256, f.path, f.task, f.size)
        };
        lines.extend(self.listed.iter().map(file));
        let listed = u64::try_from(self.listed.len()).unwrap_or(u64::MAX);
        match self.files.saturating_sub(listed) {
            0 => {}
            more => lines.push(format!("  and {more} more files, which the digest covers")),
        }
        lines.extend(
            self.outputs
                .iter()
                .map(|o| format!("  output {} of {}: {:?}", o.name, o.task, o.value)),
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_listed_is_counted_and_no_value_forges_a_line() {
        let digest = "a".repeat(64);
        let ask: StartAsk = serde_json::from_value(json!({
            "group": "publish", "digest": digest, "tasks": 2, "files": 3, "bytes": 9,
            "listed": [{"task": "build", "path": "dist/a\nb", "sha256": digest, "size": 3}],
            "outputs": [{"task": "build", "name": "V", "value": "1\n  bound to sha256:0"}],
        }))
        .unwrap();
        let lines = ask.lines();
        assert_eq!(lines[0], "start of publish with 3 files, 9 bytes, of 2 tasks");
        assert_eq!(lines[3], "  and 2 more files, which the digest covers");
        assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("  bound to")).count(), 1);
    }
}
