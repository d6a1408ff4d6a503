//! The live directory: where the sandboxes of a state directory lie while they live.
//!
//! A sandbox needs a dozen small files and directories for a few milliseconds. On a disk each of
//! them passes through the file system's journal, which takes a third of a short task's time; so
//! they lie on the host's own tmpfs, where one is there, and `<state>/live` is a link to the place.
//! A tmpfs of our own would not do: what is mounted in a private namespace stays, out of sight, as
//! long as anything started there does.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use cofferdam_ambient::random;
use rustix::fs::statfs;
use rustix::process::geteuid;

/// Every Linux has the second; where systemd runs the first is a tmpfs too, and only root's.
const CANDIDATES: [&str; 2] = ["/run", "/dev/shm"];
/// Two workers may make the link at once, and a reboot may have emptied its end.
const TRIES: usize = 4;
const PASSAGE: u32 = 0o711;
/// Directory of the marks of containers that wait.
const WAITS: &str = "waits";

fn link(state: &Path) -> PathBuf {
    state.join("live")
}

/// Where the sandboxes of a resolved state directory lie, whether the directory is there or not.
pub(crate) fn of(state: &Path) -> PathBuf {
    fs::read_link(link(state)).unwrap_or_else(|_| state.to_owned())
}

/// Makes the directory, and the link where there is a tmpfs to point to.
pub(crate) fn prepare(state: &Path) -> io::Result<PathBuf> {
    for _ in 0..TRIES {
        let link = link(state);
        match fs::read_link(&link) {
            Ok(live) => match make(&live) {
                // An older one lets nobody through.
                Ok(()) => {
                    fs::set_permissions(&live, Permissions::from_mode(PASSAGE))?;
                    return Ok(live);
                }
                // Somebody else's: never to be used, whatever it holds.
                Err(_) => fs::remove_file(&link)?,
            },
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {
                let Some(memory) = memory(state) else { return Ok(state.to_owned()) };
                // Unguessable, so that nobody on this host can be there first.
                let live = memory.join(format!("cofferdam.{}", random::secret_hex(8)));
                match symlink(&live, &link) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(state.to_owned())
}

/// Makes one directory that only we may look into; one that is there stays as it is.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Makes a directory that everybody gets through and nobody else lists: the root of a sandbox with ids of its own is
/// nobody, and has to get to its root file system.
pub(crate) fn passage(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PASSAGE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Makes a live directory, or finds it made by us.
pub(crate) fn make(live: &Path) -> io::Result<()> {
    passage(live)?;
    let found = fs::symlink_metadata(live)?;
    match found.is_dir() && found.uid() == geteuid().as_raw() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{} belongs to another user", live.display()))),
    }
}

/// Where the marks of a live directory's waiting containers lie.
pub(crate) fn waits(live: &Path) -> PathBuf {
    live.join(WAITS)
}

/// Takes an empty live directory away; whoever needs it makes it again.
pub(crate) fn leave(state: &Path, live: &Path) {
    if live != state {
        for name in ["sandboxes", "run", WAITS, ""] {
            let _ = fs::remove_dir(live.join(name));
        }
    }
}

/// The host's tmpfs; `None` where it has none, or the state directory lies on one itself.
fn memory(state: &Path) -> Option<PathBuf> {
    if is_memory(state) {
        return None;
    }
    CANDIDATES.iter().map(PathBuf::from).find(|path| is_memory(path))
}

/// Whether a path lies on a tmpfs.
pub(crate) fn is_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_directory_that_is_somebody_elses_is_never_used() {
        let state = tempfile::tempdir().unwrap();
        let foreign = state.path().join("foreign");
        fs::write(&foreign, "not a directory of ours").unwrap();
        symlink(&foreign, link(state.path())).unwrap();
        let live = prepare(state.path()).unwrap();
        assert_ne!(live, foreign);
        assert_eq!(of(state.path()), live);
        leave(state.path(), &live);
        assert!(live == state.path() || !live.exists());
    }

    #[test]
    fn a_reboot_that_emptied_the_tmpfs_changes_nothing() {
        let state = tempfile::tempdir().unwrap();
        let live = prepare(state.path()).unwrap();
        leave(state.path(), &live);
        assert_eq!(prepare(state.path()).unwrap(), live);
        leave(state.path(), &live);
    }
}
