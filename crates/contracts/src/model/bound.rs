//! Whether the tokens of a call have a bound before it is sent. Pure.
//!
//! A byte of text is at most one token. What is not text of the body has another measure, or none: what lies elsewhere (an
//! address, a file's id), what is packed (a PDF), and what the provider does by itself (its own tools). **Only what is
//! known has a bound: a kind of content or of tool that is not listed here has none.**
//!
//! One file: what has a bound is one list; a kind that stood elsewhere would be unbounded unseen.

use serde_json::{Map, Value};

use super::ModelProtocol;
use super::request::is_disguised;
use crate::schema::parse_json;

/// Tokens that an image inside the body may be, whatever its bytes: the providers count 1,000 to 5,000, and for the small
/// model with the dearest images up to 48,169.
const IMAGE: u64 = 65_536;
/// Tokens that a provider adds for tools at all, and for each kind of its own that the client runs: it says at most 735.
const TOOLS: u64 = 1_024;

/// Content that is text of the body. What it holds beside that is looked at too.
const TEXTS: [&str; 26] = [
    "text",
    "input_text",
    "output_text",
    "summary_text",
    "reasoning_text",
    "refusal",
    "message",
    "thinking",
    "redacted_thinking",
    "reasoning",
    "tool_use",
    "tool_result",
    "function",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "compaction",
    "compaction_summary",
    "content",
];
/// Members of content that hold more of it.
const HOLDS: [&str; 3] = ["content", "output", "summary"];
/// Tools that the client runs, by what their kind begins with.
const CLIENT_TOOLS: [&str; 9] = [
    "function",
    "custom",
    "local_shell",
    "apply_patch",
    "bash_",
    "text_editor_",
    "memory_",
    "computer_",
    "computer-",
];
/// Members of a call whose cost is in its bytes, in its most output, or in what is looked at below. One that is not listed may have
/// the provider do more, read what lies elsewhere, or ask for another price.
const MEMBERS: [&str; 52] = [
    "cache_control",
    "client_metadata",
    "context_management",
    "frequency_penalty",
    "function_call",
    "functions",
    "include",
    "input",
    "instructions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tool_calls",
    "messages",
    "metadata",
    "min_p",
    "model",
    "n",
    "output_config",
    "output_format",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "speed",
    "stop",
    "stop_sequences",
    "store",
    "stream",
    "stream_options",
    "system",
    "temperature",
    "text",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "verbosity",
];
/// Prices that the list of a provider does not have, by the member that asks for them.
const DEARER: [(&str, &[&str]); 2] =
    [("service_tier", &["priority", "fast"]), ("speed", &["fast"])];

/// A preview whose input beyond 200,000 tokens costs twice as much.
const DEAR_PREVIEW: &str = "context-1m";

/// Members that are judged below the first level, and those of the first that only a budget judges.
const JUDGED: [&str; 18] = [
    "type",
    "source",
    "file_id",
    "file_url",
    "container_id",
    "url",
    "image_url",
    "content",
    "output",
    "summary",
    "tool_calls",
    "execution",
    "tools",
    "context_management",
    "edits",
    "data",
    "file_data",
    "ttl",
];

/// Refuses an object in which a provider that does not tell cases apart would read a judged member where none is read here.
fn plain(object: &Map<String, Value>) -> Result<(), BoundError> {
    let judged = |name: &str| JUDGED.contains(&name);
    match object.keys().find(|name| is_disguised(name, &judged)) {
        Some(name) => Err(beyond(format!("{name:?}"), "write its name in small letters")),
        None => Ok(()),
    }
}

/// What a call may use beside the bytes of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallBound {
    /// Input tokens on top of one for each byte of the body, for images and tools.
    pub more_input: u64,
    /// The member that must be added with the most output, where the body names none.
    pub output_member: Option<&'static str>,
}

impl CallBound {
    /// The most input tokens of a call whose body has so many bytes: a byte is at most one token.
    #[must_use]
    pub const fn input(&self, body_bytes: u64) -> u64 {
        body_bytes.saturating_add(self.more_input)
    }
}

/// Why the tokens of a call have no bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a budget of tokens or money cannot bound {what}: {remedy}")]
pub struct BoundError {
    /// What it holds.
    what: String,
    remedy: &'static str,
}

const INLINE: &str = "send text, or an image inside the body";
const OWN_TOOLS: &str = "leave it out, or bound calls and wall_ms alone";

