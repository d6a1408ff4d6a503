//! Host directories of runs, bound by their content.
//!
//! ```text
//! submission: plan --sources--> TreeStore::bind --> app.intent_trees, with the run's row
//! CompileST:  plan --sources--> bound before? else bind --> files of the plan name the digest --> plan digest, consent, task keys
//! ```
//! A directory that a client sent is a source, too, `tree:SHA256`, bound by the process that it was sent to.
//! **What is bound first stands for the intent**: for each task, retry and fork. A process that does not execute binds nothing; the worker
//! that compiles does. **What is to be bound and was not is never given**: its plan is refused, and so is its task. Not bound are: what is
//! written through (`access: full`) or is said to be `live`, the directory of a command of `exec`, which begins at once and is seen as it
//! is, the project that an agent plans for, whose patch is made for a commit, and a repository that a plan pins to one.

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
use cofferdam_contracts::tree_upload;
use cofferdam_ledger::trees::IntentTree;
use cofferdam_sandbox::{
    AllowedPaths, BoundTree, HostFacts, HostHandle, HostPath, Links, TreeBounds, TreeError,
    TreeShare, TreeStore,
};
use serde_json::{Value, json};
use tokio::task::JoinError;

use crate::disk_reads;
use crate::key_slots::KeySlots;
use crate::tree_uploads::{BINDINGS, Uploads};

/// A tenant binds one directory at a time: who has large ones waits for itself.
pub(crate) static TENANTS: LazyLock<KeySlots<TenantId>> = LazyLock::new(|| KeySlots::of(1));
/// How long a binding waits for the tenant's other ones.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// One task at a time looks for a copy, and makes it where it is not there yet; the others find it.
static COPIES: LazyLock<KeySlots<Digest>> = LazyLock::new(|| KeySlots::of(1));
/// Host paths that one plan binds: a fan-out may give each of its tasks a file.
const MAX_SOURCES: usize = 1_024;

/// Binds for the host that executes the runs of this process, once it is known, and what clients sent to this process.
#[derive(Debug, Clone)]
pub(crate) struct RunTrees {
    host: Arc<OnceLock<TreeHost>>,
    pub sent: Uploads,
}

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
    let source = file.host_source()?;
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

/// Sent directories that a form names, at any depth. Pure.
pub(crate) fn sent_by(form: &Value) -> BTreeSet<String> {
    let (mut open, mut found) = (vec![form], BTreeSet::new());
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) if tree_upload::named_by(text).is_some() => {
                found.insert(text.clone());
            }
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    found
}

/// A path of a task that is to be bound, and has no content: its place in `files`, and what it names. Pure.
pub(crate) fn unbound(request: &SandboxRequest) -> Option<(usize, &str)> {
    let files = request.files_in.iter().enumerate();
    let mut lacking = files.filter(|(_, file)| file.tree.is_none());
    lacking.find_map(|(index, file)| Some((index, source_of(file)?)))
}

