//! What a sandbox wrote, as a layer: the tar of an overlay's upper directory.
//!
//! The tree is what a task left behind, read by root through descriptors (`TenantTree`): no link is followed, whatever still
//! runs there. The order is that of the paths, so that the same tree gives the same layer.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use rustix::fs::{FileType, Stat};
use tar::{Builder, EntryType, Header};

use super::blob::BlobWriter;
use super::error::{ImageError, at};
use super::store::Images;
use crate::host::tenant_tree::{TenantDir, TenantTree, is_whiteout, kind_of, size_of};

/// Ours, in every root: no part of an image.
const AGENT_DIR: &str = ".cofferdam";
/// Of whole paths that are held while a layer is written.
const MAX_HELD_BYTES: usize = 64 << 20;

impl Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Images {
    /// Stores the layer of an upper directory, whose owners begin at `first`; files of the name `marker` are left out.
    pub(crate) fn layer_of(
        &self,
        upper: &Path,
        marker: &str,
        first: u32,
    ) -> Result<(Digest, u64), ImageError> {
        let tree = TenantTree::open(upper).map_err(at(upper))?;
        let mut tar = Builder::new(self.blobs.begin(self.bounds.layer_bytes)?);
        let (mut left, mut held) = (self.bounds.layer_entries, WalkPaths::default());
        while let Some(path) = held.open.pop() {
            let dir = tree.dir(&path).map_err(at(&path))?;
            let names = dir.names(left).map_err(at(&path))?;
            let names = names.ok_or(ImageError::TooLarge {
                what: "the number of a layer's entries",
                limit: self.bounds.layer_entries,
            })?;
            left = left.saturating_sub(u64::try_from(names.len()).unwrap_or(u64::MAX));
            for name in names {
                let path = path.join(&name);
                if path == Path::new(AGENT_DIR) || name == marker {
                    continue;
                }
                let entry = LayerItem { dir: &dir, name: &name, path, first };
                entry.append(&mut tar, &mut held)?;
            }
        }
        let incoming = tar.into_inner().map_err(at(upper))?;
        self.blobs.end(incoming, None)
    }
}

/// Whole paths that a walk holds: of a tenant's making, so they have a bound.
struct WalkPaths {
    /// Directories that are still to be looked into.
    open: Vec<PathBuf>,
    /// Files with more than one name, by inode: the first name.
    linked: BTreeMap<u64, PathBuf>,
    /// Bytes that may still be held.
    room: usize,
}

impl Default for WalkPaths {
    fn default() -> Self {
        Self { open: vec![PathBuf::new()], linked: BTreeMap::new(), room: MAX_HELD_BYTES }
    }
}

impl WalkPaths {
    fn charge(&mut self, path: &Path) -> Result<(), ImageError> {
        let left = self.room.checked_sub(path.as_os_str().len().saturating_add(64));
        self.room = left.ok_or(ImageError::TooLarge {
            what: "the bytes of the paths of a layer's directories and hard links",
            limit: u64::try_from(MAX_HELD_BYTES).unwrap_or(u64::MAX),
        })?;
        Ok(())
    }
}

/// One entry of an upper directory.
struct LayerItem<'a> {
    dir: &'a TenantDir,
    name: &'a OsStr,
    path: PathBuf,
    first: u32,
}

impl LayerItem<'_> {
    fn append(
        &self,
        tar: &mut Builder<BlobWriter>,
        held: &mut WalkPaths,
    ) -> Result<(), ImageError> {
        let (dir, name, path) = (self.dir, self.name, self.path.as_path());
        let fault = |error| at(path)(error);
        let found = dir.stat(name).map_err(fault)?;
        let mut header = self.header(&found);
        match kind_of(&found) {
            FileType::Directory => {
                if dir.has_attribute(name, "trusted.overlay.redirect") {
                    return Err(ImageError::hostile(
                        path,
                        "was renamed with the overlay's redirect_dir, which a layer cannot say",
                    ));
                }
                held.charge(path)?;
                held.open.push(path.to_owned());
                header.set_entry_type(EntryType::Directory);
                tar.append_data(&mut header, path, io::empty()).map_err(fault)?;
                if dir.has_attribute(name, "trusted.overlay.opaque") {
                    whiteout(tar, &path.join(".wh..wh..opq")).map_err(fault)?;
                }
                Ok(())
            }
            FileType::RegularFile => {
                if found.st_nlink > 1 {
                    if let Some(first) = held.linked.get(&found.st_ino) {
                        header.set_entry_type(EntryType::Link);
                        return tar.append_link(&mut header, path, first).map_err(fault);
                    }
                    held.charge(path)?;
                    held.linked.insert(found.st_ino, path.to_owned());
                }
                let (file, size) = (dir.file(name, &found).map_err(fault)?, size_of(&found));
                header.set_size(size);
                tar.append_data(&mut header, path, file.take(size)).map_err(fault)
            }
            FileType::Symlink => {
                let to = dir.link(name).map_err(fault)?;
                header.set_entry_type(EntryType::Symlink);
                tar.append_link(&mut header, path, to).map_err(fault)
            }
            FileType::Fifo => {
                header.set_entry_type(EntryType::Fifo);
                tar.append_data(&mut header, path, io::empty()).map_err(fault)
            }
            // Its listener is gone; builders leave it out too.
            FileType::Socket => Ok(()),
            _ if is_whiteout(&found) => {
                let mut gone = OsString::from(".wh.");
                gone.push(name);
                whiteout(tar, &path.with_file_name(gone)).map_err(fault)
            }
            _ => Err(ImageError::hostile(path, "is a device")),
        }
    }

    fn header(&self, found: &Stat) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(found.st_mode & 0o7777);
        header.set_uid(found.st_uid.saturating_sub(self.first).into());
        header.set_gid(found.st_gid.saturating_sub(self.first).into());
        header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
        header.set_size(0);
        header
    }
}

fn whiteout(tar: &mut Builder<BlobWriter>, path: &Path) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(0);
    header.set_size(0);
    tar.append_data(&mut header, path, io::empty())
}
