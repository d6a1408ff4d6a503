//! A stream of the Connect protocol in JSON: `[flags u8][length u32, big endian][message]`, the last with
//! flag 2. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::Deserialize;

use super::api::RemoteError;

const HEAD_BYTES: usize = 5;
const COMPRESSED: u8 = 1;
const LAST: u8 = 2;
/// One message: providers read output in pieces of 32 KiB.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// What a process says or does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Started(u32),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// Nothing, to keep the connection.
    Kept,
    Ended(String),
}

#[derive(Deserialize)]
struct Message {
    event: Option<EventMessage>,
}

#[derive(Deserialize)]
struct EventMessage {
    start: Option<StartEvent>,
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct StartEvent {
    pid: u32,
}

#[derive(Deserialize)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Deserialize)]
struct End {
    #[serde(default)]
    status: String,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Trailer {
    error: Option<FrameFault>,
}

#[derive(Deserialize)]
struct FrameFault {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// Bytes that came, up to the end of a message.
#[derive(Debug, Default)]
pub(super) struct MessageFrames {
    buffer: BytesMut,
}

impl MessageFrames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// The next event, if it is there as a whole.
    pub(super) fn next(&mut self) -> Result<Option<Event>, RemoteError> {
        const WRONG: RemoteError = RemoteError::Forged { what: "a process's stream" };
        let Some((flags, length)) = self.head() else { return Ok(None) };
        if length > MAX_MESSAGE_BYTES || flags & COMPRESSED != 0 {
            return Err(WRONG);
        }
        if self.buffer.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        let text = self.buffer.split_to(length);
        if flags & LAST != 0 {
            let end: Trailer = serde_json::from_slice(&text).map_err(|_| WRONG)?;
            let said = end.error.map_or_else(
                || "the stream of the process ended".to_owned(),
                |fault| format!("{}: {}", fault.code, fault.message),
            );
            return Ok(Some(Event::Ended(said)));
        }
        let message: Message = serde_json::from_slice(&text).map_err(|_| WRONG)?;
        event(message).map(Some).ok_or(WRONG)
    }

    fn head(&self) -> Option<(u8, usize)> {
        let (flags, rest) = self.buffer.split_first()?;
        let length: [u8; 4] = rest.first_chunk().copied()?;
        Some((*flags, usize::try_from(u32::from_be_bytes(length)).ok()?))
    }
}

fn event(message: Message) -> Option<Event> {
    let decoded = |text: String| STANDARD.decode(text).ok();
    Some(match message.event? {
        EventMessage { start: Some(start), .. } => Event::Started(start.pid),
        EventMessage { data: Some(Data { stdout: Some(text), .. }), .. } => {
            Event::Stdout(decoded(text)?)
        }
        EventMessage { data: Some(Data { stderr: Some(text), .. }), .. } => {
            Event::Stderr(decoded(text)?)
        }
        EventMessage { end: Some(end), .. } => Event::Ended(end.error.unwrap_or(end.status)),
        // Kinds that a later version adds are none that an agent has.
        _ => Event::Kept,
    })
}

/// A message as the only one of a request.
pub(super) fn enveloped(message: &serde_json::Value) -> Bytes {
    let text = message.to_string();
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + text.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    bytes.put_slice(text.as_bytes());
    bytes.freeze()
}

/// Bytes as they stand in a message.
pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn last(text: &str) -> Vec<u8> {
        let mut frame = vec![LAST];
        frame.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        frame.extend(text.as_bytes());
        frame
    }

    #[test]
    fn events_are_read_however_their_bytes_are_cut() {
        let mut bytes = Vec::new();
        for message in [
            json!({"event": {"start": {"pid": 7}}}),
            json!({"event": {"data": {"stdout": base64(b"out\0")}}}),
            json!({"event": {"data": {"stderr": base64(b"err")}}}),
            json!({"event": {"keepalive": {}}}),
            json!({"event": {"end": {"exited": true, "status": "exit status 0"}}}),
        ] {
            bytes.extend_from_slice(&enveloped(&message));
        }
        bytes.extend(last("{\"error\":{\"code\":\"not_found\",\"message\":\"gone\"}}"));
        let mut frames = MessageFrames::default();
        let mut read = Vec::new();
        for byte in bytes {
            frames.push(&[byte]);
            read.extend(frames.next().unwrap());
        }
        let said = [
            Event::Started(7),
            Event::Stdout(b"out\0".to_vec()),
            Event::Stderr(b"err".to_vec()),
            Event::Kept,
            Event::Ended("exit status 0".to_owned()),
            Event::Ended("not_found: gone".to_owned()),
        ];
        assert_eq!(read, said);
    }

    #[test]
    fn what_is_no_event_is_an_error_and_what_is_too_large_is_not_waited_for() {
        let one = |bytes: &[u8]| {
            let mut frames = MessageFrames::default();
            frames.push(bytes);
            frames.next()
        };
        for wrong in [
            enveloped(&json!({"event": {"data": {"stdout": "no base64"}}})).to_vec(),
            enveloped(&json!({"no": "event"})).to_vec(),
            enveloped(&json!("text")).to_vec(),
            vec![COMPRESSED, 0, 0, 0, 0],
            vec![0, 0xff, 0xff, 0xff, 0xff],
            last("no json"),
        ] {
            assert!(one(&wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(one(&[0, 0, 0, 0]).unwrap(), None);
        assert_eq!(one(&[0, 0, 0, 0, 9]).unwrap(), None);
    }
}
