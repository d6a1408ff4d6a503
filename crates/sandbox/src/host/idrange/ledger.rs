//! Who has which range. A claim is a symbolic link in one directory of the host: its name is the first id, its end the
//! sandbox's directory. The kernel makes a link as a whole and once, so a claim is never half written nor made twice.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cofferdam_ambient::random;

use super::region::COUNT;
use crate::host::live::private_dir;
use crate::host::mounts;

/// Only root's to write, and the same for every worker of the host.
const PARENT: &str = "/run/cofferdam";
/// What ledgers are called; then the number of the host's boot, which ends every process that had an id.
const NAME: &str = "ids.";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// What the end of a claim begins with when files with its ids outlive their sandbox: a layer in memory. Whoever has that gives
/// the range back.
const KEPT: &str = "kept:";
/// The same when its sandbox's wipe failed: once nothing of it is seen any more, the range is given back.
const FAILED: &str = "failed:";

fn ledger() -> &'static Path {
    static LEDGER: LazyLock<PathBuf> = LazyLock::new(|| {
        let boot = fs::read_to_string(BOOT).unwrap_or_default();
        Path::new(PARENT).join(format!("{NAME}{}", boot.trim()))
    });
    &LEDGER
}

fn at(first: u32) -> PathBuf {
    ledger().join(first.to_string())
}

/// Makes the directory, which must be ours.
pub(super) fn prepare() -> io::Result<()> {
    for dir in [Path::new(PARENT), ledger()] {
        private_dir(dir)?;
        let found = fs::symlink_metadata(dir)?;
        if !found.is_dir() || found.uid() != 0 {
            return Err(io::Error::other(format!("{} belongs to another user", dir.display())));
        }
    }
    // Where /run outlives a boot.
    for entry in fs::read_dir(PARENT)?.flatten() {
        let is_old = entry.file_name().to_string_lossy().starts_with(NAME);
        if is_old && entry.path() != ledger() {
            // Another worker may be at it.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Whether the range is the sandbox's from now on.
pub(super) fn claim(first: u32, dir: &Path) -> io::Result<bool> {
    match symlink(dir, at(first)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn claims() -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(ledger()).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), fs::read_link(entry.path()).ok()?))).collect()
}

/// Why a range is nobody's although its sandbox has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeRetention {
    /// Its files are in memory.
    Layer,
    /// Its wipe failed.
    Failed,
}

impl RangeRetention {
    fn of(self, dir: &Path) -> PathBuf {
        let prefix = match self {
            Self::Layer => KEPT,
            Self::Failed => FAILED,
        };
        PathBuf::from(format!("{prefix}{}", dir.display()))
    }
}

/// Whether a claim is that of the sandbox in this directory, gone or not.
fn is_held_by(holder: &Path, dir: &Path) -> bool {
    holder == dir
        || [RangeRetention::Layer, RangeRetention::Failed].iter().any(|why| holder == why.of(dir))
}

/// The sandbox in this directory is gone, verified: so is its claim, which begins at `first` where that is known.
pub(crate) fn give_back(dir: &Path, first: Option<u32>) {
    let all = match first {
        // Each of many sandboxes has one.
        Some(first) => {
            fs::read_link(at(first)).map(|holder| (at(first), holder)).into_iter().collect()
        }
        None => claims(),
    };
    for (claim, holder) in all {
        if is_held_by(&holder, dir) {
            // What stays is looked at again when no range is free.
            let _ = fs::remove_file(claim);
        }
    }
}

/// The sandbox in this directory is not known to be gone: nobody gets its range until it is.
pub(crate) fn keep(dir: &Path, why: RangeRetention) {
    for (claim, holder) in claims() {
        if holder == dir {
            let draft = claim.with_file_name(format!(".{}", random::secret_hex(8)));
            if symlink(why.of(dir), &draft).is_ok() {
                // Where it fails the claim stands as it was.
                let _ = fs::rename(&draft, &claim);
            }
        }
    }
}

/// Whether a range is that of the sandbox in this directory, gone or not.
pub(crate) fn is_of(first: u32, dir: &Path) -> bool {
    fs::read_link(at(first)).is_ok_and(|holder| is_held_by(&holder, dir))
}

