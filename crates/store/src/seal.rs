//! The file of an object: pieces of one size, each sealed, so that any range is found by arithmetic.
//!
//! ```text
//! file:   MAGIC  piece*            piece: AES-256-GCM(at most 256 KiB) | tag; the last one may be shorter, or empty
//! nonce:  number of the piece (8 bytes) | 3 zeros | 1 in the last one      data beside it: tenant and object
//! ```
//! The key is the object's own, so no nonce is used twice under it (as with files of pauses, decision 0096).

use std::ops::Range;

use cofferdam_contracts::id::{ObjectId, TenantId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

/// The key of one object: 256 random bits.
pub type ObjectKey = Zeroizing<[u8; 32]>;

/// First bytes of a file, with the version of its form.
pub(crate) const MAGIC: &[u8; 8] = b"cfdobj01";
/// Plain bytes of a piece: one is in memory while it is sealed or opened.
pub(crate) const PIECE: usize = 256 * 1024;
/// Bytes of the cipher's tag.
pub(crate) const TAG: usize = 16;

/// Seals and opens the pieces of one object.
pub(crate) struct PieceCipher {
    key: LessSafeKey,
    of: Vec<u8>,
}

impl PieceCipher {
    /// `None`: the cipher refuses the key.
    pub(crate) fn new(key: &ObjectKey, tenant: &TenantId, object: &ObjectId) -> Option<Self> {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..]).ok()?);
        Some(Self { key, of: format!("cofferdam object 1\n{tenant}\n{object}").into_bytes() })
    }

    /// Seals `buffer` from `from` on where it is, with its tag behind it. `None`: the cipher refuses.
    pub(crate) fn seal(
        &self,
        number: u64,
        is_last: bool,
        buffer: &mut Vec<u8>,
        from: usize,
    ) -> Option<()> {
        let piece = buffer.get_mut(from..)?;
        let aad = Aad::from(&self.of);
        let tag = self.key.seal_in_place_separate_tag(nonce(number, is_last), aad, piece).ok()?;
        buffer.extend_from_slice(tag.as_ref());
        Some(())
    }

    /// Opens a piece where it is; `None`: it is not what was sealed.
    pub(crate) fn open<'p>(
        &self,
        number: u64,
        is_last: bool,
        piece: &'p mut [u8],
    ) -> Option<&'p mut [u8]> {
        self.key.open_in_place(nonce(number, is_last), Aad::from(&self.of), piece).ok()
    }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    let bytes: [u8; NONCE_LEN] = [a, b, c, d, e, f, g, h, 0, 0, 0, u8::from(is_last)];
    Nonce::assume_unique_for_key(bytes)
}

pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Pieces of an object of this size: an empty one has one. Pure.
pub(crate) fn pieces(size: u64) -> u64 {
    size.div_ceil(wide(PIECE)).max(1)
}

/// Bytes of the file of an object of this size. Pure.
pub(crate) fn sealed_size(size: u64) -> u64 {
    let tags = pieces(size).saturating_mul(wide(TAG));
    wide(MAGIC.len()).saturating_add(size).saturating_add(tags)
}

/// Which pieces have a range of plain bytes, and where these are in the file. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PieceRange {
    /// Number of the first piece.
    pub first: u64,
    /// Behind the last.
    pub end: u64,
    /// In the file.
    pub sealed: Range<u64>,
    /// Plain bytes of the first piece that lie before the range.
    pub skip: u64,
}

/// The pieces of a range within an object of this size. Pure.
pub(crate) fn locate(size: u64, range: &Range<u64>) -> PieceRange {
    let piece = wide(PIECE);
    let framed = piece.saturating_add(wide(TAG));
    let first = (range.start / piece).min(pieces(size).saturating_sub(1));
    let end = range.end.div_ceil(piece).clamp(first.saturating_add(1), pieces(size));
    let at = |number: u64| wide(MAGIC.len()).saturating_add(number.saturating_mul(framed));
    let sealed = at(first)..at(end).min(sealed_size(size));
    PieceRange { first, end, sealed, skip: range.start.saturating_sub(first.saturating_mul(piece)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_places_follow_from_the_number_of_bytes() {
        let piece = wide(PIECE);
        assert_eq!((pieces(0), pieces(1), pieces(piece), pieces(piece + 1)), (1, 1, 1, 2));
        assert_eq!(sealed_size(0), 8 + 16);
        assert_eq!(sealed_size(piece + 1), 8 + piece + 1 + 32);
        let size = 3 * piece + 5;
        let found = locate(size, &(0..1));
        assert_eq!((found.first, found.end, found.skip), (0, 1, 0));
        assert_eq!(found.sealed, 8..8 + piece + 16);
        let found = locate(size, &(piece - 1..piece + 1));
        assert_eq!((found.first, found.end, found.skip), (0, 2, piece - 1));
        let found = locate(size, &(3 * piece..size));
        assert_eq!((found.first, found.end, found.skip), (3, 4, 0));
        assert_eq!(found.sealed.end, sealed_size(size));
        let found = locate(0, &(0..0));
        assert_eq!((found.first, found.end, found.sealed), (0, 1, 8..24));
    }
}
