//! From what was asked for to the work of a task, and the plan around it. Pure.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use cofferdam_contracts::agent_plan::PROJECT;
use cofferdam_contracts::dispatch::{
    AgentType, AgentWork, CheckedSpec, DEFAULT_TIMEOUT_SEC, SpawnRequest,
};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::DispatchId;
use cofferdam_contracts::patch::{InputRepo, mount, with_checkout};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::project::{self, ProjectLocation};
use cofferdam_contracts::sandbox::{
    AccessMode, BuildPhase, Egress, InputFile, Mount, PhaseSpec, SandboxRequest, SandboxSpec,
};

use super::agents::{self, CATALOG, HOME, PROMPT};
use super::model::AgentModel;
use super::tools;

use crate::static_recipe::StaticRecipe;

/// Where agents are looked for. On the host's own root, whose `/usr` is read-only, a spec's mounts
/// give an agent that is installed elsewhere a place in the first of them.
const PATH: &str = "/opt/agents/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The run of a dispatch. A task may take a day, and is tried three times.
pub(crate) const RUN: StaticRecipe<AgentWork> = StaticRecipe {
    recipe: "dispatch",
    task: "agent",
    cap_minutes: 3 * 24 * 60 + 10,
    work: |work| Work::Agent(Box::new(work)),
};

/// The access mode in force: the spec's supersedes the old one.
pub(crate) fn mode(request: &SpawnRequest, spec: Option<&CheckedSpec>) -> AccessMode {
    spec.and_then(|checked| checked.spec.access_mode)
        .or(request.sandbox)
        .unwrap_or(AccessMode::WorkspaceWrite)
}

fn breach(words: &str) -> Refusal {
    Refusal::new(ErrorCode::PolicyViolation, words)
}

/// The work of a dispatch.
pub(crate) fn work_of(
    id: &DispatchId,
    request: &SpawnRequest,
    checked: Option<&CheckedSpec>,
    model: Option<&AgentModel>,
) -> Result<AgentWork, Refusal> {
    let none = SandboxSpec::default();
    let spec = checked.map_or(&none, |checked| &checked.spec);
    if request.cmd.is_some() && request.agent_type != AgentType::Command {
        return Err(breach("cmd belongs to agent_type `command`"));
    }
    if request.agent_program.is_some() && request.agent_type == AgentType::Command {
        return Err(breach("agent_program belongs to the types of agents; use cmd"));
    }
    tools::check(request.agent_type, spec)?;
    let access_mode = tools::access(request.agent_type, spec, mode(request, checked));
    let working_dir = working_dir(&request.project_dir, spec.working_dir.as_deref())?;
    let phases = spec.phases.clone().unwrap_or_default();
    let (repo, build) = checkout(request, phases.build, access_mode)?;
    let exec = phases.exec.unwrap_or_default();
    let asked_ms = request.timeout_sec.map(|sec| sec * 1_000);
    let timeout_ms = match (asked_ms, exec.timeout_ms) {
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b).unwrap_or(DEFAULT_TIMEOUT_SEC * 1_000),
    };
    let file = |path: &str, inline: Option<String>, uri: Option<String>, access| InputFile {
        path: path.to_owned(),
        inline,
        uri,
        tree: None,
        live: false,
        access,
        optional: false,
    };
    let mut limits = spec.limits.unwrap_or_default();
    limits.mem_mb = limits.mem_mb.or(agents::mem_mb(request.agent_type));
    let source = request.repo.as_ref().map(|repo| repo.path.as_deref().map(mount));
    let place = place_of(request, spec, &working_dir).to_owned();
    let source = source.unwrap_or_else(|| {
        Some(file(&place, None, Some(format!("host://{working_dir}")), access_mode))
    });
    let mut files_in: Vec<InputFile> = source.into_iter().collect();
    if let Some(repository) = repository(request, &place, &working_dir)? {
        let uri = Some(format!("host://{repository}"));
        files_in.push(file(&repository, None, uri, AccessMode::WorkspaceWrite));
    }
    files_in.extend([file(PROMPT, Some(request.prompt.clone()), None, AccessMode::ReadOnly)]);
    if request.agent_type != AgentType::Command {
        // Its home has to be there before its jail is made.
        let words = format!("{id}\n");
        files_in.push(file(&format!("{HOME}/.dispatch"), Some(words), None, AccessMode::ReadOnly));
    }
    let catalog = agents::catalog(request.agent_type, spec);
    files_in.extend(catalog.map(|text| file(CATALOG, Some(text), None, AccessMode::ReadOnly)));
    let image = spec.image.as_deref().unwrap_or("host");
    let sandbox = SandboxRequest {
        files_in,
        env: environment(id, request.agent_type, spec, model),
        workdir: Some(place),
        user: spec.user.clone(),
        limits,
        egress: exec.egress.unwrap_or(Egress::None),
        secrets: exec.secrets.unwrap_or_default(),
        build,
        repo,
        spec: Some(SandboxSpec {
            mounts: mounts(request, spec),
            services: spec.services.clone(),
            cache: spec.cache.clone(),
            isolation: spec.isolation,
            models: spec.models.clone(),
            ..SandboxSpec::default()
        }),
        ..SandboxRequest::plain(image, agents::argv(request, spec, model), timeout_ms)
    };
    Ok(AgentWork {
        dispatch: id.clone(),
        agent_type: request.agent_type,
        request: sandbox,
        stdin: PROMPT.to_owned(),
        tools_allowed: spec.tools_allowed.clone(),
        tools_denied: spec.tools_denied.clone(),
        commands: spec.commands.clone(),
        access_mode,
        working_dir,
        max_turns: spec.max_turns,
        max_commands: spec.max_commands,
        enforce: request.enforce,
        unknown: checked.map(|checked| checked.unknown.clone()).unwrap_or_default(),
    })
}

