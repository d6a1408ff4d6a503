//! Mounts that show files of the host with the ids of a range.

use std::ffi::CStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use cofferdam_ambient::random;
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::host::mounts;

/// `struct mount_attr` of `mount_setattr(2)`.
#[derive(Default)]
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    namespace: u64,
}

const READ_ONLY: u64 = 0x1;
const NO_SET_ID: u64 = 0x2;
const NO_DEVICES: u64 = 0x4;
const NO_PROGRAMS: u64 = 0x8;
const SHIFTED: u64 = 0x10_0000;

/// A copy of the mount of `source`, attached nowhere, `nosuid,nodev`, without what is mounted below; its ids are those of
/// the namespace where one is given.
pub(crate) fn shifted(
    source: &Path,
    space: Option<&OwnedFd>,
    readonly: bool,
) -> io::Result<OwnedFd> {
    let mut attributes = Attributes { set: NO_SET_ID | NO_DEVICES, ..Attributes::default() };
    if readonly {
        attributes.set |= READ_ONLY;
    }
    if let Some(space) = space {
        attributes.set |= SHIFTED;
        attributes.namespace = u64::try_from(space.as_raw_fd()).map_err(io::Error::other)?;
    }
    copied(source, attributes)
}

/// The same for a directory of device nodes, which can be opened through it.
pub(crate) fn with_devices(source: &Path) -> io::Result<OwnedFd> {
    let set = NO_SET_ID | NO_PROGRAMS;
    copied(source, Attributes { set, clear: NO_DEVICES, ..Attributes::default() })
}

/// A copy of a mount as it is, attached nowhere.
pub(crate) fn copy(source: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, source, flags)?)
}

fn copied(source: &Path, attributes: Attributes) -> io::Result<OwnedFd> {
    let tree = copy(source)?;
    dress(&tree, &attributes)?;
    Ok(tree)
}

/// Gives a copy these attributes.
fn dress(tree: &impl AsFd, attributes: &Attributes) -> io::Result<()> {
    let empty: &CStr = c"";
    #[expect(unsafe_code, reason = "mount_setattr(2) has no safe wrapper")]
    // SAFETY: the kernel reads an empty path and a structure of the size that is given, both of which live until it returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Mounts a copy.
pub(crate) fn attach(tree: &OwnedFd, at: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Shows a directory of ours shifted below an overlay, looks whose it is there, and takes all of it away.
pub(super) fn try_one(source: &Path, live: &Path, space: &OwnedFd) -> io::Result<()> {
    let dir = live.join(format!(".ids-{}", random::secret_hex(8)));
    let [lower, empty, root] = ["lower", "empty", "root"].map(|name| dir.join(name));
    let made = (|| {
        for path in [&dir, &lower, &empty, &root] {
            DirBuilder::new().mode(0o700).create(path)?;
        }
        attach(&shifted(source, Some(space), true)?, &lower)?;
        mounts::mount_apart(&lower, &root, &empty)?;
        let (before, after) = (fs::metadata(source)?.uid(), fs::metadata(&root)?.uid());
        match before == after {
            true => Err(io::Error::other("it shows the host's own ids")),
            false => Ok(()),
        }
    })();
    // Whatever was made goes, in the opposite order; what was not is no error.
    let _ = mounts::unmount(&root);
    let _ = mounts::unmount(&lower);
    fs::remove_dir_all(&dir)?;
    made
}
