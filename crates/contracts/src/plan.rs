//! A plan: what a recipe becomes for one intent. Compiling is pure; a plan leaves its executor no
//! choices, and its digest is what a person approves.
//!
//! One file: a plan is one document, and its digest is over all of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact_spec::ArtifactSpec;
use crate::cache::{BuildCache, CacheSpec};
use crate::canonical::{self, CanonicalError};
use crate::config::ConfigRef;
use crate::error::{ErrorCode, Refusal};
use crate::gate_spec::GateSpec;
use crate::id::{Digest, IntentId, RunId, StepId, TaskKey};
use crate::patch::{self, InputRepo, RepoSpec, with_checkout};
use crate::profile::{self, Settings};
use crate::recipe::{Caps, Cmd, FileSpec, Recipe, RecipeRef, TaskSpec};
use crate::sandbox::{BuildPhase, DEFAULT_TIMEOUT_MS, InputFile, SandboxRequest, SandboxSpec};
use crate::template::{Globber, RenderBudget, Scope, TemplateError, render, render_value};
use crate::test_report::ReportSpec;
use crate::timeout::{self, Wall};
use crate::user::UserName;
use crate::work::AgentRole;
pub use crate::work::{PlanTask, Work};
use crate::{artifact_glob, shell};

mod agent;
mod draft;
pub use draft::PORT as OPENCODE_PORT;

/// The plan of one run: the `plan_card` artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Id and version of the recipe that the plan was compiled from.
    pub recipe_ref: RecipeRef,
    /// Digest of the recipe's canonical form.
    pub recipe_hash: Digest,
    /// The gate before execution, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateSpec>,
    /// The versions of the configuration that its wall times and limits were taken from or held against.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigRef>,
    /// Upper bounds on concurrency, steps and sandbox minutes.
    pub caps: Caps,
    /// The work, in order.
    pub tasks: Vec<PlanTask>,
}

type Variables = std::collections::BTreeMap<String, String>;

/// What a task key is the hash of.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskIdentity<'a> {
    intent_id: &'a IntentId,
    run_id: &'a RunId,
    step_id: &'a StepId,
    attempt: u32,
    request: &'a Work,
}

impl Plan {
    /// The plan's digest.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        canonical::digest(self)
    }
}

impl PlanTask {
    /// `ExecuteST:<name>`, of a task that plans `CompileST:<name>`, with what a step id cannot hold replaced.
    #[must_use]
    pub fn step_id(&self) -> StepId {
        let name: String = self
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "_:.-".contains(c) { c } else { '_' })
            .take(160)
            .collect();
        let is_planning = matches!(&self.work, Work::Opencode(work) if matches!(work.role, AgentRole::Plan { .. }));
        let step = if is_planning { "CompileST" } else { "ExecuteST" };
        StepId::parse(&format!("{step}:{name}")).unwrap_or_else(|_| execute_step())
    }

    /// The key of one attempt.
    pub fn key(
        &self,
        intent: &IntentId,
        run: &RunId,
        attempt: u32,
    ) -> Result<TaskKey, CanonicalError> {
        let identity = TaskIdentity {
            intent_id: intent,
            run_id: run,
            step_id: &self.step_id(),
            attempt,
            request: &self.work,
        };
        let digest = canonical::digest(&identity)?;
        Ok(TaskKey::parse(digest.as_str()).unwrap_or_else(|_| unreachable_key()))
    }

    /// Wall time of the whole task in milliseconds; nothing for an engine-only task.
    #[must_use]
    pub fn budget_ms(&self) -> u64 {
        self.work.request().map_or(0, |request| {
            let build = request.build.as_ref();
            request.timeout_ms + build.map_or(0, |b| b.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS))
        })
    }
}

fn execute_step() -> StepId {
    StepId::parse("ExecuteST").unwrap_or_else(|_| execute_step())
}

// A digest and a task key share one pattern, so this is never taken.
fn unreachable_key() -> TaskKey {
    TaskKey::parse(&"0".repeat(64)).unwrap_or_else(|_| unreachable_key())
}

/// Why a recipe has no plan for a form.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// The recipe, the form or a bound forbids it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It lists files, and the caller cannot: whether it has a plan is known only on a worker.
    #[error("the recipe lists files, which only a worker does")]
    NeedsFiles,
}

impl CompileError {
    /// What the caller gets.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            needs_files @ Self::NeedsFiles => {
                Refusal::new(ErrorCode::RecipeInvalid, needs_files.to_string())
            }
        }
    }
}

