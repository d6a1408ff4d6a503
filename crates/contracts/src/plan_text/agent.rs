//! What an agent planned, in lines.

use serde_json::json;

use crate::agent_plan::{AgentPlan, PlannedChange};
use crate::printable;

/// Bytes of the lines that show what an agent planned.
pub(crate) fn bytes_of(plan: &AgentPlan) -> usize {
    let mut lines = Vec::new();
    planned(plan, &mut lines);
    lines.iter().map(|line| printable::line(line).len().saturating_add(1)).sum()
}

/// What an agent planned, in its own words.
pub(super) fn planned(plan: &AgentPlan, lines: &mut Vec<String>) {
    text_of("design", &plan.design, lines);
    for file in &plan.files {
        let what = match (file.change, file.path.ends_with('/')) {
            (PlannedChange::Create, false) => "may create",
            (PlannedChange::Edit, false) => "may edit",
            (PlannedChange::Remove, false) => "may remove",
            (PlannedChange::Create, true) => "may create anything in",
            (PlannedChange::Edit, true) => "may create, edit and remove anything in",
            (PlannedChange::Remove, true) => "may remove anything in",
        };
        text_of(&format!("{what} {}", json!(file.path)), &file.why, lines);
    }
    plan.risks.iter().for_each(|risk| text_of("risk", risk, lines));
    plan.patch_plan.iter().for_each(|change| text_of("change", change, lines));
    lines.push(format!("    tests that decide: {}", json!(plan.tests)));
}

pub(super) fn text_of(what: &str, text: &str, lines: &mut Vec<String>) {
    lines.push(format!("    {what}"));
    lines.extend(text.split('\n').map(|line| format!("      | {line}")));
}
