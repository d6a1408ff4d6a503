//! Length-delimited frames inside an answer's body.
//!
//! ```text
//! +------+----------------+-----------+
//! | kind | length, 4 B BE |  payload  |   length <= MAX_PAYLOAD
//! +------+----------------+-----------+
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes that a piece of a body has at least. An HTTP/2 library counts smaller ones against a budget, and
/// gives the whole connection up when too many of them wait for a slow reader.
pub const MIN_PIECE: usize = 256;
/// Bytes of one payload: one read of a pipe, and enough for the JSON of any end frame.
pub const MAX_PAYLOAD: usize = 64 * 1024;
const HEAD: usize = 5;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of standard output.
    Stdout,
    /// Bytes of standard error.
    Stderr,
    /// [`crate::wire::ExecEnd`] or [`crate::wire::CollectEnd`]; nothing follows.
    End,
    /// A [`crate::wire::FileHead`], before the [`Kind::Chunk`]s of its file.
    File,
    /// Bytes of the file before.
    Chunk,
    /// JSON of one thing of a list: [`crate::tree::Entry`] or [`crate::tree::Change`].
    Item,
    /// Zeros that say nothing: no reader is given them.
    Fill,
    /// [`crate::process::StartFrame`], before everything else of a command that may leave processes.
    Begun,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::End => 3,
            Self::File => 4,
            Self::Chunk => 5,
            Self::Item => 6,
            Self::Fill => 7,
            Self::Begun => 8,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            3 => Some(Self::End),
            4 => Some(Self::File),
            5 => Some(Self::Chunk),
            6 => Some(Self::Item),
            7 => Some(Self::Fill),
            8 => Some(Self::Begun),
            _ => None,
        }
    }
}

/// Why bytes are not frames. Only a broken or forged peer sends such.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The kind is none of ours.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// The length is beyond the bound.
    #[error("a frame of {0} bytes, at most {MAX_PAYLOAD} are allowed")]
    Length(u64),
}

/// One frame as bytes. A payload beyond the bound is cut to it: callers read in smaller pieces.
#[must_use]
pub fn encode(kind: Kind, payload: &[u8]) -> Bytes {
    let payload = payload.get(..MAX_PAYLOAD).unwrap_or(payload);
    let mut out = BytesMut::with_capacity(HEAD + payload.len());
    out.put_u8(kind.byte());
    out.put_u32(u32::try_from(payload.len()).unwrap_or(0));
    out.put_slice(payload);
    out.freeze()
}

/// Fills a piece of whole frames up to [`MIN_PIECE`].
pub fn fill(piece: &mut BytesMut) {
    if let Some(left) = MIN_PIECE.checked_sub(piece.len()).filter(|left| *left > 0) {
        let zeros = [0; MIN_PIECE];
        let zeros = zeros.get(..left.saturating_sub(HEAD)).unwrap_or_default();
        piece.extend_from_slice(&encode(Kind::Fill, zeros));
    }
}

/// Collects bytes and gives frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Takes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether a frame is cut off in the middle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next whole frame that says something, or `None` until more bytes come.
    pub fn next_frame(&mut self) -> Result<Option<(Kind, Bytes)>, FrameError> {
        loop {
            match self.any_frame()? {
                Some((Kind::Fill, _)) => {}
                frame => return Ok(frame),
            }
        }
    }

    fn any_frame(&mut self) -> Result<Option<(Kind, Bytes)>, FrameError> {
        let mut head = &*self.buffer;
        if head.remaining() < HEAD {
            return Ok(None);
        }
        let byte = head.get_u8();
        let kind = Kind::of(byte).ok_or(FrameError::Kind(byte))?;
        let announced = head.get_u32();
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        if length > MAX_PAYLOAD {
            return Err(FrameError::Length(u64::from(announced)));
        }
        if head.remaining() < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        Ok(Some((kind, self.buffer.split_to(length).freeze())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut whole = encode(Kind::Stdout, b"one").to_vec();
        whole.extend_from_slice(&encode(Kind::End, b""));
        for step in 1..whole.len() {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for piece in whole.chunks(step) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got.len(), 2);
            assert_eq!(got[0], (Kind::Stdout, Bytes::from_static(b"one")));
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn a_filled_piece_is_long_enough_and_says_what_it_said() {
        for length in 0..2 * MIN_PIECE {
            let mut piece = BytesMut::from(&encode(Kind::Stdout, &vec![1; length])[..]);
            fill(&mut piece);
            assert!(piece.len() >= MIN_PIECE && piece.len() <= MIN_PIECE.max(length) + 2 * HEAD);
            let mut decoder = Decoder::default();
            decoder.push(&piece);
            assert_eq!(
                decoder.next_frame(),
                Ok(Some((Kind::Stdout, Bytes::from(vec![1; length]))))
            );
            assert_eq!(decoder.next_frame(), Ok(None));
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn a_forged_frame_is_an_error() {
        let mut decoder = Decoder::default();
        decoder.push(&[9, 0, 0, 0, 0]);
        assert_eq!(decoder.next_frame(), Err(FrameError::Kind(9)));
        let mut decoder = Decoder::default();
        decoder.push(&[1, 255, 255, 255, 255]);
        assert_eq!(decoder.next_frame(), Err(FrameError::Length(u64::from(u32::MAX))));
    }
}
