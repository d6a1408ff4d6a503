//! Copies of sent directories, made of their files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

use cofferdam_ambient::random;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::tree_manifest::{ManifestEntry, ManifestKind};
use cofferdam_guest::removal::remove_tree;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, linkat, mkdirat, openat, symlinkat};
use rustix::io::Errno;

use super::allowance::DiskAllowance;
use super::bounds::TreeBounds;
use super::lock;
use super::store::{BoundTree, ROOM_LEFT};
use super::upload::{
    BUFFER, MODE, TreeUploads, UploadError, count, dirs_of, file_digest, file_of, parsed,
    stored_name,
};
use crate::host::hostpath::HostPath;

impl TreeUploads {
    /// Binds a whole directory by its content.
    ///
    /// # Errors
    /// Files of it lack, one was damaged, or it does not fit.
    pub fn bind(&self, tree: &Digest, bounds: TreeBounds) -> Result<BoundTree, UploadError> {
        let _alone = lock::alone(&self.dir)?;
        let lacking = |files| UploadError::Lacking { tree: tree.clone(), files };
        let found = self.read(tree)?.ok_or_else(|| UploadError::Unknown(tree.clone()))?;
        let entries = parsed(&found.1)?;
        match self.gaps(&entries)?.len() {
            0 => {}
            files => return Err(lacking(count(files))),
        }
        // It may not have been looked at since its last file came.
        let whole = self.dir.join(format!("whole-{tree}"));
        if found.0 != whole {
            fs::rename(&found.0, &whole)?;
        }
        if let Some(bound) = self.bound_before(tree, &entries) {
            return Ok(bound);
        }
        let draft = self.store.dir.join(format!(".draft-{}", random::secret_hex(8)));
        DirBuilder::new().mode(0o700).create(&draft)?;
        let _filling = lock::of_draft(&draft)?;
        let bound = self.draft(&draft, &entries).and_then(|()| {
            let bound = self.store.read_draft(&draft, bounds)?;
            if bound.digest == *tree {
                self.store.keep(&draft, &bound)?;
                let mark = format!("{} {}", bound.copy, dirs_of(&entries));
                fs::write(self.dir.join(format!("copy-{tree}")), mark)?;
                return Ok(bound);
            }
            match (self.drop_damaged(&entries)?, self.drop_copies(&entries)?) {
                // Such as one that has a directory which is hidden from every task.
                (0, 0) => Err(UploadError::Other(tree.clone())),
                (0, _) => Err(io::Error::other("a file was damaged and is made anew").into()),
                (files, _) => Err(lacking(files)),
            }
        });
        if bound.is_err() {
            // The sweep takes what stays.
            let _ = remove_tree(&draft);
        }
        bound
    }

