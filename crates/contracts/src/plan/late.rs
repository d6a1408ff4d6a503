//! Late values go into a plan's tasks: outputs into their texts, items into the tasks of a late fan-out. Pure, and once.

use serde_json::Value;

use super::render::is_task_name;
use crate::late::{
    FanoutItem, LateFault, LateField, LatePart, MAX_LATE_BYTES, OutputValues, shown, text,
    with_item,
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
    /// The tasks would have too many bytes.
    #[error(
        "its tasks would have more than {} MiB; hand large texts over as files",
        MAX_LATE_BYTES / (1024 * 1024)
    )]
    TooLarge,
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
    let work = with_texts(work, written)?;
    no_options(&work, fields)?;
    Ok(work)
}

/// Nobody has seen an output: it is never read as an option where the recipe writes an argument. A number is none.
fn no_options(work: &Work, fields: &[LateField]) -> Result<(), LateFault> {
    let Some(request) = work.request() else { return Ok(()) };
    let lists = [
        ("/sandbox/cmd/", Some(&request.cmd)),
        ("/sandbox/build/cmd/", request.build.as_ref().map(|build| &build.cmd)),
    ];
    for (list, cmd) in lists {
        let Some(cmd) = cmd else { continue };
        for field in fields {
            let index = field.at.strip_prefix(list).and_then(|index| index.parse::<usize>().ok());
            let Some((index, argument)) = index.and_then(|at| Some((at, cmd.get(at)?))) else {
                continue;
            };
            let is_begun =
                matches!(field.parts.first(), Some(LatePart::Text(text)) if !text.is_empty());
            let is_after = cmd.iter().take(index).any(|before| before == "--");
            if !is_begun
                && !is_after
                && argument.starts_with('-')
                && argument.parse::<f64>().is_err()
            {
                return Err(LateFault::Option(index));
            }
        }
    }
    Ok(())
}

/// Bytes of a work as it is stored.
#[must_use]
pub fn size(work: &Work) -> usize {
    serde_json::to_vec(work).map_or(usize::MAX, |bytes| bytes.len())
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

/// The tasks of a late fan-out, one for each item. What else is late in them stays so. `left`: bytes that they may have together;
/// what they have is taken from it.
///
/// # Errors
/// An item that its texts do not fit, or too many bytes.
pub fn expanded(
    fanout: &LateFanout,
    items: &[Value],
    left: &mut usize,
) -> Result<Vec<PlanTask>, FanoutFault> {
    let count = items.len();
    let one = |(index, value): (usize, &Value)| {
        let item = FanoutItem { value, index, count };
        member(fanout, item).map_err(|fault| FanoutFault::Item { index, fault }).and_then(|task| {
            let bytes = size(&task.work).saturating_add(task.name.len());
            *left = left.checked_sub(bytes).ok_or(FanoutFault::TooLarge)?;
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
