//! A patch: what a build changed in a project, with what was there before, so that each file can be put back. Pure.
//!
//! ```text
//! Tree before + Tree after --between--> TreeChange (pre and post of each path) --steps--> removals, directories, files, modes
//!                                         \--reversed--> the way back, of all paths or of some
//! ```

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::{self, CanonicalError, digest_bytes};
use crate::id::Digest;
use crate::patch::{PathRefusal, why_refused};

/// The form of a patch that this version writes.
pub const PATCH_VERSION: u32 = 1;
/// Entries of a patch: what a person still reads in a list.
pub const MAX_ENTRIES: usize = 2_000;
/// Bytes of its files, before and after together: it is one artifact.
pub const MAX_BYTES: usize = 32 << 20;

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// Permissions, the lower 9 bits.
        mode: u32,
        /// Whole content of the file.
        bytes: Vec<u8>,
    },
    /// A directory, whose entries have paths of their own.
    Dir {
        /// Permissions, the lower 9 bits.
        mode: u32,
    },
    /// A symbolic link: in no patch, and put back by a roll back.
    Link {
        /// Where it leads, as it says itself.
        target: String,
    },
    /// A socket, pipe, device, or a name that is not UTF-8: seen, in no patch, and lost once it is gone.
    Other {
        /// What it is, with what tells it from another one.
        what: String,
    },
}

impl Node {
    /// Whether it is neither a file nor a directory: no patch holds it.
    #[must_use]
    pub const fn is_special(&self) -> bool {
        matches!(self, Self::Link { .. } | Self::Other { .. })
    }
}

/// A project by relative paths.
pub type Tree = BTreeMap<String, Node>;

/// Why two trees have no patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeChangeError {
    /// A link or another special file is new, gone or other than before.
    #[error("{0:?} is not a regular file or directory, and a patch holds nothing else")]
    Special(String),
    /// More than a patch may hold.
    #[error("the patch would have more than {MAX_ENTRIES} entries or {MAX_BYTES} bytes")]
    TooLarge,
    /// A path that leaves the project, or git's own.
    #[error("{0:?} is not a path that a patch may change")]
    Path(String),
    /// An entry without content, or whose content has another hash.
    #[error("{0:?} does not have the content that the patch names")]
    Torn(String),
}

/// One side of an entry.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Permissions, the lower 9 bits.
    pub mode: u32,
    /// Hash of a file's content; absent: a directory.
    pub sha256: Option<Digest>,
    /// A file's content in base64.
    pub content: Option<String>,
}

/// What one path becomes. A side that is absent: nothing is there.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeEntry {
    /// Relative to the project.
    pub path: String,
    /// What was there.
    pub pre: Option<Image>,
    /// What is there now.
    pub post: Option<Image>,
}

/// A patch, in the order of its paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeChange {
    /// Version of this form: 1; readers refuse any other.
    pub version: u32,
    /// Changed paths in ascending order, each once, at most 2,000.
    pub entries: Vec<TreeEntry>,
}

/// One thing to do in a tree, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeStep {
    /// Takes a path away, with all below it.
    Remove(String),
    /// Makes a directory.
    Mkdir(String),
    /// Writes a file.
    Write(String, u32, Vec<u8>),
    /// Gives a directory its mode, once all below it is there.
    Mode(String, u32),
}

impl Image {
    /// Whether it is a directory's.
    #[must_use]
    pub const fn is_dir(&self) -> bool {
        self.sha256.is_none()
    }

    /// Bytes of a file's content; 0 of a directory.
    #[must_use]
    pub fn size(&self) -> usize {
        let text = self.content.as_deref().unwrap_or_default();
        let filled = text.bytes().rev().take_while(|byte| *byte == b'=').count();
        (text.len() / 4 * 3).saturating_sub(filled)
    }

    fn of(node: &Node) -> Option<Self> {
        Some(match node {
            Node::File { mode, bytes } => Self {
                mode: *mode,
                sha256: Some(digest_bytes(bytes)),
                content: Some(STANDARD.encode(bytes)),
            },
            Node::Dir { mode } => Self { mode: *mode, sha256: None, content: None },
            Node::Link { .. } | Node::Other { .. } => return None,
        })
    }

    /// A file's content, which has the hash that is named.
    pub(crate) fn bytes(&self, path: &str) -> Result<Vec<u8>, TreeChangeError> {
        let torn = || TreeChangeError::Torn(path.to_owned());
        let text = self.content.as_ref().ok_or_else(torn)?;
        let bytes = STANDARD.decode(text).map_err(|_| torn())?;
        if self.sha256.as_ref() == Some(&digest_bytes(&bytes)) { Ok(bytes) } else { Err(torn()) }
    }
}

