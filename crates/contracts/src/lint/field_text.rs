//! Texts of a task by their fields, whatever type holds them.

use serde_json::Value;

use crate::recipe::TaskSpec;

/// Texts that one task may have in all: more than its recipe has bytes for is never reached, and a bound is.
const MAX_TEXTS: usize = 20_000;
/// Fields that make several tasks of one entry.
pub(super) const FAN_OUTS: [&str; 2] = ["each", "matrix"];
/// Fields whose texts are taken as they are: no expression is filled in there.
const LITERAL: [&str; 3] = ["services", "models", "isolation"];

/// A text of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldText {
    /// Field within the task, such as `exec.env.HOME`.
    pub(super) field: String,
    pub(super) text: String,
}

impl FieldText {
    /// Whether its field is this one, or lies in it.
    pub(super) fn is_in(&self, field: &str) -> bool {
        self.field
            .strip_prefix(field)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    /// Whether no expression is filled in there.
    pub(super) fn is_literal(&self) -> bool {
        LITERAL.iter().any(|field| self.is_in(field))
    }
}

/// The texts of a task.
#[derive(Debug)]
pub(super) struct TaskFields {
    /// Whether one entry becomes several tasks.
    pub(super) is_fan_out: bool,
    /// Every one: a later version's fields are among them without being named here.
    pub(super) texts: Vec<FieldText>,
}

impl TaskFields {
    pub(super) fn of(task: &TaskSpec) -> Self {
        let whole = serde_json::to_value(task).unwrap_or_default();
        let is_fan_out = FAN_OUTS.iter().any(|field| whole.get(field).is_some());
        Self { is_fan_out, texts: in_order(&whole) }
    }
}

/// Texts of a value in the order of its fields. Depth is a list, so no nesting of a tenant's uses the stack.
pub(super) fn in_order(whole: &Value) -> Vec<FieldText> {
    let mut texts = Vec::new();
    let mut next = vec![(String::new(), whole)];
    while let Some((field, value)) = next.pop() {
        if texts.len() >= MAX_TEXTS {
            break;
        }
        match value {
            Value::String(text) => texts.push(FieldText { field, text: text.clone() }),
            Value::Array(items) => {
                let items = items.iter().enumerate().rev();
                next.extend(items.map(|(i, item)| (format!("{field}[{i}]"), item)));
            }
            Value::Object(fields) => {
                let dot = if field.is_empty() { "" } else { "." };
                let fields = fields.iter().rev();
                next.extend(fields.map(|(name, value)| (format!("{field}{dot}{name}"), value)));
            }
            _ => {}
        }
    }
    texts
}
