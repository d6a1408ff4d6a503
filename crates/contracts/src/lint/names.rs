//! Names in expressions: those that no start could fill in, and those of inputs that the form does not declare.

use serde_json::Value;

use super::field_text::{FAN_OUTS, FieldText, TaskFields, in_order};
use super::finding::{LintRule, Remark};
use crate::form;
use crate::recipe::Recipe;
use crate::template::{Piece, call, pieces};

/// First names of the paths that expressions may have, those of pipelines included.
const ROOTS: [&str; 6] = ["form", "item", "index", "count", "matrix", "tasks"];
/// Of these, what only a fan-out has.
const OF_FAN_OUT: [&str; 3] = ["item", "index", "count"];

/// The paths of an expression: its own, or those of the function that it calls.
pub(super) fn paths(expr: &str) -> Vec<&str> {
    let arguments = match (call(expr, "range"), call(expr, "glob")) {
        (Some(argument), _) => vec![argument],
        (None, Some(arguments)) => arguments.splitn(2, ',').map(str::trim).collect(),
        (None, None) => return vec![expr],
    };
    let is_path = |text: &&str| text.starts_with(|c: char| c.is_ascii_alphabetic());
    arguments.into_iter().filter(is_path).collect()
}

/// Every path of a text, without what does not parse.
pub(super) fn paths_in(text: &str) -> Vec<&str> {
    let exprs = pieces(text).filter_map(|piece| match piece {
        Ok(Piece::Expr(expr)) => Some(expr.value),
        _ => None,
    });
    exprs.flat_map(paths).collect()
}

/// The first two names of a path.
pub(super) fn beginning(path: &str) -> (&str, Option<&str>) {
    let mut names = path.split('.').map(str::trim);
    (names.next().unwrap_or_default(), names.next())
}

/// Expressions of tasks and of an agent that no start could fill in, or only one with inputs that are not declared.
pub(super) fn remarks(recipe: &Recipe) -> Vec<Remark> {
    let mut remarks = Vec::new();
    for (i, task) in recipe.plan.tasks.iter().enumerate() {
        let TaskFields { is_fan_out, texts } = TaskFields::of(task);
        for text in texts.iter().filter(|text| !text.is_literal()) {
            let field = format!("plan.tasks[{i}].{}", text.field);
            let has_item = is_fan_out && !FAN_OUTS.iter().any(|made_by| text.is_in(made_by));
            remarks.extend(remark(recipe, text, has_item, &field));
        }
    }
    let agent = recipe.plan.agent.as_ref().and_then(|agent| serde_json::to_value(agent).ok());
    for text in agent.iter().flat_map(in_order) {
        let field = format!("plan.agent.{}", text.field);
        remarks.extend(remark(recipe, &text, false, &field));
    }
    remarks
}

/// The first name of a text that cannot be filled in.
fn remark(recipe: &Recipe, text: &FieldText, has_item: bool, field: &str) -> Option<Remark> {
    let fault = |what: String| Some(Remark::new(LintRule::RecipeInvalid, field, what));
    for piece in pieces(&text.text) {
        let expr = match piece {
            Ok(Piece::Expr(expr)) => expr,
            Ok(_) => continue,
            Err(error) => return fault(error.to_string()),
        };
        for path in paths(expr.value) {
            let (root, name) = beginning(path);
            if !ROOTS.contains(&root) {
                return fault(format!(
                    "`${{{}}}`: unknown name {root:?}: there are form, item, index and count (a shell's own `${{{root}}}` is written \
                     `$${{{root}}}`)",
                    expr.value
                ));
            }
            if OF_FAN_OUT.contains(&root) && !has_item {
                return fault(format!(
                    "`${{{}}}`: {root} is known only within a task with `each`: add `each`, or remove it",
                    expr.value
                ));
            }
            if let ("form", Some(name)) = (root, name)
                && let Some(why) = undeclared(recipe, name)
            {
                let what = format!("`${{{}}}`: {why}", expr.value);
                let code = match form_is_closed(recipe) {
                    true => LintRule::RecipeInvalid,
                    false => LintRule::InputUndeclared,
                };
                return Some(Remark::new(code, field, what));
            }
        }
    }
    None
}

fn form_is_closed(recipe: &Recipe) -> bool {
    recipe.form.as_ref().is_none_or(form::is_closed)
}

fn undeclared(recipe: &Recipe, name: &str) -> Option<String> {
    let empty = Value::Object(serde_json::Map::new());
    let form = recipe.form.as_ref().unwrap_or(&empty);
    form::undeclared(form, name)
        .map(|why| format!("form.{name}: {why}; declare it in `form.properties`"))
}
