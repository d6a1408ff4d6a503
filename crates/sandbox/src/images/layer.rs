//! What a sandbox wrote, as a layer: the tar of an overlay's upper directory.
//!
//! The tree is what a task left behind, read by root: no link is followed, files are opened without
//! following the last name, and nobody else writes there (a step's processes are gone). The order is
//! that of the paths, so that the same tree gives the same layer.

use std::collections::BTreeMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use rustix::fs::{OFlags, lgetxattr};
use tar::{Builder, EntryType, Header};

use super::blob::Incoming;
use super::error::{ImageError, at};
use super::store::Images;

/// Ours, in every root: no part of an image.
const AGENT_DIR: &str = ".cofferdam";

impl Write for Incoming {
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
        let mut tar = Builder::new(self.blob_begin(self.bounds.layer_bytes)?);
        let mut linked = BTreeMap::new();
        let mut entries = 0;
        let mut open = vec![PathBuf::new()];
        while let Some(dir) = open.pop() {
            let mut names = Vec::new();
            let full = upper.join(&dir);
            for entry in fs::read_dir(&full).map_err(at(&full))? {
                names.push(entry.map_err(at(&full))?.file_name());
            }
            names.sort_unstable();
            for name in names {
                let path = dir.join(&name);
                if path == Path::new(AGENT_DIR) || name == marker {
                    continue;
                }
                entries += 1;
                if entries > self.bounds.layer_entries {
                    let limit = self.bounds.layer_entries;
                    return Err(ImageError::TooLarge {
                        what: "the number of a layer's entries",
                        limit,
                    });
                }
                let found = fs::symlink_metadata(upper.join(&path)).map_err(at(&path))?;
                append(&mut tar, upper, &path, &found, first, &mut linked)?;
                if found.is_dir() {
                    open.push(path);
                }
            }
        }
        let incoming = tar.into_inner().map_err(at(upper))?;
        self.blob_end(incoming, None)
    }
}

fn append(
    tar: &mut Builder<Incoming>,
    upper: &Path,
    path: &Path,
    found: &Metadata,
    first: u32,
    linked: &mut BTreeMap<u64, PathBuf>,
) -> Result<(), ImageError> {
    let full = upper.join(path);
    let fault = |error| at(&full)(error);
    let kind = found.file_type();
    let mut header = Header::new_gnu();
    header.set_mode(found.mode() & 0o7777);
    header.set_uid(found.uid().saturating_sub(first).into());
    header.set_gid(found.gid().saturating_sub(first).into());
    header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
    header.set_size(0);
    if kind.is_dir() {
        if has(&full, "trusted.overlay.redirect") {
            return Err(ImageError::hostile(
                path,
                "was renamed with the overlay's redirect_dir, which a layer cannot say",
            ));
        }
        header.set_entry_type(EntryType::Directory);
        tar.append_data(&mut header, path, io::empty()).map_err(fault)?;
        if has(&full, "trusted.overlay.opaque") {
            whiteout(tar, &path.join(".wh..wh..opq")).map_err(fault)?;
        }
        Ok(())
    } else if kind.is_file() {
        if found.nlink() > 1 {
            if let Some(first) = linked.get(&found.ino()) {
                header.set_entry_type(EntryType::Link);
                return tar.append_link(&mut header, path, first).map_err(fault);
            }
            linked.insert(found.ino(), path.to_owned());
        }
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&full).map_err(fault)?;
        header.set_size(found.len());
        tar.append_data(&mut header, path, io::Read::take(file, found.len())).map_err(fault)
    } else if kind.is_symlink() {
        let to = fs::read_link(&full).map_err(fault)?;
        header.set_entry_type(EntryType::Symlink);
        tar.append_link(&mut header, path, to).map_err(fault)
    } else if kind.is_fifo() {
        header.set_entry_type(EntryType::Fifo);
        tar.append_data(&mut header, path, io::empty()).map_err(fault)
    } else if kind.is_char_device() && found.rdev() == 0 {
        // The overlay's own word for "removed".
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        whiteout(tar, &path.with_file_name(format!(".wh.{name}"))).map_err(fault)
    } else if kind.is_socket() {
        // Its listener is gone; builders leave it out too.
        Ok(())
    } else {
        Err(ImageError::hostile(path, "is a device"))
    }
}

fn whiteout(tar: &mut Builder<Incoming>, path: &Path) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(0);
    header.set_size(0);
    tar.append_data(&mut header, path, io::empty())
}

fn has(path: &Path, attribute: &str) -> bool {
    let mut value = [0_u8; 1];
    // Too long for our byte is there too.
    !matches!(
        lgetxattr(path, attribute, &mut value),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}