fn beyond(what: impl Into<String>, remedy: &'static str) -> BoundError {
    let what: String = what.into();
    BoundError { what: what.chars().filter(|c| !c.is_control()).take(80).collect(), remedy }
}

/// Looks at the previews of a provider that a call asks for.
///
/// # Errors
/// [`BoundError`]: one of them has another price.
pub fn previews<'a>(
    mut headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), BoundError> {
    let is_dear = |value: &str| value.split(',').any(|one| one.trim().starts_with(DEAR_PREVIEW));
    match headers.any(|(name, value)| name == "anthropic-beta" && is_dear(value)) {
        true => Err(beyond(
            format!("the preview {DEAR_PREVIEW:?}"),
            "leave it out: its price is not listed",
        )),
        false => Ok(()),
    }
}

/// What a call may use beside the bytes of its body.
///
/// # Errors
/// [`BoundError`]: what it holds has no bound.
pub fn bound(protocol: ModelProtocol, body: &[u8]) -> Result<CallBound, BoundError> {
    let twice = || beyond("a body that names a member twice", "name each member once");
    let body = parse_json(body).map_err(|_| twice())?;
    let body = body.as_object().ok_or_else(twice)?;
    plain(body)?;
    let has = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    let is_beyond = |name: &&String| has(name) && !MEMBERS.contains(&name.as_str());
    if let Some(name) = body.keys().find(is_beyond) {
        return Err(beyond(format!("{name:?}"), OWN_TOOLS));
    }
    for (name, dear) in DEARER {
        if body.get(name).and_then(Value::as_str).is_some_and(|asked| dear.contains(&asked)) {
            return Err(beyond(format!("{name:?}"), "leave it out: its price is not listed"));
        }
    }
    compaction(body)?;
    let mut seen = ExtraInput::default();
    for name in ["system", "messages", "input", "instructions"] {
        seen.content(body.get(name))?;
    }
    seen.tools(body.get("tools"))?;
    let output_member = match protocol {
        // It is asked for by the provider itself.
        ModelProtocol::AnthropicMessages => None,
        ModelProtocol::OpenaiChat | ModelProtocol::OpenaiResponses => {
            let names = protocol.output_members();
            names.first().copied().filter(|_| !names.iter().any(|name| has(name)))
        }
    };
    if let Some(name) = output_member.filter(|name| body.contains_key(*name)) {
        return Err(beyond(format!("{name:?} without a number"), "name one, or leave it out"));
    }
    let references = seen.references.saturating_mul(seen.largest_tool);
    Ok(CallBound { more_input: seen.more.saturating_add(references), output_member })
}

/// A provider that shortens a conversation with a call of its own is paid for that too.
fn compaction(body: &Map<String, Value>) -> Result<(), BoundError> {
    let edits = match body.get("context_management") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(edits)) => Some(edits),
        Some(value) => {
            value.as_object().map_or(Ok(()), plain)?;
            value.get("edits").and_then(Value::as_array)
        }
    };
    edits.into_iter().flatten().filter_map(Value::as_object).try_for_each(plain)?;
    let is_clear = |edit: &Value| kind(edit).is_some_and(|kind| kind.starts_with("clear_"));
    match edits.is_some_and(|edits| edits.iter().all(is_clear)) {
        true => Ok(()),
        false => Err(beyond("\"context_management\"", OWN_TOOLS)),
    }
}

fn kind(value: &Value) -> Option<&str> {
    value.get("type").and_then(Value::as_str)
}

/// Input beside text that was found so far.
#[derive(Debug, Default)]
struct ExtraInput {
    more: u64,
    /// Bytes of the largest tool, which a reference repeats.
    largest_tool: u64,
    references: u64,
}

impl ExtraInput {
    /// A text, a part, or a list of parts. As deep as the parser lets a body be.
    fn content(&mut self, value: Option<&Value>) -> Result<(), BoundError> {
        match value {
            Some(Value::Array(parts)) => parts.iter().try_for_each(|part| self.content(Some(part))),
            Some(Value::Object(part)) => self.part(part),
            _ => Ok(()),
        }
    }

