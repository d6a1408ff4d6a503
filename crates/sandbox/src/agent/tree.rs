//! Files and directories of the sandbox, from the host.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_guest::frame::Kind;
use cofferdam_guest::tree::{Change, ChangeKind, Entry, NewDir, Path, Remove, Rename, Watch};
use cofferdam_guest::wire::{self, CollectEnd, User};
use hyper::Method;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::body::RequestBody;
use super::{Agent, AgentError, Frames, Result, TOO_MUCH, encode, parse, short, wide};

/// Changes that wait for their reader; beyond them a [`ChangeKind::Lost`] stands for the others. As
/// many as the kernel's own queue holds.
const QUEUED_CHANGES: usize = 16_384;
/// Bytes of paths that wait, whatever their number: changes with usual paths fill the queue first.
const WAITING_BYTES: u32 = 2 * 1024 * 1024;
/// What the largest change weighs. The kernel's paths have 4 KiB, and three times as many where they are encoded.
const MAX_CHANGE_BYTES: u32 = 16 * 1024;
/// Bytes of one list, names and targets of links together: ten thousand entries with usual ones have one.
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;

/// Level of the agents that read a part of a file.
const PARTS: u32 = 11;

/// Changes as they come. Dropping it ends the watch.
///
/// They are always taken off the connection, because HTTP/2 ends one on which too many small pieces
/// wait, and with it the sandbox.
#[derive(Debug)]
pub struct WatchStream {
    changes: mpsc::Receiver<ChangeItem>,
}

/// A change, and its part of what may wait.
type ChangeItem = (Result<Change>, Option<OwnedSemaphorePermit>);

impl WatchStream {
    /// The next change; `None` after as many as were asked for.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        self.changes.recv().await.map(|(change, _)| change).transpose()
    }
}

/// A file that is read. Dropping it ends the reading.
#[derive(Debug)]
pub struct FileReader {
    frames: Frames,
    owed: u64,
}

impl FileReader {
    /// The next piece; `None` once all bytes came.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        match self.frames.next().await? {
            (Kind::Chunk, payload) => {
                self.owed = self.owed.checked_sub(wide(payload.len())).ok_or(TOO_MUCH)?;
                Ok(Some(payload))
            }
            (Kind::End, payload) => match parse::<CollectEnd>(&payload)?.error {
                Some(error) => Err(AgentError::Collect(error)),
                None if self.owed == 0 => Ok(None),
                None => Err(AgentError::Forged("fewer bytes than were announced")),
            },
            _ => Err(AgentError::Forged("something else in a file")),
        }
    }
}

/// Takes changes until there are no more, or nobody wants them.
async fn take(mut frames: Frames, mut room: u64, changes: mpsc::Sender<ChangeItem>) {
    let waiting = Arc::new(Semaphore::new(usize::try_from(WAITING_BYTES).unwrap_or(usize::MAX)));
    let mut lost = false;
    loop {
        let again = async {
            let light = waiting.acquire_many(MAX_CHANGE_BYTES).await;
            (changes.reserve().await, light)
        };
        let taken = tokio::select! {
            frame = frames.next() => frame.and_then(|(kind, payload)| change(kind, &payload)),
            (permit, _light) = again, if lost => {
                let Ok(permit) = permit else { return };
                let change = Change { path: String::new(), mangled: false, kind: ChangeKind::Lost };
                permit.send((Ok(change), None));
                lost = false;
                continue;
            }
            () = changes.closed() => return,
        };
        let change = match (taken, room.checked_sub(1)) {
            (Ok(Some(change)), Some(left)) => {
                room = left;
                change
            }
            (Ok(None), _) => return,
            (Ok(Some(_)), None) => return drop(changes.send((Err(TOO_MUCH), None)).await),
            (Err(error), _) => return drop(changes.send((Err(error), None)).await),
        };
        let weight = u32::try_from(change.path.len()).unwrap_or(u32::MAX);
        let place = Arc::clone(&waiting).try_acquire_many_owned(weight).ok();
        if lost || place.is_none() || changes.try_send((Ok(change), place)).is_err() {
            lost = true;
        }
    }
}

