//! A task of a recipe becomes a task of its plan: every text rendered, or parsed into late parts.

use crate::artifact_spec::ArtifactSpec;
use crate::cache::{BuildCache, CacheSpec};
use crate::gate_spec::escape;
use crate::late::{self, LateField, LatePart, PartsError};
use crate::patch::{self, InputRepo, RepoSpec, with_checkout};
use crate::profile;
use crate::recipe::pipeline::task_uri;
use crate::recipe::{Cmd, FileSpec, Recipe, TaskSpec};
use crate::sandbox::{AccessMode, BuildPhase, InputFile, SandboxRequest, SandboxSpec};
use crate::shell;
use crate::template::{Scope, render};
use crate::test_report::ReportSpec;
use crate::toolchain::Toolchain;
use crate::tree_upload;
use crate::user::UserName;
use crate::work::{PlanTask, TaskFiles, Work};

use super::fault::Fault;
use super::task_config::{Config, WallTimeKind, text};

type Variables = std::collections::BTreeMap<String, String>;

/// Where a text is: its field in the recipe, for errors, and its JSON Pointer in the work.
#[derive(Clone, Copy)]
struct FieldPath<'a> {
    field: &'a str,
    at: &'a str,
}

const EXEC_RUN: FieldPath<'_> = FieldPath { field: "exec.run", at: "/sandbox/cmd" };
const EXEC_ENV: FieldPath<'_> = FieldPath { field: "exec.env", at: "/sandbox/env" };
const BUILD_RUN: FieldPath<'_> = FieldPath { field: "build.run", at: "/sandbox/build/cmd" };
const BUILD_ENV: FieldPath<'_> = FieldPath { field: "build.env", at: "/sandbox/build/env" };

/// Texts of a task that wait for the outputs of others.
struct LateFields {
    is_item_late: bool,
    fields: Vec<LateField>,
}

impl LateFields {
    /// The rendered text, or an empty one and a late field.
    fn text(
        &mut self,
        value: &str,
        scope: &Scope<'_>,
        path: FieldPath<'_>,
    ) -> Result<String, Fault> {
        let Some(parts) = late_parts(value, scope, path.field, self.is_item_late)? else {
            return text(value, scope, path.field);
        };
        self.fields.push(LateField { at: path.at.to_owned(), parts });
        Ok(String::new())
    }

    /// The words of a list have others before them now.
    fn shift(&mut self, list: &str, by: usize) {
        for field in &mut self.fields {
            let index = field.at.strip_prefix(list).and_then(|rest| rest.strip_prefix('/'));
            if let Some(index) = index.and_then(|index| index.parse::<usize>().ok()) {
                field.at = format!("{list}/{}", index.saturating_add(by));
            }
        }
    }
}

/// Parts of a text that has a late value.
pub(super) fn late_parts(
    value: &str,
    scope: &Scope<'_>,
    field: &str,
    is_item_late: bool,
) -> Result<Option<Vec<LatePart>>, Fault> {
    let parts = late::parts(value, is_item_late, &mut |known| render(known, scope));
    let parts = parts.map_err(|error| match error {
        PartsError::Reference(why) => Fault::Invalid(format!("{field}: {why}")),
        PartsError::Template(error) => Fault::of(error, field),
    })?;
    if parts.is_some() {
        scope.budget.charge(value.len()).map_err(|error| Fault::of(error, field))?;
    }
    let has_nul = |part: &LatePart| matches!(part, LatePart::Text(text) if text.contains('\0'));
    match parts.as_ref().is_some_and(|parts| parts.iter().any(has_nul)) {
        true => Err(format!("{field}: a NUL character").into()),
        false => Ok(parts),
    }
}

/// Whether a text can be the name of a task.
pub(super) fn is_task_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 128 && !name.chars().any(char::is_control)
}

/// Files of an earlier task, if a file is some.
fn task_files(file: &FileSpec) -> Result<Option<TaskFiles>, Fault> {
    let Some(from) = &file.from else { return Ok(None) };
    let Some((task, glob)) = task_uri(from).map_err(|why| format!("files.from: {why}"))? else {
        return Ok(None);
    };
    let (to, access) = (file.to.clone(), file.access);
    Ok(Some(TaskFiles { task, glob: glob.to_owned(), to, access }))
}

