//! Which base a task wants: a hash over everything that the base depends on.
//!
//! Lock files are read on this host, from what the task is given, before anything is made: never
//! through a symbolic link, and never out of the directory that was allowed.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cofferdam_contracts::cache::key;
use cofferdam_contracts::canonical::{digest, digest_bytes};
use cofferdam_contracts::id::{Digest, TenantId};
use serde_json::{Value, json};

use crate::host::base::{self, Base};
use crate::host::hostpath::{HostPath, Links};
use crate::spec::cache::CachePlan;
use crate::spec::facts::HostFacts;
use crate::spec::input::Input;
use crate::spec::plan::Plan;
use crate::spec::refuse::PlanError;
use crate::trees::TreeStore;

/// Raise it when bases of before must not be used any more.
const VERSION: u32 = 1;
/// A lock file is read into memory; the largest in use have some MiB.
const MAX_LOCK_BYTES: u64 = 32 * 1024 * 1024;
/// Files of the host whose change means that a base that was built on its `/usr` may not fit any more:
/// interpreters, compilers, the loader's cache, and what each package manager writes at every change.
const MARKS: [&str; 14] = [
    "/etc/ld.so.cache",
    "/lib/apk/db/installed",
    "/usr/bin/cargo",
    "/usr/bin/gcc",
    "/usr/bin/go",
    "/usr/bin/java",
    "/usr/bin/node",
    "/usr/bin/perl",
    "/usr/bin/python3",
    "/usr/bin/ruby",
    "/usr/local/bin",
    "/usr/local/lib",
    "/var/lib/dpkg/status",
    "/var/lib/rpm/rpmdb.sqlite",
];

/// The base that a task wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseRequest {
    /// Tenant that owns the base; other tenants never get it.
    pub org: TenantId,
    /// The repository: where the task's files come from.
    pub repo: String,
    /// Hash of everything else.
    pub lock_hash: Digest,
    /// The base's name.
    pub key: Digest,
    /// The directories that it holds, absolute, inside.
    pub dirs: Vec<String>,
}

/// `None`: the plan has no cache. Reads files; call it beside the runtime's own threads.
pub(crate) fn identify(
    plan: &Plan,
    inputs: &[Input],
    facts: &HostFacts,
    org: &TenantId,
) -> Result<Option<BaseRequest>, PlanError> {
    let Some(planned) = &plan.cache else { return Ok(None) };
    let mut locks = Vec::with_capacity(planned.locks.len());
    for (index, path) in planned.locks.iter().enumerate() {
        let found = lock(path, plan, inputs, facts)
            .map_err(|error| PlanError::new(format!("spec.cache.paths[{index}]"), error))?;
        locks.push(json!({"path": path, "sha256": found}));
    }
    let identity = json!({
        "version": VERSION,
        "arch": std::env::consts::ARCH,
        "given": given(planned, inputs),
        "build": planned.build,
        "dirs": planned.dirs,
        "locks": locks,
        "image": plan.effective.image,
        "root": root(plan, facts)?,
    });
    let lock_hash =
        digest(&identity).map_err(|error| PlanError::new("spec.cache", error.to_string()))?;
    Ok(Some(BaseRequest {
        key: key(org, &planned.source, &lock_hash),
        org: org.clone(),
        repo: planned.source.clone(),
        lock_hash,
        dirs: planned.dirs.clone(),
    }))
}

/// What the request itself puts before the build, lock files aside: a build may run any of it.
fn given(planned: &CachePlan, inputs: &[Input]) -> Vec<Value> {
    let mut given: Vec<(&str, Digest)> = Vec::new();
    for input in inputs {
        let (path, sha256) = match input {
            Input::Bytes { path, bytes, .. } => (path, digest_bytes(bytes)),
            Input::Stream { path, sha256, .. } => (path, sha256.clone()),
            // Of a path of the host the path stands for it; a sent directory has no name but its content.
            Input::Host { path, source, .. } => match source.sent_tree() {
                Some(sha256) => (path, sha256),
                None => continue,
            },
            // Its place names version and identity, and is in the build's PATH.
            Input::Toolchain { .. } => continue,
        };
        if !planned.locks.contains(path) {
            given.push((path, sha256));
        }
    }
    given.into_iter().map(|(path, sha256)| json!({"path": path, "sha256": sha256})).collect()
}

/// What a sandbox of this plan begins as, without its files and its limits: two of one digest find the same programs, in the
/// same class.
pub(crate) fn input_digest(plan: &Plan, facts: &HostFacts) -> Result<Digest, PlanError> {
    let identity = json!({
        "version": VERSION,
        "arch": std::env::consts::ARCH,
        "class": plan.effective.isolation_class,
        "runtime": plan.effective.runtime,
        "image": plan.effective.image,
        "root": root(plan, facts)?,
    });
    digest(&identity).map_err(|error| PlanError::new("envRef", error.to_string()))
}

