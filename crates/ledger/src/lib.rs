//! The only crate that knows SQL: migrations, one module per table family, views, proofs, and the
//! private database that a single host starts for itself.
//!
//! **Every statement is a readable text beside the function that runs it. An operation and the
//! record of it commit in one transaction. Nothing outside this crate sees the driver.**

pub mod artifacts;
pub mod audit;
pub mod cache;
pub mod cluster;
pub mod config;
pub mod dispatches;
pub mod engine;
pub mod error;
pub mod executors;
pub mod failpoint;
pub mod gates;
pub mod grants;
pub mod intents;
pub mod keys;
pub mod links;
pub mod listen;
pub mod migrate;
pub mod ops;
pub mod policies;
pub mod proofs;
pub mod quota;
pub mod recipes;
pub mod runs;
pub mod sessions;
pub mod settlements;
pub mod signing;
pub mod steps;
pub mod streams;
pub mod tasks;
pub mod webhooks;

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub use error::{LedgerError, Result};

/// The version that stamps every workflow row; a worker runs only rows of its own version. It
/// changes when a workflow's steps change, so that a rolling upgrade never replays old history
/// through new code.
pub const APP_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-w2");

/// Connections of one process. 2 cores saturate well below this; PostgreSQL allows 100 in all.
const MAX_CONNECTIONS: u32 = 12;

/// Connections for what a process does all the time: claims and heartbeats. They are kept apart
/// because a pool hands out its connections in turn: regular work in the large pool would keep every
/// connection of a busy hour in use, and its backend in memory, for ever.
const STEADY_CONNECTIONS: u32 = 1;

/// A handle to the ledger; clones share its pools.
#[derive(Debug, Clone)]
pub struct Ledger {
    pool: PgPool,
    steady: PgPool,
}

impl Ledger {
    /// Connects; `url` may name a unix socket's directory as `?host=`.
    pub async fn connect(url: &str) -> Result<Self> {
        let options = PgPoolOptions::new()
            .acquire_timeout(Duration::from_secs(10))
            // An idle server should hold few backends: each is about 3 MB of the host.
            .idle_timeout(Duration::from_secs(5))
            .test_before_acquire(false);
        let pool = options.clone().max_connections(MAX_CONNECTIONS).connect(url).await?;
        let steady = options.max_connections(STEADY_CONNECTIONS).connect_lazy(url)?;
        Ok(Self { pool, steady })
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.steady.close().await;
        self.pool.close().await;
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// For claims and heartbeats.
    pub(crate) fn steady(&self) -> &PgPool {
        &self.steady
    }
}
