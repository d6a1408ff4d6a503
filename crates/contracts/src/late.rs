//! Late values: what a recipe's text takes from tasks that end before its own task starts.
//!
//! ```text
//! ${tasks.build.outputs.version}   parsed when the plan is compiled --> parts of the text, in the plan
//! outputs of `build` --> the parts become the text, once; what an output contains is never an expression
//! ```
//! **No text is rendered twice.** A plan has literals and references, so an output such as `${form.secret}` or `'; rm -rf /`
//! stays data: the first is not looked at, the second is one quoted word in shell text.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{GroupName, OutputName};
use crate::shell;
use crate::task_outputs::TaskOutputs;
use crate::template::{Filter, MAX_TEXT_BYTES, Piece, TemplateError, pieces};

/// Bytes of the tasks of one run that outputs of others made or filled in, as JSON: a worker has them in memory.
pub const MAX_LATE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of the outputs of one run's tasks together, as JSON.
pub const MAX_RUN_OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// One output of one task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputRef {
    /// The task group, which has one task.
    pub task: GroupName,
    /// The output's name.
    pub name: OutputName,
}

/// A value of a text, and how it is written.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LateOutput {
    /// Whose output it is, and which.
    pub of: OutputRef,
    /// `sh`: as one word of a POSIX shell. Absent: as it is.
    pub filter: Option<Filter>,
}

/// A member of the item that a task of a late fan-out is for.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LateItem {
    /// Names of members, from the item inwards; empty: the item itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    /// `sh`: as one word of a POSIX shell. Absent: as it is.
    pub filter: Option<Filter>,
}

/// A part of a late text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatePart {
    /// Known when the plan was compiled.
    Text(String),
    /// A task's output.
    Output(LateOutput),
    /// The item of a late fan-out.
    Item(LateItem),
    /// The item's number, from 0.
    Index,
    /// How many items there are.
    Count,
}

/// A text of a task's work that is known only when the task starts; the work has an empty text there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LateField {
    /// JSON Pointer into the task's work.
    pub at: String,
    /// Parts of the text, in order.
    pub parts: Vec<LatePart>,
}

/// One item of a fan-out.
#[derive(Debug, Clone, Copy)]
pub struct FanoutItem<'a> {
    /// The item itself, as the list has it.
    pub value: &'a Value,
    /// Its number, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

/// Outputs of the tasks that have ended, by task group.
pub type OutputValues = BTreeMap<GroupName, TaskOutputs>;

/// Why a late text has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LateFault {
    /// The task was skipped, failed, or wrote no output of that name.
    #[error("task {:?} has no output {:?}; write it to its outputs file, or run this task only when that one succeeded", .0.task.as_str(), .0.name.as_str())]
    Missing(OutputRef),
    /// An item without such a member.
    #[error("the item has no member {0:?}")]
    NoMember(String),
    /// The text would be too long.
    #[error("a text with outputs would pass {MAX_TEXT_BYTES} bytes; hand the value over as a file")]
    TooLarge,
    /// An argument that an output begins, and that a program may take for an option.
    #[error(
        "argument {0}, which an output begins, would be read as an option; write `--` before it if the program knows that, or hand it over in `env`"
    )]
    Option(usize),
    /// What outputs made of the run's tasks is too much.
    #[error("tasks with the outputs of others would pass {} MiB in one run; hand large values over as files", MAX_LATE_BYTES / (1024 * 1024))]
    TooMuch,
    /// The work does not have the text that a field names, or not as a text.
    #[error("the plan's work has no text at {0}")]
    NoText(String),
}

/// The output that an expression names: `tasks.NAME.outputs.VALUE`. `None`: it names something else.
///
/// # Errors
/// An expression of `tasks` that is not of this form.
pub fn reference(expr: &str) -> Result<Option<OutputRef>, String> {
    let mut names = expr.split('.').map(str::trim);
    if names.next() != Some("tasks") {
        return Ok(None);
    }
    let wrong = || {
        let shown: String = expr.chars().take(80).collect();
        format!("`${{{shown}}}` is not an output: write `${{tasks.TASK.outputs.NAME}}`")
    };
    let (task, outputs, name) = (names.next(), names.next(), names.next());
    if outputs != Some("outputs") || names.next().is_some() {
        return Err(wrong());
    }
    let parsed = task.zip(name).and_then(|(task, name)| {
        Some(OutputRef { task: GroupName::parse(task).ok()?, name: OutputName::parse(name).ok()? })
    });
    parsed.map(Some).ok_or_else(wrong)
}

/// The outputs that a text names, in order.
///
/// # Errors
/// An expression of `tasks` that is not `tasks.TASK.outputs.NAME`.
pub fn references(text: &str) -> Result<Vec<OutputRef>, String> {
    let mut found = Vec::new();
    for piece in pieces(text) {
        // What does not parse is refused by its own error when it is rendered.
        let Ok(Piece::Expr(expr)) = piece else { continue };
        found.extend(reference(expr.value)?);
    }
    Ok(found)
}

