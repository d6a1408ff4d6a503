//! What git ignores below a directory, by its own `.gitignore` alone, and what is git's.
//!
//! A line is a glob (`?`, `*`, `**`; sets of characters stand for themselves), relative to the directory where it has a
//! slash before its end, else of a name at any depth; `/` at its end: directories alone; `!` takes back. The last
//! line that matches decides.

use std::cell::Cell;

use cofferdam_guest::glob::{Glob, names};

/// Bytes of a file of rules that are read.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;
/// Rules that are held: each is tried for each path.
const MAX_RULES: usize = 256;
/// The name of git's own directory, or of the file that leads to it.
const GIT: &str = ".git";

/// The rules of one `.gitignore`.
#[derive(Debug, Clone, Default)]
pub(crate) struct GitIgnore(Vec<GitRule>);

#[derive(Debug, Clone)]
struct GitRule {
    glob: Glob,
    takes_back: bool,
    directories: bool,
}

impl GitIgnore {
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(rule).take(MAX_RULES).collect())
    }

    /// Whether a relative path is ignored, all above it being not. Rules and paths are a tenant's, so their product has a budget:
    /// `None`, its steps are used up.
    pub(crate) fn has(&self, path: &str, is_dir: bool, steps: &Cell<u64>) -> Option<bool> {
        let names = names(path);
        for rule in self.0.iter().rev().filter(|rule| is_dir || !rule.directories) {
            if rule.glob.matches_within(&names, steps)? {
                return Some(!rule.takes_back);
            }
        }
        Some(false)
    }
}

/// Whether a relative path's last name is git's own: its changes are no edits.
pub(crate) fn is_gits(path: &str) -> bool {
    path.rsplit('/').next() == Some(GIT)
}

fn rule(line: &str) -> Option<GitRule> {
    let line = line.trim_end();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (takes_back, line) = match line.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (directories, line) = match line.strip_suffix('/') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let glob = match line.strip_prefix('/') {
        Some(rest) => Glob::parse(rest),
        None if line.contains('/') => Glob::parse(line),
        None => Glob::parse(&format!("**/{line}")),
    };
    Some(GitRule { glob: glob.ok()?, takes_back, directories })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_r9_the_last_line_that_matches_decides() {
        let rules =
            GitIgnore::parse("# tools\nnode_modules/\n*.log\n!keep.log\n/dist\ndocs/*.tmp\n\n");
        for (path, is_dir, ignored) in [
            ("node_modules", true, true),
            ("a/node_modules", true, true),
            ("node_modules", false, false),
            ("a/b.log", false, true),
            ("a/keep.log", false, false),
            ("dist", true, true),
            ("a/dist", true, false),
            ("docs/x.tmp", false, true),
            ("src/main.rs", false, false),
        ] {
            assert_eq!(rules.has(path, is_dir, &Cell::new(1_000)), Some(ignored), "{path}");
        }
        assert!(is_gits("a/.git") && is_gits(".git") && !is_gits(".gitignore"));
    }

    #[test]
    fn a3f3_rules_and_paths_have_a_budget_of_steps() {
        let rules = GitIgnore::parse(&format!("{}b\n", "a*".repeat(100)).repeat(MAX_RULES + 5));
        let (path, steps) = ("a".repeat(255), Cell::new(1_000_000));
        let looked = (0..).take_while(|_| rules.has(&path, false, &steps).is_some()).count();
        assert!(looked < 100, "{looked}");
        assert_eq!(steps.get(), 0);
    }
}
