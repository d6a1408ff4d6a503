//! Copies of a state directory: made, found again, given.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use cofferdam_ambient::random;
use cofferdam_contracts::id::Digest;
use cofferdam_guest::removal::remove_tree;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

use super::allowance::DiskAllowance;
use super::bounds::TreeBounds;
use super::entry::{Entry, EntryKind, Sha256, digests};
use super::error::TreeError;
use super::fill::{FileRead, TreeDraft, TreeReader, on_all};
use super::index::{self, FileRecord, TreeIndex, boot};
use super::lock;
use super::share::{DiskUse, TreeShare};
use super::times;
use super::walk::walk;
use crate::host::hostpath::{HostHandle, HostPath};

/// Files that nothing is known of are read before anything is copied where they are fewer bytes than this: most often the tree is one
/// that is there already.
pub(super) const MAX_READ_FIRST: u64 = 64 * 1024 * 1024;
/// Bytes that a copy leaves free on the file system of the state directory.
pub(super) const ROOM_LEFT: u64 = 1024 * 1024 * 1024;

/// A directory, or one file, whose content is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundTree {
    /// SHA-256 of its content: paths, kinds, permissions, bytes, targets of links.
    pub digest: Digest,
    /// Name of the copy: of the content with owners and times.
    pub copy: Digest,
    /// Files, directories and links, itself included.
    pub entries: usize,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Copies below `<state>/trees`.
#[derive(Debug, Clone)]
pub struct TreeStore {
    pub(super) dir: PathBuf,
}

/// Entries with the digests of their files, as far as they are known.
struct Survey {
    entries: Vec<Entry>,
    files: Vec<Option<FileRead>>,
    /// What the last copy has of them.
    known: Vec<Option<FileRecord>>,
}

