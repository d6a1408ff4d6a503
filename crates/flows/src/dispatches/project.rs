//! The project of a dispatch: the commit that it began from, and whether the host's files changed meanwhile.

use std::path::{Component, Path, PathBuf};

use cofferdam_ambient::clock;
use cofferdam_contracts::dispatch::{AgentWork, Findings};
use cofferdam_sandbox::{AllowedPaths, HostPath, Sandbox};

/// What one of git's small files has at most, and its list of packed references.
const MAX_HEAD: u64 = 4 * 1024;
const MAX_PACKED: u64 = 4 * 1024 * 1024;
/// Hex digits of a commit: SHA-1's, SHA-256's.
const DIGITS: [usize; 2] = [40, 64];
/// The agent and somebody else changed one file.
const CONFLICT: &str = "write_write";

/// The project when the agent started.
#[derive(Debug, Clone)]
pub(crate) struct Project {
    base: Option<String>,
    since_ms: i64,
}

impl Project {
    /// Looked at before the agent's command starts: nothing of a model has run by then. A repository's commit is
    /// the one that was asked for.
    pub(crate) async fn of(sandbox: &Sandbox, work: &AgentWork) -> Self {
        let base = match &work.request.repo {
            Some(repo) => repo.commit.as_ref().map(ToString::to_string),
            None => head(sandbox, work.place()).await,
        };
        Self { since_ms: clock::host_ms(), base }
    }

    /// What became of it, now that these files were changed in the sandbox.
    pub(crate) fn findings(
        &self,
        allowed: &AllowedPaths,
        work: &AgentWork,
        files: &[String],
        verdict: Findings,
    ) -> Findings {
        let dir = HostPath::said(&work.working_dir);
        let is_changed = !files.is_empty() && allowed.is_changed(&dir, files, self.since_ms);
        Findings {
            base_repo_commit: self.base.clone(),
            conflict_type: is_changed.then(|| CONFLICT.to_owned()),
            ..verdict
        }
    }
}

/// The commit of HEAD, where the working directory is the top of a repository or of a linked worktree.
async fn head(sandbox: &Sandbox, project: &str) -> Option<String> {
    let read = async |path: String, most: u64| {
        let bytes = sandbox.agent().files().read(&path, most).await.ok()?;
        String::from_utf8(bytes).ok()
    };
    let dot = format!("{project}/.git");
    let (own, common) = match read(dot.clone(), MAX_HEAD).await {
        None => (dot.clone(), dot),
        Some(link) => {
            let own = joined(project, link.strip_prefix("gitdir:")?.trim());
            let common = read(format!("{own}/commondir"), MAX_HEAD).await?;
            let common = joined(&own, common.trim());
            (own, common)
        }
    };
    let head = read(format!("{own}/HEAD"), MAX_HEAD).await?;
    let Some(reference) = reference(&head) else { return commit(&head) };
    if let Some(found) = read(format!("{common}/{reference}"), MAX_HEAD).await {
        return commit(&found);
    }
    packed(&read(format!("{common}/packed-refs"), MAX_PACKED).await?, reference)
}

/// A path of git's files, from the directory that it is said in; the agent reads plain ones alone. Pure.
fn joined(dir: &str, path: &str) -> String {
    let mut whole = PathBuf::from("/");
    for part in Path::new(dir).join(path).components() {
        match part {
            Component::Normal(name) => whole.push(name),
            Component::ParentDir => drop(whole.pop()),
            _ => {}
        }
    }
    whole.to_string_lossy().into_owned()
}

/// The reference that HEAD names, if it does, and if that is a path below git's directory.
fn reference(head: &str) -> Option<&str> {
    let name = head.strip_prefix("ref: ")?.trim_end();
    let is_plain =
        name.starts_with("refs/") && !name.split('/').any(|part| matches!(part, "" | "." | ".."));
    is_plain.then_some(name)
}

fn packed(list: &str, reference: &str) -> Option<String> {
    let rows = list.lines().filter_map(|line| line.split_once(' '));
    rows.into_iter().find(|(_, name)| *name == reference).and_then(|(id, _)| commit(id))
}

fn commit(text: &str) -> Option<String> {
    let text = text.trim_end();
    let is_id = DIGITS.contains(&text.len())
        && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_a_commit_or_names_one() {
        let id = "a".repeat(40);
        assert_eq!(commit(&format!("{id}\n")), Some(id.clone()));
        assert_eq!(commit("not a commit"), None);
        assert_eq!(reference("ref: refs/heads/main\n"), Some("refs/heads/main"));
        for bad in ["ref: ../x", "ref: refs/../../x", "ref: refs//x", &id] {
            assert_eq!(reference(bad), None, "{bad}");
        }
        assert_eq!(joined("/a/.git/worktrees/b", "../.."), "/a/.git");
        assert_eq!(joined("/a", "/b/./c"), "/b/c");
        assert_eq!(joined("/a", "../../../.."), "/");
        let list = format!("# pack-refs\n{id} refs/heads/main\n^{id}\n");
        assert_eq!(packed(&list, "refs/heads/main"), Some(id));
        assert_eq!(packed(&list, "refs/heads/other"), None);
    }
}
