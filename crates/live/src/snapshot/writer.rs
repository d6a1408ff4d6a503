//! The file of a snapshot: a stream in pieces, each sealed.
//!
//! ```text
//! file:   MAGIC  piece*            piece: length, with LAST in the last one | AES-256-GCM(bytes) | tag
//! nonce:  number of the piece (8 bytes) | 3 zeros | 1 in the last one      data beside it: tenant and snapshot
//! ```
//! The key is the file's own, so no nonce is used twice under it. **A piece that is missing, moved, altered, of another
//! file or of another tenant's does not open, and neither does a file that is cut off.**

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use cofferdam_contracts::id::{Digest, SnapshotId, TenantId};
use cofferdam_flows::FileKey;
use cofferdam_ledger::snapshots::SealedFile;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{Context, SHA256};

/// First bytes of a file, with the version of its form.
const MAGIC: &[u8; 8] = b"cfdsnp01";
/// Bytes of the stream in one piece: a piece is in memory twice.
const PIECE: usize = 256 * 1024;
/// The cipher's tag.
const TAG: usize = 16;
/// In the length of the last piece.
const LAST: u32 = 1 << 31;

fn key_of(key: &FileKey) -> io::Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, &key[..]);
    Ok(LessSafeKey::new(key.map_err(|_| io::Error::other("the cipher refused its key"))?))
}

/// What the pieces of a file belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileOwner<'a> {
    pub tenant: &'a TenantId,
    pub snapshot: &'a SnapshotId,
}

impl FileOwner<'_> {
    /// The data beside each piece.
    fn data(self) -> Vec<u8> {
        let Self { tenant, snapshot } = self;
        format!("cofferdam snapshot file 1\n{tenant}\n{snapshot}").into_bytes()
    }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    let bytes: [u8; NONCE_LEN] = [a, b, c, d, e, f, g, h, 0, 0, 0, u8::from(is_last)];
    Nonce::assume_unique_for_key(bytes)
}

/// Bytes of the file of a stream, at most. Pure.
pub(crate) fn sealed_size(stream: u64) -> u64 {
    let piece = u64::try_from(PIECE).unwrap_or(u64::MAX);
    let more = u64::try_from(TAG + size_of::<u32>()).unwrap_or(u64::MAX);
    let pieces = stream.div_ceil(piece).saturating_add(1);
    stream.saturating_add(pieces.saturating_mul(more)).saturating_add(more)
}

/// Seals what is written to it. A thread of its own writes and digests what is sealed.
pub(crate) struct SealWriter<W> {
    key: LessSafeKey,
    of: Vec<u8>,
    /// A frame's length, then what is not sealed yet.
    held: Vec<u8>,
    number: u64,
    behind: SealThread<W>,
}

/// Bytes of a frame before its piece.
const FRAME: usize = size_of::<u32>();
/// Sealed pieces that wait to be written.
const WAITING: usize = 8;

/// The thread that writes and digests sealed pieces.
struct SealThread<W> {
    pieces: SyncSender<Vec<u8>>,
    /// Buffers that were written.
    back: Receiver<Vec<u8>>,
    writing: JoinHandle<io::Result<(W, u64, Context)>>,
}

impl<W: Write + Send + 'static> SealThread<W> {
    fn new(mut out: W) -> io::Result<Self> {
        let (pieces, waiting) = sync_channel::<Vec<u8>>(WAITING);
        let (spare, back) = channel();
        let write = move || {
            let (mut bytes, mut sha256) = (0u64, Context::new(&SHA256));
            for mut piece in waiting {
                out.write_all(&piece)?;
                sha256.update(&piece);
                bytes = bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
                piece.clear();
                // Who seals may be done.
                let _ = spare.send(piece);
            }
            out.flush()?;
            Ok((out, bytes, sha256))
        };
        let writing = thread::Builder::new().name("snapshot".to_owned()).spawn(write)?;
        Ok(Self { pieces, back, writing })
    }

    /// Has it written; gives a buffer for the next one.
    fn put(&self, piece: Vec<u8>) -> io::Result<Vec<u8>> {
        // Why it has ended is said at the end.
        self.pieces.send(piece).map_err(|_| io::Error::from(io::ErrorKind::WriteZero))?;
        Ok(self.back.try_recv().unwrap_or_else(|_| Vec::with_capacity(FRAME + PIECE + TAG)))
    }

    fn end(self) -> io::Result<(W, u64, Context)> {
        let Self { pieces, writing, .. } = self;
        drop(pieces);
        writing.join().unwrap_or_else(|_| Err(io::Error::other("a file was not written")))
    }
}