/// What the root file system is. An image's effective name is pinned by its digest already.
fn root(plan: &Plan, facts: &HostFacts) -> Result<Value, PlanError> {
    if plan.base.is(&facts.base) {
        let marks: Vec<Value> = MARKS.iter().filter_map(|path| mark(Path::new(path))).collect();
        return Ok(json!({"skeleton": facts.base_digest, "marks": marks}));
    }
    if matches!(&plan.base, Base::Ours(path) if path.starts_with(facts.state_dir.join("images"))) {
        return Ok(Value::Null);
    }
    let opened = plan.base.open(&facts.allowed);
    let opened = opened.map_err(|error| PlanError::new("envRef", error.to_string()))?;
    match base::tree_digest(&opened.path()) {
        Ok(Some(digest)) => Ok(json!({"tree": digest})),
        Ok(None) => Err(PlanError::new(
            "spec.cache",
            "the root directory has more than 20,000 entries: import it as an image",
        )),
        Err(error) => {
            Err(PlanError::new("spec.cache", format!("the root cannot be described: {error}")))
        }
    }
}

fn mark(path: &Path) -> Option<Value> {
    let real = fs::canonicalize(path).ok()?;
    let found = fs::metadata(&real).ok()?;
    Some(json!([real, found.len(), found.mtime(), found.mtime_nsec()]))
}

/// A file below a host path that the task is given.
struct HostFile<'a> {
    source: &'a HostPath,
    /// The copy that stands for it.
    tree: Option<&'a Digest>,
    /// From the source.
    below: &'a Path,
}

/// Where a lock file of the task comes from.
enum LockSource<'a> {
    Bytes(&'a [u8]),
    /// The digest of what comes in pieces.
    Stream(&'a Digest),
    /// An empty path: the source is the file.
    Host(HostFile<'a>),
}

/// The digest of a lock file, or why there is none in words.
fn lock(path: &str, plan: &Plan, inputs: &[Input], facts: &HostFacts) -> Result<Digest, String> {
    let path = Path::new(path);
    let mut offers = Vec::new();
    for mount in &plan.mounts {
        if let Ok(rest) = path.strip_prefix(&mount.target) {
            offers.push((
                mount.target.as_str(),
                LockSource::Host(HostFile { source: &mount.source, tree: None, below: rest }),
            ));
        }
    }
    for input in inputs {
        match input {
            Input::Bytes { path: target, bytes, .. } if Path::new(target) == path => {
                offers.push((target.as_str(), LockSource::Bytes(bytes)));
            }
            Input::Host { path: target, source, tree, .. } => {
                if let Ok(below) = path.strip_prefix(target) {
                    let file = HostFile { source, tree: tree.as_ref(), below };
                    offers.push((target.as_str(), LockSource::Host(file)));
                }
            }
            Input::Stream { path: target, sha256, .. } if Path::new(target) == path => {
                offers.push((target.as_str(), LockSource::Stream(sha256)));
            }
            Input::Bytes { .. } | Input::Stream { .. } | Input::Toolchain { .. } => {}
        }
    }
    // As in the sandbox: what is mounted deeper hides what is above it, what comes later what came
    // before, and bytes are written when everything is mounted.
    let best = offers.into_iter().max_by_key(|(target, source)| {
        let is_written = matches!(source, LockSource::Bytes(_) | LockSource::Stream(_));
        (Path::new(target).components().count(), is_written)
    });
    match best {
        None => Err("is not among the files that the task is given".to_owned()),
        Some((_, LockSource::Bytes(bytes))) => Ok(digest_bytes(bytes)),
        Some((_, LockSource::Stream(sha256))) => Ok(sha256.clone()),
        Some((_, LockSource::Host(file))) => {
            read(&file, facts).map_err(|error| format!("cannot be read: {error}"))
        }
    }
}

fn read(file: &HostFile<'_>, facts: &HostFacts) -> io::Result<Digest> {
    let HostFile { source, tree, below } = file;
    let opened = match tree {
        Some(copy) => {
            TreeStore::of(&facts.state_dir).open(copy, source).map_err(io::Error::other)?
        }
        None => facts.allowed.open(source, Links::Beneath).map_err(io::Error::other)?,
    };
    let mut bytes = Vec::new();
    opened.file(below)?.take(MAX_LOCK_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_LOCK_BYTES {
        return Err(io::Error::other("it has more than 32 MiB"));
    }
    Ok(digest_bytes(&bytes))
}