impl TreeEntry {
    /// Hash of the change: path, modes and hashes of both sides.
    ///
    /// # Errors
    /// Never for these types; the canonical form's signature says otherwise.
    pub fn diff(&self) -> Result<Digest, CanonicalError> {
        let side = |image: &Option<Image>| image.as_ref().map(|i| (i.mode, i.sha256.clone()));
        canonical::digest(&(&self.path, side(&self.pre), side(&self.post)))
    }

    /// Whether what stands at the path now is what the entry starts from.
    #[must_use]
    pub fn begins_at(&self, now: Option<&Node>) -> bool {
        match (now, &self.pre) {
            (None, None) => true,
            (Some(Node::File { mode, bytes }), Some(pre)) => {
                pre.mode == *mode && pre.sha256.as_ref() == Some(&digest_bytes(bytes))
            }
            (Some(Node::Dir { mode }), Some(pre)) => pre.mode == *mode && pre.is_dir(),
            _ => false,
        }
    }

    /// Whether a directory is changed, or made, or gone.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.post.as_ref().or(self.pre.as_ref()).is_some_and(Image::is_dir)
    }
}

/// Whether a step may change a path: relative, of plain names, none of them git's own.
fn is_patchable(path: &str) -> bool {
    !path.contains('\0') && path.split('/').all(|name| !matches!(name, "" | "." | ".." | ".git"))
}

impl TreeChange {
    /// What leads from one tree to another: content, modes, and directories, which may be empty.
    ///
    /// # Errors
    /// [`TreeChangeError::Special`] or [`TreeChangeError::TooLarge`].
    pub fn between(before: &Tree, after: &Tree) -> Result<Self, TreeChangeError> {
        let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let (mut entries, mut bytes) = (Vec::new(), 0_usize);
        for path in paths {
            let (pre, post) = (before.get(path), after.get(path));
            if pre == post {
                continue;
            }
            if [pre, post].into_iter().flatten().any(Node::is_special) {
                return Err(TreeChangeError::Special(path.clone()));
            }
            for node in [pre, post].into_iter().flatten() {
                if let Node::File { bytes: content, .. } = node {
                    bytes = bytes.saturating_add(content.len());
                }
            }
            if entries.len() >= MAX_ENTRIES || bytes > MAX_BYTES {
                return Err(TreeChangeError::TooLarge);
            }
            let image = |node: Option<&Node>| node.and_then(Image::of);
            entries.push(TreeEntry { path: path.clone(), pre: image(pre), post: image(post) });
        }
        Ok(Self { version: PATCH_VERSION, entries })
    }

    /// The first path that no patch for a person may hold, as git's directory in any spelling of any file system, and why.
    #[must_use]
    pub fn refused(&self) -> Option<(&str, PathRefusal)> {
        let why = |entry| why_refused(str::as_bytes(entry)).map(|why| (entry, why));
        self.entries.iter().find_map(|entry| why(entry.path.as_str()))
    }

    /// The way back, of every path that `only` accepts.
    #[must_use]
    pub fn reversed(&self, only: impl Fn(&str) -> bool) -> Self {
        let back = |entry: &TreeEntry| TreeEntry {
            path: entry.path.clone(),
            pre: entry.post.clone(),
            post: entry.pre.clone(),
        };
        let entries = self.entries.iter().filter(|entry| only(&entry.path)).map(back).collect();
        Self { version: self.version, entries }
    }

    /// The way back of these paths, each with all below it, and of the directories that have to be there for them.
    ///
    /// # Errors
    /// A path that the patch does not change.
    pub fn way_back(&self, paths: &[String]) -> Result<Self, String> {
        let below = |dir: &str, path: &str| {
            path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
        };
        let mut wanted: BTreeSet<&str> = BTreeSet::new();
        for said in paths {
            let said = said.trim_end_matches('/');
            let found = self.entries.iter().filter(|e| e.path == said || below(said, &e.path));
            let before = wanted.len();
            wanted.extend(found.map(|entry| entry.path.as_str()));
            if wanted.len() == before && !wanted.contains(said) {
                return Err(said.to_owned());
            }
        }
        let restored = self.entries.iter().filter(|entry| entry.pre.is_some());
        let restored: Vec<&str> = restored
            .map(|entry| entry.path.as_str())
            .filter(|path| wanted.contains(path))
            .collect();
        let is_missing = |entry: &&TreeEntry| !entry.post.as_ref().is_some_and(Image::is_dir);
        for entry in self.entries.iter().filter(is_missing) {
            if restored.iter().any(|path| below(&entry.path, path)) {
                wanted.insert(&entry.path);
            }
        }
        Ok(self.reversed(|path| wanted.contains(path)))
    }

