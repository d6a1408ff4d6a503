//! One encrypted layer: made, and destroyed.

use std::ffi::CStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_ambient::{clock, random};
use cofferdam_contracts::sandbox::{WipeCheck, WipeSubject};
use rustix::fs::statvfs;
use rustix::mount::{MountFlags, mount, mount_bind};

use super::kernel::{self, KeyPresence};
use super::{LargeLayers, MIB};
use crate::host::traces::{Traces, layers};
use crate::host::{live, mounts};

/// Inode tables stay as they are in the sparse file (zeros); nothing has to survive a crash, so nothing
/// waits for the disk; and a broken image is no longer written.
const OPTIONS: &CStr = c"noinit_itable,nobarrier,errors=remount-ro";
/// A killed task's last descriptors and another start's copy of our mounts go within this time.
const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// What doctor tries: the smallest that is certainly no trouble to make.
const TRIAL_MB: u64 = 16;

/// Where it lies; a function of the sandbox's places.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub image: PathBuf,
    pub disk: PathBuf,
    pub layer: PathBuf,
    /// Where an overlay of the layer is mounted.
    pub root: PathBuf,
    /// Where a part of it is mounted for the runtime.
    pub beside: PathBuf,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("the encrypted layer: {what} {path:?}")]
pub(crate) struct MakeError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn fault<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> MakeError {
    let path = path.to_owned();
    move |source| MakeError { what, path, source: source.into() }
}

/// What became of the key.
#[derive(Debug)]
pub(crate) struct KeyEnd {
    /// It was there, and is not.
    pub destroyed: bool,
    pub check: WipeCheck,
}

impl Volume {
    pub(crate) fn of(traces: &Traces) -> Self {
        let Traces { image, disk, layer, root, .. } = traces;
        let [image, disk, layer, root] = [image, disk, layer, root].map(Clone::clone);
        Self { image, disk, layer, root, beside: traces.beside() }
    }

    /// Makes it, mounted at `layer`, which is there. What a failure leaves is the wipe's.
    pub(crate) fn make(&self, large: &LargeLayers, size_mb: u64) -> Result<(), MakeError> {
        let Self { image, disk, layer, .. } = self;
        let LargeLayers::Present { mkfs, .. } = large else {
            let missing = io::Error::from(io::ErrorKind::Unsupported);
            return Err(fault("making", image)(missing));
        };
        let file = self.create(size_mb)?;
        format(mkfs, image).map_err(fault("making a file system in", image))?;
        make_dir(disk)?;
        let (path, device) =
            kernel::attach(&file).map_err(fault("finding a loop device for", image))?;
        mount_disk(&path, disk).map_err(fault("mounting an ext4 at", disk))?;
        // From here on the mount alone holds it.
        drop(device);
        let root = File::open(disk).map_err(fault("opening", disk))?;
        let key = kernel::add_key(&root, random::secret_bytes());
        let key = key.map_err(fault("giving a key to", disk))?;
        let inner = self.inner();
        make_dir(&inner)?;
        let dir = File::open(&inner).map_err(fault("opening", &inner))?;
        kernel::set_policy(&dir, key).map_err(fault("encrypting", &inner))?;
        mount_bind(&inner, layer).map_err(fault("binding a directory to", layer))
    }

    /// The file, sparse, where there is room for all of it now.
    fn create(&self, size_mb: u64) -> Result<File, MakeError> {
        let image = &self.image;
        let parent = image.parent().unwrap_or(image);
        live::private_dir(parent).map_err(fault("making", parent))?;
        let stat = statvfs(parent).map_err(fault("looking for room at", parent))?;
        let room_mb = stat.f_bavail.saturating_mul(stat.f_frsize) / MIB;
        if room_mb < size_mb {
            let words = format!("{room_mb} MiB are free and {size_mb} MiB are asked for");
            return Err(fault("finding room at", parent)(io::Error::other(words)));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(image).map_err(fault("making", image))?;
        file.set_len(size_mb.saturating_mul(MIB)).map_err(fault("sizing", image))?;
        Ok(file)
    }

    fn inner(&self) -> PathBuf {
        self.disk.join("layer")
    }

    /// Whether anything of it is on this host.
    pub(crate) fn is_there(&self, points: &[PathBuf]) -> bool {
        points.contains(&self.disk)
            || fs::symlink_metadata(&self.image).is_ok()
            || !attached(&self.image).is_empty()
    }

    /// Where another namespace (a lost worker's, in which its database lives on) holds the file system, its key is reached by mounting the same
    /// device once more: the kernel has one file system for each.
    pub(crate) fn reach(&self, points: &[PathBuf]) {
        if points.contains(&self.disk) {
            return;
        }
        let Some(device) = attached(&self.image).into_iter().next() else { return };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.disk);
        if let Err(error) = made.and_then(|()| mount_disk(&device, &self.disk)) {
            tracing::warn!(device = %device.display(), %error, "an encrypted layer is out of reach");
        }
    }

