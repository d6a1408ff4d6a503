//! The globs of artifacts.
//!
//! `?` is one character and `*` any number of them, neither crosses a `/`; `**` as a whole
//! component is any number of components, none included. Everything else stands for itself. A
//! pattern is relative and has no `..`, `.` or empty component: it cannot name anything outside.

use std::cell::Cell;

/// Characters of one pattern.
pub const MAX_PATTERN: usize = 1024;
/// Components of one pattern; the matcher's work grows with it.
const MAX_COMPONENTS: usize = 64;

/// Why a pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// Empty, or longer than [`MAX_PATTERN`] or 64 components.
    #[error("a glob has 1 to {MAX_PATTERN} characters and at most 64 components")]
    Size,
    /// It could leave the directory it is relative to.
    #[error("{0:?} must be relative, without empty, `.` or `..` components")]
    Escape(String),
}

/// A checked pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    parts: Vec<Vec<char>>,
}

impl Glob {
    /// Checks the text.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        if text.is_empty() || text.chars().count() > MAX_PATTERN {
            return Err(GlobError::Size);
        }
        let mut parts = Vec::new();
        for part in text.split('/') {
            if part.is_empty() || part == "." || part == ".." || part.contains('\0') {
                return Err(GlobError::Escape(text.to_owned()));
            }
            parts.push(part.chars().collect());
        }
        if parts.len() > MAX_COMPONENTS {
            return Err(GlobError::Size);
        }
        Ok(Self { parts })
    }

    /// Whether a relative path matches as a whole.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.matches_within(&names(path), &Cell::new(u64::MAX)).unwrap_or(false)
    }

    /// The same of a path's [`names`]. Each comparison takes one of `steps`; `None`: they are used up.
    #[must_use]
    pub fn matches_within(&self, names: &[Vec<char>], steps: &Cell<u64>) -> Option<bool> {
        let is_match = matches_by(
            &self.parts,
            names,
            |part| is_any_depth(part),
            |part, name| is_name(part, name, steps),
            steps,
        );
        (steps.get() > 0).then_some(is_match)
    }

    /// Whether something below this relative directory may match: a walk skips the others.
    #[must_use]
    pub fn may_match_below(&self, directory: &str) -> bool {
        for (index, name) in directory.split('/').enumerate() {
            let Some(part) = self.parts.get(index) else { return false };
            if is_any_depth(part) {
                return true;
            }
            let name: Vec<char> = name.chars().collect();
            if !is_name(part, &name, &Cell::new(u64::MAX)) {
                return false;
            }
        }
        true
    }
}

/// The names of a relative path, as a [`Glob`] compares them.
#[must_use]
pub fn names(path: &str) -> Vec<Vec<char>> {
    path.split('/').map(|name| name.chars().collect()).collect()
}

fn is_name(part: &[char], name: &[char], steps: &Cell<u64>) -> bool {
    matches_by(part, name, |c| *c == '*', |p, c| *p == '?' || p == c, steps)
}

fn is_any_depth(part: &[char]) -> bool {
    part.len() == 2 && part.iter().all(|c| *c == '*')
}

/// Greedy matching with one point of return, which is enough where a wildcard is "any number":
/// time is at most the product of the lengths. Many patterns and many paths have a budget: without steps nothing matches.
fn matches_by<P, T>(
    pattern: &[P],
    text: &[T],
    is_star: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
    steps: &Cell<u64>,
) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while let Some(item) = text.get(t) {
        steps.set(steps.get().saturating_sub(1));
        if steps.get() == 0 {
            return false;
        }
        match pattern.get(p) {
            Some(part) if is_star(part) => {
                back = Some((p + 1, t));
                p += 1;
            }
            Some(part) if fits(part, item) => {
                p += 1;
                t += 1;
            }
            _ => match back {
                Some((after, from)) => {
                    back = Some((after, from + 1));
                    p = after;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(is_star)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(glob: &str, path: &str) -> bool {
        Glob::parse(glob).unwrap().matches(path)
    }

    #[test]
    fn stars_stay_in_their_component_and_double_stars_do_not() {
        assert!(hit("*.xml", "report.xml"));
        assert!(!hit("*.xml", "a/report.xml"));
        assert!(hit("**/*.xml", "report.xml"));
        assert!(hit("**/*.xml", "a/b/report.xml"));
        assert!(hit("logs/**", "logs/a/b"));
        assert!(!hit("logs/**", "log/a"));
        assert!(hit("a/**/z", "a/z"));
        assert!(hit("a?c", "a\u{e9}c"));
        assert!(!hit("a?c", "a/c"));
        assert!(hit("a*b*c", "aXbXbXc"));
    }

    #[test]
    fn a_pattern_that_could_leave_is_refused() {
        for bad in ["../x", "a/../b", "/etc/passwd", "a//b", "./a", "", "a/"] {
            assert!(Glob::parse(bad).is_err(), "{bad}");
        }
        assert!(Glob::parse(&"a".repeat(MAX_PATTERN + 1)).is_err());
    }

    #[test]
    fn a_hostile_pattern_ends_soon() {
        let glob = Glob::parse(&format!("{}b", "a*".repeat(400))).unwrap();
        assert!(!glob.matches(&"a".repeat(4096)));
        let (path, steps) = (names(&"a".repeat(4096)), Cell::new(u64::MAX));
        assert_eq!(glob.matches_within(&path, &steps), Some(false));
        let taken = u64::MAX - steps.get();
        assert!((4_000..100_000).contains(&taken), "{taken}");
        // A budget below that ends it there, and says so.
        let steps = Cell::new(4_000);
        assert_eq!((glob.matches_within(&path, &steps), steps.get()), (None, 0));
    }

    #[test]
    fn a_walk_skips_what_cannot_match() {
        let glob = Glob::parse("logs/*/x").unwrap();
        assert!(glob.may_match_below("logs"));
        assert!(glob.may_match_below("logs/a"));
        assert!(!glob.may_match_below("node_modules"));
        assert!(Glob::parse("**/x").unwrap().may_match_below("a/b/c"));
    }
}
