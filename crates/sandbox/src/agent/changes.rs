//! What was changed in a directory that a sandbox saw copy-on-write: the upper layer of its overlay,
//! read on the host, or through the agent of a machine, which has its own layer.
//!
//! Git's own directory is left out, and what the directory's `.gitignore` names is listed and not kept. Beyond the
//! bounds of a collection what fits is kept and the rest is listed, so that one large directory loses no edit.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::artifact::ArtifactMode;
use cofferdam_contracts::sandbox::{MAX_COLLECT_BYTES, MAX_COLLECT_FILES};
use cofferdam_guest::name;
use cofferdam_guest::tree::NodeKind;
use rustix::fs::FileType;

use super::gitignore::{GitIgnore, is_gits};
use crate::agent::{Agent, AgentError, CollectedFile};
use crate::host::tenant_tree::{TenantDir, TenantTree, is_whiteout, kind_of, size_of};

/// Directories below each other: the layer is memory, so this is only reached by who tries.
const MAX_DEPTH: usize = 128;
/// Entries of a layer that are looked at.
const MAX_ENTRIES: u64 = 500_000;
/// Comparisons of its paths with `.gitignore`, some seconds of a thread that may block; of a machine's, on one that may not.
const MAX_STEPS: u64 = 2_000_000_000;
const MAX_STEPS_INSIDE: u64 = 200_000_000;
/// Directories of a machine that are asked for: the agent may have been taken over and know no end.
const MAX_DIRS: usize = 10_000;
/// Paths that are listed without their content; further ones are counted.
const MAX_LISTED: usize = 2_000;
/// Of a refusal: nothing is there.
const NOT_FOUND: u16 = 404;
/// The owner's right to execute.
const EXECUTABLE: u32 = 0o100;

/// Why changes cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// A path of the writable layer cannot be read.
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
pub(crate) enum UpperLocation {
    /// On the host.
    Host {
        /// What was written.
        upper: PathBuf,
        /// All of it, as the sandbox sees it.
        merged: PathBuf,
    },
    /// In a machine, shown at this path.
    Inside(String),
}

/// Changes, in the order of their paths, which are written as [`cofferdam_guest::name`] writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Regular files that are new or other than before.
    pub written: Vec<CollectedFile>,
    /// Those of `written` that their owner may execute.
    pub executable: Vec<String>,
    /// Paths that are gone.
    pub removed: Vec<String>,
    /// Links and other things that are new: by their paths, since they are never followed.
    pub special: Vec<String>,
    /// Where the links of `special` lead, as far as that is known: a machine's agent does not tell it.
    pub links: BTreeMap<String, String>,
    /// What `.gitignore` names: of a directory its path alone.
    pub ignored: Vec<String>,
    /// Changed files that were not kept: they did not fit.
    pub left_out: Vec<String>,
    /// Changes beyond the bounds of these lists.
    pub unlisted: u64,
}

impl Changes {
    /// Takes a file if it fits; otherwise its path alone.
    fn fits(&mut self, path: &str, size: u64, room: &mut u64) -> bool {
        if self.written.len() < MAX_COLLECT_FILES && size <= *room {
            *room -= size;
            return true;
        }
        self.list(|changes| &mut changes.left_out, path.to_owned());
        false
    }

    fn write(&mut self, path: String, bytes: Vec<u8>, mode: u32) {
        let mode = match mode & EXECUTABLE {
            0 => ArtifactMode::File,
            _ => {
                self.executable.push(path.clone());
                ArtifactMode::Executable
            }
        };
        self.written.push(CollectedFile { path, bytes, mode });
    }

    fn list(&mut self, to: fn(&mut Self) -> &mut Vec<String>, path: String) {
        let lists = [&self.removed, &self.special, &self.ignored, &self.left_out];
        if lists.iter().map(|list| list.len()).sum::<usize>() < MAX_LISTED {
            to(self).push(path);
        } else {
            self.unlisted += 1;
        }
    }

    fn remove(&mut self, path: String) {
        self.list(|changes| &mut changes.removed, path);
    }

    fn note(&mut self, path: String) {
        self.list(|changes| &mut changes.special, path);
    }

    /// Whether git keeps it, so that it is an edit. Without steps left for its rules that is not known: it is left out.
    fn is_edit(
        &mut self,
        path: &str,
        is_dir: bool,
        ignored: &GitIgnore,
        steps: &Cell<u64>,
    ) -> bool {
        if is_gits(path) {
            return false;
        }
        match ignored.has(path, is_dir, steps) {
            Some(false) => return true,
            Some(true) => self.list(|changes| &mut changes.ignored, path.to_owned()),
            None => self.list(|changes| &mut changes.left_out, path.to_owned()),
        }
        false
    }

