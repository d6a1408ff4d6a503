//! The mark that a container waits for a living worker: a locked file of its name beside the sandboxes.
//!
//! ```text
//! made and locked --> its sandbox is on record: removed      (taken)
//!                \--> it is wiped: removed                    (given up)
//!                \--> its worker ended: the kernel unlocks it (abandoned: any worker of the host wipes it)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_contracts::id::SandboxId;

use crate::host::live;

/// Workers that stop in this very moment and take the empty directory away, or that start and find the file before it
/// is locked.
const TRIES: usize = 3;

/// One name, marked until the value is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    /// Unlocked after the mark has lost its name.
    _lock: FileLock,
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
            let lock = FileLock::exclusive(options.open(&hidden)?)?;
            // It has its name only once it is locked: another worker never finds it unlocked.
            fs::rename(&hidden, &path)?;
            Ok(lock)
        };
        let mut made: io::Result<FileLock> = make();
        for _ in 0..TRIES {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => made = make(),
                _ => break,
            }
        }
        Ok(Self { path, _lock: made? })
    }
}

#[cfg(test)]
impl Claim {
    /// What the kernel does when its worker ends.
    pub fn unlock(&self) {
        self._lock.unlock().unwrap();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Failed wipes that are known: as many as sessions are held before somebody looks.
const MAX_FAILED: usize = 1_024;

/// Marks of one worker's sandboxes that are not on record yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct EarlyMarks(Arc<Mutex<MarkTable>>);

#[derive(Debug, Default)]
struct MarkTable {
    claims: BTreeMap<SandboxId, Claim>,
    /// Those whose wipe is not verified.
    failed: BTreeSet<SandboxId>,
}

impl EarlyMarks {
    pub fn add(&self, id: &SandboxId, claim: Claim) {
        self.lock().claims.insert(id.clone(), claim);
    }

    pub fn has(&self, id: &SandboxId) -> bool {
        self.lock().claims.contains_key(id)
    }

    /// Its wipe failed; the next reconciler looks for it again.
    pub fn fail(&self, id: &SandboxId) {
        let failed = &mut self.lock().failed;
        if failed.len() < MAX_FAILED {
            failed.insert(id.clone());
        }
    }

    pub fn has_failed(&self, id: &SandboxId) -> bool {
        self.lock().failed.contains(id)
    }

    /// Takes one away, if it is there still.
    pub fn end(&self, id: &SandboxId) {
        let claim = self.lock().claims.remove(id);
        drop(claim);
    }

    pub fn end_all(&self) {
        let all = std::mem::take(&mut self.lock().claims);
        drop(all);
    }

    fn lock(&self) -> MutexGuard<'_, MarkTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The marked names whose worker is not alive any more. Theirs is what is left of a container that waited.
pub(crate) fn abandoned(live: &Path) -> BTreeSet<SandboxId> {
    let entries = fs::read_dir(live::waits(live)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let ids = names.filter_map(|name| SandboxId::parse(&name).ok());
    ids.filter(|id| is_abandoned(live, id)).collect()
}

/// Whether the mark is there and its worker is not. One that is taken away at this moment is a sandbox on record, or wiped: it is
/// unlocked only after it has lost its name.
fn is_abandoned(live: &Path, id: &SandboxId) -> bool {
    let Ok(file) = File::open(live::waits(live).join(id.as_str())) else { return false };
    let lock = FileLock::try_exclusive(file);
    lock.is_ok_and(|lock| {
        lock.is_some_and(|file| file.metadata().is_ok_and(|mark| mark.nlink() > 0))
    })
}

/// Whether a living worker has a container waiting under this name.
pub(crate) fn is_held(live: &Path, id: &SandboxId) -> bool {
    let file = File::open(live::waits(live).join(id.as_str()));
    file.is_ok_and(|file| matches!(FileLock::try_exclusive(file), Ok(None)))
}

/// Takes away what a worker left that was killed before its mark had its name.
pub(crate) fn sweep(live: &Path) {
    for entry in fs::read_dir(live::waits(live)).into_iter().flatten().flatten() {
        let is_nameless = entry.file_name().as_encoded_bytes().starts_with(b".");
        let file = File::open(entry.path()).ok().filter(|_| is_nameless);
        if file.is_some_and(|file| matches!(FileLock::try_exclusive(file), Ok(Some(_)))) {
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

    /// A worker looks for abandoned ones while another gives sandboxes to their records.
    #[test]
    fn a_mark_that_is_taken_away_is_never_an_abandoned_one() {
        let live = tempfile::tempdir().unwrap();
        let at = live.path().to_owned();
        let taking = std::thread::spawn(move || {
            for n in 0..2_000 {
                let id = SandboxId::parse(&format!("sb{n:020x}")).unwrap();
                drop(Claim::take(&at, &id).unwrap());
            }
        });
        let mut looks = 0;
        while !taking.is_finished() {
            let found = abandoned(live.path());
            assert!(found.is_empty(), "{found:?} after {looks} looks");
            looks += 1;
        }
        taking.join().unwrap();
        assert!(looks > 10, "{looks}");
    }

    #[test]
    fn what_was_killed_before_it_had_its_name_is_swept_and_what_is_being_named_is_not() {
        let live = tempfile::tempdir().unwrap();
        let dir = live::waits(live.path());
        live::private_dir(&dir).unwrap();
        let [dead, alive] = ["sb-dead", "sb-alive"].map(|name| dir.join(format!(".{name}")));
        fs::write(&dead, "").unwrap();
        let _held = FileLock::exclusive(File::create(&alive).unwrap()).unwrap();
        let id = SandboxId::parse("sb0123456789abcdef0123").unwrap();
        let claim = Claim::take(live.path(), &id).unwrap();
        sweep(live.path());
        assert!(!dead.exists() && alive.exists() && is_held(live.path(), &id));
        drop(claim);
    }
}
