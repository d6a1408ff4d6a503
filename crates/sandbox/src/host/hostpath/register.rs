//! The state directories of this host, of all installations: whoever shows a directory to a task asks here
//! whether one lies in it. The mark in a state directory tells it from within; nothing in the directories above
//! it says that it is there.

use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Where they are written down: one file for each, with its path. Root's alone.
const REGISTER: &str = "/var/lib/cofferdam-states";
/// Installations of one host. Beyond it a register is not believed to be whole.
const MAX_ENTRIES: usize = 4_096;
/// Bytes of a path.
const MAX_PATH_BYTES: u64 = 4_096;

/// Writes a state directory down. Who may not write there has nothing that root's workers could not see.
pub(super) fn add(state: &Path, is_state: impl Fn(&Path) -> bool) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let state = state.canonicalize()?;
    match DirBuilder::new().mode(0o700).create(REGISTER) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for (entry, path) in entries()? {
        // What was removed since is no state directory any more.
        if !is_state(&path) {
            let _ = fs::remove_file(entry);
        }
    }
    let mut hash = DefaultHasher::new();
    state.hash(&mut hash);
    let name = Path::new(REGISTER).join(format!("{:016x}", hash.finish()));
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(name) {
        Ok(mut file) => file.write_all(state.as_os_str().as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Every state directory that was written down, whether it is still there or not.
pub(super) fn all() -> io::Result<Vec<PathBuf>> {
    Ok(entries()?.into_iter().map(|(_, path)| path).collect())
}

fn entries() -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let listed = match fs::read_dir(REGISTER) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // Another user's worker reads what it may: what it cannot look into is not its to show either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in listed {
        if found.len() == MAX_ENTRIES {
            return Err(io::Error::other(format!("more than {MAX_ENTRIES} entries in {REGISTER}")));
        }
        let entry = entry?.path();
        // One that is being written, or was removed meanwhile, is not there.
        let Ok(about) = entry.symlink_metadata() else { continue };
        if !about.is_file() || about.len() > MAX_PATH_BYTES {
            continue;
        }
        let Ok(text) = fs::read(&entry) else { continue };
        let path = PathBuf::from(std::ffi::OsString::from_vec(text));
        if path.is_absolute() {
            found.push((entry, path));
        }
    }
    Ok(found)
}
