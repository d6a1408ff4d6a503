//! Which system calls are watched, and where their paths are.

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEffect {
    /// Executes the path.
    Exec,
    /// Opens it, for writing if this argument's flags say so.
    Open(usize),
    /// Creates, removes, moves or truncates what the path names.
    Write,
}

/// A call whose path is watched.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub number: i64,
    pub does: CallEffect,
    /// The argument that is the path.
    pub path: usize,
    /// The argument that is the directory that it is relative to; `None`: the working directory.
    pub dir: Option<usize>,
}

const fn call(number: i64, does: CallEffect, path: usize, dir: Option<usize>) -> Call {
    Call { number, does, path, dir }
}

use CallEffect::{Exec, Open, Write};

/// Calls of every architecture.
const COMMON: &[Call] = &[
    call(libc::SYS_execve, Exec, 0, None),
    call(libc::SYS_execveat, Exec, 1, Some(0)),
    call(libc::SYS_openat, Open(2), 1, Some(0)),
    call(libc::SYS_mkdirat, Write, 1, Some(0)),
    call(libc::SYS_mknodat, Write, 1, Some(0)),
    call(libc::SYS_unlinkat, Write, 1, Some(0)),
    call(libc::SYS_renameat2, Write, 3, Some(2)),
    call(libc::SYS_symlinkat, Write, 2, Some(1)),
    call(libc::SYS_linkat, Write, 3, Some(2)),
    call(libc::SYS_truncate, Write, 0, None),
];

/// The old names that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLD: &[Call] = &[
    call(libc::SYS_open, Open(1), 0, None),
    call(libc::SYS_creat, Write, 0, None),
    call(libc::SYS_mkdir, Write, 0, None),
    call(libc::SYS_mknod, Write, 0, None),
    call(libc::SYS_unlink, Write, 0, None),
    call(libc::SYS_rmdir, Write, 0, None),
    call(libc::SYS_rename, Write, 1, None),
    call(libc::SYS_renameat, Write, 3, Some(2)),
    call(libc::SYS_symlink, Write, 1, None),
    call(libc::SYS_link, Write, 1, None),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Call] = &[];

/// Every watched call with a path.
pub fn all() -> impl Iterator<Item = Call> {
    COMMON.iter().chain(OLD).copied()
}

/// The call of this number.
pub fn of(number: i64) -> Option<Call> {
    all().find(|call| call.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_stands_twice() {
        let mut numbers: Vec<i64> = all().map(|call| call.number).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        assert!(of(libc::SYS_read).is_none());
    }
}
