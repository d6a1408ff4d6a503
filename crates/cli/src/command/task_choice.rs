//! Which tasks of a run a person means: by name, by the beginning of a name, or those that failed.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contracts::id::{StepId, TaskKey};
use cofferdam_contracts::plan::step_name;
use cofferdam_contracts::step::{StepRow, StepStatus};

use super::exit::Negative;

/// Names in an error: a run may have thousands.
const MAX_NAMES: usize = 20;

/// What a person asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskChoice {
    /// Names of tasks, or beginnings that one name alone has; empty: all of them.
    pub names: Vec<String>,
    /// Only those whose newest attempt failed.
    pub failures_only: bool,
}

/// An attempt of a task whose output there is to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogTask {
    pub key: TaskKey,
    pub name: String,
    /// Its number, where the task has several.
    pub attempt: Option<i32>,
}

/// What a choice came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TaskSelection {
    /// In the order of the run's steps, every attempt.
    pub tasks: Vec<LogTask>,
    /// The first name that no task has.
    pub unknown: Option<String>,
    /// Names that the run's tasks have, in order.
    names: BTreeSet<String>,
}

/// The newest attempt of each task, in the order of the steps. Pure.
pub(crate) fn newest_attempts(steps: &[StepRow]) -> Vec<&StepRow> {
    let mut newest: BTreeMap<&StepId, i32> = BTreeMap::new();
    let tasks = || steps.iter().filter(|step| step.is_task());
    for step in tasks() {
        let attempt = newest.entry(&step.step_id).or_insert(step.attempt);
        *attempt = step.attempt.max(*attempt);
    }
    tasks().filter(|step| newest.get(&step.step_id) == Some(&step.attempt)).collect()
}

impl TaskChoice {
    /// The attempts that are meant. Pure.
    ///
    /// # Errors
    /// A beginning that several names have.
    pub(crate) fn of(&self, steps: &[StepRow]) -> Result<TaskSelection, Negative> {
        let all: Vec<&StepRow> = match self.failures_only {
            false => steps.iter().collect(),
            true => {
                let newest = newest_attempts(steps).into_iter();
                newest.filter(|step| step.status == StepStatus::Failed).collect()
            }
        };
        let tasks = steps.iter().filter(|step| step.task_key.is_some());
        let names: BTreeSet<String> = tasks.map(|step| step.task_name().to_owned()).collect();
        let mut meant = BTreeSet::new();
        let mut unknown = None;
        for name in &self.names {
            match found(&names, name)? {
                Some(found) => {
                    meant.insert(found);
                }
                None => unknown = unknown.or_else(|| Some(name.clone())),
            }
        }
        let mut attempts: BTreeMap<&StepId, usize> = BTreeMap::new();
        for step in steps.iter().filter(|step| step.task_key.is_some()) {
            *attempts.entry(&step.step_id).or_default() += 1;
        }
        let is_meant = |name: &str| self.names.is_empty() || meant.contains(name);
        let task = |step: &&StepRow| {
            let (key, name) = (step.task_key.clone()?, step.task_name().to_owned());
            let has_several = attempts.get(&step.step_id).is_some_and(|count| *count > 1);
            let attempt = has_several.then_some(step.attempt);
            is_meant(&name).then_some(LogTask { key, name, attempt })
        };
        let tasks = all.iter().filter_map(task).collect();
        Ok(TaskSelection { tasks, unknown, names })
    }
}

impl TaskSelection {
    /// The tasks, where every name is one of a task.
    ///
    /// # Errors
    /// A name that no task has, with the names that there are.
    pub(crate) fn complete(self) -> Result<Vec<LogTask>, Negative> {
        match self.unknown {
            None => Ok(self.tasks),
            Some(_) if self.names.is_empty() => Err(Negative("the run has no task yet".to_owned())),
            Some(name) => {
                let names = listed(self.names.iter());
                Err(Negative(format!("no task is named {name:?}; the run's tasks: {names}")))
            }
        }
    }
}

