//! Names that stand for a commit: a branch, a tag, `HEAD`.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::GitId;

/// Bytes of a name: a file's longest one.
const MAX_REF: usize = 255;
const HEAD: &str = "HEAD";
const BRANCHES: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";
/// What git's own names never hold.
const NEVER: [&str; 5] = ["..", "@{", "//", "/.", ".lock/"];

/// Commits by full name (`refs/heads/main`), each tag as the commit that it leads to.
pub type GitRefs = BTreeMap<String, GitId>;

/// A branch or tag by its short or full name, or `HEAD`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GitRef(String);

/// Why a name stands for no commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefAbsence {
    /// The repository has neither a branch nor a tag of that name.
    #[error("the repository has no branch and no tag `{0}`; `git ls-remote` lists what it has")]
    Unknown(GitRef),
    /// A branch and a tag have it, and are different commits.
    #[error("`{0}` is a branch and a tag: write refs/heads/{0} or refs/tags/{0}")]
    Ambiguous(GitRef),
}

impl GitRef {
    /// Reads a name by the rules of git.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if GitId::parse(text).is_ok() {
            return Err("it is the id of a commit: give it as `commit`".to_owned());
        }
        let is_plain = |byte: u8| byte > 0x20 && byte != 0x7f && !b"~^:?*[\\".contains(&byte);
        let is_name = !text.is_empty()
            && text.len() <= MAX_REF
            && text.bytes().all(is_plain)
            && !NEVER.iter().any(|never| text.contains(never))
            && !text.starts_with(['-', '/', '.'])
            && !text.ends_with(['/', '.'])
            && !text.ends_with(".lock")
            && text != "@";
        match is_name {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "not the name of a branch or tag, such as `main`, `v1.2` or `refs/heads/main`, of at most {MAX_REF} bytes"
            )),
        }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Full names that it may stand for.
    #[must_use]
    pub fn full_names(&self) -> Vec<String> {
        match self.0 == HEAD || self.0.starts_with("refs/") {
            true => vec![self.0.clone()],
            false => [BRANCHES, TAGS].map(|under| format!("{under}{}", self.0)).to_vec(),
        }
    }

    /// The commit that it stands for among those of a repository.
    ///
    /// # Errors
    /// [`RefAbsence`].
    pub fn commit_in(&self, refs: &GitRefs) -> Result<GitId, RefAbsence> {
        let names = self.full_names();
        let mut found = names.iter().filter_map(|name| refs.get(name));
        let Some(commit) = found.next() else { return Err(RefAbsence::Unknown(self.clone())) };
        match found.all(|other| other == commit) {
            true => Ok(commit.clone()),
            false => Err(RefAbsence::Ambiguous(self.clone())),
        }
    }
}

/// The object of a full name in the text of `packed-refs`, and whether it is known to be a commit or what an annotated tag leads to.
#[must_use]
pub fn packed_refs(text: &str, full: &str) -> Option<(GitId, bool)> {
    let mut lines = text.lines();
    let is_whole = lines.clone().next().is_some_and(|first| {
        first.strip_prefix("# pack-refs with:").is_some_and(|with| with.contains(" fully-peeled"))
    });
    let of_name = |line: &str| {
        let (id, name) = line.split_once(' ')?;
        (name == full).then(|| GitId::parse(id).ok()).flatten()
    };
    let id = lines.find_map(of_name)?;
    match lines.next().and_then(|next| next.strip_prefix('^')) {
        Some(peeled) => Some((GitId::parse(peeled).ok()?, true)),
        None => Some((id, is_whole)),
    }
}

impl fmt::Display for GitRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for GitRef {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<GitRef> for String {
    fn from(name: GitRef) -> Self {
        name.0
    }
}

impl JsonSchema for GitRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GitRef".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": MAX_REF})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_git_takes() {
        for name in ["main", "HEAD", "v1.2", "refs/heads/a", "feature/x@y", "größe", "a.b/c"] {
            assert!(GitRef::parse(name).is_ok(), "{name}");
        }
        let long = "a".repeat(256);
        for name in [
            "", "@", "-x", "/a", "a/", "a..b", "a b", "a\n", "a^", "a~1", "a:b", "a?", "a*", "a[",
            "a\\b", "a@{1}", "a//b", "a/.b", ".a", "a.", "a.lock", "a.lock/b", "a\u{7f}", &long,
        ] {
            assert!(GitRef::parse(name).is_err(), "{name:?}");
        }
        let said = GitRef::parse(&"a".repeat(40)).unwrap_err();
        assert!(said.contains("`commit`"), "{said}");
    }

    #[test]
    fn packed_names_have_the_commit_of_a_tag_below_them() {
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
        let lines = format!("{a} refs/heads/main\n{b} refs/tags/v1\n^{c}\n{a} refs/tags/v10\n");
        let whole = format!("# pack-refs with: peeled fully-peeled sorted \n{lines}");
        let id = |hex: &str| GitId::parse(hex).unwrap();
        assert_eq!(packed_refs(&whole, "refs/heads/main"), Some((id(&a), true)));
        assert_eq!(packed_refs(&whole, "refs/tags/v1"), Some((id(&c), true)));
        assert_eq!(packed_refs(&lines, "refs/tags/v10"), Some((id(&a), false)));
        assert_eq!(packed_refs(&whole, "refs/tags/v"), None);
    }

    #[test]
    fn a_name_of_two_commits_stands_for_none() {
        let id = |digit: &str| GitId::parse(&digit.repeat(40)).unwrap();
        let both = |branch: &str, tag: &str| {
            GitRefs::from([
                ("refs/heads/v1".to_owned(), id(branch)),
                ("refs/tags/v1".to_owned(), id(tag)),
            ])
        };
        let name = GitRef::parse("v1").unwrap();
        assert_eq!(name.commit_in(&both("a", "a")), Ok(id("a")));
        assert_eq!(name.commit_in(&both("a", "b")), Err(RefAbsence::Ambiguous(name.clone())));
        let full = GitRef::parse("refs/tags/v1").unwrap();
        assert_eq!(full.commit_in(&both("a", "b")), Ok(id("b")));
        let other = GitRef::parse("v2").unwrap();
        assert_eq!(other.commit_in(&both("a", "b")), Err(RefAbsence::Unknown(other)));
    }
}
