//! `app.firings`: the times that schedules and hooks fired. A run and its firing commit together.
//!
//! ```text
//! a schedule is due --record: next_ms moves on, one row an instant--> pending | skipped
//!   pending --fire, with the run--> started        pending --settle--> skipped | refused
//! a delivery --deliver, with the run--> started
//! ```
//! Many workers look at the same time, and each may die at any point: `next_ms` is compared and moved in the statement that inserts
//! the firings, and a firing leaves `pending` in the transaction that inserts its run.

use cofferdam_contracts::id::{Digest, RunId, TriggerId};
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::trigger::{FiringState, SkipReason};
use sqlx::{PgConnection, Row};

use crate::error::{LedgerError, Result, id};
use crate::failpoint::fail_point;
use crate::families::Triggers;
use crate::intents::NewIntent;
use crate::runs::{NewRun, run_start};
use crate::trees::IntentTree;
use crate::triggers::{COLUMNS, NextInstant, Trigger, trigger_of};

/// Triggers that one look takes: as many as one tenant may have. The rest is a later look's, or another worker's.
const MAX_DUE: i64 = 256;

/// A firing to be taken down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFiring {
    /// The instant in UTC.
    pub event: String,
    /// Why it starts nothing; `None`: it waits for its run.
    pub skip: Option<SkipReason>,
    /// More about the skip.
    pub detail: Option<String>,
}

/// A firing that waits for its run.
#[derive(Debug, Clone)]
pub struct PendingFiring {
    /// The schedule as it is now.
    pub trigger: Trigger,
    /// Its instant in UTC.
    pub event: String,
    /// How long it has waited, ms.
    pub age_ms: i64,
}

/// What a look finds.
#[derive(Debug, Clone, Default)]
pub struct DueTriggers {
    /// Schedules whose next instant has come.
    pub due: Vec<Trigger>,
    /// The first firing of each trigger that may start now.
    pub pending: Vec<PendingFiring>,
    /// Until the next instant of any schedule, ms; `None`: none has one.
    pub next_in_ms: Option<i64>,
}

/// A delivery that passed the checks of its hook.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// The hook that was delivered to.
    pub trigger: &'a TriggerId,
    /// The sender's id of it.
    pub event: &'a str,
    /// SHA-256 of the body.
    pub digest: &'a Digest,
}

/// What came of an attempt to start a firing's run.
#[derive(Debug, Clone)]
pub enum FireOutcome {
    /// Run and firing are on record.
    Started(Box<RunHeader>),
    /// The run of an earlier firing goes on: nothing was written.
    Overlaps,
    /// Another worker settled the firing, or its trigger does not fire any more: nothing was written.
    Settled,
    /// The delivery came before and has this run: nothing was written.
    Replayed(RunId),
    /// The delivery came before and started nothing: nothing was written.
    Filtered,
    /// A delivery with this id and another body came before: nothing was written.
    Differs,
}

/// Which firing a run is started for.
#[derive(Debug, Clone, Copy)]
pub enum FiringCause<'a> {
    /// A pending one of a schedule, by its instant.
    Instant {
        /// The schedule whose instant came.
        trigger: &'a TriggerId,
        /// The instant in UTC.
        event: &'a str,
    },
    /// One of a hook.
    Delivery(Delivery<'a>),
}

impl FiringCause<'_> {
    fn trigger(&self) -> &TriggerId {
        match self {
            Self::Instant { trigger, .. } => trigger,
            Self::Delivery(delivery) => delivery.trigger,
        }
    }

    /// What makes its run another than every other of the same recipe and inputs.
    #[must_use]
    pub fn identity(&self) -> [&str; 2] {
        match self {
            Self::Instant { trigger, event } => [trigger.as_str(), event],
            Self::Delivery(delivery) => [delivery.trigger.as_str(), delivery.event],
        }
    }
}

