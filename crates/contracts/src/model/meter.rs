//! Watches an answer go by: tokens, errors and whether it came to its end. Pure, and bounded whatever comes.

use serde_json::Value;

use super::ModelProtocol;
use super::price::ModelUsage;
use super::usage::{self, Claims};

/// Bytes of one event that are read; a longer one passes unread. Its tokens are then not known.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a whole answer that are read.
const MAX_WHOLE_BYTES: usize = 16 * 1024 * 1024;
/// What an event must hold to be worth reading. The others are text of the model.
const TELLING: [&[u8]; 4] = [b"\"usage\"", b"\"error\"", b"message_stop", b"\"response.in"];

/// Reads an answer as it passes.
#[derive(Debug)]
pub struct AnswerMeter {
    protocol: ModelProtocol,
    is_stream: bool,
    /// The line, or the whole answer, that is not read yet.
    kept: Vec<u8>,
    /// The line or answer is longer than what is read.
    is_over: bool,
    said: Claims,
    is_done: bool,
}

/// What an answer said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metered {
    /// Tokens that it claims, where the claim is whole and can be believed.
    pub usage: Option<ModelUsage>,
    /// The error that it holds.
    pub error: Option<String>,
    /// Whether it came to the end that its protocol marks.
    pub is_whole: bool,
}

impl AnswerMeter {
    /// For one answer; `is_stream`: server-sent events.
    #[must_use]
    pub const fn new(protocol: ModelProtocol, is_stream: bool) -> Self {
        Self {
            protocol,
            is_stream,
            kept: Vec::new(),
            is_over: false,
            said: Claims { input: None, output: None, cached: None, error: None, is_last: false },
            is_done: false,
        }
    }

    /// The next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.is_stream {
            self.keep(bytes, MAX_WHOLE_BYTES);
            return;
        }
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(at);
            self.keep(line, MAX_LINE_BYTES);
            self.line();
            rest = after.get(1..).unwrap_or_default();
        }
        self.keep(rest, MAX_LINE_BYTES);
    }

    fn keep(&mut self, bytes: &[u8], most: usize) {
        if self.is_over || self.kept.len().saturating_add(bytes.len()) > most {
            self.is_over = true;
            self.kept = Vec::new();
            return;
        }
        self.kept.extend_from_slice(bytes);
    }

    /// Reads the line that is kept, and forgets it.
    fn line(&mut self) {
        let is_over = std::mem::take(&mut self.is_over);
        let line = std::mem::take(&mut self.kept);
        let Some(data) = line.strip_prefix(b"data:").filter(|_| !is_over) else { return };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.is_done = true;
        } else if TELLING.iter().any(|word| holds(data, word))
            && let Ok(value) = serde_json::from_slice::<Value>(data)
        {
            self.said.then(usage::read(self.protocol, &value));
        }
        // The room is used again: an answer has thousands of lines.
        self.kept = line;
        self.kept.clear();
    }

    /// Whether a stream came to the end that its protocol marks.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.is_stream && (self.is_done || self.said.is_last)
    }

    /// What was said, after the last byte.
    #[must_use]
    pub fn end(mut self) -> Metered {
        let is_whole = if self.is_stream {
            self.line();
            match self.protocol {
                ModelProtocol::OpenaiChat => self.is_done,
                _ => self.said.is_last,
            }
        } else {
            let value = serde_json::from_slice::<Value>(&self.kept);
            if let Ok(value) = &value {
                self.said.then(usage::read(self.protocol, value));
            }
            value.is_ok()
        };
        Metered { usage: self.said.usage(), error: self.said.error, is_whole }
    }
}

fn holds(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered(protocol: ModelProtocol, text: &str) -> Metered {
        // Byte by byte: where a chunk ends changes nothing.
        let mut meter = AnswerMeter::new(protocol, true);
        text.as_bytes().iter().for_each(|byte| meter.push(&[*byte]));
        let slow = meter.end();
        let mut meter = AnswerMeter::new(protocol, true);
        meter.push(text.as_bytes());
        assert_eq!(meter.end(), slow);
        slow
    }

    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\r\n\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    const MESSAGES: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":2}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    const RESPONSES: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":2}}}\n\n";

    #[test]
    fn streams_of_the_three_protocols_say_what_they_took_and_that_they_ended() {
        let usage = Some(ModelUsage { input: 9, output: 2, cached: 0 });
        for (protocol, text) in [
            (ModelProtocol::OpenaiChat, CHAT),
            (ModelProtocol::AnthropicMessages, MESSAGES),
            (ModelProtocol::OpenaiResponses, RESPONSES),
        ] {
            assert_eq!(metered(protocol, text), Metered { usage, error: None, is_whole: true });
            let cut = &text[..text.len() / 2];
            assert!(!metered(protocol, cut).is_whole, "{cut}");
        }
    }

    #[test]
    fn an_error_in_the_middle_of_a_stream_is_seen_and_words_of_the_model_are_not() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"error\\\": 1\"}}]}\n\ndata: [DONE]\n";
        assert_eq!(metered(ModelProtocol::OpenaiChat, text).error, None);
        let text = "data: {\"error\":{\"message\":\"overloaded\"}}\n\n";
        assert_eq!(metered(ModelProtocol::OpenaiChat, text).error.as_deref(), Some("overloaded"));
    }

    #[test]
    fn a_line_without_end_costs_no_more_than_its_bound() {
        let mut meter = AnswerMeter::new(ModelProtocol::OpenaiChat, true);
        for _ in 0..64 {
            meter.push(&[b'x'; 128 * 1024]);
            assert!(meter.kept.capacity() <= 2 * MAX_LINE_BYTES);
        }
        meter.push(b"\n");
        meter.push(CHAT.as_bytes());
        assert!(meter.end().is_whole, "the line after it is read");
        let mut meter = AnswerMeter::new(ModelProtocol::OpenaiChat, false);
        for _ in 0..200 {
            meter.push(&[b' '; 128 * 1024]);
        }
        assert_eq!(meter.end(), Metered { usage: None, error: None, is_whole: false });
    }
}
