//! What is put into a sandbox before its task: files, and a command of its own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::egress::Egress;
use crate::enum_names::named;
use crate::id::Digest;
use crate::secret::SecretUse;
use crate::tree_upload;
use crate::user::UserName;

named! {
    /// What a task may do with a file or directory that is given to it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum AccessMode {
        /// Mounted read-only: the task's writes fail.
        #[default]
        ReadOnly = "read-only",
        /// Copy-on-write: the task may change its view, the source stays as it was.
        WorkspaceWrite = "workspace-write",
        /// The source itself is writable. Only an operator's own host directory may be given so.
        Full = "full",
    }
}

/// A file or directory that the task finds in its sandbox. Exactly one of `inline` and `uri`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputFile {
    /// Absolute path inside the sandbox, without `..`.
    pub path: String,
    /// The file's text.
    pub inline: Option<String>,
    /// `host:///abs/path` (a file or directory of the worker's host, within its allowed roots),
    /// `tree:SHA256` (a directory that a client sent), `artifact://...`, or `artifacts://...` (files of a task's attempt, below
    /// `path`).
    pub uri: Option<String>,
    /// Digest of the content that a `host://` or `tree:` URI was bound to when its run was submitted. Set by the server.
    pub tree: Option<Digest>,
    /// What the task may do with it.
    #[serde(default)]
    pub access: AccessMode,
    /// Whether a `host://` URI is given as it is while the task runs, so that nothing binds its content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// Whether an `artifacts://` URI may match no file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

impl InputFile {
    /// What it is given of a host, as bindings name it: a path, or `tree:SHA256`.
    #[must_use]
    pub fn host_source(&self) -> Option<&str> {
        let uri = self.uri.as_deref()?;
        uri.strip_prefix("host://").or_else(|| tree_upload::named_by(uri).map(|_| uri))
    }
}

/// A command that runs before the task, in the same sandbox, under a network policy of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildPhase {
    /// Program and arguments.
    pub cmd: Vec<String>,
    /// Environment of this phase, which sees nothing of the task's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Network of this phase.
    #[serde(default, rename = "net")]
    pub egress: Egress,
    /// Whether a person is asked when the phase is refused a name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
    /// Secrets that the egress proxy adds to requests of this phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Wall time of this phase in milliseconds.
    #[serde(default, rename = "timeoutMs", skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Whom this phase runs as. Default: the request's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserName>,
}
