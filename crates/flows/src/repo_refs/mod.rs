//! Branches and tags that recipes name in place of a commit.
//!
//! ```text
//! CompileST: plan --repositories with a `ref`--> bound before? else read the repository or ask its server --> app.intent_refs
//!            --> the commit in the plan and in the build phase's checkout --> plan digest, consent, task keys
//! ```
//! **What is bound first stands for the intent**, so a consent and every task, retry and fork are of one commit, whatever is pushed
//! meanwhile. The worker asks a server before anybody approved the plan, so it asks only where no approval is needed: for the host's own
//! admin, and names that the organisation lists for build phases. A repository of the host is read as one that the run may be given.

mod server;

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contracts::egress::{Entry, Phase};
use cofferdam_contracts::error::{ErrorCode, Refusal, error_chain};
use cofferdam_contracts::patch::{self, GitId, GitRef, GitRefs, RefAbsence};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::git_refs::IntentRef;
use cofferdam_ledger::runs::RunContext;
use cofferdam_sandbox::{
    AllowedPaths, GitDirError, HostPath, Links, OpenError, OutsideNames, git_refs,
};
use serde_json::json;
use tokio::task::JoinError;

use crate::egress;
use crate::error::{Error, Result};
use server::ServerError;

/// Names that one plan binds, each by a question: a pipeline takes a few repositories.
const MAX_REFS: usize = 64;

/// A name of a repository, by its path on the host or its URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RepoRef {
    source: String,
    name: GitRef,
}

/// Why a name is not bound.
#[derive(Debug, thiserror::Error)]
enum RefError {
    #[error(transparent)]
    Absent(#[from] RefAbsence),
    #[error(transparent)]
    Path(#[from] OpenError),
    #[error(transparent)]
    Dir(#[from] GitDirError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the reading of it did not end")]
    Thread(#[from] JoinError),
}

/// What a worker reads repositories with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefReach<'a> {
    pub allowed: &'a AllowedPaths,
    pub names: &'a OutsideNames,
}

/// The repository of a request by its place outside the sandbox, where it has a `ref`.
fn wanted_by(request: &SandboxRequest) -> Option<RepoRef> {
    let name = request.repo.as_ref()?.reference.clone()?;
    Some(RepoRef { source: request.repository()?.to_owned(), name })
}

/// Names that a plan wants bound. Pure.
fn wanted(plan: &Plan) -> BTreeSet<RepoRef> {
    plan.all_tasks().filter_map(|task| wanted_by(task.work.request()?)).collect()
}

/// The plan whose repositories are at the commits that their names are bound to. Pure.
fn attached(mut plan: Plan, bound: &BTreeMap<RepoRef, GitId>) -> Plan {
    for task in plan.all_tasks_mut() {
        let Some(request) = task.work.request_mut() else { continue };
        let commit = wanted_by(request).and_then(|name| bound.get(&name));
        if let Some(commit) = commit {
            request.bind_ref(commit);
        }
    }
    plan
}

/// A plan whose names are what they stand for now, or stood for when the intent was first compiled.
pub(crate) async fn pinned(
    ledger: &Ledger,
    reach: RefReach<'_>,
    run: &RunContext,
    plan: Plan,
) -> Result<std::result::Result<Plan, Refusal>> {
    let wanted = wanted(&plan);
    if wanted.is_empty() {
        return Ok(Ok(plan));
    }
    if wanted.len() > MAX_REFS {
        let why = format!(
            "the plan names {} branches and tags, at most {MAX_REFS} are bound: give commits",
            wanted.len()
        );
        return Ok(Err(Refusal::new(ErrorCode::RecipeInvalid, why)));
    }
    let mut bound = table(ledger.git_refs().of_intent(&run.intent_id).await?)?;
    let mut new = Vec::new();
    for name in wanted.into_iter().filter(|name| !bound.contains_key(name)) {
        if !may_ask(ledger, run, &name).await? {
            return Ok(Err(unlisted(&name)));
        }
        match commit_of(reach, run, &name).await {
            Ok(commit) => new.push(IntentRef {
                source: name.source,
                reference: name.name.to_string(),
                commit_id: commit.to_string(),
            }),
            Err(error) => return Ok(Err(refusal(&name, &error))),
        }
    }
    if !new.is_empty() {
        bound = table(ledger.git_refs().bind(&run.intent_id, &new).await?)?;
    }
    Ok(Ok(attached(plan, &bound)))
}

fn table(rows: Vec<IntentRef>) -> Result<BTreeMap<RepoRef, GitId>> {
    let corrupt = Error::corrupt("intent_refs");
    let one = |row: IntentRef| {
        let name = GitRef::parse(&row.reference).map_err(&corrupt)?;
        let commit = GitId::parse(&row.commit_id).map_err(&corrupt)?;
        Ok((RepoRef { source: row.source, name }, commit))
    };
    rows.into_iter().map(one).collect()
}

/// Whether a question leaves the host with somebody's consent. A directory's names leave it with none.
async fn may_ask(ledger: &Ledger, run: &RunContext, name: &RepoRef) -> Result<bool> {
    let Some(host) = patch::host_of(&name.source) else { return Ok(true) };
    // What cannot be written in a list is in none.
    let Ok(entry) = host.parse::<Entry>() else { return Ok(run.by_host_admin) };
    egress::is_consented(ledger, run, Phase::Build, &entry).await
}

async fn commit_of(
    reach: RefReach<'_>,
    run: &RunContext,
    name: &RepoRef,
) -> std::result::Result<GitId, RefError> {
    let refs = match patch::host_of(&name.source) {
        Some(_) => server::refs(reach.names, &name.source, &name.name).await?,
        None => local(reach, run, name).await?,
    };
    Ok(name.name.commit_in(&refs)?)
}

async fn local(
    reach: RefReach<'_>,
    run: &RunContext,
    name: &RepoRef,
) -> std::result::Result<GitRefs, RefError> {
    let allowed = match run.by_host_admin {
        true => reach.allowed.everything(),
        false => reach.allowed.clone(),
    };
    let (path, wanted) = (HostPath::said(&name.source), name.name.clone());
    let read = tokio::task::spawn_blocking(move || -> std::result::Result<GitRefs, RefError> {
        Ok(git_refs(&allowed.open(&path, Links::Beneath)?, &wanted)?)
    });
    read.await?
}

fn unlisted(name: &RepoRef) -> Refusal {
    let host = patch::host_of(&name.source).unwrap_or_default();
    let why = format!(
        "repo.ref: the worker would ask {host} for the commit of `{}` before anybody approved the plan: have the organisation's \
         policy egress.build.allowed list {host}, or give `commit`",
        name.name
    );
    Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"name": host, "field": "repo.ref"}))
}