    fn part(&mut self, part: &Map<String, Value>) -> Result<(), BoundError> {
        plain(part)?;
        for name in ["source", "image_url"] {
            part.get(name).and_then(Value::as_object).map_or(Ok(()), plain)?;
        }
        for name in ["file_id", "file_url", "container_id"] {
            if part.get(name).is_some_and(|value| !value.is_null()) {
                return Err(beyond(format!("{name:?}"), INLINE));
            }
        }
        let kind = match part.get("type") {
            None | Some(Value::Null) => "message",
            Some(kind) => kind.as_str().unwrap_or("content without a kind"),
        };
        match kind {
            "image" | "image_url" | "input_image" | "computer_screenshot" => self.image(part)?,
            "document" => return self.document(part),
            "tool_reference" => self.references = self.references.saturating_add(1),
            kind if TEXTS.contains(&kind) => {}
            kind => return Err(beyond(format!("{kind:?}"), INLINE)),
        }
        HOLDS.iter().try_for_each(|name| self.content(part.get(*name)))?;
        // Calls of tools in a message of a chat.
        self.content(part.get("tool_calls"))
    }

    fn image(&mut self, part: &Map<String, Value>) -> Result<(), BoundError> {
        let source = part.get("source").filter(|_| part.get("image_url").is_none());
        let url = part.get("image_url");
        let url = url.and_then(|url| url.get("url").or(Some(url))).and_then(Value::as_str);
        let is_inside = match source {
            Some(source) => kind(source) == Some("base64"),
            None => url.is_some_and(|url| url.starts_with("data:")),
        };
        if !is_inside {
            return Err(beyond("an image that lies elsewhere", INLINE));
        }
        self.more = self.more.saturating_add(IMAGE);
        Ok(())
    }

    fn document(&mut self, part: &Map<String, Value>) -> Result<(), BoundError> {
        match part.get("source").map(|source| (kind(source), source)) {
            Some((Some("text"), _)) => Ok(()),
            Some((Some("content"), source)) => self.content(source.get("content")),
            _ => Err(beyond("a document other than text", INLINE)),
        }
    }

    fn tools(&mut self, tools: Option<&Value>) -> Result<(), BoundError> {
        let Some(tools) = tools.filter(|tools| !tools.is_null()) else { return Ok(()) };
        let tools =
            tools.as_array().ok_or_else(|| beyond("\"tools\" other than a list", OWN_TOOLS))?;
        self.more = self.more.saturating_add(TOOLS);
        for tool in tools {
            tool.as_object().map_or(Ok(()), plain)?;
            match tool.get("type") {
                None | Some(Value::Null) => {}
                Some(Value::String(kind)) if kind == "namespace" => {
                    self.tools(tool.get("tools"))?
                }
                Some(Value::String(kind))
                    if kind == "tool_search"
                        && tool.get("execution").and_then(Value::as_str) == Some("client") => {}
                Some(Value::String(kind)) => self.tool(kind)?,
                Some(_) => return Err(beyond("a tool without a kind", OWN_TOOLS)),
            }
            let bytes = u64::try_from(tool.to_string().len()).unwrap_or(u64::MAX);
            self.largest_tool = self.largest_tool.max(bytes);
        }
        Ok(())
    }

    fn tool(&mut self, kind: &str) -> Result<(), BoundError> {
        if !CLIENT_TOOLS.iter().any(|own| kind.starts_with(own)) {
            return Err(beyond(format!("the provider's own tool {kind:?}"), OWN_TOOLS));
        }
        if kind != "function" && kind != "custom" {
            self.more = self.more.saturating_add(TOOLS);
        }
        Ok(())
    }
}