/// Why a task has no plan.
enum Fault {
    /// Something in it does not hold together.
    Invalid(String),
    /// It would be larger than a plan may be.
    TooLarge { metric: &'static str, limit: usize },
    /// It lists files.
    NeedsFiles,
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Invalid(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Invalid(why.to_owned())
    }
}

impl Fault {
    fn of(error: TemplateError, field: &str) -> Self {
        match error {
            TemplateError::TooLarge { metric, limit } => Self::TooLarge { metric, limit },
            TemplateError::NeedsFiles => Self::NeedsFiles,
            other => Self::Invalid(format!("{field}: {other}")),
        }
    }

    fn of_task(self, recipe: &Recipe, task: &TaskSpec) -> CompileError {
        match self {
            Self::NeedsFiles => CompileError::NeedsFiles,
            Self::Invalid(why) => broken(recipe, task, &why).into(),
            Self::TooLarge { metric, limit } => {
                let why = format!(
                    "recipe {}@{}: task {:?}: {metric} would pass {limit}",
                    recipe.id, recipe.v, task.name
                );
                let details = serde_json::json!({"metric": metric, "limit": limit});
                Refusal::new(ErrorCode::QueuePolicyViolation, why).with(details).into()
            }
        }
    }
}

/// Bytes that every task of a fan-out has besides its rendered texts: its lists of names and services.
fn fixed_bytes(spec: &TaskSpec) -> usize {
    let length = |value: Result<Vec<u8>, serde_json::Error>| value.map_or(0, |bytes| bytes.len());
    let exec = spec.exec.iter().flat_map(|exec| exec.env.keys());
    let build = spec.build.iter().flat_map(|build| build.env.keys());
    let env = exec.chain(build).map(String::len).sum::<usize>();
    let lists = length(serde_json::to_vec(&(
        spec.exec.as_ref().map(|exec| &exec.egress),
        spec.build.as_ref().map(|build| &build.egress),
        spec.exec.as_ref().map(|exec| &exec.secrets),
        spec.build.as_ref().map(|build| &build.secrets),
        &spec.services,
    )));
    env.saturating_add(lists)
}

/// Compiles a recipe for one form with the configuration of this moment. `glob` lists files;
/// everything else is pure. Every byte of the plan is charged to a budget before it is made.
///
/// # Errors
/// [`CompileError::NeedsFiles`] where `glob` answers [`GlobError::Elsewhere`](crate::template::GlobError).
pub fn compile(
    recipe: &Recipe,
    form: &Value,
    settings: &Settings,
    glob: Globber<'_>,
) -> Result<Plan, CompileError> {
    shell::check(recipe, shell::RuleScope::Editable).map_err(|why| invalid(recipe, &why))?;
    let mut config = Config { settings, used: settings.always().collect() };
    let budget = RenderBudget::default();
    let mut tasks: Vec<PlanTask> = Vec::new();
    for spec in &recipe.plan.tasks {
        let scope = Scope { form, item: None, glob, budget: &budget };
        let items = match &spec.each {
            None => None,
            Some(each) => Some(items_of(each, &scope).map_err(|e| e.of_task(recipe, spec))?),
        };
        let count = items.as_ref().map_or(1, Vec::len);
        // Before anything is built, so that a fan-out over its caps costs nothing.
        over_caps(recipe, tasks.len() + count)?;
        let fixed = fixed_bytes(spec).saturating_mul(count);
        budget.charge(fixed).map_err(|e| Fault::of(e, "egress").of_task(recipe, spec))?;
        match items {
            None => tasks.push(task_of(recipe, spec, &scope, &mut config)?),
            Some(items) => {
                for (index, item) in items.iter().enumerate() {
                    let item = Some((item, index, count));
                    let scope = Scope { form, item, glob, budget: &budget };
                    tasks.push(task_of(recipe, spec, &scope, &mut config)?);
                }
            }
        }
    }
    unique_names(recipe, &tasks)?;
    if let Some(spec) = &recipe.plan.agent {
        let scope = Scope { form, item: None, glob, budget: &budget };
        tasks = vec![draft::draft(recipe, spec, tasks, &scope, &mut config)?];
    }
    let minutes = tasks.iter().map(PlanTask::budget_ms).sum::<u64>().div_ceil(60_000);
    let recipe_hash = recipe.hash().map_err(|e| invalid(recipe, &e.to_string()))?;
    // A cap on minutes bounds what may really run; timeouts are ceilings, so their sum may pass it.
    // What is refused is a single task that alone could pass the cap.
    let longest = tasks.iter().map(PlanTask::budget_ms).max().unwrap_or(0).div_ceil(60_000);
    let cap = u64::from(recipe.caps.sandbox_minutes);
    if longest > cap {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            format!("a task may run {longest} minutes, caps.sandbox_minutes is {cap}; shorten it, or raise the cap"),
        )
        .with(serde_json::json!({"metric": "sandbox_minutes", "limit": cap, "observed": longest, "sum": minutes}))
        .into());
    }
    Ok(Plan {
        recipe_ref: recipe.reference(),
        recipe_hash,
        gate: recipe.plan.gate.clone(),
        config: config.used.into_iter().collect(),
        caps: recipe.caps,
        tasks,
    })
}