/// Where the project lies in the sandbox: at its own path, unless that is a place of the sandbox's or of the agent's own, or
/// the spec puts something below `/work`, which the project's second mount would hide.
fn place_of<'a>(request: &SpawnRequest, spec: &SandboxSpec, working_dir: &'a str) -> &'a str {
    let mounts = spec.mounts.iter().flatten().map(|mount| mount.target.as_str());
    let cached = spec.cache.iter().flat_map(|cache| &cache.dirs).map(String::as_str);
    let is_below = mounts.chain(cached).any(|target| Path::new(target).starts_with(PROJECT));
    let own = project::place(working_dir);
    let is_agents = [HOME, PROMPT].iter().any(|theirs| Path::new(theirs).starts_with(own));
    let is_own = request.project_at == ProjectLocation::Own && request.repo.is_none();
    match is_own && !is_below && !is_agents {
        true => own,
        false => PROJECT,
    }
}

/// The repository of a linked worktree, unless it is part of what is shown already.
fn repository(
    request: &SpawnRequest,
    place: &str,
    working_dir: &str,
) -> Result<Option<String>, Refusal> {
    let Some(named) = &request.worktree_of else { return Ok(None) };
    let why = match plain(named) {
        _ if request.repo.is_some() => "excludes repo, which brings the repository itself",
        _ if place != working_dir => "needs the project at its own path, which git's files name",
        Some(path) if project::place(&path) == path => {
            let is_inside = Path::new(&path).starts_with(working_dir);
            return Ok(Some(path).filter(|_| !is_inside));
        }
        _ => "must be an absolute path, and no directory that a sandbox has of its own",
    };
    Err(breach(&format!("worktree_of: {why}")))
}

/// The mounts of the spec, and the program that the request names.
fn mounts(request: &SpawnRequest, spec: &SandboxSpec) -> Option<Vec<Mount>> {
    let program = request.agent_program.as_ref().map(|source| Mount {
        source: source.clone(),
        target: agents::program(request.agent_type),
        access: AccessMode::ReadOnly,
    });
    match (&spec.mounts, program) {
        (given, None) => given.clone(),
        (given, Some(program)) => Some(given.iter().flatten().cloned().chain([program]).collect()),
    }
}