/// The body with its most output, where it names none.
#[must_use]
pub fn with_output(body: &[u8], member: &str, most: u64) -> Vec<u8> {
    let Some(at) = body.iter().position(|byte| *byte == b'{') else { return body.to_vec() };
    let (before, after) = body.split_at(at.saturating_add(1));
    // A call has a model, so that a member follows.
    [before, format!("\"{member}\":{most},").as_bytes(), after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CHAT: ModelProtocol = ModelProtocol::OpenaiChat;
    const RESPONSES: ModelProtocol = ModelProtocol::OpenaiResponses;
    const MESSAGES: ModelProtocol = ModelProtocol::AnthropicMessages;

    fn of(protocol: ModelProtocol, body: &Value) -> Result<CallBound, BoundError> {
        bound(protocol, body.to_string().as_bytes())
    }

    fn message(part: &Value) -> Value {
        json!({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": [part]}]})
    }

    #[test]
    fn input_is_the_body_and_what_is_added_to_it() {
        let bound = CallBound { more_input: 1_000, output_member: None };
        assert_eq!(bound.input(3_000), 4_000);
        assert_eq!(bound.input(u64::MAX), u64::MAX, "beyond all budgets, and never less");
    }

    #[test]
    fn a3_what_lies_elsewhere_or_is_packed_has_no_bound() {
        for part in [
            json!({"type": "document", "source": {"type": "url", "url": "http://h/d.pdf"}}),
            json!({"type": "document", "source": {"type": "file", "file_id": "f"}}),
            json!({"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}),
            json!({"type": "document", "source": {"type": "content", "content":
                [{"type": "image", "source": {"type": "url", "url": "http://h/i"}}]}}),
            json!({"type": "image", "source": {"type": "url", "url": "http://h/i.png"}}),
            json!({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            json!({"type": "image_url", "image_url": {"url": "https://h/i.png"}}),
            json!({"type": "image_url"}),
            json!({"type": "container_upload", "file_id": "f"}),
            json!({"type": "file", "file": {"file_id": "f"}}),
            json!({"type": "server_tool_use", "name": "web_search"}),
            json!({"type": "of tomorrow"}),
            json!({"type": 7}),
            json!({"type": "tool_result", "content":
                [{"type": "document", "source": {"type": "url", "url": "http://h/d"}}]}),
        ] {
            assert!(of(MESSAGES, &message(&part)).is_err(), "{part}");
            assert!(of(CHAT, &message(&part)).is_err(), "{part}");
        }
        for part in [
            json!({"type": "input_file", "file_url": "http://h/d.pdf"}),
            json!({"type": "input_image", "file_id": "f"}),
            json!({"type": "input_image", "image_url": "https://h/i.png"}),
            json!({"type": "item_reference", "id": "msg_1"}),
        ] {
            let whole = json!({"model": "m", "max_output_tokens": 8, "input": [part]});
            assert!(of(RESPONSES, &whole).is_err(), "{part}");
            let held = json!({"model": "m", "max_output_tokens": 8, "input":
                [{"type": "message", "role": "user", "content": [part]}]});
            assert!(of(RESPONSES, &held).is_err(), "{part}");
        }
    }

    #[test]
    fn a3l_judged_members_in_another_case_are_refused_at_every_level() {
        let text = json!([{"type": "text", "text": "hi"}]);
        let user = |content: Value| json!({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": content}]});
        assert!(of(MESSAGES, &user(text)).is_ok());
        for part in [
            json!({"type": "text", "Type": "document", "text": "hi"}),
            json!({"type": "text", "text": "hi", "File_ID": "f"}),
            json!({"type": "text", "text": "hi", "file_i\u{64}".to_uppercase(): "f"}),
            json!({"type": "image", "source": {"type": "base64", "data": "x", "URL": "http://h/"}}),
            json!({"type": "image", "source": {"type": "base64", "Type": "url", "data": "x"}}),
            json!({"type": "image_url", "image_url": {"url": "data:x", "Url": "http://h/"}}),
            json!({"type": "tool_result", "Content": [{"type": "document"}]}),
            json!({"type": "document", "source": {"type": "text", "TYPE": "url", "data": "x"}}),
            json!({"type": "document", "source": {"type": "content", "content": [
                {"type": "text", "text": "x", "fiLe_url": "http://h/"}]}}),
        ] {
            let refused = of(MESSAGES, &user(json!([part]))).unwrap_err();
            assert!(refused.to_string().contains("small letters"), "{part} {refused}");
        }
        for (member, value) in [
            ("tools", json!([{"name": "x", "Type": "web_search_20250305"}])),
            ("tools", json!([{"type": "namespace", "Tools": [{"type": "web_search"}]}])),
            ("context_management", json!({"Edits": [{"type": "compact"}], "edits": []})),
            ("context_management", json!({"edits": [{"type": "clear_x", "TYPE": "compact"}]})),
            ("Mcp_Servers", json!([])),
            ("Container", json!("c")),
        ] {
            let mut body = user(json!("hi"));
            body[member] = value;
            assert!(of(MESSAGES, &body).is_err(), "{body}");
        }
    }

    #[test]
    fn a3_tools_that_the_provider_runs_have_no_bound() {
        for tool in [
            json!({"type": "web_search_20250305", "name": "web_search"}),
            json!({"type": "web_search"}),
            json!({"type": "code_interpreter"}),
            json!({"type": "mcp"}),
            json!({"type": "namespace", "tools": [{"type": "file_search"}]}),
            json!({"type": "tool_search"}),
            json!({"type": 7}),
        ] {
            let body = json!({"model": "m", "max_tokens": 8, "tools": [tool]});
            let said = of(MESSAGES, &body).unwrap_err().to_string();
            assert!(said.contains("budget") && said.contains("leave it out"), "{said}");
        }
        for (name, value) in [
            ("mcp_servers", json!([{"url": "http://h"}])),
            ("container", json!("c")),
            ("web_search_options", json!({})),
            ("best_of", json!(20)),
            ("previous_response_id", json!("r")),
            ("of tomorrow", json!(1)),
            ("service_tier", json!("priority")),
            ("speed", json!("fast")),
            ("context_management", json!({"edits": [{"type": "compact_20260112"}]})),
            ("context_management", json!([{"type": "compaction"}])),
        ] {
            let body = json!({"model": "m", "max_tokens": 8, name: value});
            assert!(of(MESSAGES, &body).is_err(), "{name}");
        }
    }

    #[test]
    fn a3_a_preview_with_another_price_has_no_bound() {
        let said = |value| previews([("accept", "*/*"), ("anthropic-beta", value)].into_iter());
        assert!(said("a-2025-01-01, context-1m-2025-08-07").is_err());
        assert!(said("claude-code-20250219,interleaved-thinking-2025-05-14").is_ok());
    }

    #[test]
    fn what_agents_send_has_a_bound() {
        let claude = json!({"model": "m", "max_tokens": 8, "system": [{"type": "text", "text": "x",
            "cache_control": {"type": "ephemeral"}}], "service_tier": "auto",
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "tools": [{"name": "Bash", "input_schema": {"type": "object", "properties": {"type": {"type": "url"}}}}],
            "messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"},
                {"type": "tool_use", "id": "t", "name": "Bash", "input": {"type": "document", "file_id": "x"}}]},
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x"}]}]}]});
        let none = CallBound { more_input: TOOLS, output_member: None };
        assert_eq!(of(MESSAGES, &claude), Ok(none));
        let codex = json!({"model": "m", "stream": true, "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "x"},
            {"type": "function_call", "arguments": "{}"}, {"type": "function_call_output", "output": "x"}],
            "tools": [{"type": "function", "name": "shell"}, {"type": "custom", "name": "apply_patch"},
                {"type": "tool_search", "execution": "client"}]});
        let added = CallBound { more_input: TOOLS, output_member: Some("max_output_tokens") };
        assert_eq!(of(RESPONSES, &codex), Ok(added));
        let chat = json!({"model": "m", "max_tokens": 8, "messages": [{"role": "assistant", "content": null,
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "x"}]});
        assert_eq!(of(CHAT, &chat), Ok(CallBound::default()));
    }

    #[test]
    fn an_image_inside_and_a_reference_to_a_tool_cost_more_than_their_bytes() {
        let image = json!({"type": "image", "source": {"type": "base64", "data": "iVBOR"}});
        assert_eq!(of(MESSAGES, &message(&image)).unwrap().more_input, IMAGE);
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iV"}});
        assert_eq!(of(CHAT, &message(&image)).unwrap().more_input, IMAGE);
        let tool = json!({"name": "t", "description": "x".repeat(500)});
        let bytes = u64::try_from(tool.to_string().len()).unwrap();
        let refs = vec![json!({"type": "tool_reference", "tool_name": "t"}); 3];
        let body = json!({"model": "m", "max_tokens": 8, "tools": [tool, {"type": "bash_20250124"}],
            "messages": [{"role": "user", "content": [{"type": "tool_result", "content": refs}]}]});
        assert_eq!(of(MESSAGES, &body).unwrap().more_input, 2 * TOOLS + 3 * bytes);
    }

    #[test]
    fn a_most_is_added_where_a_call_names_none() {
        let body = br#" {"model":"m"}"#;
        let member = bound(CHAT, body).unwrap().output_member.unwrap();
        let with = with_output(body, member, 9);
        let value: Value = serde_json::from_slice(&with).unwrap();
        assert_eq!(value, json!({"model": "m", "max_completion_tokens": 9}));
        // One that is there without a number would win against ours.
        assert!(bound(CHAT, br#"{"model":"m","max_completion_tokens":null}"#).is_err());
    }
}
