//! Where a run's files go below a directory of this host. Pure.
//!
//! **Their names are a tenant's: none of them leads out of the directory, and a link is made only where it stays inside, whatever
//! the other links are.** Its target climbs first, if at all, and then only descends: what it descends through are directories of
//! ours, or links that stay inside themselves.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use cofferdam_contracts::artifact::ArtifactMode;
use cofferdam_contracts::run_file::RunFile;
use cofferdam_sandbox::decode_name;

/// Bytes of a name and of a path, as the kernel takes them.
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4_095;

/// What is made at a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DestinationKind {
    /// A file, and whether it may be executed.
    File { executable: bool },
    /// A symbolic link that stays inside.
    Link { target: PathBuf },
    /// A symbolic link that leads out, which is not made.
    OutwardLink,
    /// A directory, which may be there already.
    Directory,
}

/// A place below the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Relative, of plain names.
    pub path: PathBuf,
    pub kind: DestinationKind,
}

/// Why a file has no destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DestinationFault {
    /// Its path is absolute, has `..`, or cannot be one.
    Path(String),
    /// Another file has its place, or is a directory of its path.
    Taken(String),
}

impl std::fmt::Display for DestinationFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => {
                write!(f, "{path:?} has no place below a directory: nothing was written")
            }
            Self::Taken(path) => write!(
                f,
                "two files would be at {path:?}: choose one task with --task; nothing was written"
            ),
        }
    }
}

impl std::error::Error for DestinationFault {}

/// Where each of these files goes, of a run with so many tasks.
///
/// # Errors
/// One that would lie outside, or where another one is.
pub(crate) fn destinations(
    files: &[RunFile],
    tasks: u64,
) -> Result<Vec<Destination>, DestinationFault> {
    let mut taken = BTreeSet::new();
    let mut all = Vec::with_capacity(files.len());
    for file in files {
        let text = file.path_among(tasks);
        let bytes = decode_name(&text);
        if !is_inside(&bytes) {
            return Err(DestinationFault::Path(text));
        }
        let depth = bytes.split(|byte| *byte == b'/').count().saturating_sub(1);
        let path = PathBuf::from(OsString::from_vec(bytes));
        if !taken.insert(path.clone()) {
            return Err(DestinationFault::Taken(text));
        }
        let kind = match file.mode {
            ArtifactMode::File => DestinationKind::File { executable: false },
            ArtifactMode::Executable => DestinationKind::File { executable: true },
            ArtifactMode::Directory => DestinationKind::Directory,
            ArtifactMode::Link => {
                let target = decode_name(file.target.as_deref().unwrap_or_default());
                match stays_inside(&target, depth) {
                    true => DestinationKind::Link { target: OsString::from_vec(target).into() },
                    false => DestinationKind::OutwardLink,
                }
            }
        };
        all.push(Destination { path, kind });
    }
    // A file where another one needs a directory: what lies below a path stands right behind it.
    let mut pairs = taken.iter().zip(taken.iter().skip(1));
    match pairs.find(|(path, next)| next.starts_with(path)) {
        Some((path, _)) => Err(DestinationFault::Taken(path.to_string_lossy().into_owned())),
        None => Ok(all),
    }
}

/// Whether a path has plain names alone.
fn is_inside(path: &[u8]) -> bool {
    let is_plain = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..") && name.len() <= MAX_NAME && !name.contains(&0)
    };
    path.len() <= MAX_PATH && path.split(|byte| *byte == b'/').all(is_plain)
}

/// Whether a link in a directory of this depth leads to what is inside.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) {
        return false;
    }
    let mut climbs = 0;
    let mut descends = false;
    for (index, name) in target.split(|byte| *byte == b'/').enumerate() {
        match name {
            // The first empty name is that of an absolute path.
            b"" if index == 0 => return false,
            b"" | b"." => {}
            b".." if descends => return false,
            b".." => climbs += 1,
            _ => descends = true,
        }
    }
    climbs <= depth
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn file(path: &str, mode: &str, target: Option<&str>) -> RunFile {
        let key = "a".repeat(64);
        let row = json!({"task": "t", "stepId": "ExecuteST:t", "taskKey": key, "attempt": 1, "path": path, "mode": mode,
            "target": target, "sha256": key, "size": 3, "uri": "artifact://x", "createdAt": 5});
        serde_json::from_value(row).unwrap()
    }

    fn of(path: &str) -> Result<Vec<Destination>, DestinationFault> {
        destinations(&[file(path, "100644", None)], 1)
    }

    #[test]
    fn no_name_leads_out_and_strange_ones_are_names() {
        for bad in ["/etc/passwd", "../x", "a/../../x", "a//b", "", ".", "a/.", "a/", "..", "a/\0b"]
        {
            assert_eq!(of(bad), Err(DestinationFault::Path(bad.to_owned())));
        }
        assert!(of(&"x".repeat(256)).is_err() && of(&"x".repeat(255)).is_ok());
        assert!(of(&"x/".repeat(2_100)).is_err());
        for (text, bytes) in [
            ("a\nb", b"a\nb".as_slice()),
            ("...", b"..."),
            ("a\\..\\b", b"a\\..\\b"),
            ("x%80", b"x\x80"),
            ("\u{1b}[2J", b"\x1b[2J"),
            ("-rf", b"-rf"),
            // What would be `/` or `.` is not decoded.
            ("%2F%2E%2E", b"%2F%2E%2E"),
        ] {
            let made = of(text).unwrap();
            assert_eq!(made[0].path.as_os_str().as_encoded_bytes(), bytes);
        }
    }

    #[test]
    fn several_tasks_have_a_directory_each() {
        let made = destinations(&[file("a", "100755", None)], 3).unwrap();
        assert_eq!(made[0].path, Path::new("t/a"));
        assert_eq!(made[0].kind, DestinationKind::File { executable: true });
    }

    #[test]
    fn a_link_is_made_where_it_stays_inside() {
        let link = |path: &str, target: &str| {
            let made = destinations(&[file(path, "120000", Some(target))], 1).unwrap();
            made[0].kind == DestinationKind::Link { target: target.into() }
        };
        for (path, target) in [
            ("a", "b"),
            ("a", "./b//c"),
            ("d/a", "../b"),
            ("d/e/a", "../../b/c"),
            ("d/a", ".."),
            ("a", "b\n"),
        ] {
            assert!(link(path, target), "{path} -> {target}");
        }
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("d/a", "../../b"),
            ("a", ""),
            // Through another link, which may lead up, this would be outside.
            ("a", "d/up/.."),
            ("a", "d/up/../../.."),
        ] {
            assert!(!link(path, target), "{path} -> {target}");
        }
    }

    #[test]
    fn two_files_never_have_one_place() {
        let all = |paths: [&str; 2]| {
            destinations(&paths.map(|path| file(path, "100644", None)), 1).map(|all| all.len())
        };
        assert_eq!(all(["a", "b"]), Ok(2));
        assert_eq!(all(["a", "a"]), Err(DestinationFault::Taken("a".into())));
        assert_eq!(all(["a/b", "a"]), Err(DestinationFault::Taken("a".into())));
        let link = [file("a", "120000", Some("b")), file("a/x", "100644", None)];
        assert!(destinations(&link, 1).is_err(), "nothing is written through a link of the run");
    }
}
