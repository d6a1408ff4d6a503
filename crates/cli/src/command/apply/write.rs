//! From a patch to a branch.
//!
//! ```text
//! lock the repository's directory -> a directory of our own in it, whatever was left there removed
//!   base commit there? -> index of it -> blobs, each id compared -> paths into the index -> tree
//!   raw diff of base and tree = the patch, every path, mode and id on both sides
//!   commit -> the reference, where there is none
//! ```
//! Everything before the last step is unreachable for who uses the repository, and the last step is atomic: a process
//! that is killed anywhere leaves the branch as it was, and the next `apply` removes what lies in our directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::Context;
use cofferdam_ambient::file_lock::FileLock;
use cofferdam_contracts::patch::{
    self, COMMIT_EMAIL, COMMIT_NAME, GitId, PatchCommit, VerifiedPatch,
};

use super::super::exit::Negative;
use super::git::{Repository, Variable, git, line, taken, words};

/// Our directory in a repository, while a patch is written.
const PLACE: &str = "cofferdam-apply";
/// The commit of a patch on its branch.
pub(super) struct BranchCommit {
    pub commit: GitId,
    /// Git id of the commit's tree, recorded with the apply.
    pub tree: GitId,
    /// Whether the branch was not there before.
    pub created: bool,
}

/// Our directory; removed in the end.
struct Workshop {
    dir: PathBuf,
    objects: PathBuf,
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // What stays is removed by the next that holds the lock.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Writes a patch to a branch that is not there, or finds that it was written.
pub(super) fn write(
    repository: &Repository,
    opened: &VerifiedPatch,
    branch: &str,
    said: &PatchCommit<'_>,
) -> anyhow::Result<BranchCommit> {
    let patch = &opened.patch;
    let common = fs::File::open(&repository.common)?;
    let _lock = FileLock::exclusive(common).context("cannot lock the repository")?;
    // Again, now that nothing else of ours writes.
    let name = repository.may_take(branch, &patch.base)?;
    repository.no_links(&name)?;
    let place = Workshop::make(repository, patch.base.format().as_str())?;
    let base = patch.base.as_str();
    let kind = place.git(&["cat-file", "-t", base], &[])?;
    if line(kind.stdout) != "commit" {
        let why = format!("the base commit {base} is not in {}; fetch it", repository.shown());
        return Err(Negative(why).into());
    }
    let tree = place.tree(opened)?;
    let commit = place.commit(&tree, said)?;
    // What the server can compute too.
    anyhow::ensure!(commit == said.id(&tree), "git gives the commit another id");
    let wanted = Some(commit.as_str().to_owned());
    match repository.at(&name)? {
        None => {}
        found if found == wanted => return Ok(BranchCommit { commit, tree, created: false }),
        Some(other) => return Err(taken(&name, &other)),
    }
    let made = repository.create(&name, &commit, &format!("cofferdam apply {}", said.run))?;
    if made.status.success() {
        return Ok(BranchCommit { commit, tree, created: true });
    }
    match repository.at(&name)? {
        found if found == wanted => Ok(BranchCommit { commit, tree, created: false }),
        Some(other) => Err(taken(&name, &other)),
        None => anyhow::bail!("branch {branch} was not created: {}", words(&made)),
    }
}

impl Workshop {
    fn make(repository: &Repository, format: &str) -> anyhow::Result<Self> {
        let dir = repository.common.join(PLACE);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", dir.display()));
            }
            _ => {}
        }
        let place = Self { dir, objects: repository.objects.clone() };
        let format = format!("--object-format={format}");
        let args = ["init", "-q", "--bare", "--template=", &format].map(OsStr::new);
        let args: Vec<&OsStr> = args.into_iter().chain([place.dir.as_os_str()]).collect();
        let made = git(&args, &[], &[])?;
        anyhow::ensure!(made.status.success(), "git init: {}", words(&made));
        Ok(place)
    }

    /// Runs git with our own configuration and index on the repository's objects.
    fn git(&self, args: &[&str], input: &[u8]) -> anyhow::Result<Output> {
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        git(&args, &self.variables(&self.dir.join("index")), input)
    }

    fn variables<'a>(&'a self, index: &'a Path) -> [Variable<'a>; 3] {
        [
            Variable { name: "GIT_DIR", value: self.dir.as_os_str() },
            Variable { name: "GIT_OBJECT_DIRECTORY", value: self.objects.as_os_str() },
            Variable { name: "GIT_INDEX_FILE", value: index.as_os_str() },
        ]
    }

    /// The answer of a command that must not fail.
    fn ask(&self, args: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
        let output = self.git(args, input)?;
        let what = args.first().copied().unwrap_or_default();
        anyhow::ensure!(output.status.success(), "git {what}: {}", words(&output));
        Ok(output.stdout)
    }

    fn id(&self, args: &[&str], input: &[u8]) -> anyhow::Result<GitId> {
        let answer = line(self.ask(args, input)?);
        GitId::parse(&answer.to_string_lossy()).map_err(anyhow::Error::msg)
    }

    /// The tree of the base commit with the patch, compared with it path by path.
    fn tree(&self, opened: &VerifiedPatch) -> anyhow::Result<GitId> {
        let base = opened.patch.base.as_str();
        self.ask(&["read-tree", base], &[])?;
        let none = opened.patch.base.format().none();
        let (mut gone, mut there) = (Vec::new(), Vec::new());
        for (file, bytes) in opened.files() {
            let (to, head) = match (&file.after, bytes) {
                (Some(side), Some(bytes)) => {
                    let args = ["hash-object", "-w", "-t", "blob", "--no-filters", "--stdin"];
                    let id = self.id(&args, bytes)?;
                    anyhow::ensure!(id == side.blob, "{}: git gives another id", file.path.shown());
                    (&mut there, format!("{} {id}\t", side.mode.as_str()))
                }
                _ => (&mut gone, format!("0 {none}\t")),
            };
            to.extend(head.bytes());
            to.extend(file.path.as_bytes());
            to.push(0);
        }
        // What is removed first: a file may become a directory.
        self.ask(&["update-index", "-z", "--index-info"], &[gone, there].concat())?;
        let tree = self.id(&["write-tree"], &[])?;
        let args = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"];
        let args: Vec<&str> = args.into_iter().chain([base, tree.as_str()]).collect();
        let raw = self.ask(&args, &[])?;
        let differs = match patch::changes(&raw, opened.patch.base.format()) {
            Ok(changed) => opened.patch.differs(&changed),
            Err(error) => Some(error.to_string()),
        };
        match differs {
            None => Ok(tree),
            Some(path) => {
                let why = format!(
                    "refused: at {path} the base commit does not have what the patch changes"
                );
                Err(Negative(why).into())
            }
        }
    }

    fn commit(&self, tree: &GitId, said: &PatchCommit<'_>) -> anyhow::Result<GitId> {
        let message = said.message();
        let when = format!("@{}", said.when());
        let index = self.dir.join("index");
        let mut variables = self.variables(&index).to_vec();
        for (name, value) in [
            ("GIT_AUTHOR_NAME", COMMIT_NAME),
            ("GIT_AUTHOR_EMAIL", COMMIT_EMAIL),
            ("GIT_AUTHOR_DATE", when.as_str()),
            ("GIT_COMMITTER_NAME", COMMIT_NAME),
            ("GIT_COMMITTER_EMAIL", COMMIT_EMAIL),
            ("GIT_COMMITTER_DATE", when.as_str()),
        ] {
            variables.push(Variable { name, value: OsStr::new(value) });
        }
        let base = said.base.as_str();
        let args = ["commit-tree", tree.as_str(), "-p", base, "-F", "-"].map(OsStr::new);
        let made = git(&args, &variables, message.as_bytes())?;
        anyhow::ensure!(made.status.success(), "git commit-tree: {}", words(&made));
        GitId::parse(&line(made.stdout).to_string_lossy()).map_err(anyhow::Error::msg)
    }
}
