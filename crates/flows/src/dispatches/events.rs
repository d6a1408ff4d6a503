//! What an agent's own events say: one JSON object a line, on its standard output. Pure.
//!
//! Other lines, and events of unknown kinds, count nothing: another version must not fail its dispatch.
//!
//! | | codex | claude | opencode |
//! |---|---|---|---|
//! | a turn (one answer of the model) | the items between two results of tools | a message id | `step_start` |
//! | a command | `command_execution`, when it starts | `Bash` that it was offered | `bash` |
//! | tokens read, the cached ones included | `turn.completed` | per message, then `result` | `step_finish` |
//!
//! codex tells no call of the model: tools that it runs in turn for one answer are answers each; tokens come at its end.
//!
//! One file: three dialects of one format, each a few lines beside its row above.

use cofferdam_contracts::dispatch::{AgentType, CountSource, Findings, Tally};
use cofferdam_contracts::printable;
use serde_json::Value;

use super::event_line::EventLine;
use super::findings::Verdict;
use super::tool_uses::ToolUses;

/// Characters of an agent's own error that are kept.
const MAX_ERROR: usize = 500;

/// Reads a stream as it comes.
#[derive(Debug)]
pub(crate) struct Events {
    agent: AgentType,
    line: EventLine,
    tally: Tally,
    /// Whether a last word with the sums of everything was heard.
    summed: bool,
    /// Commands that ended otherwise than well, or not at all.
    failed: u64,
    /// The message that the last event was a part of, and what it says it took.
    message: Option<Message>,
    /// codex: whether an item of the present answer was heard.
    answering: bool,
    tools: ToolUses,
    error: Option<String>,
    verdict: Verdict,
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
            line: EventLine::default(),
            tally: Tally::default(),
            summed: false,
            failed: 0,
            message: None,
            answering: false,
            tools: ToolUses::default(),
            error: None,
            verdict: Verdict::default(),
        }
    }

    /// The agent's own tools.
    pub(crate) fn tools(&self) -> &ToolUses {
        &self.tools
    }

    /// What it says went wrong, where that was its last word.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Its verdict on its work.
    pub(crate) fn findings(&self) -> Findings {
        self.verdict.findings()
    }

    /// How many of its commands did not end well, as far as it says.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Whether this agent has events at all.
    pub(crate) fn are_told(&self) -> bool {
        self.agent != AgentType::Command
    }

    /// By what its turns are counted, where no ledger of calls does.
    pub(crate) fn turns_by(&self) -> Option<CountSource> {
        match self.agent {
            AgentType::Command => None,
            AgentType::Codex => Some(CountSource::ToolResults),
            AgentType::Claude | AgentType::Opencode => Some(CountSource::Agent),
        }
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Takes a piece of the stream.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(end);
            self.line.push(head);
            self.end_line();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.line.push(bytes);
    }

    /// The stream is over.
    pub(crate) fn finish(&mut self) {
        self.end_line();
    }

    fn end_line(&mut self) {
        let Some(line) = self.line.end() else { return };
        if !self.are_told() {
            self.verdict.line(&String::from_utf8_lossy(&line));
        } else if let Ok(event) = serde_json::from_slice::<Value>(&line) {
            self.event(&event);
        }
    }

    /// A message of the agent.
    fn says(&mut self, text: &str) {
        self.tally.messages += 1;
        self.verdict.text(text);
    }

    fn complain(&mut self, words: &str) {
        self.error = Some(printable::line(words).chars().take(MAX_ERROR).collect());
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
            "turn.started" => {
                self.answering = true;
                self.tally.turns += 1;
            }
            "item.started" => self.codex_begun(event),
            "item.completed" => self.codex_done(event),
            "turn.completed" => {
                self.error = None;
                self.tally.input_tokens += number(event, "/usage/input_tokens");
                self.tally.output_tokens += number(event, "/usage/output_tokens");
                self.tally.cache_hits += number(event, "/usage/cached_input_tokens");
            }
            "turn.failed" => self.complain(kind(event, "/error/message")),
            "error" => self.complain(kind(event, "/message")),
            _ => {}
        }
    }

    /// The first item of an answer counts it.
    fn codex_answers(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.tally.turns += 1;
        }
    }

    fn codex_begun(&mut self, event: &Value) {
        let Some(tool) = codex_tool(event) else { return };
        self.codex_answers();
        self.tools.enter(tool);
        let id = kind(event, "/item/id");
        // One that outlives its call is never told to be over.
        if tool == "Bash" { self.begun(id) } else { self.tools.open(id) }
    }

    fn codex_done(&mut self, event: &Value) {
        if let "reasoning" | "agent_message" = kind(event, "/item/type") {
            self.codex_answers();
            if kind(event, "/item/type") == "agent_message" {
                self.says(kind(event, "/item/text"));
            }
            return;
        }
        let Some(tool) = codex_tool(event) else { return };
        self.codex_answers();
        self.tools.enter(tool);
        let was_open = self.tools.close(kind(event, "/item/id"));
        if tool == "Bash" {
            self.tally.commands += u64::from(!was_open);
            let exit = event.pointer("/item/exit_code").and_then(Value::as_i64);
            let is_refused = ["failed", "declined"].contains(&kind(event, "/item/status"));
            self.failed += u64::from(is_refused || exit.is_some_and(|exit| exit != 0));
        }
        // Its result goes to the model, whose next item belongs to the next answer.
        self.answering = self.tools.is_any_open();
    }

    fn claude(&mut self, event: &Value) {
        match kind(event, "/type") {
            "system" if kind(event, "/subtype") == "init" => {
                let tools = event.pointer("/tools").and_then(Value::as_array);
                let names = |all: &Vec<Value>| {
                    all.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
                };
                self.tools.offer(tools.map(names));
            }
            "assistant" => {
                self.answer(event);
                let parts = event.pointer("/message/content").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    match kind(part, "/type") {
                        "tool_use" => self.claude_uses(part),
                        "text" => self.says(kind(part, "/text")),
                        _ => {}
                    }
                }
            }
            "user" => {
                let parts = event.pointer("/message/content").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    let is_open = self.tools.close(kind(part, "/tool_use_id"));
                    let is_error = part.get("is_error").and_then(Value::as_bool) == Some(true);
                    self.failed += u64::from(is_open && is_error);
                }
            }
            // The sums of the whole session replace what was added up.
            "result" => {
                self.summed = true;
                self.tally.turns = number(event, "/num_turns").max(1);
                let [read, written, cached] = claude_usage(event, "/usage");
                self.tally.input_tokens = read;
                self.tally.output_tokens = written;
                self.tally.cache_hits = cached;
                self.error = None;
                if event.get("is_error").and_then(Value::as_bool) == Some(true) {
                    let words = [kind(event, "/result"), kind(event, "/subtype")];
                    let words = words.into_iter().find(|words| !words.is_empty());
                    self.complain(words.unwrap_or("it ended with an error"));
                }
            }
            _ => {}
        }
    }

    /// A call of a tool that it was not offered is refused by the agent itself and counts nothing.
    fn claude_uses(&mut self, part: &Value) {
        let name = kind(part, "/name");
        if !self.tools.may_use(name) {
            return;
        }
        self.tools.enter(name);
        if name == "Bash" {
            self.begun(kind(part, "/id"));
        }
    }

    fn begun(&mut self, id: &str) {
        self.tally.commands += 1;
        self.tools.open(id);
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
        let now = claude_usage(event, "/message/usage");
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

    fn opencode(&mut self, event: &Value) {
        match kind(event, "/type") {
            "step_start" => self.tally.turns += 1,
            "tool_use" => {
                let tool = kind(event, "/part/tool");
                let is_error = kind(event, "/part/state/status") == "error";
                // What it was not offered comes as `invalid`, or as an error.
                if !is_error && tool != "invalid" {
                    self.tools.enter(opencode_tool(tool));
                }
                if tool == "bash" {
                    self.tally.commands += 1;
                    let exit = event.pointer("/part/state/metadata/exit").and_then(Value::as_i64);
                    self.failed += u64::from(is_error || exit.is_some_and(|exit| exit != 0));
                }
            }
            "text" => self.says(kind(event, "/part/text")),
            "step_finish" => {
                self.error = None;
                let of = |name: &str| number(event, &format!("/part/tokens/{name}"));
                self.tally.input_tokens += of("input") + of("cache/read") + of("cache/write");
                self.tally.output_tokens += of("output") + of("reasoning");
                self.tally.cache_hits += of("cache/read");
            }
            "error" => {
                let words = [kind(event, "/error/data/message"), kind(event, "/error/name")];
                let words = words.into_iter().find(|words| !words.is_empty());
                self.complain(words.unwrap_or("it ended with an error"));
            }
            _ => {}
        }
    }
}

