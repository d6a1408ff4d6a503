//! Mounts of this process: the private namespace, the two mounts of a sandbox, and what is mounted.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use cofferdam_ambient::clock;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::path::Arg as _;

use crate::host::error::HostError;
use crate::host::hybrid::{UNIFIED, hide_unified};

/// Unmounting is retried this often, a millisecond apart: a busy mount is one whose last process is
/// still on its way out, which takes well under 100 ms.
const UNMOUNT_TRIES: usize = 200;

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountInfo {
    pub point: PathBuf,
    pub fs: String,
    pub options: String,
}

/// Gives this process mounts of its own: what it mounts vanishes with it, even when it is killed,
/// and is seen by nobody else. On a hybrid host it also hides the cgroup2 tree, with which crun
/// refuses to work. Call it before any thread is started: only the calling thread, and threads that
/// it starts later, are moved.
pub fn enter_private_mounts() -> Result<(), HostError> {
    let fault = |source| HostError::PrivateMounts { source };
    let slave = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    // A process that is to outlive this one leaves by it: whoever is in our namespace keeps every mount of it.
    if let Ok(outside) = File::open("/proc/thread-self/ns/mnt") {
        let _ = OUTSIDE.set(outside.into());
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| fault(error.into()))?;
    rustix::mount::mount_change("/", slave).map_err(|error| fault(error.into()))?;
    let all = mounted().map_err(|source| HostError::Read { path: MOUNTINFO.into(), source })?;
    if is_hybrid(&all) {
        hide_unified().map_err(|source| HostError::Hide { source })?;
    }
    Ok(())
}

/// Mount namespace that this process had before its own.
static OUTSIDE: OnceLock<OwnedFd> = OnceLock::new();

/// A handle of the mount namespace outside this process's own; `None`: it has none of its own.
#[must_use]
pub fn outside_mounts() -> Option<OwnedFd> {
    OUTSIDE.get()?.try_clone().ok()
}

/// Whether both cgroup versions are mounted.
pub(crate) fn is_hybrid(all: &[MountInfo]) -> bool {
    all.iter().any(|m| m.fs == "cgroup")
        && all.iter().any(|m| m.fs == "cgroup2" && m.point == Path::new(UNIFIED))
}

/// Whether this thread's mount namespace is another than that of the process that started us: then
/// it ends with us, whether we made it or a service manager did.
pub(crate) fn is_private() -> bool {
    let of = |path: &str| fs::read_link(path).ok();
    let ours = of("/proc/thread-self/ns/mnt");
    ours.is_some() && ours != of(&format!("/proc/{}/ns/mnt", parent_id()))
}

const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// Everything that is mounted in this thread's namespace, in the order of mounting.
pub(crate) fn mounted() -> io::Result<Vec<MountInfo>> {
    let bytes = fs::read(MOUNTINFO)?;
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// One reading of what is mounted in this thread's namespace: the kernel takes microseconds for each line.
#[derive(Debug)]
pub(crate) struct MountText(Vec<u8>);

impl MountText {
    pub(crate) fn read() -> io::Result<Self> {
        fs::read(MOUNTINFO).map(Self)
    }

    /// Mount points at or below a directory, the last mounted first.
    pub(crate) fn below(&self, dir: &Path) -> Vec<PathBuf> {
        let lines = self.0.rsplit(|byte| *byte == b'\n');
        let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
        // Most are of other sandboxes, and have no blank in their names.
        let may_be =
            |field: &&[u8]| field.contains(&b'\\') || field.starts_with(dir.as_os_str().as_bytes());
        points.filter(may_be).map(point).filter(|point| point.starts_with(dir)).collect()
    }
}

/// Whether something is mounted at a path itself; `None`: the kernel does not say.
pub(crate) fn is_mount_point(at: &Path) -> Option<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match statx(CWD, at, flags, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Some(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Err(Errno::NOENT) => Some(false),
        _ => None,
    }
}

fn parse(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = point(fields.nth(4)?);
    let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
    let fs = String::from_utf8_lossy(tail.next()?).into_owned();
    let options = String::from_utf8_lossy(tail.nth(1)?).into_owned();
    Some(MountInfo { point, fs, options })
}

/// A mount point as a line of mountinfo has it.
pub(crate) fn point(field: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(unescape(field)))
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Mount points at or below a directory, the last mounted first.
pub(crate) fn mounted_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    MountText::read().map(|text| text.below(dir))
}

