//! The graph of a plan: what a group of tasks waits for, and what it does when they end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gate_spec::GateSpec;
use crate::id::GroupName;
use crate::late::{LatePart, OutputRef};
use crate::retry_spec::RetrySpec;
use crate::start_condition::StartCondition;
use crate::work::PlanTask;

/// Tasks whose files one task is given: a request names each of them.
pub const MAX_FILE_SOURCES: usize = 1_000;

/// Which tasks wait for which. Its edges are of groups: a fan-out of 10,000 tasks has those of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanGraph {
    /// Whether the first task that fails ends the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
    /// One group for each task of the recipe, in its order.
    pub groups: Vec<PlanGroup>,
}

/// Tasks of one entry of a recipe.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanGroup {
    /// Its name, unique in the plan.
    pub name: GroupName,
    /// Groups that end before its tasks start: those that its recipe needs, and those whose values or files it uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<GroupName>,
    /// When its tasks start. Absent: once all needs succeeded.
    pub when: Option<StartCondition>,
    /// The gate that opens then: its tasks start after a yes. Absent: at once.
    pub gate: Option<GateSpec>,
    /// How often each of its tasks is tried. Absent: faults of the host, twice more.
    pub retry: Option<RetrySpec>,
    /// Whether it has as many tasks as a list or a matrix says. Their files lie apart where others are given them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fans_out: bool,
    /// File of its task's outputs, relative to the working directory.
    pub outputs: Option<String>,
    /// Its tasks, where an output says how many there are: none of them is among the plan's tasks.
    pub fanout: Option<Box<LateFanout>>,
}

/// Tasks that are made from an earlier task's output while the run executes. `caps.steps` bounds how many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LateFanout {
    /// A list: one task for each of its items.
    pub over: OutputRef,
    /// Parts of each task's name.
    pub name: Vec<LatePart>,
    /// The task, with the item among its late texts. Its name is the recipe's text.
    pub task: PlanTask,
}
