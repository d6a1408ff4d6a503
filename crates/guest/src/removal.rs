//! Removal of a tree that somebody else wrote, whatever its depth.
//!
//! ```text
//! top/a/b/c   b goes up: top/#0/c   a is empty and goes   c goes up: top/#1   #0 is empty and goes   ..
//! ```
//! A tenant's tree can be as deep as it has room. So nothing recurses and no path grows: each directory is moved up to the top when its
//! parent is emptied, once, and two descriptors are open at a time. No link is followed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// Times that others who remove the same tree may have put something into its top.
const OTHERS: usize = 1_000;
/// Names that a moved directory is tried under: others may have the first ones already.
const TRIES: u64 = 1 << 20;

/// Removes a directory with all that is in it; what is no directory is removed as the file that it is. Several may remove the
/// same tree at once: what another one removed is gone, and no error of any of them.
///
/// # Errors
/// It is not there when this begins, or the kernel keeps a part of it: a mount point, or a file that may not be changed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return gone(unlinkat(CWD, path, AtFlags::empty()));
    }
    for _ in 0..OTHERS {
        match empty_tree(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            done => done?,
        }
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            // Another one has just moved a directory up.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return gone(done),
        }
    }
    Err(Errno::NOTEMPTY.into())
}

/// The end of a removal, whoever did it.
fn gone(removed: rustix::io::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes all that is in a directory, and leaves the directory.
///
/// # Errors
/// As [`remove_tree`].
pub fn empty_tree(path: &Path) -> io::Result<()> {
    let top = open(CWD, path)?;
    let mut fresh = 0_u64;
    loop {
        let found = names(&top)?;
        if found.is_empty() {
            return Ok(());
        }
        for name in found {
            match unlinkat(&top, &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Of a directory: EISDIR on Linux, EPERM by POSIX.
                Err(Errno::ISDIR | Errno::PERM) => lift(&top, &name, &mut fresh)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Empties one directory of the top: its files go, its directories come up beside it.
fn lift(top: &OwnedFd, name: &CStr, fresh: &mut u64) -> io::Result<()> {
    let dir = match open(top, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    loop {
        let children = names(&dir)?;
        if children.is_empty() {
            return match unlinkat(top, name, AtFlags::REMOVEDIR) {
                // Another one removed it and has moved a directory up under its name: the top is read again.
                Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                removed => gone(removed),
            };
        }
        for child in children {
            match unlinkat(&dir, &*child, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => up(&dir, &child, top, fresh)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn up(dir: &OwnedFd, child: &CStr, top: &OwnedFd, fresh: &mut u64) -> io::Result<()> {
    // An empty one need not be moved.
    match unlinkat(dir, child, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    for _ in 0..TRIES {
        let name = CString::new(format!("#{fresh}"))?;
        *fresh = fresh.saturating_add(1);
        match renameat_with(dir, child, top, &*name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            done => return gone(done),
        }
    }
    Err(io::Error::other("no name is free for a directory that is removed"))
}

fn open<P: rustix::path::Arg>(at: impl std::os::fd::AsFd, path: P) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Names are taken in pieces, so that a directory of millions of files is never in memory as a whole.
const PIECE: usize = 4_096;

fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut found = Vec::new();
    // What was opened may be removed by now.
    let entries = match Dir::read_from(dir) {
        Err(Errno::NOENT) => return Ok(found),
        opened => opened?,
    };
    for entry in entries {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            found.push(name);
        }
        if found.len() >= PIECE {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::mkdirat;

    use super::*;

    /// A chain of directories, made by descriptors: no path is as long.
    fn deep(at: &Path, depth: usize) {
        let mut dir = open(CWD, at).unwrap();
        for _ in 0..depth {
            mkdirat(&dir, "d", Mode::RWXU).unwrap();
            dir = open(&dir, "d").unwrap();
        }
    }

    #[test]
    fn a3f4_a_tree_of_twenty_thousand_levels_is_removed_without_recursion() {
        let outer = tempfile::tempdir().unwrap();
        let top = outer.path().join("top");
        fs::create_dir(&top).unwrap();
        deep(&top, 20_000);
        fs::create_dir(top.join("#0")).unwrap();
        // What recursed would overflow this stack at a tenth of the depth.
        let small = std::thread::Builder::new().stack_size(64 * 1024);
        let at = top.clone();
        small.spawn(move || remove_tree(&at)).unwrap().join().unwrap().unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let outer = tempfile::tempdir().unwrap();
        let (top, kept) = (outer.path().join("top"), outer.path().join("kept"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        symlink(&kept, top.join("a/b/link")).unwrap();
        symlink(&kept, top.join("link")).unwrap();
        for n in 0..PIECE + 10 {
            // More than are taken at once, in the top as well.
            fs::write(top.join("a").join(n.to_string()), "").unwrap();
            fs::write(top.join(n.to_string()), "").unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists() && kept.join("file").exists());
        let link = outer.path().join("link");
        symlink(&kept, &link).unwrap();
        remove_tree(&link).unwrap();
        assert!(fs::symlink_metadata(&link).is_err() && kept.join("file").exists());
        assert_eq!(remove_tree(&top).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_tree_that_several_remove_at_once_is_gone_for_each_of_them() {
        for _ in 0..10 {
            let outer = tempfile::tempdir().unwrap();
            let top = outer.path().join("top");
            for dir in 0..10 {
                let below = top.join(format!("{dir}/a/b/c"));
                fs::create_dir_all(&below).unwrap();
                fs::write(below.join("file"), "x").unwrap();
            }
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(|| remove_tree(&top))).collect();
                for one in all {
                    match one.join().unwrap() {
                        // It began when all was done.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        done => done.unwrap(),
                    }
                }
            });
            assert!(!top.exists());
        }
    }
}
