//! Directories of this process on its host, which no tenant reads of: where an error becomes the words of a tenant's answer or
//! record, their paths are taken out of it. The operator's log has them.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// What stands for a path.
const HIDDEN: &str = "(a file of the host)";
/// A process has a state directory, its live directory and few more.
const MAX_DIRS: usize = 64;

static DIRS: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// Names a directory whose paths are for the operator alone. `/` and what lies directly below it would take too much away.
pub fn declare(dir: &Path) {
    let text = dir.to_string_lossy().into_owned();
    if dir.components().count() < 3 || text.ends_with('/') {
        return;
    }
    let mut dirs = DIRS.write().unwrap_or_else(PoisonError::into_inner);
    if dirs.len() < MAX_DIRS && !dirs.contains(&text) {
        dirs.push(text);
        // The longest first: one may lie in another.
        dirs.sort_by_key(|dir| std::cmp::Reverse(dir.len()));
    }
}

/// A text for a tenant, without paths of this host's directories.
#[must_use]
pub fn hidden(text: &str) -> Cow<'_, str> {
    hidden_but(text, &|_| false)
}

/// A text for a tenant who named some paths himself: those stay, or a refusal would say which of them are this server's.
#[must_use]
pub fn hidden_but<'a>(text: &'a str, is_named: &dyn Fn(&str) -> bool) -> Cow<'a, str> {
    let dirs = DIRS.read().unwrap_or_else(PoisonError::into_inner);
    hidden_of(&dirs, text, is_named)
}

/// A text without paths below these directories. Pure.
fn hidden_of<'a>(dirs: &[String], text: &'a str, is_named: &dyn Fn(&str) -> bool) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for dir in dirs {
        if text.contains(dir.as_str()) {
            text = Cow::Owned(without(dir, &text, is_named));
        }
    }
    text
}

fn without(dir: &str, text: &str, is_named: &dyn Fn(&str) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split(dir);
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        // The rest of the path goes with it.
        let ends = |c: char| c.is_whitespace() || "\"'`:;,()[]{}<>".contains(c);
        let (rest, behind) = part.split_at(part.find(ends).unwrap_or(part.len()));
        let path = format!("{dir}{rest}");
        out.push_str(if is_named(&path) { &path } else { HIDDEN });
        out.push_str(behind);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_own_directories_are_taken_out_and_others_stay() {
        let dirs = ["/var/lib/cofferdam/live".to_owned(), "/var/lib/cofferdam".to_owned()];
        for (said, wanted) in [
            (
                "making \"/var/lib/cofferdam/live/s/a\": No space",
                "making \"(a file of the host)\": No space",
            ),
            ("/var/lib/cofferdam/snapshots/a.part", "(a file of the host)"),
            (
                "of /var/lib/cofferdam: and /var/lib/other/x",
                "of (a file of the host): and /var/lib/other/x",
            ),
            ("/work/a in the sandbox", "/work/a in the sandbox"),
        ] {
            assert_eq!(hidden_of(&dirs, said, &|_| false), wanted);
        }
        let said = "\"/var/lib/cofferdam/a\" and /var/lib/cofferdam/b";
        assert_eq!(
            hidden_of(&dirs, said, &|path| path == "/var/lib/cofferdam/a"),
            "\"/var/lib/cofferdam/a\" and (a file of the host)"
        );
    }

    #[test]
    fn a_directory_that_would_hide_too_much_is_not_declared() {
        for dir in ["/", "/tmp", "relative"] {
            declare(Path::new(dir));
        }
        assert_eq!(hidden("/tmp/x of / and relative"), "/tmp/x of / and relative");
    }
}
