//! The layer of a sandbox that is gone, with its files as they are: in memory, mounted nowhere, held by descriptors alone.
//!
//! ```text
//! layer of a sandbox --of--> DetachedLayer --attach--> layer of the next one, and a copy of its mount is held again
//!                                |  \--descriptor--> a process that reads the files, whatever becomes of this one
//!                                \--end--> no descriptor is left; the kernel says that the file system has ended
//! ```
//! Its ids stay taken, since the files have them.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_guest::removal::remove_tree;
use rustix::fs::fstatvfs;

use crate::host::file_system_end::{FileSystem, Witness};
use crate::host::holders;
use crate::host::idrange::{self, IdRange};
use crate::host::{live, mounts, upper};

/// Bytes that a stream of files has for each of them beside its contents: its head, its name and its attributes. Longer
/// ones are beyond what is reserved, and need room when they are written.
const HEAD_BYTES: u64 = 512;
/// What it has at most: both access lists, the longest names, and its head.
const MOST_BYTES: u64 = 2 * 64 * 1024 + 4 * 1024;
/// Directory of the files in a layer; all else in it is made anew for each life.
const FILES: &str = "upper";

/// A layer that outlives its sandbox.
#[derive(Debug)]
pub struct DetachedLayer {
    own: FileSystem,
    ids: Option<IdRange>,
    held: Mutex<LayerMount>,
}

#[derive(Debug)]
struct LayerMount {
    /// A copy of its mount, attached nowhere; `None` once it was given up.
    tree: Option<OwnedFd>,
    /// Directory of the sandbox that has it or had it last.
    dir: PathBuf,
    /// What tells of its end, once it was given up.
    witness: Option<Witness>,
}

impl DetachedLayer {
    /// Of a layer that is mounted; `None`: it does not lie in memory.
    pub(crate) fn of(layer: &Path, dir: &Path, ids: Option<IdRange>) -> io::Result<Option<Self>> {
        if !live::is_memory(layer) {
            return Ok(None);
        }
        let (own, tree) = (FileSystem::of(layer)?, Some(idrange::copy(layer)?));
        let held = Mutex::new(LayerMount { tree, dir: dir.to_owned(), witness: None });
        Ok(Some(Self { own, ids, held }))
    }

    /// The ids that its files have, where they are a sandbox's own.
    pub(crate) fn ids(&self) -> Option<IdRange> {
        self.ids.clone()
    }

    /// The first id of its files' owners.
    #[must_use]
    pub fn first_id(&self) -> u32 {
        self.ids.as_ref().map_or(0, |ids| ids.first)
    }

    /// Whether nobody else was given the ids that its files have.
    #[must_use]
    pub fn has_ids(&self) -> bool {
        self.has_ids_of(&self.lock().dir)
    }

    fn has_ids_of(&self, dir: &Path) -> bool {
        self.ids.as_ref().is_none_or(|ids| idrange::is_of(ids.first, dir))
    }

    /// Which file system it is, as evidence names it.
    #[must_use]
    pub fn file_system(&self) -> String {
        self.own.text()
    }

    /// Bytes that its files take as a stream.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn sizes(&self) -> io::Result<StreamSizes> {
        stream_sizes(self.lock().tree.as_ref().ok_or_else(over)?)
    }

    /// What another process reads it by with [`write_files`].
    ///
    /// # Errors
    /// It was given up, or there are too many descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.lock().tree.as_ref().ok_or_else(over)?.try_clone()
    }

    /// Makes it the layer of a sandbox in `dir`. It is held as before.
    pub(crate) fn attach(
        &self,
        layer: &Path,
        size_mb: u64,
        dir: &Path,
        has_ids: bool,
    ) -> io::Result<()> {
        if has_ids != self.ids.is_some() {
            return Err(io::Error::other("its files have the ids of another kind of sandbox"));
        }
        let mut held = self.lock();
        let tree = held.tree.as_ref().ok_or_else(over)?;
        if !self.has_ids_of(&held.dir) {
            return Err(io::Error::other("the ids of its files are another sandbox's"));
        }
        idrange::attach(tree, layer)?;
        // The one that was attached is the mount's own now.
        held.tree = Some(idrange::copy(layer)?);
        if let Some(ids) = &self.ids {
            idrange::hand_over(ids.first, dir)?;
        }
        dir.clone_into(&mut held.dir);
        mounts::resize_tmpfs(layer, size_mb)?;
        for entry in fs::read_dir(layer)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                _ if entry.file_name() == FILES => {}
                true => remove_tree(&entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    /// Gives it up, and looks whether its file system has ended: within a second, if nobody else has it. Blocking. It may be
    /// asked again.
    ///
    /// # Errors
    /// Who has it, in words.
    pub fn end(&self) -> Result<(), String> {
        let mut held = self.lock();
        if let Some(tree) = held.tree.take() {
            held.witness = Witness::of(&path_of(&tree, ""));
        }
        let witness = held.witness.as_ref();
        if let Some(holders) = holders::left(self.own, &[], witness)
            && (witness.is_some() || !holders.is_empty())
        {
            return Err(format!("{} is kept by {}", self.file_system(), holders.in_words()));
        }
        idrange::give_back(&held.dir, self.ids.as_ref().map(|taken| taken.first));
        Ok(())
    }

    /// Leaves it to the sandbox that it is attached to, which ends it.
    pub fn let_go(&self) {
        self.lock().tree = None;
    }

    fn lock(&self) -> MutexGuard<'_, LayerMount> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the files of a layer, by its descriptor, as a stream. Once `goes_on` says no, it is an error.
///
/// # Errors
/// What cannot be read or written.
pub fn write_files(
    tree: &OwnedFd,
    first: u32,
    out: &mut dyn Write,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    upper::pack(&path_of(tree, FILES), first, out, goes_on)
}

/// Bytes that [`write_files`] would write.
///
/// # Errors
/// What cannot be read.
pub fn measure_files(tree: &OwnedFd, first: u32, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
    upper::measure(&path_of(tree, FILES), first, goes_on)
}

/// Bytes that the files of a layer take as a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamSizes {
    /// About how many.
    pub about: u64,
    /// At most, whatever their access lists are: those are counted by no kernel.
    pub most: u64,
}

/// What the kernel counts of a layer, by its descriptor.
///
/// # Errors
/// It does not say.
pub fn stream_sizes(tree: &OwnedFd) -> io::Result<StreamSizes> {
    Ok(StreamSizes {
        about: stream_bytes(tree, HEAD_BYTES)?,
        most: stream_bytes(tree, MOST_BYTES)?,
    })
}

fn stream_bytes(tree: &OwnedFd, head: u64) -> io::Result<u64> {
    let stat = fstatvfs(tree)?;
    let blocks = stat.f_blocks.saturating_sub(stat.f_bfree);
    let files = stat.f_files.saturating_sub(stat.f_ffree);
    let bytes = blocks.saturating_mul(stat.f_frsize);
    Ok(bytes.saturating_add(files.saturating_mul(head)))
}

fn path_of(tree: &OwnedFd, below: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", tree.as_raw_fd())).join(if below.is_empty() {
        "."
    } else {
        below
    })
}

fn over() -> io::Error {
    io::Error::other("the layer was given up")
}
