//! The filter: which calls wait for the agent's word.

use std::io;

use cofferdam_guest::bpf::{ARCH, ARGS, FOREIGN, FilterProgram, NUMBER, THIS_ARCH, fail};
use libc::sock_filter;

use super::calls::{self, CallEffect};
use super::rules::Rules;

const WRITING: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

/// The filter of these rules.
pub fn of(rules: &Rules) -> io::Result<Vec<sock_filter>> {
    let number = |n: i64| u32::try_from(n).map_err(io::Error::other);
    let mut p = FilterProgram::default();
    p.load(ARCH)?;
    p.equal(THIS_ARCH, 1, 0)?;
    p.end(fail(libc::ENOSYS))?;
    p.load(NUMBER)?;
    p.at_least(FOREIGN, 0, 1)?;
    p.end(fail(libc::ENOSYS))?;
    // Who traces another process of the jail could have it say one path to the agent and use another.
    for call in [libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev] {
        p.equal(number(call)?, 0, 1)?;
        p.end(fail(libc::EPERM))?;
    }
    if rules.holds_tools() {
        // A program of its own making, in memory that no rule on paths covers.
        p.equal(number(libc::SYS_memfd_create)?, 0, 1)?;
        p.end(fail(libc::EPERM))?;
    }
    if rules.holds_tools() {
        // Code of a file is mapped: by whom, the agent looks. A loader cannot do without.
        p.equal(number(libc::SYS_mmap)?, 0, 6)?;
        p.load(ARGS + 8 * 2)?;
        let code = u32::try_from(libc::PROT_EXEC).map_err(io::Error::other)?;
        p.has(code, 0, 3)?;
        p.load(ARGS + 8 * 3)?;
        let no_file = u32::try_from(libc::MAP_ANONYMOUS).map_err(io::Error::other)?;
        p.has(no_file, 1, 0)?;
        p.end(libc::SECCOMP_RET_USER_NOTIF)?;
        p.load(NUMBER)?;
    }
    if !rules.sockets {
        p.equal(number(libc::SYS_socket)?, 0, 5)?;
        p.load(ARGS)?;
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = u32::try_from(family).map_err(io::Error::other)?;
            p.equal(family, 0, 1)?;
            p.end(libc::SECCOMP_RET_USER_NOTIF)?;
        }
        p.load(NUMBER)?;
    }
    for call in calls::all() {
        match call.does {
            CallEffect::Exec => {
                p.equal(number(call.number)?, 0, 1)?;
                p.end(libc::SECCOMP_RET_USER_NOTIF)?;
            }
            _ if rules.writable.is_none() => {}
            CallEffect::Write => {
                p.equal(number(call.number)?, 0, 1)?;
                p.end(libc::SECCOMP_RET_USER_NOTIF)?;
            }
            CallEffect::Open(flags) => {
                let flags = u32::try_from(flags).map_err(io::Error::other)?;
                p.equal(number(call.number)?, 0, 4)?;
                p.load(ARGS + 8 * flags)?;
                let writing = u32::try_from(WRITING).map_err(io::Error::other)?;
                p.has(writing, 0, 1)?;
                p.end(libc::SECCOMP_RET_USER_NOTIF)?;
                p.end(libc::SECCOMP_RET_ALLOW)?;
            }
        }
    }
    p.end(libc::SECCOMP_RET_ALLOW)?;
    Ok(p.0)
}
