//! Holding a user namespace until the host has its handle.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use cofferdam_guest::users::MADE;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// Makes one as this user, says so, and ends with its input.
pub fn run(owner: &str) -> ExitCode {
    match hold(owner) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn hold(owner: &str) -> io::Result<()> {
    let owner: u32 = owner.parse().map_err(io::Error::other)?;
    if owner != 0 {
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        setgroups(&[])?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
    }
    unshare(CloneFlags::CLONE_NEWUSER)?;
    io::stdout().write_all(&[MADE])?;
    io::stdout().flush()?;
    io::stdin().read(&mut [0]).map(drop)
}