/// The late value of one expression, if it has one. `is_item_late`: whether the task's `each` is an output.
fn late_part(
    value: &str,
    filter: Option<Filter>,
    is_item_late: bool,
) -> Result<Option<LatePart>, String> {
    if let Some(of) = reference(value)? {
        return Ok(Some(LatePart::Output(LateOutput { of, filter })));
    }
    let mut names = value.split('.').map(str::trim);
    let root = names.next().unwrap_or("");
    let rest: Vec<String> = names.map(str::to_owned).collect();
    Ok(match (is_item_late, root, rest.is_empty()) {
        (true, "item", _) => Some(LatePart::Item(LateItem { path: rest, filter })),
        (true, "index", true) => Some(LatePart::Index),
        (true, "count", true) => Some(LatePart::Count),
        _ => None,
    })
}

/// Why a late text cannot be parsed.
#[derive(Debug, Clone, PartialEq)]
pub enum PartsError {
    /// An expression of `tasks` that is not an output.
    Reference(String),
    /// Another expression does not render.
    Template(TemplateError),
}

/// Parts of a text, where it has a late value; `None`: it has none, and is rendered as any other. `render` writes what is
/// known by now.
///
/// # Errors
/// A text that does not parse, or does not render.
pub fn parts(
    text: &str,
    is_item_late: bool,
    render: &mut dyn FnMut(&str) -> Result<String, TemplateError>,
) -> Result<Option<Vec<LatePart>>, PartsError> {
    let mut is_late = false;
    for piece in pieces(text) {
        // What does not parse is refused by its own error when it is rendered.
        let Ok(Piece::Expr(expr)) = piece else { continue };
        let late = late_part(expr.value, expr.filter, is_item_late);
        is_late |= late.map_err(PartsError::Reference)?.is_some();
    }
    // Before anything is rendered, which is charged.
    if !is_late {
        return Ok(None);
    }
    let mut parts: Vec<LatePart> = Vec::new();
    for piece in pieces(text) {
        let known = match piece.map_err(PartsError::Template)? {
            Piece::Literal(literal) => literal.to_owned(),
            Piece::Brace => "${".to_owned(),
            Piece::Expr(expr) => {
                let late = late_part(expr.value, expr.filter, is_item_late);
                match late.map_err(PartsError::Reference)? {
                    Some(part) => {
                        parts.push(part);
                        continue;
                    }
                    None => render(&expression(expr.value, expr.filter))
                        .map_err(PartsError::Template)?,
                }
            }
        };
        push(&mut parts, &known);
    }
    Ok(Some(parts))
}

/// The same expression as text.
fn expression(value: &str, filter: Option<Filter>) -> String {
    match filter {
        None => format!("${{{value}}}"),
        Some(Filter::Sh) => format!("${{{value} | sh}}"),
        Some(Filter::Raw) => format!("${{{value} | raw}}"),
    }
}

fn push(parts: &mut Vec<LatePart>, known: &str) {
    match parts.last_mut() {
        Some(LatePart::Text(text)) => text.push_str(known),
        _ if known.is_empty() => {}
        _ => parts.push(LatePart::Text(known.to_owned())),
    }
}

/// A late text as a recipe writes it, for a reader of the plan.
#[must_use]
pub fn shown(parts: &[LatePart]) -> String {
    let one = |part: &LatePart| match part {
        LatePart::Text(text) => text.clone(),
        LatePart::Output(output) => {
            let OutputRef { task, name } = &output.of;
            expression(&format!("tasks.{task}.outputs.{name}"), output.filter)
        }
        LatePart::Item(item) => {
            let path: String = item.path.iter().map(|name| format!(".{name}")).collect();
            expression(&format!("item{path}"), item.filter)
        }
        LatePart::Index => expression("index", None),
        LatePart::Count => expression("count", None),
    };
    parts.iter().map(one).collect()
}

/// A text that is written within its bound.
struct LateText(String);

impl LateText {
    fn push(&mut self, part: &str) -> Result<(), LateFault> {
        if self.0.len().saturating_add(part.len()) > MAX_TEXT_BYTES {
            return Err(LateFault::TooLarge);
        }
        self.0.push_str(part);
        Ok(())
    }

    fn value(&mut self, value: &Value, filter: Option<Filter>) -> Result<(), LateFault> {
        let text = match value {
            Value::String(text) => std::borrow::Cow::Borrowed(text.as_str()),
            Value::Null => std::borrow::Cow::Borrowed(""),
            // Flat and of at most 256 KiB: it is a task's output.
            other => std::borrow::Cow::Owned(other.to_string()),
        };
        match filter {
            Some(Filter::Sh) => shell::quoted(&text, |part| self.push(part)),
            Some(Filter::Raw) | None => self.push(&text),
        }
    }
}

