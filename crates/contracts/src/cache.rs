//! The dependency cache: what a task asks of it, what came of it, and how a base is named.
//!
//! A *base* is what one build phase left in the declared directories. Its key is a hash that begins
//! with the tenant, so that no two tenants ever have a key in common:
//!
//! ```text
//! lock hash = everything else that the base depends on: build command, root file system, lock files, ..
//! key       = sha256(org LF repo LF lock hash), which SQL can compute again
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::digest_bytes;
use crate::id::{Digest, TaskKey, TenantId};
use crate::named::named;

/// Where a build leaves its dependencies when the request does not say.
pub const DEFAULT_DIR: &str = "/deps";
/// Directories of one base: each is a mount of its own.
pub const MAX_DIRS: usize = 8;
/// Lock files of one base.
pub const MAX_LOCKS: usize = 16;
/// Bytes of a repository's name.
pub const MAX_REPO_BYTES: usize = 256;

/// A dependency cache that a spec asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Organisation, the outer key: the tenant itself, and another's is refused. Omitted: the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// Repository, the inner key: 1 to 256 bytes, no control characters.
    pub repo: String,
    /// Lock files whose bytes select the base, as the task sees them: absolute, or relative to its
    /// working directory. They must be among the files that the task is given.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Directories inside that the base holds. Default: `/deps`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dirs: Vec<String>,
}

/// A build phase's cache: a lock file, which is short for a cache with this one path and the recipe's id as
/// its repository, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildCache {
    /// A lock file.
    Lock(String),
    /// Repository, lock files and directories.
    Spec(CacheSpec),
}

impl JsonSchema for BuildCache {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BuildCache".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let spec = generator.subschema_for::<CacheSpec>();
        schemars::json_schema!({"oneOf": [{"type": "string", "minLength": 1}, spec]})
    }
}

impl Serialize for BuildCache {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Lock(path) => serializer.serialize_str(path),
            Self::Spec(spec) => spec.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for BuildCache {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = BuildCache;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a cache: a lock file, or {repo, paths, dirs}")
            }
            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<BuildCache, E> {
                Ok(BuildCache::Lock(path.to_owned()))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<BuildCache, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                CacheSpec::deserialize(map).map(BuildCache::Spec)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CacheReport {
    /// Hit, kept or dropped.
    pub outcome: CacheOutcome,
    /// The tenant.
    pub org: TenantId,
    /// The repository.
    pub repo: String,
    /// Everything else that the base depends on.
    pub lock_hash: Digest,
    /// The base's key.
    pub key: Digest,
    /// Digest of the base's manifest, where there is a base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Bytes of the base's files.
    #[serde(default)]
    pub bytes: u64,
    /// Entries of the base.
    #[serde(default)]
    pub files: u64,
    /// Why nothing was kept, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A base on record: one line of `GET /api/cache`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CacheEntry {
    /// Its key.
    pub key: Digest,
    /// The tenant.
    pub org: TenantId,
    /// The repository.
    pub repo: String,
    /// Everything else that it depends on.
    pub lock_hash: Digest,
    /// The host that has it.
    pub host_id: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Bytes of its files.
    pub bytes: u64,
    /// Its entries.
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
pub struct CacheDoomed {
    /// Their number.
    pub doomed: u64,
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
