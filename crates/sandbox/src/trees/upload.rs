//! Directories that clients send: a manifest, the files that it names, then a copy as those of this host's own directories.
//!
//! ```text
//! manifest --in pieces--> open-ID.part --whole: digest, rules, bounds, quota--> open-ID --no gaps--> whole-ID
//! files of it --pieces--> ID.part --last piece: digest--> ID, and ID.MODE as they have other permissions
//! whole-ID --bind--> hard links to its files --read again--> <state>/trees/<copy>, named by copy-ID
//! ```
//! A tenant's directory changes under its lock, which every process of the host sees: a part that is written has not become a file, and a
//! name of a copy, meanwhile. A tenant's files lie apart from those of others: what lacks says nothing of theirs.
//!
//! **A file is taken only if a manifest of the tenant names it, and no byte beyond the size there**, so the quota is checked once, with
//! the manifest. **A file stays, and counts, while a copy has it**, whether or not a manifest still names it. **What is bound is read
//! again**: a file that was damaged since it came is dropped, and lacks. Nothing is synced, for that reason.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::canonical::{digest_bytes, digest_of};
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_contracts::retention::StoredBytes;
use cofferdam_contracts::tree_manifest::{
    self, MAX_MANIFEST_BYTES, ManifestBounds, ManifestEntry, ManifestFault, ManifestKind,
};
use cofferdam_contracts::tree_upload::{FileGap, FilePiece, MAX_GAPS, TreeUpload, UploadState};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256 as Hasher};

use super::allowance::{DIR_BYTES, DiskAllowance};
use super::bounds::TreeBounds;
use super::error::TreeError;
use super::lock::alone;
use super::store::{ROOM_LEFT, TreeStore};

/// Manifests of a tenant whose files lack: clients that send at once, and those that never went on.
const MAX_OPEN: usize = 64;
/// Mode of a file as it came; entries of another mode have a copy in common, which the quota counts, too.
pub(super) const MODE: u32 = 0o644;
/// Bytes that are read at once.
pub(super) const BUFFER: usize = 128 * 1024;

/// What tenants sent to a state directory.
#[derive(Debug, Clone)]
pub struct TreeUploads {
    pub(super) dir: PathBuf,
    pub(super) store: TreeStore,
}

/// A part of a manifest.
#[derive(Debug, Clone, Copy)]
pub struct ManifestPiece<'a> {
    /// Position of its first byte in the manifest.
    pub at: u64,
    /// Bytes of the manifest from there on.
    pub bytes: &'a [u8],
    /// Whether the manifest ends with it.
    pub is_last: bool,
}

/// What a tenant may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadBounds {
    /// Of one directory.
    pub tree: TreeBounds,
    /// Bytes of all files of the tenant.
    pub quota: u64,
}

/// Why something that is sent is not taken.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// Nothing of it is here.
    #[error("no directory {0} was sent to this server, or it was swept after a day: send it again")]
    Unknown(Digest),
    /// A piece begins behind what is here.
    #[error("{0}: a piece begins behind the bytes that are here: ask again what lacks")]
    Order(Digest),
    /// The whole has other bytes.
    #[error("{0}: what arrived has another digest, and was dropped: send it again")]
    Other(Digest),
    /// The manifest names no such file, or one of another size.
    #[error("file {0}: the manifest does not name it with so many bytes")]
    Unnamed(Digest),
    /// Files of the manifest lack.
    #[error("{files} files of the directory {tree} lack: send them first")]
    Lacking {
        /// Digest of the manifest.
        tree: Digest,
        /// Number of different files.
        files: u64,
    },
    /// The manifest breaks a rule or a bound.
    #[error(transparent)]
    Manifest(#[from] ManifestFault),
    /// The manifest has more bytes than one may have.
    #[error("a manifest has at most {MAX_MANIFEST_BYTES} bytes: leave out what is not needed")]
    Long,
    /// The tenant would have more than its quota.
    #[error(
        "with it the tenant would have {wanted} bytes of sent directories here, of {quota} by its quota `quota.trees_mb`: they go a \
         day after their last use, and once no run needs them"
    )]
    Quota {
        /// Bytes with this directory.
        wanted: u64,
        /// Bytes that the tenant may have.
        quota: u64,
    },
    /// Too many directories are on their way.
    #[error("{MAX_OPEN} directories of the tenant are on their way: finish one, or wait a day")]
    Open,
    /// The disk would be full.
    #[error("the server's disk has no room for it: tell its operator")]
    Room,
    /// The tree is not bound.
    #[error(transparent)]
    Tree(TreeError),
    /// The kernel does not read or write a part of it.
    #[error("a sent directory could not be stored: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for UploadError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<TreeError> for UploadError {
    fn from(error: TreeError) -> Self {
        match error {
            // A client that is elsewhere learns nothing of the disk, and cannot give it as it is.
            TreeError::Room { .. } => Self::Room,
            error => Self::Tree(error),
        }
    }
}

