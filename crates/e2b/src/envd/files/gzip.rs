//! The bytes of an upload, unpacked where they are packed, in pieces that stay small.

use std::io::{self, Write as _};

use bytes::Bytes;
use cofferdam_http::BODY_PATIENCE;
use flate2::write::GzDecoder;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::body;
use crate::connect::fault::Fault;

/// Packed bytes that are unpacked at once. Deflate makes at most a thousand of one: a mebibyte.
const STEP: usize = 1_024;

/// What a body holds.
pub(crate) struct UploadBody {
    body: Incoming,
    packed: Option<Gunzip>,
    is_over: bool,
}

impl UploadBody {
    pub(crate) fn of(body: Incoming, is_packed: bool) -> Self {
        Self { body, packed: is_packed.then(Gunzip::default), is_over: false }
    }

    /// The next piece; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let malformed = |_| Fault::argument("the body is not gzip");
        loop {
            if let Some(packed) = self.packed.as_mut()
                && let Some(plain) = packed.next(self.is_over).map_err(malformed)?
            {
                return Ok(Some(plain));
            }
            if self.is_over {
                return Ok(None);
            }
            let Some(bytes) = self.frame().await? else {
                self.is_over = true;
                continue;
            };
            match self.packed.as_mut() {
                None if bytes.is_empty() => {}
                None => return Ok(Some(bytes)),
                Some(packed) => packed.waiting = bytes,
            }
        }
    }

    /// Drops what is still to come of a request that is refused.
    pub(crate) async fn drain(&mut self) {
        body::drain(&mut self.body).await;
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, Fault> {
        let late = |_| Fault::new("deadline_exceeded", "the body did not arrive in time");
        let frame = tokio::time::timeout(BODY_PATIENCE, self.body.frame()).await.map_err(late)?;
        match frame {
            None => Ok(None),
            Some(Err(_)) => Err(Fault::argument("the body broke off")),
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        }
    }
}

struct Gunzip {
    decoder: GzDecoder<Vec<u8>>,
    /// Packed bytes that are not unpacked yet.
    waiting: Bytes,
}

impl Default for Gunzip {
    fn default() -> Self {
        Self { decoder: GzDecoder::new(Vec::new()), waiting: Bytes::new() }
    }
}

impl Gunzip {
    /// The next plain bytes; `None` once nothing waits, and with `is_last` once all came.
    fn next(&mut self, is_last: bool) -> io::Result<Option<Bytes>> {
        loop {
            let step = self.waiting.split_to(STEP.min(self.waiting.len()));
            self.decoder.write_all(&step)?;
            if step.is_empty() && is_last {
                self.decoder.try_finish()?;
            }
            let plain = std::mem::take(self.decoder.get_mut());
            if !plain.is_empty() {
                return Ok(Some(plain.into()));
            }
            if step.is_empty() {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn little_that_becomes_much_comes_in_small_pieces() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        let wanted = 64 * 1024 * 1024;
        packer.write_all(&vec![0; wanted]).unwrap();
        let mut gunzip = Gunzip::default();
        let mut seen = 0;
        for waiting in packer.finish().unwrap().chunks(64 * 1024) {
            gunzip.waiting = Bytes::copy_from_slice(waiting);
            while let Some(piece) = gunzip.next(false).unwrap() {
                assert!(piece.len() <= 2 * 1024 * 1024, "{}", piece.len());
                seen += piece.len();
            }
        }
        while let Some(piece) = gunzip.next(true).unwrap() {
            seen += piece.len();
        }
        assert_eq!(seen, wanted);
    }

    #[test]
    fn what_is_not_gzip_or_is_cut_off_is_an_error() {
        let mut gunzip = Gunzip { waiting: Bytes::from_static(b"plain text"), ..Gunzip::default() };
        assert!(gunzip.next(false).is_err());
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(b"hello").unwrap();
        let whole = packer.finish().unwrap();
        let cut = whole.get(..whole.len() - 4).unwrap().to_vec();
        let mut gunzip = Gunzip { waiting: cut.into(), ..Gunzip::default() };
        let mut outcome = gunzip.next(false);
        while let Ok(Some(_)) = outcome {
            outcome = gunzip.next(true);
        }
        assert!(outcome.is_err() || gunzip.next(true).is_err());
    }
}
