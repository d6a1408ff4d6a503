//! The graph of a recipe's tasks: who waits for whom.
//!
//! ```text
//! needs, when.task, ${tasks.X..}, each, task://X/.. --> edges between entries of the recipe --Kahn--> levels | GraphFault
//! ```
//! Edges are of entries, which a fan-out does not multiply. Nothing here calls itself: a chain is as deep as a recipe is long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::GroupName;
use crate::late::references;
use crate::recipe::pipeline::{MAX_NEEDS, task_uri};
use crate::recipe::{Recipe, TaskSpec};
use crate::start_spec::StartSpec;

/// Names of a circle that its error shows: its begin and its end.
const SHOWN_NAMES: usize = 8;

/// Why the tasks of a recipe are no graph. Each begins with the field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphFault {
    /// A task that the recipe does not have.
    #[error(
        "{at}: no task has the id {name:?}; write the `id` of a task, or its name where that is such a word"
    )]
    Unknown {
        /// The field that says so.
        at: String,
        /// What it says.
        name: String,
    },
    /// A task that waits for itself.
    #[error("{at}: the task cannot wait for itself")]
    Own {
        /// The field that says so.
        at: String,
    },
    /// Tasks that wait for each other.
    #[error("{at}: the tasks wait for each other: {}", shown(.path))]
    Cycle {
        /// The field of the first of them.
        at: String,
        /// The circle; the first name again at its end.
        path: Vec<GroupName>,
    },
    /// Two tasks of one id.
    #[error("{at}: two tasks have the id {name:?}; give one of them an `id` of its own")]
    Twice {
        /// The field of the second.
        at: String,
        /// The id that both have.
        name: String,
    },
    /// Anything else that a task says of another.
    #[error("{at}: {why}")]
    Invalid {
        /// The field that says so.
        at: String,
        /// What is wrong.
        why: String,
    },
}

fn shown(path: &[GroupName]) -> String {
    let names: Vec<&str> = path.iter().map(GroupName::as_str).collect();
    let half = SHOWN_NAMES / 2;
    match (names.get(..half), names.get(names.len().saturating_sub(half)..)) {
        (Some(begin), Some(end)) if names.len() > SHOWN_NAMES => {
            format!(
                "{} -> ({} more) -> {}",
                begin.join(" -> "),
                names.len() - SHOWN_NAMES,
                end.join(" -> ")
            )
        }
        _ => names.join(" -> "),
    }
}

/// A task that another one waits for, and the field that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The task's id.
    pub name: GroupName,
    /// The field, within the task that waits.
    pub at: String,
    /// What it takes besides the end.
    pub kind: NeedKind,
}

/// What one task takes of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedKind {
    /// Its end, however it comes.
    End,
    /// One of its outputs.
    Output,
    /// Files among its artifacts.
    Files,
}

/// Everything that a task waits for, as its fields say.
///
/// # Errors
/// A field that names no output or no files.
pub fn needs_of(task: &TaskSpec) -> Result<Vec<Need>, String> {
    let mut needs = Vec::new();
    let mut add = |name: GroupName, at: String, kind| needs.push(Need { name, at, kind });
    for (i, name) in task.needs.iter().enumerate() {
        add(name.clone(), format!("needs[{i}]"), NeedKind::End);
    }
    if let Some(StartSpec::Condition(fields)) = &task.when {
        for (at, leaf) in fields.leaves()? {
            if let Some(name) = &leaf.task {
                add(name.clone(), format!("{at}.task"), NeedKind::End);
            }
            for of in references(leaf.value.as_deref().unwrap_or_default())? {
                add(of.task, format!("{at}.value"), NeedKind::Output);
            }
        }
    }
    if let Some(of) = task.late_each() {
        add(of.task, "each".to_owned(), NeedKind::Output);
    }
    for text in task.texts() {
        for of in references(text.text).map_err(|why| format!("{}: {why}", text.field))? {
            add(of.task, text.field.clone(), NeedKind::Output);
        }
    }
    for (i, file) in task.files.iter().enumerate() {
        if let Some((name, _)) = file.from.as_deref().map(task_uri).transpose()?.flatten() {
            add(name, format!("files[{i}].from"), NeedKind::Files);
        }
    }
    Ok(needs)
}

/// An entry of a graph that is looked at: its name and what it waits for.
#[derive(Debug, Clone)]
pub struct GraphEntry {
    /// Its id, by which others name it.
    pub name: GroupName,
    /// What it waits for, and where the recipe says so, in full.
    pub needs: Vec<Need>,
}

/// Entries in an order in which each stands behind what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskGraph {
    /// Places in the recipe.
    pub order: Vec<usize>,
    /// Of each entry, by its place in the recipe: how many others stand one behind the other before it.
    pub levels: Vec<usize>,
    /// Looks at an entry or an edge that this took.
    pub steps: usize,
}

