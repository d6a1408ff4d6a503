//! The commit that an approved patch becomes.

use super::{GitId, ObjectFormat};
use crate::id::{Digest, RunId};

/// Who wrote it: a task did, and no person of the repository.
pub const COMMIT_NAME: &str = "Cofferdam";
/// And the address.
pub const COMMIT_EMAIL: &str = "cofferdam@localhost";

/// What the commit of a patch says. The same patch under the same approval is the same commit.
#[derive(Debug, Clone, Copy)]
pub struct PatchCommit<'a> {
    /// The run that left the patch.
    pub run: &'a RunId,
    /// The step of the task that left it.
    pub task: &'a str,
    /// Digest of the patch.
    pub patch: &'a Digest,
    /// The run in which a person agreed.
    pub approved: &'a RunId,
    /// The commit that it follows.
    pub base: &'a GitId,
    /// Seconds since the epoch: the run's.
    pub at_s: i64,
    /// What it says first, where whoever applied said it.
    pub message: Option<&'a str>,
}

impl PatchCommit<'_> {
    /// Commit message: a subject, then a line each for the run (unless the subject names it), task, patch digest and approving run.
    #[must_use]
    pub fn message(&self) -> String {
        let Self { run, task, patch, approved, message, .. } = self;
        let (said, of) = match message {
            None => (format!("Result of Cofferdam run {run}"), String::new()),
            Some(said) => ((*said).to_owned(), format!("Run: {run}\n")),
        };
        format!("{said}\n\n{of}Task: {task}\nPatch: sha256:{patch}\nApproved-In: {approved}\n")
    }

    /// Its moment, as git is given it.
    #[must_use]
    pub fn when(&self) -> String {
        format!("{} +0000", self.at_s)
    }

    /// Its id, of this tree.
    #[must_use]
    pub fn id(&self, tree: &GitId) -> GitId {
        let who = format!("{COMMIT_NAME} <{COMMIT_EMAIL}> {}", self.when());
        let text = format!(
            "tree {tree}\nparent {}\nauthor {who}\ncommitter {who}\n\n{}",
            self.base,
            self.message()
        );
        GitId::of_commit(self.base.format(), text.as_bytes())
    }
}

impl GitId {
    /// The id of a commit of these bytes.
    fn of_commit(format: ObjectFormat, bytes: &[u8]) -> Self {
        Self::of(format, "commit", bytes)
    }
}
