//! The root, user and groups of a command, taken between its fork and its program.

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use cofferdam_guest::wire::User;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::fs::{FileType, fchown, fstat};
use rustix::process::{chdir, chroot};
use rustix::termios::isatty;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Input, output and error output.
const STREAMS: [RawFd; 3] = [0, 1, 2];

/// Has the command run as this user, in these groups; without any, in the primary one alone.
pub fn take(command: &mut Command, user: User, groups: &[u32]) {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let mut all: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    if all.is_empty() {
        all.push(gid);
    }
    let become_it = move || -> io::Result<()> {
        for number in STREAMS {
            #[expect(unsafe_code, reason = "the three streams of a command are open")]
            // SAFETY: nothing closes a stream between fork and exec.
            give(unsafe { BorrowedFd::borrow_raw(number) }, user);
        }
        setgroups(&all)?;
        setresgid(gid, gid, gid)?;
        Ok(setresuid(uid, uid, uid)?)
    };
    #[expect(unsafe_code, reason = "the library changes a user without groups of its own")]
    // SAFETY: between fork and exec it makes system calls alone, and frees and allocates nothing.
    unsafe {
        command.pre_exec(become_it)
    };
}

/// Has the command begin in a directory of this root. It cannot change its root again.
pub fn enter(command: &mut Command, root: &str, cwd: &str) -> io::Result<()> {
    let (root, cwd) = (CString::new(root)?, CString::new(cwd)?);
    let enter = move || -> io::Result<()> {
        chroot(root.as_c_str())?;
        chdir(cwd.as_c_str())?;
        let mut sets = capabilities(None)?;
        for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
            set.remove(CapabilitySet::SYS_CHROOT);
        }
        Ok(set_capabilities(None, sets)?)
    };
    #[expect(unsafe_code, reason = "the library changes no root")]
    // SAFETY: between fork and exec it makes system calls alone, and frees and allocates nothing.
    unsafe {
        command.pre_exec(enter)
    };
    Ok(())
}

/// Gives its user a pipe or terminal of the command, which is opened again as `/dev/stdout`. Files and `/dev/null` are not
/// the command's own. One that cannot be given can still be written.
fn give(stream: BorrowedFd<'_>, user: User) {
    let is_pipe =
        fstat(stream).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo);
    if is_pipe || isatty(stream) {
        let uid = rustix::fs::Uid::from_raw(user.uid);
        let _ = fchown(stream, Some(uid), None);
    }
}