/// The repository that the agent works on, and the phase that checks it out.
fn checkout(
    request: &SpawnRequest,
    fetch: Option<PhaseSpec>,
    access_mode: AccessMode,
) -> Result<(Option<InputRepo>, Option<BuildPhase>), Refusal> {
    let is_fetched = request.repo.as_ref().is_some_and(|repo| repo.url.is_some());
    if fetch.is_some() && !is_fetched {
        let why = "phases.build: a dispatch has one phase, exec, unless it names repo.url";
        return Err(breach(why));
    }
    let Some(repo) = &request.repo else { return Ok((None, None)) };
    let repo = repo.resolve().map_err(|why| breach(&why))?;
    if access_mode != AccessMode::WorkspaceWrite {
        return Err(breach("repo: needs access_mode `workspace-write` and a tool that edits"));
    }
    let fetch = fetch.unwrap_or_default();
    let build = BuildPhase {
        cmd: Vec::new(),
        env: BTreeMap::new(),
        egress: fetch.egress.unwrap_or(Egress::None),
        ask: false,
        secrets: fetch.secrets.unwrap_or_default(),
        timeout_ms: fetch.timeout_ms,
        user: None,
    };
    let build = with_checkout(Some(build), Some(&repo)).map_err(|why| breach(&why))?;
    Ok((Some(repo), build))
}

fn environment(
    id: &DispatchId,
    agent: AgentType,
    spec: &SandboxSpec,
    model: Option<&AgentModel>,
) -> BTreeMap<String, String> {
    let mut env = agents::environment(agent, spec, model);
    env.insert("COFFERDAM_DISPATCH".to_owned(), id.to_string());
    if spec.image.is_none() {
        env.insert("PATH".to_owned(), PATH.to_owned());
    }
    env
}

/// The project, or a directory of it.
fn working_dir(project: &str, wanted: Option<&str>) -> Result<String, Refusal> {
    let project = plain(project).ok_or_else(|| {
        breach("project_dir must be an absolute path without empty, `.` or `..` components")
    })?;
    let Some(wanted) = wanted else { return Ok(project) };
    let outside = || breach("working_dir must be the project or a directory of it");
    let joined = match wanted.starts_with('/') {
        true => wanted.to_owned(),
        false if wanted == "." => project.clone(),
        false => format!("{project}/{}", wanted.trim_start_matches("./")),
    };
    let joined = plain(&joined).ok_or_else(outside)?;
    if Path::new(&joined).starts_with(&project) { Ok(joined) } else { Err(outside()) }
}

/// An absolute path below the root, of plain names.
fn plain(path: &str) -> Option<String> {
    let trimmed = path.trim_end_matches('/');
    let plain = trimmed.len() > 1
        && trimmed.starts_with('/')
        && !trimmed.contains("//")
        && !trimmed.chars().any(char::is_control)
        && !trimmed.split('/').any(|part| part == ".")
        && Path::new(trimmed)
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    plain.then(|| trimmed.to_owned())
}