fn over_caps(recipe: &Recipe, tasks: usize) -> Result<(), Refusal> {
    let cap = usize::try_from(recipe.caps.steps).unwrap_or(usize::MAX);
    if tasks > cap {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            format!(
                "the plan has {tasks} tasks, caps.steps is {cap}; start fewer, or raise the cap"
            ),
        )
        .with(serde_json::json!({"metric": "steps", "limit": cap, "observed": tasks})));
    }
    Ok(())
}

fn unique_names(recipe: &Recipe, tasks: &[PlanTask]) -> Result<(), Refusal> {
    let mut seen = std::collections::BTreeSet::new();
    for task in tasks {
        if !seen.insert(task.step_id()) {
            let why = format!(
                "two tasks are named {:?}: use ${{item}} or ${{index}} in the name",
                task.name
            );
            return Err(invalid(recipe, &why));
        }
    }
    Ok(())
}

fn items_of(each: &Value, scope: &Scope<'_>) -> Result<Vec<Value>, Fault> {
    let value = match each {
        Value::String(text) => render_value(text, scope).map_err(|e| Fault::of(e, "each"))?,
        other => other.clone(),
    };
    match value {
        Value::Array(items) => Ok(items),
        _ => Err("each: must be a list, or an expression that yields one".into()),
    }
}

/// The configuration, and what of it a plan has used.
struct Config<'a> {
    settings: &'a Settings,
    used: std::collections::BTreeSet<ConfigRef>,
}

/// Which of a profile's wall times.
#[derive(Clone, Copy)]
enum WallTimeKind {
    Build,
    Exec,
}

impl WallTimeKind {
    /// The field of a task that writes it.
    const fn field(self) -> &'static str {
        match self {
            Self::Build => "build.timeout",
            Self::Exec => "exec.timeout",
        }
    }
}

impl Config<'_> {
    fn profile(&mut self, language: profile::Language) -> Option<profile::Profile> {
        let found = self.settings.profile(language)?;
        self.used.insert(found.source);
        Some(found.value)
    }

    fn profile_ms(&mut self, language: profile::Language, timed: WallTimeKind) -> Option<u64> {
        let found = self.profile(language)?;
        Some(match timed {
            WallTimeKind::Build => found.build_timeout_ms,
            WallTimeKind::Exec => found.exec_timeout_ms,
        })
    }

    /// What was written, or the task's profile.
    fn wall(
        &mut self,
        written: Option<&str>,
        spec: &TaskSpec,
        scope: &Scope<'_>,
        timed: WallTimeKind,
    ) -> Result<Option<u64>, Fault> {
        let field = timed.field();
        let Some(written) = written else {
            return Ok(spec.profile.and_then(|language| self.profile_ms(language, timed)));
        };
        let rendered = text(written, scope, field)?;
        Ok(match timeout::read(&rendered).map_err(|e| format!("{field}: {e}"))? {
            Wall::Fixed(duration) => Some(duration.ms()),
            Wall::Profile(language) => self.profile_ms(language, timed),
        })
    }
}

fn task_of(
    recipe: &Recipe,
    spec: &TaskSpec,
    scope: &Scope<'_>,
    config: &mut Config<'_>,
) -> Result<PlanTask, CompileError> {
    let mut task = rendered(recipe, spec, scope, config).map_err(|e| e.of_task(recipe, spec))?;
    if let Work::Sandbox(request) = &mut task.work {
        artifact_glob::check_request(request).map_err(|why| broken(recipe, spec, &why))?;
        let what = format!("recipe {}@{}: task {:?}", recipe.id, recipe.v, task.name);
        config.settings.settle(&what, request)?;
    }
    Ok(task)
}

