//! The daemon's event stream: lines of SSE, each bounded in bytes and in time.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contracts::canonical::digest_bytes;
use serde_json::Value;

use crate::client::Exchange;
use crate::error::Error;
use crate::ids::SessionId;
use crate::reply::words;

const CALL: &str = "GET /global/event";
/// Bytes of an event that is taken apart: a tool's output in one has 50 KiB, and in memory it is many times as large.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// An event, as far as a turn is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Text or reasoning grew.
    Text,
    /// A tool was called, printed something or ended.
    Call {
        /// Which call: the daemon's id of its part.
        id: String,
        /// Name of the tool, such as `bash`; `a tool` where the daemon names none.
        tool: String,
        /// Hash of its input.
        input: String,
    },
    /// The turn waits for a permission or an answer, by its id.
    Asked(String),
    /// The session's turn ended.
    Idle,
    /// Somebody made another session, by its id.
    Session(String),
    /// Anything else, by its type: a heartbeat, a retry, another session's.
    Other(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("words of the model"),
            Self::Call { tool, .. } => write!(f, "a call of {tool}"),
            Self::Asked(id) => write!(f, "the question {id}"),
            Self::Idle => f.write_str("the turn's end"),
            Self::Session(id) => write!(f, "the session {id}"),
            Self::Other(kind) => f.write_str(kind),
        }
    }
}

impl Event {
    /// Reads one event for this session. Durable frames (`sync`) repeat the others and count as neither.
    #[must_use]
    pub fn read(value: &Value, session: &SessionId) -> Self {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str);
        let kind = text("/payload/type").unwrap_or("untyped");
        let at = |path: &str| text(&format!("/payload/properties/{path}"));
        let own = [at("sessionID"), at("part/sessionID")];
        let other = || Self::Other(words(kind));
        if !own.contains(&Some(session.as_str())) {
            return match kind {
                "session.created" => Self::Session(words(at("sessionID").unwrap_or("unnamed"))),
                _ => other(),
            };
        }
        match (kind, at("part/type")) {
            ("message.part.delta", _) | ("message.part.updated", Some("text" | "reasoning")) => {
                Self::Text
            }
            ("message.part.updated", Some("tool")) => {
                let state = value.pointer("/payload/properties/part/state");
                let of = |name: &str| state.and_then(|state| state.get(name));
                // Its input comes with the state that follows.
                if of("status").and_then(Value::as_str) == Some("pending") {
                    return Self::Other("a call that is being written".to_owned());
                }
                let input = of("input").map(Value::to_string).unwrap_or_default();
                Self::Call {
                    id: words(at("part/id").unwrap_or_default()),
                    tool: words(at("part/tool").unwrap_or("a tool")),
                    input: digest_bytes(input.as_bytes()).as_str().to_owned(),
                }
            }
            ("permission.asked" | "question.asked", _) => {
                Self::Asked(words(at("id").unwrap_or_default()))
            }
            ("session.idle", _) => Self::Idle,
            _ => other(),
        }
    }
}

/// An open stream of events.
#[derive(Debug)]
pub struct EventStream {
    exchange: Exchange,
    buffer: Vec<u8>,
    /// Bytes of the buffer that hold no line's end: each is looked at once, however slowly a line comes.
    looked: usize,
    silence: Duration,
    max_line: usize,
    session: SessionId,
}

impl EventStream {
    pub(crate) fn new(
        exchange: Exchange,
        silence: Duration,
        max_line: usize,
        session: SessionId,
    ) -> Self {
        Self { exchange, buffer: Vec::new(), looked: 0, silence, max_line, session }
    }

    /// The next event. The daemon sends a heartbeat every 10 s, so silence is a lost connection.
    ///
    /// # Errors
    /// [`Error::Cut`] at the stream's end, also within a line; [`Error::TimedOut`], [`Error::TooLarge`] or
    /// [`Error::Garbled`] otherwise. Read back, then open the events again.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            while let Some(line) = line_of(&mut self.buffer, &mut self.looked) {
                let Some(data) = line.strip_prefix(b"data:") else { continue };
                if data.len() > MAX_EVENT_BYTES {
                    return Ok(Event::Other("a large event".to_owned()));
                }
                let value: Value = serde_json::from_slice(data)
                    .map_err(|error| Error::Garbled { call: CALL, why: error.to_string() })?;
                return Ok(Event::read(&value, &self.session));
            }
            if self.buffer.len() > self.max_line {
                return Err(Error::TooLarge { call: CALL, max: self.max_line });
            }
            let bytes: Bytes = self
                .exchange
                .bytes(CALL, self.silence)
                .await?
                .ok_or(Error::Cut { call: CALL, source: None })?;
            self.buffer.extend_from_slice(&bytes);
        }
    }
}

/// Takes a whole line out of what was read. `looked`: bytes before it that were looked at.
fn line_of(buffer: &mut Vec<u8>, looked: &mut usize) -> Option<Vec<u8>> {
    let new = buffer.get(*looked..).unwrap_or_default();
    let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
        *looked = buffer.len();
        return None;
    };
    let mut line: Vec<u8> = buffer.drain(..=looked.saturating_add(end)).collect();
    *looked = 0;
    line.pop();
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_line_is_looked_at_once_however_slowly_it_comes() {
        let (mut buffer, mut looked) = (Vec::new(), 0);
        for n in 0..1_000_000 {
            buffer.push(b'x');
            assert_eq!(line_of(&mut buffer, &mut looked), None);
            assert_eq!(looked, n + 1, "what was looked at is not looked at again");
        }
        buffer.extend_from_slice(b"y\nz\n\nrest");
        let lines: Vec<usize> = std::iter::from_fn(|| line_of(&mut buffer, &mut looked))
            .map(|line| line.len())
            .collect();
        assert_eq!((lines, buffer.as_slice()), (vec![1_000_001, 1, 0], &b"rest"[..]));
    }
}
