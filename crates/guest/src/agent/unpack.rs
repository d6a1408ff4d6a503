//! Unpacks a tar into a directory as its bytes come, whatever it says.
//!
//! ```text
//! block -> header -> { file, long name, pax } -> body -> padding -> block -> ... -> zero block -> end
//! ```
//! The tar is hostile, and so is whatever runs in the directory meanwhile: names are walked with
//! descriptors, what is there is taken away and never written into, and a hard link is only made to a
//! file that this very tar brought. What was unpacked before a refusal stays.
//!
//! One file: one hostile stream, and each state of it.

#[cfg(test)]
mod fuzz;

use std::collections::HashSet;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use cofferdam_guest::archive::Unpack;
use cofferdam_guest::wire::User;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, linkat,
    mkdirat, openat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{EntryType, Header, PaxExtensions};

use super::answer::{Answer, done, refuse};
use super::freeze;
use super::tree::{self, TreeError};

const BLOCK: usize = 512;
/// Bytes of a long name or of pax records: two paths of the kernel's longest, with room for times.
const MAX_EXTENSION: u64 = 16 * 1024;
/// Bytes after the end, which are ignored: tools pad to their own blocks.
const MAX_TRAILING: u64 = 1024 * 1024;
/// The kernel's bound on a path.
const MAX_PATH: usize = 4_096;

