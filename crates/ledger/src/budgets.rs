//! `app.model_asks`, `app.model_grants`: a sandbox has used up its budget of models, and a person is asked for more.
//!
//! The call waits at its gate; calls beside it wait at the same one. Answer, grant and the gate's end are one
//! transaction, as those of names are (`grants`).

use cofferdam_contracts::gate::{Choice, choice_of};
use cofferdam_contracts::id::{GateKey, RunId, TaskKey, TenantId};
use cofferdam_contracts::model::{BudgetAsk, grant_form};
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{Result, id, json as encode};
use crate::families::Models;
use crate::grants::{TaskGate, answer_end, answered};

/// More of a budget to be asked for.
#[derive(Debug, Clone)]
pub struct NewBudgetAsk<'a> {
    /// Run of the task that asks; the gate opens in this run.
    pub run: &'a RunId,
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// The task's attempt.
    pub task: &'a TaskKey,
    /// The bound that was reached, for the person.
    pub over: &'a BudgetAsk,
    /// How long the gate waits: as long as the task may run.
    pub ttl_s: u32,
}

/// Where a question is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetAnswer {
    /// Its gate waits.
    Waiting,
    /// A person granted more.
    Granted,
    /// A person did not, or the gate is over.
    Denied,
}

impl Models<'_> {
    /// Opens the gate of a question, or gives the one that is open: its number in the task. `None` where the run is
    /// over.
    pub async fn budget_ask(self, new: &NewBudgetAsk<'_>) -> Result<Option<i32>> {
        let mut tx = self.pool().begin().await?;
        // Tasks of one run number their gates in turn.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('models:' || $1, 0))")
            .bind(new.run.as_str())
            .execute(&mut *tx)
            .await?;
        let open: Option<i32> = sqlx::query_scalar(
            "SELECT a.n FROM app.model_asks a JOIN app.human_gates g ON g.run_id = a.run_id AND g.gate_key = a.gate_key
              WHERE a.task_key = $1 AND g.state IN ('open', 'received') ORDER BY a.n DESC LIMIT 1",
        )
        .bind(new.task.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        if open.is_some() {
            return Ok(open);
        }
        let row = sqlx::query(
            "SELECT (SELECT 1 + count(*) FROM app.model_asks WHERE run_id = $1) AS of_run,
                    (SELECT 1 + count(*) FROM app.model_asks WHERE task_key = $2)::int AS of_task",
        )
        .bind(new.run.as_str())
        .bind(new.task.as_str())
        .fetch_one(&mut *tx)
        .await?;
        let (of_run, n): (i64, i32) = (row.try_get("of_run")?, row.try_get("of_task")?);
        let key: GateKey = id("model_asks.gate_key", &format!("models-{of_run}"))?;
        let gate = TaskGate {
            run: new.run,
            tenant: new.tenant,
            key: &key,
            form: grant_form(),
            ttl_s: new.ttl_s,
            hints: json!({"kind": "models", "over": new.over, "taskKey": new.task}),
        };
        if !gate.open(&mut tx).await? {
            return Ok(None);
        }
        sqlx::query(
            "INSERT INTO app.model_asks (run_id, task_key, n, gate_key, asked) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(new.run.as_str())
        .bind(new.task.as_str())
        .bind(n)
        .bind(key.as_str())
        .bind(encode("model_asks.asked", new.over)?)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Some(n))
    }

    /// Takes the answers to a task's questions, and says where this one is.
    pub async fn budget_answer(self, task: &TaskKey, n: i32) -> Result<BudgetAnswer> {
        let mut tx = self.pool().begin().await?;
        budget_answers_take(&mut tx, task).await?;
        let row = sqlx::query(
            "SELECT g.state IN ('open', 'received') AND g.deadline_at > clock_timestamp() AS waits,
                    EXISTS (SELECT 1 FROM app.model_grants x WHERE x.task_key = a.task_key AND x.n = a.n) AS granted
               FROM app.model_asks a JOIN app.human_gates g ON g.run_id = a.run_id AND g.gate_key = a.gate_key
              WHERE a.task_key = $1 AND a.n = $2",
        )
        .bind(task.as_str())
        .bind(n)
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        let Some(row) = row else { return Ok(BudgetAnswer::Denied) };
        Ok(match (row.try_get("granted")?, row.try_get("waits")?) {
            (true, _) => BudgetAnswer::Granted,
            (false, true) => BudgetAnswer::Waiting,
            (false, false) => BudgetAnswer::Denied,
        })
    }
}

/// Takes the answers that came and were not taken yet.
pub(crate) async fn budget_answers_take(
    conn: &mut sqlx::PgConnection,
    task: &TaskKey,
) -> Result<()> {
    for row in &answered(conn, task, "app.model_asks", "a.n").await? {
        budget_answer_take(conn, task, row).await?;
    }
    Ok(())
}

async fn budget_answer_take(
    conn: &mut sqlx::PgConnection,
    task: &TaskKey,
    row: &PgRow,
) -> Result<()> {
    let gate: String = row.try_get("gate_key")?;
    let payload: Value = row.try_get("payload")?;
    let (choice, rationale) = match choice_of(&payload) {
        Ok((choice, rationale)) => (choice, rationale),
        // The gate service validated it already; should a row have been tampered with since, it is a no.
        Err(_) => (Choice::No, Some("unreadable reply".to_owned())),
    };
    if choice == Choice::Yes {
        let more = |name: &str| {
            payload.pointer(&format!("/grant/{name}")).and_then(Value::as_i64).unwrap_or(0).max(0)
        };
        sqlx::query(
            "INSERT INTO app.model_grants (run_id, task_key, n, gate_key, interaction_id, granted_by, calls, tokens, micros)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
        )
        .bind(row.try_get::<String, _>("run_id")?)
        .bind(task.as_str())
        .bind(row.try_get::<i32, _>("n")?)
        .bind(&gate)
        .bind(row.try_get::<i64, _>("id")?)
        .bind(row.try_get::<String, _>("key_id")?)
        .bind(more("calls"))
        .bind(more("tokens"))
        .bind(more("micros"))
        .execute(&mut *conn)
        .await?;
    }
    answer_end(conn, row, payload, choice, rationale).await
}
