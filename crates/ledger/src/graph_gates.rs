//! Gates between the tasks of a graph: opened and closed with its events, answered as every gate, and looked at by the run's executor.
//!
//! ```text
//! graph_advance --app.graph_gates_open--> app.human_gates, app.graph_gates (what a yes binds), the prompt
//! reply | deadline --> the gate's state
//! start_answers: what was decided, reminders, the deadline by the database's clock
//! graph_advance --app.graph_gates_close--> app.graph_answers, the decision's events, resolved
//! ```
//! **No task of a group with a gate starts without a yes on record**: a trigger on `app.sbx_executions` holds it.

use cofferdam_contracts::gate::{Choice, choice_of};
use cofferdam_contracts::gate_spec::{GateSpec, MAX_REMINDERS};
use cofferdam_contracts::id::{GateKey, GroupId, GroupName, RunId, TaskKey};
use serde::Serialize;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{Result, id};
use crate::families::Gates;
use crate::gates::{Deadline, spec_of};

/// A gate before the tasks of a group.
#[derive(Debug, Clone, Serialize)]
pub struct NewStartGate<'a> {
    /// Task group that waits.
    pub group_name: &'a GroupName,
    /// Key of its first round.
    pub key: &'a GateKey,
    /// The recipe's rules for the gate: who answers, quorum, deadline and silence.
    pub spec: &'a GateSpec,
    /// JSON Schema that a reply must fit.
    pub form: Value,
    /// Groups of keys that may answer; empty: every approver.
    pub groups: Vec<&'a GroupId>,
    /// The last attempts of the tasks that the group needs: what a yes binds.
    pub task_keys: Vec<TaskKey>,
    /// How long it waits, in seconds.
    pub ttl_s: u32,
}

/// What a run takes for the answer of a gate.
#[derive(Debug, Clone, Serialize)]
pub struct NewStartAnswer {
    /// Task group that waited.
    pub group_name: GroupName,
    /// `yes`, `no`, or `withdrawn` where the graph stopped first.
    pub choice: &'static str,
}

/// A gate that was decided and whose run did not take the answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartDecision {
    /// Task group that waits.
    pub group: GroupName,
    /// Key of the gate, which may be one of an earlier life.
    pub gate: GateKey,
    /// What was decided.
    pub choice: Choice,
    /// Whether the deadline decided.
    pub is_silence: bool,
}

/// The gates of a run's graph, looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartLook {
    /// Those that were decided, by group.
    pub decided: Vec<StartDecision>,
    /// When to look again at the latest, in ms from now; `None`: once one is answered.
    pub due_ms: Option<u64>,
}

