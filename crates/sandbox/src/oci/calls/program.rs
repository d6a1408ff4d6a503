//! The filter as the kernel takes it: a binary search for the call's number.
//!
//! crun loads what the annotation holds in place of the configuration's list; a crun that does not know it, and runc,
//! compile the list.

use std::io;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_guest::bpf::{ARCH, ARGS, FOREIGN, FilterProgram, NUMBER, THIS_ARCH};
use serde_json::{Value, json};

use super::call::{Call, ENOSYS, EPERM};
use super::rules::{CallRule, Case, WHOLE};
use super::{Needs, denied};

/// What crun calls it.
const ANNOTATION: &str = "run.oci.seccomp_bpf_data";
/// Instructions that the kernel takes (`BPF_MAXINSNS`).
const MOST: usize = 4_096;

/// What is done with a number from `from` up to the next one's.
struct Block {
    from: u32,
    what: BlockAction,
}

#[derive(Clone, Copy)]
enum BlockAction {
    End(u32),
    Rule(&'static CallRule),
}

/// Goes on here for what is less, and to `there` for the rest.
fn less(than: u32, here: FilterProgram, there: FilterProgram) -> io::Result<FilterProgram> {
    let mut p = FilterProgram::default();
    p.at_least(than, 0, 1)?;
    let over = u32::try_from(here.0.len()).map_err(io::Error::other)?;
    p.push(libc::BPF_JMP | libc::BPF_JA, over, 0, 0)?;
    p.0.extend(here.0);
    p.0.extend(there.0);
    Ok(p)
}

/// The annotation of an OCI configuration.
pub(crate) fn annotation(needs: Needs) -> io::Result<Value> {
    // Eight filters, and a plan for each sandbox.
    static COMPILED: [[OnceLock<String>; 4]; 2] = [const { [const { OnceLock::new() }; 4] }; 2];
    let [plain, with_roots] = &COMPILED;
    let [usual, own_ids, without_set_id, both] = if needs.roots { with_roots } else { plain };
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
        [Block { what: BlockAction::End(verdict), .. }] => p.end(*verdict)?,
        [Block { what: BlockAction::Rule(rule), .. }] => judge(&mut p, rule)?,
        more => {
            let (low, high) = more.split_at(more.len() / 2);
            let from = high.first().map_or(0, |piece| piece.from);
            return less(from, search(low)?, search(high)?);
        }
    }
    Ok(p)
}

fn judge(p: &mut FilterProgram, rule: &CallRule) -> io::Result<()> {
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
    let mut all: Vec<(u32, BlockAction)> = Vec::new();
    for call in needs.allowed() {
        all.push((number(call)?, BlockAction::End(libc::SECCOMP_RET_ALLOW)));
    }
    for call in denied(needs) {
        all.push((number(call)?, BlockAction::End(errno(EPERM))));
    }
    for rule in needs.ruled() {
        all.push((number(&rule.call)?, BlockAction::Rule(rule)));
    }
    all.sort_unstable_by_key(|(number, _)| *number);
    let absent = BlockAction::End(errno(ENOSYS));
    let mut pieces = vec![Block { from: 0, what: absent }];
    let mut add = |from: u32, what: BlockAction| match (pieces.last_mut(), what) {
        (Some(Block { what: BlockAction::End(before), .. }), BlockAction::End(now))
            if *before == now => {}
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
    add(FOREIGN, BlockAction::End(libc::SECCOMP_RET_KILL_PROCESS));
    Ok(pieces)
}

fn errno(number: u32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number
}

#[cfg(test)]
mod tests;