/// The name that is meant: an exact one, or the only one with this beginning.
fn found<'a>(names: &'a BTreeSet<String>, name: &str) -> Result<Option<&'a str>, Negative> {
    // The ids of steps have `_` for a space and the like; files keep the name as the recipe has it.
    let name = &step_name(name);
    if let Some(exact) = names.get(name) {
        return Ok(Some(exact));
    }
    let longer: Vec<&String> = names.iter().filter(|one| one.starts_with(name)).collect();
    match longer.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only.as_str())),
        several => {
            let names = listed(several.iter().copied());
            Err(Negative(format!("several tasks begin with {name:?}: {names}")))
        }
    }
}

/// Names in a sentence, as many as it has space for.
fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let all: Vec<&str> = names.map(String::as_str).collect();
    let shown = all.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A step of a run for tests: an attempt of a task.
#[cfg(test)]
pub(crate) fn attempt(name: &str, attempt: i32, status: &str) -> StepRow {
    let key: String =
        format!("{name}{attempt}").bytes().map(|byte| format!("{byte:02x}")).collect();
    let id = format!("ExecuteST:{name}");
    let row = serde_json::json!({
        "stepId": id, "stepID": id, "name": name, "taskKey": format!("{key:0>64}"), "attempt": attempt,
        "status": status, "startedAt": null, "at": 5, "output": {}, "error": null, "artifactRefs": [],
    });
    serde_json::from_value(row).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<StepRow> {
        let attempts = [
            ("build", 1, "failed"),
            ("shard-1", 1, "ok"),
            ("shard-10", 1, "failed"),
            ("build", 2, "ok"),
        ];
        attempts.map(|(name, n, status)| attempt(name, n, status)).to_vec()
    }

    fn choice(names: &[&str], failures_only: bool) -> TaskChoice {
        TaskChoice { names: names.iter().map(|name| (*name).to_owned()).collect(), failures_only }
    }

    fn chosen(names: &[&str], failures_only: bool) -> Vec<String> {
        let tasks = choice(names, failures_only).of(&steps()).unwrap().complete().unwrap();
        tasks.into_iter().map(|task| task.name).collect()
    }

    #[test]
    fn a_name_is_exact_or_the_only_one_that_begins_so() {
        assert_eq!(chosen(&[], false), ["build", "shard-1", "shard-10", "build"]);
        assert_eq!(chosen(&["shard-1"], false), ["shard-1"], "exact before longer");
        assert_eq!(chosen(&["bu"], false), ["build", "build"], "every attempt");
        let all = choice(&[], false).of(&steps()).unwrap().tasks;
        let attempts: Vec<Option<i32>> = all.iter().map(|task| task.attempt).collect();
        assert_eq!(attempts, [Some(1), None, None, Some(2)], "of several each is marked");
        assert_eq!(
            chosen(&["shard-10", "b"], false),
            ["build", "shard-10", "build"],
            "their order"
        );
        let several = choice(&["shard"], false).of(&steps()).unwrap_err();
        assert_eq!(several.0, "several tasks begin with \"shard\": shard-1, shard-10");
    }

    #[test]
    fn an_unknown_name_is_said_with_the_names_that_there_are() {
        let selection = choice(&["b", "test"], false).of(&steps()).unwrap();
        assert_eq!((selection.tasks.len(), selection.unknown.as_deref()), (2, Some("test")));
        let why = selection.complete().unwrap_err().0;
        assert_eq!(why, "no task is named \"test\"; the run's tasks: build, shard-1, shard-10");
        let many: Vec<StepRow> = (0..30).map(|n| attempt(&format!("t{n:02}"), 1, "ok")).collect();
        let why = choice(&["x"], false).of(&many).unwrap().complete().unwrap_err().0;
        assert!(why.ends_with("t18, t19 and 10 more"), "{why}");
        let none = choice(&["x"], false).of(&[]).unwrap().complete().unwrap_err().0;
        assert_eq!(none, "the run has no task yet");
    }

    #[test]
    fn a_task_failed_where_its_newest_attempt_did() {
        assert_eq!(chosen(&[], true), ["shard-10"]);
        assert_eq!(chosen(&["build"], true), [""; 0], "its second attempt succeeded");
    }
}
