//! The filter: which calls wait for the agent's word. Classic BPF over `struct seccomp_data`.

use std::io;

use libc::sock_filter;

use super::calls::{self, Does};
use super::rules::Rules;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;

/// `AUDIT_ARCH_*` of this machine.
#[cfg(target_arch = "x86_64")]
const THIS_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCH: u32 = 0xc000_00b7;

/// Numbers from here on are x86-64's x32 calls: the same calls under names that nothing watches.
#[cfg(target_arch = "x86_64")]
const FOREIGN: u32 = 0x4000_0000;
#[cfg(not(target_arch = "x86_64"))]
const FOREIGN: u32 = u32::MAX;

const WRITING: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

struct Program(Vec<sock_filter>);

impl Program {
    fn push(&mut self, code: u32, k: u32, yes: u8, no: u8) -> io::Result<()> {
        let code = u16::try_from(code).map_err(io::Error::other)?;
        self.0.push(sock_filter { code, jt: yes, jf: no, k });
        Ok(())
    }

    fn load(&mut self, offset: u32) -> io::Result<()> {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
    }

    fn end(&mut self, verdict: u32) -> io::Result<()> {
        self.push(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
    }

    /// Goes on if equal, otherwise skips `over` instructions.
    fn equal(&mut self, value: u32, over: u8) -> io::Result<()> {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, over)
    }
}

fn errno(number: i32) -> io::Result<u32> {
    Ok(libc::SECCOMP_RET_ERRNO | u32::try_from(number).map_err(io::Error::other)?)
}

/// The filter of these rules.
pub fn of(rules: &Rules) -> io::Result<Vec<sock_filter>> {
    let number = |n: i64| u32::try_from(n).map_err(io::Error::other);
    let mut p = Program(Vec::new());
    p.load(ARCH)?;
    p.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, THIS_ARCH, 1, 0)?;
    p.end(errno(libc::ENOSYS)?)?;
    p.load(NUMBER)?;
    p.push(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, FOREIGN, 0, 1)?;
    p.end(errno(libc::ENOSYS)?)?;
    // Who traces another process of the jail could have it say one path to the agent and use another.
    for call in [libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev] {
        p.equal(number(call)?, 1)?;
        p.end(errno(libc::EPERM)?)?;
    }
    if rules.holds_tools() {
        // A program of its own making, in memory that no rule on paths covers.
        p.equal(number(libc::SYS_memfd_create)?, 1)?;
        p.end(errno(libc::EPERM)?)?;
    }
    if rules.holds_tools() {
        // Code of a file is mapped: by whom, the agent looks. A loader cannot do without.
        p.equal(number(libc::SYS_mmap)?, 6)?;
        p.load(ARGS + 8 * 2)?;
        let code = u32::try_from(libc::PROT_EXEC).map_err(io::Error::other)?;
        p.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, code, 0, 3)?;
        p.load(ARGS + 8 * 3)?;
        let no_file = u32::try_from(libc::MAP_ANONYMOUS).map_err(io::Error::other)?;
        p.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, no_file, 1, 0)?;
        p.end(libc::SECCOMP_RET_USER_NOTIF)?;
        p.load(NUMBER)?;
    }
    if !rules.sockets {
        p.equal(number(libc::SYS_socket)?, 5)?;
        p.load(ARGS)?;
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = u32::try_from(family).map_err(io::Error::other)?;
            p.equal(family, 1)?;
            p.end(libc::SECCOMP_RET_USER_NOTIF)?;
        }
        p.load(NUMBER)?;
    }
    for call in calls::all() {
        match call.does {
            Does::Exec => {
                p.equal(number(call.number)?, 1)?;
                p.end(libc::SECCOMP_RET_USER_NOTIF)?;
            }
            _ if rules.writable.is_none() => {}
            Does::Write => {
                p.equal(number(call.number)?, 1)?;
                p.end(libc::SECCOMP_RET_USER_NOTIF)?;
            }
            Does::Open(flags) => {
                let flags = u32::try_from(flags).map_err(io::Error::other)?;
                p.equal(number(call.number)?, 4)?;
                p.load(ARGS + 8 * flags)?;
                let writing = u32::try_from(WRITING).map_err(io::Error::other)?;
                p.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, writing, 0, 1)?;
                p.end(libc::SECCOMP_RET_USER_NOTIF)?;
                p.end(libc::SECCOMP_RET_ALLOW)?;
            }
        }
    }
    p.end(libc::SECCOMP_RET_ALLOW)?;
    Ok(p.0)
}
