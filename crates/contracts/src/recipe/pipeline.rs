//! What makes a recipe a pipeline, and what its types cannot say of that.

use serde_json::Value;

use super::{Recipe, TaskSpec};
use crate::id::GroupName;
use crate::late::{OutputRef, reference, references};
use crate::start_spec::StartSpec;
use crate::task_outputs::OutputsKind;
use crate::template::{MAX_FANOUT, Piece, lone, pieces};

/// Tasks that one task may need: a fan-in of many is one task with `each`.
pub const MAX_NEEDS: usize = 64;
/// Axes of a matrix, and values of one of them.
const MAX_AXES: usize = 8;
/// Bytes of an outputs file's path.
const MAX_PATH_BYTES: usize = 256;

/// The task and the glob of `task://TASK/GLOB`; `None`: the text is another kind of source.
///
/// # Errors
/// A text of that scheme that names no task or no files, or leaves the task's directory.
pub fn task_uri(from: &str) -> Result<Option<(GroupName, &str)>, String> {
    let Some(rest) = from.strip_prefix("task://") else { return Ok(None) };
    let wrong = || {
        let shown: String = from.chars().take(200).collect();
        format!(
            "{shown:?} names no files of a task; write task://TASK/GLOB, such as task://build/dist/**"
        )
    };
    let (task, glob) = rest.split_once('/').ok_or_else(wrong)?;
    let task = GroupName::parse(task).map_err(|_| wrong())?;
    match glob.is_empty() || !is_below(glob) || glob.contains("${") {
        true => Err(wrong()),
        false => Ok(Some((task, glob))),
    }
}

/// Whether a relative path stays below its directory.
fn is_below(path: &str) -> bool {
    !path.starts_with('/') && path.split('/').all(|part| part != "..")
}

impl Recipe {
    /// Names of the task groups, in the order of the tasks: the id, else the name where it is such a word, else `task-N`.
    #[must_use]
    pub fn group_names(&self) -> Vec<GroupName> {
        let name = |(i, task): (usize, &TaskSpec)| {
            let own = task.id.clone().or_else(|| GroupName::parse(&task.name).ok());
            own.or_else(|| GroupName::parse(&format!("task-{}", i + 1)).ok())
        };
        self.plan.tasks.iter().enumerate().filter_map(name).collect()
    }

    /// The first field for which a run has to follow a graph; `None`: every task starts when the run does.
    #[must_use]
    pub fn pipeline_field(&self) -> Option<String> {
        if self.plan.fail_fast {
            return Some("plan.fail_fast".to_owned());
        }
        let of = |(i, task): (usize, &TaskSpec)| {
            task.pipeline_field().map(|field| format!("plan.tasks[{i}].{field}"))
        };
        self.plan.tasks.iter().enumerate().find_map(of)
    }
}

impl TaskSpec {
    fn pipeline_field(&self) -> Option<String> {
        let named = [
            (!self.needs.is_empty(), "needs"),
            (self.when.is_some(), "when"),
            (self.gate.is_some(), "gate"),
            (self.outputs.is_some(), "outputs"),
            (self.retry.is_some(), "retry"),
            (self.is_late_fanout(), "each"),
        ];
        if let Some((_, field)) = named.iter().find(|(is_there, _)| *is_there) {
            return Some((*field).to_owned());
        }
        let is_task = |from: &String| from.starts_with("task://");
        if let Some(i) = self.files.iter().position(|file| file.from.as_ref().is_some_and(is_task))
        {
            return Some(format!("files[{i}].from"));
        }
        let uses = |text: &str| references(text).map_or(true, |found| !found.is_empty());
        self.texts().into_iter().find(|text| uses(text.text)).map(|text| text.field)
    }

    /// The output that its `each` is, if it is one.
    #[must_use]
    pub fn late_each(&self) -> Option<OutputRef> {
        let Some(Value::String(text)) = &self.each else { return None };
        match lone(text) {
            Some(Ok(expr)) if expr.filter.is_none() => reference(expr.value).ok().flatten(),
            _ => None,
        }
    }

