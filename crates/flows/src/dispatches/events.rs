//! What an agent's own events say: one JSON object a line, on its standard output. Pure.
//!
//! Lines that are no events, and events of kinds that are not known, count nothing: an agent of
//! another version must not fail its dispatch.

use cofferdam_contracts::dispatch::{AgentType, Tally};
use serde_json::Value;

/// A line that is longer is no event of ours: it is skipped to its end.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Reads a stream as it comes.
#[derive(Debug)]
pub(crate) struct Events {
    agent: AgentType,
    line: Vec<u8>,
    skipping: bool,
    tally: Tally,
    /// Whether a last word with the sums of everything was heard.
    summed: bool,
}

impl Events {
    pub(crate) fn new(agent: AgentType) -> Self {
        Self { agent, line: Vec::new(), skipping: false, tally: Tally::default(), summed: false }
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
            "item.completed" => match kind(event, "/item/type") {
                "command_execution" => self.tally.commands += 1,
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
                self.tally.turns += 1;
                let parts = event.pointer("/message/content").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    match (kind(part, "/type"), kind(part, "/name")) {
                        ("tool_use", "Bash") => self.tally.commands += 1,
                        ("text", _) => self.tally.messages += 1,
                        _ => {}
                    }
                }
                if !self.summed {
                    self.add(event, "/message/usage");
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

    fn add(&mut self, event: &Value, at: &str) {
        self.tally.input_tokens += number(event, &format!("{at}/input_tokens"));
        self.tally.output_tokens += number(event, &format!("{at}/output_tokens"));
        self.tally.cache_hits += number(event, &format!("{at}/cache_read_input_tokens"));
    }

    fn opencode(&mut self, event: &Value) {
        match kind(event, "/type") {
            "step_start" => self.tally.turns += 1,
            "tool_use" if kind(event, "/part/tool") == "bash" => self.tally.commands += 1,
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
    fn a_line_without_end_is_skipped_and_the_next_one_counts() {
        let mut text = "x".repeat(MAX_LINE_BYTES + 10);
        text.push_str("\n{\"type\":\"turn.started\"}\n");
        assert_eq!(read(AgentType::Codex, &text).turns, 1);
        assert_eq!(read(AgentType::Command, &text), Tally::default());
    }
}
