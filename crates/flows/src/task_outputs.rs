//! What a task leaves beside its result: its files, its patch, and what its streams and services said.

use std::mem;

use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::sandbox::{SandboxResult, SessionState};
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_ledger::test_reports::NewReport;
use cofferdam_sandbox::{CollectedFile, Plan, Sandbox, ServiceEnd};

use crate::dispatches;
use crate::draft_objects::DraftObject;
use crate::executor::Executor;
use crate::objects::Objects;
use crate::output::Outputs;
use crate::output_files::{self, OutputFiles, StoredOutput};
use crate::output_values;
use crate::patches;
use crate::test_reports::{self, ReportFile};
use crate::verdict;

/// What a task leaves beside its streams.
#[derive(Default)]
pub(crate) struct TaskOutputs {
    /// Files in memory.
    pub files: Vec<CollectedFile>,
    /// Files in the store.
    stored: Vec<StoredOutput>,
    /// Their objects that are not yet on record.
    pub staged: Vec<DraftObject>,
    /// What its agent leaves beside files.
    pub notes: Vec<NewArtifact>,
    patch: Vec<NewArtifact>,
    /// Which of the files are reports, and which could not be read out.
    reports: Vec<ReportFile>,
}

impl TaskOutputs {
    /// The paths of all files.
    pub(crate) fn paths(&self) -> Vec<String> {
        let stored = self.stored.iter().map(|file| file.path.clone());
        self.files.iter().map(|file| file.path.clone()).chain(stored).collect()
    }

    /// What its reports say. Those that are large are in the store then.
    pub(crate) async fn read_reports(
        &mut self,
        objects: &Objects,
        tenant: &TenantId,
    ) -> Vec<NewReport> {
        let declared = mem::take(&mut self.reports);
        if declared.is_empty() {
            return Vec::new();
        }
        let rows = test_reports::contents(tenant, &mut self.files, declared).await;
        let paths = rows.iter().map(|row| row.path.clone()).collect();
        let (files, stored) = (mem::take(&mut self.files), mem::take(&mut self.stored));
        let staged = mem::take(&mut self.staged);
        let held = OutputFiles { files, stored, staged, ..OutputFiles::default() };
        let held = output_files::store_reports(objects, tenant, &paths, held).await;
        (self.files, self.stored, self.staged) = (held.files, held.stored, held.staged);
        rows
    }
}

/// Reads what a task leaves out of its sandbox, whose commands have ended.
pub(crate) async fn collect(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &Sandbox,
    plan: &Plan,
    agent: Option<&AgentWork>,
    result: &mut SandboxResult,
) -> TaskOutputs {
    let mut kept = TaskOutputs::default();
    let repo = task.work.request().and_then(|request| request.repo.as_ref());
    let outputs = task.work.request().and_then(|request| request.outputs.as_deref());
    let declares_files =
        !(plan.artifacts.is_empty() && plan.reports.is_empty()) || outputs.is_some();
    if agent.is_none() && repo.is_none() && !declares_files {
        return kept;
    }
    executor.session_states.set(sandbox.id(), SessionState::Collecting);
    if let Some(repo) = repo {
        kept.patch = patches::patch(sandbox, plan, repo, result).await;
    } else if let Some(agent) = agent {
        let (files, notes) = dispatches::changes(sandbox, agent.place(), result).await;
        let note = |(name, bytes)| NewArtifact::plain(ArtifactKind::File, name, bytes);
        (kept.files, kept.notes) = (files, notes.into_iter().map(note).collect());
    }
    if !plan.artifacts.is_empty() {
        let globs = plan.artifacts.iter().map(|artifact| artifact.path.clone()).collect();
        let objects = &executor.flows.objects;
        let found =
            output_files::declared(objects, &task.tenant, sandbox, &plan.task.cwd, globs).await;
        match found {
            Ok(found) => {
                verdict::collected(result, &plan.artifacts, &found.unmatched, found.omitted);
                (kept.files, kept.stored) = (found.files, found.stored);
                kept.staged = found.staged;
            }
            Err(error) => {
                tracing::info!(task = %task.key, ?error, "a task's files were not collected");
                verdict::uncollected(result, &error);
            }
        }
    }
    kept.reports = test_reports::collect(sandbox, plan, &mut kept.files, result).await;
    if let Some(path) = outputs {
        output_values::collect(sandbox, plan, path, result).await;
    }
    kept
}

/// The artifacts in the order of their index: files, streams, what services said, metrics, and the
/// raw result last.
pub(crate) fn artifacts(
    result: &mut SandboxResult,
    outputs: Outputs,
    TaskOutputs { files, stored, notes, patch, .. }: TaskOutputs,
    services: Vec<ServiceEnd>,
) -> Vec<NewArtifact> {
    let (kept, mut artifacts) = output_files::records(files, stored);
    result.files_out = kept;
    artifacts.extend(notes);
    artifacts.extend(patch);
    let mut text = |kind, name: &str, bytes: Vec<u8>| {
        artifacts.push(NewArtifact::plain(kind, name, bytes));
    };
    text(ArtifactKind::Stdout, "stdout.log", outputs.stdout.into_bytes());
    text(ArtifactKind::Stderr, "stderr.log", outputs.stderr.into_bytes());
    for service in services {
        text(ArtifactKind::File, &format!("services/{}.log", service.report.name), service.log);
    }
    text(ArtifactKind::Timings, "metrics.json", json_bytes(&result.metrics));
    let raw = json_bytes(result);
    text(ArtifactKind::Raw, "raw.json", raw);
    artifacts
}

fn json_bytes<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