    fn sorted(mut self) -> Self {
        self.written.sort_by_cached_key(|file| name::decode(&file.path));
        let lists = [
            &mut self.executable,
            &mut self.removed,
            &mut self.special,
            &mut self.ignored,
            &mut self.left_out,
        ];
        lists.into_iter().for_each(|list| list.sort_by_cached_key(|path| name::decode(path)));
        self
    }
}

/// Where the kernel notes what a renamed directory covers of the layer below. No sandbox can write it.
const MOVED: &str = "trusted.overlay.redirect";

/// The changes that lie in an upper layer. Shallow directories come first: what does not fit lies deep. What runs there may
/// change it meanwhile, so it is read through descriptors. Of a directory of the layer below that was renamed the upper layer
/// has only what changed in it: all of it is read as the sandbox sees it, in `merged`.
pub(crate) fn below(
    upper: &Path,
    merged: &Path,
    ignored: &GitIgnore,
) -> Result<Changes, ChangesError> {
    let unread = |path: &Path, source| ChangesError::Read { path: path.to_owned(), source };
    let tree = TenantTree::open(upper).map_err(|source| unread(upper, source))?;
    let whole = TenantTree::open(merged).map_err(|source| unread(merged, source))?;
    let mut look = LayerLook {
        changes: Changes::default(),
        ignored,
        room: MAX_COLLECT_BYTES,
        steps: Cell::new(MAX_STEPS),
    };
    let (mut level, mut left) = (vec![(PathBuf::new(), false)], MAX_ENTRIES);
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for (path, is_moved) in level {
            let from = if is_moved { &whole } else { &tree };
            let dir = match from.dir(&path) {
                // Deeper than a path says.
                Err(error) if error.kind() == io::ErrorKind::InvalidFilename => None,
                found => Some(found.map_err(|source| unread(&path, source))?),
            };
            let names = dir.as_ref().map(|dir| dir.names(left)).transpose();
            let names = names.map_err(|source| unread(&path, source))?.flatten();
            let (Some(dir), Some(names)) = (dir, names) else {
                look.changes.unlisted = look.changes.unlisted.saturating_add(1);
                continue;
            };
            left = left.saturating_sub(u64::try_from(names.len()).unwrap_or(u64::MAX));
            for name in names {
                let inner = path.join(&name);
                let found = look.one(&dir, &name, &inner);
                if found.map_err(|source| unread(&inner, source))? {
                    let is_moved = is_moved || dir.has_attribute(&name, MOVED);
                    next.push((inner, is_moved));
                }
            }
        }
        if next.is_empty() {
            return Ok(look.changes.sorted());
        }
        level = next;
    }
    look.changes.unlisted = look.changes.unlisted.saturating_add(1);
    Ok(look.changes.sorted())
}

/// A look at a layer of this host.
struct LayerLook<'a> {
    changes: Changes,
    ignored: &'a GitIgnore,
    /// Bytes that may still be kept.
    room: u64,
    /// Comparisons with the rules that are left.
    steps: Cell<u64>,
}

impl LayerLook<'_> {
    /// One entry of an upper layer: whether it is a directory to look into.
    fn one(&mut self, dir: &TenantDir, name: &OsStr, path: &Path) -> io::Result<bool> {
        let found = dir.stat(name)?;
        let path = name::encode(path.as_os_str().as_bytes());
        let kind = kind_of(&found);
        let is_dir = kind == FileType::Directory;
        if !self.changes.is_edit(&path, is_dir, self.ignored, &self.steps) {
            return Ok(false);
        }
        if is_dir {
            return Ok(true);
        }
        let size = size_of(&found);
        if is_whiteout(&found) {
            self.changes.remove(path);
        } else if kind == FileType::RegularFile {
            if self.changes.fits(&path, size, &mut self.room) {
                let mut bytes = Vec::new();
                // At most as many as it had when it was looked at.
                dir.file(name, &found)?.take(size).read_to_end(&mut bytes)?;
                self.changes.write(path, bytes, found.st_mode);
            }
        } else {
            if kind == FileType::Symlink && self.changes.links.len() < MAX_LISTED {
                let target = name::encode(dir.link(name)?.as_os_str().as_bytes());
                self.changes.links.insert(path.clone(), target);
            }
            self.changes.note(path);
        }
        Ok(false)
    }
}

