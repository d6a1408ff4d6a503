//! stdout is data, stderr is everything else; color only on a terminal.
//!
//! **Text of others is escaped here, in tables, live lines, labels of `logs` and excerpts of failures: what a terminal would act on
//! is shown as it is written (`\\x1b`).** A program's own output stays as it is where no terminal reads it.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use cofferdam_contracts::printable;
use cofferdam_contracts::schema::schema_of;
use serde_json::Value;

use super::exit::Exit;
use super::stdout;

/// Whether color may be used on a stream.
pub(crate) fn is_colored(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && cofferdam_ambient::env::var_os("NO_COLOR").is_none()
}

/// A part of a line; the second form is in a color of the terminal, where stdout has any.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ink<'a> {
    Plain(&'a str),
    Color(&'static str, &'a str),
}

/// The text, shown and colored.
pub(super) fn inked(stream: &impl IsTerminal, color: &str, text: &str) -> String {
    let text = printable::line(text);
    match is_colored(stream) {
        true => format!("\x1b[{color}m{text}\x1b[0m"),
        false => text.into_owned(),
    }
}

/// Writes a line of what is shown already: its parts of others are escaped.
pub(super) fn put(shown: &str) {
    stdout::write(format!("{shown}\n").as_bytes());
}

/// Writes a line to stderr. Nobody may read it; that ends nothing.
fn say(shown: &str) {
    let _ = writeln!(std::io::stderr(), "{shown}");
}

/// A line of data.
pub(crate) fn line(text: &str) {
    put(&printable::line(text));
}

/// A line of data in cells, between tabs; a tab inside a cell is escaped.
pub(crate) fn cells(cells: &[&str]) {
    let shown: Vec<Cow<'_, str>> = cells.iter().map(|cell| printable::line(cell)).collect();
    put(&shown.join("\t"));
}

/// A line of data with colors.
pub(crate) fn line_of(parts: &[Ink<'_>]) {
    let shown = parts.iter().map(|part| match part {
        Ink::Plain(text) => printable::line(text).into_owned(),
        Ink::Color(color, text) => inked(&std::io::stdout(), color, text),
    });
    put(&shown.collect::<String>());
}

/// Lines of data.
pub(crate) fn block(text: &str) {
    put(&printable::block(text));
}

/// What a program wrote: as it is, unless a terminal reads it.
pub(crate) fn raw(bytes: &[u8]) {
    stdout::write(&as_read_by(&std::io::stdout(), bytes));
}

/// The same for what it wrote on its standard error.
pub(crate) fn raw_err(bytes: &[u8]) {
    let mut err = std::io::stderr();
    let shown = as_read_by(&err, bytes);
    let _ = err.write_all(&shown);
}

fn as_read_by<'b>(stream: &impl IsTerminal, bytes: &'b [u8]) -> Cow<'b, [u8]> {
    match stream.is_terminal() {
        true => Cow::Owned(printable::bytes(bytes).into_bytes()),
        false => Cow::Borrowed(bytes),
    }
}

/// A line about what is going on.
pub(crate) fn note(text: &str) {
    say(&printable::line(text));
}

/// A line about how far something is, which the next one replaces; an empty one takes it away. Only where a terminal shows stderr.
pub(crate) fn progress(text: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{}", printable::line(text)).and_then(|()| err.flush());
    }
}

/// How something ended, as its line is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Ok,
    Failed,
    Canceled,
    Skipped,
}

/// A line about what is going on, marked by how it ended.
pub(crate) fn mark(mark: Mark, text: &str) {
    let (sign, color) = match mark {
        Mark::Ok => ("ok", "32"),
        Mark::Failed => ("FAILED", "31"),
        Mark::Canceled => ("canceled", "33"),
        Mark::Skipped => ("skipped", "33"),
    };
    say(&format!("{} {}", inked(&std::io::stderr(), color, sign), printable::line(text)));
}

