//! Packs a directory into a tar, never through a symbolic link.
//!
//! ```text
//! directory -> names, sorted -> { header, bytes | link | directory, then what is in it } -> end
//! ```
//! Files, directories and symbolic links as they are; of sockets, pipes and devices nothing, and a file
//! with two names is sent twice. Owners are told on request, set-user-id never. Who only looks is sent
//! nothing.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use cofferdam_guest::archive::Pack;
use cofferdam_guest::frame::{self, Kind};
use hyper::Response;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc::Sender;

use super::answer::{self, Answer};
use super::tree;

/// Nested directories, each an open one meanwhile.
const MAX_DEPTH: usize = 128;
/// The same for one who only looks: what lies deeper is refused for its depth by who copies it.
const MAX_LOOKED: usize = 256;
/// One read of a file.
const READ_BYTES: usize = 32 * 1024;
const BLOCK: u64 = 512;

/// Why a directory was not packed.
#[derive(Debug, thiserror::Error)]
enum PackError {
    #[error("more than {0} entries")]
    Entries(u64),
    #[error("the files hold more than {0} bytes")]
    Bytes(u64),
    #[error("more than {MAX_DEPTH} nested directories")]
    Depth,
    #[error("a name is not UTF-8: {0:?}")]
    Name(String),
    #[error("{0:?} is a device, a pipe or a socket")]
    Kind(String),
    #[error("{0:?} changed while it was read")]
    Changed(String),
    #[error("{path:?}: {source}")]
    Io { path: String, source: io::Error },
    #[error("the host hung up")]
    HungUp,
}

type Result<T> = std::result::Result<T, PackError>;

/// Answers `POST /v1/pack`: streams a directory as a tar, within the request's bounds.
pub fn pack(request: Pack) -> Response<Answer> {
    let root = match tree::directory(&request.path) {
        Ok(root) => root,
        Err(error) => return error.refusal(),
    };
    let (frames, response) = answer::frames();
    tokio::spawn(async move {
        let mut packer = Packer {
            bytes: request.max_bytes,
            entries: request.max_entries,
            sent: 0,
            tar: Builder::new(Vec::new()),
            request,
            frames,
        };
        let error = packer.all(&root).await.err().map(|error| error.to_string());
        tree::end(&packer.frames, packer.sent, error).await;
    });
    response
}

/// A directory that is being packed.
struct Level {
    at: OwnedFd,
    prefix: String,
    /// Its names, the last one first.
    names: Vec<String>,
}

struct Packer {
    request: Pack,
    bytes: u64,
    entries: u64,
    sent: u64,
    /// Writes tar headers into a buffer, which is sent and emptied after each of them.
    tar: Builder<Vec<u8>>,
    frames: Sender<Bytes>,
}

impl Packer {
    async fn all(&mut self, root: &OwnedFd) -> Result<()> {
        if self.request.exact && !self.request.look {
            let stat = fstat(root).map_err(|errno| fault(".", errno))?;
            self.head(EntryType::Directory, "./", &stat, 0, None).await?;
        }
        let mut levels = vec![self.level(root, ".", String::new())?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let path = format!("{}{name}", level.prefix);
            // One that is gone meanwhile is not there.
            let Ok(stat) = statat(&level.at, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink if self.request.look => {}
                FileType::RegularFile => self.file(&level.at, &name, path).await?,
                FileType::Symlink => self.link(&level.at, &name, path, &stat).await?,
                FileType::Directory => {
                    let below = self.level(&level.at, &name, format!("{path}/"))?;
                    if self.request.look {
                        // Nothing that is sent lets the agent's other work go on.
                        tokio::task::yield_now().await;
                        if self.frames.is_closed() {
                            return Err(PackError::HungUp);
                        }
                    } else {
                        let stat = fstat(&below.at).map_err(|errno| fault(&path, errno))?;
                        self.head(EntryType::Directory, &below.prefix, &stat, 0, None).await?;
                    }
                    match (levels.len(), self.request.look) {
                        (..MAX_DEPTH, _) | (..MAX_LOOKED, true) => levels.push(below),
                        (_, true) => {}
                        (_, false) => return Err(PackError::Depth),
                    }
                }
                _ if self.request.exact => return Err(PackError::Kind(path)),
                _ => {}
            }
        }
        if self.request.look {
            return Ok(());
        }
        self.tar.finish().map_err(|source| PackError::Io { path: String::new(), source })?;
        self.flush().await
    }