/// Why a plan is not run: what it is given of the host was not there, or was not given, when it was bound, and is never given as it is
/// later. Pure.
pub(crate) fn gap(plan: &Plan) -> Option<Refusal> {
    let mut tasks = plan.all_tasks().filter(|_| is_bound(plan));
    let (task, index) = tasks.find_map(|task| match &task.work {
        Work::Sandbox(request) => Some((task.name.as_str(), unbound(request)?.0)),
        _ => None,
    })?;
    let (recipe, field) = (&plan.recipe_ref, format!("files[{index}].from"));
    let why = format!(
        "recipe {}@{}: task {task:?}: {field}: it is not there, or not within a directory that this run may be given; correct the \
         path, let the operator allow it with --allow-dir, or start a new run",
        recipe.id, recipe.v
    );
    let details = json!({"task": task, "field": field});
    Some(Refusal::new(ErrorCode::RecipeInvalid, why).with(details))
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
    pub(crate) fn new(sent: &Uploads) -> Self {
        Self { host: Arc::default(), sent: sent.clone() }
    }

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
            let _ = self.host.set(host);
        }
    }

    /// The host, where this process executes.
    pub(crate) fn host(&self) -> Option<&TreeHost> {
        self.host.get()
    }

    /// Takes the content of paths of this host, and of directories that the tenant sent. A path that is not there, or is not given, is
    /// left out: the worker that executes says so.
    ///
    /// # Errors
    /// A directory that is too large, or cannot be read or held; a sent one that is not whole here.
    pub(crate) async fn bind(
        &self,
        sources: BTreeSet<String>,
        tenant: &TenantId,
        is_admin: bool,
    ) -> Result<Vec<IntentTree>, Refusal> {
        let mut bound = Vec::new();
        if sources.len() > MAX_SOURCES {
            let why = format!(
                "the plan is given {} paths of the host, at most {MAX_SOURCES} are bound by their content: give a directory that \
                 holds them",
                sources.len()
            );
            return Err(Refusal::new(ErrorCode::RecipeInvalid, why));
        }
        let is_of_host = |source: &String| tree_upload::named_by(source).is_none();
        let share = match self.host().filter(|_| sources.iter().any(is_of_host)) {
            Some(host) => Some(self.share(host, tenant).await.map_err(|error| error.refusal())?),
            None => None,
        };
        for source in sources {
            if let Some(tree) = tree_upload::named_by(&source) {
                bound.push(disk_reads::read(self.sent.bind(tenant, &tree)).await?);
                continue;
            }
            let (Some(host), Some(share)) = (self.host(), &share) else { continue };
            let bind = || disk_reads::read(host.bind(&source, tenant, is_admin, share));
            let bound_now = self.within_share(share, tenant, bind).await;
            let Some((tree, is_host_admins)) =
                bound_now.map_err(|error| refusal(&source, &error))?
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
        if bound.len() > 1 {
            Self::use_again(&bound).await?;
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
        share: &TreeShare,
    ) -> Result<Option<(BoundTree, bool)>, TreeError> {
        let Some(own) = TENANTS.take(tenant, PATIENCE).await else {
            let why = "other directories of its tenant are being read: try again in a minute";
            return Err(TreeError::of_thread(why));
        };
        let allowed = self.allowed.clone();
        let (store, source, share) = (self.store.clone(), HostPath::said(source), share.clone());
        // Until the reading is over, whether or not its client still waits.
        let turns = (own, BINDINGS.acquire().await);
        let read = tokio::task::spawn_blocking(move || {
            let _turns = turns;
            let (opened, is_host_admins) = match allowed.open(&source, Links::Beneath) {
                Ok(opened) => (Some(opened), false),
                Err(_) if is_admin => {
                    (allowed.everything().open(&source, Links::Beneath).ok(), true)
                }
                Err(_) => (None, false),
            };
            let Some(opened) = opened else { return Ok(None) };
            let tree = store.bind(&opened, TreeBounds::default(), &share)?;
            Ok(Some((tree, is_host_admins)))
        });
        read.await.unwrap_or_else(|lost| Err(lost_thread(&lost)))
    }

    /// The copy of a tree that this host bound: of this state directory, or made of that of the worker that bound it. Shards that
    /// begin at once make one.
    async fn copy(&self, tree: &IntentTree, share: &TreeShare) -> Result<Digest, TreeError> {
        let one = COPIES.wait(&tree.copy).await;
        match self.found(tree).await {
            Err(TreeError::Gone(_) | TreeError::Damaged(_)) if tree.state_dir != self.state_dir => {
            }
            found => return found,
        }
        let (store, share) = (self.store.clone(), share.clone());
        let (copy, source) = (tree.copy.clone(), HostPath::said(&tree.source));
        let other = TreeStore::of(Path::new(&tree.state_dir));
        let turns = (one, BINDINGS.acquire().await);
        let made = tokio::task::spawn_blocking(move || {
            let _turns = turns;
            let opened = other.open(&copy, &source)?;
            let bound = store.bind(&opened, TreeBounds::default(), &share)?;
            match bound.copy == copy {
                true => Ok(copy),
                false => Err(TreeError::Damaged(copy)),
            }
        });
        made.await.unwrap_or_else(|lost| Err(lost_thread(&lost)))
    }

    /// The copy of a bound path on this host: the one that was made when it was bound, else one of the other worker's that made it, else,
    /// on another host or after it was removed, one that has the same content now.
    pub(crate) async fn held(
        &self,
        tree: &IntentTree,
        tenant: &TenantId,
        is_admin: bool,
        share: &TreeShare,
    ) -> Result<Digest, TreeError> {
        if tree.host_id == self.host_id {
            match self.copy(tree, share).await {
                Err(TreeError::Gone(_) | TreeError::Damaged(_)) => {}
                found => return found,
            }
        }
        // It is made again of its files where it was sent to, see `Uploads::bind`.
        if tree_upload::named_by(&tree.source).is_some() {
            return Err(TreeError::Gone(tree.copy.clone()));
        }
        match self.bind(&tree.source, tenant, is_admin, share).await? {
            Some((now, _)) if now.digest == tree.sha256 => Ok(now.copy),
            _ => Err(TreeError::Gone(tree.copy.clone())),
        }
    }

    /// The copy of a tree that this host bound, where this state directory has it.
    pub(crate) async fn found(&self, tree: &IntentTree) -> Result<Digest, TreeError> {
        match tree.host_id == self.host_id {
            true => self.open(&tree.copy, &tree.source).await.map(|_| tree.copy.clone()),
            false => Err(TreeError::Gone(tree.copy.clone())),
        }
    }

    /// Opens a copy under the name of its source.
    pub(crate) async fn open(&self, copy: &Digest, source: &str) -> Result<HostHandle, TreeError> {
        let (store, copy, source) = (self.store.clone(), copy.clone(), HostPath::said(source));
        let opened = tokio::task::spawn_blocking(move || store.open(&copy, &source));
        opened.await.unwrap_or_else(|lost| Err(lost_thread(&lost)))
    }
}

pub(crate) fn lost_thread(lost: &JoinError) -> TreeError {
    TreeError::of_thread(&lost.to_string())
}

/// Why a run with this directory is not started.
pub(crate) fn refusal(source: &str, error: &TreeError) -> Refusal {
    let why = format!("{source:?} cannot be bound by its content: {error}");
    match error {
        TreeError::Share { new, held, quota } => {
            let mib = |bytes: u64| bytes.div_ceil(1024 * 1024);
            let (limit, observed) = (mib(*quota), mib(held.saturating_add(*new)));
            let details = json!({"metric": "trees_mb", "limit": limit, "observed": observed});
            Refusal::new(ErrorCode::QueuePolicyViolation, why).with(details)
        }
        error if error.is_permanent() => Refusal::new(ErrorCode::RecipeInvalid, why),
        _ => Refusal::new(ErrorCode::Unavailable, why),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;
    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;

    use super::*;

    /// A host's worker with its own state directory, to which everything is open.
    fn host(host_id: &str, state: &Path) -> TreeHost {
        std::fs::create_dir_all(state.join("trees")).unwrap();
        TreeHost {
            host_id: host_id.to_owned(),
            state_dir: state.to_str().unwrap().to_owned(),
            store: TreeStore::of(state),
            allowed: AllowedPaths::resolved(&["/".into()], Vec::new()),
        }
    }

    fn unbounded(host: &TreeHost, tenant: &TenantId) -> TreeShare {
        TreeShare::of(&host.store, tenant, u64::MAX)
    }

    async fn bound(host: &TreeHost, source: &Path, tenant: &TenantId) -> IntentTree {
        let source = source.to_str().unwrap().to_owned();
        let share = unbounded(host, tenant);
        let (tree, is_host_admins) =
            host.bind(&source, tenant, false, &share).await.unwrap().unwrap();
        IntentTree {
            source,
            sha256: tree.digest,
            copy: tree.copy,
            host_id: host.host_id.clone(),
            state_dir: host.state_dir.clone(),
            entries: 1,
            bytes: 1,
            is_host_admins,
        }
    }

    #[tokio::test]
    async fn a_client_that_is_gone_holds_its_place_until_the_reading_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let (host, tenant) = (host("h", dir.path()), TenantId::parse("reads").unwrap());
        let soon = Duration::from_millis(50);
        let lock = std::fs::File::create(dir.path().join("trees/lock")).unwrap();
        let lock = cofferdam_ambient::file_lock::FileLock::exclusive(lock).unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let source = dir.path().join("file").to_str().unwrap().to_owned();
        let share = unbounded(&host, &tenant);
        let reading = host.bind(&source, &tenant, false, &share);
        assert!(tokio::time::timeout(soon, reading).await.is_err(), "it waits for the lock");
        assert!(TENANTS.take(&tenant, soon).await.is_none());
        drop(lock);
        assert!(TENANTS.take(&tenant, PATIENCE).await.is_some());
    }

    #[tokio::test]
    async fn a_bound_path_is_opened_with_the_content_that_was_bound_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (maker, second, other) =
            (host("h", &at("one")), host("h", &at("two")), host("other", &at("three")));
        let tenant = TenantId::parse("opens").unwrap();
        std::fs::write(at("file"), "bound").unwrap();
        let tree = bound(&maker, &at("file"), &tenant).await;
        let open = async |host: &TreeHost| {
            let share = unbounded(host, &tenant);
            let copy = host.held(&tree, &tenant, false, &share).await?;
            host.open(&copy, &tree.source).await
        };
        assert!(open(&other).await.is_ok(), "the same content is there");
        std::fs::write(at("file"), "now").unwrap();
        assert!(matches!(open(&other).await, Err(TreeError::Gone(_))));
        // Shards at once, of a worker that has no copy yet.
        let share = unbounded(&second, &tenant);
        let shard = async || second.held(&tree, &tenant, false, &share).await.unwrap();
        let shards = tokio::join!(shard(), shard(), shard());
        assert_eq!(<[Digest; 3]>::from(shards), [(); 3].map(|()| tree.copy.clone()));
        // It has its own now.
        std::fs::remove_dir_all(at("one")).unwrap();
        assert!(open(&second).await.is_ok());
        assert!(matches!(open(&maker).await, Err(TreeError::Gone(_))));
    }

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
    fn a_sent_directory_is_bound_wherever_the_form_has_it() {
        let tree = format!("tree:{}", "a".repeat(64));
        let files = format!("[{{from: '{tree}', to: /w, access: workspace-write}}]");
        let plan = plan_of("r", &files);
        assert_eq!(sources(&plan), BTreeSet::from([tree.clone()]));
        let form = json!({"a": {"b": [1, "tree:no", tree]}, "c": "/x"});
        assert_eq!(sent_by(&form), sources(&plan));
        for refused in ["live: true", "access: full"] {
            let text = format!(
                "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {{name: t, files: [{{from: '{tree}', to: /w, {refused}}}], exec: {{run: 'true'}}}}\n"
            );
            let recipe = Recipe::from_yaml("r.yaml", &text).unwrap();
            let settings = Settings::default();
            let compiled = plan::compile(&recipe, &json!({}), &settings, &|_, _| Ok(Vec::new()));
            assert!(compiled.is_err(), "{refused}");
        }
    }

    #[test]
    fn a_path_without_a_content_is_refused_unless_it_is_never_bound() {
        let files = "[{text: t, to: /z}, {from: /b, to: /y, access: full}, {from: /c, to: /l, live: true}, {from: /a, to: /w}]";
        let refusal = gap(&plan_of("r", files)).unwrap();
        assert_eq!(refusal.details.unwrap(), json!({"task": "t", "field": "files[3].from"}));
        assert_eq!(gap(&plan_of("r", "[{from: /c, to: /l, live: true}]")), None);
        assert_eq!(gap(&plan_of(EXEC_RECIPE, files)), None);
    }

    #[test]
    fn a_command_of_exec_sees_its_directory_as_it_is() {
        assert!(sources(&plan_of(EXEC_RECIPE, "[{from: /a, to: /w}]")).is_empty());
    }
}
