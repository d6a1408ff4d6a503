//! Frames of a stream: `[flags u8][length u32 BE][message]`.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde_json::json;

use crate::body::MAX_JSON_BYTES;
use crate::connect::fault::Fault;

const HEAD: usize = 5;
pub(crate) const COMPRESSED: u8 = 1;
pub(crate) const END: u8 = 2;

/// The next whole frame of a buffer: its flags and its payload.
pub(crate) fn frame(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Fault> {
    let mut head = &**buffer;
    if head.remaining() < HEAD {
        return Ok(None);
    }
    let flags = head.get_u8();
    let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
    if length > MAX_JSON_BYTES {
        let why = format!("a message of {length} bytes; at most {MAX_JSON_BYTES} are taken");
        return Err(Fault::new("resource_exhausted", why));
    }
    if head.remaining() < length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

pub(crate) fn framed(flags: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD + payload.len());
    out.put_u8(flags);
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(payload);
    out.freeze()
}

/// The last frame, which is JSON in both codecs.
pub(crate) fn ending(fault: Option<&Fault>) -> Bytes {
    let value = fault.map_or_else(|| json!({}), |fault| json!({"error": fault.json()}));
    framed(END, value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use crate::connect::content_type::Codec;
    use crate::routes::ROUTES;
    use cofferdam_hostile::fuzz;

    use super::*;

    #[test]
    fn frames_are_read_whole_and_never_beyond_their_bound() {
        let whole = framed(0, b"{\"a\":1}");
        for cut in 0..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            assert_eq!(frame(&mut buffer), Ok(None), "{cut}");
        }
        let mut buffer = BytesMut::from(&whole[..]);
        assert_eq!(frame(&mut buffer), Ok(Some((0, Bytes::from_static(b"{\"a\":1}")))));
        assert!(buffer.is_empty());
        let mut huge = BytesMut::from(&[0, 255, 255, 255, 255][..]);
        assert_eq!(frame(&mut huge).unwrap_err().code, "resource_exhausted");
    }

    #[test]
    fn fuzz_frames_of_connect_are_read_however_they_are_cut() {
        let frames = |bytes: &[u8], step: usize| {
            let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
            for piece in bytes.chunks(step) {
                buffer.extend_from_slice(piece);
                loop {
                    match frame(&mut buffer) {
                        Ok(Some(whole)) => found.push(whole),
                        Ok(None) => break,
                        Err(fault) => return (found, Some(fault.code)),
                    }
                }
            }
            (found, None)
        };
        fuzz!("connect", |bytes: &[u8]| {
            let whole = frames(bytes, bytes.len().max(1));
            assert_eq!(frames(bytes, 3), whole);
            for (_, payload) in &whole.0 {
                drop(Codec::Json.read(payload));
                for method in ROUTES.iter().filter_map(|route| route.endpoint.codec()) {
                    drop(Codec::Proto(method).read(payload));
                }
            }
        });
    }
}
