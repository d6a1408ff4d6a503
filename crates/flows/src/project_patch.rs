//! The project of a sandbox as a patch leaves it: patched before a test, or put back after a turn that is rolled back.

use cofferdam_contracts::agent_plan::PROJECT;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::rollback::{self, RollbackStep};
use cofferdam_contracts::tree_change::{Tree, TreeChange, TreeChangeError, TreeStep};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{Agent, AgentError, IgnoreRules, Sandbox, SnapshotError};

use crate::patience::patiently;

/// Of a refusal: nothing is there.
const NOT_FOUND: u16 = 404;

/// Why a patch was not applied; what was done of it goes with the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Its patch breaks a rule of patches.
    #[error(transparent)]
    Patch(#[from] TreeChangeError),
    /// The sandbox's agent refused.
    #[error("{path:?} could not be changed")]
    Agent {
        /// Relative to the project.
        path: String,
        /// The agent's refusal, or a fault of the connection to the agent.
        source: AgentError,
    },
    /// The project could not be looked at.
    #[error(transparent)]
    Look(#[from] SnapshotError),
    /// The project is not what the patch was made of.
    #[error("{0:?} is not what the build found there: the project changed meanwhile; run it again")]
    Changed(String),
}

/// Applies a patch to the project. It is whole before the first step: a torn one changes nothing.
async fn apply(agent: &Agent, patch: &TreeChange) -> Result<(), ApplyError> {
    for one in patch.steps()? {
        step(agent, one).await?;
    }
    Ok(())
}

async fn step(agent: &Agent, step: TreeStep) -> Result<(), ApplyError> {
    let (path, done) = match step {
        TreeStep::Remove(path) => {
            let done = removed(agent, &format!("{PROJECT}/{path}")).await;
            (path, done)
        }
        TreeStep::Mkdir(path) => {
            let done = agent.files().mkdir(&format!("{PROJECT}/{path}"), 0o755, None).await;
            (path, done)
        }
        TreeStep::Write(path, mode, bytes) => {
            let done = agent.files().put(&format!("{PROJECT}/{path}"), mode, bytes.into()).await;
            (path, done)
        }
        TreeStep::Mode(path, mode) => {
            let done = agent.files().mkdir(&format!("{PROJECT}/{path}"), mode, None).await;
            (path, done)
        }
    };
    done.map_err(|source| ApplyError::Agent { path, source })
}

/// Takes a path away; that it is gone already is no fault.
///
/// # Errors
/// The sandbox's agent refuses, or does not answer.
pub async fn removed(agent: &Agent, path: &str) -> Result<(), AgentError> {
    match agent.files().remove(path, true).await {
        Err(AgentError::Refused { status: NOT_FOUND, .. }) => Ok(()),
        done => done,
    }
}

/// Puts the project back to what it was, whatever became of it.
///
/// # Errors
/// The project cannot be looked at or changed, or holds what no patch can put back.
pub async fn roll_back(
    agent: &Agent,
    rules: &IgnoreRules,
    before: &Tree,
) -> Result<(), ApplyError> {
    let now = agent.files().snapshot(PROJECT, rules).await?;
    for back in rollback::roll_back(&now, before)? {
        match back {
            RollbackStep::Tree(one) => step(agent, one).await?,
            RollbackStep::Link(path, target) => {
                let done = agent.files().link(PROJECT, &path, &target).await;
                done.map_err(|source| ApplyError::Agent { path, source })?;
            }
        }
    }
    Ok(())
}

/// Refuses a project that is not what the patch starts from: a test of a mixture says nothing of either.
async fn unchanged(agent: &Agent, patch: &TreeChange) -> Result<(), ApplyError> {
    for entry in &patch.entries {
        let now = agent.files().node_at(PROJECT, &entry.path).await?;
        if !entry.begins_at(now.as_ref()) {
            return Err(ApplyError::Changed(entry.path.clone()));
        }
    }
    Ok(())
}

/// Patches the project of a test, before its first command; nothing where the task is none.
pub(crate) async fn patched(
    ledger: &Ledger,
    task: &TaskContext,
    sandbox: &Sandbox,
) -> Result<(), String> {
    let Work::Patched(work) = &task.work else { return Ok(()) };
    let uri = work.patch.as_deref().ok_or("the test names no patch")?;
    let stored = patiently(|| ledger.artifacts().read(&task.tenant, uri)).await;
    let stored = stored.map_err(|error| format!("{uri}: {error}"))?;
    let stored = stored.ok_or_else(|| format!("{uri}: no such artifact"))?;
    if digest_bytes(&stored.bytes) != stored.sha256 {
        return Err(format!("{uri}: its bytes do not have the recorded hash"));
    }
    let patch: TreeChange =
        serde_json::from_slice(&stored.bytes).map_err(|error| format!("{uri}: {error}"))?;
    let agent = sandbox.agent();
    let applied = match unchanged(agent, &patch).await {
        Ok(()) => apply(agent, &patch).await,
        refused => refused,
    };
    applied.map_err(|error| format!("{uri}: {}", error_chain(&error)))
}
