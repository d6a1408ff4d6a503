//! A directory of this host as a client sends it: what git ignores is left out, and every file is named by its digest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;
use cofferdam_contracts::canonical::{digest_bytes, digest_of};
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::tree_manifest::{self, ManifestBounds, ManifestEntry, ManifestKind};
use ignore::WalkBuilder;
use rustix::fs::{CWD, Mode, OFlags, openat};
use sha2::{Digest as _, Sha256};

use super::exit::Misuse;
use super::file_transfer::byte_count;

/// Bytes that are read at once.
const BUFFER: usize = 256 * 1024;
/// Threads that read one directory.
const MAX_THREADS: usize = 8;
/// What git keeps for itself, which may have credentials and is larger than what it is of.
const OWN: &str = ".git";

/// A directory that was read.
#[derive(Debug)]
pub(crate) struct LocalTree {
    /// Digest of the manifest.
    pub tree: Digest,
    pub manifest: Vec<u8>,
    /// Files, directories and links.
    pub entries: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// Sockets, pipes and devices, which are not sent.
    pub left_out: usize,
    files: BTreeMap<Digest, LocalFile>,
}

/// A file as it was when its digest was taken.
#[derive(Debug, Clone)]
struct LocalFile {
    path: PathBuf,
    version: FileVersion,
}

/// What changes with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What is not sent, whatever the server says.
#[derive(Debug)]
pub(crate) enum LocalFault {
    /// Its digest was taken of other bytes.
    Changed(PathBuf),
    /// It is gone, or may not be read.
    Unreadable(PathBuf, io::Error),
}

impl fmt::Display for LocalFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(path) => write!(
                f,
                "{path:?} changed while it was sent: run the command again, or leave the file out with a line in .gitignore"
            ),
            Self::Unreadable(path, error) => {
                write!(f, "cannot read {path:?}: {error}; a line in .gitignore leaves it out")
            }
        }
    }
}

impl std::error::Error for LocalFault {}

/// How far a directory is read, for who waits.
#[derive(Debug, Default)]
pub(crate) struct ReadCount {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
}

/// What is found before a file is read.
struct LocalEntry {
    path: Vec<u8>,
    mode: u32,
    kind: LocalKind,
}

enum LocalKind {
    Directory,
    File(u64),
    Link(Vec<u8>),
}

impl LocalTree {
    /// Reads a directory whole, with all processors. Takes as long as reading its files.
    ///
    /// # Errors
    /// It is beyond the bounds, cannot be read, or has a link that leads out.
    pub(crate) fn read(
        dir: &Path,
        bounds: ManifestBounds,
        count: &ReadCount,
    ) -> anyhow::Result<Self> {
        let (found, left_out) = survey(dir, bounds)?;
        let mut hashed = hash_all(dir, &found, count)?;
        let mut manifest = tree_manifest::begin();
        let (mut files, mut bytes) = (BTreeMap::new(), 0_u64);
        for (place, entry) in found.iter().enumerate() {
            let kind = match &entry.kind {
                LocalKind::Directory => ManifestKind::Directory,
                LocalKind::Link(target) => ManifestKind::Link(target),
                LocalKind::File(_) => {
                    let (sha256, file) = hashed.remove(&place).context("a file was not read")?;
                    let size = file.version.size;
                    bytes = bytes.saturating_add(size);
                    files.insert(sha256.clone(), file);
                    ManifestKind::File { size, sha256 }
                }
            };
            let entry = ManifestEntry { path: &entry.path, mode: entry.mode, kind };
            tree_manifest::push(&mut manifest, &entry);
        }
        // What the server would refuse is refused here, by its path.
        if let Err(fault) = tree_manifest::parse(&manifest, bounds) {
            let entry = fault.entry.checked_sub(1).and_then(|index| found.get(index));
            let path = entry.map(|entry| OsStr::from_bytes(&entry.path).to_owned());
            let path = dir.join(path.unwrap_or_default());
            return Err(Misuse(format!(
                "{path:?}: {}; a line in .gitignore leaves it out",
                fault.why
            ))
            .into());
        }
        let (tree, entries) = (digest_bytes(&manifest), found.len());
        Ok(Self { tree, manifest, entries, bytes, left_out, files })
    }

    /// Bytes of a file from a position on, at most so many; fewer only at its end. Blocks.
    ///
    /// # Errors
    /// It is not what it was.
    pub(crate) fn part(&self, sha256: &Digest, from: u64, most: usize) -> anyhow::Result<Vec<u8>> {
        let file = self
            .files
            .get(sha256)
            .context("the server lacks a file that the directory does not have")?;
        let failed = |error| LocalFault::Unreadable(file.path.clone(), error);
        let mut opened = open(&file.path).map_err(failed)?;
        opened.seek(SeekFrom::Start(from)).map_err(failed)?;
        let mut bytes = Vec::new();
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        (&opened).take(most).read_to_end(&mut bytes).map_err(failed)?;
        match version(&opened).map_err(failed)? == file.version {
            true => Ok(bytes),
            false => Err(LocalFault::Changed(file.path.clone()).into()),
        }
    }