impl TreeStore {
    /// The copies of a state directory. Looks at nothing.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("trees") }
    }

    /// Takes the content of what is open, and holds it as one of the tenant's copies. Reads every byte that may have changed since it
    /// was bound last. Takes seconds: call it beside the runtime's own threads.
    ///
    /// # Errors
    /// It is larger than `bounds`, does not fit into the share, or cannot be read or copied.
    pub fn bind(
        &self,
        opened: &HostHandle,
        bounds: TreeBounds,
        share: &TreeShare,
    ) -> Result<BoundTree, TreeError> {
        let failed = |source| TreeError::Io { path: self.dir.clone(), source };
        let indexes = self.dir.join("index");
        DirBuilder::new().recursive(true).mode(0o700).create(&indexes).map_err(failed)?;
        let _alone = share.alone().map_err(failed)?;
        let at = index::place(&indexes, opened).map_err(failed)?;
        let index = TreeIndex::read(&at);
        let reader = TreeReader {
            source: opened,
            is_local: times::tell_of_changes(opened),
            left: AtomicU64::new(bounds.bytes),
        };
        let mut survey = Survey::of(walk(opened, bounds)?, &index);
        let unknown: u64 = survey.unknown().sum();
        if unknown <= MAX_READ_FIRST {
            survey.read(&reader, None)?;
            if let Some(bound) = self.found(&survey)? {
                share.take(&bound.copy, &survey.entries)?;
                survey.write(&at, &bound.copy).map_err(failed)?;
                return Ok(bound);
            }
            // They are read again as they are copied.
            reader.left.store(bounds.bytes, std::sync::atomic::Ordering::Relaxed);
        }
        let bound = self.fill(&reader, &mut survey, &index, share)?;
        survey.write(&at, &bound.copy).map_err(failed)?;
        Ok(bound)
    }

    /// The copy that has all of this, marked as used.
    fn found(&self, survey: &Survey) -> Result<Option<BoundTree>, TreeError> {
        let bound = survey.bound();
        Ok(match self.open(&bound.copy, &HostPath::said("")) {
            Ok(_) => Some(bound),
            Err(TreeError::Gone(_) | TreeError::Damaged(_)) => None,
            Err(error) => return Err(error),
        })
    }

    /// Makes the copy: hard links to the last one where nothing changed, copies of the rest.
    fn fill(
        &self,
        reader: &TreeReader<'_>,
        survey: &mut Survey,
        index: &TreeIndex,
        share: &TreeShare,
    ) -> Result<BoundTree, TreeError> {
        let allowance = DiskAllowance::below(&self.dir, ROOM_LEFT);
        let (bytes, entries, dirs) = survey.made();
        allowance.fits(bytes, entries, dirs)?;
        let has_last =
            index.copy.as_ref().is_some_and(|last| self.dir.join(last.as_str()).exists());
        share.admit(&survey.entries, |most| {
            Ok(if has_last { DiskUse::of(survey.unlinked()).most } else { most })
        })?;
        let draft_dir = self.dir.join(format!(".draft-{}", random::secret_hex(8)));
        let failed = |source| TreeError::Io { path: draft_dir.clone(), source };
        DirBuilder::new().mode(0o700).create(&draft_dir).map_err(failed)?;
        let _filling = lock::of_draft(&draft_dir).map_err(failed)?;
        let filled = self.fill_draft(reader, survey, index, &draft_dir, allowance);
        let place = filled.and_then(|()| {
            let bound = survey.bound();
            // As it became: files grow while they are read, and what was to be a link may be a file.
            share
                .admit(&survey.entries, |_| Ok(DiskUse::of_tree(&draft_dir.join("root"))?.part))?;
            fs::write(draft_dir.join("boot"), boot()).map_err(failed)?;
            self.put(&draft_dir, &bound.copy).map_err(failed)?;
            share.mark(&bound.copy, &survey.entries).map_err(failed)?;
            Ok(bound)
        });
        if place.is_err() {
            // The sweep takes what stays.
            let _ = remove_tree(&draft_dir);
        }
        place
    }

    fn fill_draft(
        &self,
        reader: &TreeReader<'_>,
        survey: &mut Survey,
        index: &TreeIndex,
        draft_dir: &Path,
        allowance: DiskAllowance,
    ) -> Result<(), TreeError> {
        let is_dir = reader.source.is_dir();
        let root = draft_dir.join("root");
        let draft = TreeDraft::new(&root, is_dir, allowance)
            .map_err(|source| TreeError::Io { path: root.clone(), source })?;
        draft.outline(&survey.entries)?;
        // After a power cut it may be damaged, and a link to a damaged file would be, too.
        let is_whole = |last: &&Digest| self.open(last, &HostPath::said("")).is_ok();
        let last = index.copy.as_ref().filter(is_whole);
        let last = last.map(|copy| self.dir.join(copy.as_str()).join("root"));
        survey.link(&draft, last.as_deref())?;
        survey.read(reader, Some(&draft))?;
        match is_dir {
            true => draft.close(&survey.entries),
            false => Ok(()),
        }
    }

    /// The digests of a draft, whose `root` is the tree. Reads every byte.
    pub(super) fn read_draft(
        &self,
        draft: &Path,
        bounds: TreeBounds,
    ) -> Result<BoundTree, TreeError> {
        let failed = |source| TreeError::Io { path: draft.to_owned(), source };
        let opened = HostHandle::own(&draft.join("root")).map_err(failed)?;
        let left = AtomicU64::new(bounds.bytes);
        let reader = TreeReader { source: &opened, is_local: false, left };
        let mut survey = Survey::of(walk(&opened, bounds)?, &TreeIndex::default());
        survey.read(&reader, None)?;
        Ok(survey.bound())
    }

    /// Moves a draft that was read whole to its name.
    pub(super) fn keep(&self, draft: &Path, bound: &BoundTree) -> io::Result<()> {
        fs::write(draft.join("boot"), boot())?;
        self.put(draft, &bound.copy)
    }

    /// Moves a draft to its name, unless another one was first: then that one is used.
    pub(super) fn put(&self, draft: &Path, copy: &Digest) -> io::Result<()> {
        let at = self.dir.join(copy.as_str());
        let changing = lock::changing(&self.dir)?;
        let rest = match fs::rename(draft, &at) {
            Ok(()) => None,
            Err(_) if at.is_dir() && self.is_of_this_boot(&at) => Some(draft.to_owned()),
            // A damaged one of before.
            Err(error) => {
                let old = self.dir.join(format!(".gone-{}", random::secret_hex(8)));
                fs::rename(&at, &old).map_err(|_| error)?;
                fs::rename(draft, &at)?;
                Some(old)
            }
        };
        utimensat(CWD, &at, &used_now(), AtFlags::SYMLINK_NOFOLLOW)?;
        drop(changing);
        rest.map_or(Ok(()), |rest| remove_tree(&rest))
    }

    /// Opens a copy, under the name that was said of its source, and notes that it is used. After a power cut its files may not
    /// all be on the disk, so the first time after a boot every byte is compared.
    ///
    /// # Errors
    /// It is not here, or is not what it was.
    pub fn open(&self, copy: &Digest, said: &HostPath) -> Result<HostHandle, TreeError> {
        let dir = self.dir.join(copy.as_str());
        let failed = |source| TreeError::Io { path: dir.clone(), source };
        let gone = || TreeError::Gone(copy.clone());
        let giving = match lock::giving(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone()),
            giving => giving.map_err(failed)?,
        };
        match utimensat(CWD, &dir, &used_now(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => return Err(gone()),
            used => used.map_err(|errno| failed(errno.into()))?,
        }
        let opened = HostHandle::ours(&dir.join("root"), said.clone()).map_err(failed)?;
        drop(giving);
        if !self.is_of_this_boot(&dir) {
            static ONE: Mutex<()> = Mutex::new(());
            let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if !self.is_of_this_boot(&dir) {
                verify(&opened, copy)?;
                fs::write(dir.join("boot"), boot()).map_err(failed)?;
            }
        }
        Ok(opened)
    }

    fn is_of_this_boot(&self, dir: &Path) -> bool {
        let boot = boot();
        !boot.is_empty() && fs::read(dir.join("boot")).is_ok_and(|of| of == boot)
    }
}

