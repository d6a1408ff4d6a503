//! Outputs of a task: named values that later tasks are given, read from a file that the task wrote.
//!
//! ```text
//! out.env    NAME=value lines: the value is all that follows `=`, without quotes or escapes; empty lines and `#` lines are skipped
//! out.json   one flat object: texts, numbers, booleans, and lists of those or of flat objects (what `each` fans out over)
//! ```
//! **A file is read whole or not at all**: one that breaks a bound has no outputs, so no task gets half of them. The bytes
//! are a tenant's: they are data to every reader, and are never rendered.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::OutputName;
use crate::schema::{parse_json, unstorable};

/// Bytes of the file: the sum of its values is bounded by it.
pub const MAX_OUTPUTS_BYTES: usize = 256 * 1024;
/// Values of one task.
pub const MAX_OUTPUTS: usize = 64;
/// Bytes of a value that is not a list.
pub const MAX_OUTPUT_BYTES: usize = 16 * 1024;
/// Items of a list: as many tasks as one plan may hold.
pub const MAX_OUTPUT_ITEMS: usize = 10_000;

/// How the file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputsKind {
    /// Lines of the form `NAME=value`.
    Env,
    /// One JSON object.
    Json,
}

impl OutputsKind {
    /// By the file's ending: `.env` or `.json`.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "env" => Some(Self::Env),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Named values of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskOutputs(BTreeMap<OutputName, Value>);

impl TaskOutputs {
    /// The value of this name.
    #[must_use]
    pub fn get(&self, name: &OutputName) -> Option<&Value> {
        self.0.get(name)
    }

    /// Every name and value, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OutputName, &Value)> {
        self.0.iter()
    }
}

/// Why a file has no outputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutputsFault {
    /// The file is too large.
    #[error(
        "the outputs file is larger than {MAX_OUTPUTS_BYTES} bytes; write fewer or shorter values, or keep an artifact"
    )]
    TooLarge,
    /// Too many values.
    #[error("the outputs file has more than {MAX_OUTPUTS} values; write one list instead")]
    TooMany,
    /// One value is too large.
    #[error("output {0:?} is larger than {MAX_OUTPUT_BYTES} bytes; keep it as an artifact")]
    LongValue(String),
    /// A list is too long.
    #[error("output {0:?} lists more than {MAX_OUTPUT_ITEMS} items")]
    LongList(String),
    /// Not UTF-8, not JSON, a member named twice, or no object.
    #[error("the outputs file is not one JSON object in UTF-8 that names each value once")]
    NotJson,
    /// It holds bytes that are not UTF-8.
    #[error("the outputs file is not UTF-8")]
    NotText,
    /// A line without `=`.
    #[error("line {0} of the outputs file is not NAME=value")]
    NotALine(usize),
    /// A name with other characters, or a long one.
    #[error(
        "{0:?} is not the name of an output: use letters, digits and _, at most 64, a letter or _ first"
    )]
    BadName(String),
    /// A name that the file has twice.
    #[error("the outputs file names {0:?} twice")]
    Twice(String),
    /// A nested value, a NUL, or a number beyond 2^53.
    #[error("output {name:?}: {why}")]
    BadValue {
        /// The output that has it.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Reads a task's outputs file.
///
/// # Errors
/// A file that breaks a bound or its format.
pub fn parse(bytes: &[u8], kind: OutputsKind) -> Result<TaskOutputs, OutputsFault> {
    // First: everything below is proportional to it.
    if bytes.len() > MAX_OUTPUTS_BYTES {
        return Err(OutputsFault::TooLarge);
    }
    let pairs = match kind {
        OutputsKind::Env => lines(bytes)?,
        OutputsKind::Json => members(bytes)?,
    };
    let mut outputs = BTreeMap::new();
    for (name, value) in pairs {
        let named = OutputName::parse(&name).map_err(|_| OutputsFault::BadName(cut(&name)))?;
        check(&name, &value)?;
        if outputs.insert(named, value).is_some() {
            return Err(OutputsFault::Twice(name));
        }
        if outputs.len() > MAX_OUTPUTS {
            return Err(OutputsFault::TooMany);
        }
    }
    Ok(TaskOutputs(outputs))
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

type Pairs = Vec<(String, Value)>;

fn lines(bytes: &[u8]) -> Result<Pairs, OutputsFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| OutputsFault::NotText)?;
    let mut pairs = Pairs::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(OutputsFault::NotALine(index + 1))?;
        pairs.push((name.to_owned(), Value::from(value)));
    }
    Ok(pairs)
}

fn members(bytes: &[u8]) -> Result<Pairs, OutputsFault> {
    match parse_json(bytes) {
        Ok(Value::Object(members)) => Ok(members.into_iter().collect()),
        _ => Err(OutputsFault::NotJson),
    }
}

fn is_flat(value: &Value) -> bool {
    !value.is_array() && !value.is_object() && !value.is_null()
}

