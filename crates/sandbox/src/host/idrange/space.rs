//! The user namespace of a range, as a handle that keeps it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use cofferdam_guest::users::{HOLD, MADE};

use super::region::COUNT;

/// `CAP_SYS_RESOURCE`, as a bit of `CapEff`.
const RESOURCE: u64 = 1 << 24;

/// Whether this process may set limits of whom it does not own.
pub(super) fn sets_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    held.and_then(|held| u64::from_str_radix(held.trim(), 16).ok())
        .is_some_and(|held| held & RESOURCE != 0)
}

/// A path's directories let everybody through, so that a root who is nobody gets to its sandbox.
const THROUGH: u32 = 0o001;

/// Whether somebody without any right gets to what lies in the live directory; why not, otherwise.
pub(super) fn reachable(live: &Path) -> Result<(), String> {
    for dir in live.ancestors().skip(1) {
        let found = fs::metadata(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        if found.permissions().mode() & THROUGH == 0 {
            return Err(format!(
                "sandboxes lie in {}, but other users may not enter {}; mount a tmpfs at /run",
                live.display(),
                dir.display()
            ));
        }
    }
    Ok(())
}

/// Makes one whose ids are the 65,536 from `first` on. The process that makes it is the agent's program, and ends.
pub(super) fn make(holder: &Path, first: u32, owner: u32) -> io::Result<OwnedFd> {
    let map = format!("0 {first} {COUNT}\n");
    made(holder, &map, &map, owner)
}

/// One with these maps and this owner.
pub(super) fn made(holder: &Path, uids: &str, gids: &str, owner: u32) -> io::Result<OwnedFd> {
    let mut child = Command::new(holder)
        .args([HOLD, &owner.to_string()])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let handle = (|| {
        let mut said = [0];
        let out = child.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        out.read_exact(&mut said).map_err(|_| io::Error::other("it could not be made"))?;
        if said != [MADE] {
            return Err(io::Error::other("its maker gave an unexpected answer"));
        }
        let proc = format!("/proc/{}", child.id());
        fs::write(format!("{proc}/uid_map"), uids)?;
        fs::write(format!("{proc}/gid_map"), gids)?;
        Ok(File::open(format!("{proc}/ns/user"))?.into())
    })();
    drop(child.stdin.take());
    child.wait()?;
    handle
}