fn used_now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

/// Compares every byte of a copy with its name.
fn verify(opened: &HostHandle, copy: &Digest) -> Result<(), TreeError> {
    let bounds = TreeBounds { entries: usize::MAX, bytes: u64::MAX };
    let reader = TreeReader { source: opened, is_local: false, left: AtomicU64::new(bounds.bytes) };
    let mut survey = Survey::of(walk(opened, bounds)?, &TreeIndex::default());
    survey.read(&reader, None)?;
    match survey.bound().copy == *copy {
        true => Ok(()),
        false => Err(TreeError::Damaged(copy.clone())),
    }
}

impl Survey {
    /// Nothing read yet but what is known of files that did not change.
    fn of(entries: Vec<Entry>, index: &TreeIndex) -> Self {
        let known = entries.iter().map(|entry| index.find(entry.key()?).cloned());
        let known: Vec<Option<FileRecord>> = known.collect();
        let read = |(entry, known): (&Entry, &Option<FileRecord>)| {
            let known = known.as_ref().filter(|known| known.is_settled)?;
            let (sha256, key) = (known.sha256, known.key);
            Some(FileRead { sha256, key, owner: entry.owner, is_settled: true })
        };
        let files = entries.iter().zip(&known).map(read).collect();
        Self { entries, files, known }
    }

    /// Files that are still to be read, with their bytes.
    fn unread(&self) -> impl Iterator<Item = (usize, u64)> {
        let all = self.entries.iter().zip(&self.files).enumerate();
        all.filter_map(|(place, (entry, file))| {
            file.is_none().then(|| Some((place, entry.key()?.size))).flatten()
        })
    }

    /// Bytes of the files that nothing is known of, unlike those that are only too new to be known for sure.
    fn unknown(&self) -> impl Iterator<Item = u64> {
        let unread = self.unread();
        unread
            .filter(|(place, _)| matches!(self.known.get(*place), Some(None)))
            .map(|(_, size)| size)
    }

