//! CompileST: the recipe that the run pinned becomes its plan.

use std::cell::Cell;
use std::collections::BTreeSet;

use cofferdam_contracts::canonical;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::plan::{self, CompileError, Plan};
use cofferdam_contracts::profile::Settings;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::run::Budget;
use cofferdam_contracts::schema::with_defaults;
use cofferdam_contracts::template::{GlobError, Globber};
use cofferdam_contracts::tree_upload;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::recipes::RecipeQuery;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::steps::CompileContext;
use cofferdam_ledger::trees::IntentTree;
use cofferdam_sandbox::{AllowedPaths, OutsideNames, TreeError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admission::{HostAdmission, HostReach};
use crate::error::{Error, Result};
use crate::file_lister::{FileLister, TreeSource};
use crate::plan_text::{COMPILE, Compilation, PlanText};
use crate::repo_refs::{self, RefReach};
use crate::trees::{self, RunTrees, TreeHost};
use crate::{checks, config, decide, service_images, toolchains};

/// What the worker that compiles knows of its host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompileHost<'a> {
    /// Directories that everybody may be given.
    pub allowed: &'a AllowedPaths,
    pub admission: &'a HostAdmission,
    pub trees: &'a RunTrees,
    pub names: &'a OutsideNames,
}

impl<'a> CompileHost<'a> {
    const fn ref_reach(self) -> RefReach<'a> {
        RefReach { allowed: self.allowed, names: self.names }
    }
}

/// What CompileST leaves for the rest of the workflow: small, since it is a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    /// The plan's digest; absent where there is no plan.
    pub digest: Option<Digest>,
    /// The gate before execution.
    pub gate: Option<GateSpec>,
    /// Why there is no plan.
    pub error: Option<String>,
    /// The run's budget, so that what follows decides on recorded facts alone.
    pub budget: Budget,
    /// Whether an agent builds it, so that its tasks follow each other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub staged: bool,
}

/// What a compilation came to.
#[expect(clippy::large_enum_variant, reason = "one for each run, taken apart where it arrives")]
pub(crate) enum CompileOutcome {
    /// A card, and the plan where there is one.
    Card(Card, Option<(Digest, Plan)>),
    /// An agent has to plan first; nothing is committed.
    Draft(Box<Plan>),
}

/// The run of a workflow, compiled: a replay commits nothing new. `None` where no run has that workflow.
pub(crate) async fn compile(
    ledger: &Ledger,
    host: CompileHost<'_>,
    workflow: &str,
) -> Result<Option<(RunContext, CompileOutcome)>> {
    // Read each time that this is tried: an earlier try may have committed, and its answer was lost.
    let Some((run, context)) = ledger.steps().compile_context(workflow).await? else {
        return Ok(None);
    };
    let compiled = compile_of(ledger, host, &run, context).await?;
    Ok(Some((run, compiled)))
}

/// Compiles and commits, and gives the plan besides its card.
async fn compile_of(
    ledger: &Ledger,
    host: CompileHost<'_>,
    run: &RunContext,
    context: CompileContext,
) -> Result<CompileOutcome> {
    // What was committed stands: by now the configuration may say something else.
    if let Some(text) = context.plan {
        return committed(run, &text);
    }
    let settings = config::table(&context.config, &run.tenant)?;
    let planned = match crate::dispatches::RUN
        .plan_of(run)
        .or_else(|| crate::static_recipe::LIVE.plan_of(run))
    {
        Some(Ok(plan)) => repo_refs::pinned(ledger, host.ref_reach(), run, plan).await?,
        Some(Err(refusal)) => Err(refusal),
        None => match stored_or_builtin(context.recipe, run) {
            Ok(recipe) => {
                let planned = planned(ledger, host, recipe, run, run.inputs.clone(), settings);
                match planned.await? {
                    Ok(plan) => admitted(ledger, host.admission, run, plan).await?,
                    Err(refusal) => Err(refusal),
                }
            }
            Err(Error::Refused(refusal)) => Err(refusal),
            Err(error) => return Err(error),
        },
    };
    match planned {
        Ok(plan) if plan.draft_tests().is_some() => Ok(CompileOutcome::Draft(Box::new(plan))),
        Ok(plan) => commit(ledger, run, plan).await,
        Err(refusal) => unplanned(ledger, run, refusal).await,
    }
}

/// A plan whose tasks find what they need on this host, where no other one may take them. It was submitted to a process that does
/// not execute, or lists files.
async fn admitted(
    ledger: &Ledger,
    admission: &HostAdmission,
    run: &RunContext,
    plan: Plan,
) -> Result<Result<Plan, Refusal>> {
    // A client may wait for the exit status of a program that is absent, which one attempt gives.
    let reach = HostReach { is_admin: run.by_host_admin, is_relayed: true };
    // Without a slot nothing is looked at: a sandbox finds it absent later.
    let looked = checks::check(&run.tenant, || admission.absence(&plan, reach)).await;
    match looked.ok().flatten() {
        Some(absence) if admission.is_decisive(ledger).await? => Ok(Err(absence)),
        _ => Ok(Ok(plan)),
    }
}

