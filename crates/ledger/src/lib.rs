//! The only crate that knows SQL: migrations, one module per table family, views, proofs, and the
//! private database that a single host starts for itself.
//!
//! **Every statement is a readable text beside the function that runs it. An operation and the
//! record of it commit in one transaction. Nothing outside this crate sees the driver.**
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! ends firings links ops run_pages settlements
//! graphs
//! graph_gates
//! remote_commands gates live_start rounds run_files sessions template_views
//! artifacts builds collections dispatches forks steps tasks
//! intents recipes retries runs storage template_layers
//! budgets cache config engine erasures live live_stop live_networks models secrets signing_keys snapshots template_files
//!    template_tags triggers webhooks
//! applies audit dispatch_end executors grants objects stored_files keys listen live_events load migrate database_identity planner
//!    git_refs images policies prompts proofs health quota streams test_reports trees usage wire
//! cluster error failpoint families
//! ```

pub mod applies;
pub mod artifacts;
pub mod audit;
pub mod budgets;
pub mod builds;
pub mod cache;
pub mod cluster;
pub mod collections;
pub mod config;
pub mod database_identity;
mod dispatch_end;
pub mod dispatches;
mod ends;
pub mod engine;
pub mod erasures;
pub mod error;
pub mod executors;
pub mod failpoint;
pub mod families;
pub mod firings;
mod forks;
pub mod gates;
pub mod git_refs;
pub mod grants;
pub mod graph_gates;
pub mod graphs;
pub mod health;
pub mod images;
pub mod intents;
pub mod keys;
pub mod links;
pub mod listen;
pub mod live;
pub mod live_events;
pub mod live_networks;
pub mod live_start;
pub mod live_stop;
pub mod load;
pub mod migrate;
pub mod models;
pub mod objects;
pub mod ops;
pub mod planner;
pub mod policies;
pub mod prompts;
pub mod proofs;
pub mod quota;
pub mod recipes;
pub mod remote_commands;
pub mod retries;
mod rounds;
pub mod run_files;
pub mod run_pages;
pub mod runs;
pub mod secrets;
pub mod sessions;
pub mod settlements;
pub mod signing_keys;
pub mod snapshots;
pub mod steps;
mod storage;
pub mod stored_files;
pub mod streams;
pub mod tasks;
pub mod template_files;
pub mod template_layers;
pub mod template_tags;
pub mod template_views;
pub mod test_reports;
pub mod trees;
pub mod triggers;
pub mod usage;
pub mod webhooks;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub use error::{LedgerError, OpError, OpResult, Result};
use wire::Wires;

/// The version that stamps every workflow row; a worker runs only rows of its own version. It
/// changes when a workflow's steps change, so that a rolling upgrade never replays old history
/// through new code.
pub const APP_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-w3");

/// Connections of one process; PostgreSQL allows 100 in all.
const MAX_CONNECTIONS: u32 = 12;

/// Where the database is on this host, for each processor: its backends share them with us. They are used in turn, so each has to
/// learn every statement, and what it knows leaves the processor's caches until its next turn. A hundred creations at once on 2
/// processors took 0.93 to 0.97 s with 6 cold connections, 1.00 to 1.07 with 12, and 0.90 to 1.00 with 4.
const CONNECTIONS_EACH: usize = 3;

/// The least of them.
const MIN_CONNECTIONS: u32 = 6;

/// Connections for what a process does all the time: claims. They are kept apart
/// because a pool hands out its connections in turn: regular work in the large pool would keep every
/// connection of a busy hour in use, and its backend in memory, for ever.
const STEADY_CONNECTIONS: u32 = 1;

/// Connections for statements that may take minutes: proofs, each of one reader.
const PATIENT_CONNECTIONS: u32 = 2;

/// A connection that rested for longer is asked whether it still lives before it is used.
const TRUSTED: Duration = Duration::from_secs(1);

/// The database's clock, which everybody goes by (`ambient::clock`).
pub(crate) const NOW_MS: &str =
    "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// A handle to the ledger; clones share its pools.
#[derive(Debug, Clone)]
pub struct Ledger {
    pool: PgPool,
    steady: PgPool,
    patient: PgPool,
    /// Where the engine of this process finds the database.
    engine_url: Arc<str>,
    /// Where the database itself is.
    direct: Arc<str>,
    /// Where the database is elsewhere.
    wires: Option<Arc<Wires>>,
}

/// Connections to a database that shares this host's processors.
fn beside() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let all = u32::try_from(processors.saturating_mul(CONNECTIONS_EACH)).unwrap_or(u32::MAX);
    all.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS)
}

impl Ledger {
    /// Connects; `url` may name a unix socket's directory as `?host=`.
    pub async fn connect(url: &str) -> Result<Self> {
        let wires = Wires::open(url).await?;
        let (quick, patient) = match &wires {
            Some(wires) => (wires.quick(), wires.patient()),
            None => (url, url),
        };
        let options = PgPoolOptions::new()
            .acquire_timeout(Duration::from_secs(8))
            // An idle server should hold few backends: each is about 3 MB of the host.
            .idle_timeout(Duration::from_secs(5))
            .test_before_acquire(false)
            .before_acquire(|connection, rested| {
                Box::pin(async move {
                    if rested.idle_for > TRUSTED {
                        sqlx::Connection::ping(connection).await?;
                    }
                    Ok(true)
                })
            });
        let most = if wires.is_some() { MAX_CONNECTIONS } else { beside() };
        let pool = options.clone().max_connections(most).connect(quick).await?;
        let steady = options.clone().max_connections(STEADY_CONNECTIONS).connect_lazy(quick)?;
        let patient = options.max_connections(PATIENT_CONNECTIONS).connect_lazy(patient)?;
        let engine_url = quick.into();
        let (direct, wires) = (url.into(), wires.map(Arc::new));
        let own = Self { pool, steady, patient, engine_url, direct, wires };
        let now_ms: i64 = sqlx::query_scalar(NOW_MS).fetch_one(own.pool()).await?;
        clock::agree(now_ms);
        Ok(own)
    }

    /// Closes every connection, and leaves nothing on this host: background work may hold the ledger until the process ends.
    pub async fn close(&self) {
        self.steady.close().await;
        self.patient.close().await;
        self.pool.close().await;
        if let Some(wires) = &self.wires {
            wires.remove();
        }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// For claims and the leader's turns.
    pub(crate) fn steady(&self) -> &PgPool {
        &self.steady
    }

    /// For statements that may take minutes.
    pub(crate) fn patient(&self) -> &PgPool {
        &self.patient
    }
}