/// What tests look at: the work of an agent with this spec.
#[cfg(test)]
pub(super) fn sample(agent: &str, spec: serde_json::Value) -> AgentWork {
    let request = serde_json::json!({"agent_type": agent, "prompt": "p", "project_dir": "/srv/p"});
    let checked = cofferdam_contracts::dispatch::check_spec(&spec, false).unwrap();
    let id = DispatchId::parse("abcd1234").unwrap();
    work_of(&id, &serde_json::from_value(request).unwrap(), Some(&checked), None).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::dispatch::check_spec;
    use serde_json::{Value, json};

    fn work(request: Value, spec: Option<Value>) -> Result<AgentWork, Refusal> {
        let mut whole = json!({"prompt": "p", "project_dir": "/srv/p"});
        whole.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        let request: SpawnRequest = serde_json::from_value(whole).unwrap();
        let checked = spec.map(|spec| check_spec(&spec, false).unwrap());
        work_of(&DispatchId::parse("abcd1234").unwrap(), &request, checked.as_ref(), None)
    }

    #[test]
    fn the_specs_access_mode_supersedes_the_old_one() {
        let old = json!({"sandbox": "read-only"});
        assert_eq!(work(old.clone(), None).unwrap().access_mode, AccessMode::ReadOnly);
        let new = work(old, Some(json!({"access_mode": "workspace-write"}))).unwrap();
        assert_eq!(new.access_mode, AccessMode::WorkspaceWrite);
        assert_eq!(new.request.files_in[0].access, AccessMode::WorkspaceWrite);
    }

    #[test]
    fn the_working_directory_stays_in_the_project() {
        let dir = |text: &str| work(json!({}), Some(json!({"working_dir": text})));
        assert_eq!(dir("sub/x").unwrap().working_dir, "/srv/p/sub/x");
        assert_eq!(dir("/srv/p/sub/").unwrap().working_dir, "/srv/p/sub");
        assert_eq!(dir(".").unwrap().working_dir, "/srv/p");
        for bad in ["/srv/project", "../x", "/etc", "/srv/p/../q", "a/../../b"] {
            assert!(dir(bad).is_err(), "{bad}");
        }
        for bad in ["relative", "/", "/a/../b", "/a//b"] {
            assert!(work(json!({"project_dir": bad}), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn r85_r86_a_project_lies_at_its_own_path_unless_something_else_does() {
        let at = |request: Value, spec: Value| {
            let request = work(request, Some(spec)).unwrap().request;
            assert_eq!(request.files_in[0].path, *request.workdir.as_ref().unwrap());
            request.workdir.unwrap()
        };
        assert_eq!(at(json!({}), json!({})), "/srv/p");
        assert_eq!(at(json!({}), json!({"working_dir": "sub"})), "/srv/p/sub");
        assert_eq!(at(json!({"project_at": "work"}), json!({})), "/work");
        for taken in ["/usr/src/p", "/home/agent", "/home", "/dispatch", "/tmp"] {
            assert_eq!(at(json!({"project_dir": taken}), json!({})), "/work", "{taken}");
        }
        let mount = json!({"mounts": [{"source": "/srv/x", "target": "/work/x"}]});
        assert_eq!(at(json!({}), mount), "/work");
    }

    #[test]
    fn r85_the_repository_of_a_worktree_is_shown_where_git_looks_for_it() {
        let shown = |request: Value| work(request, None).map(|work| work.request.files_in);
        let files = shown(json!({"worktree_of": "/srv/main/.git"})).unwrap();
        assert_eq!(
            (files[1].path.as_str(), files[1].access),
            ("/srv/main/.git", AccessMode::WorkspaceWrite)
        );
        let without = shown(json!({})).unwrap().len();
        assert_eq!(files.len(), without + 1);
        assert_eq!(shown(json!({"worktree_of": "/srv/p/.git"})).unwrap().len(), without);
        for bad in [
            json!({"worktree_of": "/srv/../etc"}),
            json!({"worktree_of": "/etc/x"}),
            json!({"worktree_of": "/srv/main/.git", "project_at": "work"}),
        ] {
            let refusal = shown(bad.clone()).unwrap_err();
            assert!(refusal.message.starts_with("worktree_of: "), "{bad} {}", refusal.message);
        }
    }

    #[test]
    fn the_nearer_timeout_holds_and_there_always_is_one() {
        let ms = |request, spec| work(request, spec).unwrap().request.timeout_ms;
        assert_eq!(ms(json!({}), None), DEFAULT_TIMEOUT_SEC * 1_000);
        let spec = json!({"phases": {"exec": {"timeout_ms": 500}}});
        assert_eq!(ms(json!({"timeout_sec": 9}), Some(spec)), 500);
    }

    #[test]
    fn a_command_line_is_for_the_type_command_alone() {
        assert!(work(json!({"cmd": ["ls"]}), None).is_err());
        assert!(work(json!({"agent_type": "command", "cmd": ["ls"]}), None).is_ok());
    }

    #[test]
    fn d_r3_an_agent_has_the_memory_that_it_needs_unless_the_spec_says_otherwise() {
        let mem = |agent: &str, spec| {
            work(json!({"agent_type": agent}), Some(spec)).unwrap().request.limits.mem_mb
        };
        assert_eq!(mem("opencode", json!({})), Some(2_048));
        assert_eq!(mem("codex", json!({"limits": {"cpu": 0.5}})), Some(1_024));
        assert_eq!(mem("opencode", json!({"limits": {"mem_mb": 600}})), Some(600));
        assert_eq!(mem("command", json!({})), None);
    }

    #[test]
    fn d_r1_an_agents_home_is_not_below_tmp() {
        for agent in ["codex", "claude", "opencode"] {
            let request = work(json!({"agent_type": agent}), None).unwrap().request;
            assert!(!request.env["HOME"].starts_with("/tmp"), "{agent}");
            let home = format!("{}/", request.env["HOME"]);
            assert!(request.files_in.iter().any(|file| file.path.starts_with(&home)), "{agent}");
        }
    }
}
