//! Reads files out of the sandbox: regular files only, never through a symbolic link, in the order
//! of their paths as [`name`] writes them.
//!
//! ```text
//! walk (bounded) -> matching paths, sorted -> head, chunks, head, chunks, ... -> end
//! ```

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::glob::{Glob, GlobError};
use cofferdam_guest::name;
use cofferdam_guest::wire::{CollectEnd, CollectExcess, CollectRequest, FileHead};
use rustix::fs::{Mode, OFlags, openat};
use tokio::sync::mpsc::Sender;

use super::tree;

/// Directory entries that one collection looks at: a large dependency tree has about 100,000.
const MAX_ENTRIES: usize = 500_000;
/// Nested directories: below this no path fits the kernel's 4096 bytes with names of some length.
const MAX_DEPTH: usize = 256;
/// One read of a file.
const READ_BYTES: usize = 32 * 1024;

/// Why a collection failed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Glob(#[from] GlobError),
    #[error("{0:?} is not a directory, or is reached through a symbolic link")]
    Root(String),
    #[error("a bound was left: {0:?}")]
    Over(CollectExcess),
    #[error("more than {MAX_DEPTH} nested directories")]
    Deep,
    #[error("{0:?} changed while it was read")]
    Changed(String),
    #[error("{path:?}")]
    Io { path: String, source: io::Error },
    #[error("the host hung up")]
    HungUp,
}

/// Streams the files; the last frame says whether all of it may be used.
pub async fn collect(request: CollectRequest, frames: Sender<Bytes>) {
    let end = match send_all(&request, &frames).await {
        Ok(files) => CollectEnd { files, error: None, over: None },
        Err(error) => {
            let words = Some(in_words(&error));
            let over = if let CollectError::Over(over) = error { Some(over) } else { None };
            CollectEnd { files: 0, error: words, over }
        }
    };
    let json = serde_json::to_vec(&end).unwrap_or_default();
    // An error means that the host hung up.
    let _ = frames.send(frame::encode(Kind::End, &json)).await;
}

fn in_words(error: &CollectError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

async fn send_all(request: &CollectRequest, frames: &Sender<Bytes>) -> Result<u64, CollectError> {
    let globs: Vec<Glob> =
        request.globs.iter().map(|text| Glob::parse(text)).collect::<Result<_, _>>()?;
    let root = Path::new(&request.root);
    if !fs::canonicalize(root).is_ok_and(|real| real == root && real.is_dir()) {
        return Err(CollectError::Root(request.root.clone()));
    }
    let handle = tree::directory(&request.root);
    let handle = handle.map_err(|_| CollectError::Root(request.root.clone()))?;
    let mut walk =
        Walk { globs: &globs, entries: 0, found: Vec::new(), max: request.max_files, beyond: None };
    walk.directory(root, &RelativePath::default(), 0)?;
    if let Some((path, count)) = walk.beyond {
        let most = request.max_files;
        return Err(CollectError::Over(CollectExcess::Files { most, found: most + count, path }));
    }
    walk.found.sort_unstable();
    let mut room = request.max_bytes;
    let mut files = 0;
    for path in walk.found {
        let (file, size) = open(&handle, &path)?;
        let Some(left) = room.checked_sub(size) else {
            let (most, before) = (request.max_bytes, request.max_bytes - room);
            let found = before.saturating_add(size);
            return Err(CollectError::Over(CollectExcess::Bytes { most, found, path }));
        };
        room = left;
        send(file, path, size, frames).await?;
        files += 1;
    }
    Ok(files)
}

/// A path below the root.
#[derive(Default)]
struct RelativePath {
    /// As [`name`] writes it.
    text: String,
    /// As a glob sees it: one character for what is not UTF-8.
    seen: String,
}

impl RelativePath {
    fn join(&self, raw: &OsStr) -> Self {
        let join = |above: &str, name: &str| match above {
            "" => name.to_owned(),
            above => format!("{above}/{name}"),
        };
        let text = join(&self.text, &name::encode(raw.as_bytes()));
        Self { text, seen: join(&self.seen, &raw.to_string_lossy()) }
    }

    /// Whether either way to write it is meant.
    fn is(&self, meant: impl Fn(&str) -> bool) -> bool {
        meant(&self.seen) || meant(&self.text)
    }
}

struct Walk<'a> {
    globs: &'a [Glob],
    entries: usize,
    found: Vec<String>,
    max: u64,
    /// The first path that was too many, and how many were.
    beyond: Option<(String, u64)>,
}

