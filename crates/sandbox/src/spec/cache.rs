//! The cache of a plan: what of a request is part of a base's identity. Pure.

use cofferdam_contracts::cache::source_of;
use cofferdam_contracts::sandbox::SandboxRequest;
use serde::Serialize;
use serde_json::{Value, json};

/// The cache of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct CachePlan {
    /// Where the task's files come from: the repository that its bases are kept under.
    pub source: String,
    /// Lock files, absolute, inside.
    pub locks: Vec<String>,
    /// The directories that the base holds, absolute, inside.
    pub dirs: Vec<String>,
    /// What the build is, and what it sees: part of the base's identity.
    pub(crate) build: Value,
}

/// The cache of a request that was checked, with commands that run in `workdir`.
pub(crate) fn planned(
    request: &SandboxRequest,
    workdir: &str,
    user: Option<impl Serialize>,
) -> Option<CachePlan> {
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
    Some(CachePlan {
        source: source_of(request),
        locks: cache.paths.iter().map(inside).collect(),
        dirs: cache.base_dirs(),
        build: made_by,
    })
}