/// What claude's provider says an answer took: read, written, and read from a cache. It counts cached tokens apart;
/// the first number includes them, as everywhere else.
fn claude_usage(event: &Value, at: &str) -> [u64; 3] {
    let of = |name: &str| number(event, &format!("{at}/{name}"));
    let cached = of("cache_read_input_tokens");
    [of("input_tokens") + cached + of("cache_creation_input_tokens"), of("output_tokens"), cached]
}

/// The tool of a codex item, by the name that policies have for it.
fn codex_tool(event: &Value) -> Option<&str> {
    match kind(event, "/item/type") {
        "command_execution" => Some("Bash"),
        "file_change" => Some("Edit"),
        "web_search" => Some("WebSearch"),
        "mcp_tool_call" => Some(kind(event, "/item/tool")),
        "collab_tool_call" => Some("Task"),
        _ => None,
    }
}

/// The tool of opencode's, by the name that policies have for it.
fn opencode_tool(name: &str) -> &str {
    match name {
        "bash" => "Bash",
        "edit" | "patch" | "apply_patch" | "multiedit" => "Edit",
        "glob" => "Glob",
        "grep" => "Grep",
        "list" => "LS",
        "read" => "Read",
        "task" => "Task",
        "todowrite" => "TodoWrite",
        "webfetch" => "WebFetch",
        "websearch" => "WebSearch",
        "write" => "Write",
        other => other,
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
    use super::super::event_line::MAX_LINE_BYTES;
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
        // Two answers in the first turn, one in the second.
        let wanted = Tally {
            turns: 3,
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
            input_tokens: 16,
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
{"type":"step_finish","part":{"tokens":{"input":10,"output":3,"reasoning":1,"cache":{"read":2,"write":0}}}}
"#,
        );
        let wanted = Tally {
            turns: 1,
            commands: 1,
            messages: 1,
            input_tokens: 12,
            output_tokens: 4,
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
        assert_eq!((tally.input_tokens, tally.output_tokens, tally.cache_hits), (2_100, 34, 100));
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
    fn d_r7_an_answer_of_codex_is_counted_once_however_many_items_it_has() {
        let call = |state: &str, id: &str| {
            format!(
                "{{\"type\":\"item.{state}\",\"item\":{{\"id\":\"{id}\",\"type\":\"command_execution\"}}}}\n"
            )
        };
        let mut text = "{\"type\":\"turn.started\"}\n".to_owned();
        for id in ["a", "b", "c"] {
            text += &(call("started", id) + &call("completed", id));
        }
        // Two at once are of one answer.
        text += &(call("started", "d") + &call("started", "e") + &call("completed", "d"));
        text += &call("completed", "e");
        text += "{\"type\":\"item.completed\",\"item\":{\"type\":\"reasoning\"}}\n";
        text += "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"done\"}}\n";
        let tally = read(AgentType::Codex, &text);
        assert_eq!((tally.turns, tally.commands, tally.messages), (5, 5, 1));
    }

    #[test]
    fn the_agents_tools_are_listed_by_the_names_of_a_policy() {
        let tools = |agent, text: &str| {
            let mut events = Events::new(agent);
            events.push(text.as_bytes());
            events.tools().names()
        };
        let claude = r#"{"type":"system","subtype":"init","tools":["Read","Bash"]}
{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Write","id":"1"},{"type":"tool_use","name":"Read","id":"2"}]}}
"#;
        assert_eq!(
            tools(AgentType::Claude, claude),
            ["Read"],
            "what it was not offered it did not use"
        );
        let opencode = r#"{"type":"tool_use","part":{"tool":"write","state":{"status":"completed"}}}
{"type":"tool_use","part":{"tool":"invalid","state":{"status":"completed"}}}
{"type":"tool_use","part":{"tool":"bash","state":{"status":"completed"}}}
"#;
        assert_eq!(tools(AgentType::Opencode, opencode), ["Bash", "Write"]);
        let codex = r#"{"type":"item.completed","item":{"id":"i","type":"file_change"}}
"#;
        assert_eq!(tools(AgentType::Codex, codex), ["Edit"]);
    }

    #[test]
    fn d_r10_an_agents_last_word_is_its_error_and_success_takes_it_back() {
        let error = |agent, text: &str| {
            let mut events = Events::new(agent);
            events.push(text.as_bytes());
            events.error().map(str::to_owned)
        };
        let failed = "{\"type\":\"error\",\"message\":\"Reconnecting\"}\n{\"type\":\"turn.failed\",\"error\":{\"message\":\"401 bad key\"}}\n";
        assert_eq!(error(AgentType::Codex, failed).as_deref(), Some("401 bad key"));
        let mended = format!("{failed}{{\"type\":\"turn.completed\"}}\n");
        assert_eq!(error(AgentType::Codex, &mended), None);
        let result = "{\"type\":\"result\",\"is_error\":true,\"result\":\"bad key\\u001b[2J\"}\n";
        let words = error(AgentType::Claude, result).unwrap();
        assert!(words.starts_with("bad key") && !words.contains('\u{1b}'), "{words}");
        let opencode = "{\"type\":\"error\",\"error\":{\"name\":\"APIError\",\"data\":{\"message\":\"no\"}}}\n";
        assert_eq!(error(AgentType::Opencode, opencode).as_deref(), Some("no"));
    }

    #[test]
    fn a_line_without_end_is_skipped_and_the_next_one_counts() {
        let mut text = "x".repeat(MAX_LINE_BYTES + 10);
        text.push_str("\n{\"type\":\"turn.started\"}\n");
        assert_eq!(read(AgentType::Codex, &text).turns, 1);
        assert_eq!(read(AgentType::Command, &text), Tally::default());
    }
}
