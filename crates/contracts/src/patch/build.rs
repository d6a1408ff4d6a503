//! The patch of a build, which worked on a directory, as one upon a commit: for people, and for a branch.
//!
//! It is held against the commit when it is written: what the build found has to be what the commit has.

use std::collections::BTreeMap;

use super::{
    FileMode, GitId, ObjectFormat, Patch, PatchError, PatchFile, PatchPath, Side, VerifiedPatch,
    mail,
};
use crate::canonical::{self, digest_bytes};
use crate::tree_change::{Image, PATCH_VERSION, TreeChange};

/// Git's id of the tree that holds nothing: the base of a patch that is only shown.
const NOTHING: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

impl VerifiedPatch {
    /// Opens the artifact of a build as a patch upon this commit. Directories are left out, as git does; the digest is the
    /// artifact's.
    ///
    /// # Errors
    /// [`PatchError`], whatever the bytes are.
    pub fn of_build(artifact: &[u8], base: &GitId) -> Result<Self, PatchError> {
        let change: TreeChange =
            serde_json::from_slice(artifact).map_err(|e| PatchError::Index(e.to_string()))?;
        if change.version != PATCH_VERSION {
            return Err(PatchError::Index(format!("version {}", change.version)));
        }
        let (mut files, mut blobs) = (Vec::new(), BTreeMap::new());
        for entry in &change.entries {
            let path = PatchPath::new(entry.path.as_bytes()).map_err(PatchError::Index)?;
            let mut side =
                |image: &Option<Image>| side(image.as_ref(), &entry.path, base, &mut blobs);
            let (before, after) = (side(&entry.pre)?, side(&entry.post)?);
            // A mode that git does not keep, or a directory.
            if before != after {
                files.push(PatchFile { path, before, after });
            }
        }
        let (patch, contents, text) = Patch::of_files(base, files).with_text(&blobs)?;
        let index = canonical::canonical(&patch).map_err(|_| PatchError::NotCanonical)?;
        let opened = Self::open(&index, contents, text.into_bytes())?;
        Ok(Self { digest: digest_bytes(artifact), ..opened })
    }

    /// The same to be read only, upon no commit.
    ///
    /// # Errors
    /// [`PatchError`], whatever the bytes are.
    pub fn of_build_alone(artifact: &[u8]) -> Result<Self, PatchError> {
        let base = GitId::parse(NOTHING).map_err(PatchError::Index)?;
        Self::of_build(artifact, &base)
    }

    /// The diffs of its files, without the mail around them: what `git apply` and `patch -p1` take.
    #[must_use]
    pub fn diff(&self) -> &str {
        let diff = self.text.split_once("\n---\n\n").map_or("", |(_, diff)| diff);
        diff.rsplit_once(mail::END).map_or(diff, |(diff, _)| diff)
    }
}

/// One side of a file; none of a directory.
fn side(
    image: Option<&Image>,
    path: &str,
    base: &GitId,
    blobs: &mut BTreeMap<GitId, Vec<u8>>,
) -> Result<Option<Side>, PatchError> {
    let Some(image) = image.filter(|image| !image.is_dir()) else { return Ok(None) };
    let bytes = image.bytes(path).map_err(|error| PatchError::Content(error.to_string()))?;
    let mode = if image.mode & 0o100 == 0 { FileMode::Plain } else { FileMode::Executable };
    let format: ObjectFormat = base.format();
    let side = Side::of(mode, format, &bytes);
    blobs.insert(side.blob.clone(), bytes);
    Ok(Some(side))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_change::{Node, Tree};

    fn tree(files: &[(&str, u32, &str)]) -> Tree {
        let file = |(path, mode, text): &(&str, u32, &str)| {
            let node = match text.is_empty() {
                true => Node::Dir { mode: *mode },
                false => Node::File { mode: *mode, bytes: text.as_bytes().to_vec() },
            };
            ((*path).to_owned(), node)
        };
        files.iter().map(file).collect()
    }

    #[test]
    fn agents_a2_a_build_is_a_diff_that_people_and_git_read() {
        let before = tree(&[
            ("a.py", 0o644, "one\ntwo\n"),
            ("old", 0o755, ""),
            ("old/b", 0o600, "x\n"),
            ("run", 0o644, "y\n"),
        ]);
        let after =
            tree(&[("a.py", 0o644, "one\n2\n"), ("empty", 0o755, ""), ("run", 0o755, "y\n")]);
        let change = TreeChange::between(&before, &after).unwrap();
        let bytes = canonical::canonical(&change).unwrap();
        let opened = VerifiedPatch::of_build_alone(&bytes).unwrap();
        assert_eq!(opened.digest, digest_bytes(&bytes), "the artifact's");
        let diff = opened.diff();
        assert!(diff.starts_with("diff --git a/a.py b/a.py\nindex "), "{diff}");
        assert!(diff.contains("@@ -1,2 +1,2 @@\n one\n-two\n+2\n"), "{diff}");
        assert!(diff.contains("deleted file mode 100644"), "{diff}");
        assert!(diff.ends_with("old mode 100644\nnew mode 100755\n"), "{diff}");
        assert_eq!(opened.patch.files.len(), 3, "directories are not git's");
        let upon =
            VerifiedPatch::of_build(&bytes, &GitId::parse(&"1".repeat(64)).unwrap()).unwrap();
        assert_eq!(upon.patch.base.as_str(), "1".repeat(64));
        assert!(VerifiedPatch::of_build_alone(b"{}").is_err());
        let git = tree(&[(".git/config", 0o644, "x\n")]);
        let bytes =
            canonical::canonical(&TreeChange::between(&Tree::new(), &git).unwrap()).unwrap();
        assert!(matches!(VerifiedPatch::of_build_alone(&bytes), Err(PatchError::Refused { .. })));
    }
}
