//! The ways to try something that are the same for many things: a table has one line for each.

use std::io;

use nix::mount::{MsFlags, mount};

use super::answer::{DONE, failed, names, open_read, open_write, read_any, said};

/// Arguments of a system call, as the kernel takes them.
pub type Arguments = [libc::c_long; 6];

/// One way, and at what.
#[derive(Clone, Copy)]
pub enum ProbeAttempt {
    /// Opens it for writing and writes nothing.
    Write(&'static str),
    /// Reads its first byte.
    Read(&'static str),
    /// Opens it for reading and reads nothing: what a device does when it is read is its driver's.
    Open(&'static str),
    /// Lists a directory; the answer is the names in it, sorted.
    List(&'static str),
    /// Calls the kernel. Pointers are 0 or 1 and descriptors -1, so that a call that is let through fails
    /// at those, or does nothing.
    Call(libc::c_long, Arguments),
    /// Opens a socket of this family, kind and protocol.
    Socket(libc::c_int, libc::c_int, libc::c_int),
    /// Mounts a file system of this kind in the sandbox's own mount namespace.
    Mount(&'static str),
}

impl ProbeAttempt {
    pub fn go(self) -> String {
        match self {
            Self::Write(path) => open_write(path),
            Self::Read(path) => read_any(path),
            Self::Open(path) => open_read(path),
            Self::List(path) => names(path),
            Self::Call(number, arguments) => call(number, arguments),
            Self::Socket(family, kind, protocol) => {
                let wide = [family, kind, protocol].map(libc::c_long::from);
                let [family, kind, protocol] = wide;
                call(libc::SYS_socket, [family, kind, protocol, 0, 0, 0])
            }
            Self::Mount(kind) => {
                said(mount(Some("none"), "/tmp", Some(kind), MsFlags::empty(), None::<&str>))
            }
        }
    }
}

#[expect(unsafe_code, reason = "no library has every call, and none passes wrong arguments on")]
fn call(number: libc::c_long, [a, b, c, d, e, f]: Arguments) -> String {
    // SAFETY: the tables pass no pointer that the kernel could write to: 0 and 1 are never mapped.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => failed(&io::Error::last_os_error()),
        _ => DONE.to_owned(),
    }
}
