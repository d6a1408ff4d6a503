//! Late values go into a plan's tasks: outputs into their texts, items into the tasks of a late fan-out. Pure, and once.

use serde_json::Value;

use super::render::is_task_name;
use crate::late::{
    FanoutItem, LateFault, LateField, LatePart, OutputValues, shown, text, with_item,
};
use crate::pipeline::LateFanout;
use crate::work::{PlanTask, Work};

/// Why a late fan-out has no tasks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FanoutFault {
    /// A value of an item does not fit.
    #[error("item {index}: {fault}")]
    Item {
        /// The item's number, from 0.
        index: usize,
        /// What is wrong.
        #[source]
        fault: LateFault,
    },
    /// A name that no task can have.
    #[error("item {0}: its task's name must be 1 to 128 characters without control characters")]
    Name(usize),
}

/// The work with every late text written.
///
/// # Errors
/// An output that is not there, or a text beyond its bound.
pub fn filled(work: &Work, fields: &[LateField], values: &OutputValues) -> Result<Work, LateFault> {
    let written = fields.iter().map(|field| Ok((field.at.as_str(), text(&field.parts, values)?)));
    with_texts(work, written)
}

/// The work as a reader sees it: late texts as the recipe writes them.
#[must_use]
pub fn readable(work: &Work, fields: &[LateField]) -> Work {
    let written = fields.iter().map(|field| Ok((field.at.as_str(), shown(&field.parts))));
    with_texts(work, written).unwrap_or_else(|_| work.clone())
}

fn with_texts<'f>(
    work: &Work,
    texts: impl ExactSizeIterator<Item = Result<(&'f str, String), LateFault>>,
) -> Result<Work, LateFault> {
    if texts.len() == 0 {
        return Ok(work.clone());
    }
    let no_text = |at: &str| LateFault::NoText(at.to_owned());
    let mut tree = serde_json::to_value(work).map_err(|_| no_text(""))?;
    for written in texts {
        let (at, text) = written?;
        match tree.pointer_mut(at) {
            Some(Value::String(found)) => *found = text,
            _ => return Err(no_text(at)),
        }
    }
    serde_json::from_value(tree).map_err(|_| no_text(""))
}

/// The tasks of a late fan-out, one for each item. What else is late in them stays so.
///
/// # Errors
/// An item that its texts do not fit.
pub fn expanded(fanout: &LateFanout, items: &[Value]) -> Result<Vec<PlanTask>, FanoutFault> {
    let count = items.len();
    let one = |(index, value): (usize, &Value)| {
        let item = FanoutItem { value, index, count };
        member(fanout, item).map_err(|fault| FanoutFault::Item { index, fault }).and_then(|task| {
            if is_task_name(&task.name) { Ok(task) } else { Err(FanoutFault::Name(index)) }
        })
    };
    items.iter().enumerate().map(one).collect()
}

fn member(fanout: &LateFanout, item: FanoutItem<'_>) -> Result<PlanTask, LateFault> {
    let none = OutputValues::new();
    let name = text(&with_item(&fanout.name, item)?, &none)?;
    let (mut known, mut late) = (Vec::new(), Vec::new());
    for LateField { at, parts } in &fanout.task.late {
        let field = LateField { at: at.clone(), parts: with_item(parts, item)? };
        let is_late = field.parts.iter().any(|part| matches!(part, LatePart::Output(_)));
        if is_late { late.push(field) } else { known.push(field) }
    }
    let work = filled(&fanout.task.work, &known, &none)?;
    let (group, files) = (fanout.task.group.clone(), fanout.task.files.clone());
    Ok(PlanTask { name, work, group, late, files })
}
