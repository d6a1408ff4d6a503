//! Every part of a text that does not parse, not the first one alone.
//!
//! A parser stops at its first error. The part that the error is in (a task, an optional section, a field that there is not) is then
//! blanked out, line by line, and the rest is parsed again: what follows stays at its line. What cannot be blanked out without
//! making another error ends the search.

use super::finding::{LintFinding, LintRule};
use crate::recipe::{MAX_RECIPE_BYTES, Recipe};
use crate::yaml::{self, YamlError};

/// Parts that are blanked out; each costs the parsing of a recipe.
const MAX_FAULTS: usize = 20;
/// Fields that a recipe must have, so that without them it has another error.
const REQUIRED: [&str; 4] = ["id", "v", "plan", "plan.tasks"];

/// The recipe, or every fault that was found.
pub(super) fn recipe(text: &str) -> Result<Recipe, Vec<LintFinding>> {
    if text.len() > MAX_RECIPE_BYTES {
        let what = format!("larger than {MAX_RECIPE_BYTES} bytes: split it");
        return Err(vec![finding(&YamlError { at: Some((1, 1)), what })]);
    }
    let first = match yaml::parse::<Recipe>(text) {
        Ok(recipe) => return Ok(recipe),
        Err(error) => error,
    };
    let mut faults = vec![first];
    // What is not YAML has no parts.
    if yaml::parse::<serde_json::Value>(text).is_ok() {
        further(text, &mut faults);
    }
    Err(faults.iter().map(finding).collect())
}

fn further(text: &str, faults: &mut Vec<YamlError>) {
    let mut left = text.to_owned();
    while faults.len() < MAX_FAULTS {
        let Some(rest) = faults.last().and_then(|fault| without(&left, fault)) else { return };
        match yaml::parse::<Recipe>(&rest) {
            Err(error) if error.at.is_some() && !faults.contains(&error) => faults.push(error),
            _ => return,
        }
        left = rest;
    }
}

fn finding(error: &YamlError) -> LintFinding {
    LintFinding {
        severity: LintRule::RecipeInvalid.severity(),
        code: LintRule::RecipeInvalid,
        line: error.at.map(|(line, _)| line),
        column: error.at.map(|(_, column)| column),
        message: error.what.clone(),
    }
}

/// The text without the part that an error is in, its other lines where they are.
fn without(text: &str, error: &YamlError) -> Option<String> {
    let (field, _) = error.what.split_once(": ")?;
    let (part, stub) = match field.strip_prefix("plan.tasks[").and_then(|rest| rest.split_once(']'))
    {
        Some((index, _)) => (format!("plan.tasks[{index}]"), "{name: x, value: x}"),
        None => (section(field)?, ""),
    };
    let (line, column) = yaml::position(text, &part)?;
    let start = usize::try_from(line).ok()?.checked_sub(1)?;
    let indent = usize::try_from(column).ok()?.checked_sub(1)?;
    let before = text.split('\n').nth(start)?.get(..indent)?;
    // In a flow sequence or mapping other things stand in the same lines.
    let is_own = before.trim().is_empty() || (!stub.is_empty() && before.trim() == "-");
    if !is_own {
        return None;
    }
    let replaced = format!("{before}{stub}");
    let mut lines: Vec<&str> = text.split('\n').collect();
    let is_item = !stub.is_empty();
    let end = lines.iter().skip(start + 1).position(|line| ends(line, indent, is_item));
    let end = end.map_or(lines.len(), |after| start + 1 + after);
    for (index, line) in lines.iter_mut().enumerate().take(end).skip(start) {
        *line = if index == start { &replaced } else { "" };
    }
    Some(lines.join("\n"))
}

/// The optional section or unknown field that a field is in.
fn section(field: &str) -> Option<String> {
    let mut names = field.split(['.', '[']);
    let first = names.next().filter(|first| !first.is_empty())?;
    let section = match (first, names.next()) {
        ("plan", Some(second)) => format!("plan.{second}"),
        (first, _) => first.to_owned(),
    };
    (!REQUIRED.contains(&section.as_str())).then_some(section)
}

/// Whether a line comes after what begins at this indentation: an item of a list, whose keys all stand there, or a key, whose list may.
fn ends(line: &str, indent: usize, is_item: bool) -> bool {
    let text = line.trim_start();
    let own = line.len().saturating_sub(text.len());
    let is_after = own < indent || (own == indent && !is_item && !text.starts_with('-'));
    is_after && !text.trim_end().is_empty() && !text.starts_with('#')
}
