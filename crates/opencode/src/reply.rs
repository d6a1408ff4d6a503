//! What the daemon says. Unknown fields pass: the daemon is another's program; what is used here must be there.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::TurnError;

/// Characters of the daemon's words in an error.
const MAX_WORDS: usize = 500;
/// Bytes of a value of the daemon's that is taken apart: in memory it is many times as large.
const MAX_VALUE_BYTES: usize = 1 << 20;
/// The daemon's words of a tool that was refused to the agent, which ends the turn; it has no other mark of it.
const REJECTED: [&str; 2] = ["The user rejected permission", "The user dismissed"];

/// A message of an assistant: what `info` says, and its parts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Reply {
    info: Info,
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Info {
    pub id: String,
    pub role: String,
    #[serde(rename = "parentID")]
    pub prompt: Option<String>,
    finish: Option<String>,
    error: Option<Fault>,
    #[serde(default, deserialize_with = "bounded")]
    structured: Option<Value>,
    #[serde(default)]
    tokens: Tokens,
    #[serde(default)]
    time: Times,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct Times {
    completed: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct Tokens {
    #[serde(default)]
    input: f64,
    #[serde(default)]
    output: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Fault {
    #[serde(default)]
    pub name: String,
    #[serde(default, deserialize_with = "bounded")]
    data: Option<Value>,
}

/// A value, or, of one that is too large, how large it is.
fn bounded<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(from)? else { return Ok(None) };
    let bytes = raw.get().len();
    if bytes > MAX_VALUE_BYTES {
        return Ok(Some(Value::String(format!("a value of {bytes} bytes"))));
    }
    serde_json::from_str(raw.get()).map(Some).map_err(serde::de::Error::custom)
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Part {
    #[serde(default)]
    id: String,
    #[serde(default, rename = "messageID")]
    message: String,
    r#type: String,
    text: Option<String>,
    tool: Option<String>,
    state: Option<State>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct State {
    #[serde(default)]
    error: Option<String>,
}

/// The end of a turn, as the caller records it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The daemon's id of the message.
    pub message: String,
    /// The answer under a schema, as the model gave it: not yet validated.
    pub structured: Option<Value>,
    /// The message's texts.
    pub text: String,
    /// Tools of the last step by name.
    pub tools: Vec<String>,
    /// Tokens in and out of the last step, in the agent's own words.
    pub tokens: (u64, u64),
}

/// A question that a turn waits for: of a permission, or to a person.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PendingQuestion {
    /// Its id, by which it is answered.
    pub id: String,
    /// The session that waits.
    #[serde(rename = "sessionID")]
    pub session: String,
}

/// What one message says about its turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Conclusion {
    Answered(Answer),
    Failed(TurnError),
    /// More steps were to come.
    Open,
}

pub(crate) fn words(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

impl Fault {
    pub fn message(&self) -> String {
        let said = self.data.as_ref().and_then(|data| data.get("message")?.as_str());
        words(said.unwrap_or("no reason given"))
    }
}

/// A whole number of tokens from a claim; a negative or senseless one counts as none.
fn whole(claim: f64) -> u64 {
    format!("{claim:.0}").parse().unwrap_or(0)
}

impl Reply {
    /// The message that this one answers.
    #[must_use]
    pub fn prompt(&self) -> Option<&str> {
        self.info.prompt.as_deref()
    }

    /// What this message alone says; `busy` is not known to it.
    pub(crate) fn conclusion(&self) -> Conclusion {
        if let Some(fault) = &self.info.error {
            return Conclusion::Failed(TurnError {
                name: words(&fault.name),
                message: fault.message(),
            });
        }
        if self.info.structured.is_some() {
            return Conclusion::Answered(self.answer());
        }
        if self.info.time.completed.is_none() {
            return Conclusion::Open;
        }
        match self.info.finish.as_deref() {
            Some("stop") => Conclusion::Answered(self.answer()),
            None | Some("tool-calls" | "unknown") => match self.rejected() {
                Some(message) => {
                    Conclusion::Failed(TurnError { name: "Rejected".to_owned(), message })
                }
                None => Conclusion::Open,
            },
            Some(other) => Conclusion::Failed(TurnError {
                name: "Finish".to_owned(),
                message: format!("the model stopped with {}", words(other)),
            }),
        }
    }

    fn rejected(&self) -> Option<String> {
        let errors = self.parts.iter().filter_map(|part| part.state.as_ref()?.error.as_deref());
        let mut refused = errors.filter(|said| REJECTED.iter().any(|mark| said.starts_with(mark)));
        refused.next().map(words)
    }

    fn answer(&self) -> Answer {
        let texts = self.parts.iter().filter(|part| part.r#type == "text");
        let text: Vec<&str> = texts.filter_map(|part| part.text.as_deref()).collect();
        Answer {
            message: self.info.id.clone(),
            structured: self.info.structured.clone(),
            text: text.join("\n"),
            tools: self.parts.iter().filter_map(|part| part.tool.clone()).collect(),
            tokens: (whole(self.info.tokens.input), whole(self.info.tokens.output)),
        }
    }
}

/// One durable event.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Record {
    pub aggregate_id: String,
    pub seq: u64,
    pub r#type: String,
    /// As it came: most records are of no message, and none is taken apart before it is known to be one.
    #[serde(default)]
    pub data: Option<Box<RawValue>>,
}

/// What a record of a message holds.
#[derive(Debug, Default, Deserialize)]
struct RecordContent<'a> {
    #[serde(borrow, default)]
    info: Option<&'a RawValue>,
    #[serde(borrow, default)]
    part: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Result<T, String> {
    serde_json::from_str(raw.map_or("null", RawValue::get)).map_err(|e| e.to_string())
}

/// The assistant's messages of a session that answer this prompt, in order, each in its last state.
///
/// # Errors
/// In words, where a record of a message has another version or form.
pub(crate) fn replies(
    records: &[Record],
    session: &str,
    prompt: &str,
) -> Result<Vec<Reply>, String> {
    let mut own: Vec<&Record> = records.iter().filter(|r| r.aggregate_id == session).collect();
    own.sort_by_key(|record| record.seq);
    let mut found: Vec<Reply> = Vec::new();
    for record in own {
        let held = || read::<RecordContent<'_>>(record.data.as_deref());
        match record.r#type.as_str() {
            "message.updated.1" => {
                let info: Info = read(held()?.info)?;
                if info.role != "assistant" || info.prompt.as_deref() != Some(prompt) {
                    continue;
                }
                match found.iter_mut().find(|reply| reply.info.id == info.id) {
                    Some(reply) => reply.info = info,
                    None => found.push(Reply { info, parts: Vec::new() }),
                }
            }
            "message.part.updated.1" => {
                let part: Part = read(held()?.part)?;
                let Some(reply) = found.iter_mut().find(|reply| reply.info.id == part.message)
                else {
                    continue;
                };
                match reply.parts.iter_mut().find(|known| known.id == part.id) {
                    Some(known) => *known = part,
                    None => reply.parts.push(part),
                }
            }
            other
                if other.starts_with("message.updated.")
                    || other.starts_with("message.part.updated.") =>
            {
                return Err(format!("{} in the history", words(other)));
            }
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_that_is_too_large_is_not_taken_apart() {
        let message = |structured: &str| {
            format!(r#"{{"id":"a","role":"assistant","structured":{structured},"error":null}}"#)
        };
        let small: Info = serde_json::from_str(&message(r#"{"a":[1,2]}"#)).unwrap();
        assert_eq!(small.structured, Some(json!({"a": [1, 2]})));
        assert_eq!(serde_json::from_str::<Info>(&message("null")).unwrap().structured, None);
        let large = format!("[{}0]", "0,".repeat(MAX_VALUE_BYTES / 2));
        let large: Info = serde_json::from_str(&message(&large)).unwrap();
        assert!(large.structured.unwrap().as_str().unwrap().contains("bytes"));
    }

    #[test]
    fn records_of_nothing_that_is_looked_for_are_not_taken_apart() {
        let records = json!([
            {"aggregate_id": "ses_a", "seq": 1, "type": "session.updated.1", "data": {"info": {"no": "message"}}},
            {"aggregate_id": "ses_b", "seq": 1, "type": "message.updated.1", "data": {"info": 7}},
            {"aggregate_id": "ses_a", "seq": 2, "type": "message.updated.1",
             "data": {"info": {"id": "m", "role": "assistant", "parentID": "p"}}},
            {"aggregate_id": "ses_a", "seq": 3, "type": "message.part.updated.1",
             "data": {"part": {"id": "x", "messageID": "m", "type": "text", "text": "hi"}}}
        ]);
        let records: Vec<Record> = serde_json::from_str(&records.to_string()).unwrap();
        let found = replies(&records, "ses_a", "p").unwrap();
        assert_eq!((found.len(), found[0].parts.len()), (1, 1));
        assert!(replies(&records, "ses_b", "p").is_err());
    }
}
