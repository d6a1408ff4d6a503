//! Workers: heartbeats, the leader, and takeover from the dead.

use cofferdam_contracts::id::ExecutorId;
use cofferdam_contracts::sandbox::IsolationClass;

use sqlx::Row;

use crate::APP_VERSION;
use crate::error::{LedgerError, Result};
use crate::families::Executors;

/// A worker as it announces itself.
#[derive(Debug, Clone)]
pub struct NewExecutor<'a> {
    /// Unique for every start.
    pub id: &'a ExecutorId,
    /// Name of the machine: 16 hex digits over its machine id and pid namespace.
    pub host_id: &'a str,
    /// Process id of the worker on its machine.
    pub pid: i32,
    /// The strengths of the isolation classes that it offers.
    pub classes: &'a [IsolationClass],
}

/// The right to lead in one term. Every statement of a leader names it, and does nothing once it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderTerm {
    pub(crate) executor: ExecutorId,
    pub(crate) term: i64,
}

/// An executor whose workflows were queued again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadExecutor {
    /// Its id, as the engine has it.
    pub executor: String,
    /// Whether it was declared dead just now.
    pub is_new: bool,
    /// How many workflows it had.
    pub workflows: u64,
}

impl Executors<'_> {
    /// Announces a worker.
    pub async fn join(self, new: &NewExecutor<'_>) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.executors (id, host_id, pid, app_version, classes) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(new.id.as_str())
        .bind(new.host_id)
        .bind(new.pid)
        .bind(APP_VERSION)
        .bind(new.classes.iter().map(|class| class.as_str()).collect::<Vec<_>>())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// A worker leaves in good order: what it still held goes back to its queues.
    pub async fn leave(self, executor: &ExecutorId) -> Result<u64> {
        let given_back: Option<i64> = sqlx::query_scalar("SELECT app.executor_end($1, 'left')")
            .bind(executor.as_str())
            .fetch_one(self.pool())
            .await?;
        Ok(given_back.unwrap_or(0).unsigned_abs())
    }

    /// The leader's turn, in one statement: whoever was silent for so long is dead, and what lies under an
    /// executor that is not alive is queued again. An executor that comes back finds itself dead at its next
    /// heartbeat and stops. `None`: nobody is declared dead.
    pub async fn take_over(
        self,
        lead: &LeaderTerm,
        dead_after_ms: Option<i64>,
    ) -> Result<Vec<DeadExecutor>> {
        let rows =
            sqlx::query("SELECT executor_id, is_new, workflows FROM app.take_over($1, $2, $3)")
                .bind(lead.executor.as_str())
                .bind(lead.term)
                .bind(dead_after_ms)
                .fetch_all(self.steady())
                .await?;
        rows.iter()
            .map(|row| {
                Ok(DeadExecutor {
                    executor: row.try_get("executor_id")?,
                    is_new: row.try_get("is_new")?,
                    workflows: row.try_get::<i64, _>("workflows")?.unsigned_abs(),
                })
            })
            .collect()
    }

    /// Renews this executor's lease, or takes a free one; `None` while somebody else leads. Never waits.
    pub async fn lead(self, executor: &ExecutorId, lease_ms: i64) -> Result<Option<LeaderTerm>> {
        let term: Option<i64> = sqlx::query_scalar("SELECT app.lead($1, $2)")
            .bind(executor.as_str())
            .bind(lease_ms)
            .fetch_one(self.steady())
            .await?;
        Ok(term.map(|term| LeaderTerm { executor: executor.clone(), term }))
    }

    /// Lets another one lead at once.
    pub async fn resign(self, executor: &ExecutorId) -> Result<()> {
        sqlx::query("UPDATE app.leader SET until = '-infinity' WHERE executor_id = $1")
            .bind(executor.as_str())
            .execute(self.steady())
            .await?;
        Ok(())
    }

    /// Whether a worker is not known to be dead or gone; one that was never announced is.
    pub async fn is_live(self, executor: &ExecutorId) -> Result<bool> {
        let live = "SELECT EXISTS (SELECT 1 FROM app.executors WHERE id = $1 AND state = 'live')";
        Ok(sqlx::query_scalar(live).bind(executor.as_str()).fetch_one(self.pool()).await?)
    }

    /// The classes that live workers offer. `None` where no worker is live, or one of another version does not say: then
    /// nothing is known to be missing.
    pub async fn classes(self) -> Result<Option<Vec<IsolationClass>>> {
        let query = "SELECT CASE WHEN bool_and(classes IS NOT NULL) THEN
                        (SELECT array_agg(DISTINCT c) FROM app.executors x, unnest(x.classes) c WHERE x.state = 'live') END
                       FROM app.executors WHERE state = 'live'";
        let found: Option<Vec<String>> = sqlx::query_scalar(query).fetch_one(self.pool()).await?;
        let class = |name: &String| {
            let why = || LedgerError::Row { what: "executors.classes", why: name.clone() };
            IsolationClass::parse(name).ok_or_else(why)
        };
        found.map(|names| names.iter().map(class).collect()).transpose()
    }

    /// How many workers of one host were heard lately.
    pub async fn live_count_on(self, host_id: &str) -> Result<i64> {
        let query = "SELECT count(*) FROM app.executors
              WHERE state = 'live' AND heartbeat_at > clock_timestamp() - interval '10 seconds' AND host_id = $1";
        Ok(sqlx::query_scalar(query).bind(host_id).fetch_one(self.pool()).await?)
    }

    /// How many workers were heard lately, for `/healthz`: a row says nothing where nobody leads.
    pub async fn live_count(self) -> Result<i64> {
        Ok(sqlx::query_scalar(
            "SELECT count(*) FROM app.executors
              WHERE state = 'live' AND heartbeat_at > clock_timestamp() - interval '10 seconds'",
        )
        .fetch_one(self.pool())
        .await?)
    }
}
