//! Graphs of runs: what happened to one in which order, the ends of its groups, and the attempts that follow, in one statement.
//!
//! ```text
//! graph_record --events, attempts--> the executor rebuilds its state          (a replay, a retry)
//! graph_advance <--events, skips, ends of groups, attempts to queue--         (each time that something ended)
//! ```
//! **No task of a group starts before the end of each group that it needs is on record**: a trigger on `app.sbx_executions` holds it.

use cofferdam_contracts::id::{GroupName, RunId, StepId, TaskKey};
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_contracts::start_spec::GroupOutcome;
use cofferdam_contracts::task_outputs::TaskOutputs;
use serde::Serialize;
use serde_json::Value;
use sqlx::Row;

use crate::error::{Result, id, json, load};
use crate::families::Tasks;
use crate::graph_gates::{NewStartAnswer, NewStartGate};
use crate::rounds::{kept, round_query};
use crate::tasks::TaskBatch;

/// A task group of the plan.
#[derive(Debug, Clone, Serialize)]
pub struct NewGroup<'a> {
    /// Its name in the plan.
    pub name: &'a GroupName,
    /// Groups that end before its tasks start.
    pub needs: &'a [GroupName],
    /// Whether an output says which tasks it has.
    pub is_late: bool,
    /// Whether its tasks start after a yes.
    pub is_gated: bool,
}

/// A task of a group.
#[derive(Debug, Clone, Serialize)]
pub struct NewMember {
    /// The step of its attempts.
    pub step_id: StepId,
    /// The group that it belongs to.
    pub group_name: GroupName,
    /// Its name in the plan, for readers.
    pub name: String,
}

/// Something that happened to the graph.
#[derive(Debug, Clone, Serialize)]
pub struct NewGraphEvent {
    /// Its place among those of this life, from 0.
    pub seq: u32,
    /// What happened, as the executor reads it again.
    pub event: Value,
}

/// A task that this life does not start.
#[derive(Debug, Clone, Serialize)]
pub struct NewSkip {
    /// The step of its attempts.
    pub step_id: StepId,
    /// `condition`, `fail_fast`, `budget`, `late` or `gate`.
    pub reason: &'static str,
    /// More, in words.
    pub detail: Option<String>,
}

/// A group whose tasks are over.
#[derive(Debug, Clone, Serialize)]
pub struct NewGroupEnd {
    /// Its name in the plan.
    pub name: GroupName,
    /// How it ended.
    pub outcome: GroupOutcome,
    /// Why none of its tasks was made, in words.
    pub detail: Option<String>,
}

/// What happened to a run's graph, and what follows.
#[derive(Debug, Clone, Default)]
pub struct GraphAdvance<'a> {
    /// The life of the run: how often it was retried.
    pub life: u32,
    /// The groups, with the first event of a life.
    pub groups: Vec<NewGroup<'a>>,
    /// Tasks that are known now.
    pub members: Vec<NewMember>,
    /// The events, in their order.
    pub events: Vec<NewGraphEvent>,
    /// Tasks that do not start.
    pub skips: Vec<NewSkip>,
    /// Groups that are over.
    pub ends: Vec<NewGroupEnd>,
    /// Gates to be opened, but for those with a yes of an earlier life to the same.
    pub gates: Vec<NewStartGate<'a>>,
    /// Answers of gates that were opened before.
    pub answers: Vec<NewStartAnswer>,
    /// Whether the run waits for people alone; `None`: its plan has no such gate.
    pub waits: Option<bool>,
}

/// An attempt that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRecord {
    /// The step of its attempts.
    pub step_id: StepId,
    /// Its number, from 1.
    pub attempt: u32,
    /// Its key, and the id of its workflow.
    pub key: TaskKey,
    /// How it ended.
    pub err_code: ErrCode,
    /// Its outputs, where it has some.
    pub outputs: Option<TaskOutputs>,
    /// Whether it is of an earlier life of the run.
    pub is_earlier: bool,
}

/// What became of an advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdvanceOutcome {
    /// It is on record. The attempts that are over already: their ends came along, and count.
    Down(Vec<TaskKey>),
    /// The run was canceled before; nothing was written.
    Canceled,
    /// Another execution of the run took another event before; nothing was written.
    Lost,
}

/// An event that is on record.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphEventRow {
    /// What happened, as it was written.
    pub event: Value,
    /// When it was taken, ms since the epoch.
    pub at_ms: i64,
}