    /// Whether its tasks are made while the run executes.
    #[must_use]
    pub fn is_late_fanout(&self) -> bool {
        self.late_each().is_some()
    }

    /// What the types cannot say of it as a part of a pipeline; what it says of other tasks is [`crate::graph`]'s.
    pub(super) fn check_pipeline(&self) -> Result<(), String> {
        self.check_matrix()?;
        if let Some(retry) = &self.retry {
            retry.check()?;
        }
        if let Some(path) = &self.outputs {
            let is_fit = is_below(path) && path.len() <= MAX_PATH_BYTES && !path.contains("${");
            let is_fit = is_fit && !path.contains(['*', '?']);
            if OutputsKind::of(path).is_none() || !is_fit {
                return Err("outputs: must be a path, not a glob, below the working directory that ends in .env or .json".into());
            }
            if self.exec.is_none() {
                return Err("outputs: a task with `value` writes no file; remove `outputs`".into());
            }
            if self.each.is_some() || self.matrix.is_some() {
                return Err("outputs: a fan-out's cannot be named; keep artifacts, and give them to others by `files`".into());
            }
        }
        if let Some(StartSpec::Condition(fields)) = &self.when {
            fields.leaves()?;
        }
        for (i, file) in self.files.iter().enumerate() {
            let Some(from) = &file.from else { continue };
            if task_uri(from).map_err(|why| format!("files[{i}].from: {why}"))?.is_some()
                && file.to.contains("${")
            {
                return Err(format!("files[{i}].to: files of a task go to a written path"));
            }
        }
        if let Some(Value::String(text)) = &self.each
            && !self.is_late_fanout()
            && !references(text).map_err(|why| format!("each: {why}"))?.is_empty()
        {
            return Err("each: an output stands there alone: `${tasks.TASK.outputs.NAME}`".into());
        }
        self.check_late()
    }

    fn check_matrix(&self) -> Result<(), String> {
        let Some(matrix) = &self.matrix else { return Ok(()) };
        if self.each.is_some() {
            return Err("matrix: cannot be combined with `each`; remove one of them".into());
        }
        let is_axis = |name: &String| {
            !name.is_empty()
                && name.len() <= 64
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        };
        if matrix.is_empty() || matrix.len() > MAX_AXES || !matrix.keys().all(is_axis) {
            return Err(format!(
                "matrix: must name 1 to {MAX_AXES} lists, by letters, digits, _ and -"
            ));
        }
        let mut count = 1_usize;
        for (name, values) in matrix {
            if values.is_empty()
                || values
                    .iter()
                    .any(|value| value.is_array() || value.is_object() || value.is_null())
            {
                return Err(format!(
                    "matrix.{name}: must list texts, numbers or booleans, at least one"
                ));
            }
            count = count.saturating_mul(values.len());
        }
        match count > MAX_FANOUT {
            true => Err(format!("matrix: has {count} combinations, at most {MAX_FANOUT} may be")),
            false => Ok(()),
        }
    }

    /// Late values stand only where nobody consents to them by name.
    fn check_late(&self) -> Result<(), String> {
        let is_item_late = self.is_late_fanout();
        for text in self.texts() {
            let outputs = references(text.text).map_err(|why| format!("{}: {why}", text.field))?;
            if text.may_be_late {
                continue;
            }
            let has_item = is_item_late
                && text.field != "name"
                && pieces(text.text).any(|piece| match piece {
                    Ok(Piece::Expr(expr)) => {
                        let root = expr.value.split('.').next().unwrap_or_default();
                        ["item", "index", "count"].contains(&root.trim())
                    }
                    _ => false,
                });
            if !outputs.is_empty() || has_item {
                return Err(format!(
                    "{}: an output is known only when the task starts: use it in exec.run, exec.env, build.run, build.env, \
                     files.text or value",
                    text.field
                ));
            }
        }
        Ok(())
    }
}
