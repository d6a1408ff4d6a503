//! Watches an answer go by: tokens, errors and whether it came to its end. Pure, and bounded whatever comes.
//!
//! A stream is searched for a few words, a chunk at a time. **Only lines with such a word are parsed, and only the line
//! that a chunk leaves unfinished is copied:** the rest is text of the model, thousands of lines of it.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memrchr};
use serde_json::Value;

use super::ModelProtocol;
use super::price::ModelUsage;
use super::usage::{self, Claims};

/// Bytes of one event that are read; a longer one passes unread. Its tokens are then not known.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a whole answer that are read.
const MAX_WHOLE_BYTES: usize = 16 * 1024 * 1024;
/// What a line must hold to be worth reading.
static TELLING: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    ["\"usage\"", "\"error\"", "message_stop", "\"response.in", DONE].map(Finder::new)
});
/// The last event of a chat.
const DONE: &str = "[DONE]";

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
    /// Lines that were parsed.
    #[cfg(test)]
    parsed: usize,
}

/// What an answer said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerSummary {
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
            said: Claims {
                input: None,
                output: None,
                cached: None,
                written: None,
                written_hour: None,
                is_apart: false,
                error: None,
                is_last: false,
            },
            is_done: false,
            #[cfg(test)]
            parsed: 0,
        }
    }

    /// The next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.is_stream {
            self.keep(bytes, MAX_WHOLE_BYTES);
            return;
        }
        let (Some(first), Some(last)) = (memchr(b'\n', bytes), memrchr(b'\n', bytes)) else {
            self.keep(bytes, MAX_LINE_BYTES);
            return;
        };
        self.keep(bytes.get(..first).unwrap_or_default(), MAX_LINE_BYTES);
        self.line();
        self.lines(bytes.get(first..last).unwrap_or_default());
        self.keep(bytes.get(last.saturating_add(1)..).unwrap_or_default(), MAX_LINE_BYTES);
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
        if !is_over {
            self.lines(&line);
        }
        // The room is used again: an answer has thousands of chunks.
        self.kept = line;
        self.kept.clear();
    }

    /// Reads those of some whole lines that hold a telling word.
    fn lines(&mut self, text: &[u8]) {
        let mut words = TELLING.each_ref().map(|finder| WordSearch::new(finder, text));
        let mut from = 0;
        while let Some(at) = words.iter_mut().filter_map(|word| word.from(text, from)).min() {
            let (before, after) = text.split_at(at);
            let start = memrchr(b'\n', before).map_or(0, |at| at.saturating_add(1));
            let end = memchr(b'\n', after).map_or(text.len(), |more| at.saturating_add(more));
            self.read(text.get(start..end).unwrap_or_default());
            from = end;
        }
    }

    fn read(&mut self, line: &[u8]) {
        let is_read = line.len() <= MAX_LINE_BYTES;
        let Some(data) = line.strip_prefix(b"data:").filter(|_| is_read) else { return };
        let data = data.trim_ascii();
        if data == DONE.as_bytes() {
            self.is_done = true;
            return;
        }
        #[cfg(test)]
        {
            self.parsed += 1;
        }
        if let Ok(value) = serde_json::from_slice::<Value>(data) {
            self.said.then(usage::read(self.protocol, &value));
        }
    }

    /// Whether a stream came to the end that its protocol marks.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.is_stream && (self.is_done || self.said.is_last)
    }

    /// What was said, after the last byte.
    #[must_use]
    pub fn end(mut self) -> AnswerSummary {
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
        AnswerSummary { usage: self.said.usage(), error: self.said.error, is_whole }
    }
}

/// A word that a text is searched for, and where it stands next.
struct WordSearch<'a> {
    finder: &'a Finder<'static>,
    /// `None`: nowhere in the rest.
    next: Option<usize>,
}

impl<'a> WordSearch<'a> {
    fn new(finder: &'a Finder<'static>, text: &[u8]) -> Self {
        Self { finder, next: search(finder, text, 0) }
    }

    /// Where it stands at or after a place, other than as the name of a null: a chat says `"usage":null` in every event.
    fn from(&mut self, text: &[u8], from: usize) -> Option<usize> {
        if self.next.is_some_and(|next| next < from) {
            self.next = search(self.finder, text, from);
        }
        self.next
    }
}