fn check(name: &str, value: &Value) -> Result<(), OutputsFault> {
    let bad = |why| Err(OutputsFault::BadValue { name: name.to_owned(), why });
    match value {
        Value::Array(items) => {
            if items.len() > MAX_OUTPUT_ITEMS {
                return Err(OutputsFault::LongList(name.to_owned()));
            }
            let is_item = |item: &Value| match item {
                Value::Object(fields) => fields.values().all(is_flat),
                other => is_flat(other),
            };
            if !items.iter().all(is_item) {
                return bad("a list holds texts, numbers, booleans, or objects of those");
            }
        }
        Value::String(text) if text.len() > MAX_OUTPUT_BYTES => {
            return Err(OutputsFault::LongValue(name.to_owned()));
        }
        value if is_flat(value) => {}
        _ => return bad("a value is a text, a number, a boolean or a list"),
    }
    // Flat by now: at most three levels deep.
    match unstorable(value) {
        Some(why) => bad(why),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn env(text: &str) -> Result<TaskOutputs, OutputsFault> {
        parse(text.as_bytes(), OutputsKind::Env)
    }

    fn of_json(value: &Value) -> Result<TaskOutputs, OutputsFault> {
        parse(value.to_string().as_bytes(), OutputsKind::Json)
    }

    #[test]
    fn lines_are_taken_as_they_stand() {
        let read = env("# note\n\nVERSION=1.2 \r\nq=\"a\"=b\n_x=\n").unwrap();
        let read: Vec<_> = read.iter().map(|(n, v)| (n.as_str(), v.as_str().unwrap())).collect();
        assert_eq!(read, [("VERSION", "1.2 "), ("_x", ""), ("q", "\"a\"=b")]);
        assert_eq!(env("a=1\nb"), Err(OutputsFault::NotALine(2)));
        assert_eq!(env("a=1\na=2"), Err(OutputsFault::Twice("a".into())));
        for name in ["export A=1", " a=1", "1a=1", "=1", "a-b=1"] {
            assert!(matches!(env(name), Err(OutputsFault::BadName(_))), "{name}");
        }
        assert_eq!(parse(b"a=\xff", OutputsKind::Env), Err(OutputsFault::NotText));
        assert!(matches!(env("a=\0"), Err(OutputsFault::BadValue { .. })));
    }

    #[test]
    fn an_object_is_flat_and_its_lists_hold_flat_items() {
        let good =
            json!({"a": "x", "n": 3, "b": true, "shards": ["a", 1, {"name": "x", "size": 2}]});
        let read = of_json(&good).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), good);
        for bad in [
            json!({"a": {"b": 1}}),
            json!({"a": null}),
            json!({"a": [[1]]}),
            json!({"a": [{"b": [1]}]}),
            json!({"a": 9_007_199_254_740_993_u64}),
        ] {
            assert!(matches!(of_json(&bad), Err(OutputsFault::BadValue { .. })), "{bad}");
        }
        for text in ["[1]", "{\"a\":1,\"a\":2}", "{", "", "{} {}"] {
            assert_eq!(
                parse(text.as_bytes(), OutputsKind::Json),
                Err(OutputsFault::NotJson),
                "{text}"
            );
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse(deep.as_bytes(), OutputsKind::Json), Err(OutputsFault::NotJson));
    }

    #[test]
    fn every_bound_is_reached_and_not_passed() {
        let value = |n: usize| env(&format!("a={}", "x".repeat(n)));
        assert!(value(MAX_OUTPUT_BYTES).is_ok());
        assert_eq!(value(MAX_OUTPUT_BYTES + 1), Err(OutputsFault::LongValue("a".into())));
        let names = |n: usize| env(&(0..n).map(|n| format!("n{n}=x\n")).collect::<String>());
        assert!(names(MAX_OUTPUTS).is_ok());
        assert_eq!(names(MAX_OUTPUTS + 1), Err(OutputsFault::TooMany));
        let list = |n: usize| of_json(&json!({"a": vec![1; n]}));
        assert!(list(MAX_OUTPUT_ITEMS).is_ok());
        assert_eq!(list(MAX_OUTPUT_ITEMS + 1), Err(OutputsFault::LongList("a".into())));
        let file = |n: usize| env(&format!("#{}", "x".repeat(n - 1)));
        assert!(file(MAX_OUTPUTS_BYTES).is_ok());
        assert_eq!(file(MAX_OUTPUTS_BYTES + 1), Err(OutputsFault::TooLarge));
    }

    #[test]
    fn the_ending_says_how_it_is_written() {
        assert_eq!(OutputsKind::of("a/out.env"), Some(OutputsKind::Env));
        assert_eq!(OutputsKind::of("out.json"), Some(OutputsKind::Json));
        assert_eq!(OutputsKind::of("out"), None);
    }
}
