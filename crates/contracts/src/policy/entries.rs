//! Names that a plan or a recipe asks for.

use crate::egress::{Egress, Entry, Phase};
use crate::plan::Plan;
use crate::recipe::Recipe;

/// The distinct policies of a plan's sandboxes in a phase, in a fixed order; none where it has no
/// sandbox.
#[must_use]
pub fn policies_of(plan: &Plan, phase: Phase) -> Vec<Egress> {
    let requests = plan.all_tasks().filter_map(|task| task.work.request());
    let mut all: Vec<Egress> = requests
        .map(|request| match phase {
            Phase::Exec => request.egress.clone(),
            Phase::Build => request.build.as_ref().map_or(Egress::None, |b| b.egress.clone()),
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

/// A list of names that a phase of some task asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseEntries<'a> {
    /// Phase in which the task would reach the names.
    pub phase: Phase,
    /// The names and mirrors.
    pub entries: &'a [Entry],
}

/// A list of names, and the field that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldEntries<'a> {
    /// As refusals name it.
    pub field: String,
    /// Names in that field, with the phase that asks for them.
    pub asked: PhaseEntries<'a>,
}

/// The lists of a recipe's tasks.
#[must_use]
pub fn recipe_names(recipe: &Recipe) -> Vec<FieldEntries<'_>> {
    let mut found = Vec::new();
    for (n, task) in recipe.plan.tasks.iter().enumerate() {
        let build = task.build.as_ref().map(|build| (Phase::Build, &build.egress));
        let exec = task.exec.as_ref().map(|exec| (Phase::Exec, &exec.egress));
        for (phase, egress) in build.into_iter().chain(exec) {
            if let Egress::Names(entries) = egress {
                let field = format!("plan.tasks[{n}].{}.egress", phase.as_str());
                found.push(FieldEntries { field, asked: PhaseEntries { phase, entries } });
            }
        }
    }
    found
}