fn refusal(name: &RepoRef, error: &RefError) -> Refusal {
    let code = match error {
        RefError::Server(error) if error.is_passing() => ErrorCode::Unavailable,
        RefError::Dir(GitDirError::Read(_)) | RefError::Thread(_) => ErrorCode::Unavailable,
        RefError::Path(error) if !error.is_permanent() => ErrorCode::Unavailable,
        _ => ErrorCode::RecipeInvalid,
    };
    let why = format!("repo.ref: `{}` of {}: {}", name.name, name.source, error_chain(error));
    Refusal::new(code, why).with(json!({"ref": name.name, "repository": name.source}))
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;

    use super::*;

    const RECIPE: &str = "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {name: a, repo: {path: /srv/a, ref: main}, exec: {run: x}}\n    - {name: b, repo: {path: /srv/a, ref: main}, build: {run: y}, exec: {run: x}}\n    - {name: c, repo: {url: 'https://git.example/c', ref: v1}, build: {run: \"true\", egress: [git.example]}, exec: {run: x}}\n    - {name: d, repo: {path: /srv/a, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}, exec: {run: x}}\n";

    #[test]
    fn names_of_every_task_are_bound_once_and_checked_out() {
        let recipe = Recipe::from_yaml("r.yaml", RECIPE).unwrap();
        let plan = plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new()));
        let plan = plan.unwrap();
        let names = wanted(&plan);
        let said: Vec<_> =
            names.iter().map(|name| (name.source.as_str(), name.name.as_str())).collect();
        assert_eq!(said, [("/srv/a", "main"), ("https://git.example/c", "v1")]);
        let commit = GitId::parse(&"b".repeat(64)).unwrap();
        let bound = names.into_iter().map(|name| (name, commit.clone())).collect();
        let plan = attached(plan, &bound);
        for task in plan.all_tasks().take(3) {
            let request = task.work.request().unwrap();
            assert_eq!(request.repo.as_ref().unwrap().commit.as_ref(), Some(&commit));
            let build = &request.build.as_ref().unwrap().cmd;
            assert_eq!((build[4].as_str(), build[6].as_str()), ("sha256", commit.as_str()));
        }
        let second = plan.all_tasks().nth(1).unwrap().work.request().unwrap();
        assert_eq!(second.build.as_ref().unwrap().cmd.last().unwrap(), "y");
    }
}
