//! Paths of a patch: any bytes, one text each, and which of them no patch may hold.

use std::fmt::Write as _;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::own_schema::own_schema;

/// Bytes of a path, as Linux bounds it.
const MAX_PATH: usize = 4_095;
/// Bytes of a name, as most file systems bound it.
const MAX_NAME: usize = 255;
/// Programs that git starts by these names, from a directory that a repository or a user names.
const HOOKS: &[&str] = &[
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];
/// Directories from which tools install hooks.
const HOOK_DIRS: &[&str] = &["hooks", ".hooks", ".githooks", ".husky"];

named! {
    /// Why a path is refused.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum PathRefusal {
        /// Empty, absolute, too long, or with an empty, `.` or `..` component.
        Outside = "outside",
        /// Git's own directory, under any name that some file system takes for it.
        GitDir = "git-directory",
        /// A program that git starts: a hook.
        Hook = "hook",
        /// A file that makes its directory a repository: `HEAD`.
        Repository = "repository",
        /// A submodule, or `.gitmodules`.
        Submodule = "submodule",
        /// A symbolic link.
        Link = "link",
        /// A mode that is none of the above.
        Mode = "mode",
        /// A file beyond the bounds of a patch: it and its content are left out.
        Bounds = "bounds",
    }
}

/// Path of a file from the top of its repository, without NUL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PatchPath(Vec<u8>);

impl PatchPath {
    /// A path of these bytes.
    ///
    /// # Errors
    /// An empty path, one with NUL, or one beyond 4,095 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        match bytes.is_empty() || bytes.contains(&0) || bytes.len() > MAX_PATH {
            true => Err(format!("a path has 1 to {MAX_PATH} bytes and no NUL")),
            false => Ok(Self(bytes.to_vec())),
        }
    }

    /// The path as raw bytes, 1 to 4,095, which need not be UTF-8.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For a person: quoted as git quotes it, one line of ASCII.
    #[must_use]
    pub fn shown(&self) -> String {
        shown(&self.0)
    }
}

/// As git prints a path with `core.quotePath`: plain where it is, else in quotes with escapes.
pub(super) fn shown(path: &[u8]) -> String {
    let is_plain = |byte: &u8| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\');
    if path.iter().all(is_plain) {
        return path.iter().copied().map(char::from).collect();
    }
    let mut out = String::with_capacity(path.len() + 8);
    out.push('"');
    for byte in path {
        // Writing to a text does not fail.
        let _ = match byte {
            0x07 => write!(out, "\\a"),
            0x08 => write!(out, "\\b"),
            b'\t' => write!(out, "\\t"),
            b'\n' => write!(out, "\\n"),
            0x0b => write!(out, "\\v"),
            0x0c => write!(out, "\\f"),
            b'\r' => write!(out, "\\r"),
            b'"' => write!(out, "\\\""),
            b'\\' => write!(out, "\\\\"),
            byte if is_plain(byte) => write!(out, "{}", char::from(*byte)),
            byte => write!(out, "\\{byte:03o}"),
        };
    }
    out.push('"');
    out
}

/// Bytes that stand for themselves in the text of a path.
fn is_kept(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+@=,~".contains(&byte)
}

impl From<PatchPath> for String {
    fn from(path: PatchPath) -> Self {
        let mut out = Self::with_capacity(path.0.len());
        for byte in path.0 {
            if is_kept(byte) {
                out.push(char::from(byte));
            } else {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    }
}

impl TryFrom<String> for PatchPath {
    type Error = String;
    /// The way back is exact: a byte has one spelling.
    fn try_from(text: String) -> Result<Self, String> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((first, after)) = rest.split_first() {
            if *first == b'%' {
                let digits = after.get(..2).ok_or("path: an escape without two digits")?;
                let digits = std::str::from_utf8(digits).map_err(|e| e.to_string())?;
                let byte = u8::from_str_radix(digits, 16).map_err(|e| format!("path: {e}"))?;
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            } else {
                bytes.push(*first);
                rest = after;
            }
        }
        let path = Self::new(&bytes)?;
        match String::from(path.clone()) == text {
            true => Ok(path),
            false => Err("path: a byte that has another spelling".to_owned()),
        }
    }
}

own_schema!(PatchPath, |_| json_schema!({"type": "string", "minLength": 1, "maxLength": 12_285,
    "pattern": "^([A-Za-z0-9/._+@=,~-]|%[0-9A-F]{2})+$"}));

/// Why no patch may hold this path, whatever lies there. On the strictest file system that a repository may
/// be checked out to: Windows takes `\` for `/` and drops trailing dots and blanks, macOS drops characters without a width.
#[must_use]
pub fn why_refused(path: &[u8]) -> Option<PathRefusal> {
    if path.is_empty() || path.len() > MAX_PATH || path.contains(&0) {
        return Some(PathRefusal::Outside);
    }
    let names: Vec<&[u8]> = path.split(|byte| matches!(byte, b'/' | b'\\')).collect();
    if path.split(|byte| *byte == b'/').any(|name| name.is_empty() || name.len() > MAX_NAME) {
        return Some(PathRefusal::Outside);
    }
    let is_drive =
        names.first().is_some_and(|first| matches!(first, [b'A'..=b'Z' | b'a'..=b'z', b':', ..]));
    if is_drive || names.iter().any(|name| matches!(*name, b"." | b"..")) || path.starts_with(b"\\")
    {
        return Some(PathRefusal::Outside);
    }
    let folded: Vec<String> = names.iter().map(|name| fold(name)).collect();
    if folded.iter().any(|name| is_dot_git(name)) {
        return Some(PathRefusal::GitDir);
    }
    if folded.iter().any(|name| is_dot_gitmodules(name)) {
        return Some(PathRefusal::Submodule);
    }
    let last = folded.last().map_or("", String::as_str);
    if last == "head" {
        return Some(PathRefusal::Repository);
    }
    let dirs = folded.get(..folded.len().saturating_sub(1)).unwrap_or_default();
    let in_hooks = dirs.iter().any(|dir| HOOK_DIRS.contains(&dir.as_str()));
    (in_hooks && HOOKS.contains(&last)).then_some(PathRefusal::Hook)
}

/// A name as a file system that ignores case, characters without a width, trailing dots and blanks, and what
/// follows a colon may take it.
fn fold(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let seen = text.chars().filter(
        |c| !matches!(u32::from(*c), 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff),
    );
    let text: String = seen.collect::<String>().to_lowercase();
    let text = text.split(':').next().unwrap_or_default();
    text.trim_end_matches(['.', ' ']).to_owned()
}

/// `.git`, or the short name that Windows gives it.
fn is_dot_git(folded: &str) -> bool {
    folded == ".git" || is_short(folded, &["git"])
}

fn is_dot_gitmodules(folded: &str) -> bool {
    // Windows falls back to a hash where four short names are taken.
    folded == ".gitmodules"
        || is_short(folded, &["gitmod"])
        || is_short(folded, &["gi7eba", "gi7d29"])
        || is_hashed(folded, "gi7eba")
}

/// Whether a name of eight characters is the beginning of a hashed stem and `~N`: the more names of a directory are taken,
/// the less of the stem Windows keeps.
fn is_hashed(folded: &str, stem: &str) -> bool {
    let Some((begin, number)) = folded.split_once('~') else { return false };
    folded.len() == 8 && stem.starts_with(begin) && number.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a name is `STEM~N`, as Windows shortens long ones.
fn is_short(folded: &str, stems: &[&str]) -> bool {
    let Some((stem, number)) = folded.split_once('~') else { return false };
    stems.contains(&stem) && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}