/// Why a tar was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("not a tar: {0}")]
    Malformed(&'static str),
    #[error("the entry {name:?} {why}")]
    Entry { name: String, why: &'static str },
    #[error("more than {most} {what}")]
    Large { what: &'static str, most: u64 },
    #[error("{name:?}: {source}")]
    Io { name: String, source: io::Error },
    #[error("the tar stopped coming: {0}")]
    Lost(hyper::Error),
}

type Result<T> = std::result::Result<T, UnpackError>;

impl UnpackError {
    fn refusal(&self) -> Response<Answer> {
        let status = match self {
            Self::Tree(error) => return error.refusal(),
            Self::Malformed(_) | Self::Entry { .. } | Self::Lost(_) => StatusCode::BAD_REQUEST,
            Self::Large { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Io { .. } => StatusCode::INSUFFICIENT_STORAGE,
        };
        refuse(status, self.to_string())
    }
}

/// Answers `PUT /v1/unpack?with=`: unpacks the body below a directory.
pub async fn unpack(query: &str, body: Incoming) -> Response<Answer> {
    let Some(request) = Unpack::of_query(query) else {
        return refuse(StatusCode::BAD_REQUEST, "`with` is not the JSON of this route");
    };
    match take(request, body).await {
        Ok(()) => done(),
        Err(error) => error.refusal(),
    }
}

async fn take(request: Unpack, mut body: Incoming) -> Result<()> {
    let mut unpacker = Unpacker::into(request)?;
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(UnpackError::Lost)?.into_data() {
            freeze::over().await;
            unpacker.feed(&bytes)?;
        }
    }
    freeze::over().await;
    unpacker.finish()
}

/// Where the bytes of an entry go.
enum Sink {
    File(File, Attributes),
    Text(EntryType, Vec<u8>),
}

struct Attributes {
    name: String,
    mode: u32,
    mtime: u64,
}

enum UnpackState {
    Block(Vec<u8>),
    Body { sink: Sink, left: u64, pad: u64 },
    Pad(u64),
    End(u64),
}

/// What extension headers say of the next entry.
#[derive(Default)]
struct ExtensionHeaders {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

struct Unpacker {
    root: OwnedFd,
    request: Unpack,
    bytes: u64,
    entries: u64,
    at: UnpackState,
    said: ExtensionHeaders,
    /// The files that it brought: device and inode, because a name may be exchanged.
    brought: HashSet<(u64, u64)>,
}

impl Unpacker {
    fn into(request: Unpack) -> Result<Self> {
        Ok(Self {
            root: tree::directory(&request.path)?,
            bytes: request.max_bytes,
            entries: request.max_entries,
            request,
            at: UnpackState::Block(Vec::with_capacity(BLOCK)),
            said: ExtensionHeaders::default(),
            brought: HashSet::new(),
        })
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = match &mut self.at {
                UnpackState::Block(held) => {
                    let (now, _) = split(bytes, wide(BLOCK.saturating_sub(held.len())));
                    held.extend_from_slice(now);
                    now.len()
                }
                UnpackState::Body { sink, left, .. } => {
                    let (now, _) = split(bytes, *left);
                    match sink {
                        Sink::File(file, attributes) => {
                            file.write_all(now).map_err(|source| io(&attributes.name, source))?;
                        }
                        Sink::Text(_, text) => text.extend_from_slice(now),
                    }
                    *left = left.saturating_sub(wide(now.len()));
                    now.len()
                }
                UnpackState::Pad(left) => {
                    let (now, _) = split(bytes, *left);
                    *left = left.saturating_sub(wide(now.len()));
                    now.len()
                }
                UnpackState::End(room) => {
                    *room = room
                        .checked_sub(wide(bytes.len()))
                        .ok_or(UnpackError::Malformed("too much follows its end"))?;
                    bytes.len()
                }
            };
            bytes = bytes.get(taken..).unwrap_or_default();
            self.settle()?;
        }
        Ok(())
    }

    /// Goes on where a part is whole.
    fn settle(&mut self) -> Result<()> {
        loop {
            let fresh = UnpackState::Block(Vec::with_capacity(BLOCK));
            match &self.at {
                UnpackState::Block(held) if held.len() == BLOCK => {
                    let UnpackState::Block(block) = std::mem::replace(&mut self.at, fresh) else {
                        continue;
                    };
                    self.at = self.header(&block)?;
                    if let UnpackState::Block(_) = self.at {
                        return Ok(());
                    }
                }
                UnpackState::Body { left: 0, .. } => {
                    let UnpackState::Body { sink, pad, .. } =
                        std::mem::replace(&mut self.at, fresh)
                    else {
                        continue;
                    };
                    match sink {
                        Sink::File(file, attributes) => self.close(&file, &attributes)?,
                        Sink::Text(kind, text) => self.hear(kind, text)?,
                    }
                    self.at = UnpackState::Pad(pad);
                }
                UnpackState::Pad(0) => self.at = fresh,
                _ => return Ok(()),
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self.at {
            UnpackState::End(_) => Ok(()),
            _ => Err(UnpackError::Malformed("it ends before its end")),
        }
    }

    fn count(&mut self) -> Result<()> {
        let most = self.request.max_entries;
        let left = self.entries.checked_sub(1);
        self.entries = left.ok_or(UnpackError::Large { what: "entries", most })?;
        Ok(())
    }

    fn header(&mut self, block: &[u8]) -> Result<UnpackState> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(UnpackState::End(MAX_TRAILING));
        }
        let header = Header::from_byte_slice(block);
        let number = |_| UnpackError::Malformed("a number of a header is none");
        if header.cksum().map_err(number)? != checksum(block) {
            return Err(UnpackError::Malformed("a header's sum is wrong"));
        }
        self.count()?;
        let kind = header.entry_type();
        let size = header.entry_size().map_err(number)?;
        if is_extension(kind) {
            if size > MAX_EXTENSION {
                return Err(UnpackError::Large {
                    what: "bytes of a long name",
                    most: MAX_EXTENSION,
                });
            }
            let sink = Sink::Text(kind, Vec::new());
            return Ok(UnpackState::Body { sink, left: size, pad: padding(size) });
        }
        let said = std::mem::take(&mut self.said);
        let size = said.size.unwrap_or(size);
        let raw = said.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let name = plain(&raw)?;
        let link = said.link.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let link = link.unwrap_or_default();
        let bad = |why| Err(UnpackError::Entry { name: name.clone(), why });
        let mode = header.mode().map_err(number)? & 0o777;
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let most = self.request.max_bytes;
                let room = self.bytes.checked_sub(size);
                self.bytes = room.ok_or(UnpackError::Large { what: "bytes of files", most })?;
                let mtime = header.mtime().unwrap_or(0);
                let file = self.create(&name)?;
                let sink = Sink::File(file, Attributes { name, mode, mtime });
                Ok(UnpackState::Body { sink, left: size, pad: padding(size) })
            }
            // A body that belongs to nothing is how one reader is made to disagree with another.
            _ if size != 0 => bad("has bytes, which only a file may"),
            EntryType::Directory => self.directory(&name, mode),
            EntryType::Symlink => self.symlink(&name, &link),
            EntryType::Link => self.hard_link(&name, &link),
            _ => bad("is neither a file, a directory nor a link"),
        }
    }

    fn hear(&mut self, kind: EntryType, text: Vec<u8>) -> Result<()> {
        match kind {
            EntryType::GNULongName => self.said.name = Some(until_nul(text)),
            EntryType::GNULongLink => self.said.link = Some(until_nul(text)),
            EntryType::XHeader => {
                for record in PaxExtensions::new(&text) {
                    let bad = |_| UnpackError::Malformed("a pax record is none");
                    let record = record.map_err(bad)?;
                    let value = record.value_bytes();
                    match record.key_bytes() {
                        b"path" => self.said.name = Some(value.to_vec()),
                        b"linkpath" => self.said.link = Some(value.to_vec()),
                        b"size" => {
                            let size = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
                            let none = UnpackError::Malformed("a pax record's size is none");
                            self.said.size = Some(size.ok_or(none)?);
                        }
                        key if key.starts_with(b"GNU.sparse.") => {
                            return Err(UnpackError::Malformed("files with holes are not taken"));
                        }
                        _ => {}
                    }
                }
            }
            // Of all entries: times and comments.
            _ => {}
        }
        Ok(())
    }

    /// The directory that is to hold a name; what lacks of it is made.
    fn holder<'a>(&mut self, name: &'a str) -> Result<(OwnedFd, &'a str)> {
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        if last.is_empty() {
            return Err(UnpackError::Entry { name: name.to_owned(), why: "has no name" });
        }
        let mut at = self.root.try_clone().map_err(|source| io(name, source))?;
        for step in above.split('/').filter(|step| !step.is_empty()) {
            at = match tree::step(&at, step, name) {
                Err(TreeError::Absent(_)) => {
                    self.count()?;
                    self.make(&at, step, name, 0o755)?
                }
                found => found?,
            };
        }
        Ok((at, last))
    }

    fn make(&self, at: &OwnedFd, step: &str, name: &str, mode: u32) -> Result<OwnedFd> {
        let fault = |errno: Errno| io(name, errno.into());
        match mkdirat(at, step, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fault(errno)),
        }
        let made = tree::step(at, step, name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = openat(&made, ".", flags, Mode::empty()).map_err(fault)?;
        self.own(&open).map_err(fault)?;
        fchmod(&open, Mode::from_raw_mode(mode)).map_err(fault)?;
        Ok(made)
    }

    fn own(&self, node: impl AsFd) -> std::result::Result<(), Errno> {
        let Some(User { uid, gid }) = self.request.owner else { return Ok(()) };
        fchown(node, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
    }

    fn directory(&mut self, name: &str, mode: u32) -> Result<UnpackState> {
        // The root itself is as the host made it.
        if !name.is_empty() {
            let (at, last) = self.holder(name)?;
            self.make(&at, last, name, mode)?;
        }
        Ok(UnpackState::Block(Vec::with_capacity(BLOCK)))
    }

    /// The place of a node that is to be new.
    fn clear<'a>(&mut self, name: &'a str) -> Result<(OwnedFd, &'a str)> {
        let (at, last) = self.holder(name)?;
        match unlinkat(&at, last, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((at, last)),
            Err(Errno::ISDIR) => {
                Err(UnpackError::Entry { name: name.to_owned(), why: "would replace a directory" })
            }
            Err(errno) => Err(io(name, errno.into())),
        }
    }

    fn create(&mut self, name: &str) -> Result<File> {
        let (at, last) = self.clear(name)?;
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let file = openat(&at, last, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(|errno| io(name, errno.into()))?;
        let stat = fstat(&file).map_err(|errno| io(name, errno.into()))?;
        self.brought.insert((stat.st_dev, stat.st_ino));
        Ok(File::from(file))
    }

    fn close(&self, file: &File, attributes: &Attributes) -> Result<()> {
        let fault = |source| io(&attributes.name, source);
        self.own(file).map_err(|errno| fault(errno.into()))?;
        file.set_permissions(Permissions::from_mode(attributes.mode)).map_err(fault)?;
        let since = Duration::from_secs(attributes.mtime);
        match SystemTime::UNIX_EPOCH.checked_add(since) {
            Some(time) => file.set_modified(time).map_err(fault),
            None => Ok(()),
        }
    }

    /// It may point anywhere: only what runs inside ever follows it, and no entry after it.
    fn symlink(&mut self, name: &str, target: &[u8]) -> Result<UnpackState> {
        if target.is_empty() || target.len() >= MAX_PATH || target.contains(&0) {
            return Err(UnpackError::Entry { name: name.to_owned(), why: "links to no path" });
        }
        let (at, last) = self.clear(name)?;
        let fault = |errno: Errno| io(name, errno.into());
        symlinkat(target, &at, last).map_err(fault)?;
        if let Some(User { uid, gid }) = self.request.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(&at, last, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
        }
        Ok(UnpackState::Block(Vec::with_capacity(BLOCK)))
    }

    fn hard_link(&mut self, name: &str, target: &[u8]) -> Result<UnpackState> {
        let fault = |errno: Errno| io(name, errno.into());
        let bad = || UnpackError::Entry {
            name: name.to_owned(),
            why: "is a hard link to something that this tar did not bring before",
        };
        let target = plain(target).map_err(|_| bad())?;
        let (from, source) = tree::holder_below(&self.root, &target).map_err(|_| bad())?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = openat(&from, source, flags, Mode::empty()).map_err(|_| bad())?;
        let stat = fstat(&source).map_err(fault)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !self.brought.contains(&(stat.st_dev, stat.st_ino)) {
            return Err(bad());
        }
        if target == name {
            return Err(bad());
        }
        let (at, last) = self.clear(name)?;
        // By the handle: the name may be another's by now.
        let flags = AtFlags::SYMLINK_FOLLOW;
        linkat(CWD, tree::through(&source), &at, last, flags).map_err(fault)?;
        Ok(UnpackState::Block(Vec::with_capacity(BLOCK)))
    }
}