/// Of every mount here: without set-user-id programs and devices.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Mounts a file system that has no device, under the name of its kind.
fn mount(kind: &str, at: &Path, flags: MountFlags, options: &str) -> rustix::io::Result<()> {
    rustix::mount::mount(kind, at, kind, flags, &*options.into_c_str()?)
}

/// Mounts a tmpfs of `size_mb` MiB.
pub(crate) fn mount_tmpfs(at: &Path, size_mb: u64) -> rustix::io::Result<()> {
    mount("tmpfs", at, FLAGS, &format!("size={size_mb}m,mode=0700"))
}

/// The same for files that are about to be written at once: the kernel takes them by large pages, where it can.
pub(crate) fn mount_tmpfs_for_files(at: &Path, size_mb: u64) -> rustix::io::Result<()> {
    mount("tmpfs", at, FLAGS, &format!("size={size_mb}m,mode=0700,huge=within_size"))
        .or_else(|_| mount_tmpfs(at, size_mb))
}

/// Gives a mounted tmpfs another size, in MiB.
pub(crate) fn resize_tmpfs(at: &Path, size_mb: u64) -> rustix::io::Result<()> {
    rustix::mount::mount_remount(at, FLAGS, format!("size={size_mb}m"))
}

/// Mounts an overlay; the first lower layer lies on top of the others.
pub(crate) fn mount_overlay(
    at: &Path,
    lowers: &[PathBuf],
    upper: &Path,
    work: &Path,
) -> io::Result<()> {
    let held = DirHandles::overlay(lowers, upper, work)?;
    Ok(mount_with(at, &held.options()?)?)
}

/// The same of one lower layer whose directories can be renamed: the kernel notes in the upper directory where such a
/// directory was, in an attribute that no task can write (`trusted.`). A kernel that cannot answers EXDEV to the
/// rename, as before.
pub(crate) fn mount_overlay_with_moves(
    at: &Path,
    lower: &Path,
    upper: &Path,
    work: &Path,
) -> io::Result<()> {
    let held = DirHandles::overlay(&[lower.to_owned()], upper, work)?;
    let plain = held.options()?;
    let moves = [plain.as_slice(), &["redirect_dir=on".to_owned()]].concat();
    Ok(mount_with(at, &moves).or_else(|_| mount_with(at, &plain))?)
}

/// The same of options that were written before.
pub(crate) fn mount_with(at: &Path, options: &[String]) -> rustix::io::Result<()> {
    mount("overlay", at, FLAGS, &options.join(","))
}

/// Shows a directory read-only at another place, by an overlay of that directory and an empty one: what is opened there
/// has inodes of its own, so a lock, a lease or a watch on it concerns nobody else.
pub(crate) fn mount_apart(from: &Path, at: &Path, empty: &Path) -> io::Result<()> {
    let held = DirHandles::of(&[from, empty])?;
    let paths = held.paths();
    let lowers: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    Ok(mount("overlay", at, FLAGS | MountFlags::RDONLY, &overlay_lowers(&lowers))?)
}

/// Directories by number: a task reads the options of its mounts, and they say nothing of the host then.
struct DirHandles(Vec<OwnedFd>);