    /// Has the kernel destroy the key: everything above the file system is unmounted, itself not yet.
    /// `None`: nothing in it was encrypted.
    pub(crate) fn end_key(&self) -> Option<KeyEnd> {
        // A directory that is removed takes along what other namespaces have mounted on it, which
        // would keep files in use. One that is mounted here stays, and is seen as busy.
        for point in [&self.root, &self.beside, &self.layer] {
            let _ = fs::remove_dir(point);
        }
        let root = File::open(&self.disk).ok()?;
        let identifier = kernel::key_of(&File::open(self.inner()).ok()?).ok()?;
        let name: String = identifier.iter().map(|byte| format!("{byte:02x}")).collect();
        let image = self.image.display().to_string();
        let (destroyed, ok, observed) = match remove_key(&root, identifier) {
            Ok((before, busy, after)) => {
                let ok = after == KeyPresence::Absent;
                let (was, is) = (before.as_str(), after.as_str());
                let busy = if busy { "files busy" } else { "no file busy" };
                let words = format!("before: {was}; removal: {busy}; after: {is}");
                (ok && before == KeyPresence::Present, ok, words)
            }
            Err(error) => (false, false, error.to_string()),
        };
        let looked = WipeSubject::Key { identifier: name, image };
        let check = WipeCheck { looked, ok, observed: Some(observed) };
        Some(KeyEnd { destroyed, check })
    }

    /// Takes device and file away, and looks for them; after the mount points are removed, and with them
    /// the mounts of other namespaces.
    pub(crate) fn remove(&self) -> [WipeCheck; 2] {
        let mut left = attached(&self.image);
        for attempt in 0..TRIES {
            if left.is_empty() {
                break;
            }
            // It goes with its last user by itself; once is for one that never had any.
            if attempt == 1 {
                left.iter().for_each(|device| drop(kernel::detach(device)));
            }
            clock::sleep_blocking(PAUSE);
            left = attached(&self.image);
        }
        let removed = fs::remove_file(&self.image);
        let still = match fs::symlink_metadata(&self.image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => Some(removed.err().map_or("still there".to_owned(), |error| error.to_string())),
        };
        let device = (!left.is_empty()).then(|| format!("{left:?} still has it"));
        let image = self.image.display().to_string();
        [
            WipeCheck::new(WipeSubject::LoopDevice(image.clone()), device),
            WipeCheck::new(WipeSubject::Image(image), still),
        ]
    }
}

fn remove_key(
    root: &File,
    identifier: kernel::Identifier,
) -> io::Result<(KeyPresence, bool, KeyPresence)> {
    let before = kernel::key_status(root, identifier)?;
    let (mut busy, mut after) = (false, before);
    for _ in 0..TRIES {
        if after == KeyPresence::Absent {
            break;
        }
        busy = kernel::remove_key(root, identifier)?;
        after = kernel::key_status(root, identifier)?;
        if after != KeyPresence::Absent {
            clock::sleep_blocking(PAUSE);
        }
    }
    Ok((before, busy, after))
}

/// The loop devices that have this file behind them, deleted or not.
pub(crate) fn attached(image: &Path) -> Vec<PathBuf> {
    let name = image.display().to_string();
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter(|device| {
            let behind = fs::read_to_string(device.path().join("loop/backing_file"));
            let behind = behind.unwrap_or_default();
            let behind = behind.trim_end_matches('\n');
            behind.strip_suffix(" (deleted)").unwrap_or(behind) == name
        })
        .map(|device| Path::new("/dev").join(device.file_name()))
        .collect()
}

fn mount_disk(device: &Path, at: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    Ok(mount(device, at, "ext4", flags, OPTIONS)?)
}

fn format(mkfs: &Path, image: &Path) -> io::Result<()> {
    let said = Command::new(mkfs)
        // Small files must not lie in their inode, where nothing is encrypted; none is reserved.
        .args(["-q", "-F", "-m", "0", "-b", "4096", "-O", "encrypt,^has_journal,^inline_data"])
        .args(["-E", "nodiscard,lazy_itable_init=1"])
        .arg(image)
        .env_clear()
        .stdin(Stdio::null())
        .output()?;
    match said.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&said.stderr).trim().to_owned())),
    }
}

fn make_dir(path: &Path) -> Result<(), MakeError> {
    DirBuilder::new().mode(0o700).create(path).map_err(fault("making", path))
}