fn is_extension(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::GNULongName
            | EntryType::GNULongLink
            | EntryType::XHeader
            | EntryType::XGlobalHeader
    )
}

fn io(name: &str, source: io::Error) -> UnpackError {
    UnpackError::Io { name: name.to_owned(), source }
}

/// A relative path of plain names; nothing of it for the root itself.
fn plain(raw: &[u8]) -> Result<String> {
    let name = || String::from_utf8_lossy(raw).chars().take(200).collect();
    let bad = |why| UnpackError::Entry { name: name(), why };
    let text = std::str::from_utf8(raw).map_err(|_| bad("has a name that is not UTF-8"))?;
    if text.starts_with('/') || text.contains('\0') || text.is_empty() {
        return Err(bad("has a name that is not relative"));
    }
    if text.len() >= MAX_PATH {
        return Err(bad("has a name longer than a path may be"));
    }
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(bad("has a name that leads out"));
    }
    Ok(names.join("/"))
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

/// The sum of a header's bytes, its own place taken as spaces.
fn checksum(block: &[u8]) -> u32 {
    let own = 148..156;
    let byte = |(at, byte): (usize, &u8)| if own.contains(&at) { 32 } else { u32::from(*byte) };
    block.iter().enumerate().map(byte).sum()
}

fn padding(size: u64) -> u64 {
    let block = wide(BLOCK);
    (block - size % block) % block
}

fn split(bytes: &[u8], most: u64) -> (&[u8], &[u8]) {
    bytes.split_at(usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len()))
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_paths_of_plain_names_are_unpacked() {
        assert_eq!(plain(b"./a//b/").unwrap(), "a/b");
        assert_eq!(plain(b"./").unwrap(), "");
        let long = vec![b'x'; MAX_PATH];
        for bad in [b"".as_slice(), b"/a", b"a/../b", b"..", b"a\0b", b"\xff", &long] {
            assert!(plain(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_size_of_any_kind_is_padded_without_overflow() {
        assert_eq!([0, 1, 512, u64::MAX].map(padding), [0, 511, 0, 1]);
    }
}
