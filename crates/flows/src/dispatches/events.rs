//! What an agent's own events say: one JSON object a line, on its standard output. Pure.
//!
//! Lines that are no events, and events of kinds that are not known, count nothing: an agent of
//! another version must not fail its dispatch.

use std::collections::BTreeSet;

use cofferdam_contracts::dispatch::{AgentType, Tally};
use serde_json::Value;

/// A line that is longer is no event of ours: it is skipped to its end.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Commands that run at a time, as far as they are told apart.
const MAX_OPEN: usize = 1_024;
/// What an answer of a model says it took: read, written, spared by a cache.
const USAGE: [&str; 3] = ["input_tokens", "output_tokens", "cache_read_input_tokens"];

/// Reads a stream as it comes.
#[derive(Debug)]
pub(crate) struct Events {
    agent: AgentType,
    line: Vec<u8>,
    skipping: bool,
    tally: Tally,
    /// Whether a last word with the sums of everything was heard.
    summed: bool,
    /// Commands that ended otherwise than well, or not at all.
    failed: u64,
    /// Commands that were begun and have not been heard of again.
    open: BTreeSet<String>,
    /// The message that the last event was a part of, and what it says it took.
    message: Option<Message>,
}

/// One answer of a model, which comes in as many events as it has parts.
#[derive(Debug)]
struct Message {
    id: String,
    usage: [u64; 3],
}

impl Events {
    pub(crate) fn new(agent: AgentType) -> Self {
        Self {
            agent,
            line: Vec::new(),
            skipping: false,
            tally: Tally::default(),
            summed: false,
            failed: 0,
            open: BTreeSet::new(),
            message: None,
        }
    }

    /// How many of its commands did not end well, as far as it says.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Whether this agent has events at all.
    pub(crate) fn are_told(&self) -> bool {
        self.agent != AgentType::Command
    }