/// Writes the values of one item; outputs stay references.
///
/// # Errors
/// A member that the item does not have, or a text beyond its bound.
pub fn with_item(parts: &[LatePart], item: FanoutItem<'_>) -> Result<Vec<LatePart>, LateFault> {
    let mut done = Vec::new();
    for part in parts {
        let mut text = LateText(String::new());
        match part {
            LatePart::Text(known) => text.push(known)?,
            LatePart::Item(LateItem { path, filter }) => {
                let found = path.iter().try_fold(item.value, |value, name| {
                    value.get(name).ok_or_else(|| LateFault::NoMember(name.clone()))
                });
                text.value(found?, *filter)?;
            }
            LatePart::Index => text.push(&item.index.to_string())?,
            LatePart::Count => text.push(&item.count.to_string())?,
            LatePart::Output(_) => {
                done.push(part.clone());
                continue;
            }
        }
        push(&mut done, &text.0);
    }
    Ok(done)
}

/// The text, once every value is known.
///
/// # Errors
/// An output that is not there, or a text beyond its bound.
pub fn text(parts: &[LatePart], values: &OutputValues) -> Result<String, LateFault> {
    let mut text = LateText(String::new());
    for part in parts {
        match part {
            LatePart::Text(known) => text.push(known)?,
            LatePart::Output(LateOutput { of, filter }) => {
                let found = values.get(&of.task).and_then(|outputs| outputs.get(&of.name));
                let value = found.ok_or_else(|| LateFault::Missing(of.clone()))?;
                text.value(value, *filter)?;
            }
            LatePart::Item(_) | LatePart::Index | LatePart::Count => {
                return Err(LateFault::NoMember("item".to_owned()));
            }
        }
    }
    Ok(text.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_outputs::{OutputsKind, parse};
    use serde_json::json;

    fn no_form(text: &str) -> Result<String, TemplateError> {
        Ok(format!("<{text}>"))
    }

    fn parted(text: &str, is_item_late: bool) -> Option<Vec<LatePart>> {
        parts(text, is_item_late, &mut no_form).unwrap()
    }

    fn values(task: &str, outputs: &Value) -> OutputValues {
        let outputs = parse(outputs.to_string().as_bytes(), OutputsKind::Json).unwrap();
        BTreeMap::from([(GroupName::parse(task).unwrap(), outputs)])
    }

    #[test]
    fn a_text_without_late_values_has_no_parts() {
        assert_eq!(parted("echo ${form.x} $${HOME} ${item}", false), None);
        assert_eq!(parted("", true), None);
    }

    #[test]
    fn an_output_is_never_rendered_and_one_word_in_shell_text() {
        let text = "echo ${form.a | sh} $${X} ${tasks.build.outputs.v | sh} end";
        let parts = parted(text, false).unwrap();
        assert_eq!(parts.len(), 3, "{parts:?}");
        assert_eq!(shown(&parts), "echo <${form.a | sh}> ${X} ${tasks.build.outputs.v | sh} end");
        for (hostile, word) in [
            ("${form.secret}", "'${form.secret}'"),
            ("'; rm -rf / #", r"''\''; rm -rf / #'"),
            ("$(id) `id`\n", "'$(id) `id`\n'"),
        ] {
            let filled = super::text(&parts, &values("build", &json!({"v": hostile}))).unwrap();
            assert_eq!(filled, format!("echo <${{form.a | sh}}> ${{X}} {word} end"));
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let parts = parted("${tasks.build.outputs.v}", false).unwrap();
        for values in [OutputValues::new(), values("build", &json!({"w": 1}))] {
            let fault = super::text(&parts, &values).unwrap_err();
            assert!(fault.to_string().starts_with("task \"build\" has no output \"v\""), "{fault}");
        }
        for bad in [
            "tasks",
            "tasks.a",
            "tasks.a.outputs",
            "tasks.a.files.x",
            "tasks.a.outputs.x.y",
            "tasks.A.outputs.x",
        ] {
            assert!(references(&format!("${{{bad}}}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_item_is_written_and_outputs_stay() {
        let parts =
            parted("${item.name | sh} ${index}/${count} ${tasks.a.outputs.v}", true).unwrap();
        let value = json!({"name": "it's"});
        let item = FanoutItem { value: &value, index: 1, count: 3 };
        let bound = with_item(&parts, item).unwrap();
        assert_eq!(shown(&bound), r"'it'\''s' 1/3 ${tasks.a.outputs.v}");
        assert_eq!(bound.len(), 2);
        let other = json!("x");
        let missing = with_item(&parts, FanoutItem { value: &other, ..item }).unwrap_err();
        assert_eq!(missing, LateFault::NoMember("name".into()));
    }

    #[test]
    fn a_text_is_refused_before_it_is_too_large() {
        let many = vec![
            LatePart::Output(LateOutput {
                of: reference("tasks.a.outputs.v").unwrap().unwrap(),
                filter: None
            });
            65
        ];
        let values = values("a", &json!({"v": "x".repeat(16 * 1024)}));
        assert_eq!(super::text(&many[..64], &values).unwrap().len(), MAX_TEXT_BYTES);
        assert_eq!(super::text(&many, &values), Err(LateFault::TooLarge));
    }
}