    /// What a copy takes: bytes of the files that the last copy does not have, entries that are no link to it, and directories of them.
    fn made(&self) -> (u64, u64, u64) {
        self.unlinked().fold((0, 0, 0), |(bytes, entries, dirs), entry| {
            let size = entry.key().map_or(0, |key| key.size);
            let is_dir = u64::from(entry.kind == EntryKind::Directory);
            (bytes + size, entries + 1, dirs + is_dir)
        })
    }

    /// Entries that are no link to the last copy.
    fn unlinked(&self) -> impl Iterator<Item = &Entry> {
        let all = self.entries.iter().enumerate().filter(|(place, _)| !self.is_linked(*place));
        all.map(|(_, entry)| entry)
    }

    /// Whether the last copy has a file with this content, owner, permissions and time.
    fn is_linked(&self, place: usize) -> bool {
        let (Some(Some(known)), Some(Some(file))) = (self.known.get(place), self.files.get(place))
        else {
            return false;
        };
        known.sha256 == file.sha256 && known.key == file.key
    }

    /// Links what the last copy has, and forgets what was read of the rest: it is read as it is copied.
    fn link(&mut self, draft: &TreeDraft, last: Option<&Path>) -> Result<(), TreeError> {
        let places: Vec<usize> = (0..self.entries.len())
            .filter(|place| self.entries.get(*place).is_some_and(|entry| entry.key().is_some()))
            .collect();
        let linked = on_all(&places, |place, _| {
            let is_linked = self.is_linked(place);
            let (Some(entry), Some(Some(known)), Some(last), true) =
                (self.entries.get(place), self.known.get(place), last, is_linked)
            else {
                return Ok(false);
            };
            let path = Path::new(OsStr::from_bytes(&known.path));
            Ok(draft.link(entry, last, path))
        })?;
        for (place, is_linked) in linked {
            if let (false, Some(file)) = (is_linked, self.files.get_mut(place)) {
                *file = None;
            }
        }
        Ok(())
    }

    /// Reads what is unread; a file that is gone meanwhile was not there.
    fn read(
        &mut self,
        reader: &TreeReader<'_>,
        draft: Option<&TreeDraft>,
    ) -> Result<(), TreeError> {
        let places: Vec<usize> = self.unread().map(|(place, _)| place).collect();
        let read = on_all(&places, |place, buffer| match self.entries.get(place) {
            Some(entry) => reader.read(entry, draft, buffer),
            None => Ok(None),
        })?;
        let mut gone = Vec::new();
        for (place, read) in read {
            match (read, self.entries.get_mut(place), self.files.get_mut(place)) {
                (Some(read), Some(entry), Some(file)) => {
                    (entry.modified, entry.owner) = (read.key.modified, read.owner);
                    entry.kind = EntryKind::File(read.key);
                    *file = Some(read);
                }
                _ => gone.push(place),
            }
        }
        gone.sort_unstable();
        for place in gone.into_iter().rev() {
            self.entries.remove(place);
            self.files.remove(place);
            self.known.remove(place);
        }
        Ok(())
    }

    fn bound(&self) -> BoundTree {
        let sha256 = |file: &Option<FileRead>| file.as_ref().map_or([0; 32], |file| file.sha256);
        let files: Vec<Sha256> = self.files.iter().map(sha256).collect();
        let digests = digests(&self.entries, &files);
        let bytes = self.entries.iter().filter_map(|entry| Some(entry.key()?.size)).sum();
        let (digest, copy) = (digests.content, digests.copy);
        BoundTree { digest, copy, entries: self.entries.len(), bytes }
    }

    /// Writes down what is known of the files now.
    fn write(&self, at: &Path, copy: &Digest) -> io::Result<()> {
        let files: Vec<FileRecord> = self
            .entries
            .iter()
            .zip(&self.files)
            .filter_map(|(entry, file)| {
                let file = file.as_ref()?;
                let (key, sha256, is_settled) = (file.key, file.sha256, file.is_settled);
                Some(FileRecord { key, sha256, is_settled, path: entry.path.clone() })
            })
            .collect();
        index::write(at, copy, files.iter())
    }
}