fn rendered(
    recipe: &Recipe,
    spec: &TaskSpec,
    scope: &Scope<'_>,
    config: &mut Config<'_>,
) -> Result<PlanTask, Fault> {
    let name = text(&spec.name, scope, "name")?;
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return Err("name: must be 1 to 128 characters without control characters".into());
    }
    if let Some(value) = &spec.value {
        return Ok(PlanTask { name, work: Work::Value(text(value, scope, "value")?) });
    }
    let exec = spec.exec.as_ref().ok_or("exec: missing")?;
    let build = match &spec.build {
        None => None,
        Some(b) => Some(BuildPhase {
            cmd: argv(recipe, spec, &b.run, scope, "build.run")?,
            env: variables(&b.env, scope, "build.env")?,
            egress: b.egress.clone(),
            ask: b.ask,
            secrets: b.secrets.clone(),
            timeout_ms: config.wall(b.timeout.as_deref(), spec, scope, WallTimeKind::Build)?,
            user: user(b.user.as_deref(), scope, "build.user")?,
        }),
    };
    let (repo, mount) = repo_of(spec, scope)?;
    let build = with_checkout(build, repo.as_ref())?;
    let mut files_in: Vec<InputFile> =
        spec.files.iter().map(|f| file_of(f, scope)).collect::<Result<_, _>>()?;
    files_in.extend(mount);
    let request = SandboxRequest {
        env_ref: text(spec.image.as_deref().unwrap_or("host"), scope, "image")?,
        cmd: argv(recipe, spec, &exec.run, scope, "exec.run")?,
        files_in,
        env: variables(&exec.env, scope, "exec.env")?,
        workdir: exec.workdir.as_deref().map(|w| text(w, scope, "exec.workdir")).transpose()?,
        user: user(spec.user.as_deref(), scope, "user")?,
        stdin: exec.stdin.as_deref().map(|path| text(path, scope, "exec.stdin")).transpose()?,
        input: exec.input,
        timeout_ms: config
            .wall(exec.timeout.as_deref(), spec, scope, WallTimeKind::Exec)?
            .unwrap_or(config.settings.default_timeout_ms()),
        limits: match spec.profile.and_then(|language| config.profile(language)) {
            Some(profile) => profile::merged(spec.limits, profile.limits),
            None => spec.limits,
        },
        egress: exec.egress.clone(),
        egress_ask: exec.ask,
        secrets: exec.secrets.clone(),
        template_key: None,
        deps_hash: None,
        artifacts: artifacts(spec, scope)?,
        reports: reports(spec, scope)?,
        build,
        repo,
        spec: extra_spec(spec, cache_of(spec, scope)?),
    };
    Ok(PlanTask { name, work: Work::Sandbox(Box::new(request)) })
}

fn artifacts(spec: &TaskSpec, scope: &Scope<'_>) -> Result<Vec<ArtifactSpec>, Fault> {
    let path = |one: &ArtifactSpec| text(&one.path, scope, "artifacts");
    spec.artifacts.iter().map(|one| Ok(ArtifactSpec { path: path(one)?, ..one.clone() })).collect()
}

fn reports(spec: &TaskSpec, scope: &Scope<'_>) -> Result<Vec<ReportSpec>, Fault> {
    let one = |report: &ReportSpec| {
        Ok(ReportSpec { path: text(&report.path, scope, "reports")?, kind: report.kind })
    };
    spec.reports.iter().map(one).collect()
}

/// The repository that a task finds, and the mount that shows one of the host.
fn repo_of(
    spec: &TaskSpec,
    scope: &Scope<'_>,
) -> Result<(Option<InputRepo>, Option<InputFile>), Fault> {
    let Some(repo) = &spec.repo else { return Ok((None, None)) };
    let field = |value: &Option<String>, name: &str| {
        value.as_deref().map(|value| text(value, scope, name)).transpose()
    };
    let path = field(&repo.path, "repo.path")?;
    let rendered = RepoSpec {
        path: path.clone(),
        url: field(&repo.url, "repo.url")?,
        commit: text(&repo.commit, scope, "repo.commit")?,
    };
    Ok((Some(rendered.resolve()?), path.map(|path| patch::mount(&path))))
}

fn user(written: Option<&str>, scope: &Scope<'_>, field: &str) -> Result<Option<UserName>, Fault> {
    let Some(written) = written else { return Ok(None) };
    let named = UserName::parse(&text(written, scope, field)?);
    Ok(Some(named.map_err(|error| format!("{field}: {error}"))?))
}

