//! Filters of system calls: classic BPF over `struct seccomp_data`.

use std::io;

use libc::sock_filter;

/// Offset of the call's number in `struct seccomp_data`.
pub const NUMBER: u32 = 0;
/// Offset of the architecture.
pub const ARCH: u32 = 4;
/// Offset of the first argument's lower half; each takes eight bytes.
pub const ARGS: u32 = 16;

/// `AUDIT_ARCH_*` of this machine.
#[cfg(target_arch = "x86_64")]
pub const THIS_ARCH: u32 = 0xc000_003e;
/// `AUDIT_ARCH_*` of this machine.
#[cfg(target_arch = "aarch64")]
pub const THIS_ARCH: u32 = 0xc000_00b7;

/// Numbers from here on are x86-64's x32 calls: the same calls under other names. Elsewhere there is none.
pub const FOREIGN: u32 = 0x4000_0000;

/// The verdict that fails a call with this error.
#[must_use]
pub const fn fail(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

/// A program that grows. A comparison skips so many instructions, by whether it holds.
#[derive(Debug, Clone, Default)]
pub struct FilterProgram(pub Vec<sock_filter>);

impl FilterProgram {
    /// Adds an instruction.
    ///
    /// # Errors
    /// It skips more than 255 others.
    pub fn push(&mut self, code: u32, k: u32, yes: usize, no: usize) -> io::Result<()> {
        let code = u16::try_from(code).map_err(io::Error::other)?;
        let jt = u8::try_from(yes).map_err(io::Error::other)?;
        let jf = u8::try_from(no).map_err(io::Error::other)?;
        self.0.push(sock_filter { code, jt, jf, k });
        Ok(())
    }

    /// Loads four bytes, which the next comparisons look at.
    pub fn load(&mut self, offset: u32) -> io::Result<()> {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
    }

    /// Ends with a verdict.
    pub fn end(&mut self, verdict: u32) -> io::Result<()> {
        self.push(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
    }

    /// Whether it is this value.
    pub fn equal(&mut self, value: u32, yes: usize, no: usize) -> io::Result<()> {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, yes, no)
    }

    /// Whether it is at least this value.
    pub fn at_least(&mut self, value: u32, yes: usize, no: usize) -> io::Result<()> {
        self.push(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, value, yes, no)
    }

    /// Whether it has one of these bits.
    pub fn has(&mut self, bits: u32, yes: usize, no: usize) -> io::Result<()> {
        self.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits, yes, no)
    }
}
