//! The task that makes a watched call: what it names and what it is, by its own `/proc` entries.
//!
//! A name is walked here as the kernel walks it for that task: `/proc/self` is the caller's, `/dev/fd` leads there, and
//! procfs's magic links are followed by what they lead to. What cannot be read, or does not lead where its text says, is
//! an error.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use super::rules::{FileId, of};

/// The longest path of a call: the kernel's own bound.
const PATH_BYTES: usize = 4_096;
/// A page: what lies beyond its end may not be mapped.
const PAGE: u64 = 4_096;
/// Links on a way: the kernel's own bound.
const MAX_LINKS: usize = 40;

/// A task that waits in a call, so that its number is its own.
#[derive(Debug)]
pub struct Caller {
    tid: u32,
    /// Id of the task's process, the `Tgid` of its status.
    pid: u32,
    _as: UserGuard,
}

/// This thread looks at files as the caller's user, until it is dropped: the kernel shows a process to its own user, and
/// the agent has not the capability that would do instead.
#[derive(Debug)]
struct UserGuard {
    changed: bool,
}

impl UserGuard {
    fn of(uid: u32, gid: u32) -> Self {
        let changed = (uid, gid) != (0, 0);
        if changed {
            setfsgid(Gid::from_raw(gid));
            setfsuid(Uid::from_raw(uid));
        }
        Self { changed }
    }
}

impl Drop for UserGuard {
    fn drop(&mut self) {
        if self.changed {
            setfsuid(Uid::from_raw(0));
            setfsgid(Gid::from_raw(0));
        }
    }
}

impl Caller {
    pub fn of(tid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
        let number = |field: &str| -> io::Result<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let first = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            first.ok_or_else(|| invalid("a task without this in its status"))
        };
        let pid = number("Tgid:")?;
        let who = UserGuard::of(number("Uid:")?, number("Gid:")?);
        Ok(Self { tid, pid, _as: who })
    }

    /// The file that it executes.
    pub fn program(&self) -> io::Result<FileId> {
        fs::metadata(self.own("exe")).map(|found| of(&found))
    }

    /// The same by name, as far as it has one.
    pub fn program_name(&self) -> PathBuf {
        fs::read_link(self.own("exe")).unwrap_or_default()
    }

    /// A path that leads this process, too, to what a call of the task names. `at` is the address of the name, `dir` the
    /// descriptor that it begins from.
    pub fn named(&self, at: u64, dir: Option<u64>) -> io::Result<PathBuf> {
        let given = PathBuf::from(OsString::from_vec(self.string(at)?));
        // A descriptor is an int: the upper half of the register means nothing.
        let number = dir.map(|number| (number & 0xffff_ffff).cast_signed());
        let cwd = i64::from(libc::AT_FDCWD) & 0xffff_ffff;
        let base = match number {
            Some(number) if number != cwd => self.own(&format!("fd/{number}")),
            _ => self.own("cwd"),
        };
        if given.as_os_str().is_empty() {
            return Ok(base);
        }
        let start = if given.is_absolute() { PathBuf::from("/") } else { through(&base)? };
        self.walk(start, &given)
    }

    fn own(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.tid))
    }

    fn walk(&self, start: PathBuf, given: &Path) -> io::Result<PathBuf> {
        let (mut at, mut left) = (start, parts(given));
        let mut links = 0;
        while let Some(part) = left.pop_front() {
            if part == ".." {
                at.pop();
                continue;
            }
            if let Some(own) = self.own_part(&at, &part) {
                at.extend(own);
                continue;
            }
            let next = at.join(&part);
            let found = match fs::symlink_metadata(&next) {
                // What a call is to make is not there yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound && left.is_empty() => {
                    return Ok(next);
                }
                found => found?,
            };
            if !found.is_symlink() {
                at = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            if next.starts_with("/proc") {
                if left.is_empty() {
                    return Ok(next);
                }
                at = through(&next)?;
                continue;
            }
            let target = fs::read_link(&next)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            let mut ahead = parts(&target);
            ahead.append(&mut left);
            left = ahead;
        }
        Ok(at)
    }

    /// What procfs shows every task otherwise.
    fn own_part(&self, at: &Path, part: &OsString) -> Option<Vec<String>> {
        let (pid, tid) = (self.pid.to_string(), self.tid.to_string());
        match part.to_str()? {
            "self" if at == Path::new("/proc") => Some(vec![pid]),
            "thread-self" if at == Path::new("/proc") => Some(vec![pid, "task".to_owned(), tid]),
            _ => None,
        }
    }

    /// A string of the task's, page by page.
    fn string(&self, at: u64) -> io::Result<Vec<u8>> {
        let memory = fs::File::open(self.own("mem"))?;
        let mut found = Vec::new();
        while found.len() < PATH_BYTES {
            let done = u64::try_from(found.len()).map_err(io::Error::other)?;
            let from = at.checked_add(done).ok_or_else(|| invalid("no such address"))?;
            let room = usize::try_from(PAGE - from % PAGE).map_err(io::Error::other)?;
            let mut piece = vec![0; room.min(PATH_BYTES)];
            let read = memory.read_at(&mut piece, from)?;
            let piece = piece.get(..read).filter(|piece| !piece.is_empty());
            let piece = piece.ok_or_else(|| invalid("memory that ends"))?;
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                found.extend_from_slice(piece.get(..end).unwrap_or_default());
                return Ok(found);
            }
            found.extend_from_slice(piece);
        }
        Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }
}

/// Where a magic link leads, by its text, if that is the same file.
fn through(link: &Path) -> io::Result<PathBuf> {
    let text = fs::read_link(link)?;
    let (by_link, by_text) = (fs::metadata(link)?, fs::metadata(&text)?);
    match text.is_absolute() && of(&by_link) == of(&by_text) {
        true => Ok(text),
        false => Err(invalid("a link that leads elsewhere than its text says")),
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    named.collect()
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn named(name: &str) -> io::Result<FileId> {
        let text = CString::new(name).unwrap();
        let tid = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
        let caller = Caller::of(tid)?;
        let at = u64::try_from(text.as_ptr().addr()).unwrap();
        let found = caller.named(at, None)?;
        fs::metadata(found).map(|found| of(&found))
    }

    #[test]
    fn s8_every_name_of_a_file_leads_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::open("/bin/sh").unwrap();
        let wanted = of(&file.metadata().unwrap());
        let number = file.as_raw_fd();
        let link = dir.path().join("link");
        symlink(format!("/dev/fd/{number}"), &link).unwrap();
        let (pid, tid) = (std::process::id(), nix::unistd::gettid());
        for name in [
            "/bin/sh".to_owned(),
            format!("/dev/fd/{number}"),
            format!("/proc/self/fd/{number}"),
            format!("/proc/thread-self/fd/{number}"),
            format!("/../proc/./self/../self/fd/{number}"),
            format!("/proc/{pid}/fd/{number}"),
            format!("/proc/self/task/{tid}/fd/{number}"),
            format!("/proc/{pid}/task/{tid}/root/bin/sh"),
            "/proc/self/root/proc/thread-self/root/bin/sh".to_owned(),
            link.to_str().unwrap().to_owned(),
        ] {
            assert_eq!(named(&name).unwrap(), wanted, "{name}");
        }
        assert!(named("/proc/self/fd/9999").is_err());
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(named(dir.path().join("loop").to_str().unwrap()).is_err());
    }
}
