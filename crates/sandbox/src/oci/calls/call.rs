//! A system call, and what refusing one answers.

/// A system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    /// As in `SYS_read`.
    pub name: &'static str,
    pub number: libc::c_long,
}

pub(crate) const EPERM: u32 = 1;
pub(super) const ENOSYS: u32 = 38;

macro_rules! call {
    ($name:ident) => {
        Call { name: stringify!($name), number: libc::$name }
    };
}
macro_rules! calls {
    ($($name:ident)*) => { &[$(Call { name: stringify!($name), number: libc::$name }),*] };
}
pub(super) use {call, calls};