impl Triggers<'_> {
    /// What is due by the database's clock.
    pub async fn due(self) -> Result<DueTriggers> {
        let text = format!(
            "SELECT {COLUMNS}, NULL::text AS event, NULL::bigint AS age
               FROM (SELECT * FROM app.triggers WHERE due_ms <= app.ms(clock_timestamp()) ORDER BY due_ms LIMIT {MAX_DUE}) t
             UNION ALL
             (SELECT {COLUMNS}, f.event, app.ms(clock_timestamp()) - app.ms(f.created_at)
                FROM (SELECT DISTINCT ON (trigger_id) trigger_id, event, created_at FROM app.firings
                       WHERE state = 'pending' ORDER BY trigger_id, seq) f
                JOIN app.triggers t ON t.id = f.trigger_id
               WHERE t.spec ->> 'overlap' IS DISTINCT FROM 'queue' OR NOT app.trigger_is_busy(t.id)
               ORDER BY f.created_at LIMIT {MAX_DUE})"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(text)).fetch_all(self.steady()).await?;
        let mut found = DueTriggers::default();
        for row in &rows {
            let trigger = match trigger_of(row) {
                Ok(trigger) => trigger,
                // Of a newer version, perhaps: it keeps no other from firing.
                Err(error) => {
                    tracing::warn!(%error, "a schedule or hook cannot be read");
                    continue;
                }
            };
            match row.try_get::<Option<String>, _>("event")? {
                None => found.due.push(trigger),
                Some(event) => {
                    let age_ms = row.try_get("age")?;
                    found.pending.push(PendingFiring { trigger, event, age_ms });
                }
            }
        }
        found.next_in_ms =
            sqlx::query_scalar("SELECT min(due_ms) - app.ms(clock_timestamp()) FROM app.triggers")
                .fetch_one(self.steady())
                .await?;
        Ok(found)
    }

    /// Takes down the firings of a schedule from `from_ms` on and moves it to its next instant, together. `false`: another worker did.
    pub async fn record(
        self,
        trigger: &TriggerId,
        from_ms: i64,
        firings: &[NewFiring],
        next: Option<NextInstant>,
    ) -> Result<bool> {
        let events: Vec<&str> = firings.iter().map(|firing| firing.event.as_str()).collect();
        let skips: Vec<Option<&str>> =
            firings.iter().map(|f| f.skip.map(SkipReason::as_str)).collect();
        let details: Vec<Option<&str>> = firings.iter().map(|f| f.detail.as_deref()).collect();
        let done = sqlx::query(
            "WITH t AS (
               UPDATE app.triggers SET next_ms = $3, due_ms = $4, firings = firings + cardinality($5::text[])
                WHERE id = $1 AND next_ms = $2 AND state = 'active'
               RETURNING id, firings - cardinality($5::text[]) AS before)
             INSERT INTO app.firings (trigger_id, event, seq, state, reason, detail, settled_at)
             SELECT t.id, f.event, t.before + f.n, CASE WHEN f.skip IS NULL THEN 'pending' ELSE 'skipped' END, f.skip, f.detail,
                    CASE WHEN f.skip IS NOT NULL THEN clock_timestamp() END
               FROM t CROSS JOIN unnest($5::text[], $6::text[], $7::text[]) WITH ORDINALITY AS f(event, skip, detail, n)",
        )
        .bind(trigger.as_str())
        .bind(from_ms)
        .bind(next.map(|next| next.at_ms))
        .bind(next.map(|next| next.due_ms))
        .bind(&events)
        .bind(&skips)
        .bind(&details)
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Takes firings of a schedule that started nothing, beyond its newest: their number stays.
    pub async fn fold(self, trigger: &TriggerId) -> Result<()> {
        // The trigger's row first: two that fold take turns, and count each row once.
        sqlx::query(
            "WITH t AS (SELECT id, firings FROM app.triggers WHERE id = $1 AND kind = 'schedule' FOR UPDATE),
                  gone AS (DELETE FROM app.firings f USING t WHERE f.trigger_id = t.id AND f.run_id IS NULL AND f.state <> 'pending'
                              AND f.seq <= t.firings - app.kept_firings() RETURNING 1)
             UPDATE app.triggers SET folded = folded + (SELECT count(*) FROM gone) WHERE id = $1 AND EXISTS (SELECT FROM gone)",
        )
        .bind(trigger.as_str())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Keeps a delivery that starts nothing, so that it starts nothing under another event's name either. What it is known as, if it
    /// came before; `None`: it is on record now.
    pub async fn filter(self, delivery: &Delivery<'_>) -> Result<Option<FireOutcome>> {
        let mut tx = self.pool().begin().await?;
        sqlx::query("SELECT FROM app.triggers WHERE id = $1 FOR UPDATE")
            .bind(delivery.trigger.as_str())
            .execute(&mut *tx)
            .await?;
        let before = seen(&mut tx, delivery).await?;
        if before.is_none() {
            sqlx::query(
                "WITH t AS (UPDATE app.triggers SET firings = firings + 1 WHERE id = $1 RETURNING id, firings)
                 INSERT INTO app.firings (trigger_id, event, seq, digest, state, reason, settled_at)
                 SELECT t.id, $2, t.firings, $3, 'skipped', $4, clock_timestamp() FROM t",
            )
            .bind(delivery.trigger.as_str())
            .bind(delivery.event)
            .bind(delivery.digest.as_str())
            .bind(SkipReason::Filtered.as_str())
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
        }
        Ok(before)
    }

    /// How many firings of a schedule wait.
    pub async fn waiting(self, trigger: &TriggerId) -> Result<i64> {
        let waiting = sqlx::query_scalar(
            "SELECT count(*) FROM app.firings WHERE trigger_id = $1 AND state = 'pending'",
        );
        Ok(waiting.bind(trigger.as_str()).fetch_one(self.pool()).await?)
    }

    /// Ends a firing that starts nothing. Without effect where another worker settled it.
    pub async fn settle(
        self,
        trigger: &TriggerId,
        event: &str,
        state: FiringState,
        reason: &str,
        detail: Option<&str>,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE app.firings SET state = $3, reason = $4, detail = $5, settled_at = clock_timestamp()
              WHERE trigger_id = $1 AND event = $2 AND state = 'pending'",
        )
        .bind(trigger.as_str())
        .bind(event)
        .bind(state.as_str())
        .bind(reason)
        .bind(detail)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Starts the run of a firing: the run, its intent, its workflow and the firing's row commit together, or nothing does.
    pub async fn fire(
        self,
        new: &NewRun,
        intent: Option<&NewIntent<'_>>,
        trees: &[IntentTree],
        cause: &FiringCause<'_>,
    ) -> Result<FireOutcome> {
        let mut tx = self.pool().begin().await?;
        // Firings of one trigger take turns: each sees the run of the one before.
        let lock = "SELECT state = 'active' AS fires FROM app.triggers WHERE id = $1 FOR UPDATE";
        let fires: Option<bool> = sqlx::query_scalar(lock)
            .bind(cause.trigger().as_str())
            .fetch_optional(&mut *tx)
            .await?;
        if fires != Some(true) {
            return Ok(FireOutcome::Settled);
        }
        let before = match cause {
            FiringCause::Instant { trigger, event } => may_start(&mut tx, trigger, event).await?,
            FiringCause::Delivery(delivery) => seen(&mut tx, delivery).await?,
        };
        if let Some(outcome) = before {
            return Ok(outcome);
        }
        let header = run_start(&mut *tx, new, intent, trees).await?.ok_or(LedgerError::Row {
            what: "runs",
            why: format!("{} is there without its firing", new.workflow_id),
        })?;
        fail_point("firing.run");
        match cause {
            FiringCause::Instant { trigger, event } => {
                started(&mut tx, trigger, event, &header).await?
            }
            FiringCause::Delivery(delivery) => delivered(&mut tx, delivery, &header).await?,
        }
        tx.commit().await?;
        fail_point("firing.done");
        Ok(FireOutcome::Started(Box::new(header)))
    }
}

/// Why the run of an instant may not start, if it may not.
async fn may_start(
    tx: &mut PgConnection,
    trigger: &TriggerId,
    event: &str,
) -> Result<Option<FireOutcome>> {
    let row = sqlx::query(
        "SELECT EXISTS (SELECT FROM app.firings WHERE trigger_id = $1 AND event = $2 AND state = 'pending') AS waits,
                app.trigger_is_busy($1) AS busy",
    )
    .bind(trigger.as_str())
    .bind(event)
    .fetch_one(tx)
    .await?;
    Ok(match (row.try_get("waits")?, row.try_get("busy")?) {
        (false, _) => Some(FireOutcome::Settled),
        (true, true) => Some(FireOutcome::Overlaps),
        (true, false) => None,
    })
}

/// What is known of a delivery, if it came before.
async fn seen(tx: &mut PgConnection, delivery: &Delivery<'_>) -> Result<Option<FireOutcome>> {
    let row =
        sqlx::query("SELECT run_id, digest FROM app.firings WHERE trigger_id = $1 AND event = $2")
            .bind(delivery.trigger.as_str())
            .bind(delivery.event)
            .fetch_optional(tx)
            .await?;
    let Some(row) = row else { return Ok(None) };
    let digest: Option<String> = row.try_get("digest")?;
    let run: Option<String> = row.try_get("run_id")?;
    Ok(Some(match (digest.as_deref() == Some(delivery.digest.as_str()), run) {
        (true, Some(run)) => FireOutcome::Replayed(id("firings.run_id", &run)?),
        (true, None) => FireOutcome::Filtered,
        (false, _) => FireOutcome::Differs,
    }))
}

async fn started(
    tx: &mut PgConnection,
    trigger: &TriggerId,
    event: &str,
    run: &RunHeader,
) -> Result<()> {
    sqlx::query(
        "UPDATE app.firings SET state = 'started', run_id = $3, settled_at = clock_timestamp()
          WHERE trigger_id = $1 AND event = $2",
    )
    .bind(trigger.as_str())
    .bind(event)
    .bind(run.run_id.as_str())
    .execute(tx)
    .await?;
    Ok(())
}

async fn delivered(tx: &mut PgConnection, delivery: &Delivery<'_>, run: &RunHeader) -> Result<()> {
    sqlx::query(
        "WITH t AS (UPDATE app.triggers SET firings = firings + 1 WHERE id = $1 RETURNING id, firings)
         INSERT INTO app.firings (trigger_id, event, seq, digest, state, run_id, settled_at)
         SELECT t.id, $2, t.firings, $3, 'started', $4, clock_timestamp() FROM t",
    )
    .bind(delivery.trigger.as_str())
    .bind(delivery.event)
    .bind(delivery.digest.as_str())
    .bind(run.run_id.as_str())
    .execute(tx)
    .await?;
    Ok(())
}
