//! Reads files out of the sandbox, never through a symbolic link, in the order of their paths as [`name`] writes them.
//!
//! ```text
//! walk (bounded) -> matching paths, sorted -> head, chunks, head, chunks, ... -> end
//! ```
//! An exact collection sends links as such, too, tells who may be executed, has empty directories, and leaves out what
//! does not fit: each file that fits in what the ones before it left is sent.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bytes::Bytes;
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::glob::{Glob, GlobError};
use cofferdam_guest::name;
use cofferdam_guest::wire::{
    CollectEnd, CollectExcess, CollectOmission, CollectRequest, FileHead, FileKind,
};
use rustix::fs::{Mode, OFlags, openat, readlinkat};
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
        Ok(end) => end,
        Err(error) => {
            let words = Some(in_words(&error));
            let over = if let CollectError::Over(over) = error { Some(over) } else { None };
            CollectEnd { over, ..CollectEnd::of(0, words) }
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

async fn send_all(
    request: &CollectRequest,
    frames: &Sender<Bytes>,
) -> Result<CollectEnd, CollectError> {
    let globs: Vec<Glob> =
        request.globs.iter().map(|text| Glob::parse(text)).collect::<Result<_, _>>()?;
    let root = Path::new(&request.root);
    if !fs::canonicalize(root).is_ok_and(|real| real == root && real.is_dir()) {
        return Err(CollectError::Root(request.root.clone()));
    }
    let handle = tree::directory(&request.root);
    let handle = handle.map_err(|_| CollectError::Root(request.root.clone()))?;
    let mut walk = Walk::new(&globs, request);
    walk.directory(root, &RelativePath::default(), 0)?;
    if let Some((path, count)) = walk.beyond {
        let most = request.max_files;
        return Err(CollectError::Over(CollectExcess::Files { most, found: most + count, path }));
    }
    let Walk { found, matched, mut omission, .. } = walk;
    let mut room = request.max_bytes;
    let mut files = 0;
    for (path, WalkEntry { node, .. }) in found {
        let Content { source, size, kind } = open(&handle, &path, node, request.exact)?;
        let Some(left) = room.checked_sub(size) else {
            if request.exact {
                omission.add(path, size, false);
                continue;
            }
            let (most, before) = (request.max_bytes, request.max_bytes - room);
            let found = before.saturating_add(size);
            return Err(CollectError::Over(CollectExcess::Bytes { most, found, path }));
        };
        room = left;
        send(source, FileHead { path, size, kind }, frames).await?;
        files += 1;
    }
    let unmatched = (0..).zip(&matched).filter(|(_, matched)| request.exact && !**matched);
    let unmatched = unmatched.map(|(index, _)| index).collect();
    Ok(CollectEnd { omitted: omission.0, unmatched, ..CollectEnd::of(files, None) })
}

/// What an exact collection leaves out.
#[derive(Default)]
struct Omission(Option<CollectOmission>);

impl Omission {
    fn add(&mut self, path: String, size: u64, beyond_files: bool) {
        match &mut self.0 {
            Some(omitted) => {
                omitted.files += 1;
                omitted.bytes = omitted.bytes.saturating_add(size);
                if path < omitted.first {
                    (omitted.first, omitted.beyond_files) = (path, beyond_files);
                }
            }
            none => {
                *none = Some(CollectOmission { files: 1, bytes: size, first: path, beyond_files });
            }
        }
    }
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

/// What a walk finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File,
    Link,
    EmptyDirectory,
}

/// What a walk found of a path.
#[derive(Debug, Clone, Copy)]
struct WalkEntry {
    node: Node,
    /// Bytes, in an exact collection.
    size: u64,
}

struct Walk<'a> {
    globs: &'a [Glob],
    /// Which of them matched something.
    matched: Vec<bool>,
    entries: usize,
    found: BTreeMap<String, WalkEntry>,
    max: u64,
    exact: bool,
    /// The first path that was too many, and how many were.
    beyond: Option<(String, u64)>,
    omission: Omission,
}

impl<'a> Walk<'a> {
    fn new(globs: &'a [Glob], request: &CollectRequest) -> Self {
        Self {
            globs,
            matched: vec![false; globs.len()],
            entries: 0,
            found: BTreeMap::new(),
            max: request.max_files,
            exact: request.exact,
            beyond: None,
            omission: Omission::default(),
        }
    }