    /// So far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Takes a piece of the stream.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        if !self.are_told() {
            return;
        }
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(end);
            self.keep(head);
            self.end_line();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// The stream is over.
    pub(crate) fn finish(&mut self) {
        self.end_line();
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.line.len() + bytes.len() > MAX_LINE_BYTES {
            self.skipping = true;
            self.line.clear();
        }
        if !self.skipping {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.skipping)
            && let Ok(event) = serde_json::from_slice::<Value>(&line)
        {
            self.event(&event);
        }
    }

    fn event(&mut self, event: &Value) {
        match self.agent {
            AgentType::Codex => self.codex(event),
            AgentType::Claude => self.claude(event),
            AgentType::Opencode => self.opencode(event),
            AgentType::Command => {}
        }
    }

    fn codex(&mut self, event: &Value) {
        match kind(event, "/type") {
            "turn.started" => self.tally.turns += 1,
            // One that outlives its call is never told to be over.
            "item.started" if kind(event, "/item/type") == "command_execution" => {
                self.begun(kind(event, "/item/id"));
            }
            "item.completed" => match kind(event, "/item/type") {
                "command_execution" => {
                    if !self.open.remove(kind(event, "/item/id")) {
                        self.tally.commands += 1;
                    }
                    let exit = event.pointer("/item/exit_code").and_then(Value::as_i64);
                    let is_refused = ["failed", "declined"].contains(&kind(event, "/item/status"));
                    self.failed += u64::from(is_refused || exit.is_some_and(|exit| exit != 0));
                }
                "agent_message" => self.tally.messages += 1,
                _ => {}
            },
            "turn.completed" => {
                self.tally.input_tokens += number(event, "/usage/input_tokens");
                self.tally.output_tokens += number(event, "/usage/output_tokens");
                self.tally.cache_hits += number(event, "/usage/cached_input_tokens");
            }
            _ => {}
        }
    }

    fn claude(&mut self, event: &Value) {
        match kind(event, "/type") {
            "assistant" => {
                self.answer(event);
                let parts = event.pointer("/message/content").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    match (kind(part, "/type"), kind(part, "/name")) {
                        ("tool_use", "Bash") => self.begun(kind(part, "/id")),
                        ("text", _) => self.tally.messages += 1,
                        _ => {}
                    }
                }
            }
            "user" => {
                let parts = event.pointer("/message/content").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    let is_open = self.open.remove(kind(part, "/tool_use_id"));
                    let is_error = part.get("is_error").and_then(Value::as_bool) == Some(true);
                    self.failed += u64::from(is_open && is_error);
                }
            }
            // The sums of the whole session replace what was added up.
            "result" => {
                self.summed = true;
                self.tally.turns = number(event, "/num_turns").max(1);
                let sums = &mut self.tally;
                (sums.input_tokens, sums.output_tokens, sums.cache_hits) = (0, 0, 0);
                self.add(event, "/usage");
            }
            _ => {}
        }
    }

    fn begun(&mut self, id: &str) {
        self.tally.commands += 1;
        if !id.is_empty() && self.open.len() < MAX_OPEN {
            self.open.insert(id.to_owned());
        }
    }

    /// Each part of an answer comes with the answer's id and what it took so far: it is counted once, by what
    /// it says last. One without an id is an answer of its own.
    fn answer(&mut self, event: &Value) {
        let id = kind(event, "/message/id");
        let known = self.message.take().filter(|message| !id.is_empty() && message.id == id);
        let before = known.as_ref().map_or([0; 3], |message| message.usage);
        if known.is_none() {
            self.tally.turns += 1;
        }
        let now = USAGE.map(|name| number(event, &format!("/message/usage/{name}")));
        if !self.summed {
            let sums = &mut self.tally;
            let all = [&mut sums.input_tokens, &mut sums.output_tokens, &mut sums.cache_hits];
            for (sum, (now, before)) in all.into_iter().zip(now.into_iter().zip(before)) {
                *sum += now.saturating_sub(before);
            }
        }
        let usage = std::array::from_fn(|at| {
            let of = |list: [u64; 3]| list.get(at).copied().unwrap_or(0);
            of(now).max(of(before))
        });
        self.message = Some(Message { id: id.to_owned(), usage });
    }

    fn add(&mut self, event: &Value, at: &str) {
        self.tally.input_tokens += number(event, &format!("{at}/input_tokens"));
        self.tally.output_tokens += number(event, &format!("{at}/output_tokens"));
        self.tally.cache_hits += number(event, &format!("{at}/cache_read_input_tokens"));
    }

    fn opencode(&mut self, event: &Value) {
        match kind(event, "/type") {
            "step_start" => self.tally.turns += 1,
            "tool_use" if kind(event, "/part/tool") == "bash" => {
                self.tally.commands += 1;
                let exit = event.pointer("/part/state/metadata/exit").and_then(Value::as_i64);
                let is_error = kind(event, "/part/state/status") == "error";
                self.failed += u64::from(is_error || exit.is_some_and(|exit| exit != 0));
            }
            "text" => self.tally.messages += 1,
            "step_finish" => {
                self.tally.input_tokens += number(event, "/part/tokens/input");
                self.tally.output_tokens += number(event, "/part/tokens/output");
                self.tally.cache_hits += number(event, "/part/tokens/cache/read");
            }
            _ => {}
        }
    }
}

fn kind<'a>(event: &'a Value, at: &str) -> &'a str {
    event.pointer(at).and_then(Value::as_str).unwrap_or("")
}