impl TreeUploads {
    /// Those of a tenant in a state directory. Looks at nothing.
    #[must_use]
    pub fn of(state_dir: &Path, tenant: &TenantId) -> Self {
        let store = TreeStore::of(state_dir);
        let name = digest_bytes(tenant.as_str().as_bytes());
        Self { dir: Self::all(&store).join(name.as_str()), store }
    }

    /// Where those of all tenants lie.
    pub(super) fn all(store: &TreeStore) -> PathBuf {
        store.dir.join("uploads")
    }

    /// Takes a part of a manifest; the last one is parsed, and held against the bounds.
    ///
    /// # Errors
    /// It leaves a gap, breaks a rule or a bound, or has another digest than its name.
    pub fn take_manifest(
        &self,
        tree: &Digest,
        piece: ManifestPiece<'_>,
        bounds: UploadBounds,
    ) -> Result<(), UploadError> {
        let _alone = alone(&self.dir)?;
        if self.manifest(tree).is_some() {
            return Ok(());
        }
        let part = self.dir.join(format!("open-{tree}.part"));
        let length = u64::try_from(piece.bytes.len()).unwrap_or(u64::MAX);
        let end = piece.at.saturating_add(length);
        if usize::try_from(end).is_ok_and(|end| end > MAX_MANIFEST_BYTES) {
            return Err(UploadError::Long);
        }
        if !part.exists() && self.names("open-")?.len() >= MAX_OPEN {
            return Err(UploadError::Open);
        }
        self.append(&part, tree, piece.at, piece.bytes)?;
        if !piece.is_last {
            return Ok(());
        }
        let taken = self.accept(&part, tree, end, bounds);
        if taken.is_err() {
            fs::remove_file(&part)?;
        }
        taken
    }

    /// A manifest that arrived whole.
    fn accept(
        &self,
        part: &Path,
        tree: &Digest,
        end: u64,
        bounds: UploadBounds,
    ) -> Result<(), UploadError> {
        let text = fs::read(part)?;
        if u64::try_from(text.len()) != Ok(end) || digest_bytes(&text) != *tree {
            return Err(UploadError::Other(tree.clone()));
        }
        let TreeBounds { entries, bytes } = bounds.tree;
        let entries = tree_manifest::parse(&text, ManifestBounds { entries, bytes })?;
        let wanted = self.promised(&entries)?.saturating_add(self.held()?);
        if wanted > bounds.quota {
            return Err(UploadError::Quota { wanted, quota: bounds.quota });
        }
        Ok(fs::rename(part, self.dir.join(format!("open-{tree}")))?)
    }

