//! The directory that holds the bases, and their locks.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_ambient::file_lock::{FileLock, lock_file};
use cofferdam_ambient::{clock, random};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_guest::removal::remove_tree;
use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::bounds::Bounds;
use super::copy::Walk;
use super::error::{CacheError, at};
use super::identity::BaseRequest;
use crate::host::{base, live};

const SCHEMA_VERSION: u32 = 1;
/// Bytes of a manifest: it has a fixed number of fields, and a repository's name of 256 bytes.
const MAX_MANIFEST_BYTES: u64 = 16 * 1024;

/// The bases of a state directory.
#[derive(Debug, Clone)]
pub struct Caches {
    dir: PathBuf,
    pub(super) bounds: Bounds,
}

/// What a base is: written before it gets its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BaseManifest {
    schema_version: u32,
    key: Digest,
    org: TenantId,
    repo: String,
    lock_hash: Digest,
    dirs: Vec<String>,
    bytes: u64,
    entries: u64,
    /// Digest of paths and metadata: compared at every use, and before and after every task.
    tree: Digest,
    /// Digest of paths, modes, owners and bytes: compared on request.
    content: Digest,
    created_at_ms: i64,
}

/// A base that is held: nobody takes it away meanwhile.
#[derive(Debug)]
pub struct CacheBase {
    dir: PathBuf,
    manifest: BaseManifest,
    digest: Digest,
    _held: FileLock,
}

impl CacheBase {
    /// Hash of tenant, repository and lock hash, by which a task finds the base.
    #[must_use]
    pub fn key(&self) -> &Digest {
        &self.manifest.key
    }

    /// Digest of its manifest.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Bytes of its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.manifest.bytes
    }

    /// Number of files, directories and links, as the manifest records it.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.manifest.entries
    }

    /// The tree that must not change, and its digest.
    pub(crate) fn tree(&self) -> (PathBuf, Digest) {
        (layers(&self.dir), self.manifest.tree.clone())
    }

    /// One of its directories.
    pub(crate) fn layer(&self, index: usize) -> Option<PathBuf> {
        self.manifest.dirs.get(index).map(|_| layers(&self.dir).join(index.to_string()))
    }
}

/// What stands under a key.
#[derive(Debug)]
pub enum BaseLookup {
    /// A base, whole.
    Base(Box<CacheBase>),
    /// Nothing, or somebody is taking it away.
    Missing,
    /// Something else than what is on record, in words.
    Damaged(String),
}

/// How a promotion ended.
#[derive(Debug)]
pub enum Promotion {
    /// It is the base now.
    Kept(Box<CacheBase>),
    /// Another was faster, and is the base.
    Late,
}

/// How a removal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// A sandbox has it: later.
    InUse,
    /// It was not there.
    Absent,
}

