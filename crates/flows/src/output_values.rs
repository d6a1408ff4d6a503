//! Values that a task hands to later ones: its outputs file, read out of its sandbox and parsed.
//!
//! **A task whose outputs cannot be read has failed**: what waits for them would be given a part, or nothing, in their place.

use cofferdam_contracts::sandbox::{ErrCode, SandboxResult};
use cofferdam_contracts::task_outputs::{MAX_OUTPUTS_BYTES, OutputsKind, TaskOutputs, parse};
use cofferdam_sandbox::{CollectBounds, CollectedFile, Plan, Sandbox, SandboxError};

/// Why a task has no outputs.
#[derive(Debug)]
struct NoOutputs {
    why: String,
    /// Whether another attempt would leave the same.
    is_permanent: bool,
}

impl NoOutputs {
    const fn of_task(why: String) -> Self {
        Self { why, is_permanent: true }
    }
}

/// Reads the outputs of a task that succeeded into its result.
pub(crate) async fn collect(
    sandbox: &Sandbox,
    plan: &Plan,
    path: &str,
    result: &mut SandboxResult,
) {
    if result.err_code != ErrCode::None {
        return;
    }
    let bytes = u64::try_from(MAX_OUTPUTS_BYTES).unwrap_or(u64::MAX);
    let bounds = CollectBounds { bytes, files: 1 };
    // A path that is a glob is refused with its recipe.
    let globs = [path.to_owned()];
    let found = sandbox.files().collect_at_most(&plan.task.cwd, &globs, bounds).await;
    match values(path, found) {
        Ok(outputs) => result.outputs = Some(outputs),
        Err(NoOutputs { why, is_permanent }) => {
            result.err_code = ErrCode::DownloadFail;
            result.cause = Some(format!("outputs {path:?}: {why}"));
            result.permanent = is_permanent;
            result.permanent_everywhere = is_permanent;
        }
    }
}

fn values(
    path: &str,
    found: Result<Vec<CollectedFile>, SandboxError>,
) -> Result<TaskOutputs, NoOutputs> {
    let found = found.map_err(|error| match error {
        SandboxError::Excess(_) => NoOutputs::of_task(format!(
            "the file is larger than {MAX_OUTPUTS_BYTES} bytes; write fewer or shorter values, or keep an artifact"
        )),
        other => NoOutputs { why: other.to_string(), is_permanent: false },
    })?;
    let file = found.into_iter().next().ok_or_else(|| {
        NoOutputs::of_task("the task left no such file in its working directory".to_owned())
    })?;
    let kind = OutputsKind::of(path)
        .ok_or_else(|| NoOutputs::of_task("its name ends in .env or .json".to_owned()))?;
    parse(&file.bytes, kind).map_err(|fault| NoOutputs::of_task(fault.to_string()))
}
