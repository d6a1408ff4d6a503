//! What an apply gate shows and an approval is bound to.

use std::fmt::Write as _;

use crate::id::RunId;
use crate::printable;
use crate::run::RunStatus;

use super::{Opened, PatchFile};

/// The recipe of an apply gate: it keeps the receipt once somebody agreed to it, and does nothing else.
pub const APPLY_RECIPE: &str = r#"
id: cofferdam-apply
v: "1"
title: Write a patch to a branch
form:
  type: object
  additionalProperties: false
  required: [receipt]
  properties: {receipt: {type: string, minLength: 1}}
plan:
  gate: approve-plan
  tasks:
    - name: apply
      value: "${form.receipt}"
"#;

/// Bytes of the text that a receipt repeats: a plan's page shows 256 KiB in all, escapes included.
const MAX_DIFF_BYTES: usize = 64 * 1024;

/// What a receipt is of besides the patch.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The run that left the patch.
    pub run: &'a RunId,
    /// How the run ended.
    pub status: RunStatus,
    /// The step of the task that left it.
    pub task: &'a str,
    /// Directory of the repository that is written to.
    pub repo: &'a str,
    /// The new branch.
    pub branch: &'a str,
}

/// The receipt of a patch: one text for one patch, run, repository and branch. A line of a file is indented and marked,
/// so none looks like a line of ours.
#[must_use]
pub fn receipt(opened: &Opened, target: &Target<'_>) -> String {
    let Target { run, status, task, repo, branch } = *target;
    let patch = &opened.patch;
    let mut out = format!(
        "apply patch sha256:{}\nof run {run} ({}), task {}\nto repository {}\nbranch {}\nbase commit {}\n",
        opened.digest,
        status.as_str(),
        printable::line(task),
        printable::line(repo),
        printable::line(branch),
        patch.base
    );
    let bytes: u64 =
        patch.files.iter().filter_map(|f| f.after.as_ref()).map(|side| side.size).sum();
    let _ = writeln!(out, "{} files, {bytes} bytes written", patch.files.len());
    for file in &patch.files {
        let _ = writeln!(out, "  {}", line(file));
    }
    let diff = opened.text.split_once("\n---\n\n").map_or("", |(_, diff)| diff);
    let diff = diff.rsplit_once(super::mail::END).map_or(diff, |(diff, _)| diff);
    if diff.len() > MAX_DIFF_BYTES {
        let _ = writeln!(
            out,
            "the diff has {} bytes, more than the {MAX_DIFF_BYTES} that a gate shows; read it: cofferdam patch {run}",
            diff.len()
        );
        return out;
    }
    out.push_str("diff:\n");
    for line in diff.lines() {
        let _ = writeln!(out, "    {}", printable::block(line));
    }
    out
}

/// `changed 100644 12 to 100755 20 bytes, blob a to b, PATH`: the path last, since it may hold anything.
fn line(file: &PatchFile) -> String {
    let path = file.path.shown();
    match (&file.before, &file.after) {
        (Some(before), Some(after)) => format!(
            "changed {} {} bytes to {} {} bytes, blob {}: {path}",
            before.mode.as_str(),
            before.size,
            after.mode.as_str(),
            after.size,
            after.blob
        ),
        (_, Some(after)) => {
            format!(
                "added {} {} bytes, blob {}: {path}",
                after.mode.as_str(),
                after.size,
                after.blob
            )
        }
        (Some(before), None) => {
            format!("removed {} {} bytes: {path}", before.mode.as_str(), before.size)
        }
        (None, None) => path,
    }
}
