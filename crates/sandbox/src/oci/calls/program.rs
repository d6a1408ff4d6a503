//! The filter as the kernel takes it: classic BPF over `struct seccomp_data`, a binary search for the call's number.
//!
//! crun loads what the annotation holds in place of the configuration's list; a crun that does not know it, and runc,
//! compile the list.

use std::io;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::call::{Call, ENOSYS, EPERM};
use super::ruled::{Case, Ruled, WHOLE};
use super::{Needs, denied};

/// What crun calls it.
const ANNOTATION: &str = "run.oci.seccomp_bpf_data";
/// Offsets in `struct seccomp_data`; of an argument its lower half.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;
/// `AUDIT_ARCH_*` of this machine.
#[cfg(target_arch = "x86_64")]
const THIS_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCH: u32 = 0xc000_00b7;
/// Numbers from here on are x86-64's x32 calls.
const FOREIGN: u32 = 0x4000_0000;
/// Instructions that the kernel takes (`BPF_MAXINSNS`).
const MOST: usize = 4_096;

/// What is done with a number from `from` up to the next one's.
struct Block {
    from: u32,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    End(u32),
    Rule(&'static Ruled),
}

#[derive(Default)]
struct FilterProgram(Vec<libc::sock_filter>);

impl FilterProgram {
    fn push(&mut self, code: u32, k: u32, yes: usize, no: usize) -> io::Result<()> {
        let code = u16::try_from(code).map_err(io::Error::other)?;
        let jt = u8::try_from(yes).map_err(io::Error::other)?;
        let jf = u8::try_from(no).map_err(io::Error::other)?;
        self.0.push(libc::sock_filter { code, jt, jf, k });
        Ok(())
    }

    fn load(&mut self, offset: u32) -> io::Result<()> {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
    }

    fn end(&mut self, verdict: u32) -> io::Result<()> {
        self.push(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
    }

    fn equal(&mut self, value: u32, yes: usize, no: usize) -> io::Result<()> {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, yes, no)
    }

    /// Goes on here for what is less, and to `there` for the rest.
    fn less(&mut self, than: u32, here: Self, there: Self) -> io::Result<()> {
        self.push(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, than, 0, 1)?;
        let over = u32::try_from(here.0.len()).map_err(io::Error::other)?;
        self.push(libc::BPF_JMP | libc::BPF_JA, over, 0, 0)?;
        self.0.extend(here.0);
        self.0.extend(there.0);
        Ok(())
    }
}

/// The annotation of an OCI configuration.
pub(crate) fn annotation(needs: Needs) -> io::Result<Value> {
    // Four filters, and a plan for each sandbox.
    static COMPILED: [OnceLock<String>; 4] = [const { OnceLock::new() }; 4];
    let [usual, own_ids, without_set_id, both] = &COMPILED;
    let compiled = match (needs.no_set_id, needs.own_ids) {
        (false, false) => usual,
        (false, true) => own_ids,
        (true, false) => without_set_id,
        (true, true) => both,
    };
    let text = match compiled.get() {
        Some(text) => text,
        None => {
            let text = encoded(&program(needs)?);
            compiled.get_or_init(|| text)
        }
    };
    Ok(json!({ANNOTATION: text}))
}

fn encoded(program: &[libc::sock_filter]) -> String {
    let mut bytes = Vec::new();
    for one in program {
        bytes.extend(one.code.to_ne_bytes());
        bytes.extend([one.jt, one.jf]);
        bytes.extend(one.k.to_ne_bytes());
    }
    STANDARD.encode(bytes)
}

/// The whole filter.
fn program(needs: Needs) -> io::Result<Vec<libc::sock_filter>> {
    let mut p = FilterProgram::default();
    p.load(ARCH)?;
    p.equal(THIS_ARCH, 1, 0)?;
    p.end(libc::SECCOMP_RET_KILL_PROCESS)?;
    p.load(NUMBER)?;
    p.0.extend(search(&pieces(needs)?)?.0);
    match p.0.len() <= MOST {
        true => Ok(p.0),
        false => Err(io::Error::other("more instructions than the kernel takes")),
    }
}

fn search(pieces: &[Block]) -> io::Result<FilterProgram> {
    let mut p = FilterProgram::default();
    match pieces {
        [] => p.end(errno(ENOSYS))?,
        [Block { what: What::End(verdict), .. }] => p.end(*verdict)?,
        [Block { what: What::Rule(rule), .. }] => judge(&mut p, rule)?,
        more => {
            let (low, high) = more.split_at(more.len() / 2);
            let from = high.first().map_or(0, |piece| piece.from);
            p.less(from, search(low)?, search(high)?)?;
        }
    }
    Ok(p)
}

fn judge(p: &mut FilterProgram, rule: &Ruled) -> io::Result<()> {
    for Case { argument, bits, values, and } in rule.cases {
        p.load(ARGS + 8 * argument)?;
        if *bits != WHOLE {
            p.push(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, *bits, 0, 0)?;
        }
        // What follows the comparisons: the other argument's, and the verdict.
        let tail = if and.is_some() { 3 } else { 1 };
        for (index, value) in values.iter().enumerate() {
            let left = values.len() - index - 1;
            p.equal(*value, left, if left == 0 { tail } else { 0 })?;
        }
        if let Some((other, value)) = and {
            p.load(ARGS + 8 * other)?;
            p.equal(*value, 0, 1)?;
        }
        p.end(libc::SECCOMP_RET_ALLOW)?;
    }
    p.end(errno(rule.errno))
}

/// Every number, in order; neighbours differ.
fn pieces(needs: Needs) -> io::Result<Vec<Block>> {
    let number = |call: &Call| u32::try_from(call.number).map_err(io::Error::other);
    let mut all: Vec<(u32, What)> = Vec::new();
    for call in needs.allowed() {
        all.push((number(call)?, What::End(libc::SECCOMP_RET_ALLOW)));
    }
    for call in denied() {
        all.push((number(call)?, What::End(errno(EPERM))));
    }
    for rule in needs.ruled() {
        all.push((number(&rule.call)?, What::Rule(rule)));
    }
    all.sort_unstable_by_key(|(number, _)| *number);
    let absent = What::End(errno(ENOSYS));
    let mut pieces = vec![Block { from: 0, what: absent }];
    let mut add = |from: u32, what: What| match (pieces.last_mut(), what) {
        (Some(Block { what: What::End(before), .. }), What::End(now)) if *before == now => {}
        (Some(last), what) if last.from == from => last.what = what,
        _ => pieces.push(Block { from, what }),
    };
    let mut next = 0;
    for (number, what) in all {
        if number > next {
            add(next, absent);
        }
        add(number, what);
        next = number + 1;
    }
    add(next, absent);
    add(FOREIGN, What::End(libc::SECCOMP_RET_KILL_PROCESS));
    Ok(pieces)
}

fn errno(number: u32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number
}

#[cfg(test)]
mod tests;
