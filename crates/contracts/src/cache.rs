//! The dependency cache: what a task asks of it, what came of it, and how a base is named.
//!
//! A *base* is what one build phase left in the declared directories. Its key is a hash that begins
//! with the tenant, so that no two tenants ever have a key in common:
//!
//! ```text
//! repo      = where the task's files come from: `source_of` its request, never what it calls itself
//! lock hash = everything else that the base depends on: build command, root file system, lock files, ..
//! key       = sha256(org LF repo LF lock hash), which SQL can compute again
//! ```

use std::collections::BTreeSet;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};

use crate::canonical::digest_bytes;
use crate::enum_names::named;
use crate::id::{Digest, TaskKey, TenantId};
use crate::own_schema::{own_schema, text_or_object};
use crate::sandbox::SandboxRequest;

/// Where a build leaves its dependencies when the request does not say.
pub const DEFAULT_DIR: &str = "/deps";
/// Directories of one base: each is a mount of its own.
pub const MAX_DIRS: usize = 8;
/// Lock files of one base.
pub const MAX_LOCKS: usize = 16;
/// Bytes of a repository's name.
pub const MAX_REPO_BYTES: usize = 256;
/// Bytes of a source that is on record by its name; a longer one is there by its hash.
const MAX_SOURCE_BYTES: usize = 240;

/// A dependency cache that a spec asks for.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Organisation, the outer key: the tenant itself, and another's is refused. Omitted: the tenant.
    pub org: Option<String>,
    /// A word that keeps bases of one source apart: 1 to 256 bytes, no control characters. It never
    /// brings two sources together.
    pub repo: Option<String>,
    /// Lock files whose bytes select the base, as the task sees them: absolute, or relative to its
    /// working directory. They must be among the files that the task is given.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Directories inside that the base holds. Default: `/deps`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dirs: Vec<String>,
}

impl CacheSpec {
    /// The directories that the base holds, without a slash at the end: those of the spec, or [`DEFAULT_DIR`].
    #[must_use]
    pub fn base_dirs(&self) -> Vec<String> {
        match self.dirs.is_empty() {
            true => vec![DEFAULT_DIR.to_owned()],
            false => self.dirs.iter().map(|dir| dir.trim_end_matches('/').to_owned()).collect(),
        }
    }
}

/// A build phase's cache: a lock file, which is short for a cache with this one path, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildCache {
    /// A lock file.
    Lock(String),
    /// Repository, lock files and directories.
    Spec(CacheSpec),
}

own_schema!(BuildCache, |generator| {
    let spec = generator.subschema_for::<CacheSpec>();
    json_schema!({"oneOf": [{"type": "string", "minLength": 1}, spec]})
});

impl Serialize for BuildCache {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Lock(path) => serializer.serialize_str(path),
            Self::Spec(spec) => spec.serialize(serializer),
        }
    }
}

text_or_object!(
    BuildCache,
    "a cache: a lock file, or {repo, paths, dirs}",
    |path| Ok(BuildCache::Lock(path.to_owned())),
    CacheSpec => |spec| BuildCache::Spec(spec)
);

named! {
    /// What came of the cache in one task.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CacheOutcome {
        /// A base was there: the build phase did not run.
        Hit = "hit",
        /// The build ran, and what it left is the base from now on.
        Kept = "kept",
        /// The build ran, and nothing of it was kept: `why` says so.
        Dropped = "dropped",
    }
}

/// What came of the cache, in a result and in the effective policy.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CacheReport {
    /// Hit, kept or dropped.
    pub outcome: CacheOutcome,
    /// Tenant that owns the base; part of its key.
    pub org: TenantId,
    /// Source of the task's files, such as `git:URL` or `dir:/abs/path`; part of the key.
    pub repo: String,
    /// Everything else that the base depends on.
    pub lock_hash: Digest,
    /// The base's key.
    pub key: Digest,
    /// Digest of the base's manifest, where there is a base.
    pub digest: Option<Digest>,
    /// Bytes of the base's files.
    #[serde(default)]
    pub bytes: u64,
    /// Entries of the base.
    #[serde(default)]
    pub files: u64,
    /// Why nothing was kept, in words.
    pub why: Option<String>,
}

