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

use cofferdam_guest::bpf::{ARCH, ARGS, FOREIGN, FilterProgram, NUMBER, THIS_ARCH, fail};
use cofferdam_guest::setup::STREAM;
use libc::{sock_filter, sock_fprog};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, socket};

use super::fault::{Fault, at};

/// `AUDIT_ARCH_I386`, of 32-bit programs, whose older ones make sockets in a way that no filter can look into.
const I386: u32 = 0x4000_0003;
const I386_SOCKETCALL: u32 = 102;
const I386_SOCKET: u32 = 359;
/// The same number for both.
const IO_URING: u32 = 425;

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
fn filter(family: i32) -> io::Result<Vec<sock_filter>> {
    let socket = u32::try_from(libc::SYS_socket).map_err(io::Error::other)?;
    let family = u32::try_from(family).map_err(io::Error::other)?;
    let mut p = FilterProgram::default();
    // From its own place to two others, which come behind it.
    let over = |p: &FilterProgram, to: usize| to - p.0.len() - 1;
    let equal = |p: &mut FilterProgram, value: u32, yes: usize, no: usize| {
        p.equal(value, over(p, yes), over(p, no))
    };
    p.load(ARCH)?;
    equal(&mut p, THIS_ARCH, 2, 8)?;
    p.load(NUMBER)?;
    p.at_least(FOREIGN, over(&p, NO_CALL), over(&p, 4))?;
    equal(&mut p, IO_URING, NOT_PERMITTED, 5)?;
    equal(&mut p, socket, 6, ALLOW)?;
    p.load(ARGS)?;
    equal(&mut p, family, NO_FAMILY, ALLOW)?;
    equal(&mut p, I386, 9, NO_CALL)?;
    p.load(NUMBER)?;
    equal(&mut p, I386_SOCKETCALL, NO_CALL, 11)?;
    equal(&mut p, IO_URING, NOT_PERMITTED, 12)?;
    equal(&mut p, I386_SOCKET, 13, ALLOW)?;
    p.load(ARGS)?;
    equal(&mut p, family, NO_FAMILY, ALLOW)?;
    p.end(libc::SECCOMP_RET_ALLOW)?;
    p.end(fail(libc::EAFNOSUPPORT))?;
    p.end(fail(libc::EPERM))?;
    p.end(fail(libc::ENOSYS))?;
    Ok(p.0)
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
            rustix::thread::set_no_new_privs(true).unwrap();
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
