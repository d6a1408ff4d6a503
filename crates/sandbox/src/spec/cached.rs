//! What a request says about its cache, checked. Pure.

use std::path::Path;

use cofferdam_contracts::cache::{
    CacheSpec, DEFAULT_DIR, MAX_DIRS, MAX_LOCKS, MAX_REPO_BYTES, source_of,
};
use cofferdam_contracts::sandbox::{SandboxRequest, SandboxSpec};
use serde::Serialize;
use serde_json::{Value, json};

use crate::spec::refuse::{Check, absolute, require};

/// Where a cached directory would hide what a sandbox is made of.
const RESERVED: [&str; 4] = ["/.cofferdam", "/dev", "/proc", "/sys"];

/// The cache of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Where the task's files come from: the repository that its bases are kept under.
    pub source: String,
    /// Lock files, absolute, inside.
    pub locks: Vec<String>,
    /// The directories that the base holds, absolute, inside.
    pub dirs: Vec<String>,
    /// What the build is, and what it sees: part of the base's identity.
    pub(crate) build: Value,
}

/// The directories that a spec means.
fn dirs(spec: &CacheSpec) -> Vec<String> {
    match spec.dirs.is_empty() {
        true => vec![DEFAULT_DIR.to_owned()],
        false => spec.dirs.iter().map(|dir| dir.trim_end_matches('/').to_owned()).collect(),
    }
}

/// Checks what does not depend on the host.
pub(crate) fn check(request: &SandboxRequest, spec: &SandboxSpec) -> Check {
    let Some(cache) = &spec.cache else { return Ok(()) };
    require(
        request.build.is_some(),
        "spec.cache",
        "is filled by the build phase, and there is none",
    )?;
    let named = cache.repo.as_ref().is_none_or(|repo| {
        (1..=MAX_REPO_BYTES).contains(&repo.len()) && !repo.chars().any(char::is_control)
    });
    require(named, "spec.cache.repo", "must have 1 to 256 bytes and no control characters")?;
    require(
        (1..=MAX_LOCKS).contains(&cache.paths.len()),
        "spec.cache.paths",
        "must name 1 to 16 lock files: their bytes select the base",
    )?;
    for (index, path) in cache.paths.iter().enumerate() {
        let whole = if path.starts_with('/') { path.clone() } else { format!("/{path}") };
        absolute(&format!("spec.cache.paths[{index}]"), &whole)?;
    }
    let dirs = dirs(cache);
    require(dirs.len() <= MAX_DIRS, "spec.cache.dirs", "at most 8 directories")?;
    for (index, dir) in dirs.iter().enumerate() {
        let field = format!("spec.cache.dirs[{index}]");
        absolute(&field, dir)?;
        let reserved = RESERVED.iter().any(|taken| Path::new(dir).starts_with(taken));
        require(!reserved, &field, "lies where the sandbox keeps things of its own")?;
        let apart = dirs.iter().enumerate().all(|(other, path)| {
            other == index
                || !(Path::new(path).starts_with(dir) || Path::new(dir).starts_with(path))
        });
        require(apart, &field, "lies in, above or at another cached directory")?;
        let mounts = spec.mounts.as_deref().unwrap_or_default();
        let given = request.files_in.iter().map(|file| &file.path);
        let hides = given
            .chain(mounts.iter().map(|mount| &mount.target))
            .any(|path| Path::new(path).starts_with(dir));
        require(!hides, &field, "would hold what the task is given; a base holds what is built")?;
    }
    Ok(())
}

/// The cache of a request that was checked, with commands that run in `workdir`.
pub(crate) fn plan(
    request: &SandboxRequest,
    workdir: &str,
    user: Option<impl Serialize>,
) -> Option<Planned> {
    let spec = request.spec.as_ref()?;
    let (cache, build) = (spec.cache.as_ref()?, request.build.as_ref()?);
    let inside = |path: &String| match path.starts_with('/') {
        true => path.clone(),
        false => format!("{}/{path}", workdir.trim_end_matches('/')),
    };
    let mut made_by = json!({
        "cmd": build.cmd,
        "net": build.egress,
        "env": build.env,
        "workdir": workdir,
        "user": user,
        "services": spec.services,
        // The submitter's word tells bases of one source apart, and never joins two sources.
        "name": cache.repo,
    });
    // What a build sees with a secret, one without it does not.
    if !build.secrets.is_empty()
        && let Some(fields) = made_by.as_object_mut()
    {
        fields.insert("secrets".into(), json!(build.secrets));
    }
    Some(Planned {
        source: source_of(request),
        locks: cache.paths.iter().map(inside).collect(),
        dirs: dirs(cache),
        build: made_by,
    })
}