fn number(event: &Value, at: &str) -> u64 {
    event.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(agent: AgentType, text: &str) -> Tally {
        let mut events = Events::new(agent);
        // In pieces that end anywhere.
        for piece in text.as_bytes().chunks(7) {
            events.push(piece);
        }
        events.finish();
        events.tally().clone()
    }

    #[test]
    fn codex_turns_commands_messages_and_tokens() {
        let tally = read(
            AgentType::Codex,
            r#"{"type":"thread.started","thread_id":"t"}
{"type":"turn.started"}
{"type":"item.started","item":{"id":"i0","type":"command_execution","command":"bash -lc ls"}}
{"type":"item.completed","item":{"id":"i0","type":"command_execution","command":"bash -lc ls","exit_code":0}}
{"type":"item.completed","item":{"id":"i1","type":"reasoning","text":"hm"}}
{"type":"item.completed","item":{"id":"i2","type":"agent_message","text":"done"}}
{"type":"turn.completed","usage":{"input_tokens":100,"cached_input_tokens":60,"output_tokens":20}}
not json
{"type":"turn.started"}
{"type":"turn.completed","usage":{"input_tokens":5,"cached_input_tokens":1,"output_tokens":2}}"#,
        );
        let wanted = Tally {
            turns: 2,
            commands: 1,
            messages: 1,
            input_tokens: 105,
            output_tokens: 22,
            cache_hits: 61,
        };
        assert_eq!(tally, wanted);
    }

    #[test]
    fn claude_sums_are_those_of_its_last_word() {
        let tally = read(
            AgentType::Claude,
            r#"{"type":"system","subtype":"init","model":"m"}
{"type":"assistant","message":{"content":[{"type":"text","text":"hi"},{"type":"tool_use","name":"Bash","input":{"command":"ls"}}],"usage":{"input_tokens":3,"output_tokens":4}}}
{"type":"user","message":{"content":[{"type":"tool_result","content":"x"}]}}
{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Read","input":{}}],"usage":{"input_tokens":1,"output_tokens":1}}}
{"type":"result","subtype":"success","num_turns":2,"usage":{"input_tokens":9,"output_tokens":8,"cache_read_input_tokens":7}}
"#,
        );
        let wanted = Tally {
            turns: 2,
            commands: 1,
            messages: 1,
            input_tokens: 9,
            output_tokens: 8,
            cache_hits: 7,
        };
        assert_eq!(tally, wanted);
    }

    #[test]
    fn opencode_steps_are_turns() {
        let tally = read(
            AgentType::Opencode,
            r#"{"type":"step_start","sessionID":"s","part":{"type":"step-start"}}
{"type":"tool_use","part":{"tool":"bash","state":{"input":{"command":"ls"}}}}
{"type":"tool_use","part":{"tool":"read"}}
{"type":"text","part":{"text":"ok"}}
{"type":"step_finish","part":{"tokens":{"input":10,"output":3,"cache":{"read":2,"write":0}}}}
"#,
        );
        let wanted = Tally {
            turns: 1,
            commands: 1,
            messages: 1,
            input_tokens: 10,
            output_tokens: 3,
            cache_hits: 2,
        };
        assert_eq!(tally, wanted);
    }

    #[test]
    fn d_r7_an_answer_in_parts_is_one_turn_and_its_tokens_count_once() {
        let text = r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":1000,"output_tokens":1,"cache_read_input_tokens":100}}}
{"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}],"usage":{"input_tokens":1000,"output_tokens":17,"cache_read_input_tokens":100}}}
{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":"no"}]}}
{"type":"assistant","message":{"id":"m2","content":[{"type":"text","text":"bye"}],"usage":{"input_tokens":1000,"output_tokens":17}}}
"#;
        let tally = read(AgentType::Claude, text);
        assert_eq!((tally.turns, tally.commands, tally.messages), (2, 1, 2));
        assert_eq!((tally.input_tokens, tally.output_tokens, tally.cache_hits), (2_000, 34, 100));
    }

    #[test]
    fn d_r7_a_command_that_outlives_its_call_is_counted() {
        let text = r#"{"type":"item.started","item":{"id":"i0","type":"command_execution","command":"sleep 300"}}
{"type":"item.started","item":{"id":"i1","type":"command_execution","command":"false"}}
{"type":"item.completed","item":{"id":"i1","type":"command_execution","command":"false","exit_code":1}}
{"type":"item.completed","item":{"id":"i2","type":"command_execution","command":"true","exit_code":0}}
"#;
        let mut events = Events::new(AgentType::Codex);
        events.push(text.as_bytes());
        assert_eq!((events.tally().commands, events.failed()), (3, 1));
    }

    #[test]
    fn a_line_without_end_is_skipped_and_the_next_one_counts() {
        let mut text = "x".repeat(MAX_LINE_BYTES + 10);
        text.push_str("\n{\"type\":\"turn.started\"}\n");
        assert_eq!(read(AgentType::Codex, &text).turns, 1);
        assert_eq!(read(AgentType::Command, &text), Tally::default());
    }
}