/// Which directory a base is: one that is made under the same key later has another mark, since it was given its name later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseMark {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl BaseMark {
    fn of(found: &fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Gone when dropped, unless it was moved into place.
struct BaseDraft(PathBuf);

impl Drop for BaseDraft {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

/// A base that is being written.
pub(super) struct BaseWriter {
    draft: BaseDraft,
    place: PathBuf,
    _lock: FileLock,
}

impl BaseWriter {
    /// Makes the place of one of its directories.
    pub(super) fn make(&self, index: usize) -> Result<PathBuf, CacheError> {
        let path = layers(&self.draft.0).join(index.to_string());
        make_dir(&path, 0o755).map_err(at(&path))?;
        Ok(path)
    }

    /// A file beside them, for what comes in; it is gone once it is open.
    pub(super) fn spool(&self) -> Result<File, CacheError> {
        let path = self.draft.0.join("incoming");
        let mut options = File::options();
        options.create_new(true).read(true).write(true).mode(0o600);
        let file = options.open(&path).map_err(at(&path))?;
        fs::remove_file(&path).map_err(at(&path))?;
        Ok(file)
    }
}

impl Caches {
    /// The bases of a state directory; its directories are made where they are not there. Only root
    /// may look inside.
    pub fn open(state_dir: &Path) -> Result<Self, CacheError> {
        Self::bounded(state_dir, Bounds::default())
    }

    /// The same with bounds of its own.
    pub fn bounded(state_dir: &Path, bounds: Bounds) -> Result<Self, CacheError> {
        let dir = fs::canonicalize(state_dir).map_err(at(state_dir))?.join("cache");
        for path in [dir.clone(), dir.join("bases"), dir.join("drafts"), dir.join("flights")] {
            live::private_dir(&path).map_err(at(&path))?;
        }
        Ok(Self { dir, bounds })
    }

    fn base(&self, key: &Digest) -> PathBuf {
        self.dir.join("bases").join(key.as_str())
    }

    pub(super) fn flights(&self) -> PathBuf {
        self.dir.join("flights")
    }

    fn draft(&self) -> BaseDraft {
        BaseDraft(self.dir.join("drafts").join(random::secret_hex(8)))
    }

    fn lock(&self) -> Result<File, CacheError> {
        let path = self.dir.join("lock");
        lock_file(&path).map_err(at(&path))
    }

    /// The keys of everything that stands here.
    pub fn keys(&self) -> Result<Vec<Digest>, CacheError> {
        let marks = self.marks()?;
        Ok(marks.keys().filter_map(|key| Digest::parse(key).ok()).collect())
    }

    /// Everything that stands here, by its key.
    pub fn marks(&self) -> Result<BTreeMap<String, BaseMark>, CacheError> {
        let dir = self.dir.join("bases");
        let mut marks = BTreeMap::new();
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let entry = entry.map_err(at(&dir))?;
            let Some(key) = entry.file_name().to_str().and_then(|name| Digest::parse(name).ok())
            else {
                continue;
            };
            match entry.metadata() {
                Ok(found) => drop(marks.insert(key.to_string(), BaseMark::of(&found))),
                // Taken away meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(&entry.path())(error)),
            }
        }
        Ok(marks)
    }

    /// The base of a key, held, if it is the one with this digest: manifest, paths and metadata are
    /// compared, not every byte.
    pub fn find(&self, key: &Digest, digest: &Digest) -> Result<BaseLookup, CacheError> {
        match self.held(key)? {
            None => Ok(BaseLookup::Missing),
            Some(held) => self.read(key, Some(digest), held),
        }
    }

    /// Every byte of a base against its manifest.
    pub fn verify(&self, key: &Digest) -> Result<BaseLookup, CacheError> {
        let Some(held) = self.held(key)? else { return Ok(BaseLookup::Missing) };
        let found = self.read(key, None, held)?;
        let BaseLookup::Base(base) = &found else { return Ok(found) };
        let mut walk = Walk::new(self.bounds);
        let mut places = (0..base.manifest.dirs.len()).filter_map(|index| base.layer(index));
        let walked = places.try_for_each(|place| walk.tree(&place, None));
        match walked {
            Err(error) => Ok(BaseLookup::Damaged(error.to_string())),
            Ok(()) if walk.content() == base.manifest.content.as_str() => Ok(found),
            Ok(()) => Ok(BaseLookup::Damaged("its bytes are not those that were kept".into())),
        }
    }

    /// A shared lock on what stands under a key now.
    fn held(&self, key: &Digest) -> Result<Option<FileLock>, CacheError> {
        let path = self.base(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        let held = FileLock::try_shared(file).map_err(at(&path))?;
        // It may have been taken away between the two, and another may have come.
        Ok(held.filter(|held| same(held, &path)))
    }

    fn read(
        &self,
        key: &Digest,
        digest: Option<&Digest>,
        held: FileLock,
    ) -> Result<BaseLookup, CacheError> {
        let dir = self.base(key);
        let path = dir.join("manifest.json");
        let damaged = |why: &str| Ok(BaseLookup::Damaged(why.to_owned()));
        let small = fs::symlink_metadata(&path)
            .is_ok_and(|found| found.is_file() && found.len() <= MAX_MANIFEST_BYTES);
        let bytes = match fs::read(&path) {
            Ok(bytes) if small => bytes,
            _ => return damaged("its manifest is missing or no manifest"),
        };
        let found = digest_bytes(&bytes);
        if digest.is_some_and(|wanted| *wanted != found) {
            return damaged("its manifest is not the one on record");
        }
        let manifest: BaseManifest = match serde_json::from_slice(&bytes) {
            Ok(manifest) => manifest,
            Err(error) => return damaged(&format!("its manifest cannot be read: {error}")),
        };
        if manifest.key != *key || manifest.schema_version != SCHEMA_VERSION {
            return damaged("its manifest is another base's");
        }
        match self.described(&dir) {
            Ok(Some(tree)) if tree == manifest.tree => {}
            Ok(_) => return damaged("its files are not those that were kept"),
            Err(error) => return damaged(&error.to_string()),
        }
        Ok(BaseLookup::Base(Box::new(CacheBase { dir, manifest, digest: found, _held: held })))
    }

    fn described(&self, dir: &Path) -> io::Result<Option<Digest>> {
        let most = usize::try_from(self.bounds.entries).unwrap_or(usize::MAX);
        // One more for each directory's own entry.
        base::tree_digest_of(&layers(dir), most.saturating_add(64))
    }

    /// Makes what a build left the base of its key: a copy, which gets its name in one rename once all
    /// of it is on the disk. `from` are the host's paths of the directories, in their order.
    pub fn promote(&self, wanted: &BaseRequest, from: &[PathBuf]) -> Result<Promotion, CacheError> {
        self.promote_of(wanted, from, 0)
    }

    /// The same of a sandbox whose ids begin at `first`: the base has them from 0 on.
    pub(crate) fn promote_of(
        &self,
        wanted: &BaseRequest,
        from: &[PathBuf],
        first: u32,
    ) -> Result<Promotion, CacheError> {
        let Some(begun) = self.begin(wanted)? else { return Ok(Promotion::Late) };
        let mut walk = Walk::new(self.bounds).of(first);
        for (index, from) in from.iter().enumerate() {
            walk.tree(from, Some(&begun.make(index)?))?;
        }
        self.finish(wanted, &begun, walk)
    }

    /// `None`: there is a base already.
    pub(super) fn begin(&self, wanted: &BaseRequest) -> Result<Option<BaseWriter>, CacheError> {
        // While it is held no draft is swept away.
        let lock = FileLock::shared(self.lock()?).map_err(at(&self.dir))?;
        let place = self.base(&wanted.key);
        if place.is_dir() {
            return Ok(None);
        }
        let draft = self.draft();
        make_dir(&draft.0, 0o700).map_err(at(&draft.0))?;
        make_dir(&layers(&draft.0), 0o755).map_err(at(&draft.0))?;
        Ok(Some(BaseWriter { draft, place, _lock: lock }))
    }

    /// Gives a draft that was walked its name.
    pub(super) fn finish(
        &self,
        wanted: &BaseRequest,
        begun: &BaseWriter,
        walk: Walk,
    ) -> Result<Promotion, CacheError> {
        let BaseWriter { draft, place, .. } = begun;
        let fault = || at(&draft.0);
        let (bytes, entries) = (walk.usage.bytes(), walk.usage.entries());
        let tree = self.described(&draft.0).map_err(fault())?;
        let tree = tree.ok_or_else(|| self.bounds.too_many_entries())?;
        let manifest = BaseManifest {
            schema_version: SCHEMA_VERSION,
            key: wanted.key.clone(),
            org: wanted.org.clone(),
            repo: wanted.repo.clone(),
            lock_hash: wanted.lock_hash.clone(),
            dirs: wanted.dirs.clone(),
            bytes,
            entries,
            tree,
            content: Digest::parse(&walk.content())
                .map_err(|error| CacheError::Manifest(error.to_string()))?,
            created_at_ms: clock::now_ms(),
        };
        let text =
            serde_json::to_vec(&manifest).map_err(|e| CacheError::Manifest(e.to_string()))?;
        let held = self.publish(draft, place, &text);
        let Some(held) = held.map_err(at(place))? else { return Ok(Promotion::Late) };
        let digest = digest_bytes(&text);
        Ok(Promotion::Kept(Box::new(CacheBase {
            dir: place.clone(),
            manifest,
            digest,
            _held: held,
        })))
    }

    /// On the disk first, then under its name. `None`: the name is taken.
    fn publish(
        &self,
        draft: &BaseDraft,
        place: &Path,
        manifest: &[u8],
    ) -> io::Result<Option<FileLock>> {
        let mut file = File::options()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(draft.0.join("manifest.json"))?;
        file.write_all(manifest)?;
        let held = File::open(&draft.0)?;
        // One call for thousands of files: each by itself would cost a journal commit.
        syncfs(&held)?;
        let held = FileLock::shared(held)?;
        match renameat_with(CWD, &draft.0, CWD, place, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOTEMPTY) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        File::open(self.dir.join("bases"))?.sync_all()?;
        Ok(Some(held))
    }

    /// Takes a base away, out of sight in one move; not while somebody holds it.
    pub fn remove(&self, key: &Digest) -> Result<Removal, CacheError> {
        self.remove_if(key, None)
    }

    /// The same for one that was seen before: another that was made under its key meanwhile stays.
    pub fn remove_seen(&self, key: &Digest, seen: BaseMark) -> Result<Removal, CacheError> {
        self.remove_if(key, Some(seen))
    }

    fn remove_if(&self, key: &Digest, seen: Option<BaseMark>) -> Result<Removal, CacheError> {
        let place = self.base(key);
        let Ok(file) = File::open(&place) else { return Ok(Removal::Absent) };
        let found = BaseMark::of(&file.metadata().map_err(at(&place))?);
        if seen.is_some_and(|seen| seen != found) {
            return Ok(Removal::Absent);
        }
        let Some(held) = FileLock::try_exclusive(file).map_err(at(&place))? else {
            return Ok(Removal::InUse);
        };
        if !same(&held, &place) {
            return Ok(Removal::Absent);
        }
        // Nobody sweeps what is emptied here.
        let _lock = FileLock::shared(self.lock()?).map_err(at(&self.dir))?;
        let draft = self.draft();
        fs::rename(&place, &draft.0).map_err(at(&place))?;
        remove_tree(&draft.0).map_err(at(&draft.0))?;
        Ok(Removal::Removed)
    }

    /// Takes away what killed workers left half-way, unless somebody writes a draft now.
    pub fn sweep(&self) -> Result<(), CacheError> {
        self.sweep_flights()?;
        let Some(_lock) = FileLock::try_exclusive(self.lock()?).map_err(at(&self.dir))? else {
            return Ok(());
        };
        let dir = self.dir.join("drafts");
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let path = entry.map_err(at(&dir))?.path();
            remove_tree(&path).map_err(at(&path))?;
        }
        Ok(())
    }
}

fn layers(dir: &Path) -> PathBuf {
    dir.join("layer")
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

pub(super) fn same(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}
