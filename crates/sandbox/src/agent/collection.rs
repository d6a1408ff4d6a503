//! A collection of files as it comes out of a sandbox: heads and pieces, each held to the request's bounds.

use bytes::Bytes;
use cofferdam_contracts::artifact::{ArtifactMode, FileOmission};
use cofferdam_guest::frame::Kind;
use cofferdam_guest::wire::{self, CollectEnd, CollectRequest, FileHead, FileKind};
use hyper::Method;

use super::{Agent, AgentError, Frames, Result, TOO_MUCH, encode, parse, wide};
use crate::agent::excess::{Excess, beside};

/// A file that was read out of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedFile {
    /// Relative to the collection's root, as [`cofferdam_guest::name`] writes it.
    pub path: String,
    /// Content, at most as many bytes as the request bounds in all; of a link its target.
    pub bytes: Vec<u8>,
    /// What it is.
    pub mode: ArtifactMode,
}

/// What came of a collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collection {
    /// The files that were read out, in the order of their paths.
    pub files: Vec<CollectedFile>,
    /// Which globs matched nothing, and what is beyond a bound.
    pub end: CollectionEnd,
}

/// What is said at the end of a collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectionEnd {
    /// Which of the globs matched nothing, from 0. An agent below level 13 says it of none.
    pub unmatched: Vec<usize>,
    /// What is beyond a bound.
    pub omitted: Option<FileOmission>,
}

/// A file whose bytes follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedHead {
    /// Relative to the collection's root, as [`cofferdam_guest::name`] writes it.
    pub path: String,
    /// Number of bytes that follow.
    pub size: u64,
    /// What it is.
    pub mode: ArtifactMode,
}

/// The next of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectionItem {
    /// A file begins; the one before is whole.
    File(CollectedHead),
    /// Bytes of the file that began last.
    Bytes(Bytes),
    /// All files are whole.
    End(CollectionEnd),
}

impl CollectedFile {
    /// Whether its path is written otherwise than it is: it has bytes that are not UTF-8, or would be read
    /// as one that has.
    #[must_use]
    pub fn is_encoded(&self) -> bool {
        cofferdam_guest::name::is_encoded(&self.path)
    }
}

/// A collection as it comes. Dropping it ends it.
#[derive(Debug)]
pub struct CollectionStream {
    frames: Frames,
    request: CollectRequest,
    is_exact: bool,
    /// Bytes that may still be announced.
    room: u64,
    /// Bytes of the last file that are still to come.
    owed: u64,
    files: u64,
    last: Option<CollectedHead>,
}

impl CollectionStream {
    /// The next of it; nothing follows an end or an error.
    pub(crate) async fn next(&mut self) -> Result<CollectionItem> {
        let (kind, payload) = self.frames.next().await?;
        match kind {
            Kind::File => self.head(&payload).map(CollectionItem::File),
            Kind::Chunk => self.bytes(payload).map(CollectionItem::Bytes),
            Kind::End => self.end(&payload).map(CollectionItem::End),
            Kind::Stdout | Kind::Stderr | Kind::Item | Kind::Fill | Kind::Begun => {
                Err(AgentError::Forged("output in a collection"))
            }
        }
    }

    fn head(&mut self, payload: &[u8]) -> Result<CollectedHead> {
        let head: FileHead = parse(payload)?;
        self.room = self.room.checked_sub(head.size).ok_or(TOO_MUCH)?;
        if self.owed != 0 || self.files >= self.request.max_files {
            return Err(TOO_MUCH);
        }
        check_name(&head.path, self.last.as_ref())?;
        self.owed = head.size;
        self.files = self.files.saturating_add(1);
        let mode = mode_of(&head, self.is_exact)?;
        let head = CollectedHead { path: head.path, size: head.size, mode };
        self.last = Some(head.clone());
        Ok(head)
    }

    fn bytes(&mut self, payload: Bytes) -> Result<Bytes> {
        let file = self.last.as_ref().ok_or(AgentError::Forged("bytes of no file"))?;
        self.owed = self.owed.checked_sub(wide(payload.len())).ok_or(TOO_MUCH)?;
        // A link that no kernel has, and that no record takes.
        match file.mode == ArtifactMode::Link && payload.contains(&0) {
            true => Err(AgentError::Forged("a link whose target has a NUL")),
            false => Ok(payload),
        }
    }

    fn end(&self, payload: &[u8]) -> Result<CollectionEnd> {
        let end: CollectEnd = parse(payload)?;
        match (end.over, end.error) {
            (Some(over), _) => Err(Excess::from(over).into()),
            (None, Some(error)) => Err(AgentError::Collect(error)),
            (None, None) if self.owed == 0 && end.files == self.files => {
                let (unmatched, omitted) = beside(&self.request, end.unmatched, end.omitted);
                Ok(CollectionEnd { unmatched, omitted })
            }
            (None, None) => Err(AgentError::Forged("fewer files than were announced")),
        }
    }
}

impl Agent {
    /// Begins to read files out; the bounds of the request hold whatever the agent sends.
    /// An agent below level 13 collects plain files, and all of them or none.
    pub(crate) async fn collect_stream(
        &self,
        request: &CollectRequest,
    ) -> Result<CollectionStream> {
        let is_exact = request.exact && self.needs(EXACT_LEVEL).is_ok();
        let sent = CollectRequest { exact: is_exact, ..request.clone() };
        let response = self.send(Method::POST, wire::COLLECT, encode(&sent)?).await?;
        Ok(CollectionStream {
            frames: Frames::of(response),
            request: request.clone(),
            is_exact,
            room: request.max_bytes,
            owed: 0,
            files: 0,
            last: None,
        })
    }

    /// Reads files out into memory.
    pub(crate) async fn collect(&self, request: &CollectRequest) -> Result<Collection> {
        let mut stream = self.collect_stream(request).await?;
        let mut files: Vec<CollectedFile> = Vec::new();
        loop {
            match stream.next().await? {
                CollectionItem::File(CollectedHead { path, mode, .. }) => {
                    files.push(CollectedFile { path, bytes: Vec::new(), mode });
                }
                CollectionItem::Bytes(piece) => {
                    if let Some(file) = files.last_mut() {
                        file.bytes.extend_from_slice(&piece);
                    }
                }
                CollectionItem::End(end) => return Ok(Collection { files, end }),
            }
        }
    }
}

/// Since this level an agent collects exactly.
const EXACT_LEVEL: u32 = 13;

/// What a head announces: a link's target is a path of the kernel's, and a directory has no bytes.
fn mode_of(head: &FileHead, is_exact: bool) -> Result<ArtifactMode> {
    match head.kind {
        None => Ok(ArtifactMode::File),
        Some(_) if !is_exact => Err(AgentError::Forged("a kind of file that was not asked for")),
        Some(FileKind::Executable) => Ok(ArtifactMode::Executable),
        Some(FileKind::Link) if (1..4_096).contains(&head.size) => Ok(ArtifactMode::Link),
        Some(FileKind::Directory) if head.size == 0 => Ok(ArtifactMode::Directory),
        Some(_) => Err(AgentError::Forged("a link or directory of another size")),
    }
}

/// A collected path becomes a file name on the host one day: plain names only, in strict order.
fn check_name(path: &str, last: Option<&CollectedHead>) -> Result<()> {
    let plain = path.split('/').all(|name| !matches!(name, "" | "." | ".."));
    if !plain || path.contains('\0') {
        return Err(AgentError::Forged("a path that leaves its root"));
    }
    if last.is_some_and(|last| last.path.as_str() >= path) {
        return Err(AgentError::Forged("files out of order"));
    }
    Ok(())
}
