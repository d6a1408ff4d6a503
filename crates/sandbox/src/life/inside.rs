//! Inputs of a sandbox that has ids of its own, mounted in its root before there is anybody in it.
//!
//! A target is resolved within the root, where a link leads nowhere else; what is missing of it is made, as an OCI runtime
//! does, and belongs to the sandbox's root.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cofferdam_guest::wire::User;
use rustix::mount::{MoveMountFlags, move_mount};
use serde_json::Value;

use crate::class::input_mounts::Overlay;
use crate::host::devices;
use crate::host::idrange::{self, IdRange, IdRanges, shifted};
use crate::host::tenant_root::{self, TenantRoot};
use crate::life::error::{BootError, fault};

/// The sandbox's own.
const ROOT: User = User { uid: 0, gid: 0 };
/// Mounted there by the runtime, later.
const RUNTIMES: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Whose inputs are in the sandbox.
pub(crate) struct InputOwners<'a> {
    pub ranges: &'a IdRanges,
    pub taken: &'a IdRange,
    /// Whom the task runs as, where that is not root.
    pub user: Option<User>,
    /// Where that lies which a tenant named.
    pub given: PathBuf,
}

impl InputOwners<'_> {
    /// The mount of a source of the host. One to write through shows its owner's files as those of the task's user, and what
    /// that user makes there is its owner's.
    fn tree(&self, source: &Path, found: &Metadata, readonly: bool) -> io::Result<OwnedFd> {
        let (ranges, taken) = (self.ranges, self.taken);
        let owner = User { uid: found.uid(), gid: found.gid() };
        match self.user.filter(|_| source.starts_with(&self.given)) {
            Some(user) if readonly => {
                shifted(source, Some(&ranges.exchanged(taken, owner, user)?), true)
            }
            None if readonly => shifted(source, Some(&taken.space), true),
            user => {
                let space = ranges.owned(owner, taken.first, user.unwrap_or(ROOT))?;
                shifted(source, Some(&space), false)
            }
        }
    }
}

/// Mounts one bind of an OCI configuration. What lies in the sandbox's own layer, or is shown through an overlay, has its
/// ids already.
pub(crate) fn show(
    root: &TenantRoot,
    layer: &Path,
    overlays: &[Overlay],
    mount: &Value,
    owners: &InputOwners<'_>,
) -> Result<(), BootError> {
    let text = |field: &str| mount.get(field).and_then(Value::as_str).unwrap_or_default();
    let (source, target) = (Path::new(text("source")), Path::new(text("destination")));
    let options = mount.get("options").and_then(Value::as_array);
    let readonly = options.is_some_and(|all| all.iter().any(|option| option == "ro"));
    let found = fs::metadata(source).map_err(fault("showing", source))?;
    let has_ids = source.starts_with(layer) || overlays.iter().any(|overlay| overlay.at == source);
    let tree = match has_ids {
        true => shifted(source, None, readonly),
        false => owners.tree(source, &found, readonly),
    };
    let tree = tree.map_err(fault("showing with other ids", source))?;
    let placed = if RUNTIMES.iter().any(|dir| target.starts_with(dir)) {
        Err(io::Error::other("the runtime mounts something of its own over it"))
    } else {
        attach(&tree, root, target, found.is_dir())
    };
    placed.map_err(fault("mounting in the sandbox", target))
}

/// Mounts beside the root what the runtime binds, all of it from the layer and none of it from a tenant: an empty directory
/// and, where it may, a `/dev` with nodes of the sandbox's own, which the runtime takes as it is. A tree of the layer: the
/// mounts of a task name no directory of the host. And a place for each of these groups.
pub(crate) fn make_beside(
    layer: &Path,
    groups: &[&str],
    at: &Path,
    taken: &IdRange,
    has_devices: bool,
) -> Result<(), BootError> {
    let own = devices::beside(layer);
    let made = (|| {
        // The sandbox's root gets through, and lists nothing.
        directory(&own, 0o711)?;
        let nothing = devices::nothing(&own);
        directory(&nothing, 0o555)?;
        chown(&nothing, Some(taken.first), Some(taken.first))?;
        if !groups.is_empty() {
            let places = devices::groups(&own);
            directory(&places, 0o755)?;
            for name in groups {
                directory(&places.join(name), 0o555)?;
            }
        }
        let tree = if has_devices {
            devices::furnish(&directory(&devices::of(layer), 0o755)?, taken.first)?;
            idrange::with_devices(&own)?
        } else {
            shifted(&own, None, false)?
        };
        DirBuilder::new().mode(0o700).create(at)?;
        idrange::attach(&tree, at)
    })();
    made.map_err(fault("making what is bound, at", at))
}

/// A directory to mount at, made where it is missing.
pub(crate) fn place(root: &TenantRoot, path: &Path) -> Result<OwnedFd, BootError> {
    root.dir(path, 0o755).map_err(|error| match error.raw_os_error() {
        // A link or a file of the tenant's: the next attempt would meet it as well.
        Some(libc::ELOOP | libc::ENOTDIR) => {
            let place = path.display().to_string();
            BootError::Displaced(place.trim_start_matches('/').to_owned())
        }
        _ => fault("mounting in the sandbox at", path)(error),
    })
}

/// Mounts the root's `/tmp` beside it.
pub(crate) fn bind_tmp(root: &TenantRoot, at: &Path) -> Result<(), BootError> {
    let made = (|| {
        let tmp = root.dir(Path::new("tmp"), 0o1777)?;
        DirBuilder::new().mode(0o700).create(at)?;
        idrange::attach(&tenant_root::copy_of(&tmp)?, at)
    })();
    made.map_err(fault("showing its /tmp at", at))
}

/// Makes a directory of this mode, whatever this process takes off the modes of new files.
fn directory(at: &Path, mode: u32) -> io::Result<File> {
    fs::create_dir(at)?;
    let opened = File::open(at)?;
    opened.set_permissions(Permissions::from_mode(mode))?;
    Ok(opened)
}

fn attach(tree: &OwnedFd, root: &TenantRoot, target: &Path, is_dir: bool) -> io::Result<()> {
    let at = root.target(target, is_dir)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", &at, "", flags)?)
}