/// Checks what a recipe's tasks say of each other.
///
/// # Errors
/// [`GraphFault`], by the field.
pub fn check(recipe: &Recipe) -> Result<(), GraphFault> {
    if recipe.pipeline_field().is_none() {
        return Ok(());
    }
    if recipe.plan.agent.is_some() {
        let why = "a task that an agent's build is tested by waits for no other; remove its pipeline fields";
        return Err(GraphFault::Invalid { at: "plan.agent".to_owned(), why: why.to_owned() });
    }
    let mut entries = Vec::new();
    for (i, (task, name)) in recipe.plan.tasks.iter().zip(recipe.group_names()).enumerate() {
        let at = format!("plan.tasks[{i}]");
        let invalid =
            |field: &str, why: String| GraphFault::Invalid { at: format!("{at}{field}"), why };
        let mut needs = needs_of(task).map_err(|why| invalid("", why))?;
        let distinct: BTreeSet<&GroupName> = needs.iter().map(|need| &need.name).collect();
        if distinct.len() > MAX_NEEDS {
            return Err(invalid(".needs", format!("a task waits for at most {MAX_NEEDS} others")));
        }
        needs.iter_mut().for_each(|need| need.at = format!("{at}.{}", need.at));
        entries.push(GraphEntry { name, needs });
    }
    TaskGraph::of(&entries)?;
    outputs_exist(recipe, &entries)
}

/// Who takes an output needs a task that writes some, and one that there is once.
fn outputs_exist(recipe: &Recipe, entries: &[GraphEntry]) -> Result<(), GraphFault> {
    let by_name: BTreeMap<&GroupName, &TaskSpec> =
        entries.iter().map(|entry| &entry.name).zip(&recipe.plan.tasks).collect();
    for need in entries.iter().flat_map(|entry| &entry.needs) {
        let Some(task) = by_name.get(&need.name) else { continue };
        let why = match need.kind {
            NeedKind::Output if task.outputs.is_none() => {
                "has no outputs; give it `outputs: out.env`"
            }
            NeedKind::Output if task.each.is_some() || task.matrix.is_some() => {
                "fans out, and each of its tasks has outputs of its own; take its files instead"
            }
            NeedKind::Files
                if task.artifacts.is_empty() && task.reports.is_empty() && task.value.is_none() =>
            {
                "keeps no files; give it `artifacts`"
            }
            _ => continue,
        };
        let why = format!("task {:?} {why}", need.name.as_str());
        return Err(GraphFault::Invalid { at: need.at.clone(), why });
    }
    Ok(())
}

impl TaskGraph {
    /// Orders entries.
    ///
    /// # Errors
    /// A name that two entries have or none, or entries that wait for each other.
    pub fn of(entries: &[GraphEntry]) -> Result<Self, GraphFault> {
        let mut index: BTreeMap<&GroupName, usize> = BTreeMap::new();
        for (i, entry) in entries.iter().enumerate() {
            if index.insert(&entry.name, i).is_some() {
                let (at, name) = (format!("plan.tasks[{i}]"), entry.name.to_string());
                return Err(GraphFault::Twice { at, name });
            }
        }
        let mut steps = entries.len();
        // By entry: whom it waits for, once each, and who waits for it.
        let mut needs: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); entries.len()];
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); entries.len()];
        for ((i, entry), of) in entries.iter().enumerate().zip(&mut needs) {
            for need in &entry.needs {
                steps += 1;
                let Some(&other) = index.get(&need.name) else {
                    let (at, name) = (need.at.clone(), need.name.to_string());
                    return Err(GraphFault::Unknown { at, name });
                };
                if other == i {
                    return Err(GraphFault::Own { at: need.at.clone() });
                }
                if of.insert(other)
                    && let Some(dependents) = dependents.get_mut(other)
                {
                    dependents.push(i);
                }
            }
        }
        let mut open: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
        let mut levels = vec![0; entries.len()];
        let ready = open.iter().enumerate().filter(|(_, n)| **n == 0);
        let mut ready: VecDeque<usize> = ready.map(|(i, _)| i).collect();
        let mut order = Vec::with_capacity(entries.len());
        while let Some(done) = ready.pop_front() {
            order.push(done);
            let behind = levels.get(done).copied().unwrap_or(0) + 1;
            for &next in dependents.get(done).into_iter().flatten() {
                steps += 1;
                let (Some(left), Some(level)) = (open.get_mut(next), levels.get_mut(next)) else {
                    continue;
                };
                *left -= 1;
                *level = behind.max(*level);
                if *left == 0 {
                    ready.push_back(next);
                }
            }
        }
        match order.len() == entries.len() {
            true => Ok(Self { order, levels, steps }),
            false => Err(cycle(entries, &needs, &open)),
        }
    }
}