    /// Whether the directory is empty.
    fn directory(
        &mut self,
        at: &Path,
        above: &RelativePath,
        depth: usize,
    ) -> Result<bool, CollectError> {
        let fault = |source| CollectError::Io { path: at.display().to_string(), source };
        let mut is_empty = true;
        for entry in fs::read_dir(at).map_err(fault)? {
            is_empty = false;
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
                let is_empty = self.directory(&entry.path(), &path, depth + 1)?;
                if is_empty && self.exact && self.is_match(&path) {
                    self.add(path.text, Node::EmptyDirectory, &entry.path());
                }
            } else if kind.is_file() && self.is_match(&path) {
                self.add(path.text, Node::File, &entry.path());
            } else if self.exact && kind.is_symlink() && self.is_match(&path) {
                self.add(path.text, Node::Link, &entry.path());
            }
        }
        Ok(is_empty)
    }

    /// Whether some glob matches, and notes which.
    fn is_match(&mut self, path: &RelativePath) -> bool {
        let mut is = false;
        for (glob, matched) in self.globs.iter().zip(&mut self.matched) {
            let is_open = !is || (self.exact && !*matched);
            if is_open && path.is(|text| glob.matches(text)) {
                (is, *matched) = (true, true);
            }
        }
        is
    }

    /// Of what is too much, an exact collection keeps the first in the order of their paths.
    fn add(&mut self, path: String, node: Node, at: &Path) {
        let is_full = u64::try_from(self.found.len()).unwrap_or(u64::MAX) >= self.max;
        match (&mut self.beyond, is_full && !self.exact) {
            (_, false) => {
                // Asked for those alone that may be counted.
                let size = match node {
                    Node::EmptyDirectory => 0,
                    _ if !self.exact => 0,
                    _ => fs::symlink_metadata(at).map_or(0, |found| found.len()),
                };
                self.found.insert(path, WalkEntry { node, size });
            }
            // Counted to the end, so that a person knows by how much.
            (Some((_, count)), true) => *count += 1,
            (beyond, true) => *beyond = Some((path, 1)),
        }
        if is_full
            && self.exact
            && let Some((last, found)) = self.found.pop_last()
        {
            self.omission.add(last, found.size, true);
        }
    }
}

/// What is sent of a path.
struct Content {
    source: Box<dyn io::Read + Send>,
    size: u64,
    kind: Option<FileKind>,
}

/// Component by component with descriptors: what was a directory when it was listed may be a link
/// now, if something inside still runs.
fn open(root: &OwnedFd, path: &str, node: Node, exact: bool) -> Result<Content, CollectError> {
    let changed = |_| CollectError::Changed(path.to_owned());
    let fault = |source| CollectError::Io { path: path.to_owned(), source };
    let bytes = name::decode(path);
    let mut names = bytes.split(|byte| *byte == b'/').map(OsStr::from_bytes);
    let name = names.next_back().unwrap_or_default();
    let start = root.try_clone().map_err(fault)?;
    let at = names.try_fold(start, |at, name| tree::step(&at, name, path)).map_err(changed)?;
    match node {
        Node::EmptyDirectory => {
            tree::step(&at, name, path).map_err(changed)?;
            Ok(Content { source: Box::new(io::empty()), size: 0, kind: Some(FileKind::Directory) })
        }
        Node::Link => {
            let target = readlinkat(&at, name, Vec::new());
            let target = target.map_err(|errno| fault(errno.into()))?.into_bytes();
            let size = u64::try_from(target.len()).unwrap_or(u64::MAX);
            let source = Box::new(io::Cursor::new(target));
            Ok(Content { source, size, kind: Some(FileKind::Link) })
        }
        Node::File => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(&at, name, flags, Mode::empty());
            let file = File::from(file.map_err(|errno| fault(errno.into()))?);
            let found = file.metadata().map_err(fault)?;
            if !found.is_file() {
                return Err(CollectError::Changed(path.to_owned()));
            }
            let is_executable = exact && found.permissions().mode() & 0o111 != 0;
            let kind = is_executable.then_some(FileKind::Executable);
            Ok(Content { source: Box::new(file), size: found.len(), kind })
        }
    }
}