/// The range of a sandbox that is gone is that of the sandbox in another directory from now on.
pub(crate) fn hand_over(first: u32, dir: &Path) -> io::Result<()> {
    let claim = at(first);
    let draft = claim.with_file_name(format!(".{}", random::secret_hex(8)));
    symlink(dir, &draft)?;
    fs::rename(&draft, &claim)
}

/// Whether a wipe failed whose range is not given back.
pub(super) fn has_failed() -> bool {
    claims().iter().any(|(_, holder)| failed(holder).is_some())
}

/// The directory of a sandbox whose wipe failed.
fn failed(holder: &Path) -> Option<PathBuf> {
    holder.to_str()?.strip_prefix(FAILED).map(PathBuf::from)
}

/// Takes claims away whose sandbox left nothing: no directory, no mount and no process.
pub(super) fn reclaim() {
    let Ok(mounted) = mounts::mounted() else { return };
    let Some(owners) = owners() else { return };
    for (claim, holder) in claims() {
        let first: Option<u32> =
            claim.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let Some(first) = first else { continue };
        let failed = failed(&holder);
        let dir = failed.as_ref().unwrap_or(&holder);
        let alive = owners.iter().any(|id| *id >= first && *id - first < COUNT);
        let is_there = dir.exists() || mounted.iter().any(|one| one.point.starts_with(dir));
        if !dir.is_absolute() || is_there || alive {
            continue;
        }
        if fs::remove_file(claim).is_ok() && failed.is_some() {
            tracing::info!(first, sandbox = %dir.display(), "the ids of a failed wipe are given back: nothing of it is left");
        }
    }
}

/// Host ids that processes have: their users, their groups, and what the namespaces that they are in map. `None` if that cannot be
/// known.
fn owners() -> Option<Vec<u32>> {
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        if !entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // It may end at this moment.
        let Ok(found) = entry.metadata() else { continue };
        ids.extend([found.uid(), found.gid()]);
        for map in ["uid_map", "gid_map"] {
            let text = fs::read_to_string(entry.path().join(map)).unwrap_or_default();
            let outside = |line: &str| line.split_whitespace().nth(1)?.parse::<u32>().ok();
            ids.extend(text.lines().filter_map(outside));
        }
    }
    Some(ids.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_range_has_one_holder_and_is_free_when_that_is_gone() {
        prepare().unwrap();
        let name = random::secret_hex(8);
        let (one, other) =
            (PathBuf::from(format!("/run/one-{name}")), PathBuf::from(format!("/run/two-{name}")));
        // No range of sandboxes begins there.
        let first = 3_000_000_000 + u32::from_str_radix(&name[..4], 16).unwrap();
        assert!(claim(first, &one).unwrap());
        assert!(!claim(first, &other).unwrap());
        give_back(&other, None);
        give_back(&other, Some(first));
        assert!(!claim(first, &other).unwrap());
        keep(&one, RangeRetention::Layer);
        reclaim();
        assert!(!claim(first, &other).unwrap(), "a layer in memory keeps its range");
        give_back(&one, None);
        assert!(claim(first, &other).unwrap());
        reclaim();
        assert!(claim(first, &one).unwrap(), "nothing of its holder is left");
        give_back(&one, Some(first));
        assert!(fs::symlink_metadata(at(first)).is_err());
    }

    #[test]
    fn a3l_the_range_of_a_failed_wipe_is_given_back_once_nothing_of_it_is_left() {
        prepare().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let name = random::secret_hex(4);
        let first = 3_100_000_000 + u32::from_str_radix(&name[..4], 16).unwrap();
        assert!(claim(first, dir.path()).unwrap());
        keep(dir.path(), RangeRetention::Failed);
        assert!(has_failed());
        reclaim();
        assert!(is_of(first, dir.path()), "its directory is there");
        // A process has one of its ids: before the directory goes, since others of this host reclaim, too.
        let mut command = std::process::Command::new("sleep");
        command.arg("60").uid(first + 7);
        let mut child = command.spawn().unwrap();
        let gone = dir.path().to_owned();
        drop(dir);
        reclaim();
        let was_kept = is_of(first, &gone);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(was_kept, "a process of it runs");
        reclaim();
        assert!(!is_of(first, &gone), "nothing of it is left");
    }
}