impl<W: Write + Send + 'static> SealWriter<W> {
    pub(crate) fn new(out: W, key: &FileKey, owner: FileOwner<'_>) -> io::Result<Self> {
        let behind = SealThread::new(out)?;
        let mut held = behind.put(MAGIC.to_vec())?;
        held.extend_from_slice(&[0; FRAME]);
        Ok(Self { key: key_of(key)?, of: owner.data(), held, number: 0, behind })
    }

    fn piece(&mut self, is_last: bool) -> io::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        let Some((frame, piece)) = held.split_at_mut_checked(FRAME) else {
            return Err(io::ErrorKind::WriteZero.into());
        };
        let nonce = nonce(self.number, is_last);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&self.of), piece);
        let tag = tag.map_err(|_| io::Error::other("the cipher refused a piece"))?;
        let size = u32::try_from(piece.len().saturating_add(TAG)).map_err(io::Error::other)?;
        frame.copy_from_slice(&(size | if is_last { LAST } else { 0 }).to_le_bytes());
        held.extend_from_slice(tag.as_ref());
        self.number = self.number.saturating_add(1);
        self.held = self.behind.put(held)?;
        self.held.extend_from_slice(&[0; FRAME]);
        Ok(())
    }

    /// Writes the last piece; gives what was written to, and what all of it came to.
    pub(crate) fn finish(mut self) -> io::Result<(W, SealedFile)> {
        let last = self.piece(true);
        let (out, bytes, sha256) = self.behind.end()?;
        last?;
        Ok((out, SealedFile { bytes, sha256: digest(sha256)? }))
    }

    /// Why what was sealed could not be written, where `error` is that it could not.
    pub(crate) fn why(self, error: io::Error) -> io::Error {
        match self.behind.end() {
            Err(why) => why,
            Ok(_) => error,
        }
    }
}

impl<W: Write + Send + 'static> Write for SealWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.held.len() >= FRAME + PIECE {
            self.piece(false)?;
        }
        let room = (FRAME + PIECE).saturating_sub(self.held.len()).min(bytes.len());
        self.held.extend_from_slice(bytes.get(..room).unwrap_or_default());
        Ok(room)
    }

    /// Nothing that is held leaves before its piece is full, or the last.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn digest(context: Context) -> io::Result<Digest> {
    Digest::parse(&hex::encode(context.finish())).map_err(io::Error::other)
}

/// The digest of everything that a file has.
pub(crate) fn sha256(mut from: impl Read) -> io::Result<Digest> {
    let mut context = Context::new(&SHA256);
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece)? {
            0 => return digest(context),
            count => context.update(piece.get(..count).unwrap_or_default()),
        }
    }
}

/// Where a piece of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSpan {
    /// Its first byte in the file.
    pub at: u64,
    /// Its bytes with the tag.
    pub size: usize,
    number: u64,
    is_last: bool,
}

/// Where the pieces of a file are. One that is cut off, or goes on behind its last piece, is damaged.
pub(crate) fn index(file: &File) -> io::Result<Vec<FrameSpan>> {
    let length = file.metadata()?.len();
    let mut magic = [0; 8];
    whole(file.read_exact_at(&mut magic, 0))?;
    if magic != *MAGIC {
        return Err(damaged());
    }
    let mut pieces = Vec::new();
    let mut at = 8u64;
    for number in 0.. {
        let mut size = [0; 4];
        whole(file.read_exact_at(&mut size, at))?;
        let size = u32::from_le_bytes(size);
        let is_last = size & LAST != 0;
        let size = usize::try_from(size & !LAST).unwrap_or(usize::MAX);
        if !(TAG..=PIECE + TAG).contains(&size) {
            return Err(damaged());
        }
        at = at.saturating_add(4);
        pieces.push(FrameSpan { at, size, number, is_last });
        at = at.saturating_add(u64::try_from(size).unwrap_or(u64::MAX));
        if is_last {
            break;
        }
    }
    match at == length {
        true => Ok(pieces),
        false => Err(damaged()),
    }
}

