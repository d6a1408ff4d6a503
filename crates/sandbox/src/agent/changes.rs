//! What was changed in a directory that a sandbox saw copy-on-write: the upper layer of its overlay,
//! read on the host, or through the agent of a machine, which has its own layer.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::{MAX_COLLECT_BYTES, MAX_COLLECT_FILES};

use cofferdam_guest::name;
use cofferdam_guest::tree::NodeKind;

use crate::agent::{Agent, AgentError, Collected};

/// Directories below each other: the layer is memory, so this is only reached by who tries.
const MAX_DEPTH: usize = 128;
/// Directories of a machine that are asked for: the agent may have been taken over and know no end.
const MAX_DIRS: usize = 10_000;
/// Of a refusal: nothing is there.
const NOT_FOUND: u16 = 404;

/// Why changes cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// More than are kept, and a part would look like the whole.
    #[error("more than {MAX_COLLECT_FILES} files or {MAX_COLLECT_BYTES} bytes were changed")]
    Many,
    /// Not readable.
    #[error("{path:?} cannot be read")]
    Read {
        /// Path that could not be read.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// A machine's agent did not tell them.
    #[error("the agent did not report the changed files")]
    Agent(#[from] AgentError),
    /// Or took too long.
    #[error("the agent did not report the changed files in time")]
    Silent,
}

/// Where an upper layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    /// On the host.
    Host(PathBuf),
    /// In a machine, shown at this path.
    Inside(String),
}

/// Changes, in the order of their paths, which are written as [`cofferdam_guest::name`] writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Regular files that are new or other than before.
    pub written: Vec<Collected>,
    /// Paths that are gone.
    pub removed: Vec<String>,
    /// Links and other things that are new: by their paths, since they are never followed.
    pub special: Vec<String>,
}

impl Changes {
    /// Whether one more may be told.
    fn has_room(&self) -> Result<(), ChangesError> {
        let count = self.written.len() + self.removed.len() + self.special.len();
        if count > MAX_COLLECT_FILES { Err(ChangesError::Many) } else { Ok(()) }
    }
}

/// The changes that lie in an upper layer.
pub(crate) fn below(upper: &Path) -> Result<Changes, ChangesError> {
    let mut changes = Changes::default();
    let mut room = MAX_COLLECT_BYTES;
    walk(upper, upper, 0, &mut changes, &mut room)?;
    Ok(changes)
}

fn walk(
    root: &Path,
    dir: &Path,
    depth: usize,
    changes: &mut Changes,
    room: &mut u64,
) -> Result<(), ChangesError> {
    let unread = |path: &Path, source| ChangesError::Read { path: path.to_owned(), source };
    if depth > MAX_DEPTH {
        return Err(ChangesError::Many);
    }
    let listed = fs::read_dir(dir).map_err(|source| unread(dir, source))?;
    let mut paths = Vec::new();
    for entry in listed {
        paths.push(entry.map_err(|source| unread(dir, source))?.path());
        if paths.len() > MAX_COLLECT_FILES {
            return Err(ChangesError::Many);
        }
    }
    paths.sort();
    for path in paths {
        let found = fs::symlink_metadata(&path).map_err(|source| unread(&path, source))?;
        let name = path.strip_prefix(root).unwrap_or(&path);
        let name = name::encode(name.as_os_str().as_bytes());
        let kind = found.file_type();
        changes.has_room()?;
        if kind.is_dir() {
            walk(root, &path, depth + 1, changes, room)?;
        } else if kind.is_char_device() && found.rdev() == 0 {
            // How an overlay says that something below is gone.
            changes.removed.push(name);
        } else if kind.is_file() {
            let bytes = read(&path, *room).map_err(|source| unread(&path, source))?;
            let bytes = bytes.ok_or(ChangesError::Many)?;
            *room -= u64::try_from(bytes.len()).unwrap_or(*room).min(*room);
            changes.written.push(Collected { path: name, bytes });
        } else {
            changes.special.push(name);
        }
    }
    Ok(())
}

/// The same of a machine, where the layer is shown at a path, by its agent; the bounds hold whatever
/// that says.
pub(crate) async fn inside(
    agent: &Agent,
    target: &str,
    shown: &str,
) -> Result<Changes, ChangesError> {
    let most = u64::try_from(MAX_COLLECT_FILES).unwrap_or(u64::MAX);
    let mut changes = Changes::default();
    let (mut room, mut dirs) = (MAX_COLLECT_BYTES, 0);
    let mut open = vec![(String::new(), 0)];
    while let Some((dir, depth)) = open.pop() {
        dirs += 1;
        if depth > MAX_DEPTH || dirs > MAX_DIRS {
            return Err(ChangesError::Many);
        }
        for entry in agent.list(&format!("{shown}{dir}"), most).await? {
            changes.has_room()?;
            let at = format!("{dir}/{}", entry.name);
            let path = at.trim_start_matches('/');
            let path = match entry.mangled {
                // Its directories are plain: what is below another kind of name is not looked at.
                true => format!("{}{}", name::encode(dir_of(path).as_bytes()), entry.name),
                false => name::encode(path.as_bytes()),
            };
            match entry.kind {
                NodeKind::Link => changes.special.push(path),
                _ if entry.mangled => changes.special.push(path),
                NodeKind::Dir => open.push((at, depth + 1)),
                NodeKind::File if entry.size > room => return Err(ChangesError::Many),
                NodeKind::File => {
                    let bytes = agent.read(&format!("{shown}{at}"), room).await?;
                    room -= u64::try_from(bytes.len()).unwrap_or(room).min(room);
                    changes.written.push(Collected { path, bytes });
                }
                // A device that hides what is below, where nothing is seen; else a socket or pipe.
                NodeKind::Other => match agent.stat(&format!("{target}{at}")).await {
                    Ok(_) => changes.special.push(path),
                    Err(AgentError::Refused { status: NOT_FOUND, .. }) => {
                        changes.removed.push(path);
                    }
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }
    changes.written.sort_by(|a, b| a.path.cmp(&b.path));
    changes.removed.sort_unstable();
    changes.special.sort_unstable();
    Ok(changes)
}

/// A path's beginning up to its last name.
fn dir_of(path: &str) -> &str {
    path.rfind('/').and_then(|end| path.get(..=end)).unwrap_or_default()
}

/// `None`: it is larger than the room.
fn read(path: &Path, room: u64) -> io::Result<Option<Vec<u8>>> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    file.take(room.saturating_add(1)).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|count| count <= room);
    Ok(fits.then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_files_by_their_paths_and_links_are_only_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/b.txt"), "b").unwrap();
        fs::write(dir.path().join("a.txt"), "a").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let odd = std::ffi::OsStr::from_bytes(b"sub/\xff\n");
        fs::write(dir.path().join(odd), "odd").unwrap();
        fs::write(dir.path().join("sub/%FF\n"), "plain").unwrap();
        let changes = below(dir.path()).unwrap();
        let names: Vec<&str> = changes.written.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["a.txt", "sub/%25FF\n", "sub/b.txt", "sub/%FF\n"]);
        let encoded: Vec<bool> = changes.written.iter().map(Collected::is_encoded).collect();
        assert_eq!(encoded, [false, true, false, true]);
        assert_eq!(changes.special, ["link"]);
        assert!(changes.removed.is_empty());
    }
}
