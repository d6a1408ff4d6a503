//! How an attempt of a task ended.

use cofferdam_contracts::artifact;
use cofferdam_contracts::sandbox::{EffectivePolicy, ErrCode, SandboxResult, WipeEvidence};
use cofferdam_contracts::session::Attestation;
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::tasks::{TaskContext, TaskEnd};
use cofferdam_ledger::test_reports::NewReport;

use crate::draft_objects::DraftObject;

/// How an attempt ended, before it is committed.
#[derive(Debug)]
pub struct End {
    /// What its caller is told.
    pub result: SandboxResult,
    /// What was enforced, where a sandbox was up.
    pub effective: Option<EffectivePolicy>,
    /// What is kept of it.
    pub artifacts: Vec<NewArtifact>,
    /// Objects of these that are not yet on record. Dropped, their files are removed.
    pub staged: Vec<DraftObject>,
    /// What its test reports say.
    pub reports: Vec<NewReport>,
    /// That nothing is left of its sandbox.
    pub evidence: Option<WipeEvidence>,
    /// What its sandbox really was.
    pub attestation: Option<Attestation>,
    /// Whether it ended because it was canceled.
    pub canceled: bool,
}

impl End {
    /// One of which nothing is kept: before a sandbox was up, or after another worker took it.
    pub(crate) fn bare(result: SandboxResult, evidence: Option<WipeEvidence>) -> Self {
        Self {
            result,
            effective: None,
            artifacts: Vec::new(),
            staged: Vec::new(),
            reports: Vec::new(),
            evidence,
            attestation: None,
            canceled: false,
        }
    }

    /// This host refuses it, and would again.
    #[must_use]
    pub(crate) fn refused(mut self) -> Self {
        self.result.permanent = true;
        self
    }

    /// Every host refuses it: nothing of it depends on where the task runs.
    #[must_use]
    pub fn refused_everywhere(mut self) -> Self {
        self.result.permanent_everywhere = true;
        self.refused()
    }

    /// As the ledger takes it.
    pub(crate) fn committed<'a>(&'a self, task: &'a TaskContext) -> TaskEnd<'a> {
        TaskEnd {
            task,
            result: &self.result,
            effective: self.effective.as_ref(),
            artifacts: &self.artifacts,
            reports: &self.reports,
            evidence: self.evidence.as_ref(),
            attestation: self.attestation.as_ref(),
            runtime: None,
            canceled: self.canceled,
        }
    }
}

/// The result of an attempt of which nothing is known yet.
pub(crate) fn blank(
    task: &TaskContext,
    sandbox: &str,
    err_code: ErrCode,
    cause: Option<String>,
) -> SandboxResult {
    let index = artifact::uri(&task.run, &task.step_id, &task.key, "index.json");
    SandboxResult {
        sandbox_ref: sandbox.to_owned(),
        err_code,
        artifact_index_ref: Some(index),
        ..SandboxResult::unanswered(task.key.clone(), cause)
    }
}
