//! What an apply gate shows and an approval is bound to.

use std::fmt::Write as _;

use crate::canonical;
use crate::error::{ErrorCode, Refusal};
use crate::gate_spec::GateSpec;
use crate::id::{Digest, RunId};
use crate::printable;
use crate::recipe::Recipe;
use crate::run::RunStatus;

use super::receipt_text::{
    TaskEnd, may_be_tasks, message_fault, message_in, message_text, tasks_text,
};
use super::{GitId, PatchFile, VerifiedPatch};

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
    /// What the commit will say, where whoever applies said it.
    pub message: Option<&'a str>,
    /// How the run's tasks ended.
    pub tasks: &'a [TaskEnd],
}

/// The receipt of a patch: one text for one patch, run, repository and branch. A line of a file is indented and marked,
/// so none looks like a line of ours.
#[must_use]
pub fn receipt(opened: &VerifiedPatch, target: &Target<'_>) -> String {
    head(&opened.digest, target, &opened.patch.base)
        + &message_text(target.message)
        + &tasks_text(target.tasks)
        + &body(opened, target.run)
}

/// What follows the head.
fn body(opened: &VerifiedPatch, run: &RunId) -> String {
    let patch = &opened.patch;
    let mut out = String::new();
    let bytes: u64 =
        patch.files.iter().filter_map(|f| f.after.as_ref()).map(|side| side.size).sum();
    let _ = writeln!(out, "{} files, {bytes} bytes written", patch.files.len());
    for file in &patch.files {
        let _ = writeln!(out, "  {}", line(file));
    }
    for refused in &patch.refused {
        let (path, why) = (refused.path.shown(), refused.why.as_str());
        let _ = writeln!(out, "  not written ({why}): {path}");
    }
    if patch.unlisted > 0 {
        let _ = writeln!(out, "  not written: {} more", patch.unlisted);
    }
    let diff = opened.diff();
    if diff.len() > MAX_DIFF_BYTES {
        let _ = writeln!(
            out,
            "the diff has {} bytes, more than the {MAX_DIFF_BYTES} that a gate shows; read it: cofferdam patch {}",
            diff.len(),
            run
        );
        return out;
    }
    out.push_str("diff:\n");
    for line in diff.lines() {
        let _ = writeln!(out, "    {}", printable::block(line));
    }
    out
}

/// Lines of [`head`].
const HEAD_LINES: usize = 5;

/// What a receipt begins with.
fn head(patch: &Digest, target: &Target<'_>, base: &GitId) -> String {
    let Target { run, status, task, repo, branch, .. } = *target;
    format!(
        "apply patch sha256:{patch}\nof run {run} ({}), task {}\nto repository {}\nbranch {}\nbase commit {base}\n",
        status.as_str(),
        printable::line(task),
        printable::line(repo),
        printable::line(branch),
    )
}

/// The patch, the run and the base commit that a receipt names. Whether it is theirs is another question.
#[must_use]
pub fn named_in(receipt: &str) -> Option<(Digest, RunId, GitId)> {
    let mut lines = receipt.lines();
    let patch = lines.next()?.strip_prefix("apply patch sha256:")?;
    let (run, _) = lines.next()?.strip_prefix("of run ")?.split_once(' ')?;
    let base = lines.nth(2)?.strip_prefix("base commit ")?;
    Some((Digest::parse(patch).ok()?, RunId::parse(run).ok()?, GitId::parse(base).ok()?))
}

/// Whether a text is, to its last byte, the receipt of this patch for this target; `None` for the repository and the
/// branch: whatever line it names for them.
#[must_use]
pub fn is_receipt_of(text: &str, opened: &VerifiedPatch, target: &ReceiptFacts<'_>) -> bool {
    let ReceiptFacts { run, task, at, tasks } = *target;
    let named = at.or_else(|| {
        let mut lines = text.lines().skip(2);
        let repo = lines.next()?.strip_prefix("to repository ")?;
        Some((repo, lines.next()?.strip_prefix("branch ")?))
    });
    let Some((repo, branch)) = named else { return false };
    let Some(begin) = text.strip_suffix(body(opened, run).as_str()) else { return false };
    let is = |status: &RunStatus| {
        let target = Target { run, status: *status, task, repo, branch, message: None, tasks: &[] };
        let rest = begin.strip_prefix(&head(&opened.digest, &target, &opened.patch.base));
        rest.is_some_and(|rest| is_told(rest, tasks))
    };
    // A run that was retried since has another status than the one that was shown.
    RunStatus::ALL.iter().filter(|status| status.is_terminal()).any(is)
}

/// Whether this is what a receipt has between its head and its files.
fn is_told(text: &str, tasks: Option<&[TaskEnd]>) -> bool {
    let (message, rest) = message_in(text);
    message.is_none_or(|message| message_fault(&message).is_none())
        && match tasks {
            Some(tasks) => rest == tasks_text(tasks),
            None => may_be_tasks(rest),
        }
}

/// What the commit will say by a receipt, where whoever applies said it.
#[must_use]
pub fn message_of(receipt: &str) -> Option<String> {
    let head = receipt.split_inclusive('\n').take(HEAD_LINES).map(str::len).sum();
    message_in(receipt.get(head..)?).0
}

