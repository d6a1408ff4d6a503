//! Files and directories of the sandbox.
//!
//! Every path is absolute and of plain names, and no component of it may be a symbolic link: the
//! agent works with the rights of the sandbox's root, and the host means what it names.

use serde::{Deserialize, Serialize};

use crate::wire::User;

/// What stands at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory; a link that leads to one is [`NodeKind::Link`].
    Dir,
    /// A symbolic link, which was not followed.
    Link,
    /// A socket, pipe or device.
    Other,
}

/// A path to look at or read, with a bound on the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// Absolute path inside the sandbox.
    pub path: String,
    /// Of a file: bytes that it may have; of a directory: entries.
    pub most: u64,
    /// Of a file: from which byte on, and to which, so much of it is read at all. Level 11.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<(u64, u64)>,
}

impl Path {
    /// All that is there.
    #[must_use]
    pub fn whole(path: String, most: u64) -> Self {
        Self { path, most, part: None }
    }
}

/// What one name in the sandbox stands for: kind, size, mode and owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name in its directory; one that is not UTF-8 as [`crate::name`] writes it.
    pub name: String,
    /// Whether it is written so, and names nothing as it stands.
    #[serde(default)]
    pub mangled: bool,
    /// What it is.
    pub kind: NodeKind,
    /// Size in bytes.
    pub size: u64,
    /// Permissions, the lower 12 bits.
    pub mode: u32,
    /// Last change of its content, in seconds since the epoch.
    pub mtime: i64,
    /// Owner; 0 from an agent below level 8.
    #[serde(default)]
    pub uid: u32,
    /// Group; 0 from an agent below level 8.
    #[serde(default)]
    pub gid: u32,
    /// Where a symbolic link leads, as it says itself. Level 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// A directory to make; its parents are made too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDir {
    /// Absolute. One that exists already gets the mode and owner.
    pub path: String,
    /// Permissions of the last one, at most 0o1777; the parents get 0o755.
    pub mode: u32,
    /// Owner of the last one; root without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<User>,
}

/// A node to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// Absolute path inside the sandbox.
    pub path: String,
    /// With everything below it; without, a directory that is not empty is refused.
    #[serde(default)]
    pub recursive: bool,
}

/// A node to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// Absolute path inside the sandbox.
    pub from: String,
    /// Absolute; what is there is replaced as rename(2) does.
    pub to: String,
}

/// Directories to watch, not what is below their directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Absolute; 1 to 64.
    pub paths: Vec<String>,
    /// Changes after which the watch ends.
    pub most: u64,
}

/// What happened to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It is new here, made or moved in.
    Made,
    /// It was open for writing and is closed now.
    Written,
    /// It is gone, removed or moved away.
    Gone,
    /// The kernel dropped changes, more than its queue holds: look for yourself.
    Lost,
}

/// One change in a watched directory, as the kernel reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Of what; empty for lost ones. A name that is not UTF-8 as [`crate::name`] writes it.
    pub path: String,
    /// Whether it is written so, and names nothing as it stands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mangled: bool,
    /// Kind of the change.
    pub kind: ChangeKind,
}
