//! Host directories of runs, bound by their content.
//!
//! ```text
//! submission: plan --sources--> TreeStore::bind --> app.intent_trees, with the run's row
//! CompileST:  plan --sources--> bound before? else bind --> files of the plan name the digest --> plan digest, consent, task keys
//! ```
//! **What is bound first stands for the intent**: for each task, retry and fork. A process that does not execute binds nothing; the worker
//! that compiles does. Not bound are: what is written through (`access: full`) or is
//! said to be `live`, the directory of a command of `exec`, which begins at
//! once and is seen as it is, the project that an agent plans for, whose patch is made for a commit, and a repository that a plan pins to
//! one.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_contracts::patch::REPO_MOUNT;
use cofferdam_contracts::plan::{Plan, Work};
use cofferdam_contracts::recipe::EXEC_RECIPE;
use cofferdam_contracts::sandbox::{AccessMode, InputFile, SandboxRequest};
use cofferdam_ledger::trees::IntentTree;
use cofferdam_sandbox::{
    AllowedPaths, BoundTree, HostFacts, HostPath, Links, TreeBounds, TreeError, TreeStore,
};
use tokio::sync::Semaphore;

use crate::tenant_slots::TenantSlots;

/// Directories that are read at once: one has all processors, and another may wait for its disk.
static BINDINGS: Semaphore = Semaphore::const_new(4);
/// A tenant binds one directory at a time: who has large ones waits for itself.
static TENANTS: LazyLock<TenantSlots> = LazyLock::new(|| TenantSlots::of(1));
/// How long a binding waits for the tenant's other ones.
const PATIENCE: Duration = Duration::from_secs(60);
/// Host paths that one plan binds: a fan-out may give each of its tasks a file.
const MAX_SOURCES: usize = 1_024;

/// Binds for the host that executes the runs of this process, once it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTrees(Arc<OnceLock<TreeHost>>);

/// A host with copies.
#[derive(Debug)]
pub(crate) struct TreeHost {
    /// As in `app.executors`.
    pub host_id: String,
    /// Whose copies they are.
    pub state_dir: String,
    pub store: TreeStore,
    allowed: AllowedPaths,
}

/// What a task is given of the host with the content that stands for it, or is to be bound.
fn bindable(request: &SandboxRequest) -> impl Iterator<Item = (&InputFile, &str)> {
    request.files_in.iter().filter_map(|file| Some((file, source_of(file)?)))
}

fn source_of(file: &InputFile) -> Option<&str> {
    let source = file.uri.as_deref()?.strip_prefix("host://")?;
    let is_bound = !file.live && file.access != AccessMode::Full && file.path != REPO_MOUNT;
    is_bound.then_some(source)
}

/// Whether the tasks of a plan are given their directories as they were at one time.
fn is_bound(plan: &Plan) -> bool {
    plan.recipe_ref.id.as_str() != EXEC_RECIPE
        && plan.agent().is_none()
        && plan.draft_tests().is_none()
}

/// Host paths whose content a plan binds. Pure.
pub(crate) fn sources(plan: &Plan) -> BTreeSet<String> {
    let requests = plan.all_tasks().filter_map(|task| match &task.work {
        Work::Sandbox(request) => Some(request.as_ref()),
        _ => None,
    });
    let requests = requests.filter(|_| is_bound(plan));
    requests.flat_map(bindable).map(|(_, source)| source.to_owned()).collect()
}

/// The plan with files that name the content that they are bound to. Pure.
pub(crate) fn attached(mut plan: Plan, trees: &[IntentTree]) -> Plan {
    if !is_bound(&plan) {
        return plan;
    }
    for task in plan.all_tasks_mut() {
        let Work::Sandbox(request) = &mut task.work else { continue };
        for file in &mut request.files_in {
            let source = source_of(file);
            let tree = trees.iter().find(|tree| Some(tree.source.as_str()) == source);
            file.tree = tree.map(|tree| tree.sha256.clone());
        }
    }
    plan
}

impl RunTrees {
    /// The host that this process executes runs on. A provider's sandboxes have nothing of it.
    pub(crate) fn executes_on(&self, host_id: &str, facts: &HostFacts) {
        if facts.provider.is_none() {
            let host = TreeHost {
                host_id: host_id.to_owned(),
                state_dir: facts.state_dir.to_string_lossy().into_owned(),
                store: TreeStore::of(&facts.state_dir),
                allowed: facts.allowed.clone(),
            };
            // One worker a process.
            let _ = self.0.set(host);
        }
    }

    /// The host, where this process executes.
    pub(crate) fn host(&self) -> Option<&TreeHost> {
        self.0.get()
    }

