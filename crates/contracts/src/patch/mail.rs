//! A patch as the text of a mail, as `git format-patch` writes one: for people and for `git am`.
//!
//! Derived, never read. No text of a task stands in its head, and each line of a file has a mark in front, so
//! nothing of a file is taken for a head, a second diff or a second mail. A file whose bytes a mail could change
//! (NUL, a carriage return, bytes that are not UTF-8) is written as a binary literal.

use std::fmt::Write as _;

use super::path::shown;
use super::{FileMode, GitId, Patch, PatchFile, Side, diff};

/// Bytes of one line of git's base85.
const LINE: usize = 52;
/// Bytes of one block of zlib that is stored and not compressed.
const BLOCK: usize = 65_535;
/// Modulus of Adler-32.
const ADLER: u32 = 65_521;
/// Behind the last file.
pub(super) const END: &str = "-- \ncofferdam\n";
/// Digits of git's base85.
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// The text of a patch; `bytes_of` gives the bytes of a side.
#[must_use]
pub(super) fn text<'a>(patch: &Patch, bytes_of: &dyn Fn(Option<&Side>) -> &'a [u8]) -> String {
    let mut out = String::new();
    let base = &patch.base;
    let _ = write!(
        out,
        "From {base} Mon Sep 17 00:00:00 2001\nFrom: Cofferdam <cofferdam@localhost>\n\
         Subject: [PATCH] Result of a Cofferdam task\nMIME-Version: 1.0\n\
         Content-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n\
         {} files changed from {base}\n---\n\n",
        patch.files.len()
    );
    let mut left = diff::COMPARED;
    for file in &patch.files {
        one(file, base, bytes_of, &mut left, &mut out);
    }
    let _ = write!(out, "{END}\nbase-commit: {base}\n");
    out
}

fn one<'a>(
    file: &PatchFile,
    base: &GitId,
    bytes_of: &dyn Fn(Option<&Side>) -> &'a [u8],
    left: &mut u64,
    out: &mut String,
) {
    let named = |side: &str| shown(&[side.as_bytes(), file.path.as_bytes()].concat());
    let (a, b) = (named("a/"), named("b/"));
    let _ = writeln!(out, "diff --git {a} {b}");
    let (before, after) = (file.before.as_ref(), file.after.as_ref());
    let mode = |side: Option<&Side>| side.map_or("", |side| FileMode::as_str(side.mode));
    let (old_mode, new_mode) = (mode(before), mode(after));
    let _ = match (before, after) {
        (None, _) => writeln!(out, "new file mode {new_mode}"),
        (_, None) => writeln!(out, "deleted file mode {old_mode}"),
        _ if old_mode != new_mode => writeln!(out, "old mode {old_mode}\nnew mode {new_mode}"),
        _ => Ok(()),
    };
    let none = base.format().none();
    let blob = |side: Option<&Side>| side.map_or(none.clone(), |side| side.blob.to_string());
    if blob(before) == blob(after) {
        return;
    }
    let kept = if before.is_some() && old_mode == new_mode {
        format!(" {old_mode}")
    } else {
        String::new()
    };
    let _ = writeln!(out, "index {}..{}{kept}", blob(before), blob(after));
    let (old, new) = (bytes_of(before), bytes_of(after));
    if old.is_empty() && new.is_empty() {
        return;
    }
    let (Some(old_text), Some(new_text)) = (plain(old), plain(new)) else {
        return binary(new, out);
    };
    // A name with a blank ends with a tab, as git writes it.
    let line = |side: Option<&Side>, name: &str| match side {
        None => "/dev/null".to_owned(),
        Some(_) if name.contains(' ') && !name.starts_with('"') => format!("{name}\t"),
        Some(_) => name.to_owned(),
    };
    let _ = writeln!(out, "--- {}\n+++ {}", line(before, &a), line(after, &b));
    diff::hunks(old_text, new_text, left, out);
}

/// The text of a file that a mail carries as it is.
fn plain(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains(['\0', '\r'])).then_some(text)
}

/// The whole content, as git's binary literal.
fn binary(bytes: &[u8], out: &mut String) {
    let _ = writeln!(out, "GIT binary patch\nliteral {}", bytes.len());
    for line in stored(bytes).chunks(LINE) {
        let count = u8::try_from(line.len()).unwrap_or(0);
        out.push(char::from(match count {
            1..=26 => b'A' + count - 1,
            _ => b'a' + count.saturating_sub(27),
        }));
        for four in line.chunks(4) {
            let mut word = [0_u8; 4];
            word.iter_mut().zip(four).for_each(|(to, from)| *to = *from);
            let mut number = u32::from_be_bytes(word);
            let mut digits = [0_u8; 5];
            for digit in digits.iter_mut().rev() {
                let at = usize::try_from(number % 85).unwrap_or(0);
                *digit = DIGITS.get(at).copied().unwrap_or(b'0');
                number /= 85;
            }
            out.extend(digits.map(char::from));
        }
        out.push('\n');
    }
    out.push('\n');
}

/// As a zlib stream of stored blocks: a mail needs no compression, and nobody who reads it inflates more than it has.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let last = bytes.len().div_ceil(BLOCK).max(1) - 1;
    let mut blocks = bytes.chunks(BLOCK);
    for at in 0..=last {
        let block = blocks.next().unwrap_or_default();
        let length = u16::try_from(block.len()).unwrap_or(0);
        out.push(u8::from(at == last));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % ADLER;
        b = (b + a) % ADLER;
    }
    out.extend(((b << 16) | a).to_be_bytes());
    out
}
