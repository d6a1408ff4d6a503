//! How an attempt of a task ended.

use cofferdam_contracts::artifact;
use cofferdam_contracts::sandbox::{EffectivePolicy, ErrCode, SandboxResult, WipeEvidence};
use cofferdam_contracts::session::Attestation;
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::tasks::{TaskContext, TaskEnd};

/// How an attempt ended, before it is committed.
pub(crate) struct End {
    pub result: SandboxResult,
    pub effective: Option<EffectivePolicy>,
    pub artifacts: Vec<NewArtifact>,
    pub evidence: Option<WipeEvidence>,
    pub attestation: Option<Attestation>,
    pub canceled: bool,
}

impl End {
    /// One of which nothing is kept: before a sandbox was up, or after another worker took it.
    pub(crate) fn bare(result: SandboxResult, evidence: Option<WipeEvidence>) -> Self {
        Self {
            result,
            effective: None,
            artifacts: Vec::new(),
            evidence,
            attestation: None,
            canceled: false,
        }
    }

    /// As the ledger takes it.
    pub(crate) fn committed<'a>(&'a self, task: &'a TaskContext) -> TaskEnd<'a> {
        TaskEnd {
            task,
            result: &self.result,
            effective: self.effective.as_ref(),
            artifacts: &self.artifacts,
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
