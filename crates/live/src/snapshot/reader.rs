//! A sealed file, opened by as many threads as the host has processors for it, in the order of its pieces.
//!
//! ```text
//! file --index: where each piece is, to the last--> pieces 0, 2, 4 .. --thread--\
//!                                                   pieces 1, 3, 5 .. --thread---> stream
//! ```
//! **A file that is cut off, longer or framed otherwise is refused before a byte is read from it; an altered piece ends the
//! stream with an error.**

use cofferdam_flows::FileKey;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::snapshot::writer::{FileOwner, FrameSpan, PieceKey, damaged, index};

/// Threads that open one file.
const MOST: usize = 4;
/// Pieces that a thread is ahead of who reads.
const AHEAD: usize = 4;

/// Reads what is in a sealed file; threads open its pieces.
#[derive(Debug)]
pub(crate) struct SnapshotReader {
    lanes: Vec<ReaderThread>,
    /// Which lane has the next piece, and how many there are.
    next: usize,
    left: usize,
    piece: Vec<u8>,
    read: usize,
}

/// One thread's pieces.
#[derive(Debug)]
struct ReaderThread {
    /// Of one reader at a time.
    pieces: Mutex<Receiver<io::Result<Vec<u8>>>>,
    /// Buffers that were read.
    back: Sender<Vec<u8>>,
}

impl SnapshotReader {
    /// Looks at the frame of a file and begins to open it.
    pub(crate) fn new(file: File, key: &FileKey, owner: FileOwner<'_>) -> io::Result<Self> {
        let pieces = Arc::new(index(&file)?);
        let (file, left) = (Arc::new(file), pieces.len());
        let most = thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let count = most.min(left).max(1);
        let lane = |first: usize| {
            let (told, heard) = sync_channel(AHEAD);
            let (back, spare) = channel();
            let key = PieceKey::new(key, owner)?;
            let (file, pieces) = (Arc::clone(&file), Arc::clone(&pieces));
            let work = move || {
                open_all(&file, pieces.iter().skip(first).step_by(count), &key, &told, &spare)
            };
            thread::Builder::new().name("snapshot".to_owned()).spawn(work)?;
            Ok(ReaderThread { pieces: Mutex::new(heard), back })
        };
        let lanes = (0..count).map(lane).collect::<io::Result<_>>()?;
        Ok(Self { lanes, next: 0, left, piece: Vec::new(), read: 0 })
    }

    fn advance(&mut self) -> io::Result<()> {
        let lane = self.lanes.get_mut(self.next).ok_or_else(damaged)?;
        let pieces = lane.pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
        let piece = pieces.recv().map_err(|_| damaged())??;
        let read = std::mem::replace(&mut self.piece, piece);
        // It is of the lane before, which may have ended.
        let _ = lane.back.send(read);
        self.read = 0;
        self.left = self.left.saturating_sub(1);
        self.next = self.next.saturating_add(1).checked_rem(self.lanes.len()).unwrap_or(0);
        Ok(())
    }
}

fn open_all<'a>(
    file: &File,
    pieces: impl Iterator<Item = &'a FrameSpan>,
    key: &PieceKey,
    told: &SyncSender<io::Result<Vec<u8>>>,
    spare: &Receiver<Vec<u8>>,
) {
    for framed in pieces {
        let mut piece = spare.try_recv().unwrap_or_default();
        piece.resize(framed.size, 0);
        let read = file.read_exact_at(&mut piece, framed.at);
        let opened = read.and_then(|()| key.open(framed, &mut piece));
        let is_over = opened.is_err();
        // Who reads may be gone.
        if told.send(opened.map(|()| piece)).is_err() || is_over {
            return;
        }
    }
}

impl Read for SnapshotReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read == self.piece.len() {
            if self.left == 0 {
                return Ok(0);
            }
            self.advance()?;
        }
        let left = self.piece.get(self.read..).unwrap_or_default();
        let count = left.len().min(into.len());
        if let (Some(into), Some(from)) = (into.get_mut(..count), left.get(..count)) {
            into.copy_from_slice(from);
        }
        self.read = self.read.saturating_add(count);
        Ok(count)
    }
}