/// One task of a recipe, rendered. Of a late fan-out the name stays as it is written.
pub(super) fn rendered(
    recipe: &Recipe,
    spec: &TaskSpec,
    scope: &Scope<'_>,
    config: &mut Config<'_>,
) -> Result<PlanTask, Fault> {
    let mut late = LateFields { is_item_late: spec.is_late_fanout(), fields: Vec::new() };
    let name = match late.is_item_late {
        true => spec.name.clone(),
        false => text(&spec.name, scope, "name")?,
    };
    if !is_task_name(&name) {
        return Err("name: must be 1 to 128 characters without control characters".into());
    }
    if let Some(value) = &spec.value {
        let value = late.text(value, scope, FieldPath { field: "value", at: "/value" })?;
        return Ok(PlanTask { late: late.fields, ..PlanTask::of(name, Work::Value(value)) });
    }
    let exec = spec.exec.as_ref().ok_or("exec: missing")?;
    let build = match &spec.build {
        None => None,
        Some(b) => Some(BuildPhase {
            cmd: argv(recipe, spec, &b.run, scope, &mut late, BUILD_RUN)?,
            env: variables(&b.env, scope, &mut late, BUILD_ENV)?,
            egress: b.egress.clone(),
            ask: b.ask,
            secrets: b.secrets.clone(),
            timeout_ms: config.wall(b.timeout.as_deref(), spec, scope, WallTimeKind::Build)?,
            user: user(b.user.as_deref(), scope, "build.user")?,
        }),
    };
    let (repo, mount) = repo_of(spec, scope)?;
    let words = |build: &Option<BuildPhase>| build.as_ref().map_or(0, |build| build.cmd.len());
    let written = words(&build);
    let build = with_checkout(build, repo.as_ref())?;
    late.shift(BUILD_RUN.at, words(&build).saturating_sub(written));
    let (mut files_in, mut files) = (Vec::new(), Vec::new());
    for file in &spec.files {
        match task_files(file)? {
            Some(found) => files.push(found),
            None => {
                let at = format!("/sandbox/filesIn/{}/inline", files_in.len());
                files_in.push(file_of(file, scope, &mut late, &at)?);
            }
        }
    }
    files_in.extend(mount);
    let request = SandboxRequest {
        env_ref: text(spec.image.as_deref().unwrap_or("host"), scope, "image")?,
        cmd: argv(recipe, spec, &exec.run, scope, &mut late, EXEC_RUN)?,
        files_in,
        env: variables(&exec.env, scope, &mut late, EXEC_ENV)?,
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
        outputs: spec.outputs.clone(),
        toolchains: toolchains(spec)?,
        build,
        repo,
        spec: extra_spec(spec, cache_of(spec, scope)?),
    };
    let work = Work::Sandbox(Box::new(request));
    Ok(PlanTask { late: late.fields, files, ..PlanTask::of(name, work) })
}

fn toolchains(spec: &TaskSpec) -> Result<Vec<Toolchain>, Fault> {
    let mut all: Vec<Toolchain> = Vec::new();
    for asked in &spec.toolchains {
        if all.iter().any(|other| other.asked.kind == asked.kind) {
            let kind = asked.kind.as_str();
            return Err(format!("toolchains: {kind} is listed twice; list one version").into());
        }
        all.push(Toolchain { asked: asked.clone(), found: None });
    }
    Ok(all)
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
        commit: field(&repo.commit, "repo.commit")?,
        reference: field(&repo.reference, "repo.ref")?,
    };
    Ok((Some(rendered.resolve()?), path.map(|path| patch::mount(&path))))
}

fn user(written: Option<&str>, scope: &Scope<'_>, field: &str) -> Result<Option<UserName>, Fault> {
    let Some(written) = written else { return Ok(None) };
    let named = UserName::parse(&text(written, scope, field)?);
    Ok(Some(named.map_err(|error| format!("{field}: {error}"))?))
}

fn variables(
    env: &Variables,
    scope: &Scope<'_>,
    late: &mut LateFields,
    path: FieldPath<'_>,
) -> Result<Variables, Fault> {
    let field = path.field;
    let mut rendered = Variables::new();
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) {
            return Err(
                format!("{field}: {key:?} is not the name of an environment variable").into()
            );
        }
        let at = format!("{}/{}", path.at, escape(key));
        rendered.insert(key.clone(), late.text(value, scope, FieldPath { field, at: &at })?);
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

fn file_of(
    file: &FileSpec,
    scope: &Scope<'_>,
    late: &mut LateFields,
    at: &str,
) -> Result<InputFile, Fault> {
    let uri = match &file.from {
        None => None,
        Some(from) => {
            let from = text(from, scope, "files.from")?;
            Some(match () {
                () if from.starts_with("artifact://") => from,
                () if from.starts_with('/') => format!("host://{from}"),
                () if tree_upload::named_by(&from).is_some() => {
                    if file.live || file.access == AccessMode::Full {
                        let why = "files.from: a sent directory is given as it was sent: leave out `live` and `access: full`";
                        return Err(why.to_owned().into());
                    }
                    from
                }
                () => {
                    let shown: String = from.chars().take(200).collect();
                    return Err(format!("files.from: {shown:?} is neither an absolute path nor a sent directory (`tree:SHA256`)").into());
                }
            })
        }
    };
    Ok(InputFile {
        path: text(&file.to, scope, "files.to")?,
        inline: match file.text.as_deref() {
            None => None,
            Some(inline) => {
                Some(late.text(inline, scope, FieldPath { field: "files.text", at })?)
            }
        },
        uri,
        tree: None,
        live: file.live,
        access: file.access,
        optional: false,
    })
}

fn argv(
    recipe: &Recipe,
    task: &TaskSpec,
    cmd: &Cmd,
    scope: &Scope<'_>,
    late: &mut LateFields,
    path: FieldPath<'_>,
) -> Result<Vec<String>, Fault> {
    let field = path.field;
    let mut one = |index: usize, said: &str| {
        let at = format!("{}/{index}", path.at);
        late.text(said, scope, FieldPath { field, at: &at })
    };
    match cmd {
        Cmd::Shell(script) => Ok(vec!["/bin/sh".into(), "-c".into(), one(2, script)?]),
        Cmd::Argv(argv) => {
            let all: Result<Vec<String>, Fault> =
                argv.iter().enumerate().map(|(index, arg)| one(index, arg)).collect();
            let all = all?;
            for (at, rendered) in all.iter().enumerate() {
                shell::is_no_option(recipe, task, argv, at, rendered)
                    .map_err(|why| format!("{field}: {why}"))?;
            }
            Ok(all)
        }
    }
}
