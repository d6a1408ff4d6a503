//! A worker's heartbeat, and how the fleet is, over a connection that nothing else uses and no task of another runtime carries.
//!
//! What keeps every thread of the process busy must not look like its death. So this one is driven by the runtime that calls
//! it alone, and goes to the database itself, past the wires; its caller bounds each statement.

use std::str::FromStr;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::{ExecutorId, SandboxId};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::Ledger;
use crate::error::Result;

/// Its connection, while that is good.
#[derive(Debug)]
pub struct HealthProbe {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
}

/// How the fleet is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetHealth {
    /// Workers that were heard lately: a row says nothing where no worker leads.
    pub workers: i64,
    /// Sessions of all tenants whose wipe could not be verified.
    pub held: i64,
    /// The queues on which something waits.
    pub queues: Vec<Backlog>,
}

/// What waits on a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The engine's name of the queue, such as `sbxQ`.
    pub queue: String,
    /// How many workflows.
    pub depth: i64,
    /// How long the oldest one has waited, in milliseconds.
    pub oldest_ms: i64,
}

impl Ledger {
    /// How the fleet is, over a connection of this process's many.
    pub async fn fleet_health(&self) -> Result<FleetHealth> {
        fleet_health(&mut *self.pool().acquire().await?).await
    }

    /// A connection of its own, which is made by its first statement.
    ///
    /// # Errors
    /// An address that cannot be read.
    pub fn health_probe(&self) -> Result<HealthProbe> {
        Ok(HealthProbe {
            options: PgConnectOptions::from_str(self.place().direct())?,
            connection: None,
        })
    }
}

impl HealthProbe {
    /// One heartbeat, of the worker and of those of its sandboxes that it sees alive, in one statement.
    /// `false`: this executor was declared dead, so its work is another worker's now. A beat that failed or was given up
    /// ends its connection: the next one makes another.
    ///
    /// # Errors
    /// The database's.
    pub async fn beat(&mut self, executor: &ExecutorId, alive: &[SandboxId]) -> Result<bool> {
        let mut connection = self.connection().await?;
        let beaten = beat(&mut connection, executor, alive).await?;
        self.connection = Some(connection);
        Ok(beaten)
    }

    /// How the fleet is. As a beat, it ends its connection where it fails or is given up.
    ///
    /// # Errors
    /// The database's.
    pub async fn fleet_health(&mut self) -> Result<FleetHealth> {
        let mut connection = self.connection().await?;
        let found = fleet_health(&mut connection).await?;
        self.connection = Some(connection);
        Ok(found)
    }

    async fn connection(&mut self) -> Result<PgConnection> {
        Ok(match self.connection.take() {
            Some(connection) => connection,
            None => PgConnection::connect_with(&self.options).await?,
        })
    }
}

async fn fleet_health(connection: &mut PgConnection) -> Result<FleetHealth> {
    let all = sqlx::query(
        "SELECT (SELECT count(*) FROM app.executors
                  WHERE state = 'live' AND heartbeat_at > clock_timestamp() - interval '10 seconds') AS workers,
                (SELECT count(*) FROM app.held_sessions) AS held",
    )
    .fetch_one(&mut *connection)
    .await?;
    let rows = sqlx::query(
        "SELECT queue_name, count(*) AS depth,
                greatest(0, app.ms(clock_timestamp()) - min(created_at))::bigint AS oldest_ms
           FROM dbos.workflow_status
          WHERE status = 'ENQUEUED' AND application_name = 'cofferdam' AND queue_name IS NOT NULL
          GROUP BY queue_name ORDER BY queue_name",
    )
    .fetch_all(&mut *connection)
    .await?;
    let queues = rows.iter().map(|row| {
        Ok(Backlog {
            queue: row.try_get("queue_name")?,
            depth: row.try_get("depth")?,
            oldest_ms: row.try_get("oldest_ms")?,
        })
    });
    Ok(FleetHealth {
        workers: all.try_get("workers")?,
        held: all.try_get("held")?,
        queues: queues.collect::<Result<_>>()?,
    })
}

async fn beat(
    connection: &mut PgConnection,
    executor: &ExecutorId,
    alive: &[SandboxId],
) -> Result<bool> {
    let alive: Vec<&str> = alive.iter().map(SandboxId::as_str).collect();
    // A session that is being written at this moment needs no beat, and must not delay the worker's. One is stale after ten
    // seconds: of a thousand that live, a third is written each time.
    let row = sqlx::query(
        "WITH e AS (
           UPDATE app.executors SET heartbeat_at = clock_timestamp() WHERE id = $1 AND state = 'live' RETURNING id),
         s AS (
           UPDATE app.remote_execution_sessions SET last_heartbeat_at = clock_timestamp()
            WHERE sandbox_id IN (
                  SELECT x.sandbox_id FROM app.remote_execution_sessions x, e
                   WHERE x.sandbox_id = ANY($2) AND x.executor_id = e.id AND x.ended_at IS NULL
                     AND coalesce(x.last_heartbeat_at < clock_timestamp() - interval '2.5 seconds', true)
                     FOR UPDATE OF x SKIP LOCKED))
         SELECT count(*) AS beaten, app.ms(clock_timestamp()) AS now_ms FROM e",
    )
    .bind(executor.as_str())
    .bind(&alive)
    .fetch_one(connection)
    .await?;
    clock::agree(row.try_get("now_ms")?);
    Ok(row.try_get::<i64, _>("beaten")? == 1)
}