/// What is on record of a run's graph.
#[derive(Debug, Clone, Default)]
pub struct GraphRecord {
    /// The events of this life, in their order.
    pub events: Vec<GraphEventRow>,
    /// Attempts that have ended, by step and number.
    pub attempts: Vec<AttemptRecord>,
}

/// An attempt belongs to the life in which it was queued: `$2`, how often the run was retried by then.
const ATTEMPTS: &str = "SELECT s.step_id, s.attempt, s.task_key, s.err_code, s.response->'outputs' AS outputs,
            s.created_at < coalesce((SELECT t.created_at FROM app.run_retries t WHERE t.run_id = $1 AND t.n = $2),
                                    '-infinity') AS earlier
       FROM app.sbx_runs s
      WHERE s.run_id = $1 AND s.response IS NOT NULL
      ORDER BY s.step_id, s.attempt";

impl Tasks<'_> {
    /// What is on record of a run's graph in this life, and of its attempts in all of them.
    pub async fn graph_record(self, run: &RunId, life: u32) -> Result<GraphRecord> {
        let life = i32::try_from(life).unwrap_or(i32::MAX);
        let rows = sqlx::query(
            "SELECT event, app.ms(created_at) AS at FROM app.graph_events
              WHERE run_id = $1 AND life = $2 ORDER BY seq",
        )
        .bind(run.as_str())
        .bind(life)
        .fetch_all(self.pool())
        .await?;
        let events = rows.iter().map(|row| {
            Ok(GraphEventRow { event: row.try_get("event")?, at_ms: row.try_get("at")? })
        });
        let events = events.collect::<Result<_>>()?;
        let rows =
            sqlx::query(ATTEMPTS).bind(run.as_str()).bind(life).fetch_all(self.pool()).await?;
        let attempts = rows.iter().map(|row| {
            let outputs: Option<Value> = row.try_get("outputs")?;
            Ok(AttemptRecord {
                step_id: id("sbx_runs.step_id", row.try_get("step_id")?)?,
                attempt: u32::try_from(row.try_get::<i32, _>("attempt")?).unwrap_or(1),
                key: id("sbx_runs.task_key", row.try_get("task_key")?)?,
                err_code: load("sbx_runs.err_code", Value::String(row.try_get("err_code")?))?,
                outputs: outputs.map(|value| load("sbx_runs.response", value)).transpose()?,
                is_earlier: row.try_get("earlier")?,
            })
        });
        Ok(GraphRecord { events, attempts: attempts.collect::<Result<_>>()? })
    }

    /// Takes down what happened and queues the attempts that follow, together; a replay writes nothing.
    pub async fn graph_advance(
        self,
        advance: &GraphAdvance<'_>,
        wave: &TaskBatch<'_>,
    ) -> Result<AdvanceOutcome> {
        // A cancel comes before it, or sees its tasks; so does another execution. The graph's rows come before the attempts, whose
        // starts ask for them.
        let query = "SELECT g.state, CASE WHEN g.state = 'down'
                                  THEN app.round_enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) END AS kept
               FROM (SELECT CASE WHEN r.status = 'canceled' THEN 'canceled'
                                 ELSE app.graph_advance($1, $12, $13, $14, $15, $16, $17, $18, $19, $20) END AS state
                       FROM (SELECT status FROM app.runs WHERE id = $1 FOR NO KEY UPDATE) r OFFSET 0) g";
        let row = round_query(query, wave)?
            .bind(i32::try_from(advance.life).unwrap_or(i32::MAX))
            .bind(json("graph_groups", &advance.groups)?)
            .bind(json("graph_tasks", &advance.members)?)
            .bind(json("graph_events", &advance.events)?)
            .bind(json("graph_skips", &advance.skips)?)
            .bind(json("graph_ends", &advance.ends)?)
            .bind(json("graph_gates", &advance.gates)?)
            .bind(json("graph_answers", &advance.answers)?)
            .bind(advance.waits)
            .fetch_one(self.pool())
            .await?;
        match row.try_get::<String, _>("state")?.as_str() {
            "canceled" => Ok(AdvanceOutcome::Canceled),
            "lost" => Ok(AdvanceOutcome::Lost),
            _ => Ok(AdvanceOutcome::Down(kept(&row)?)),
        }
    }
}