fn too_long() -> AgentError {
    AgentError::Collect(format!("a list of more than {MAX_LIST_BYTES} bytes"))
}

fn change(kind: Kind, payload: &[u8]) -> Result<Option<Change>> {
    match kind {
        Kind::Item if wide(payload.len()) > u64::from(MAX_CHANGE_BYTES) => Err(TOO_MUCH),
        Kind::Item => parse(payload).map(Some),
        Kind::End => match parse::<CollectEnd>(payload)?.error {
            Some(error) => Err(AgentError::Collect(error)),
            None => Ok(None),
        },
        _ => Err(AgentError::Forged("something else in a watch")),
    }
}

/// The files and directories of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct AgentFiles<'a> {
    pub(super) agent: &'a Agent,
}

impl AgentFiles<'_> {
    /// Writes a file, parents included.
    pub async fn put(self, path: &str, mode: u32, bytes: Bytes) -> Result<()> {
        self.put_for(path, mode, None, bytes).await
    }

    /// The same with this owner, of the parents that are made as well.
    pub(crate) async fn put_for(
        self,
        path: &str,
        mode: u32,
        owner: Option<User>,
        bytes: Bytes,
    ) -> Result<()> {
        let mut route = format!("{}?path={}&mode={mode:o}", wire::FILE, wire::encode_path(path));
        if let Some(User { uid, gid }) = owner {
            self.agent.needs(8)?;
            route.push_str(&format!("&uid={uid}&gid={gid}"));
        }
        self.agent.send(Method::PUT, &route, bytes).await.map(|_| ())
    }

    /// The bytes of one regular file, at most `most`.
    pub async fn read(self, path: &str, most: u64) -> Result<Vec<u8>> {
        self.agent.needs(2)?;
        let request = Path::whole(path.to_owned(), most);
        let response = self.agent.send(Method::POST, wire::READ, encode(&request)?).await?;
        let mut frames = Frames::of(response);
        let mut bytes = Vec::new();
        let mut owed: Option<u64> = None;
        loop {
            match frames.next().await? {
                (Kind::File, payload) if owed.is_none() => {
                    let size = parse::<wire::FileHead>(&payload)?.size;
                    owed = Some(size).filter(|size| *size <= most);
                    owed.ok_or(TOO_MUCH)?;
                }
                (Kind::Chunk, payload) => {
                    let left = owed.and_then(|owed| owed.checked_sub(wide(payload.len())));
                    owed = Some(left.ok_or(TOO_MUCH)?);
                    bytes.extend_from_slice(&payload);
                }
                (Kind::End, payload) => {
                    return match (parse::<CollectEnd>(&payload)?.error, owed) {
                        (Some(error), _) => Err(AgentError::Collect(error)),
                        (None, Some(0)) => Ok(bytes),
                        (None, _) => Err(AgentError::Forged("fewer bytes than were announced")),
                    };
                }
                _ => return Err(AgentError::Forged("something else in a file")),
            }
        }
    }

    /// The bytes of one regular file as they come, and how many there are: at most `most`.
    pub async fn open(self, path: &str, most: u64) -> Result<(u64, FileReader)> {
        self.reading(&Path::whole(path.to_owned(), most)).await
    }

    /// The same from one byte to before another, as far as the file goes; all of it from an agent that is older than this:
    /// the number of bytes that come says which.
    pub async fn open_part(
        self,
        path: &str,
        most: u64,
        from: u64,
        to: u64,
    ) -> Result<(u64, FileReader)> {
        let part = Some((from, to)).filter(|_| self.agent.needs(PARTS).is_ok());
        self.reading(&Path { path: path.to_owned(), most, part }).await
    }

    async fn reading(self, request: &Path) -> Result<(u64, FileReader)> {
        self.agent.needs(2)?;
        let response = self.agent.send(Method::POST, wire::READ, encode(request)?).await?;
        let mut frames = Frames::of(response);
        let size = match frames.next().await? {
            (Kind::File, payload) => parse::<wire::FileHead>(&payload)?.size,
            (Kind::End, payload) => {
                let error = parse::<CollectEnd>(&payload)?.error;
                return Err(AgentError::Collect(error.unwrap_or_default()));
            }
            _ => return Err(AgentError::Forged("something else in a file")),
        };
        if size > request.most {
            return Err(TOO_MUCH);
        }
        Ok((size, FileReader { frames, owed: size }))
    }

    /// Writes a file as its pieces come, parents included, with this owner. It is whole once `None` came; where the
    /// pieces end without it, the agent removes what it began, unless a file was there before.
    pub async fn pour(
        self,
        path: &str,
        mode: u32,
        owner: User,
        pieces: mpsc::Receiver<Option<Bytes>>,
    ) -> Result<()> {
        self.agent.needs(8)?;
        let (path, User { uid, gid }) = (wire::encode_path(path), owner);
        let route = format!("{}?path={path}&mode={mode:o}&uid={uid}&gid={gid}", wire::FILE);
        self.agent.request(Method::PUT, &route, RequestBody::Counted(pieces)).await.map(|_| ())
    }

    /// What is at a path; a symbolic link at its end is described, not followed.
    pub async fn stat(self, path: &str) -> Result<Entry> {
        self.agent.needs(2)?;
        let request = Path::whole(path.to_owned(), 0);
        let response = self.agent.send(Method::POST, wire::STAT, encode(&request)?).await?;
        parse(&short(response).await?)
    }

    /// A directory's entries, sorted by name; more than `most` are an error.
    pub async fn list(self, path: &str, most: u64) -> Result<Vec<Entry>> {
        self.agent.needs(2)?;
        let request = Path::whole(path.to_owned(), most);
        let response = self.agent.send(Method::POST, wire::LIST, encode(&request)?).await?;
        let mut frames = Frames::of(response);
        let mut entries: Vec<Entry> = Vec::new();
        let mut left = MAX_LIST_BYTES;
        loop {
            match frames.next().await? {
                (Kind::Item, payload) => {
                    if wide(entries.len()) >= most {
                        return Err(TOO_MUCH);
                    }
                    left = left.checked_sub(payload.len()).ok_or_else(too_long)?;
                    let entry: Entry = parse(&payload)?;
                    if matches!(entry.name.as_str(), "" | "." | "..") || entry.name.contains('/') {
                        return Err(AgentError::Forged("an entry with an invalid name"));
                    }
                    entries.push(entry);
                }
                (Kind::End, payload) => {
                    let end: CollectEnd = parse(&payload)?;
                    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                    return match end.error {
                        Some(error) => Err(AgentError::Collect(error)),
                        None if end.files == wide(entries.len()) => Ok(entries),
                        None => Err(AgentError::Forged("fewer entries than were announced")),
                    };
                }
                _ => return Err(AgentError::Forged("something else in a list")),
            }
        }
    }

    /// Makes a directory and its parents.
    pub async fn mkdir(self, path: &str, mode: u32, owner: Option<User>) -> Result<()> {
        self.agent.needs(2)?;
        let request = NewDir { path: path.to_owned(), mode, owner };
        self.agent.send(Method::POST, wire::MKDIR, encode(&request)?).await.map(|_| ())
    }

    /// Removes a node, with `recursive` all that is below it.
    pub async fn remove(self, path: &str, recursive: bool) -> Result<()> {
        self.agent.needs(2)?;
        let request = Remove { path: path.to_owned(), recursive };
        self.agent.send(Method::POST, wire::REMOVE, encode(&request)?).await.map(|_| ())
    }

    /// Moves a node.
    pub async fn rename(self, from: &str, to: &str) -> Result<()> {
        self.agent.needs(2)?;
        let request = Rename { from: from.to_owned(), to: to.to_owned() };
        self.agent.send(Method::POST, wire::RENAME, encode(&request)?).await.map(|_| ())
    }

    /// Watches directories from this moment on, for at most `most` changes.
    pub async fn watch(self, paths: &[&str], most: u64) -> Result<WatchStream> {
        self.agent.needs(2)?;
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let response =
            self.agent.send(Method::POST, wire::WATCH, encode(&Watch { paths, most })?).await?;
        let (sender, changes) = mpsc::channel(QUEUED_CHANGES);
        tokio::spawn(take(Frames::of(response), most, sender));
        Ok(WatchStream { changes })
    }
}
