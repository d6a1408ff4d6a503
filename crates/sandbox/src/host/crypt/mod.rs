//! Writable layers that are too large for memory.
//!
//! ```text
//! <state>/layers/<id>.img   sparse file, ciphertext   -> /dev/loopN (detached with its last user)
//!   <live>/sandboxes/<id>/disk         ext4 of it, without a journal
//!     disk/layer                       encrypted by fscrypt: names and contents
//!   <live>/sandboxes/<id>/layer        the same directory, bound to where a tmpfs would be
//! ```
//! The key is fresh from the operating system's randomness, goes to the kernel's keyring of this one
//! file system, and our copy is overwritten at once: **it is nowhere but in the kernel, and never on a
//! disk.** The wipe has the kernel destroy it, asks whether it did, and only then unmounts, detaches and
//! deletes. A worker that is killed takes its mounts along, and with the file system goes the key; what is
//! left is a file of ciphertext, which `reconcile` deletes.
//!
//! fscrypt leaves sizes, owners, modes, times and extended attributes in clear.

mod kernel;
mod volume;

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::host::live;
use crate::host::traces::layers;

pub(crate) use volume::{KeyEnd, MakeError, Volume, attached, try_one};

const CONTROL: &str = "/dev/loop-control";
/// Says whether this kernel was built with fscrypt, once ext4 is there.
const FEATURE: &str = "/sys/fs/ext4/features/encryption";
const MKFS_PLACES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
const MIB: u64 = 1024 * 1024;
/// Whether this host can hold layers that are too large for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LargeLayers {
    /// By what the module's head draws.
    Present {
        /// Makes the file system.
        mkfs: PathBuf,
        /// Size of the file system that the images lie on, in MiB.
        most_mb: u64,
    },
    /// None; every layer lies in memory.
    Absent {
        /// Reason, for the operator.
        why: String,
        /// What would change that.
        remedy: String,
    },
}

impl LargeLayers {
    /// Looks at what is needed, in the order in which it is missing most often.
    pub(crate) fn detect(state: &Path) -> Self {
        let absent =
            |why: &str, remedy: &str| Self::Absent { why: why.into(), remedy: remedy.into() };
        if live::is_memory(state) {
            return absent("the state directory lies in memory itself", "put it on a disk");
        }
        if !Path::new(FEATURE).exists() {
            let why = "the kernel has no ext4 with fscrypt (CONFIG_FS_ENCRYPTION)";
            return absent(why, "modprobe ext4, or a kernel with both");
        }
        if !Path::new(CONTROL).exists() {
            return absent("/dev/loop-control is missing", "modprobe loop");
        }
        let mut places = MKFS_PLACES.iter().map(|dir| Path::new(dir).join("mkfs.ext4"));
        let Some(mkfs) = places.find(|path| path.is_file()) else {
            return absent("mkfs.ext4 was not found", "apt-get install e2fsprogs");
        };
        let most_mb =
            statvfs(state).map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize) / MIB);
        Self::Present { mkfs, most_mb }
    }
}

/// The names of the sandboxes that an image is there of.
pub(crate) fn names(state: &Path) -> Vec<String> {
    let entries = fs::read_dir(layers(state)).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".img").map(str::to_owned))
        .collect()
}