    /// Takes the content of paths of this host. A path that is not there, or is not given, is left out: whoever executes says so.
    ///
    /// # Errors
    /// A directory that is too large, or cannot be read or held.
    pub(crate) async fn bind(
        &self,
        sources: BTreeSet<String>,
        tenant: &TenantId,
        is_admin: bool,
    ) -> Result<Vec<IntentTree>, Refusal> {
        let mut bound = Vec::new();
        let Some(host) = self.host() else { return Ok(bound) };
        if sources.len() > MAX_SOURCES {
            let why = format!(
                "the plan is given {} paths of the host, at most {MAX_SOURCES} are bound by their content: give a directory that \
                 holds them",
                sources.len()
            );
            return Err(Refusal::new(ErrorCode::RecipeInvalid, why));
        }
        for source in sources {
            let read = host.bind(&source, tenant, is_admin).await;
            let Some((tree, is_host_admins)) = read.map_err(|error| refusal(&source, &error))?
            else {
                continue;
            };
            bound.push(IntentTree {
                source,
                sha256: tree.digest,
                copy: tree.copy,
                host_id: host.host_id.clone(),
                state_dir: host.state_dir.clone(),
                entries: i64::try_from(tree.entries).unwrap_or(i64::MAX),
                bytes: i64::try_from(tree.bytes).unwrap_or(i64::MAX),
                is_host_admins,
            });
        }
        Ok(bound)
    }
}

impl TreeHost {
    /// Takes the content of one path, and says whether it took the admin's reach; `None`: it is not there, or is not given.
    pub(crate) async fn bind(
        &self,
        source: &str,
        tenant: &TenantId,
        is_admin: bool,
    ) -> Result<Option<(BoundTree, bool)>, TreeError> {
        let Some(_own) = TENANTS.take(tenant, PATIENCE).await else {
            let why = "other directories of its tenant are being read: try again in a minute";
            return Err(TreeError::of_thread(why));
        };
        let allowed = self.allowed.clone();
        let (store, source) = (self.store.clone(), HostPath::said(source));
        let _turn = BINDINGS.acquire().await;
        let read = tokio::task::spawn_blocking(move || {
            let (opened, is_host_admins) = match allowed.open(&source, Links::Beneath) {
                Ok(opened) => (Some(opened), false),
                Err(_) if is_admin => {
                    (allowed.everything().open(&source, Links::Beneath).ok(), true)
                }
                Err(_) => (None, false),
            };
            let Some(opened) = opened else { return Ok(None) };
            let tree = store.bind(&opened, TreeBounds::default())?;
            Ok(Some((tree, is_host_admins)))
        });
        read.await.unwrap_or_else(|lost| Err(TreeError::of_thread(&lost.to_string())))
    }
}

impl TreeHost {
    /// The copy of a tree that this host bound: of this state directory, or made of that of the worker that bound it.
    pub(crate) async fn copy(&self, tree: &IntentTree) -> Result<Digest, TreeError> {
        let (store, copy) = (self.store.clone(), tree.copy.clone());
        let (source, other) = (HostPath::said(&tree.source), tree.state_dir.clone());
        let is_own = tree.state_dir == self.state_dir;
        let found = tokio::task::spawn_blocking(move || {
            if is_own {
                return store.open(&copy, &source).map(|_| copy);
            }
            let opened = TreeStore::of(Path::new(&other)).open(&copy, &source)?;
            let bound = store.bind(&opened, TreeBounds::default())?;
            match bound.copy == copy {
                true => Ok(copy),
                false => Err(TreeError::Damaged(copy)),
            }
        });
        found.await.unwrap_or_else(|lost| Err(TreeError::of_thread(&lost.to_string())))
    }
}

/// Why a run with this directory is not started.
fn refusal(source: &str, error: &TreeError) -> Refusal {
    let code = match error.is_permanent() {
        true => ErrorCode::RecipeInvalid,
        false => ErrorCode::Unavailable,
    };
    Refusal::new(code, format!("{source:?} cannot be bound by its content: {error}"))
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;
    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;
    use serde_json::json;

    use super::*;

    fn plan_of(id: &str, files: &str) -> Plan {
        let text = format!(
            "id: {id}\nv: \"1\"\nplan:\n  tasks:\n    - {{name: t, files: {files}, exec: {{run: 'true'}}}}\n"
        );
        let recipe = Recipe::from_yaml("r.yaml", &text).unwrap();
        plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new())).unwrap()
    }

    #[test]
    fn each_directory_that_is_read_is_bound_once_and_named_in_the_plan() {
        let files = "[{from: /a, to: /w}, {from: /a, to: /x, access: workspace-write}, {from: /b, to: /y, access: full}, {from: /c, to: /l, live: true}, \
                     {text: t, to: /z}]";
        let plan = plan_of("r", files);
        assert_eq!(sources(&plan), BTreeSet::from(["/a".to_owned()]));
        let before = plan.digest().unwrap();
        let sha256 = digest_bytes(b"a");
        let tree = IntentTree {
            source: "/a".into(),
            sha256: sha256.clone(),
            copy: digest_bytes(b"s"),
            host_id: "h".into(),
            state_dir: "/s".into(),
            entries: 1,
            bytes: 1,
            is_host_admins: false,
        };
        let plan = attached(plan, &[tree]);
        let request = plan.tasks[0].work.request().unwrap();
        let named: Vec<bool> = request.files_in.iter().map(|file| file.tree.is_some()).collect();
        assert_eq!(named, [true, true, false, false, false]);
        assert_eq!(request.files_in[0].tree, Some(sha256));
        assert_ne!(plan.digest().unwrap(), before, "a consent binds the content");
    }

    #[test]
    fn a_command_of_exec_sees_its_directory_as_it_is() {
        assert!(sources(&plan_of(EXEC_RECIPE, "[{from: /a, to: /w}]")).is_empty());
    }
}