fn variables(env: &Variables, scope: &Scope<'_>, field: &str) -> Result<Variables, Fault> {
    let mut rendered = Variables::new();
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) {
            return Err(
                format!("{field}: {key:?} is not the name of an environment variable").into()
            );
        }
        rendered.insert(key.clone(), text(value, scope, field)?);
    }
    Ok(rendered)
}

/// The task's cache, with the build's lock file among its paths.
fn cache_of(spec: &TaskSpec, scope: &Scope<'_>) -> Result<Option<CacheSpec>, Fault> {
    let lock = match spec.build.as_ref().and_then(|build| build.cache.as_ref()) {
        Some(BuildCache::Lock(path)) => Some(path.as_str()),
        Some(BuildCache::Spec(_)) | None => None,
    };
    let asked = match (spec.said_cache(), lock) {
        (None, None) => return Ok(None),
        (Some((_, asked)), _) => asked.clone(),
        (None, Some(_)) => CacheSpec { org: None, repo: None, paths: Vec::new(), dirs: Vec::new() },
    };
    let all = |texts: &mut dyn Iterator<Item = &str>, field: &str| -> Result<Vec<String>, Fault> {
        texts.map(|one| text(one, scope, field)).collect()
    };
    let mut paths = asked.paths.iter().map(String::as_str).chain(lock);
    Ok(Some(CacheSpec {
        // Never an expression: whose it is can be judged before anything is compiled.
        org: asked.org.clone(),
        repo: asked.repo.as_deref().map(|repo| text(repo, scope, "cache.repo")).transpose()?,
        paths: all(&mut paths, "cache.paths")?,
        dirs: all(&mut asked.dirs.iter().map(String::as_str), "cache.dirs")?,
    }))
}

fn extra_spec(spec: &TaskSpec, cache: Option<CacheSpec>) -> Option<SandboxSpec> {
    let asked = !spec.services.is_empty()
        || cache.is_some()
        || spec.isolation.is_some()
        || spec.models.is_some();
    asked.then(|| SandboxSpec {
        services: (!spec.services.is_empty()).then(|| spec.services.clone()),
        cache,
        isolation: spec.isolation,
        models: spec.models.clone(),
        ..SandboxSpec::default()
    })
}

fn file_of(file: &FileSpec, scope: &Scope<'_>) -> Result<InputFile, Fault> {
    let uri = match &file.from {
        None => None,
        Some(from) => {
            let from = text(from, scope, "files.from")?;
            Some(match () {
                () if from.starts_with("artifact://") => from,
                () if from.starts_with('/') => format!("host://{from}"),
                () => {
                    let shown: String = from.chars().take(200).collect();
                    return Err(format!("files.from: {shown:?} is not an absolute path").into());
                }
            })
        }
    };
    Ok(InputFile {
        path: text(&file.to, scope, "files.to")?,
        inline: file.text.as_deref().map(|t| text(t, scope, "files.text")).transpose()?,
        uri,
        access: file.access,
    })
}

fn argv(
    recipe: &Recipe,
    task: &TaskSpec,
    cmd: &Cmd,
    scope: &Scope<'_>,
    field: &str,
) -> Result<Vec<String>, Fault> {
    match cmd {
        Cmd::Shell(script) => Ok(vec!["/bin/sh".into(), "-c".into(), text(script, scope, field)?]),
        Cmd::Argv(argv) => {
            let all: Result<Vec<String>, Fault> =
                argv.iter().map(|arg| text(arg, scope, field)).collect();
            let all = all?;
            for (at, rendered) in all.iter().enumerate() {
                shell::is_no_option(recipe, task, argv, at, rendered)
                    .map_err(|why| format!("{field}: {why}"))?;
            }
            Ok(all)
        }
    }
}

fn text(value: &str, scope: &Scope<'_>, field: &str) -> Result<String, Fault> {
    let rendered = render(value, scope).map_err(|e| Fault::of(e, field))?;
    if rendered.contains('\0') {
        return Err(format!("{field}: a NUL character").into());
    }
    Ok(rendered)
}

fn broken(recipe: &Recipe, task: &TaskSpec, why: &str) -> Refusal {
    invalid(recipe, &format!("task {:?}: {why}", task.name))
}

fn invalid(recipe: &Recipe, why: &str) -> Refusal {
    Refusal::new(ErrorCode::RecipeInvalid, format!("recipe {}@{}: {why}", recipe.id, recipe.v))
}

#[cfg(test)]
mod tests;