    /// What to do, in order: what is in the way goes first, deep paths before what they lie in; a directory's mode is
    /// set last, so that a read-only one can be filled.
    ///
    /// # Errors
    /// [`TreeChangeError::Path`] or [`TreeChangeError::Torn`]: then nothing is to be done.
    pub fn steps(&self) -> Result<Vec<TreeStep>, TreeChangeError> {
        let (mut gone, mut dirs, mut files, mut modes) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for entry in &self.entries {
            let path = entry.path.clone();
            if !is_patchable(&path) {
                return Err(TreeChangeError::Path(path));
            }
            let kind = |image: &Option<Image>| image.as_ref().map(Image::is_dir);
            let (was, is) = (kind(&entry.pre), kind(&entry.post));
            if was.is_some() && was != is {
                gone.push(TreeStep::Remove(path.clone()));
            }
            match &entry.post {
                None => {}
                Some(image) if image.is_dir() => {
                    if was != Some(true) {
                        dirs.push(TreeStep::Mkdir(path.clone()));
                    }
                    modes.push(TreeStep::Mode(path, image.mode));
                }
                Some(image) => {
                    let bytes = image.bytes(&path)?;
                    files.push(TreeStep::Write(path, image.mode, bytes));
                }
            }
        }
        // Entries are in the order of their paths, in which a directory precedes what is below it.
        gone.reverse();
        modes.reverse();
        Ok(gone.into_iter().chain(dirs).chain(files).chain(modes).collect())
    }