impl Gates<'_> {
    /// Looks at the gates that this life of a run waits at: reminds where that is due, and times out or escalates those whose deadline
    /// has passed. `waits`: whether the run waits for people alone, where that changed.
    pub async fn start_answers(
        self,
        run: &RunId,
        workflow: &str,
        life: u32,
        waits: Option<bool>,
    ) -> Result<StartLook> {
        if let Some(waits) = waits {
            sqlx::query("SELECT app.graph_park($1, $2)")
                .bind(run.as_str())
                .bind(waits)
                .execute(self.pool())
                .await?;
        }
        let rows = sqlx::query(
            "SELECT e.group_name, g.gate_key, g.topic, g.state, g.spec, i.payload,
                    app.ms(g.deadline_at) - app.ms(clock_timestamp()) AS left_ms,
                    app.ms(clock_timestamp()) - app.ms(g.created_at) AS age_ms,
                    (SELECT coalesce(max(j.n), 0) FROM app.gate_journal j
                      WHERE j.run_id = g.run_id AND j.gate_key = g.gate_key AND j.event = 'reminded') AS reminded
               FROM app.graph_gates e
               JOIN app.human_gates g ON g.run_id = e.run_id AND g.gate_key = e.gate_key
               LEFT JOIN app.human_interactions i ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key
                     AND i.topic = g.topic AND i.outcome = 'accepted'
              WHERE e.run_id = $1 AND e.life = $2 AND NOT EXISTS (
                    SELECT FROM app.graph_answers a
                     WHERE (a.run_id, a.life, a.group_name) = (e.run_id, e.life, e.group_name))
              ORDER BY e.group_name",
        )
        .bind(run.as_str())
        .bind(i32::try_from(life).unwrap_or(i32::MAX))
        .fetch_all(self.pool())
        .await?;
        let mut look = StartLook::default();
        for row in &rows {
            match self.start_answer(run, workflow, row).await? {
                StartState::Decided(decided) => look.decided.push(decided),
                StartState::Waits(ms) => {
                    look.due_ms = Some(look.due_ms.map_or(ms, |due| due.min(ms)));
                }
                StartState::Closed => {}
            }
        }
        Ok(look)
    }

    async fn start_answer(self, run: &RunId, workflow: &str, row: &PgRow) -> Result<StartState> {
        let gate: GateKey = id("human_gates.gate_key", row.try_get("gate_key")?)?;
        let spec = spec_of(&gate, row.try_get("spec")?)?;
        let decided = |choice: Choice, is_silence: bool| -> Result<StartState> {
            let group = id("graph_gates.group_name", row.try_get("group_name")?)?;
            Ok(StartState::Decided(StartDecision { group, gate: gate.clone(), choice, is_silence }))
        };
        let state: String = row.try_get("state")?;
        let left_ms: i64 = row.try_get("left_ms")?;
        match state.as_str() {
            "received" | "resolved" => {
                // The gate service validated it already; should a row have been tampered with since, it is a no.
                let payload: Option<Value> = row.try_get("payload")?;
                let choice = payload.and_then(|payload| choice_of(&payload).ok());
                decided(choice.map_or(Choice::No, |(choice, _)| choice), false)
            }
            "timed_out" => decided(spec.on_timeout.then.choice(), true),
            "open" if left_ms <= 0 => {
                let topic: String = row.try_get("topic")?;
                let longer_s = spec.escalation_wait_s().unwrap_or(1);
                match self.time_out(run, workflow, &gate, &topic, longer_s).await? {
                    Deadline::Over(silence) => decided(silence.choice(), true),
                    Deadline::Waits(ms) => Ok(StartState::Waits(ms)),
                    // A moment ago: the next look finds the reply.
                    Deadline::Answered => Ok(StartState::Waits(0)),
                }
            }
            "open" => {
                let left_ms = u64::try_from(left_ms).unwrap_or(0);
                let age_ms = u64::try_from(row.try_get::<i64, _>("age_ms")?).unwrap_or(0);
                let reminded = u64::try_from(row.try_get::<i32, _>("reminded")?).unwrap_or(0);
                let Some(due) = reminder(&spec, age_ms) else {
                    return Ok(StartState::Waits(left_ms));
                };
                if due.number > reminded {
                    let number = u32::try_from(due.number).unwrap_or(u32::MAX);
                    self.remind(run, &gate, number).await?;
                }
                Ok(StartState::Waits(left_ms.min(due.next_ms)))
            }
            _ => Ok(StartState::Closed),
        }
    }
}

/// Where one gate stands.
enum StartState {
    Decided(StartDecision),
    /// So many milliseconds until something is due.
    Waits(u64),
    /// Nobody is asked any more.
    Closed,
}

/// Which reminder is due by now, and when the next will be.
#[derive(Debug, PartialEq, Eq)]
struct DueReminder {
    number: u64,
    next_ms: u64,
}

fn reminder(spec: &GateSpec, age_ms: u64) -> Option<DueReminder> {
    let pause_ms = u64::from(spec.remind_s()?).saturating_mul(1_000);
    let number = age_ms.checked_div(pause_ms)?.min(MAX_REMINDERS);
    let next_ms = match number < MAX_REMINDERS {
        true => pause_ms.saturating_sub(age_ms.checked_rem(pause_ms)?),
        false => u64::MAX,
    };
    Some(DueReminder { number, next_ms })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reminders_are_counted_by_the_gates_age_and_end() {
        let spec: GateSpec =
            serde_json::from_value(json!({"key": "release", "remind": "10s"})).unwrap();
        let due = |age_ms| reminder(&spec, age_ms).unwrap();
        assert_eq!(due(0), DueReminder { number: 0, next_ms: 10_000 });
        assert_eq!(due(25_000), DueReminder { number: 2, next_ms: 5_000 });
        assert_eq!(due(u64::MAX), DueReminder { number: MAX_REMINDERS, next_ms: u64::MAX });
        let none: GateSpec = serde_json::from_value(json!("release")).unwrap();
        assert_eq!(reminder(&none, 1), None);
    }
}