fn search(finder: &Finder<'_>, text: &[u8], mut from: usize) -> Option<usize> {
    loop {
        let at = finder.find(text.get(from..)?)?.saturating_add(from);
        from = at.saturating_add(finder.needle().len());
        if !is_null(text.get(from..)?) {
            return Some(at);
        }
    }
}

/// Whether the value of a name, which ends here, is null. It is in the same line.
fn is_null(after: &[u8]) -> bool {
    skipped(after, b":").and_then(|value| skipped(value, b"null")).is_some()
}

/// What follows a word and the blanks before it.
fn skipped<'a>(text: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    text.get(blanks..)?.strip_prefix(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered(protocol: ModelProtocol, text: &str) -> AnswerSummary {
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
        let usage = Some(ModelUsage { input: 9, output: 2, ..ModelUsage::default() });
        for (protocol, text) in [
            (ModelProtocol::OpenaiChat, CHAT),
            (ModelProtocol::AnthropicMessages, MESSAGES),
            (ModelProtocol::OpenaiResponses, RESPONSES),
        ] {
            assert_eq!(
                metered(protocol, text),
                AnswerSummary { usage, error: None, is_whole: true }
            );
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

    /// What a stream says where every line is parsed: the law that the search for words keeps.
    fn parsed(protocol: ModelProtocol, text: &str) -> AnswerSummary {
        let (mut said, mut is_done) = (Claims::default(), false);
        for line in text.split('\n') {
            let Some(data) = line.strip_prefix("data:").map(str::trim_ascii) else { continue };
            is_done |= data == DONE;
            if let Ok(value) = serde_json::from_str::<Value>(data) {
                said.then(usage::read(protocol, &value));
            }
        }
        let is_whole = match protocol {
            ModelProtocol::OpenaiChat => is_done,
            _ => said.is_last,
        };
        AnswerSummary { usage: said.usage(), error: said.error, is_whole }
    }

    #[test]
    fn a_search_for_words_says_what_a_parser_of_every_line_says() {
        let pieces = [
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n",
            "data: {\"usage\" : null, \"error\":null}\n",
            "data: {\"usage\":null,\"error\":{\"message\":\"first\"}}\n",
            "data: {\"error\":\"second\"}\r\n\r\n",
            "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"input_tokens\":5}}\n",
            "data: {\"usage\":{\"prompt_tokens\":8,\"output_tokens\":4}} \n",
            "event: usage\n: \"error\"\n\n",
            "data: \"usage\"\n",
            ":null\n",
            "\n\n",
            "data: [DONE]\n\n",
            "xdata: {\"error\":\"no\"}\n",
            "data: {\"type\":\"error\"}\n",
            "data: {\"type\":\"message_stop\"}\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"error\":null,\"usage\":{\"input_tokens\":2,\"output_tokens\":2}}}\n",
            "data: {\"type\":\"response.incomplete\"}\n",
        ];
        let mut at = 1_usize;
        let mut next = |most: usize| {
            // A small generator of its own: the same texts in every run.
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (at >> 33) % most
        };
        for _ in 0..3_000 {
            let text: String = (0..next(9)).map(|_| pieces[next(pieces.len())]).collect();
            for protocol in [
                ModelProtocol::OpenaiChat,
                ModelProtocol::OpenaiResponses,
                ModelProtocol::AnthropicMessages,
            ] {
                let mut meter = AnswerMeter::new(protocol, true);
                let mut rest = text.as_bytes();
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(1 + next(rest.len().min(150)));
                    meter.push(now);
                    rest = later;
                }
                assert_eq!(meter.end(), parsed(protocol, &text), "{protocol:?} {text}");
            }
        }
    }

    #[test]
    fn lines_of_text_are_searched_and_neither_copied_nor_parsed() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"sixteen letters!\"}}],\"usage\":null}\n\n";
        let mut meter = AnswerMeter::new(ModelProtocol::OpenaiChat, true);
        meter.push(text.repeat(10_000).as_bytes());
        assert_eq!(meter.parsed, 0);
        assert!(meter.kept.capacity() < 1024, "{}", meter.kept.capacity());
        meter.push(CHAT.as_bytes());
        assert_eq!(meter.parsed, 1);
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
        assert_eq!(meter.end(), AnswerSummary { usage: None, error: None, is_whole: false });
    }
}