impl DirHandles {
    fn of(dirs: &[&Path]) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |dir: &&Path| Ok(rustix::fs::open(*dir, flags, Mode::empty())?);
        dirs.iter().map(open).collect::<io::Result<_>>().map(Self)
    }

    /// Those of an overlay, whose [`Self::options`] name them.
    fn overlay(lowers: &[PathBuf], upper: &Path, work: &Path) -> io::Result<Self> {
        let dirs: Vec<&Path> = lowers.iter().map(PathBuf::as_path).chain([upper, work]).collect();
        Self::of(&dirs)
    }

    fn options(&self) -> io::Result<Vec<String>> {
        let mut paths = self.paths();
        let (Some(work), Some(upper)) = (paths.pop(), paths.pop()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(overlay_options(&paths, &upper, &work))
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|dir| format!("/proc/self/fd/{}", dir.as_raw_fd()).into()).collect()
    }
}

/// The options of an overlay, for `mount(2)` and for an OCI mount alike.
pub(crate) fn overlay_options(lowers: &[PathBuf], upper: &Path, work: &Path) -> Vec<String> {
    let lowers: Vec<&Path> = lowers.iter().map(PathBuf::as_path).collect();
    vec![
        overlay_lowers(&lowers),
        format!("upperdir={}", escape(upper)),
        format!("workdir={}", escape(work)),
    ]
}

/// The option that names the lower layers, the uppermost first.
pub(crate) fn overlay_lowers(lowers: &[&Path]) -> String {
    let lowers: Vec<String> = lowers.iter().map(|lower| escape(lower)).collect();
    format!("lowerdir={}", lowers.join(":"))
}

/// A colon separates layers and a comma options, so neither may stand for itself in a path.
fn escape(path: &Path) -> String {
    String::from_utf8_lossy(path.as_os_str().as_bytes())
        .replace('\\', "\\\\")
        .replace(':', "\\:")
        .replace(',', "\\,")
}

/// Takes a mount off its place at once; who still uses it keeps it.
pub(crate) fn detach(at: &Path) -> rustix::io::Result<()> {
    rustix::mount::unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// Unmounts; what another unmounted in the meantime is unmounted. `Ok(false)`: it stayed busy and was only detached, so that its
/// memory is freed whenever its last user goes.
pub(crate) fn unmount(at: &Path) -> rustix::io::Result<bool> {
    for _ in 0..UNMOUNT_TRIES {
        match rustix::mount::unmount(at, UnmountFlags::NOFOLLOW) {
            Ok(()) => return Ok(true),
            Err(Errno::BUSY) => clock::sleep_blocking(Duration::from_millis(1)),
            Err(_) if is_mount_point(at) == Some(false) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    detach(at).map(|()| false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = b"36 35 98:0 / /mnt\\0402 rw,noatime master:1 shared:2 - tmpfs none rw,size=1m";
        let got = parse(line).unwrap();
        assert_eq!(got.point, Path::new("/mnt 2"));
        assert_eq!((got.fs.as_str(), got.options.as_str()), ("tmpfs", "rw,size=1m"));
        assert_eq!(parse(b"nonsense"), None);
        let text =
            MountText([&line[..], b"37 36 0:1 / /mnt\\0402/b rw - tmpfs none rw\n"].join(&b'\n'));
        assert_eq!(text.below(Path::new("/mnt 2")), ["/mnt 2/b", "/mnt 2"].map(PathBuf::from));
        assert_eq!(text.below(Path::new("/mnt")), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_mount_point_is_told_from_a_directory_and_from_nothing() {
        assert_eq!(is_mount_point(Path::new("/proc")), Some(true));
        assert_eq!(is_mount_point(Path::new("/proc/sys/kernel")), Some(false));
        assert_eq!(is_mount_point(Path::new("/proc/no such")), Some(false));
    }

    #[test]
    fn a_path_cannot_add_a_layer_or_an_option() {
        let options = overlay_options(&["/a:b,c\\d".into()], Path::new("/u"), Path::new("/w"));
        assert_eq!(options[0], "lowerdir=/a\\:b\\,c\\\\d");
    }
}