/// An error with its causes. Its further lines are indented: none of them is a line of ours.
pub(crate) fn failure(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let mut text = String::new();
    for cause in causes {
        // A cause that its effect quotes already says nothing new.
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    let text = printable::block(&text).replace('\n', "\n    ");
    say(&format!("{}: {text}", inked(&std::io::stderr(), "31", "error")));
}

/// A question on the terminal, whose answer is typed behind it.
pub(crate) fn question(text: &str) {
    let mut err = std::io::stderr();
    let _ = write!(err, "{} ", printable::line(text)).and_then(|()| err.flush());
}

/// Ends the line of a question that is not answered here.
pub(crate) fn question_ends() {
    say("");
}

/// The version of what `--json` prints.
const SCHEMA_VERSION: u64 = 1;

/// JSON, indented for people only: one object, which always says the version of its shape.
pub(crate) fn json(value: &Value) {
    json_value(&versioned(value));
}

/// One object of many, each on a line of its own, on a terminal too.
pub(crate) fn json_line(value: &Value) {
    put(&printable::json(&versioned(value).to_string()));
}

fn versioned(value: &Value) -> Value {
    match value {
        Value::Object(fields) if !fields.contains_key("schemaVersion") => {
            let mut fields = fields.clone();
            fields.insert("schemaVersion".to_owned(), SCHEMA_VERSION.into());
            Value::Object(fields)
        }
        other => other.clone(),
    }
}

/// Rows under their name.
pub(crate) fn json_rows(name: &str, rows: Value) {
    json(&Value::Object([(name.to_owned(), rows)].into_iter().collect()));
}

/// Rows under their name, written as they come: one object of the shape of [`json_rows`], however many they are.
pub(crate) struct JsonRows {
    name: &'static str,
    has_begun: bool,
}

impl JsonRows {
    /// Nothing is written before the first row or the end.
    pub(crate) fn begin(name: &'static str) -> Self {
        Self { name, has_begun: false }
    }

    pub(crate) fn row(&mut self, value: &Value) {
        let is_first = !self.has_begun;
        self.has_begun = true;
        let head = match is_first {
            true => self.head(),
            false => ",".to_owned(),
        };
        let (between, text) = match std::io::stdout().is_terminal() {
            true => {
                let text = serde_json::to_string_pretty(value).unwrap_or_default();
                ("\n  ", text.replace('\n', "\n  "))
            }
            false => ("", value.to_string()),
        };
        stdout::write(format!("{head}{between}{}", printable::json(&text)).as_bytes());
    }

    pub(crate) fn end(self) {
        let head = if self.has_begun { String::new() } else { self.head() };
        put(&format!("{head}]}}"));
    }

    fn head(&self) -> String {
        format!("{{\"schemaVersion\":{SCHEMA_VERSION},\"{}\":[", self.name)
    }
}

/// A value that is somebody's own and has no version of ours.
pub(crate) fn json_value(value: &Value) {
    if std::io::stdout().is_terminal() {
        put(&printable::json(&serde_json::to_string_pretty(value).unwrap_or_default()));
    } else {
        put(&printable::json(&value.to_string()));
    }
}

/// A document of its own.
pub(crate) fn document(value: &Value) -> anyhow::Result<Exit> {
    put(&printable::json(&serde_json::to_string_pretty(value)?));
    Ok(Exit::Ok)
}

/// ms since the epoch as UTC, to the second.
pub(crate) fn time(ms: i64) -> String {
    let iso = cofferdam_contracts::instant::Instant::from_ms(ms).to_string();
    iso.chars().take_while(|c| *c != '.').map(|c| if c == 'T' { ' ' } else { c }).collect()
}

/// The published JSON Schemas.
pub(crate) fn schema(name: Option<&str>) -> anyhow::Result<Exit> {
    use cofferdam_contracts::{
        artifact, dispatch, error, gate, ops, plan, proof, recipe, run, sandbox,
    };
    type SchemaFn = fn() -> Value;
    let all: &[(&str, SchemaFn)] = &[
        ("artifact-index", schema_of::<artifact::ArtifactIndex>),
        ("dispatch", schema_of::<dispatch::DispatchView>),
        ("dispatch-spawn", schema_of::<dispatch::SpawnRequest>),
        ("error", schema_of::<error::ErrorBody>),
        ("gate", schema_of::<gate::GateView>),
        ("gate-reply", schema_of::<gate::ReplyRequest>),
        ("intent", schema_of::<run::IntentRequest>),
        ("ops-action", schema_of::<ops::OpsRequest>),
        ("plan", schema_of::<plan::Plan>),
        ("proofs", schema_of::<proof::ProofReport>),
        ("recipe", recipe::editor_schema),
        ("recipe-run", schema_of::<run::RecipeRunRequest>),
        ("run", schema_of::<run::RunRequest>),
        ("run-header", schema_of::<run::RunHeader>),
        ("sandbox-effective", schema_of::<dispatch::SandboxEffective>),
        ("sandbox-request", schema_of::<sandbox::SandboxRequest>),
        ("sandbox-result", schema_of::<sandbox::SandboxResult>),
        ("sandbox-spec", schema_of::<sandbox::SandboxSpec>),
        ("wipe-evidence", schema_of::<sandbox::WipeEvidence>),
    ];
    let Some(name) = name else {
        all.iter().for_each(|(name, _)| line(name));
        return Ok(Exit::Ok);
    };
    match all.iter().find(|(known, _)| *known == name) {
        Some((_, made)) => document(&made()),
        None => {
            let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            Err(super::exit::Misuse(format!(
                "unknown schema {name:?}; the names are {}",
                names.join(", ")
            ))
            .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_civil_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_827_696_000), "2000-02-29 12:34:56");
        assert_eq!(time(1_795_305_600_000), "2026-11-22 00:00:00");
    }
}