impl Walk<'_> {
    fn directory(
        &mut self,
        at: &Path,
        above: &RelativePath,
        depth: usize,
    ) -> Result<(), CollectError> {
        let fault = |source| CollectError::Io { path: at.display().to_string(), source };
        for entry in fs::read_dir(at).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                let most = u64::try_from(MAX_ENTRIES).unwrap_or(u64::MAX);
                let path = at.display().to_string();
                return Err(CollectError::Over(CollectExcess::Entries { most, path }));
            }
            if depth > MAX_DEPTH {
                return Err(CollectError::Deep);
            }
            let kind = entry.file_type().map_err(fault)?;
            let path = above.join(&entry.file_name());
            let mut globs = self.globs.iter();
            if kind.is_dir() && globs.any(|glob| path.is(|text| glob.may_match_below(text))) {
                self.directory(&entry.path(), &path, depth + 1)?;
            } else if kind.is_file() && globs.any(|glob| path.is(|text| glob.matches(text))) {
                let is_full = u64::try_from(self.found.len()).unwrap_or(u64::MAX) >= self.max;
                match &mut self.beyond {
                    // Counted to the end, so that a person knows by how much.
                    Some((_, count)) => *count += 1,
                    None if is_full => self.beyond = Some((path.text, 1)),
                    None => self.found.push(path.text),
                }
            }
        }
        Ok(())
    }
}

/// Component by component with descriptors: what was a directory when it was listed may be a link
/// now, if something inside still runs.
fn open(root: &OwnedFd, path: &str) -> Result<(File, u64), CollectError> {
    let changed = |_| CollectError::Changed(path.to_owned());
    let fault = |source| CollectError::Io { path: path.to_owned(), source };
    let bytes = name::decode(path);
    let mut names = bytes.split(|byte| *byte == b'/').map(OsStr::from_bytes);
    let name = names.next_back().unwrap_or_default();
    let start = root.try_clone().map_err(fault)?;
    let at = names.try_fold(start, |at, name| tree::step(&at, name, path)).map_err(changed)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&at, name, flags, Mode::empty()).map_err(|errno| fault(errno.into()))?;
    let file = File::from(file);
    let found = file.metadata().map_err(fault)?;
    if !found.is_file() {
        return Err(CollectError::Changed(path.to_owned()));
    }
    Ok((file, found.len()))
}

/// A head and its chunks.
pub async fn send(
    mut file: File,
    path: String,
    size: u64,
    frames: &Sender<Bytes>,
) -> Result<(), CollectError> {
    let head = FileHead { path: path.clone(), size };
    let json = serde_json::to_vec(&head).unwrap_or_default();
    frames.send(frame::encode(Kind::File, &json)).await.map_err(|_| CollectError::HungUp)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut left = size;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
        let into = buffer.get_mut(..want).unwrap_or_default();
        let count =
            file.read(into).map_err(|source| CollectError::Io { path: path.clone(), source })?;
        if count == 0 {
            return Err(CollectError::Changed(path));
        }
        left -= u64::try_from(count).unwrap_or(left);
        let piece = frame::encode(Kind::Chunk, buffer.get(..count).unwrap_or_default());
        frames.send(piece).await.map_err(|_| CollectError::HungUp)?;
    }
    Ok(())
}
