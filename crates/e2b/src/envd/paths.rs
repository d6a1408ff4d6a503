//! Paths as clients write them, and as the agent takes them: absolute, plain, without links in the middle.

use cofferdam_live::inside::NodeKind;
use cofferdam_live::{Account, Guest, GuestError, STREAMS, StatFile};

use crate::connect::fault::Fault;

/// Links that one path may lead through, as the kernel has it.
const MAX_LINKS: usize = 40;
/// Bytes of a path as the kernel takes it, below the longest home.
const MAX_PATH: usize = 4_000;
/// The agent answers so where a path leads through a link or something else that is no directory.
const THROUGH: u16 = 409;
const ABSENT: u16 = 404;

/// A path without `.`, `..` and empty names, relative ones below the user's home. Pure.
pub(crate) fn plain(path: &str, account: Account) -> Result<String, Fault> {
    if path.contains('\0') {
        return Err(Fault::argument("a path has no NUL byte"));
    }
    if path.len() > MAX_PATH {
        return Err(Fault::argument(format!("a path has at most {MAX_PATH} bytes")));
    }
    let whole = match path {
        "~" => account.home.to_owned(),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{}/{}", account.home, path.strip_prefix("~/").unwrap_or(path)),
    };
    let mut names: Vec<&str> = Vec::new();
    for name in whole.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Ok(format!("/{}", names.join("/")))
}

/// Whether nothing is there.
pub(crate) fn is_absent(error: &GuestError) -> bool {
    matches!(error, GuestError::Refused { status: ABSENT, .. })
}

/// Whether a path was refused for a link in it, or for something else that is no directory.
pub(crate) fn is_through(error: &GuestError) -> bool {
    matches!(error, GuestError::Refused { status: THROUGH, .. })
}

/// The parent of a plain path; the root is its own.
pub(crate) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// The last name of a plain path.
pub(crate) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Follows the links of a path, the last one only if `last`. What does not exist stays as it is written. Only the sandbox's
/// own files are asked: a link that leads anywhere else leads to a place in the sandbox.
pub(crate) async fn followed(guest: &Guest, path: &str, last: bool) -> Result<String, Fault> {
    let mut todo: Vec<String> =
        path.split('/').rev().filter(|n| !n.is_empty()).map(str::to_owned).collect();
    let (mut done, mut links) = (String::new(), 0);
    while let Some(name) = todo.pop() {
        if name == ".." {
            done = parent(&done).trim_end_matches('/').to_owned();
            continue;
        }
        let at = format!("{done}/{name}");
        let target = match guest.ask(StatFile { path: at.clone() }).await {
            Ok(entry) if entry.kind == NodeKind::Link && (last || !todo.is_empty()) => entry.target,
            Ok(_) => None,
            Err(error) if is_absent(&error) => None,
            Err(error) if is_through(&error) => {
                return Err(Fault::argument(format!("{path}: {done} is not a directory")));
            }
            Err(error) => return Err(unavailable(&error)),
        };
        let Some(target) = target else {
            done = at;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return Err(Fault::argument(format!("{path}: too many links")));
        }
        if target.starts_with('/') {
            done.clear();
        }
        todo.extend(target.split('/').rev().filter(|n| !matches!(*n, "" | ".")).map(str::to_owned));
    }
    Ok(if done.is_empty() { "/".to_owned() } else { done })
}

/// A sandbox whose agent does not answer is over, or about to be.
pub(crate) fn unavailable(error: &GuestError) -> Fault {
    match error {
        GuestError::Refused { error, .. } => Fault::new("internal", error.clone()),
        GuestError::Busy => {
            let why = format!(
                "{STREAMS} streams of this sandbox are in use: one for each command, open input, watch, transfer and \
                 connection; end one"
            );
            Fault::new("resource_exhausted", why)
        }
        other => Fault::new("unavailable", format!("the connection to the sandbox ended: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_plain_and_never_leaves_the_root() {
        let account = Account::named(None).unwrap();
        for (given, wanted) in [
            ("/a/b", "/a/b"),
            ("a", "/home/user/a"),
            ("./a/../b", "/home/user/b"),
            ("~/x", "/home/user/x"),
            ("~", "/home/user"),
            ("", "/home/user"),
            ("/", "/"),
            ("/../../etc", "/etc"),
            ("../../../..", "/"),
            ("//a///b/", "/a/b"),
        ] {
            assert_eq!(plain(given, account).unwrap(), wanted, "{given}");
        }
        assert!(plain("a\0b", account).is_err());
        assert!(plain(&"a/".repeat(2_001), account).is_err());
        assert_eq!((parent("/a/b"), parent("/a"), parent("/")), ("/a", "/", "/"));
        assert_eq!((name("/a/b"), name("/")), ("b", ""));
    }
}
