//! The three calls of seccomp's user notification, for which no library has a safe face.
//!
//! The only unsafe code of the agent beside the taking over of one inherited descriptor.

#![expect(unsafe_code, reason = "seccomp(2) and two ioctls on its listener have no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use libc::{c_ulong, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};

/// `SECCOMP_IOCTL_NOTIF_RECV` and `_SEND`: `_IOWR('!', 0, struct seccomp_notif)` and
/// `_IOWR('!', 1, struct seccomp_notif_resp)`.
const RECEIVE: c_ulong = 0xc050_2100;
const SEND: c_ulong = 0xc018_2101;

/// Installs a filter on this thread, for good, and gives its listener.
pub fn listen(filter: &[sock_filter]) -> io::Result<OwnedFd> {
    let len = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program before the call returns, and only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else holds.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next call that waits. `NotFound`: its caller is gone.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<seccomp_notif> {
    // SAFETY: a struct of integers, for which all zeros is a value, and the one that the kernel asks for.
    let mut call: seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `seccomp_notif` where one lies.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(call) }
}

/// Lets a waiting call go on, or fails it.
pub fn answer(listener: BorrowedFd<'_>, id: u64, errno: Option<i32>) -> io::Result<()> {
    let go_on = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).map_err(io::Error::other)?;
    let mut word = seccomp_notif_resp {
        id,
        val: 0,
        error: errno.map_or(0, |errno| -errno),
        flags: if errno.is_some() { 0 } else { go_on },
    };
    // SAFETY: the kernel reads one `seccomp_notif_resp` where one lies.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut word) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
