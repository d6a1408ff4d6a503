//! One builds, the others wait: who builds the base of a key on this host.
//!
//! ```text
//! <state>/cache/flights/<key>           a lock; in it, who holds it
//! <state>/cache/flights/<key>~<holder>  the next one, where that holder is known to be dead and yet holds on
//! ```
//! **The kernel holds the lock, for as long as the holder's process keeps it open**: it ends with the process,
//! however that ends, so that no lock is ever stale. A process that was only stopped keeps its lock; those
//! who know that it is declared dead meet at the lock that is named after it. **A flight is no promise**: it
//! saves builds and decides nothing, as a base gets its name in one rename that fails where there is one.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_contracts::id::Digest;

use super::error::{CacheError, at};
use super::store::{Caches, same};

/// Bytes of a holder's name that are read: an executor's id has fewer.
const MAX_HOLDER_BYTES: u64 = 128;

/// Held by the one who builds; when it is dropped the others look again.
#[derive(Debug)]
pub struct Flight {
    path: PathBuf,
    file: FileLock,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // While it is locked: nobody else's file is taken away.
        if same(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether one may build.
#[derive(Debug)]
pub enum FlightOutcome {
    /// Nobody else does.
    Lead(Flight),
    /// Somebody does: who, as far as that is written yet.
    Taken(Option<String>),
}

/// The name of a key's lock after these holders, who are dead.
fn name(key: &Digest, dead: Option<&str>) -> String {
    match dead {
        None => key.to_string(),
        Some(holder) => format!("{key}~{holder}"),
    }
}

impl Caches {
    /// Takes the flight of a key for `who`, unless somebody has it. `dead`: the last holder that is known to
    /// be dead and did not let go.
    pub fn join(
        &self,
        key: &Digest,
        who: &str,
        dead: Option<&str>,
    ) -> Result<FlightOutcome, CacheError> {
        let path = self.flights().join(name(key, dead));
        loop {
            let mut options = File::options();
            options.create(true).read(true).write(true).truncate(false).mode(0o600);
            let mut file = options.open(&path).map_err(at(&path))?;
            let lock = file.try_clone().and_then(FileLock::try_exclusive).map_err(at(&path))?;
            match lock {
                // Its last holder may have taken it away between the two.
                Some(lock) if !same(&lock, &path) => {}
                Some(lock) => {
                    sign(&mut file, who).map_err(at(&path))?;
                    return Ok(FlightOutcome::Lead(Flight { path, file: lock }));
                }
                None => return Ok(FlightOutcome::Taken(holder(&mut file).map_err(at(&path))?)),
            }
        }
    }

    /// Takes away the files of flights that nobody is on: their holders were killed.
    pub(super) fn sweep_flights(&self) -> Result<(), CacheError> {
        let dir = self.flights();
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let path = entry.map_err(at(&dir))?.path();
            let Ok(file) = File::open(&path) else { continue };
            if let Ok(Some(file)) = FileLock::try_exclusive(file) {
                drop(Flight { path, file });
            }
        }
        Ok(())
    }
}

fn sign(file: &mut File, who: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(who.as_bytes())
}

fn holder(file: &mut File) -> io::Result<Option<String>> {
    let mut text = String::new();
    file.take(MAX_HOLDER_BYTES).read_to_string(&mut text)?;
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::canonical::digest_bytes;

    fn lead(caches: &Caches, key: &Digest, who: &str, dead: Option<&str>) -> Flight {
        match caches.join(key, who, dead).unwrap() {
            FlightOutcome::Lead(flight) => flight,
            FlightOutcome::Taken(by) => panic!("taken by {by:?}"),
        }
    }

    #[test]
    fn e5_a_flight_has_one_holder_is_passed_on_and_is_never_stale() {
        let state = tempfile::tempdir().unwrap();
        let caches = Caches::open(state.path()).unwrap();
        let (key, other) = (digest_bytes(b"a"), digest_bytes(b"b"));
        let first = lead(&caches, &key, "ex-1", None);
        let taken = caches.join(&key, "ex-2", None).unwrap();
        assert!(matches!(taken, FlightOutcome::Taken(Some(who)) if who == "ex-1"));
        drop(lead(&caches, &other, "ex-2", None));
        // One that is dead and holds on: the next meet at a lock of their own.
        let next = lead(&caches, &key, "ex-2", Some("ex-1"));
        let taken = caches.join(&key, "ex-3", Some("ex-1")).unwrap();
        assert!(matches!(taken, FlightOutcome::Taken(Some(who)) if who == "ex-2"));
        caches.sweep().unwrap();
        assert!(matches!(caches.join(&key, "ex-3", None).unwrap(), FlightOutcome::Taken(_)));
        drop((first, next));
        drop(lead(&caches, &key, "ex-3", None));
        assert_eq!(fs::read_dir(caches.flights()).unwrap().count(), 0, "nothing stays");
        // As a killed holder leaves it: a file that nobody has.
        fs::write(caches.flights().join(key.as_str()), "ex-1").unwrap();
        drop(lead(&caches, &key, "ex-4", None));
        fs::write(caches.flights().join(key.as_str()), "ex-1").unwrap();
        caches.sweep().unwrap();
        assert_eq!(fs::read_dir(caches.flights()).unwrap().count(), 0);
    }
}