/// Makes a small one and destroys it: whether this host can, and if not, why.
pub(crate) fn try_one(state: &Path, live: &Path, large: &LargeLayers) -> Result<(), String> {
    // No sandbox's name, so nobody takes it for an orphan.
    let name = format!("trial-{}", random::secret_hex(8));
    let dir = live.join(&name);
    let [disk, layer, root, beside] =
        ["disk", "layer", "root", "beside"].map(|name| dir.join(name));
    let image = layers(state).join(format!("{name}.img"));
    let volume = Volume { image, disk, layer, root, beside };
    let made =
        fs::create_dir_all(&volume.layer).map_err(|error| error.to_string()).and_then(|()| {
            volume
                .make(large, TRIAL_MB)
                .map_err(|error| cofferdam_contracts::error::error_chain(&error))
        });
    // What was not made is no error.
    let _ = mounts::unmount(&volume.layer);
    let key = volume.end_key();
    let _ = mounts::unmount(&volume.disk);
    for place in [&volume.layer, &volume.disk, &dir] {
        let _ = fs::remove_dir(place);
    }
    let left = volume.remove();
    made?;
    let key = key.map(|end| end.check).into_iter();
    match key.chain(left).find(|check| !check.ok) {
        Some(failed) => {
            Err(format!("{}: {}", failed.kind().as_str(), failed.observed.unwrap_or_default()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    const MARKER: &[u8] = b"the-plaintext-marker-of-a-tenant";

    fn holds_marker(image: &Path) -> bool {
        memchr::memmem::find(&fs::read(image).unwrap(), MARKER).is_some()
    }

    /// A volume in this directory, in mounts of this test's own; `None` where the host has none.
    fn volume_here(state: &Path) -> Option<Volume> {
        mounts::enter_private_mounts().expect("these tests need root");
        let large = LargeLayers::detect(state);
        if let LargeLayers::Absent { why, .. } = &large {
            crate::not_run::not_run("encrypted layers on disk (fscrypt)", &why.to_string());
            return None;
        }
        let volume = Volume {
            image: state.join("layers/one.img"),
            disk: state.join("disk"),
            layer: state.join("layer"),
            root: state.join("root"),
            beside: state.join("beside"),
        };
        fs::create_dir(&volume.layer).unwrap();
        volume.make(&large, TRIAL_MB).unwrap();
        Some(volume)
    }

    #[test]
    fn what_is_written_is_never_in_the_image_and_is_unreadable_without_the_key() {
        let state = tempfile::tempdir().unwrap();
        let Some(volume) = volume_here(state.path()) else { return };
        let name = String::from_utf8(MARKER.to_vec()).unwrap();
        let mut secret = File::create(volume.layer.join(&name)).unwrap();
        secret.write_all(&MARKER.repeat(1_000)).unwrap();
        // Beside the encrypted directory, to show that the search would find it.
        fs::write(volume.disk.join("open"), b"in-the-clear-in-the-clear").unwrap();
        secret.sync_all().unwrap();
        drop(secret);
        rustix::fs::syncfs(File::open(&volume.disk).unwrap()).unwrap();
        let raw = fs::read(&volume.image).unwrap();
        assert!(memchr::memmem::find(&raw, b"in-the-clear-in-the-clear").is_some());
        assert!(!holds_marker(&volume.image));

        assert!(mounts::unmount(&volume.layer).unwrap());
        let end = volume.end_key().unwrap();
        assert!(end.destroyed, "{end:?}");
        assert!(end.check.observed.unwrap().contains("before: present; removal: no file busy"));
        let left: Vec<_> = fs::read_dir(volume.inner()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_ne!(left[0].file_name().to_str().unwrap(), name);
        let error = fs::read(left[0].path()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOKEY));
        // An entry keeps its directory open.
        drop(left);
        assert!(mounts::unmount(&volume.disk).unwrap());
        assert!(!holds_marker(&volume.image));
        assert!(volume.remove().iter().all(|check| check.ok));
        assert!(!volume.is_there(&[]));
    }

    #[test]
    fn a_key_whose_files_are_still_open_is_not_called_destroyed() {
        let state = tempfile::tempdir().unwrap();
        let Some(volume) = volume_here(state.path()) else { return };
        let held = File::create(volume.inner().join("held")).unwrap();
        assert!(mounts::unmount(&volume.layer).unwrap());
        let end = volume.end_key().unwrap();
        assert!(!end.destroyed && !end.check.ok, "{end:?}");
        assert!(end.check.observed.unwrap().contains("files busy; after: incompletely removed"));
        drop(held);
        assert!(volume.end_key().unwrap().check.ok);
        assert!(mounts::unmount(&volume.disk).unwrap());
        assert!(volume.remove().iter().all(|check| check.ok));
    }
}
