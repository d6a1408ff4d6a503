//! Whole directories, as tars.

use std::io;

use bytes::{Bytes, BytesMut};
use cofferdam_guest::archive::{Pack, Unpack};
use cofferdam_guest::frame::Kind;
use cofferdam_guest::wire::{self, CollectEnd};
use hyper::Method;
use tar::EntryType;
use tokio::sync::mpsc;

use super::body::RequestBody;
use super::{AgentError, AgentFiles, Frames, Result, TOO_MUCH, encode, parse, wide};

/// The most that an entry takes beside its bytes: its header, one header and 9 blocks each for a name and a
/// target of the kernel's longest, and its padding.
const ENTRY_BYTES: u64 = 512 + 2 * 10 * 512 + 512;
/// The two blocks at the end.
const END_BYTES: u64 = 1024;

/// Headers of one link, with a long name and a long target, and directories that its name needs.
const MOST_OF_A_LINK: u64 = 256;

/// One piece of a tar on its way, and how many wait.
const PIECE_BYTES: usize = 16 * 1024;
const QUEUED: usize = 4;

impl AgentFiles<'_> {
    /// Packs a directory; `sink` gets the tar as it comes, within the request's bounds whatever the agent
    /// sends. It is the sandbox's word: unpack it as a hostile one. Gives the number of entries; after
    /// an error the bytes so far are to be thrown away.
    pub async fn pack(self, request: &Pack, mut sink: impl FnMut(&[u8]) + Send) -> Result<u64> {
        self.agent.needs(match request {
            Pack { look: true, .. } => 6,
            Pack { exact: true, .. } => 5,
            _ => 3,
        })?;
        let response = self.agent.send(Method::POST, wire::PACK, encode(request)?).await?;
        let mut frames = Frames::of(response);
        // The directory itself may be one of them.
        let most = request.max_entries.saturating_add(u64::from(request.exact));
        let around = most.saturating_mul(ENTRY_BYTES).saturating_add(END_BYTES);
        let mut room = request.max_bytes.saturating_add(around);
        loop {
            match frames.next().await? {
                (Kind::Chunk, payload) => {
                    room = room.checked_sub(wide(payload.len())).ok_or(TOO_MUCH)?;
                    sink(&payload);
                }
                (Kind::End, payload) => {
                    let end: CollectEnd = parse(&payload)?;
                    return match end.error {
                        Some(error) => Err(AgentError::Collect(error)),
                        None if end.files <= most => Ok(end.files),
                        None => Err(TOO_MUCH),
                    };
                }
                _ => return Err(AgentError::Forged("something else in a tar")),
            }
        }
    }

    /// Makes a symbolic link below a directory; what stands there is taken away, unless it is a directory. No link on
    /// the way is followed.
    pub async fn link(self, root: &str, path: &str, target: &str) -> Result<()> {
        let tar = tar_of_link(path, target);
        let tar = tar.map_err(|error| AgentError::Request(error.into()))?;
        let request = Unpack {
            path: root.to_owned(),
            max_bytes: 0,
            max_entries: MOST_OF_A_LINK,
            owner: None,
        };
        let (pieces, body) = mpsc::channel(1);
        // It holds one, and this is the first.
        let _ = pieces.try_send(Bytes::from(tar));
        drop(pieces);
        self.unpack(&request, body).await
    }

    /// Unpacks a tar into a directory as its pieces come, whatever it says; refused where a name leads out
    /// of the directory or a bound is met. What was unpacked before stays.
    pub async fn unpack(self, request: &Unpack, tar: mpsc::Receiver<Bytes>) -> Result<()> {
        self.agent.needs(3)?;
        let query = request.to_query().map_err(|error| AgentError::Request(error.into()))?;
        let route = format!("{}?{query}", wire::UNPACK);
        let (pieces, body) = mpsc::channel(QUEUED);
        let request = self.agent.request(Method::PUT, &route, RequestBody::Stream(body));
        tokio::pin!(request);
        // A refusal may come before the tar's end, and then nobody takes the rest.
        let answer = tokio::select! {
            biased;
            answer = &mut request => answer,
            () = gather(tar, pieces) => request.await,
        };
        answer.map(|_| ())
    }
}

/// Makes large pieces of small ones: HTTP/2 ends a connection on which too many small ones wait, and with
/// it the sandbox.
async fn gather(mut tar: mpsc::Receiver<Bytes>, pieces: mpsc::Sender<Bytes>) {
    let mut held = BytesMut::new();
    while let Some(piece) = tar.recv().await {
        held.extend_from_slice(&piece);
        while held.len() >= PIECE_BYTES {
            if pieces.send(held.split_to(PIECE_BYTES).freeze()).await.is_err() {
                return;
            }
        }
    }
    if !held.is_empty() {
        // An error means that the agent wants no more.
        let _ = pieces.send(held.freeze()).await;
    }
}

/// A tar of one link. Name and target are extensions, so that they are as they are said, whatever their length.
fn tar_of_link(path: &str, target: &str) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |kind: EntryType, name: &str, text: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name)?;
        header.set_mode(0o777);
        header.set_size(wide(text.len()));
        header.set_cksum();
        tar.append(&header, text)
    };
    add(EntryType::GNULongName, "name", &[path.as_bytes(), &[0]].concat())?;
    add(EntryType::GNULongLink, "target", &[target.as_bytes(), &[0]].concat())?;
    add(EntryType::Symlink, "link", &[])?;
    tar.into_inner()
}
