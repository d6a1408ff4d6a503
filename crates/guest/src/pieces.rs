//! Bytes whose number is not known before: pieces, each behind its length, and a word at the end.
//!
//! ```text
//! (length, 4 B LE | bytes)*  then  WHOLE, or BROKEN where it is not all
//! ```

use std::io::{self, Read, Write};

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

/// Gives what pieces hold, up to their end. That there was more is an error.
#[derive(Debug)]
pub struct PieceReader<R> {
    from: R,
    /// Bytes of one.
    most: usize,
    /// Of the piece that is being read.
    left: usize,
    is_over: bool,
}

impl<R: Read> PieceReader<R> {
    /// Reads pieces of at most so many bytes.
    pub fn of(from: R, most: usize) -> Self {
        Self { from, most, left: 0, is_over: false }
    }
}

impl<R: Read> Read for PieceReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.is_over {
            let mut length = [0; 4];
            self.from.read_exact(&mut length)?;
            self.left = match u32::from_le_bytes(length) {
                WHOLE => 0,
                BROKEN => return Err(not_whole()),
                length => usize::try_from(length).unwrap_or(usize::MAX),
            };
            self.is_over = self.left == 0;
            if self.left > self.most {
                return Err(too_large());
            }
        }
        let most = buffer.len().min(self.left);
        let count = self.from.read(buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

/// Copies what pieces of at most so many bytes hold, up to their end. Whether that was all.
pub fn copied(from: &mut dyn Read, most: usize, to: &mut dyn Write) -> io::Result<bool> {
    let mut piece = Vec::new();
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = match u32::from_le_bytes(length) {
            WHOLE => return Ok(true),
            BROKEN => return Ok(false),
            length => usize::try_from(length).unwrap_or(usize::MAX),
        };
        if length > most {
            return Err(too_large());
        }
        piece.resize(length, 0);
        from.read_exact(&mut piece)?;
        to.write_all(&piece)?;
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a piece is too large")
}

fn not_whole() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not whole")
}

/// The same, where there must have been all.
pub fn copied_whole(from: &mut dyn Read, most: usize, to: &mut dyn Write) -> io::Result<()> {
    if copied(from, most, to)? { Ok(()) } else { Err(not_whole()) }
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

    #[test]
    fn pieces_are_read_to_their_end_and_what_follows_is_left() {
        let mut out = Vec::new();
        let mut pieces = PieceWriter::to(&mut out, 2);
        pieces.write_all(b"abcde").unwrap();
        pieces.finish(true).unwrap();
        let whole = [out.as_slice(), b"next"].concat();
        let mut from = whole.as_slice();
        let mut read = Vec::new();
        PieceReader::of(&mut from, 2).read_to_end(&mut read).unwrap();
        assert_eq!((read.as_slice(), from), (&b"abcde"[..], &b"next"[..]));
        let fault = |bytes: &[u8], most| {
            PieceReader::of(bytes, most).read_to_end(&mut Vec::new()).unwrap_err().to_string()
        };
        assert_eq!(fault(&whole, 1), "a piece is too large");
        assert!(fault(&out[..out.len() - 6], 2).contains("fill"), "it is cut off");
        let mut broken = Vec::new();
        PieceWriter::to(&mut broken, 2).finish(false).unwrap();
        assert_eq!(fault(&broken, 2), "it is not whole");
    }
}
