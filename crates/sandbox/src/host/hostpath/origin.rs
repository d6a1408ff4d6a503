//! Where something that is mounted comes from: a bind mount gives a directory, or a file, other directories
//! above it, and takes none of those away that it lies in.
//!
//! ```text
//! /allowed/part  is a mount of /var/lib/state/database:  above it are /allowed and, by its origin, /var/lib/state
//! ```
//! An origin is found where this process sees the file system at or above it by another mount. Where it does
//! not, nobody here can name it either.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, fstat, openat, statx};

/// Other mounts of one file system that are looked at: a host of containers has hundreds of mounts, and few of
/// one file system that hold the place.
const MAX_MOUNTS: usize = 64;

/// The number of the mount that something is reached by.
pub(super) fn mount_of(fd: impl AsFd) -> io::Result<u64> {
    mount_at(fd, "")
}

/// The same of a name in a directory, which is not followed.
pub(super) fn mount_at(dir: impl AsFd, name: impl rustix::path::Arg) -> io::Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Ok(statx(dir, name, flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// One line of `mountinfo(5)`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    number: u64,
    device: String,
    root: PathBuf,
    at: PathBuf,
}

fn mounts(text: &[u8]) -> impl Iterator<Item = Mount> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let number = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = String::from_utf8(fields.nth(1)?.to_vec()).ok()?;
        let root = unescaped(fields.next()?);
        Some(Mount { number, device, root, at: unescaped(fields.next()?) })
    })
}

/// `\040` and the like, which stand for blanks and backslashes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *byte == b'\\');
        let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match text.and_then(|text| u8::from_str_radix(text, 8).ok()) {
            Some(code) => {
                out.push(code);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// The root of a mount, which may be a file, as the directory that it lies in, or is, elsewhere. `None`: it is
/// the root of its file system, or of one that is seen here by no other mount.
pub(super) fn origin(root: impl AsFd, number: u64) -> io::Result<Option<OwnedFd>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let Some(own) = mounts(&table).find(|mount| mount.number == number) else { return Ok(None) };
    if own.root == Path::new("/") {
        return Ok(None);
    }
    let found = fstat(&root)?;
    let others =
        mounts(&table).filter(|other| other.number != number && other.device == own.device);
    let places = others.filter_map(|other| {
        let rest = own.root.strip_prefix(&other.root).ok()?;
        Some(other.at.join(rest))
    });
    for place in places.take(MAX_MOUNTS) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(seen) = openat(CWD, &place, flags, Mode::empty()) else { continue };
        let same = fstat(&seen)?;
        // Another mount of the same root is no place further up.
        let is_elsewhere = mount_of(&seen)? != number;
        if !is_elsewhere || (same.st_dev, same.st_ino) != (found.st_dev, found.st_ino) {
            continue;
        }
        let is_dir = rustix::fs::FileType::from_raw_mode(same.st_mode).is_dir();
        let above = if is_dir { Some(place.as_path()) } else { place.parent() };
        let flags = flags | OFlags::DIRECTORY;
        let Some(above) = above else { continue };
        if let Ok(above) = openat(CWD, above, flags, Mode::empty()) {
            return Ok(Some(above));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_blanks() {
        let text = b"36 35 98:0 /a\\040b /mnt\\134x rw,noatime master:1 - ext3 /dev/root rw\nx\n";
        let all: Vec<_> = mounts(text).collect();
        let expected =
            Mount { number: 36, device: "98:0".into(), root: "/a b".into(), at: "/mnt\\x".into() };
        assert_eq!(all, [expected]);
    }
}
