//! A terminal for a command.
//!
//! ```text
//! host <- master (agent)  =====  slave = the command's three streams
//! agent --spawn--> agent `session` --exec--> command
//! ```
//! Only the new process itself can become a session leader with a controlling terminal. Between fork
//! and exec that takes unsafe code; a moment of our own program does the same without.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use cofferdam_guest::process::Size;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The agent's own program, whatever the task put in its place.
const SELF: &str = "/proc/self/exe";
/// The argument that makes the agent the first moment of a session; then program, name, arguments.
pub const SESSION: &str = "session";

/// Makes a terminal, and the command its session's leader. Gives the agent's end.
pub fn attach(command: &Command, size: Size) -> io::Result<(Command, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    resize(&master, size)?;
    let name = ptsname(&master, Vec::new())?;
    let flags = i32::try_from(OFlags::NOCTTY.bits()).map_err(io::Error::other)?;
    let slave = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(std::ffi::OsStr::from_bytes(name.to_bytes()))?;
    fcntl_setfl(&master, OFlags::NONBLOCK)?;
    let mut session = Command::new(SELF);
    session
        .arg(SESSION)
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::from(slave.try_clone()?))
        .stdout(Stdio::from(slave.try_clone()?))
        .stderr(Stdio::from(slave));
    if let Some(dir) = command.get_current_dir() {
        session.current_dir(dir);
    }
    Ok((session, master))
}

/// Gives the terminal a new size; the kernel tells its foreground group.
pub fn resize(master: &OwnedFd, size: Size) -> io::Result<()> {
    let Size { rows, cols } = size;
    Ok(tcsetwinsize(master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// The first moment of a session. Returns only if it fails.
pub fn lead(mut args: impl Iterator<Item = std::ffi::OsString>) -> io::Error {
    let Some(program) = args.next() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "a session needs a program");
    };
    let led = setsid().and_then(|_| ioctl_tiocsctty(io::stdin()));
    match led {
        Ok(()) => Command::new(program).args(args).exec(),
        Err(error) => error.into(),
    }
}