/// A circle among the entries that wait for ever: whoever of them is followed to what it waits for comes back.
fn cycle(entries: &[GraphEntry], needs: &[BTreeSet<usize>], open: &[usize]) -> GraphFault {
    let waits = |i: &usize| open.get(*i).is_some_and(|left| *left > 0);
    let mut at = (0..entries.len()).find(waits).unwrap_or(0);
    let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
    let mut path: Vec<usize> = Vec::new();
    while !seen.contains_key(&at) {
        seen.insert(at, path.len());
        path.push(at);
        // What is left over waits for another that is left over.
        let next = needs.get(at).into_iter().flatten().copied().find(waits);
        at = next.unwrap_or(at);
    }
    let begin = seen.get(&at).copied().unwrap_or(0);
    let mut circle: Vec<usize> = path.get(begin..).unwrap_or_default().to_vec();
    circle.push(at);
    let names: Vec<GroupName> =
        circle.iter().filter_map(|i| entries.get(*i)).map(|entry| entry.name.clone()).collect();
    let first = entries.get(at).and_then(|entry| {
        let next = names.get(1)?;
        entry.needs.iter().find(|need| need.name == *next)
    });
    let at = first.map_or_else(|| "plan.tasks".to_owned(), |need| need.at.clone());
    GraphFault::Cycle { at, path: names }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(i: usize, needs: &[usize]) -> GraphEntry {
        let name = |i: usize| GroupName::parse(&format!("t{i}")).unwrap();
        let need = |(j, n): (usize, &usize)| Need {
            name: name(*n),
            at: format!("plan.tasks[{i}].needs[{j}]"),
            kind: NeedKind::End,
        };
        GraphEntry { name: name(i), needs: needs.iter().enumerate().map(need).collect() }
    }

    #[test]
    fn levels_are_by_the_longest_way() {
        let all =
            [entry(0, &[1, 2]), entry(1, &[3]), entry(2, &[3, 1]), entry(3, &[]), entry(4, &[])];
        let graph = TaskGraph::of(&all).unwrap();
        assert_eq!(graph.levels, [3, 1, 2, 0, 0]);
        assert_eq!(graph.order, [3, 4, 1, 2, 0]);
    }

    #[test]
    fn ten_thousand_tasks_take_a_step_for_each_edge() {
        let chain: Vec<_> =
            (0..10_000).map(|i| if i == 0 { entry(0, &[]) } else { entry(i, &[i - 1]) }).collect();
        let graph = TaskGraph::of(&chain).unwrap();
        assert_eq!(graph.levels[9_999], 9_999);
        assert_eq!(graph.steps, 10_000 + 2 * 9_999);
        let wide: Vec<_> =
            (0..10_000).map(|i| entry(i, &(i.saturating_sub(64)..i).collect::<Vec<_>>())).collect();
        let edges: usize = wide.iter().map(|one| one.needs.len()).sum();
        assert_eq!(TaskGraph::of(&wide).unwrap().steps, 10_000 + 2 * edges);
    }

    #[test]
    fn a_circle_of_a_thousand_is_named_by_its_begin_and_end() {
        let circle: Vec<_> = (0..1_000).map(|i| entry(i, &[(i + 1) % 1_000])).collect();
        let fault = TaskGraph::of(&circle).unwrap_err();
        let GraphFault::Cycle { at, path } = &fault else { panic!("{fault}") };
        assert_eq!((at.as_str(), path.len()), ("plan.tasks[0].needs[0]", 1_001));
        assert_eq!(path.first(), path.last());
        assert_eq!(
            fault.to_string(),
            "plan.tasks[0].needs[0]: the tasks wait for each other: t0 -> t1 -> t2 -> t3 -> (993 more) -> t997 -> t998 -> t999 -> t0"
        );
        // Behind a task that is free, and with one that only waits for the circle.
        let all =
            [entry(0, &[]), entry(1, &[0, 3]), entry(2, &[1]), entry(3, &[2]), entry(4, &[3])];
        let fault = TaskGraph::of(&all).unwrap_err().to_string();
        assert_eq!(
            fault,
            "plan.tasks[1].needs[1]: the tasks wait for each other: t1 -> t3 -> t2 -> t1"
        );
    }

    #[test]
    fn a_task_waits_for_at_most_so_many_others() {
        let recipe = |count: usize| {
            let all = (0..count).map(|i| format!("    - {{name: t{i}, value: x}}\n"));
            let needs: Vec<String> = (0..count).map(|i| format!("t{i}")).collect();
            let tasks: String = all.collect();
            let last = format!("    - {{name: last, value: x, needs: [{}]}}\n", needs.join(", "));
            Recipe::from_yaml("n.yaml", &format!("id: n\nv: '1'\nplan:\n  tasks:\n{tasks}{last}"))
        };
        assert!(recipe(MAX_NEEDS).is_ok());
        let error = recipe(MAX_NEEDS + 1).unwrap_err().message;
        assert!(
            error.contains("plan.tasks[65].needs: a task waits for at most 64 others"),
            "{error}"
        );
    }

    #[test]
    fn unknown_own_and_double_names_are_refused_by_their_field() {
        let said = |all: &[GraphEntry]| TaskGraph::of(all).unwrap_err().to_string();
        assert!(
            said(&[entry(0, &[7])])
                .starts_with("plan.tasks[0].needs[0]: no task has the id \"t7\"")
        );
        assert!(
            said(&[entry(0, &[0])])
                .starts_with("plan.tasks[0].needs[0]: the task cannot wait for itself")
        );
        assert!(
            said(&[entry(0, &[]), entry(0, &[])])
                .starts_with("plan.tasks[1]: two tasks have the id \"t0\"")
        );
    }
}
