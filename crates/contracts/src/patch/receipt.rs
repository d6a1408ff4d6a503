//! What an apply gate shows and an approval is bound to.

use std::fmt::Write as _;

use crate::canonical;
use crate::error::{ErrorCode, Refusal};
use crate::gate_spec::GateSpec;
use crate::id::{Digest, RunId};
use crate::printable;
use crate::recipe::Recipe;
use crate::run::RunStatus;

use super::{GitId, Opened, PatchFile};

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
    let patch = &opened.patch;
    let mut out = head(&opened.digest, target, &patch.base);
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
            "the diff has {} bytes, more than the {MAX_DIFF_BYTES} that a gate shows; read it: cofferdam patch {}",
            diff.len(),
            target.run
        );
        return out;
    }
    out.push_str("diff:\n");
    for line in diff.lines() {
        let _ = writeln!(out, "    {}", printable::block(line));
    }
    out
}

/// What a receipt begins with.
fn head(patch: &Digest, target: &Target<'_>, base: &GitId) -> String {
    let Target { run, status, task, repo, branch } = *target;
    format!(
        "apply patch sha256:{patch}\nof run {run} ({}), task {}\nto repository {}\nbranch {}\nbase commit {base}\n",
        status.as_str(),
        printable::line(task),
        printable::line(repo),
        printable::line(branch),
    )
}

/// Whether a receipt is of this patch, for this run, repository and branch, however the run's status read then.
#[must_use]
pub fn is_receipt_of(receipt: &str, patch: &Digest, target: &Target<'_>, base: &GitId) -> bool {
    let begins = |status: &RunStatus| {
        receipt.starts_with(&head(patch, &Target { status: *status, ..*target }, base))
    };
    RunStatus::ALL.iter().any(begins)
}

/// The recipe of an apply gate with this law; without one, any approver agrees.
///
/// # Errors
/// A law that no gate may have.
pub fn apply_recipe(law: Option<&GateSpec>) -> Result<Recipe, Refusal> {
    let mut recipe = Recipe::from_yaml("the built-in recipe", APPLY_RECIPE)?;
    if let Some(law) = law {
        let hash = canonical::digest(law).map_err(|error| {
            Refusal::new(ErrorCode::Internal, format!("the gate has no canonical form: {error}"))
        })?;
        // A recipe's version has one text.
        recipe.v = format!("1-{}", hash.as_str().get(..12).unwrap_or_default());
        recipe.plan.gate = Some(law.clone());
        let text = serde_json::to_string(&recipe).unwrap_or_default();
        return Recipe::from_yaml("the apply gate", &text);
    }
    Ok(recipe)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::digest_bytes;
    use crate::id::GateKey;

    #[test]
    fn a_receipt_is_of_one_patch_run_repository_and_branch() {
        let (patch, other) = (digest_bytes(b"a"), digest_bytes(b"b"));
        let run = RunId::parse("rn_0123456789abcdef0123456789abcdef").unwrap();
        let base = GitId::parse(&"1".repeat(40)).unwrap();
        let target =
            Target { run: &run, status: RunStatus::Failed, task: "t", repo: "/r", branch: "b" };
        let text = format!("{}1 files, 2 bytes written\n", head(&patch, &target, &base));
        let later = Target { status: RunStatus::Succeeded, ..target };
        assert!(is_receipt_of(&text, &patch, &later, &base));
        assert!(!is_receipt_of(&text, &other, &target, &base));
        for wrong in [
            Target { repo: "/", ..target },
            Target { branch: "", ..target },
            Target { task: "t2", ..target },
            Target { branch: "b\nbase commit 2", ..target },
        ] {
            assert!(!is_receipt_of(&text, &patch, &wrong, &base), "{wrong:?}");
        }
    }

    #[test]
    fn each_law_of_an_apply_gate_is_a_version_of_its_own() {
        let plain = apply_recipe(None).unwrap();
        let law =
            GateSpec { quorum: 2, ..GateSpec::plain(GateKey::parse("approve-plan").unwrap()) };
        let two = apply_recipe(Some(&law)).unwrap();
        assert_eq!(two.plan.gate.as_ref(), Some(&law));
        assert_ne!((&plain.v, plain.hash().unwrap()), (&two.v, two.hash().unwrap()));
        assert_eq!(plain.id, two.id);
        let none = GateSpec { quorum: 0, ..law };
        assert!(apply_recipe(Some(&none)).is_err());
    }
}
