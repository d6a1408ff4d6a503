//! What is wrong with the text of a recipe, and what is legal and probably meant otherwise: every fault with its line and column.
//!
//! ```text
//! text --types--> faults of the text (`parse`)                 one for each task or section that does not parse
//!      --checks--> faults of parts that do not fit             as an import refuses them
//!      --names, compile with defaults--> faults of a run       as a start refuses them
//!      --rules--> warnings
//! ```
//! Each stage needs the one before: a recipe that does not parse is not checked further. Pure: nothing is asked of a server or a host.

mod field_text;
mod finding;
mod names;
mod parse;
mod rules;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::ErrorCode;
use crate::plan::{self, CompileError};
use crate::profile::Settings;
use crate::recipe::{Recipe, RecipeRef};
use crate::schema::{Validator, with_defaults};
use crate::template::GlobError;
use crate::yaml;

use finding::Remark;
pub use finding::{LintFinding, LintRule, LintSeverity};

/// Faults and warnings of one recipe that are listed.
pub const MAX_LINT_FINDINGS: usize = 200;

/// Findings of one recipe.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintReport {
    /// Id and version; absent where the text does not parse.
    pub recipe: Option<RecipeRef>,
    /// In the order of their places: at most [`MAX_LINT_FINDINGS`].
    pub findings: Vec<LintFinding>,
    /// Findings beyond those.
    #[serde(default)]
    pub more: usize,
}

impl LintReport {
    /// Findings of this severity that are listed.
    #[must_use]
    pub fn count(&self, severity: LintSeverity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// Looks at a recipe's text.
#[must_use]
pub fn lint(text: &str) -> LintReport {
    let recipe = match parse::recipe(text) {
        Ok(recipe) => recipe,
        Err(faults) => return LintReport { recipe: None, findings: faults, more: 0 },
    };
    let mut remarks: Vec<Remark> = recipe.faults().iter().map(|text| Remark::fault(text)).collect();
    remarks.extend(names::remarks(&recipe));
    let is_whole = remarks.iter().all(|remark| remark.code.severity() == LintSeverity::Warning);
    if is_whole {
        remarks.extend(compile_fault(&recipe));
    }
    remarks.extend(rules::remarks(&recipe));
    remarks.extend(rules::numbers(&recipe, text));
    let more = remarks.len().saturating_sub(MAX_LINT_FINDINGS);
    // Errors are never left out for warnings.
    remarks.sort_by_key(|remark| remark.code.severity());
    remarks.truncate(MAX_LINT_FINDINGS);
    let mut findings: Vec<LintFinding> =
        remarks.into_iter().map(|remark| located(text, remark)).collect();
    findings.sort_by_key(|finding| (finding.line, finding.column, finding.severity));
    LintReport { recipe: Some(recipe.reference()), findings, more }
}

fn located(text: &str, remark: Remark) -> LintFinding {
    let at = yaml::position(text, &remark.field);
    let message = match remark.field.is_empty() {
        true => remark.what,
        false => format!("{}: {}", remark.field, remark.what),
    };
    LintFinding {
        severity: remark.code.severity(),
        code: remark.code,
        line: at.map(|(line, _)| line),
        column: at.map(|(_, column)| column),
        message,
    }
}

/// Why a start without inputs would be refused, where the form's defaults are enough for one.
fn compile_fault(recipe: &Recipe) -> Option<Remark> {
    let (schema, mut form) = (recipe.form_schema(), json!({}));
    with_defaults(&schema, &mut form);
    if !Validator::compile(&schema).is_ok_and(|validator| validator.check(&form).is_ok()) {
        return None;
    }
    // What a start would give besides is not known here.
    let properties = schema.get("properties").and_then(Value::as_object);
    if properties.into_iter().flatten().any(|(name, _)| form.get(name).is_none()) {
        return None;
    }
    let listed = |_: &str, _: &str| Err(GlobError::Elsewhere);
    let recipe = &anchored(recipe);
    let refusal = match plan::compile(recipe, &form, &Settings::default(), &listed) {
        Err(CompileError::Refused(refusal)) => refusal,
        Ok(_) | Err(CompileError::NeedsFiles) => return None,
    };
    let about = format!("recipe {}@{}: ", recipe.id, recipe.v);
    let what = refusal.message.strip_prefix(&about).unwrap_or(&refusal.message);
    let code = match refusal.code {
        ErrorCode::QueuePolicyViolation => LintRule::QueuePolicyViolation,
        _ => LintRule::RecipeInvalid,
    };
    let of_task = recipe.plan.tasks.iter().enumerate().find_map(|(i, task)| {
        let what = what.strip_prefix(&format!("task {:?}: ", task.name))?;
        let (field, what) = what.split_once(": ").unwrap_or(("", what));
        Some(Remark::new(code, format!("plan.tasks[{i}].{field}"), what))
    });
    Some(of_task.unwrap_or_else(|| match refusal.details.as_ref().and_then(capped) {
        Some(cap) => Remark::new(code, format!("caps.{cap}"), what),
        None => Remark::fault(what),
    }))
}

/// The recipe as the command line sends it: paths that are relative to its directory are absolute.
fn anchored(recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    let agent = recipe.plan.agent.iter_mut();
    let of_agent =
        agent.flat_map(|agent| std::iter::once(&mut agent.project).chain(&mut agent.program));
    let files = recipe.plan.tasks.iter_mut().flat_map(|task| &mut task.files);
    for path in of_agent.chain(files.filter_map(|file| file.from.as_mut())) {
        if !path.starts_with(['/', '$']) && !path.contains("://") {
            path.insert(0, '/');
        }
    }
    recipe
}

/// The cap that a plan exceeds.
fn capped(details: &Value) -> Option<&str> {
    let metric = details.get("metric")?.as_str()?;
    ["steps", "sandbox_minutes"].contains(&metric).then_some(metric)
}
