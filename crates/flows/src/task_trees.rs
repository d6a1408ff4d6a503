//! What a task is given of paths that its intent bound.

use std::collections::BTreeMap;

use cofferdam_contracts::error::{ErrorCode, error_chain};
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_contracts::tree_upload::{self, input_of};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_ledger::trees::{IntentTree, NewTaskTree};
use cofferdam_sandbox::{HostPath, OpenError, TreeError};

use crate::error::Error;
use crate::executor::Executor;
use crate::input_files::NoInput;
use crate::patience::patiently;
use crate::trees::{self, RunTrees, TreeHost};

/// The copies that a task is given, by the path that its plan names. They are on record before its sandbox is made.
pub(crate) async fn given(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> Result<BTreeMap<String, Digest>, NoInput> {
    let mut copies = BTreeMap::new();
    let wanted: BTreeMap<&str, &Digest> = request
        .files_in
        .iter()
        .filter_map(|file| Some((file.host_source()?, file.tree.as_ref()?)))
        .collect();
    let ledger = &executor.flows.ledger;
    let passing = |e: Error| NoInput::Passing(error_chain(&e));
    // Its plan was compiled by a worker that gives no paths of a host.
    if let (Work::Sandbox(_), Some((_, source)), Some(_)) =
        (&task.work, trees::unbound(request), executor.flows.runs.trees.host())
        && patiently(|| ledger.trees().is_binding(&task.run)).await.map_err(passing)?
    {
        let why = format!("{source}: its content was not bound: start a new run");
        return Err(NoInput::Lasting(why));
    }
    if wanted.is_empty() {
        return Ok(copies);
    }
    let bound = patiently(|| ledger.trees().of_run(&task.run)).await.map_err(passing)?;
    let Some(host) = executor.flows.runs.trees.host() else {
        return Err(NoInput::Lasting("its host directories are on another host".to_owned()));
    };
    for (source, digest) in &wanted {
        let tree = bound.iter().find(|tree| tree.source == **source && tree.sha256 == **digest);
        let Some(tree) = tree else {
            let why = format!("{source}: the plan names a content that its intent did not bind");
            return Err(NoInput::Lasting(why));
        };
        if !tree.is_within(task.by_host_admin) {
            let refused = OpenError::Refused(HostPath::said(*source));
            return Err(NoInput::Lasting(refused.to_string()));
        }
        let copy = copy_of(executor, host, task, tree).await?;
        copies.insert((*source).to_owned(), copy);
    }
    let given: Vec<NewTaskTree<'_>> = wanted
        .iter()
        .filter_map(|(source, sha256)| {
            let copy = copies.get(*source)?;
            Some(NewTaskTree { source, sha256, copy })
        })
        .collect();
    patiently(|| ledger.trees().given(&task.key, task.execution_no, &given))
        .await
        .map_err(passing)?;
    Ok(copies)
}

/// The copy of a bound path on this host, or why there is none.
async fn copy_of(
    executor: &Executor,
    host: &TreeHost,
    task: &TaskContext,
    tree: &IntentTree,
) -> Result<Digest, NoInput> {
    let trees = &executor.flows.runs.trees;
    let held = trees.held(host, tree, &task.tenant, task.by_host_admin).await;
    // A worker of the host that bound it has it.
    let is_here = tree.host_id == host.host_id;
    let why = match (held, tree_upload::named_by(&tree.source)) {
        (Ok(copy), _) => return Ok(copy),
        (Err(TreeError::Gone(_) | TreeError::Damaged(_)), Some(named)) if is_here => {
            return copy_again(trees, host, task, &named).await;
        }
        (Err(TreeError::Gone(_) | TreeError::Damaged(_)), Some(_)) => format!(
            "{}: the directory was sent to the host {}, and this host does not have it: a worker there has to take the run",
            tree.source, tree.host_id
        ),
        (Err(TreeError::Gone(_) | TreeError::Damaged(_)), None) => format!(
            "{}: the content that the run is bound to ({}) is not on this host, and the path has another one or none: start a new run",
            tree.source, tree.sha256
        ),
        (Err(error), _) => return Err(no_copy(&tree.source, &error)),
    };
    Err(if is_here { NoInput::Lasting(why) } else { NoInput::Passing(why) })
}

fn no_copy(source: &str, error: &TreeError) -> NoInput {
    let why = format!("{source}: {error}");
    if error.is_permanent() { NoInput::Lasting(why) } else { NoInput::Passing(why) }
}

/// The copy of a directory that a client sent, made again of its files, where this process still has them.
async fn copy_again(
    trees: &RunTrees,
    host: &TreeHost,
    task: &TaskContext,
    named: &Digest,
) -> Result<Digest, NoInput> {
    let tree = trees.sent.bind(&task.tenant, named).await.map_err(|refusal| {
        let is_passing = matches!(refusal.code, ErrorCode::Unavailable | ErrorCode::Internal);
        let why = format!("{}: {refusal}: send it again and start a new run", input_of(named));
        if is_passing { NoInput::Passing(why) } else { NoInput::Lasting(why) }
    })?;
    let held = trees.held(host, &tree, &task.tenant, task.by_host_admin).await;
    held.map_err(|error| no_copy(&tree.source, &error))
}