/// A head and its chunks.
pub async fn send(
    mut source: impl io::Read + Send,
    head: FileHead,
    frames: &Sender<Bytes>,
) -> Result<(), CollectError> {
    let json = serde_json::to_vec(&head).unwrap_or_default();
    frames.send(frame::encode(Kind::File, &json)).await.map_err(|_| CollectError::HungUp)?;
    let FileHead { path, size, .. } = head;
    let mut buffer = vec![0; READ_BYTES];
    let mut left = size;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
        let into = buffer.get_mut(..want).unwrap_or_default();
        let count =
            source.read(into).map_err(|source| CollectError::Io { path: path.clone(), source })?;
        if count == 0 {
            return Err(CollectError::Changed(path));
        }
        left -= u64::try_from(count).unwrap_or(left);
        let piece = frame::encode(Kind::Chunk, buffer.get(..count).unwrap_or_default());
        frames.send(piece).await.map_err(|_| CollectError::HungUp)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use cofferdam_guest::frame::Decoder;
    use tokio::sync::mpsc;

    use super::*;

    /// The heads with the first bytes of each, and the end, of a collection below a directory.
    fn collected(request: CollectRequest) -> (Vec<(FileHead, String)>, CollectEnd) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (sender, mut receiver) = mpsc::channel(4);
            let sending = tokio::spawn(collect(request, sender));
            let (mut decoder, mut files) = (Decoder::default(), Vec::new());
            let mut end = None;
            while let Some(piece) = receiver.recv().await {
                decoder.push(&piece);
                while let Some((kind, payload)) = decoder.next_frame().unwrap() {
                    match kind {
                        Kind::File => {
                            files.push((serde_json::from_slice(&payload).unwrap(), String::new()))
                        }
                        Kind::Chunk => files
                            .last_mut()
                            .map(|(_, text): &mut (FileHead, String)| {
                                text.push_str(&String::from_utf8_lossy(&payload))
                            })
                            .unwrap(),
                        _ => end = Some(serde_json::from_slice(&payload).unwrap()),
                    }
                }
            }
            sending.await.unwrap();
            (files, end.unwrap())
        })
    }

    fn request(root: &Path, globs: &[&str], max_bytes: u64, max_files: u64) -> CollectRequest {
        CollectRequest {
            root: root.canonicalize().unwrap().to_str().unwrap().to_owned(),
            globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
            max_bytes,
            max_files,
            exact: true,
        }
    }

    #[test]
    fn links_execute_bits_and_empty_directories_come_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["out/empty", "out/full", "other"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("out/full/run"), "go").unwrap();
        fs::set_permissions(at("out/full/run"), fs::Permissions::from_mode(0o711)).unwrap();
        fs::write(at("out/plain"), "text").unwrap();
        symlink("full/run", at("out/in")).unwrap();
        symlink("/etc", at("out/leads-out")).unwrap();
        let globs = ["out/**", "none/*", "other"];
        let (files, end) = collected(request(dir.path(), &globs, 1_000, 10));
        let seen: Vec<_> = files
            .iter()
            .map(|(head, text)| (head.path.as_str(), head.kind, text.as_str()))
            .collect();
        let kind = |kind| Some(kind);
        let want = [
            ("other", kind(FileKind::Directory), ""),
            ("out/empty", kind(FileKind::Directory), ""),
            ("out/full/run", kind(FileKind::Executable), "go"),
            ("out/in", kind(FileKind::Link), "full/run"),
            ("out/leads-out", kind(FileKind::Link), "/etc"),
            ("out/plain", None, "text"),
        ];
        assert_eq!(seen, want, "a link is its target, never what lies there");
        assert_eq!((end.files, &end.error, &end.omitted), (6, &None, &None));
        assert_eq!(end.unmatched, [1]);
        // As agents answered before: plain files alone, and nothing said of globs.
        let plain = CollectRequest { exact: false, ..request(dir.path(), &globs, 1_000, 10) };
        let (files, end) = collected(plain);
        let paths: Vec<_> = files.iter().map(|(head, _)| (head.path.as_str(), head.kind)).collect();
        assert_eq!(paths, [("out/full/run", None), ("out/plain", None)]);
        assert!(end.unmatched.is_empty());
    }

    #[test]
    fn what_fits_is_sent_and_the_others_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", 3), ("b", 5), ("c", 2), ("d", 1)] {
            fs::write(dir.path().join(name), "x".repeat(bytes)).unwrap();
        }
        let paths = |files: &[(FileHead, String)]| -> Vec<String> {
            files.iter().map(|(head, _)| head.path.clone()).collect()
        };
        let (files, end) = collected(request(dir.path(), &["*"], 6, 10));
        assert_eq!(paths(&files), ["a", "c", "d"]);
        let omission = |files, bytes, first: &str, beyond_files| {
            Some(CollectOmission { files, bytes, first: first.to_owned(), beyond_files })
        };
        assert_eq!(end.omitted, omission(1, 5, "b", false));
        let (files, end) = collected(request(dir.path(), &["*"], 100, 2));
        assert_eq!(paths(&files), ["a", "b"], "the first in the order of their paths");
        assert_eq!(end.omitted, omission(2, 3, "c", true));
        let (files, end) = collected(request(dir.path(), &["*"], 4, 2));
        assert_eq!(paths(&files), ["a"]);
        assert_eq!(end.omitted, omission(3, 8, "b", false), "the bound of the first one");
        let plain = CollectRequest { exact: false, ..request(dir.path(), &["*"], 100, 2) };
        let (_, end) = collected(plain);
        assert!(
            matches!(end.over, Some(CollectExcess::Files { most: 2, found: 4, .. })),
            "{end:?}"
        );
    }
}
