//! A sandbox's processes, stopped for a moment by the kernel, which they do not notice.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::clock;

use crate::host::cgroup::{self, Cgroups};
use crate::host::traces::Traces;

/// A group freezes within milliseconds; a process in the middle of a long call of the kernel takes longer. Two seconds, a
/// millisecond apart.
const TRIES: usize = 2_000;
/// Version 1 may stay between the two states where a process was being made: after so many tries the group goes on for a moment,
/// and is stopped anew, as runc does (opencontainers/runc, pull requests 2774 and 2791).
const ANEW: usize = 100;

/// Version 1: what is written and what is read back.
const STATE: &str = "freezer.state";
const THAWED: &str = "THAWED";
/// Version 2: what is written, and where the kernel says that it is done.
const FREEZE: &str = "cgroup.freeze";
const EVENTS: &str = "cgroup.events";

/// Processes that stand still until this is dropped.
#[derive(Debug)]
pub(crate) struct FreezeGuard(PathBuf);

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        thaw(&self.0);
    }
}

/// Whether the processes of a group stand still.
fn is_frozen(group: &Path) -> bool {
    let says = |file: &str| fs::read_to_string(group.join(file)).ok();
    says(STATE).is_some_and(|text| text.trim() != THAWED)
        || says(FREEZE).is_some_and(|text| text.trim() == "1")
}

/// Lets the processes of a group go on, whatever its version; nothing where the group cannot freeze.
pub(crate) fn thaw(group: &Path) {
    for (file, text) in [(STATE, THAWED), (FREEZE, "0")] {
        // A group that was never frozen, or is gone, needs nothing.
        let _ = write(&group.join(file), text);
    }
}

impl Cgroups {
    /// The group by which a sandbox's processes are stopped.
    fn freezing(&self, traces: &Traces) -> Option<PathBuf> {
        let trees = self.hierarchies.iter();
        let mut trees =
            trees.filter(|tree| tree.unified || tree.controllers.iter().any(|c| c == "freezer"));
        let freezes = |group: &PathBuf| group.join(STATE).exists() || group.join(FREEZE).exists();
        trees.find_map(|tree| Some(tree.mount.join(&traces.cgroup)).filter(freezes))
    }

    /// The same where a worker that is gone left them standing still.
    pub(crate) fn left_frozen(&self, traces: &Traces) -> Option<PathBuf> {
        self.freezing(traces).filter(|group| is_frozen(group))
    }

    /// Stops every process of the sandbox. Each of `members` must be in the group that freezes.
    pub(crate) fn freeze(&self, traces: &Traces) -> io::Result<FreezeGuard> {
        let none = || io::Error::other("the sandbox has no cgroup that can freeze");
        let group = self.freezing(traces).ok_or_else(none)?;
        if cgroup::listed(&group)?.is_empty() {
            return Err(none());
        }
        // From here on it is thawed, however this ends.
        let frozen = FreezeGuard(group);
        let is_first = frozen.0.join(STATE).exists();
        match is_first {
            true => write(&frozen.0.join(STATE), "FROZEN")?,
            false => write(&frozen.0.join(FREEZE), "1")?,
        }
        for tried in 1..=TRIES {
            if is_first && tried.is_multiple_of(ANEW) {
                thaw(&frozen.0);
                clock::sleep_blocking(Duration::from_millis(1));
                write(&frozen.0.join(STATE), "FROZEN")?;
            }
            let done = match is_first {
                true => fs::read_to_string(frozen.0.join(STATE))?.trim() == "FROZEN",
                false => fs::read_to_string(frozen.0.join(EVENTS))?.contains("frozen 1"),
            };
            if done {
                return self.all_inside(traces, &frozen).map(|()| frozen);
            }
            clock::sleep_blocking(Duration::from_millis(1));
        }
        Err(io::Error::other("the sandbox's processes did not stop in time"))
    }

    /// Refuses where a member of another tree is not in the frozen group: it would write on.
    fn all_inside(&self, traces: &Traces, frozen: &FreezeGuard) -> io::Result<()> {
        let inside = cgroup::listed(&frozen.0)?;
        match self.members(traces).into_iter().find(|pid| !inside.contains(pid)) {
            None => Ok(()),
            Some(pid) => {
                Err(io::Error::other(format!("process {pid} is not in the cgroup that freezes")))
            }
        }
    }
}

/// Never makes the file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