/// A run without a plan, and its diagnosis.
pub(crate) async fn unplanned(
    ledger: &Ledger,
    run: &RunContext,
    refusal: Refusal,
) -> Result<CompileOutcome> {
    let text = serde_json::to_string(&refusal.clone().body()).unwrap_or_default();
    let key = Compilation::of(run, &run.inputs, run.retries + 1).key()?;
    ledger.steps().diagnostic(&run.id, COMPILE, &key, &text).await?;
    let (error, budget) = (Some(refusal.message), run.budget);
    Ok(CompileOutcome::Card(Card { digest: None, gate: None, error, budget, staged: false }, None))
}

/// Commits a plan: its step, its card and its digest.
pub(crate) async fn commit(
    ledger: &Ledger,
    run: &RunContext,
    plan: Plan,
) -> Result<CompileOutcome> {
    let written = PlanText::of(&plan, &Compilation::of(run, &run.inputs, run.retries + 1))?;
    ledger.steps().compiled(&written.compiled(&plan)).await?;
    Ok(compiled(run, written.digest, plan))
}

fn compiled(run: &RunContext, digest: Digest, plan: Plan) -> CompileOutcome {
    let card = Card {
        digest: Some(digest.clone()),
        gate: plan.gate.clone(),
        error: None,
        budget: run.budget,
        staged: plan.agent().is_some(),
    };
    CompileOutcome::Card(card, Some((digest, plan)))
}

/// The plan card of a compilation whose worker was lost before the engine heard of it.
fn committed(run: &RunContext, text: &str) -> Result<CompileOutcome> {
    let plan = serde_json::from_str(text).map_err(Error::corrupt("plan card"))?;
    Ok(compiled(run, canonical::digest_bytes(text.as_bytes()), plan))
}

/// The plan as CompileST left it, checked against its digest.
pub(crate) async fn plan_read(ledger: &Ledger, run: &RunContext, digest: &Digest) -> Result<Plan> {
    let wrong = Error::corrupt("plan card");
    let text = ledger.steps().plan(&run.id, digest).await?.ok_or_else(|| wrong("missing"))?;
    if canonical::digest_bytes(text.as_bytes()) != *digest {
        return Err(wrong("its bytes do not have the digest that was compiled"));
    }
    serde_json::from_str(&text).map_err(Error::corrupt("plan card"))
}

/// The recipe that the run pinned.
///
/// # Errors
/// [`Error::Refused`] where no recipe has that hash any more.
pub(crate) async fn recipe_of(ledger: &Ledger, run: &RunContext) -> Result<Recipe> {
    let wanted = RecipeQuery { id: &run.recipe_id, v: None, hash: Some(&run.recipe_hash) };
    let stored = ledger.recipes().find(&run.tenant, wanted).await?;
    stored_or_builtin(stored, run)
}

fn stored_or_builtin(stored: Option<Recipe>, run: &RunContext) -> Result<Recipe> {
    let recipe = stored.or_else(|| builtin_by_hash(&run.recipe_hash));
    Ok(recipe.ok_or_else(|| Refusal::not_found("the run's recipe"))?)
}

fn builtin_by_hash(hash: &Digest) -> Option<Recipe> {
    crate::recipes::builtin().filter(|r| r.hash().is_ok_and(|h| h == *hash))
}

