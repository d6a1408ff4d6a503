//! The patch of a run, fetched and held against every digest.

use cofferdam_contracts::agent_plan::BUILDING;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::StepId;
use cofferdam_contracts::patch::{CONTENTS, INDEX, TEXT, VerifiedPatch};

use super::super::client::{Client, segment};
use super::super::exit::{Misuse, Negative};
use super::git::Repository;

/// A patch and the step that left it.
pub(super) struct PatchSource {
    pub opened: VerifiedPatch,
    pub step: StepId,
    /// Whether it is of a directory and of no commit.
    pub is_build: bool,
}

/// The patch of the newest attempt of a run's task. That of a build, which worked on a directory, is put upon the commit that
/// the repository is at; without one it is only to be read.
pub(super) async fn fetch(
    client: &Client,
    run: &str,
    task: Option<&str>,
    upon: Option<&Repository>,
) -> anyhow::Result<PatchSource> {
    let rows: Vec<ArtifactRow> =
        client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?;
    let is_ours = |row: &&ArtifactRow| {
        let step = row.step_id.as_str();
        let named =
            task.is_none_or(|task| step == task || step.strip_prefix("ExecuteST:") == Some(task));
        row.kind == ArtifactKind::Patch && named
    };
    let rows: Vec<&ArtifactRow> = rows.iter().filter(is_ours).collect();
    let indices = rows.iter().filter(|row| row.name == INDEX);
    let Some(newest) = indices.max_by_key(|row| row.attempt) else {
        let why = "the run left no patch; a task leaves one where it names `repo` and has ended";
        return Err(Negative(why.to_owned()).into());
    };
    let steps: std::collections::BTreeSet<&str> =
        rows.iter().map(|row| row.step_id.as_str()).collect();
    if steps.len() > 1 {
        let names: Vec<&str> = steps.into_iter().collect();
        let why = format!("several tasks left a patch: name one with --task: {}", names.join(", "));
        return Err(Misuse(why).into());
    }
    let is_build = newest.step_id.as_str() == format!("ExecuteST:{BUILDING}")
        && !rows.iter().any(|row| row.name == CONTENTS && row.task_key == newest.task_key);
    let names: &[&str] = if is_build { &[INDEX] } else { &[INDEX, CONTENTS, TEXT] };
    let mut parts = Vec::new();
    for name in names {
        let row = rows.iter().find(|row| row.name == *name && row.task_key == newest.task_key);
        let row = row.ok_or_else(|| Negative(format!("the patch has no {name}")))?;
        let bytes = client.artifact(&row.uri).await?;
        if digest_bytes(&bytes) != row.sha256 {
            return Err(Negative(format!("{name} does not have the recorded digest")).into());
        }
        parts.push(bytes);
    }
    let mut parts = parts.into_iter();
    let mut next = || parts.next().unwrap_or_default();
    let index = next();
    let opened = match (is_build, upon) {
        (false, _) => VerifiedPatch::open(&index, next(), next()),
        (true, None) => VerifiedPatch::of_build_alone(&index),
        (true, Some(repository)) => VerifiedPatch::of_build(&index, &repository.head()?),
    };
    let opened = opened.map_err(|error| Negative(format!("not a patch: {error}")))?;
    Ok(PatchSource { opened, step: newest.step_id.clone(), is_build })
}
