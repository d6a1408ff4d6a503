//! What an archive unpacks to, as a digest, while it is received: layers of builds depend on it.

use std::io::{self, Write};

use cofferdam_contracts::canonical::digest_of;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::template_build::MAX_UPLOAD_BYTES;
use flate2::write::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

/// First bytes of a gzip file.
pub(crate) const PACKED: [u8; 2] = [0x1f, 0x8b];
/// Bytes of a tar that are looked at: no layer of usual size takes more. Beyond it the archive has no digest.
const MAX_TAR: u64 = 8 * MAX_UPLOAD_BYTES;

/// A tar that is digested.
struct DigestWriter {
    hasher: Sha256,
    left: u64,
}

impl Write for DigestWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(size).ok_or(io::ErrorKind::FileTooLarge)?;
        self.hasher.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Form {
    /// The first bytes, which say what it is.
    Head(Vec<u8>),
    Plain(DigestWriter),
    Packed(Box<MultiGzDecoder<DigestWriter>>),
    /// It is no archive, or too large a one.
    Unknown,
}

/// The digest of an archive as far as it was received.
pub(crate) struct TarDigest(Form);

impl TarDigest {
    pub(crate) fn new() -> Self {
        Self(Form::Head(Vec::new()))
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let written = match &mut self.0 {
            Form::Head(head) => {
                head.extend_from_slice(bytes);
                if head.len() < PACKED.len() {
                    return;
                }
                let head = std::mem::take(head);
                let hashed = DigestWriter { hasher: Sha256::new(), left: MAX_TAR };
                self.0 = match head.starts_with(&PACKED) {
                    true => Form::Packed(Box::new(MultiGzDecoder::new(hashed))),
                    false => Form::Plain(hashed),
                };
                return self.push(&head);
            }
            Form::Plain(hashed) => hashed.write_all(bytes),
            Form::Packed(decoder) => decoder.write_all(bytes),
            Form::Unknown => return,
        };
        if written.is_err() {
            self.0 = Form::Unknown;
        }
    }

    /// Of all that came; `None`: it is not known.
    pub(crate) fn finish(self) -> Option<Digest> {
        let hashed = match self.0 {
            Form::Plain(hashed) => hashed,
            Form::Packed(decoder) => decoder.finish().ok()?,
            Form::Head(_) | Form::Unknown => return None,
        };
        Some(digest_of(hashed.hasher.finalize().as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::canonical::digest_bytes;

    fn of(pieces: &[&[u8]]) -> Option<Digest> {
        let mut digest = TarDigest::new();
        pieces.iter().for_each(|piece| digest.push(piece));
        digest.finish()
    }

    #[test]
    fn an_archive_has_the_digest_of_its_tar_packed_or_not() {
        let plain = vec![7; 100_000];
        let wanted = Some(digest_bytes(&plain));
        assert_eq!(of(&[&plain]), wanted);
        assert_eq!(of(&[&plain[..1], &plain[1..]]), wanted);
        for level in [flate2::Compression::fast(), flate2::Compression::best()] {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), level);
            packer.write_all(&plain).unwrap();
            let packed = packer.finish().unwrap();
            assert_eq!(of(&[&packed]), wanted);
            assert_eq!(of(&packed.chunks(1).collect::<Vec<_>>()), wanted);
            assert_eq!(of(&[&packed[..packed.len() / 2]]), None);
        }
        assert_eq!(of(&[&[0x1f, 0x8b, 0, 0]]), None);
        assert_eq!((of(&[]), of(&[b"x"])), (None, None));
    }

    #[test]
    fn an_archive_that_unpacks_to_too_much_has_none() {
        let mut hashed = DigestWriter { hasher: Sha256::new(), left: 10 };
        assert!(hashed.write_all(&[0; 10]).is_ok() && hashed.write_all(&[0]).is_err());
    }
}