/// A plan whose files, repositories and images of services name the content that they are bound to, with the toolchains of this host.
pub(crate) async fn planned(
    ledger: &Ledger,
    host: CompileHost<'_>,
    recipe: Recipe,
    run: &RunContext,
    inputs: Value,
    settings: Settings,
) -> Result<Result<Plan, Refusal>> {
    let plan = match bound_plan(ledger, host, recipe, run, inputs, settings).await? {
        Ok(plan) => repo_refs::pinned(ledger, host.ref_reach(), run, plan).await?,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let plan = match plan {
        Ok(plan) => service_images::pinned(ledger, run, plan).await?,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let plan = match plan {
        Ok(plan) if toolchains::has_any(&plan) => plan,
        plan => return Ok(plan),
    };
    let rows = ledger.config().rows(&run.tenant).await?;
    let pinned =
        tokio::task::spawn_blocking(move || toolchains::pinned(plan, &toolchains::dirs(&rows)));
    Ok(pinned.await?)
}

/// A plan whose files name the content that they are bound to. What its intent did not bind when it was submitted is bound now; files
/// that it lists are those of the bound content.
async fn bound_plan(
    ledger: &Ledger,
    host: CompileHost<'_>,
    recipe: Recipe,
    run: &RunContext,
    inputs: Value,
    settings: Settings,
) -> Result<Result<Plan, Refusal>> {
    let allowed = if run.by_host_admin { host.allowed.everything() } else { host.allowed.clone() };
    let mut draft =
        PlanDraft { recipe, run: run.clone(), inputs, settings, lister: FileLister::of(allowed) };
    // Of the host's own directories a list is made of what is bound afterwards; a sent one was bound at submission.
    if let (Some(here), false) = (host.trees.host(), trees::sent_by(&draft.inputs).is_empty()) {
        let mut sent = ledger.trees().of_intent(&run.intent_id).await?;
        sent.retain(|tree| tree_upload::named_by(&tree.source).is_some());
        match listed(host.trees, here, run, &sent).await {
            Ok(copies) => draft.lister.bind(copies),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    let (draft, plan) = draft.compile().await;
    let plan = match plan {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let bound = match bound(ledger, host, run, &plan).await? {
        Ok(bound) => bound,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let attached = |plan, bound: &[IntentTree]| {
        let plan = trees::attached(plan, bound);
        // A provider's worker binds nothing: its class refuses paths of a host.
        match host.trees.host().and_then(|_| trees::gap(&plan)) {
            Some(refusal) => Err(refusal),
            None => Ok(plan),
        }
    };
    let again = draft.filter(|draft| draft.lister.has_listed && !bound.is_empty());
    let (Some(mut draft), Some(here)) = (again, host.trees.host()) else {
        return Ok(attached(plan, &bound));
    };
    match listed(host.trees, here, run, &bound).await {
        Ok(copies) => draft.lister.bind(copies),
        Err(refusal) => return Ok(Err(refusal)),
    }
    let plan = match draft.compile().await.1 {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    // A file that is listed now may be one that is given.
    let bound = self::bound(ledger, host, run, &plan).await?;
    Ok(bound.and_then(|bound| attached(plan, &bound)))
}

/// The copies whose files a plan may list. One of a sent directory that this host does not have is left out: what lists it is refused
/// with its name, and any other task waits for a worker that has it.
async fn listed(
    trees: &RunTrees,
    host: &TreeHost,
    run: &RunContext,
    bound: &[IntentTree],
) -> Result<Vec<TreeSource>, Refusal> {
    let mut copies = Vec::with_capacity(bound.len());
    for tree in bound {
        match trees.open(host, tree, &run.tenant, run.by_host_admin).await {
            Ok(opened) => copies.push(TreeSource { source: tree.source.clone(), opened }),
            Err(TreeError::Gone(_)) if tree_upload::named_by(&tree.source).is_some() => {}
            Err(error) => return Err(trees::refusal(&tree.source, &error)),
        }
    }
    Ok(copies)
}

/// What a plan is given of the host, bound for its intent.
async fn bound(
    ledger: &Ledger,
    host: CompileHost<'_>,
    run: &RunContext,
    plan: &Plan,
) -> Result<Result<Vec<IntentTree>, Refusal>> {
    let sources = trees::sources(plan);
    if sources.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let bound = ledger.trees().of_intent(&run.intent_id).await?;
    let is_new = |source: &String| !bound.iter().any(|tree| tree.source == *source);
    let new: BTreeSet<String> = sources.into_iter().filter(is_new).collect();
    let mut all = match new.is_empty() {
        true => bound,
        false => match host.trees.bind(new, &run.tenant, run.by_host_admin).await {
            Ok(new) => ledger.trees().bind(&run.intent_id, &new).await?,
            Err(refusal) => return Ok(Err(refusal)),
        },
    };
    // What the admin's run bound is not another's, who asks for it again.
    all.retain(|tree| tree.is_within(run.by_host_admin));
    Ok(Ok(all))
}

/// What a plan is compiled of.
struct PlanDraft {
    recipe: Recipe,
    run: RunContext,
    inputs: Value,
    settings: Settings,
    lister: FileLister,
}

impl PlanDraft {
    /// Compiling may walk directories, so it leaves the runtime's own threads alone. Gives itself back, unless it panicked.
    async fn compile(self) -> (Option<Self>, Result<Plan, Refusal>) {
        let compiled = tokio::task::spawn_blocking(move || {
            let mut draft = self;
            let inputs = draft.inputs.clone();
            let listed = Cell::new(false);
            let list = |dir: &str, pattern: &str| {
                listed.set(true);
                draft.lister.glob(dir, pattern).map_err(GlobError::Refused)
            };
            let plan = plan_of(&draft.recipe, &draft.run, inputs, &draft.settings, &list);
            draft.lister.has_listed = listed.get();
            (Some(draft), plan)
        });
        compiled.await.unwrap_or_else(|e| {
            let why = format!("compiling the plan failed: {e}");
            (None, Err(Refusal::new(ErrorCode::Internal, why)))
        })
    }
}

fn plan_of(
    recipe: &Recipe,
    run: &RunContext,
    mut form: Value,
    settings: &Settings,
    list: Globber<'_>,
) -> Result<Plan, Refusal> {
    // An intent that was written before its recipe was chosen has none of the form's defaults yet.
    with_defaults(&recipe.form_schema(), &mut form);
    let plan = plan::compile(recipe, &form, settings, list).map_err(CompileError::refusal)?;
    if let Some(b) = decide::over_fanout(&run.budget, plan.tasks.len()) {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            format!("budget.maxFanout is {}, the plan has {} tasks", b.limit, b.observed),
        )
        .with(json!({"metric": b.metric, "limit": b.limit, "observed": b.observed})));
    }
    Ok(plan)
}
