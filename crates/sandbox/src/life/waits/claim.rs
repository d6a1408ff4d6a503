//! The mark that a container waits for a living worker: a locked file of its name beside the sandboxes.
//!
//! ```text
//! made and locked --> its sandbox is on record: removed      (taken)
//!                \--> it is wiped: removed                    (given up)
//!                \--> its worker ended: the kernel unlocks it (abandoned: any worker of the host wipes it)
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::SandboxId;

use crate::host::live;

/// Workers that stop in this very moment and take the empty directory away, or that start and find the file before it
/// is locked.
const TRIES: usize = 3;

/// One name, marked until the value is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    file: File,
}

impl Claim {
    /// # Errors
    /// The live directory takes no file.
    pub fn take(live: &Path, id: &SandboxId) -> io::Result<Self> {
        let dir = live::waits(live);
        let (path, hidden) = (dir.join(id.as_str()), dir.join(format!(".{id}")));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let make = || {
            live::make(live)?;
            live::private_dir(&dir)?;
            let file = options.open(&hidden)?;
            file.lock()?;
            // It has its name only once it is locked: another worker never finds it unlocked.
            fs::rename(&hidden, &path)?;
            Ok(file)
        };
        let mut made: io::Result<File> = make();
        for _ in 0..TRIES {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => made = make(),
                _ => break,
            }
        }
        let file = made?;
        Ok(Self { path, file })
    }
}

#[cfg(test)]
impl Claim {
    /// What the kernel does when its worker ends.
    pub fn unlock(&self) {
        self.file.unlock().unwrap();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // A child of this process that has not executed its program yet holds the descriptor, too.
        let _ = self.file.unlock();
    }
}

/// The marked names whose worker is not alive any more. Theirs is what is left of a container that waited.
pub(crate) fn abandoned(live: &Path) -> BTreeSet<SandboxId> {
    let entries = fs::read_dir(live::waits(live)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let ids = names.filter_map(|name| SandboxId::parse(&name).ok());
    ids.filter(|id| !is_held(live, id)).collect()
}

/// Whether a living worker has a container waiting under this name.
pub(crate) fn is_held(live: &Path, id: &SandboxId) -> bool {
    let file = File::open(live::waits(live).join(id.as_str()));
    file.is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// Takes away what a worker left that was killed before its mark had its name.
pub(crate) fn sweep(live: &Path) {
    for entry in fs::read_dir(live::waits(live)).into_iter().flatten().flatten() {
        let is_nameless = entry.file_name().as_encoded_bytes().starts_with(b".");
        let file = File::open(entry.path()).ok().filter(|_| is_nameless);
        if file.is_some_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Takes an abandoned mark away.
pub(crate) fn forget(live: &Path, id: &SandboxId) {
    if !is_held(live, id) {
        let _ = fs::remove_file(live::waits(live).join(id.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_killed_before_it_had_its_name_is_swept_and_what_is_being_named_is_not() {
        let live = tempfile::tempdir().unwrap();
        let dir = live::waits(live.path());
        live::private_dir(&dir).unwrap();
        let [dead, alive] = ["sb-dead", "sb-alive"].map(|name| dir.join(format!(".{name}")));
        fs::write(&dead, "").unwrap();
        let held = File::create(&alive).unwrap();
        held.lock().unwrap();
        let id = SandboxId::parse("sb0123456789abcdef0123").unwrap();
        let claim = Claim::take(live.path(), &id).unwrap();
        sweep(live.path());
        assert!(!dead.exists() && alive.exists() && is_held(live.path(), &id));
        drop(claim);
    }
}
