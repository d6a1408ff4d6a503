//! A database's files, and the keys that belong to it, as the binary's first start leaves them: made once for each build of
//! the binary, and copied into each home.
//!
//! `initdb`, roles and migrations take a second of a processor, and the suite has hundreds of homes. What a first start does
//! is tested by homes that are [`Home::empty`].

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{Home, binary, repository};

/// A cluster's directory below a state directory.
const DATA: &str = "database/data";
/// The keys, which the database knows. What names the directory itself is each home's own.
const KEYS: [&str; 3] = ["admin.key", "secrets.key", "signing.key"];

/// As long as any suite takes.
const OLD: Duration = Duration::from_secs(2 * 3_600);

/// Puts the files into a state directory.
pub(crate) fn copy_into(state: &Path) {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let made = MADE.get_or_init(made);
    fs::create_dir(state.join("database")).expect("the state directory is empty");
    copy(made, state);
}

/// From state directory to state directory, with owners, times and modes.
fn copy(from: &Path, to: &Path) {
    let keys = KEYS.map(|key| from.join(key));
    for (what, into) in
        [(&[from.join(DATA)][..], to.join("database")), (&keys[..], to.to_path_buf())]
    {
        let status = Command::new("cp").arg("-a").args(what).arg(&into).status();
        assert!(status.expect("cp starts").success(), "cp -a {what:?} {}", into.display());
    }
}

/// The directory of this build's files, made by whoever comes first.
fn made() -> PathBuf {
    let build = fs::metadata(binary()).expect("the binary is there");
    let at = build.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let all = repository().join("target/clusters");
    fs::create_dir_all(&all).expect("target can be written");
    let made = all.join(format!("{}-{}", build.len(), at.unwrap_or_default().as_nanos()));
    let lock = File::create(all.join("lock")).expect("target can be written");
    lock.lock().expect("the lock of the clusters");
    if made.is_dir() {
        return made;
    }
    // Of other builds, whose tests have ended by now, and of one that was killed.
    for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
        let made_at = entry.metadata().and_then(|found| found.modified());
        let age = made_at.ok().and_then(|at| at.elapsed().ok());
        if entry.path().is_dir() && age.is_some_and(|age| age > OLD) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let home = Home::empty();
    started(&home);
    let half = made.with_extension("new");
    let _ = fs::remove_dir_all(&half);
    fs::create_dir_all(half.join("database")).expect("target can be written");
    copy(home.path(), &half);
    fs::rename(half, &made).expect("it is on one file system");
    made
}

/// A first start, to its end.
fn started(home: &Home) {
    let ran = home.run(&["ps"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let deadline = Instant::now() + Duration::from_secs(30);
    while home.path().join(DATA).join("postmaster.pid").exists() {
        assert!(Instant::now() < deadline, "the database did not stop");
        std::thread::sleep(Duration::from_millis(20));
    }
}
