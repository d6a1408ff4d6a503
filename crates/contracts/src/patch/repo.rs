//! A repository as a task's input.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GitId, GitRef, ObjectFormat};
use crate::sandbox::{AccessMode, BuildPhase, Egress, InputFile};

/// Where a repository of the host is shown in the sandbox, read-only.
pub const REPO_MOUNT: &str = "/repo";
/// Characters of a URL.
const MAX_URL: usize = 2_048;

/// A repository whose commit a task finds at `/work`. Exactly one of `path` and `url`, and of `commit` and `ref`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepoSpec {
    /// Absolute path of a repository of the worker's host, within its allowed directories.
    pub path: Option<String>,
    /// `https://` or `http://` URL, fetched in the build phase: `build.egress` lists its host.
    pub url: Option<String>,
    /// Full id of the commit.
    pub commit: Option<String>,
    /// Branch, tag or `HEAD`, whose commit is taken when the plan is compiled; each task, retry and fork gets that one.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
}

/// A repository, checked and rendered: the base of the patch that the task leaves.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputRepo {
    /// Path inside the sandbox, or URL.
    pub from: String,
    /// Full id of the commit that is checked out at `/work`; absent while `ref` is not bound yet.
    pub commit: Option<GitId>,
    /// Name that stood for the commit when the plan was compiled.
    #[serde(rename = "ref")]
    pub reference: Option<GitRef>,
}

impl RepoSpec {
    /// What the fields say together.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.path.is_some() == self.url.is_some() {
            return Err("repo: give exactly one of `path` and `url`".to_owned());
        }
        match self.commit.is_some() == self.reference.is_some() {
            true => Err("repo: give exactly one of `commit` and `ref`".to_owned()),
            false => Ok(()),
        }
    }

    /// The repository as the sandbox finds it; every expression is rendered.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn resolve(&self) -> Result<InputRepo, String> {
        self.check()?;
        let commit = self.commit.as_deref().map(GitId::parse).transpose();
        let commit = commit.map_err(|e| format!("repo.commit: {e}"))?;
        let reference = self.reference.as_deref().map(GitRef::parse).transpose();
        let reference = reference.map_err(|e| format!("repo.ref: {e}"))?;
        let from = match &self.url {
            Some(url) => checked_url(url)?,
            None => REPO_MOUNT.to_owned(),
        };
        let path = self.path.as_deref().unwrap_or("/");
        match path.starts_with('/') {
            true => Ok(InputRepo { from, commit, reference }),
            false => Err("repo.path: must be absolute".to_owned()),
        }
    }
}

/// A URL without credentials: a plan is on record, and a secret of `build.secrets` is added outside the sandbox.
fn checked_url(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let rest = rest.ok_or("repo.url: must begin with https:// or http://")?;
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') {
        return Err("repo.url: holds credentials; name a secret in build.secrets".to_owned());
    }
    let is_plain = url.len() <= MAX_URL && url.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    match is_plain && !host.is_empty() {
        true => Ok(url.to_owned()),
        false => Err(format!("repo.url: must be at most {MAX_URL} printable characters")),
    }
}

/// Host of an `http://` or `https://` URL, without its port.
#[must_use]
pub fn host_of(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    rest.split(['/', ':', '?', '#']).next()
}

/// Makes the commit the content of `/work`, inside the sandbox. Arguments: object format, source, commit, and a
/// command that follows.
const CHECKOUT: &str = r#"set -eu
format=$1 from=$2 commit=$3
shift 3
(
  command -v git >/dev/null || { echo 'cofferdam: this root has no git' >&2; exit 1; }
  GIT_CONFIG_GLOBAL=$(mktemp)
  export GIT_CONFIG_GLOBAL GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
  # The source belongs to another user here, and is only read.
  printf '[safe]\n\tdirectory = *\n' >"$GIT_CONFIG_GLOBAL"
  mkdir -p /work
  cd /work
  git init -q --template= --object-format="$format"
  git fetch -q --depth=1 --no-tags --no-recurse-submodules -- "$from" "$commit"
  git -c advice.detachedHead=false checkout -q --detach "$commit"
  [ "$(git rev-parse HEAD)" = "$commit" ] || { echo 'cofferdam: not that commit' >&2; exit 1; }
  rm -f "$GIT_CONFIG_GLOBAL" .git/FETCH_HEAD
)
[ $# -eq 0 ] || exec "$@"
"#;

/// The mount that shows a repository of the host, read-only.
#[must_use]
pub fn mount(path: &str) -> InputFile {
    InputFile {
        path: REPO_MOUNT.to_owned(),
        inline: None,
        uri: Some(format!("host://{path}")),
        tree: None,
        live: false,
        access: AccessMode::ReadOnly,
        optional: false,
    }
}

/// The build phase with the checkout in front; a task without one gets one that has no network.
///
/// # Errors
/// A URL whose host the build phase's `egress` does not list.
pub fn with_checkout(
    build: Option<BuildPhase>,
    repo: Option<&InputRepo>,
) -> Result<Option<BuildPhase>, String> {
    let Some(repo) = repo else { return Ok(build) };
    let mut build = build.unwrap_or_else(|| BuildPhase {
        cmd: Vec::new(),
        env: BTreeMap::new(),
        egress: Egress::None,
        ask: false,
        secrets: Vec::new(),
        timeout_ms: None,
        user: None,
    });
    if let Some(host) = host_of(&repo.from)
        && !build.egress.entries().iter().any(|entry| entry.as_str() == host)
    {
        return Err(format!("repo.url: build.egress does not list its host {host:?}; add it"));
    }
    build.cmd = checkout(repo, &build.cmd);
    Ok(Some(build))
}

/// Words of the checkout before the command that follows it.
const CHECKOUT_WORDS: usize = 7;
/// Stands for a commit that is not bound: no id is equal to it, so the checkout fails.
const UNBOUND: &str = "unbound";

fn checkout(repo: &InputRepo, then: &[String]) -> Vec<String> {
    let format = repo.commit.as_ref().map_or(ObjectFormat::Sha1, GitId::format);
    let commit = repo.commit.as_ref().map_or(UNBOUND, GitId::as_str);
    let fixed: [&str; CHECKOUT_WORDS] =
        ["/bin/sh", "-c", CHECKOUT, "checkout", format.as_str(), &repo.from, commit];
    fixed.map(str::to_owned).into_iter().chain(then.iter().cloned()).collect()
}

/// Makes a build phase that checks a repository out check out the commit that its `ref` is bound to by now.
pub fn check_out(build: &mut BuildPhase, repo: &InputRepo) {
    if build.cmd.get(2).is_some_and(|script| script == CHECKOUT) {
        build.cmd = checkout(repo, build.cmd.get(CHECKOUT_WORDS..).unwrap_or_default());
    }
}
