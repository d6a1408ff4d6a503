//! Branches and tags of a repository of the host, read without git: its directory is a tenant's, and so is what its configuration would
//! have git run.
//!
//! Files are read from the opened directory, never through a link. A name lies in a file of its own or among `packed-refs`, which has
//! the commits of annotated tags beside them. Of a tag that is not packed the object says it.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::patch::{GitId, GitRef, GitRefs, packed_refs};
use flate2::read::ZlibDecoder;

use super::hostpath::HostHandle;

/// Bytes of a file with one name.
const MAX_REF_FILE: u64 = 4 * 1024;
/// Bytes of `packed-refs`: 200,000 names.
const MAX_PACKED: u64 = 16 * 1024 * 1024;
/// Bytes of an object that are read, and of what they unpack to: a tag begins with what it is of.
const MAX_OBJECT: u64 = 4 * 1024;
/// Names that lead to each other, and tags of tags.
const MAX_STEPS: usize = 5;

/// Why a directory's names are not read.
#[derive(Debug, thiserror::Error)]
pub enum GitDirError {
    /// It has none.
    #[error("it is not the top of a git repository")]
    Missing,
    /// Its `.git` leads elsewhere.
    #[error("it is a linked worktree: name the repository that it belongs to")]
    Linked,
    /// Newer than what is read here.
    #[error("its names are kept in a form that is not read here (reftable): give `commit`")]
    Reftable,
    /// What the name's object is, only a pack knows.
    #[error(
        "what the tag {0} is of lies in a pack: run `git pack-refs --all` there, or give `commit`"
    )]
    Packed(String),
    /// A name that leads to no commit.
    #[error("{0} does not lead to a commit")]
    Other(String),
    /// The host's disk.
    #[error("a file of the repository cannot be read")]
    Read(#[source] io::Error),
}

/// What a name may stand for in a repository, with or without a working tree.
///
/// # Errors
/// [`GitDirError`].
pub fn git_refs(repository: &HostHandle, name: &GitRef) -> Result<GitRefs, GitDirError> {
    GitDir::of(repository)?.refs(name)
}

struct GitDir<'a> {
    top: &'a HostHandle,
    below: &'static str,
}

impl<'a> GitDir<'a> {
    fn of(top: &'a HostHandle) -> Result<Self, GitDirError> {
        for below in [".git", ""] {
            let dir = Self { top, below };
            let Some(head) = dir.text("HEAD", MAX_REF_FILE)? else { continue };
            return match head.trim() == "ref: refs/heads/.invalid" {
                true => Err(GitDirError::Reftable),
                false => Ok(dir),
            };
        }
        match (Self { top, below: "" }).bytes(".git", MAX_REF_FILE)? {
            Some(_) => Err(GitDirError::Linked),
            None => Err(GitDirError::Missing),
        }
    }

    fn refs(&self, name: &GitRef) -> Result<GitRefs, GitDirError> {
        let mut refs = GitRefs::new();
        for full in name.full_names() {
            if let Some(commit) = self.commit(&full)? {
                refs.insert(full, commit);
            }
        }
        Ok(refs)
    }

    /// The commit of a full name, by way of those that it leads to.
    fn commit(&self, full: &str) -> Result<Option<GitId>, GitDirError> {
        let mut name = full.to_owned();
        for _ in 0..MAX_STEPS {
            let Some(text) = self.text(&name, MAX_REF_FILE)? else { return self.packed(&name) };
            let text = text.trim();
            let Some(next) = text.strip_prefix("ref:") else {
                let id = GitId::parse(text).map_err(|_| GitDirError::Other(full.to_owned()))?;
                return self.peeled(id, &name).map(Some);
            };
            // It becomes a path.
            let next =
                GitRef::parse(next.trim()).ok().filter(|next| next.as_str().starts_with("refs/"));
            name = next.ok_or_else(|| GitDirError::Other(full.to_owned()))?.as_str().to_owned();
        }
        Err(GitDirError::Other(full.to_owned()))
    }

    fn packed(&self, full: &str) -> Result<Option<GitId>, GitDirError> {
        let text = self.text("packed-refs", MAX_PACKED)?.unwrap_or_default();
        match packed_refs(&text, full) {
            Some((id, true)) => Ok(Some(id)),
            Some((id, false)) => self.peeled(id, full).map(Some),
            None => Ok(None),
        }
    }

    /// Git lets a branch be nothing but a commit; a tag may be a tag of one.
    fn peeled(&self, id: GitId, full: &str) -> Result<GitId, GitDirError> {
        if full.starts_with("refs/heads/") || full == "HEAD" {
            return Ok(id);
        }
        let other = || GitDirError::Other(full.to_owned());
        let mut id = id;
        for _ in 0..MAX_STEPS {
            let (dir, file) = id.as_str().split_at_checked(2).ok_or_else(other)?;
            let object = self.bytes(&format!("objects/{dir}/{file}"), MAX_OBJECT)?;
            let object = object.ok_or_else(|| GitDirError::Packed(full.to_owned()))?;
            let mut head = Vec::new();
            // Cut off where it is longer: what it begins with is enough.
            let _ = ZlibDecoder::new(object.as_slice()).take(MAX_OBJECT).read_to_end(&mut head);
            let head = String::from_utf8_lossy(&head);
            if head.starts_with("commit ") {
                return Ok(id);
            }
            let tag = head.strip_prefix("tag ").and_then(|tag| tag.split_once("\0object "));
            let next = tag.and_then(|(_, of)| of.split_once('\n')).ok_or_else(other)?;
            id = GitId::parse(next.0).map_err(|_| other())?;
        }
        Err(other())
    }

    fn text(&self, name: &str, most: u64) -> Result<Option<String>, GitDirError> {
        let bytes = self.bytes(name, most)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The first bytes of a regular file.
    fn bytes(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, GitDirError> {
        let path: PathBuf = Path::new(self.below).join(name);
        let file = match self.top.file(&path) {
            Ok(file) => file,
            // A directory is where other names lie below this one.
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(GitDirError::Read(error)),
        };
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(GitDirError::Read)?;
        Ok(Some(bytes))
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::Other
    )
}
