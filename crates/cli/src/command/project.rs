//! What of a project's repository lies elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

/// A few lines, written by git.
const MOST_BYTES: u64 = 16 * 1024;

/// The repository of a linked worktree, which lies beside it; `None`: it has its own, or none. **A repository that does not
/// name this worktree is not its own**: any archive may hold a `.git` that points anywhere.
pub(super) fn repository(worktree: &Path) -> Option<String> {
    let dot = worktree.join(".git");
    let said = line(&dot)?;
    let private = worktree.join(said.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let back = PathBuf::from(line(&private.join("gitdir"))?);
    if private.join(back).canonicalize().ok()? != dot.canonicalize().ok()? {
        return None;
    }
    let common = private.join(line(&private.join("commondir"))?).canonicalize().ok()?;
    let is_repository = common.join("HEAD").is_file() && common.join("objects").is_dir();
    let is_of_it = private.parent() == Some(&common.join("worktrees"));
    common.to_str().filter(|_| is_repository && is_of_it).map(str::to_owned)
}

/// The one line of a small regular file.
fn line(path: &Path) -> Option<String> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > MOST_BYTES {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_worktrees_repository_is_the_one_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let git = |args: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-C"]).arg(&top);
            assert!(command.args(args).output().unwrap().status.success(), "{args:?}");
        };
        git(&["init", "-q", "main"]);
        git(&["-C", "main", "commit", "-q", "--allow-empty", "-m", "one"]);
        git(&["-C", "main", "worktree", "add", "-q", "../linked"]);
        let common = top.join("main/.git").to_str().unwrap().to_owned();
        assert_eq!(repository(&top.join("linked")), Some(common));
        assert_eq!(repository(&top.join("main")), None);
        assert_eq!(repository(&top), None);
        // Another directory that says the same is not known there.
        fs::create_dir(top.join("copy")).unwrap();
        fs::copy(top.join("linked/.git"), top.join("copy/.git")).unwrap();
        assert_eq!(repository(&top.join("copy")), None);
        for lie in ["", "gitdir: /etc\n", "gitdir: ../main/.git\n", "gitdir:\n"] {
            fs::write(top.join("copy/.git"), lie).unwrap();
            assert_eq!(repository(&top.join("copy")), None, "{lie:?}");
        }
        fs::remove_dir_all(top.join("main")).unwrap();
        assert_eq!(repository(&top.join("linked")), None);
    }
}