    /// The patch's digest: of its canonical form.
    ///
    /// # Errors
    /// Never for these types; the canonical form's signature says otherwise.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        canonical::digest(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32, text: &str) -> Node {
        Node::File { mode, bytes: text.as_bytes().to_vec() }
    }

    fn tree(nodes: &[(&str, Node)]) -> Tree {
        nodes.iter().map(|(path, node)| ((*path).to_owned(), node.clone())).collect()
    }

    /// As an executor does it: a removal takes all below.
    fn applied(tree: &Tree, patch: &TreeChange) -> Tree {
        let mut tree = tree.clone();
        for step in patch.steps().unwrap() {
            match step {
                TreeStep::Remove(path) => {
                    tree.retain(|at, _| *at != path && !at.starts_with(&format!("{path}/")));
                }
                TreeStep::Mkdir(path) => drop(tree.insert(path, Node::Dir { mode: 0 })),
                TreeStep::Write(path, mode, bytes) => {
                    let dir = path.rsplit_once('/').map(|(dir, _)| dir);
                    assert!(
                        dir.is_none_or(|dir| matches!(tree.get(dir), Some(Node::Dir { .. }))),
                        "{path}"
                    );
                    tree.insert(path, Node::File { mode, bytes });
                }
                TreeStep::Mode(path, mode) => drop(tree.insert(path, Node::Dir { mode })),
            }
        }
        tree
    }

    fn pair() -> (Tree, Tree) {
        let dir = |mode| Node::Dir { mode };
        let before = tree(&[
            ("a", file(0o644, "a")),
            ("gone", dir(0o755)),
            ("gone/deep", dir(0o700)),
            ("gone/deep/x", file(0o600, "x")),
            ("run.sh", file(0o644, "run")),
            ("swap", file(0o644, "a file")),
            ("turn", dir(0o755)),
            ("turn/y", file(0o644, "y")),
            ("link", Node::Other { what: "link".to_owned() }),
        ]);
        let after = tree(&[
            ("a", file(0o644, "b")),
            ("empty", dir(0o711)),
            ("run.sh", file(0o755, "run")),
            ("swap", dir(0o755)),
            ("swap/z", file(0o400, "z")),
            ("turn", file(0o644, "now a file")),
            ("link", Node::Other { what: "link".to_owned() }),
        ]);
        (before, after)
    }

    #[test]
    fn removed_directories_empty_ones_and_modes_are_in_a_patch() {
        let (before, after) = pair();
        let patch = TreeChange::between(&before, &after).unwrap();
        let paths: Vec<&str> = patch.entries.iter().map(|entry| entry.path.as_str()).collect();
        let all = [
            "a",
            "empty",
            "gone",
            "gone/deep",
            "gone/deep/x",
            "run.sh",
            "swap",
            "swap/z",
            "turn",
            "turn/y",
        ];
        assert_eq!(paths, all);
        assert_eq!(applied(&before, &patch), after);
        assert_eq!(applied(&after, &patch.reversed(|_| true)), before);
        let text = serde_json::to_string(&patch).unwrap();
        assert_eq!(serde_json::from_str::<TreeChange>(&text).unwrap(), patch);
    }

    #[test]
    fn an_entry_begins_at_what_was_there_and_at_nothing_else() {
        let (before, after) = pair();
        for entry in &TreeChange::between(&before, &after).unwrap().entries {
            assert!(entry.begins_at(before.get(&entry.path)), "{}", entry.path);
            assert!(!entry.begins_at(after.get(&entry.path)), "{}", entry.path);
        }
    }

    #[test]
    fn one_file_is_put_back_and_the_others_stay() {
        let (before, after) = pair();
        let back = TreeChange::between(&before, &after).unwrap().reversed(|path| path == "run.sh");
        let mixed = applied(&after, &back);
        assert_eq!((&mixed["run.sh"], &mixed["a"]), (&before["run.sh"], &after["a"]));
    }

    #[test]
    fn a_file_goes_back_with_the_directories_that_it_needs_and_with_nothing_else() {
        let (before, after) = pair();
        let patch = TreeChange::between(&before, &after).unwrap();
        for (paths, changed) in [
            (&["run.sh"][..], &["run.sh"][..]),
            (&["gone/deep/x"], &["gone", "gone/deep", "gone/deep/x"]),
            (&["turn/y"], &["turn", "turn/y"]),
            (&["swap"], &["swap", "swap/z"]),
            (&["swap/z"], &["swap/z"]),
            (&["gone/"], &["gone", "gone/deep", "gone/deep/x"]),
            (&["a", "empty", "a"], &["a", "empty"]),
        ] {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            let back = patch.way_back(&paths).unwrap();
            let named: Vec<&str> = back.entries.iter().map(|entry| entry.path.as_str()).collect();
            assert_eq!(named, changed, "{paths:?}");
            let mixed = applied(&after, &back);
            for path in before.keys().chain(after.keys()) {
                let from = if named.contains(&path.as_str()) { &before } else { &after };
                assert_eq!(mixed.get(path), from.get(path), "{paths:?}: {path}");
            }
        }
        assert_eq!(patch.way_back(&["b".to_owned()]), Err("b".to_owned()));
        assert_eq!(patch.way_back(&["a".to_owned(), "g".to_owned()]), Err("g".to_owned()));
    }

    #[test]
    fn what_some_file_system_takes_for_gits_own_is_refused_by_its_path() {
        for (path, why) in [
            (".GIT/hooks/post-commit", PathRefusal::GitDir),
            ("a/git~1/config", PathRefusal::GitDir),
            (".g\u{200c}it", PathRefusal::GitDir),
            ("a\\..\\b", PathRefusal::Outside),
            (".githooks/pre-push", PathRefusal::Hook),
        ] {
            let patch = TreeChange::between(&Tree::new(), &tree(&[(path, file(0, ""))])).unwrap();
            assert_eq!(patch.refused(), Some((path, why)));
        }
        assert_eq!(TreeChange::between(&pair().0, &pair().1).unwrap().refused(), None);
    }

    #[test]
    fn what_a_patch_cannot_hold_is_refused_by_its_path() {
        let link = tree(&[("l", Node::Other { what: "link 5".to_owned() })]);
        let special = TreeChange::between(&Tree::new(), &link);
        assert_eq!(special, Err(TreeChangeError::Special("l".to_owned())));
        let big = tree(&[("f", Node::File { mode: 0, bytes: vec![0; MAX_BYTES + 1] })]);
        assert_eq!(TreeChange::between(&Tree::new(), &big), Err(TreeChangeError::TooLarge));
        for path in ["../x", "/x", "a/.git/config", ".git", "a//b", ""] {
            let patch = TreeChange::between(&Tree::new(), &tree(&[(path, file(0, ""))])).unwrap();
            assert_eq!(patch.steps(), Err(TreeChangeError::Path(path.to_owned())), "{path}");
        }
        let mut torn = TreeChange::between(&Tree::new(), &tree(&[("f", file(0, "a"))])).unwrap();
        torn.entries[0].post.as_mut().unwrap().content = Some(STANDARD.encode("b"));
        assert_eq!(torn.steps(), Err(TreeChangeError::Torn("f".to_owned())));
    }
}