    /// Bytes that lack of these entries and of the other manifests that were accepted, with the directories of copies that are not made.
    fn promised(&self, new: &[ManifestEntry<'_>]) -> Result<u64, UploadError> {
        let mut counted = HashSet::new();
        let mut count = |entries: &[ManifestEntry<'_>]| {
            let mut bytes = 0_u64;
            for gap in self.gaps(entries)? {
                if counted.insert(gap.sha256.to_string()) {
                    bytes = bytes.saturating_add(gap.size.saturating_sub(gap.from));
                }
            }
            for entry in entries.iter().filter(|entry| entry.mode != MODE) {
                let Some((sha256, size)) = file_of(entry) else { continue };
                let name = stored_name(sha256, entry.mode);
                if !self.dir.join(&name).exists() && counted.insert(name) {
                    bytes = bytes.saturating_add(size);
                }
            }
            Ok::<u64, UploadError>(bytes.saturating_add(dirs_of(entries).saturating_mul(DIR_BYTES)))
        };
        let mut bytes = count(new)?;
        let open = self.names("open-")?.into_iter().filter(|name| !name.ends_with(".part"));
        // One whose copy was not made, as its process was killed.
        let whole = self.names("whole-")?.into_iter();
        let unbound = whole.filter(|name| self.marked(name.trim_start_matches("whole-")).is_none());
        for manifest in open.chain(unbound) {
            let text = fs::read(self.dir.join(manifest))?;
            bytes = bytes.saturating_add(count(&parsed(&text)?)?);
        }
        Ok(bytes)
    }

    /// What the tenant has here: its whole directories, and the bytes of all that counts for its quota.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn usage(&self) -> io::Result<StoredBytes> {
        match self.held() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoredBytes::default()),
            held => Ok(StoredBytes { count: count(self.names("whole-")?.len()), bytes: held? }),
        }
    }

    /// Bytes of everything that the tenant has here, with the directories of its copies.
    fn held(&self) -> io::Result<u64> {
        let mut bytes = 0_u64;
        for found in fs::read_dir(&self.dir)? {
            match found?.metadata() {
                // Looked at beside a client that sends: a part has become a file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => bytes = bytes.saturating_add(found?.len()),
            }
        }
        for name in self.names("copy-")? {
            let dirs = self.marked(name.trim_start_matches("copy-")).map_or(0, |(_, dirs)| dirs);
            bytes = bytes.saturating_add(dirs.saturating_mul(DIR_BYTES));
        }
        Ok(bytes)
    }

    /// The copy that a directory was bound as, and its directories.
    pub(super) fn marked(&self, tree: &str) -> Option<(Digest, u64)> {
        let text = fs::read_to_string(self.dir.join(format!("copy-{tree}"))).ok()?;
        let (copy, dirs) = text.split_once(' ')?;
        Some((Digest::parse(copy).ok()?, dirs.parse().ok()?))
    }

    /// How far a directory has come. One that is whole is marked as used.
    ///
    /// # Errors
    /// Nothing of it is here.
    pub fn look(&self, tree: &Digest) -> Result<TreeUpload, UploadError> {
        let _alone = alone(&self.dir)?;
        let Some((at, text)) = self.read(tree)? else {
            let part = fs::metadata(self.dir.join(format!("open-{tree}.part")));
            let part = part.map_err(|_| UploadError::Unknown(tree.clone()))?;
            return Ok(TreeUpload {
                tree: tree.clone(),
                state: UploadState::Manifest,
                manifest_bytes: part.len(),
                entries: 0,
                bytes: 0,
                lacking_files: 0,
                lacking_bytes: 0,
                gaps: Vec::new(),
            });
        };
        let entries = parsed(&text)?;
        let mut gaps = self.gaps(&entries)?;
        let whole = self.dir.join(format!("whole-{tree}"));
        if gaps.is_empty() && at != whole {
            fs::rename(&at, &whole)?;
        }
        let lacks = gaps.iter().map(|gap| gap.size.saturating_sub(gap.from));
        let (lacking_files, lacking_bytes) = (count(gaps.len()), lacks.sum());
        gaps.truncate(MAX_GAPS);
        let state = if gaps.is_empty() { UploadState::Whole } else { UploadState::Files };
        Ok(TreeUpload {
            tree: tree.clone(),
            state,
            manifest_bytes: count(text.len()),
            entries: count(entries.len()),
            bytes: entries.iter().filter_map(file_of).map(|(_, size)| size).sum(),
            lacking_files,
            lacking_bytes,
            gaps,
        })
    }

    /// Takes parts of files that a manifest names. Files that are whole are left as they are.
    ///
    /// # Errors
    /// The manifest does not name one, it leaves a gap, or has other bytes than its digest says: what came of that file is dropped.
    pub fn take_files(&self, tree: &Digest, pieces: &[FilePiece<'_>]) -> Result<u64, UploadError> {
        let _alone = alone(&self.dir)?;
        let found = self.read(tree)?.ok_or_else(|| UploadError::Unknown(tree.clone()))?;
        let entries = parsed(&found.1)?;
        // Few of a manifest that may have half a million.
        let wanted: BTreeSet<&Digest> = pieces.iter().map(|piece| &piece.sha256).collect();
        let files = entries.iter().filter_map(file_of);
        let named: BTreeMap<&Digest, u64> =
            files.filter(|(sha256, _)| wanted.contains(sha256)).collect();
        let mut whole = 0;
        for piece in pieces {
            let size = named.get(&piece.sha256).copied();
            let end = piece.from.saturating_add(count(piece.bytes.len()));
            let size = size.filter(|size| end <= *size);
            let size = size.ok_or_else(|| UploadError::Unnamed(piece.sha256.clone()))?;
            whole += u64::from(self.take(piece, end == size)?);
        }
        Ok(whole)
    }

    /// Whether the file is whole with it.
    fn take(&self, piece: &FilePiece<'_>, is_last: bool) -> Result<bool, UploadError> {
        let (file, sha256) = (self.dir.join(piece.sha256.as_str()), &piece.sha256);
        if file.is_file() {
            return Ok(false);
        }
        let part = self.dir.join(format!("{sha256}.part"));
        let written = self.append(&part, sha256, piece.from, piece.bytes)?;
        if !is_last {
            return Ok(false);
        }
        // A file of one piece was in memory; of others every byte is read.
        let found = match piece.from {
            0 => digest_bytes(piece.bytes),
            _ => file_digest(&written)?,
        };
        if found != *sha256 || written.metadata()?.len() != piece.from + count(piece.bytes.len()) {
            fs::remove_file(&part)?;
            return Err(UploadError::Other(sha256.clone()));
        }
        written.set_permissions(Permissions::from_mode(MODE))?;
        fs::rename(&part, &file)?;
        Ok(true)
    }

    /// Writes at a position of a part that has all bytes before it.
    fn append(&self, part: &Path, of: &Digest, at: u64, bytes: &[u8]) -> Result<File, UploadError> {
        let allowance = DiskAllowance::below(&self.dir, ROOM_LEFT);
        allowance.fits(count(bytes.len()), u64::from(!part.exists()), 0)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(part)?;
        if file.metadata()?.len() < at {
            return Err(UploadError::Order(of.clone()));
        }
        file.write_all_at(bytes, at)?;
        Ok(file)
    }

    /// Files of a manifest that are not here whole, in the order of their digests.
    pub(super) fn gaps(&self, entries: &[ManifestEntry<'_>]) -> Result<Vec<FileGap>, UploadError> {
        let mut gaps = BTreeMap::new();
        for (sha256, size) in entries.iter().filter_map(file_of) {
            let path = self.dir.join(sha256.as_str());
            match fs::metadata(&path) {
                Ok(found) if found.len() == size => continue,
                // One digest with two sizes: one of them lies.
                Ok(_) => return Err(UploadError::Unnamed(sha256.clone())),
                Err(_) => {}
            }
            let part = fs::metadata(self.dir.join(format!("{sha256}.part")));
            // A part that is as long as the file was cut before its digest was looked at.
            let from = part.map_or(0, |part| part.len()).min(size.saturating_sub(1));
            let gap = FileGap { sha256: sha256.clone(), size, from };
            if gaps.insert(sha256.clone(), gap).is_some_and(|other| other.size != size) {
                return Err(UploadError::Unnamed(sha256.clone()));
            }
        }
        Ok(gaps.into_values().collect())
    }

    /// A manifest that was accepted, marked as used.
    pub(super) fn read(&self, tree: &Digest) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
        let Some(at) = self.manifest(tree) else { return Ok(None) };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let used = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, &at, &used, AtFlags::SYMLINK_NOFOLLOW)?;
        let text = fs::read(&at)?;
        Ok(Some((at, text)))
    }

    fn manifest(&self, tree: &Digest) -> Option<PathBuf> {
        let names = ["whole", "open"].map(|state| self.dir.join(format!("{state}-{tree}")));
        names.into_iter().find(|path| path.is_file())
    }

    /// Names in the tenant's directory that begin so.
    pub(super) fn names(&self, begin: &str) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(&self.dir)?.filter_map(|found| found.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name.starts_with(begin)).collect())
    }
}