    /// A file whose bytes the server found to be others.
    pub(crate) fn changed(&self, sha256: &Digest) -> Option<LocalFault> {
        self.files.get(sha256).map(|file| LocalFault::Changed(file.path.clone()))
    }
}

/// Digests of all files, by their places.
fn hash_all(
    dir: &Path,
    found: &[LocalEntry],
    count: &ReadCount,
) -> Result<BTreeMap<usize, (Digest, LocalFile)>, LocalFault> {
    let next = AtomicUsize::new(0);
    let hashes = || {
        let (mut buffer, mut hashed) = (vec![0; BUFFER], Vec::new());
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = found.get(place) else { return Ok(hashed) };
            if !matches!(entry.kind, LocalKind::File(_)) {
                continue;
            }
            let path = dir.join(OsStr::from_bytes(&entry.path));
            match open(&path).and_then(|file| hash(file, &mut buffer, count)) {
                Ok((sha256, version)) => {
                    hashed.push((place, (sha256, LocalFile { path, version })));
                }
                Err(error) => {
                    // The others stop, too.
                    next.store(found.len(), Ordering::Relaxed);
                    return Err(LocalFault::Unreadable(path, error));
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get().min(MAX_THREADS));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(hashes)).collect();
        let mut all = BTreeMap::new();
        for thread in threads {
            let lost = |_| {
                Err(LocalFault::Unreadable(dir.to_owned(), io::Error::other("a thread was lost")))
            };
            all.extend(thread.join().unwrap_or_else(lost)?);
        }
        Ok(all)
    })
}

