//! A system call, and what refusing one answers.

/// Name, as in `SYS_read`, and number.
pub(super) type Call = (&'static str, libc::c_long);

pub(crate) const EPERM: u32 = 1;
pub(super) const ENOSYS: u32 = 38;

macro_rules! call {
    ($name:ident) => {
        (stringify!($name), libc::$name)
    };
}
macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}
pub(super) use {call, calls};