    /// A directory's names; more than may still be sent are an error at once.
    fn level(&mut self, at: &OwnedFd, name: &str, prefix: String) -> Result<Level> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let error = |errno: Errno| match errno {
            Errno::NOTDIR | Errno::LOOP | Errno::NOENT => PackError::Changed(prefix.clone()),
            other => fault(&prefix, other),
        };
        let at = openat(at, name, flags, Mode::empty()).map_err(error)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&at).map_err(error)? {
            let entry = entry.map_err(error)?;
            let raw = entry.file_name();
            if matches!(raw.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(name) = raw.to_str() else {
                return Err(PackError::Name(format!("{prefix}{}", raw.to_string_lossy())));
            };
            // Whatever it is, and before it is held: a tree must not outgrow the agent.
            let left = self.entries.checked_sub(1);
            self.entries = left.ok_or(PackError::Entries(self.request.max_entries))?;
            names.push(name.to_owned());
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Level { at, prefix, names })
    }

    async fn file(&mut self, at: &OwnedFd, name: &str, path: String) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(at, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::LOOP | Errno::NOENT) => return Err(PackError::Changed(path)),
            Err(errno) => return Err(fault(&path, errno)),
        };
        let stat = fstat(&file).map_err(|errno| fault(&path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(PackError::Changed(path));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let room = self.bytes.checked_sub(size);
        self.bytes = room.ok_or(PackError::Bytes(self.request.max_bytes))?;
        self.head(EntryType::Regular, &path, &stat, size, None).await?;
        self.body(File::from(file), path, size).await
    }

    async fn body(&self, mut file: File, path: String, size: u64) -> Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut left = size;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
            let into = buffer.get_mut(..want).unwrap_or_default();
            let count =
                file.read(into).map_err(|source| PackError::Io { path: path.clone(), source })?;
            if count == 0 {
                return Err(PackError::Changed(path));
            }
            left = left.saturating_sub(u64::try_from(count).unwrap_or(left));
            self.send(buffer.get(..count).unwrap_or_default()).await?;
        }
        let pad = usize::try_from((BLOCK - size % BLOCK) % BLOCK).unwrap_or(0);
        self.send(&vec![0; pad]).await
    }

    async fn link(&mut self, at: &OwnedFd, name: &str, path: String, stat: &Stat) -> Result<()> {
        let target = match readlinkat(at, name, Vec::new()) {
            Ok(target) => target,
            Err(Errno::INVAL | Errno::NOENT) => return Err(PackError::Changed(path)),
            Err(errno) => return Err(fault(&path, errno)),
        };
        let target = Path::new(std::ffi::OsStr::from_bytes(target.to_bytes()));
        self.head(EntryType::Symlink, &path, stat, 0, Some(target)).await
    }

    /// A header, of a file without its bytes; a long name has one of its own before it.
    async fn head(
        &mut self,
        kind: EntryType,
        path: &str,
        stat: &Stat,
        size: u64,
        target: Option<&Path>,
    ) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        let (bits, owner) = match self.request.exact {
            true => (0o1777, (stat.st_uid, stat.st_gid)),
            false => (0o777, (0, 0)),
        };
        header.set_mode(stat.st_mode & bits);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_uid(owner.0.into());
        header.set_gid(owner.1.into());
        header.set_size(size);
        let written = match target {
            Some(target) => self.tar.append_link(&mut header, path, target),
            None => self.tar.append_data(&mut header, path, io::empty()),
        };
        written.map_err(|source| PackError::Io { path: path.to_owned(), source })?;
        self.sent = self.sent.saturating_add(1);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<()> {
        let bytes = std::mem::take(self.tar.get_mut());
        self.send(&bytes).await
    }

    async fn send(&self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(READ_BYTES) {
            let sent = self.frames.send(frame::encode(Kind::Chunk, piece)).await;
            sent.map_err(|_| PackError::HungUp)?;
        }
        Ok(())
    }
}

fn fault(path: &str, errno: Errno) -> PackError {
    PackError::Io { path: path.to_owned(), source: errno.into() }
}