/// What a receipt is held against.
#[derive(Debug, Clone, Copy)]
pub struct ReceiptFacts<'a> {
    /// The run that left the patch.
    pub run: &'a RunId,
    /// The step of the task that left it.
    pub task: &'a str,
    /// The repository and the branch, where they are known.
    pub at: Option<(&'a str, &'a str)>,
    /// How the run's tasks ended; `None` once the receipt was shown and agreed to, since a retry may end otherwise.
    pub tasks: Option<&'a [TaskEnd]>,
}

/// Whether a recipe is the one of an apply gate to its last byte, whatever its law.
///
/// # Errors
/// A law that no gate may have.
pub fn is_apply_recipe(recipe: &Recipe) -> Result<bool, Refusal> {
    let hash = |recipe: &Recipe| {
        recipe.hash().map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))
    };
    let ours = hash(recipe)?;
    if hash(&apply_recipe(None)?)? == ours {
        return Ok(true);
    }
    let Some(law) = &recipe.plan.gate else { return Ok(false) };
    Ok(hash(&apply_recipe(Some(law))?)? == ours)
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

    fn opened(after: &[u8]) -> VerifiedPatch {
        let format = super::super::ObjectFormat::Sha1;
        let file = PatchFile {
            path: super::super::PatchPath::new(b"a").unwrap(),
            before: None,
            after: Some(super::super::Side::of(super::super::FileMode::Plain, format, after)),
        };
        let text = format!("From x\n---\n\n+{}\n", String::from_utf8_lossy(after));
        let patch = super::super::Patch {
            schema_version: super::super::SCHEMA_VERSION,
            base: GitId::parse(&"1".repeat(40)).unwrap(),
            files: vec![file],
            refused: vec![],
            unlisted: 0,
            text: digest_bytes(text.as_bytes()),
        };
        let index = canonical::canonical(&patch).unwrap();
        VerifiedPatch::open(&index, after.to_vec(), text.into_bytes()).unwrap()
    }

    #[test]
    fn a3f10_a_receipt_is_of_one_patch_run_repository_and_branch_to_its_last_byte() {
        let (patch, other) = (opened(b"typo"), opened(b"door"));
        let run = RunId::parse("rn_0123456789abcdef0123456789abcdef").unwrap();
        let target = Target {
            run: &run,
            status: RunStatus::Failed,
            task: "t",
            repo: "/r",
            branch: "b",
            message: None,
            tasks: &[],
        };
        let text = receipt(&patch, &target);
        let base = patch.patch.base.clone();
        assert_eq!(named_in(&text), Some((patch.digest.clone(), run.clone(), base)));
        let of = |repo, branch| ReceiptFacts {
            run: &run,
            task: "t",
            at: Some((repo, branch)),
            tasks: Some(&[]),
        };
        assert!(is_receipt_of(&text, &patch, &of("/r", "b")));
        assert!(is_receipt_of(&text, &patch, &ReceiptFacts { at: None, ..of("", "") }));
        assert!(!is_receipt_of(&text, &other, &of("/r", "b")));
        for wrong in [of("/", "b"), of("/r", ""), of("/r", "b\nbase commit 2")] {
            assert!(!is_receipt_of(&text, &patch, &wrong), "{wrong:?}");
        }
        assert!(!is_receipt_of(&text, &patch, &ReceiptFacts { task: "t2", ..of("/r", "b") }));
        for (from, to) in [
            ("+typo", "+fine"),
            ("added", "changed"),
            ("1 files", "2 files"),
            ("4 bytes", "5 bytes"),
        ] {
            let false_text = text.replacen(from, to, 1);
            assert_ne!(false_text, text, "{from}");
            for at in [Some(("/r", "b")), None] {
                assert!(
                    !is_receipt_of(&false_text, &patch, &ReceiptFacts { at, ..of("", "") }),
                    "{to}"
                );
            }
        }
        let told = text.replace("tasks:\n", "tasks:\n  unit: ok, exit 0\n");
        assert!(!is_receipt_of(&told, &patch, &of("/r", "b")), "a caller writes no task's end");
        assert!(is_receipt_of(&told, &patch, &ReceiptFacts { tasks: None, ..of("/r", "b") }));
        assert!(!is_receipt_of(&text.replace("tasks:\n", ""), &patch, &of("/r", "b")));
        let said = receipt(&patch, &Target { message: Some("a\n\nb"), ..target });
        assert!(is_receipt_of(&said, &patch, &of("/r", "b")));
        assert_eq!((message_of(&said).as_deref(), message_of(&text)), (Some("a\n\nb"), None));
        let forged = said.replace("    b\n", "    b\nbase commit 2\n");
        assert!(!is_receipt_of(&forged, &patch, &of("/r", "b")));
        let more = format!("{text}and all is well\n");
        assert!(!is_receipt_of(&more, &patch, &of("/r", "b")));
    }

    #[test]
    fn only_our_text_is_the_recipe_of_an_apply_gate() {
        let plain = apply_recipe(None).unwrap();
        assert!(is_apply_recipe(&plain).unwrap());
        let law =
            GateSpec { quorum: 2, ..GateSpec::plain(GateKey::parse("approve-plan").unwrap()) };
        assert!(is_apply_recipe(&apply_recipe(Some(&law)).unwrap()).unwrap());
        let other = Recipe { title: Some("Another one".to_owned()), ..plain };
        assert!(!is_apply_recipe(&other).unwrap());
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