    /// The copy that was made of it before, if it is still here and whole.
    fn bound_before(&self, tree: &Digest, entries: &[ManifestEntry<'_>]) -> Option<BoundTree> {
        let (copy, _) = self.marked(tree.as_str())?;
        self.store.open(&copy, &HostPath::said("")).ok()?;
        let bytes = entries.iter().filter_map(file_of).map(|(_, size)| size).sum();
        Some(BoundTree { digest: tree.clone(), copy, entries: entries.len(), bytes })
    }

    /// The entries as a directory of ours. Every name of the manifest lies below it: an entry below a link was refused.
    fn draft(&self, draft: &Path, entries: &[ManifestEntry<'_>]) -> Result<(), UploadError> {
        let allowance = DiskAllowance::below(&self.dir, ROOM_LEFT);
        let made = self.made(entries);
        allowance.fits(made.bytes, made.entries, made.dirs)?;
        let root = draft.join("root");
        DirBuilder::new().mode(0o700).create(&root)?;
        // A name may be as long as the kernel takes one, so none has the draft's before it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = openat(CWD, &root, flags, Mode::empty())?;
        for entry in entries.iter().filter(|entry| !entry.path.is_empty()) {
            let path = name_of(entry);
            match &entry.kind {
                ManifestKind::Directory => mkdirat(&top, path, Mode::RWXU)?,
                ManifestKind::Link(target) => symlinkat(OsStr::from_bytes(target), &top, path)?,
                ManifestKind::File { sha256, .. } => {
                    let from = self.dir.join(stored_name(sha256, entry.mode));
                    if entry.mode != MODE && !from.exists() {
                        self.store_again(sha256, entry.mode, &allowance)?;
                    }
                    match linkat(CWD, &from, &top, path, AtFlags::empty()) {
                        // A file has a bounded number of names: a fresh one takes its place.
                        Err(Errno::MLINK) => {
                            self.store_again(sha256, entry.mode, &allowance)?;
                            linkat(CWD, &from, &top, path, AtFlags::empty())?;
                        }
                        linked => linked?,
                    }
                }
            }
        }
        let dirs = entries.iter().filter(|entry| entry.kind == ManifestKind::Directory);
        for entry in dirs.rev() {
            let mode = Mode::from_raw_mode(entry.mode);
            chmodat(&top, name_of(entry), mode, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Stores a file with permissions as a copy of the one that came.
    fn store_again(
        &self,
        sha256: &Digest,
        mode: u32,
        allowance: &DiskAllowance,
    ) -> Result<(), UploadError> {
        let name = stored_name(sha256, mode);
        // One that was cut is written over; its name is of no file that a client sends.
        let part = self.dir.join(format!("{sha256}.{mode:o}.part"));
        allowance.file()?;
        let mut options = OpenOptions::new();
        let to = options.write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        copy(&File::open(self.dir.join(sha256.as_str()))?, &to, allowance)?;
        to.set_permissions(Permissions::from_mode(mode))?;
        Ok(fs::rename(part, self.dir.join(name))?)
    }

    /// What a draft takes of the disk; links to files that are stored take nothing.
    fn made(&self, entries: &[ManifestEntry<'_>]) -> DraftSize {
        let mut made = DraftSize { bytes: 0, entries: 0, dirs: 0 };
        for entry in entries {
            let file = file_of(entry);
            let is_stored = file
                .is_some_and(|(sha256, _)| self.dir.join(stored_name(sha256, entry.mode)).exists());
            if !is_stored {
                made.bytes = made.bytes.saturating_add(file.map_or(0, |(_, size)| size));
                made.entries += 1;
                made.dirs += u64::from(entry.kind == ManifestKind::Directory);
            }
        }
        made
    }

    /// Removes copies of files with other permissions, which are made anew: how many.
    fn drop_copies(&self, entries: &[ManifestEntry<'_>]) -> io::Result<u64> {
        let mut dropped = 0;
        for entry in entries.iter().filter(|entry| entry.mode != MODE) {
            let Some((sha256, _)) = file_of(entry) else { continue };
            match fs::remove_file(self.dir.join(stored_name(sha256, entry.mode))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => {
                    removed?;
                    dropped += 1;
                }
            }
        }
        Ok(dropped)
    }

    /// Removes the files that have other bytes than their names say: how many.
    fn drop_damaged(&self, entries: &[ManifestEntry<'_>]) -> Result<u64, UploadError> {
        let mut dropped = 0;
        let files: BTreeMap<&Digest, u64> = entries.iter().filter_map(file_of).collect();
        for sha256 in files.keys() {
            let path = self.dir.join(sha256.as_str());
            if file_digest(&File::open(&path)?)? != **sha256 {
                fs::remove_file(path)?;
                dropped += 1;
            }
        }
        Ok(dropped)
    }
}

/// What a draft takes of the disk.
struct DraftSize {
    bytes: u64,
    entries: u64,
    dirs: u64,
}

/// From the top of its tree.
fn name_of<'a>(entry: &ManifestEntry<'a>) -> &'a Path {
    match entry.path.is_empty() {
        true => Path::new("."),
        false => Path::new(OsStr::from_bytes(entry.path)),
    }
}

/// A copy with the time of the original, by which build tools see what changed.
fn copy(original: &File, copy: &File, allowance: &DiskAllowance) -> Result<(), UploadError> {
    let (mut buffer, mut at) = (vec![0; BUFFER], 0_u64);
    loop {
        let read = original.read_at(&mut buffer, at)?;
        let bytes = buffer.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        copy.write_all_at(bytes, at)?;
        at = at.saturating_add(count(read));
        allowance.written(count(read))?;
    }
    Ok(copy.set_times(FileTimes::new().set_modified(original.metadata()?.modified()?))?)
}