/// The same of a machine, where the layer is shown at a path, by its agent; the bounds hold whatever
/// that says.
pub(crate) async fn inside(
    agent: &Agent,
    target: &str,
    shown: &str,
    ignored: &GitIgnore,
) -> Result<Changes, ChangesError> {
    let most = u64::try_from(MAX_LISTED).unwrap_or(u64::MAX);
    let mut changes = Changes::default();
    let (mut room, mut dirs, steps) = (MAX_COLLECT_BYTES, 0, Cell::new(MAX_STEPS_INSIDE));
    let mut open = std::collections::VecDeque::from([(String::new(), 0)]);
    while let Some((dir, depth)) = open.pop_front() {
        dirs += 1;
        if depth > MAX_DEPTH || dirs > MAX_DIRS {
            changes.unlisted = changes.unlisted.saturating_add(1);
            break;
        }
        for entry in agent.files().list(&format!("{shown}{dir}"), most).await? {
            let at = format!("{dir}/{}", entry.name);
            let path = at.trim_start_matches('/');
            let path = match entry.mangled {
                // Its directories are plain: what is below another kind of name is not looked at.
                true => format!("{}{}", name::encode(dir_of(path).as_bytes()), entry.name),
                false => name::encode(path.as_bytes()),
            };
            if !changes.is_edit(&path, entry.kind == NodeKind::Dir, ignored, &steps) {
                continue;
            }
            match entry.kind {
                NodeKind::Link => changes.note(path),
                _ if entry.mangled => changes.note(path),
                NodeKind::Dir => open.push_back((at, depth + 1)),
                NodeKind::File => {
                    if changes.fits(&path, entry.size, &mut room) {
                        let bytes = agent.files().read(&format!("{shown}{at}"), entry.size).await?;
                        changes.write(path, bytes, entry.mode);
                    }
                }
                // A device that hides what is below, where nothing is seen; else a socket or pipe.
                NodeKind::Other => match agent.files().stat(&format!("{target}{at}")).await {
                    Ok(_) => changes.note(path),
                    Err(AgentError::Refused { status: NOT_FOUND, .. }) => changes.remove(path),
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }
    Ok(changes.sorted())
}

/// A path's beginning up to its last name.
fn dir_of(path: &str) -> &str {
    path.rfind('/').and_then(|end| path.get(..=end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

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
        let changes = below(dir.path(), dir.path(), &GitIgnore::default()).unwrap();
        let names: Vec<&str> = changes.written.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["a.txt", "sub/%25FF\n", "sub/b.txt", "sub/%FF\n"]);
        let encoded: Vec<bool> = changes.written.iter().map(CollectedFile::is_encoded).collect();
        assert_eq!(encoded, [false, true, false, true]);
        assert_eq!(changes.special, ["link"]);
        assert_eq!(changes.links["link"], "/etc/passwd");
        assert!(changes.removed.is_empty());
    }

    #[test]
    fn a3f2_a_layer_that_changes_while_it_is_read_shows_nothing_of_the_host() {
        let outer = tempfile::tempdir().unwrap();
        let (upper, host) = (outer.path().join("upper"), outer.path().join("host"));
        fs::create_dir_all(upper.join("a")).unwrap();
        fs::create_dir(&host).unwrap();
        fs::write(host.join("file"), "of the host").unwrap();
        fs::write(upper.join("a/file"), "of the tenant").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    fs::rename(upper.join("a"), outer.path().join("was")).unwrap();
                    std::os::unix::fs::symlink(&host, upper.join("a")).unwrap();
                    fs::remove_file(upper.join("a")).unwrap();
                    fs::rename(outer.path().join("was"), upper.join("a")).unwrap();
                }
            });
            let looks =
                (0..3_000).filter_map(|_| below(&upper, &upper, &GitIgnore::default()).ok());
            let shown = looks.flat_map(|changes| changes.written);
            let shown = shown.map(|file| file.bytes).collect::<std::collections::BTreeSet<_>>();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(shown, [b"of the tenant".to_vec()].into());
        });
    }

    #[test]
    fn d_r9_gits_own_files_and_ignored_ones_are_no_edits_and_the_executable_bit_is_told() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".git/objects/aa", "node_modules/x/index.js", "src/main.rs", "run.sh"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.path().join("run.sh"), mode).unwrap();
        let changes = below(dir.path(), dir.path(), &GitIgnore::parse("node_modules/\n")).unwrap();
        let names: Vec<&str> = changes.written.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["run.sh", "src/main.rs"]);
        assert_eq!(changes.executable, ["run.sh"]);
        assert_eq!(changes.ignored, ["node_modules"]);
    }

    #[test]
    fn d_r9_beyond_the_bound_what_fits_is_kept_and_the_rest_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("deep/er")).unwrap();
        for n in 0..MAX_COLLECT_FILES + 5 {
            fs::write(dir.path().join(format!("deep/er/{n:05}")), "x").unwrap();
        }
        fs::write(dir.path().join("zz-edit.txt"), "the edit").unwrap();
        let changes = below(dir.path(), dir.path(), &GitIgnore::default()).unwrap();
        assert_eq!(changes.written.len(), MAX_COLLECT_FILES);
        assert!(changes.written.iter().any(|file| file.path == "zz-edit.txt"));
        assert_eq!((changes.left_out.len(), changes.unlisted), (6, 0));
        let mut full = Changes::default();
        for n in 0..MAX_LISTED + 3 {
            full.remove(n.to_string());
        }
        assert_eq!((full.removed.len(), full.unlisted), (MAX_LISTED, 3));
    }
}