fn whole(read: io::Result<()>) -> io::Result<()> {
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(),
        _ => error,
    })
}

/// Opens the pieces of one file.
pub(crate) struct PieceKey {
    key: LessSafeKey,
    of: Vec<u8>,
}

impl PieceKey {
    pub(crate) fn new(key: &FileKey, owner: FileOwner<'_>) -> io::Result<Self> {
        Ok(Self { key: key_of(key)?, of: owner.data() })
    }

    /// Opens a piece where it is.
    pub(crate) fn open(&self, framed: &FrameSpan, piece: &mut Vec<u8>) -> io::Result<()> {
        let nonce = nonce(framed.number, framed.is_last);
        let opened = self.key.open_in_place(nonce, Aad::from(&self.of), piece);
        let size = opened.map_err(|_| damaged())?.len();
        piece.truncate(size);
        Ok(())
    }
}

pub(crate) fn damaged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the snapshot's file is damaged, or is not this one's",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::reader::SnapshotReader;

    fn names(letter: &str) -> (TenantId, SnapshotId) {
        (TenantId::parse("acme").unwrap(), SnapshotId::parse(&letter.repeat(20)).unwrap())
    }

    fn sealed(bytes: &[u8]) -> (Vec<u8>, SealedFile) {
        let (tenant, id) = names("a");
        let key = FileKey::new([3; 32]);
        let owner = FileOwner { tenant: &tenant, snapshot: &id };
        let mut sealing = SealWriter::new(Vec::new(), &key, owner).unwrap();
        sealing.write_all(bytes).unwrap();
        sealing.finish().unwrap()
    }

    fn opened(bytes: &[u8], letter: &str, digit: u8) -> io::Result<Vec<u8>> {
        let (tenant, id) = names(letter);
        let key = FileKey::new([digit; 32]);
        let mut file = tempfile::tempfile()?;
        file.write_all(bytes)?;
        let mut read = Vec::new();
        let owner = FileOwner { tenant: &tenant, snapshot: &id };
        SnapshotReader::new(file, &key, owner)?.read_to_end(&mut read)?;
        Ok(read)
    }

    #[test]
    fn a_file_opens_whole_or_not_at_all() {
        for size in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let bytes: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let (file, written) = sealed(&bytes);
            assert_eq!(written.bytes, u64::try_from(file.len()).unwrap());
            assert_eq!(written.sha256, sha256(file.as_slice()).unwrap());
            assert_eq!(opened(&file, "a", 3).unwrap(), bytes, "{size}");
            assert!(opened(&file, "b", 3).is_err() && opened(&file, "a", 4).is_err());
            for cut in [0, 8, 12, file.len() / 2, file.len() - 1] {
                assert!(opened(&file[..cut], "a", 3).is_err(), "{size} {cut}");
            }
            assert!(opened(&[file.as_slice(), b"x"].concat(), "a", 3).is_err());
        }
    }

    #[test]
    fn no_byte_of_a_file_may_change_and_no_piece_may_move() {
        let (file, ..) = sealed(b"some bytes that are kept");
        assert!(!file.windows(5).any(|part| part == b"bytes"));
        for at in 0..file.len() {
            let mut altered = file.clone();
            altered[at] ^= 1;
            assert!(opened(&altered, "a", 3).is_err(), "{at}");
        }
        let (file, ..) = sealed(&vec![7; 3 * PIECE]);
        let size = 4 + PIECE + TAG;
        let piece = |n: usize| &file[8 + n * size..8 + (n + 1) * size];
        let moved = [&file[..8], piece(1), piece(0), &file[8 + 2 * size..]].concat();
        assert!(opened(&moved, "a", 3).is_err());
        let left_out = [&file[..8], piece(0), &file[8 + 2 * size..]].concat();
        assert!(opened(&left_out, "a", 3).is_err());
    }
}
