//! What happens to a graph, and what it asks for.

use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::{GateKey, GroupName};
use cofferdam_contracts::late::LateFault;
use cofferdam_contracts::plan::{PlanTask, Work};
use cofferdam_contracts::retry_spec::AttemptEnd;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::start_spec::GroupOutcome;
use cofferdam_contracts::task_outputs::TaskOutputs;
use serde::{Deserialize, Serialize};

use crate::decide::BudgetExcess;

/// The end of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskEnd {
    /// The task: its place among the plan's tasks and those of [`GraphAction::Expand`].
    pub index: usize,
    /// Which attempt, as it was started.
    pub attempt: u32,
    /// How it ended.
    pub end: AttemptEnd,
    /// Why, in words.
    pub cause: Option<String>,
    /// What its outputs file says, where it succeeded and has one. It is on record with the attempt.
    #[serde(skip)]
    pub outputs: Option<TaskOutputs>,
}

/// What happened to a graph or one of its tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GraphEvent {
    /// The run executes. Before any other, once.
    Begin,
    /// An attempt ended. One that is not running is ignored: a replay may hear of it again.
    Ended(TaskEnd),
    /// A canceled attempt is asked for again by a resume of the run; no retry is spent.
    Resumed {
        /// The task, by its index.
        index: usize,
        /// The canceled attempt.
        attempt: u32,
    },
    /// The pause before a task's next attempt is over.
    BackoffOver {
        /// The task, by its index.
        index: usize,
    },
    /// The gate of a group was answered. One that is not awaited is ignored.
    Answered {
        /// The group that waits.
        group: GroupName,
        /// The gate's key.
        gate: GateKey,
        /// What was decided.
        choice: Choice,
        /// Whether its deadline decided.
        is_silence: bool,
    },
    /// A budget is reached.
    Blocked(BudgetExcess),
    /// The run is canceled: nothing more of it starts, `when: always` included.
    Canceled,
}

/// Why a task does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// Its `when` does not hold, or a need did not succeed.
    Condition,
    /// Another task failed, and the recipe says `fail_fast`.
    FailFast,
    /// A budget is reached.
    Budget,
    /// Its gate was not answered yes, in words: the group counts as failed.
    Gate(String),
    /// A value that it needs is not there: it counts as failed.
    Late(LateFault),
    /// Its group's tasks cannot be made, in words: the group counts as failed.
    Fanout(String),
}

/// A group whose tasks have all ended or are skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupEnd {
    /// Its name in the plan.
    pub name: GroupName,
    /// How it ended.
    pub outcome: GroupOutcome,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum GraphAction {
    /// Queue an attempt.
    Start {
        /// The task, by its index.
        index: usize,
        /// Which attempt, from 1.
        attempt: u32,
        /// Its work with the outputs of others; `None`: as it is in the plan.
        work: Option<Box<Work>>,
    },
    /// Say [`GraphEvent::BackoffOver`] after a pause.
    Wait {
        /// The task, by its index.
        index: usize,
        /// The pause in ms.
        backoff_ms: u64,
    },
    /// Open the gate of a group, and say [`GraphEvent::Answered`].
    Ask {
        /// Its name in the plan.
        group: GroupName,
    },
    /// Close a gate that was asked for: no answer is awaited any more.
    Withdraw {
        /// Its group's name in the plan.
        group: GroupName,
    },
    /// Record that tasks do not start.
    Skip {
        /// Their group, in a plan with a graph.
        group: Option<GroupName>,
        /// The tasks; none where the group's were never made.
        tasks: Vec<usize>,
        /// Why they do not.
        why: SkipReason,
    },
    /// Cancel a running attempt. Its end is waited for.
    Cancel {
        /// The task, by its index.
        index: usize,
    },
    /// Record tasks that an output made.
    Expand {
        /// The group that they belong to.
        group: GroupName,
        /// Index of the first.
        first: usize,
        /// The tasks, in their order.
        tasks: Vec<PlanTask>,
    },
    /// The run is over. The last action.
    Finish {
        /// The status that the run ends with.
        status: RunStatus,
        /// Why it did not succeed.
        error: Option<String>,
    },
}