/// A base on record: one line of `GET /api/cache`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CacheEntry {
    /// Hash of tenant, source and lock hash; `DELETE /api/cache/{key}` takes it.
    pub key: Digest,
    /// Tenant that owns the base; no other tenant gets it.
    pub org: TenantId,
    /// Source of the task's files, such as `git:URL` or `dir:/abs/path`; part of the key.
    pub repo: String,
    /// Everything else that it depends on.
    pub lock_hash: Digest,
    /// The host that has it.
    pub host_id: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of file system entries in the base.
    pub files: u64,
    /// `ready`, or `doomed`: nobody gets it any more, and its host takes it away.
    pub state: String,
    /// The task whose build made it.
    pub created_by: TaskKey,
    /// When, ms since the epoch.
    pub created_at: i64,
    /// When a task last got it, or its making.
    pub last_used_at: i64,
}

/// Which bases `DELETE /api/cache` doomed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheEviction {
    /// Number of bases that were marked as doomed; their hosts remove them later.
    pub doomed: u64,
}

/// Where the files of a task come from, which its bases are kept under: the URL of its repository, else
/// what of the host it is given, else `given`: then all that it has is its request's, and is in the lock
/// hash. The migration's `app.cache_source` computes it again from the request on record.
#[must_use]
pub fn source_of(request: &SandboxRequest) -> String {
    let url = request.repo.as_ref().map(|repo| repo.from.as_str());
    if let Some(url) = url.filter(|from| !from.starts_with('/')) {
        return named_or_hashed("git:", url);
    }
    let files =
        request.files_in.iter().filter_map(|file| file.uri.as_deref()?.strip_prefix("host://"));
    let mounts = request.spec.iter().flat_map(|spec| spec.mounts.iter().flatten());
    let places: BTreeSet<&str> = files.chain(mounts.map(|mount| mount.source.as_str())).collect();
    let places: Vec<&str> = places.into_iter().collect();
    match places.as_slice() {
        [] => "given".to_owned(),
        [one] => named_or_hashed("dir:", one),
        all => format!("dirs:{}", digest_bytes(all.join("\n").as_bytes())),
    }
}

fn named_or_hashed(kind: &str, name: &str) -> String {
    match name.len() <= MAX_SOURCE_BYTES {
        true => format!("{kind}{name}"),
        false => format!("{kind}sha256:{}", digest_bytes(name.as_bytes())),
    }
}

/// The key of a base.
#[must_use]
pub fn key(org: &TenantId, repo: &str, lock_hash: &Digest) -> Digest {
    digest_bytes(format!("{org}\n{repo}\n{lock_hash}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_where_files_come_from_and_not_what_a_request_calls_itself() {
        let of = |fields: serde_json::Value| {
            let mut all = serde_json::json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1000});
            all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            source_of(&serde_json::from_value(all).unwrap())
        };
        let host = |path: &str| serde_json::json!({"path": "/w", "uri": format!("host://{path}")});
        let named = |repo: &str| serde_json::json!({"cache": {"repo": repo, "paths": ["l"]}});
        let [a, b] = ["/srv/a", "/srv/b"]
            .map(|path| of(serde_json::json!({"filesIn": [host(path)], "spec": named("same")})));
        assert_eq!((a.as_str(), b.as_str()), ("dir:/srv/a", "dir:/srv/b"));
        let mounted = serde_json::json!({"mounts": [{"source": "/srv/a", "target": "/work"}]});
        assert_eq!(of(serde_json::json!({"spec": mounted})), a);
        assert_eq!(of(serde_json::json!({"spec": named("dir:/srv/a")})), "given");
        let both = |files| of(serde_json::json!({"filesIn": files}));
        let pair = both(serde_json::json!([host("/srv/b"), host("/srv/a")]));
        assert_eq!(pair, both(serde_json::json!([host("/srv/a"), host("/srv/b")])));
        assert!(pair.starts_with("dirs:") && pair.len() == 69, "{pair}");
        let commit = "a".repeat(40);
        let url = |from: &str| {
            of(
                serde_json::json!({"repo": {"from": from, "commit": commit}, "filesIn": [host("/srv/a")]}),
            )
        };
        assert_eq!(url("https://git.example/a"), "git:https://git.example/a");
        assert_eq!(url("/.cofferdam/repo"), "dir:/srv/a");
        assert!(
            both(serde_json::json!([host(&format!("/{}", "a".repeat(900)))])).len()
                < MAX_REPO_BYTES
        );
    }

    #[test]
    fn two_tenants_have_no_key_in_common() {
        let org = |text| TenantId::parse(text).unwrap();
        let lock = digest_bytes(b"lock");
        assert_eq!(key(&org("a"), "r", &lock), key(&org("a"), "r", &lock));
        let keys = [
            key(&org("a"), "r", &lock),
            key(&org("b"), "r", &lock),
            key(&org("a"), "s", &lock),
            key(&org("a"), "r", &digest_bytes(b"other")),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().map(Digest::as_str).collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
