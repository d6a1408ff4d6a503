//! Bytes whose number is not known before: pieces, each behind its length, and a word at the end.
//!
//! ```text
//! (length, 4 B LE | bytes)*  then  WHOLE, or BROKEN where it is not all
//! ```

use std::io::{self, Write};

/// In place of a length: that was all.
pub const WHOLE: u32 = 0;
/// In place of a length: there was more, which is lost.
pub const BROKEN: u32 = u32::MAX;

/// Each write is a piece.
#[derive(Debug)]
pub struct PieceWriter<W> {
    to: W,
    /// Bytes of one.
    most: usize,
}

impl<W: Write> PieceWriter<W> {
    /// Writes pieces of at most so many bytes.
    pub fn to(to: W, most: usize) -> Self {
        Self { to, most }
    }

    /// Ends them, whole or not.
    pub fn finish(mut self, is_whole: bool) -> io::Result<()> {
        self.to.write_all(&if is_whole { WHOLE } else { BROKEN }.to_le_bytes())
    }
}

impl<W: Write> Write for PieceWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..self.most).unwrap_or(bytes);
        if !piece.is_empty() {
            let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
            self.to.write_all(&length.to_le_bytes())?;
            self.to.write_all(piece)?;
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_cut_into_pieces_and_ended() {
        let mut out = Vec::new();
        let mut pieces = PieceWriter::to(&mut out, 2);
        pieces.write_all(b"abc").unwrap();
        assert_eq!(pieces.write(b"").unwrap(), 0);
        pieces.finish(true).unwrap();
        assert_eq!(out, b"\x02\0\0\0ab\x01\0\0\0c\0\0\0\0");
        let mut out = Vec::new();
        PieceWriter::to(&mut out, 2).finish(false).unwrap();
        assert_eq!(out, BROKEN.to_le_bytes());
    }
}