/// Name of a file in its tenant's directory, as entries of this mode have it.
pub(super) fn stored_name(sha256: &Digest, mode: u32) -> String {
    match mode == MODE {
        true => sha256.to_string(),
        false => format!("{sha256}.{mode:o}"),
    }
}

/// A manifest that was accepted once: the bounds may be others now.
pub(super) fn parsed(text: &[u8]) -> Result<Vec<ManifestEntry<'_>>, ManifestFault> {
    tree_manifest::parse(text, ManifestBounds { entries: usize::MAX, bytes: u64::MAX })
}

/// A file's digest and size.
pub(super) fn file_of<'a>(entry: &'a ManifestEntry<'_>) -> Option<(&'a Digest, u64)> {
    match &entry.kind {
        ManifestKind::File { size, sha256 } => Some((sha256, *size)),
        _ => None,
    }
}

/// Directories of a manifest.
pub(super) fn dirs_of(entries: &[ManifestEntry<'_>]) -> u64 {
    count(entries.iter().filter(|entry| entry.kind == ManifestKind::Directory).count())
}

/// SHA-256 of a whole file.
pub(super) fn file_digest(file: &File) -> io::Result<Digest> {
    let (mut hasher, mut buffer, mut at) = (Hasher::new(), vec![0; BUFFER], 0_u64);
    loop {
        let count = file.read_at(&mut buffer, at)?;
        let bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(digest_of(hasher.finalize().as_slice()));
        }
        hasher.update(bytes);
        at = at.saturating_add(self::count(count));
    }
}

pub(super) fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