/// Everything that is sent, in the order of the bytes of the paths.
fn survey(dir: &Path, bounds: ManifestBounds) -> anyhow::Result<(Vec<LocalEntry>, usize)> {
    // Outside a repository only the directory's own files say what is ignored: those of a home directory may ignore everything.
    let is_in_git = dir.ancestors().any(|above| above.join(OWN).exists());
    let mut walk = WalkBuilder::new(dir);
    walk.standard_filters(false).git_ignore(true).git_exclude(true);
    walk.parents(is_in_git).require_git(is_in_git).filter_entry(|entry| entry.file_name() != OWN);
    let (mut found, mut left_out, mut bytes) = (Vec::new(), 0, 0_u64);
    for entry in walk.build() {
        let entry = entry.context("the directory cannot be read")?;
        let stat = entry.metadata().context("the directory cannot be read")?;
        let path = entry.path().strip_prefix(dir)?.as_os_str().as_bytes().to_vec();
        let mode = stat.mode() & 0o777;
        let kind = stat.file_type();
        let found_kind = match () {
            () if kind.is_dir() => LocalKind::Directory,
            () if kind.is_file() => LocalKind::File(stat.len()),
            () if kind.is_symlink() => {
                LocalKind::Link(std::fs::read_link(entry.path())?.into_os_string().into_vec())
            }
            () => {
                left_out += 1;
                continue;
            }
        };
        let mode = if kind.is_symlink() { 0o777 } else { mode };
        if let LocalKind::File(size) = found_kind {
            bytes = bytes.saturating_add(size);
        }
        found.push(LocalEntry { path, mode, kind: found_kind });
        check(dir, found.len(), bytes, bounds)?;
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok((found, left_out))
}

fn check(dir: &Path, entries: usize, bytes: u64, bounds: ManifestBounds) -> Result<(), Misuse> {
    let what = match () {
        () if entries > bounds.entries => {
            format!(
                "more than {} files, directories and links (`trees.max_entries`)",
                bounds.entries
            )
        }
        () if bytes > bounds.bytes => {
            format!("more than {} (`trees.max_mb`)", byte_count(bounds.bytes))
        }
        () => return Ok(()),
    };
    Err(Misuse(format!(
        "{dir:?} has {what}: leave out what is not needed with .gitignore, or name a directory below it"
    )))
}

/// A file that is not reached through a link.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

fn hash(mut file: File, buffer: &mut [u8], read: &ReadCount) -> io::Result<(Digest, FileVersion)> {
    let (before, mut hasher, mut size) = (version(&file)?, Sha256::new(), 0_u64);
    loop {
        let count = file.read(buffer)?;
        let bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        size = size.saturating_add(count);
        read.bytes.fetch_add(count, Ordering::Relaxed);
    }
    read.files.fetch_add(1, Ordering::Relaxed);
    // Of one that grows meanwhile, the bytes that were read; it is found to be another when it is sent.
    Ok((digest_of(hasher.finalize().as_slice()), FileVersion { size, ..before }))
}

fn version(file: &File) -> io::Result<FileVersion> {
    let stat = file.metadata()?;
    Ok(FileVersion {
        device: stat.dev(),
        inode: stat.ino(),
        size: stat.len(),
        modified: (stat.mtime(), stat.mtime_nsec()),
        changed: (stat.ctime(), stat.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const BOUNDS: ManifestBounds = ManifestBounds { entries: 20, bytes: 1_000 };

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(dir: &Path, bounds: ManifestBounds) -> anyhow::Result<LocalTree> {
        LocalTree::read(dir, bounds, &ReadCount::default())
    }

    fn names(tree: &LocalTree) -> Vec<String> {
        let entries = tree_manifest::parse(&tree.manifest, BOUNDS).unwrap();
        entries.iter().map(|entry| String::from_utf8_lossy(entry.path).into_owned()).collect()
    }

    #[test]
    fn what_git_ignores_and_what_is_its_own_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            (".gitignore", "target/\n*.log\n!keep.log\n"),
            (".hidden", ""),
            ("a.log", ""),
            ("keep.log", ""),
            ("src/a\nb", "one"),
            ("src/.gitignore", "secret\n"),
            ("src/secret", "no"),
            ("target/big", "no"),
            (".git/config", "no"),
            ("run", "two"),
        ] {
            write(dir.path(), name, text);
        }
        fs::create_dir(dir.path().join("empty")).unwrap();
        fs::set_permissions(dir.path().join("run"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("src/../run", dir.path().join("link")).unwrap();
        let tree = read(dir.path(), BOUNDS).unwrap();
        let wanted = [
            "",
            ".gitignore",
            ".hidden",
            "empty",
            "keep.log",
            "link",
            "run",
            "src",
            "src/.gitignore",
            "src/a\nb",
        ];
        assert_eq!(names(&tree), wanted);
        assert_eq!((tree.entries, tree.left_out), (10, 0));
        let one = digest_bytes(b"one");
        assert_eq!(tree.part(&one, 1, 10).unwrap(), b"ne");
        let again = read(dir.path(), BOUNDS).unwrap();
        assert_eq!(again.tree, tree.tree);
    }

    #[test]
    fn a_directory_beyond_a_bound_or_with_a_link_out_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a", &"x".repeat(600));
        write(dir.path(), "b", &"y".repeat(600));
        let refused = |bounds| read(dir.path(), bounds).unwrap_err().to_string();
        assert!(refused(BOUNDS).contains("trees.max_mb"), "{}", refused(BOUNDS));
        let few = ManifestBounds { entries: 2, bytes: 10_000 };
        assert!(refused(few).contains("trees.max_entries"), "{}", refused(few));
        symlink("/etc/passwd", dir.path().join("out")).unwrap();
        let wide = ManifestBounds { entries: 20, bytes: 10_000 };
        let why = refused(wide);
        assert!(why.contains("/out\"") && why.contains("absolute"), "{why}");
    }

    #[test]
    fn a_file_that_changed_since_it_was_read_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a", "one");
        write(dir.path(), "b", "two");
        let count = ReadCount::default();
        let tree = LocalTree::read(dir.path(), BOUNDS, &count).unwrap();
        let counted = (count.files.load(Ordering::Relaxed), count.bytes.load(Ordering::Relaxed));
        assert_eq!(counted, (2, 6));
        let (one, two) = (digest_bytes(b"one"), digest_bytes(b"two"));
        assert_eq!(tree.part(&one, 0, 9).unwrap(), b"one");
        // As many bytes, and the time set back: the inode's own time tells.
        let before = fs::metadata(dir.path().join("a")).unwrap().modified().unwrap();
        let path = dir.path().join("a");
        let was = version(&open(&path).unwrap()).unwrap();
        // The clock of the file system may stand for some milliseconds.
        while version(&open(&path).unwrap()).unwrap() == was {
            write(dir.path(), "a", "ONE");
            File::open(&path).unwrap().set_modified(before).unwrap();
        }
        let why = tree.part(&one, 0, 9).unwrap_err().to_string();
        assert!(why.contains("/a\" changed") && why.contains("run the command again"), "{why}");
        fs::remove_file(dir.path().join("b")).unwrap();
        assert!(tree.part(&two, 0, 9).unwrap_err().is::<LocalFault>());
        assert!(tree.changed(&two).unwrap().to_string().contains("/b\" changed"));
    }
}
