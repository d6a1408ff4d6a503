//! A directory as it stands in a sandbox, read through its agent: what a patch is made of.
//!
//! Git's own directory is left out, and what a `.gitignore` names: the one that was there first, so that an agent hides
//! no change by writing another.

use std::cell::Cell;
use std::collections::VecDeque;

use cofferdam_contracts::tree_change::{Node, Tree};
use cofferdam_guest::name;
use cofferdam_guest::tree::{Entry, NodeKind};

use super::gitignore::{self, GitIgnore, is_gits};
use super::{AgentError, AgentFiles};

/// Files and directories of a project that are compared: beyond it each look would take minutes.
const MAX_ENTRIES: usize = 20_000;
/// Bytes of a project's files, which are in memory while its agent works.
const MAX_BYTES: u64 = 64 << 20;
/// Directories below each other.
const MAX_DEPTH: usize = 128;
/// Comparisons of its names with its `.gitignore`: less than a second, however both are made.
const MAX_STEPS: u64 = 200_000_000;
/// Entries that are looked at before others of this thread have their turn.
const TURN: usize = 64;
/// Of a refusal: nothing is there; a file stands where a directory would lead on.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
/// Permissions that a patch carries: a set-id bit is nothing that an agent gives.
const MODE: u32 = 0o777;

/// Why a project cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The agent did not tell.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// More than is compared.
    #[error(
        "the project has more than {MAX_ENTRIES} entries or {MAX_BYTES} bytes beside what `.gitignore` names, lies deeper than {MAX_DEPTH} directories, or has a `.gitignore` that takes too long to compare with its names"
    )]
    TooLarge,
}

/// The rules of a project's `.gitignore`, as they were.
#[derive(Debug, Clone)]
pub struct IgnoreRules(GitIgnore);

impl IgnoreRules {
    fn ignore(&self, path: &str, is_dir: bool, steps: &Cell<u64>) -> Result<bool, SnapshotError> {
        let is_ignored = self.0.has(&name::encode(path.as_bytes()), is_dir, steps);
        is_ignored.ok_or(SnapshotError::TooLarge)
    }
}

impl AgentFiles<'_> {
    /// The rules of the `.gitignore` at a directory's top; none where there is none.
    pub async fn ignore_rules(self, root: &str) -> IgnoreRules {
        let rules = self.read(&format!("{root}/.gitignore"), gitignore::MAX_BYTES).await;
        let rules = rules.map(|bytes| GitIgnore::parse(&String::from_utf8_lossy(&bytes)));
        IgnoreRules(rules.unwrap_or_default())
    }

    /// Everything below a directory, by relative paths. To be asked when no command writes.
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`]: half a project is no project.
    pub async fn snapshot(self, root: &str, rules: &IgnoreRules) -> Result<Tree, SnapshotError> {
        let mut tree = Tree::new();
        let mut room = MAX_BYTES;
        let steps = Cell::new(MAX_STEPS);
        let mut open = VecDeque::from([(String::new(), 0_usize)]);
        while let Some((dir, depth)) = open.pop_front() {
            if depth > MAX_DEPTH {
                return Err(SnapshotError::TooLarge);
            }
            let most = u64::try_from(MAX_ENTRIES).unwrap_or(u64::MAX);
            let listed = self.list(format!("{root}/{dir}").trim_end_matches('/'), most).await?;
            for (at, entry) in listed.into_iter().enumerate() {
                if at % TURN == TURN - 1 {
                    tokio::task::yield_now().await;
                }
                let path = match dir.is_empty() {
                    true => entry.name.clone(),
                    false => format!("{dir}/{}", entry.name),
                };
                let is_dir = entry.kind == NodeKind::Dir;
                if is_gits(&path) || rules.ignore(&path, is_dir, &steps)? {
                    continue;
                }
                if tree.len() >= MAX_ENTRIES {
                    return Err(SnapshotError::TooLarge);
                }
                let node = self.node(root, &path, &entry, &mut room).await?;
                if matches!(node, Node::Dir { .. }) {
                    open.push_back((path.clone(), depth + 1));
                }
                tree.insert(path, node);
            }
        }
        Ok(tree)
    }

    /// What stands at one relative path below a directory; `None`: nothing, or no directory leads there.
    ///
    /// # Errors
    /// The agent's, or [`SnapshotError::TooLarge`].
    pub async fn node_at(self, root: &str, path: &str) -> Result<Option<Node>, SnapshotError> {
        let entry = match self.stat(&format!("{root}/{path}")).await {
            Err(AgentError::Refused { status: NOT_FOUND | CONFLICT, .. }) => return Ok(None),
            found => found?,
        };
        let mut room = MAX_BYTES;
        self.node(root, path, &entry, &mut room).await.map(Some)
    }

    async fn node(
        self,
        root: &str,
        path: &str,
        entry: &Entry,
        room: &mut u64,
    ) -> Result<Node, SnapshotError> {
        let mode = entry.mode & MODE;
        Ok(match entry.kind {
            NodeKind::File if !entry.mangled => {
                *room = room.checked_sub(entry.size).ok_or(SnapshotError::TooLarge)?;
                Node::File { mode, bytes: self.read(&format!("{root}/{path}"), entry.size).await? }
            }
            NodeKind::Dir if !entry.mangled => Node::Dir { mode },
            kind => match &entry.target {
                // A link is its target and nothing else. One that is not UTF-8 could not be made again.
                Some(target) if is_plain(entry, target) => Node::Link { target: target.clone() },
                _ => {
                    let target = entry.target.as_deref().unwrap_or_default();
                    let what = format!("{kind:?} {} {} {target:?}", entry.size, entry.mtime);
                    Node::Other { what }
                }
            },
        })
    }
}

/// Whether a link's name and target are told as they are.
fn is_plain(entry: &Entry, target: &str) -> bool {
    let is_whole = u64::try_from(target.len()).is_ok_and(|len| len == entry.size);
    !entry.mangled && is_whole && !target.contains(char::REPLACEMENT_CHARACTER)
}
