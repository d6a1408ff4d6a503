//! The one stream of a machine that has no port: a socket to its monitor.
//!
//! ```text
//! init --connect--> monitor --> the host's listener, which takes this one and is gone
//! then a filter on this process and all that it starts: no further socket of that family
//! ```
//! Such a socket needs no capability and no network, so a task could ask for others. Nobody listens for
//! them on the host; that it cannot ask at all is the second wall.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use cofferdam_guest::setup::STREAM;
use libc::{sock_filter, sock_fprog};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, socket};

use super::fault::{Fault, at};

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// `AUDIT_ARCH_*` of this machine.
#[cfg(target_arch = "x86_64")]
const THIS_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCH: u32 = 0xc000_00b7;
/// And of its 32-bit programs, whose older ones make sockets in a way that no filter can look into.
const I386: u32 = 0x4000_0003;
const I386_SOCKETCALL: u32 = 102;
const I386_SOCKET: u32 = 359;
/// The same number for both.
const IO_URING: u32 = 425;
/// Numbers from here on are x86-64's x32 calls.
const X32: u32 = 0x4000_0000;

/// Where the program ends: it allows, or fails a call in one of three ways.
const ALLOW: usize = 15;
const NO_FAMILY: usize = 16;
const NOT_PERMITTED: usize = 17;
const NO_CALL: usize = 18;

/// Connects to the host, and makes that impossible from now on.
pub(super) fn open() -> Result<File, Fault> {
    let step = "the stream to the host";
    let stream = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .map_err(at(step))?;
    let host = VsockAddr::new(libc::VMADDR_CID_HOST, STREAM);
    connect(stream.as_raw_fd(), &host).map_err(at(step))?;
    forbid(libc::AF_VSOCK).map_err(at("the filter of sockets"))?;
    Ok(stream.into())
}

#[expect(unsafe_code, reason = "prctl(2) with a filter has no safe wrapper")]
fn forbid(family: i32) -> io::Result<()> {
    let filter = filter(family)?;
    let len = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program before the call returns, and only reads it.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sockets of this family are unknown. So is io_uring, which makes sockets past every filter.
fn filter(family: i32) -> io::Result<[sock_filter; 19]> {
    let number = |number: i64| u32::try_from(number).map_err(io::Error::other);
    let family = u32::try_from(family).map_err(io::Error::other)?;
    let code = |code: u32| u16::try_from(code).map_err(io::Error::other);
    let (load, end) = (code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS)?, code(libc::BPF_RET)?);
    let jump = |kind: u32| code(libc::BPF_JMP | kind | libc::BPF_K);
    let (equal, least) = (jump(libc::BPF_JEQ)?, jump(libc::BPF_JGE)?);
    let load = |k| sock_filter { code: load, jt: 0, jf: 0, k };
    let end = |k| sock_filter { code: end, jt: 0, jf: 0, k };
    let fail =
        |errno: i32| Ok::<_, io::Error>(end(libc::SECCOMP_RET_ERRNO | number(errno.into())?));
    // From its own place to two others, which come behind it.
    let branch = |here: usize, code: u16, k: u32, yes: usize, no: usize| {
        let over = |to: usize| u8::try_from(to - here - 1).map_err(io::Error::other);
        Ok::<_, io::Error>(sock_filter { code, jt: over(yes)?, jf: over(no)?, k })
    };
    Ok([
        load(ARCH),
        branch(1, equal, THIS_ARCH, 2, 8)?,
        load(NUMBER),
        branch(3, least, X32, NO_CALL, 4)?,
        branch(4, equal, IO_URING, NOT_PERMITTED, 5)?,
        branch(5, equal, number(libc::SYS_socket)?, 6, ALLOW)?,
        load(FIRST_ARGUMENT),
        branch(7, equal, family, NO_FAMILY, ALLOW)?,
        branch(8, equal, I386, 9, NO_CALL)?,
        load(NUMBER),
        branch(10, equal, I386_SOCKETCALL, NO_CALL, 11)?,
        branch(11, equal, IO_URING, NOT_PERMITTED, 12)?,
        branch(12, equal, I386_SOCKET, 13, ALLOW)?,
        load(FIRST_ARGUMENT),
        branch(14, equal, family, NO_FAMILY, ALLOW)?,
        end(libc::SECCOMP_RET_ALLOW),
        fail(libc::EAFNOSUPPORT)?,
        fail(libc::EPERM)?,
        fail(libc::ENOSYS)?,
    ])
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::errno::Errno;

    use super::*;

    fn open(family: AddressFamily) -> Result<(), Errno> {
        socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map(drop)
    }

    /// Of a family that every kernel has, so that it is the filter that says so.
    #[test]
    fn after_the_filter_a_family_is_unknown_and_the_others_are_as_before() {
        let held = thread::spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            assert_eq!(open(AddressFamily::Unix), Ok(()));
            forbid(libc::AF_UNIX).unwrap();
            assert_eq!(open(AddressFamily::Unix), Err(Errno::EAFNOSUPPORT));
            assert_eq!(open(AddressFamily::Inet), Ok(()));
            let ring = io_uring::IoUring::new(1).map(drop).unwrap_err();
            assert_eq!(ring.raw_os_error(), Some(libc::EPERM));
            // What the thread starts is held too.
            let inner = thread::spawn(|| open(AddressFamily::Unix)).join().unwrap();
            assert_eq!(inner, Err(Errno::EAFNOSUPPORT));
        });
        held.join().unwrap();
        assert_eq!(open(AddressFamily::Unix), Ok(()), "the filter is of its thread");
    }

    #[test]
    fn every_way_through_the_filter_ends() {
        let filter = filter(libc::AF_VSOCK).unwrap();
        for (here, step) in filter.iter().enumerate() {
            for over in [step.jt, step.jf] {
                assert!(here + usize::from(over) < filter.len(), "{here}");
            }
        }
        let last = u16::try_from(libc::BPF_RET).unwrap();
        assert!(filter[ALLOW..].iter().all(|step| step.code == last));
        assert_eq!(filter[ALLOW].k, libc::SECCOMP_RET_ALLOW);
    }
}
