//! stdout is data, stderr is everything else; color only on a terminal.
//!
//! **Text of others is escaped here and nowhere else: what a terminal would act on is shown as it is
//! written (`\\x1b`).** A program's own output stays as it is where no terminal reads it.

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
fn inked(stream: &impl IsTerminal, color: &str, text: &str) -> String {
    let text = printable::line(text);
    match is_colored(stream) {
        true => format!("\x1b[{color}m{text}\x1b[0m"),
        false => text.into_owned(),
    }
}

/// Writes a line of what is shown already.
fn put(shown: &str) {
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

/// A line about what is going on, marked as good or bad.
pub(crate) fn mark(good: bool, text: &str) {
    let (sign, color) = if good { ("ok", "32") } else { ("FAILED", "31") };
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

/// Rows in aligned columns under their heads. A cell is one line, whatever is in it.
pub(crate) fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    table_of(heads, rows, |_| None);
}

/// The same with the last cell of a row in the color that it asks for.
pub(crate) fn table_of(
    heads: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    color: impl Fn(&str) -> Option<&'static str>,
) {
    let row =
        |row: Vec<String>| row.iter().map(|cell| printable::line(cell).into_owned()).collect();
    let shown: Vec<Vec<String>> = rows.into_iter().map(row).collect();
    let width = |column: usize| {
        shown
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain(heads.get(column).map(|h| h.len()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let aligned = |cells: &[String]| {
        let text: Vec<String> =
            cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        text.join("  ").trim_end().to_owned()
    };
    put(&aligned(&heads.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()));
    for row in &shown {
        let mut row = row.clone();
        if let Some(last) = row.last_mut()
            && let Some(color) = color(last)
        {
            *last = inked(&std::io::stdout(), color, last);
        }
        put(&aligned(&row));
    }
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
        ("recipe", schema_of::<recipe::Recipe>),
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
