//! The only crate that knows SQL: migrations, one module per table family, views, proofs, and the
//! private database that a single host starts for itself.
//!
//! **Every statement is a readable text beside the function that runs it. An operation and the
//! record of it commit in one transaction. Nothing outside this crate sees the driver.**

pub mod artifacts;
pub mod audit;
pub mod cluster;
pub mod engine;
pub mod error;
pub mod executors;
pub mod gates;
pub mod intents;
pub mod keys;
pub mod listen;
pub mod migrate;
pub mod ops;
pub mod proofs;
pub mod recipes;
pub mod runs;
pub mod sessions;
pub mod steps;
pub mod streams;
pub mod tasks;

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub use error::{LedgerError, Result};

/// The version that stamps every workflow row; a worker runs only rows of its own version. It
/// changes when a workflow's steps change, so that a rolling upgrade never replays old history
/// through new code.
pub const APP_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-w1");

/// Connections of one process. 2 cores saturate well below this; PostgreSQL allows 100 in all.
const MAX_CONNECTIONS: u32 = 12;

/// A handle to the ledger; clones share one pool.
#[derive(Debug, Clone)]
pub struct Ledger {
    pool: PgPool,
}

impl Ledger {
    /// Connects; `url` may name a unix socket's directory as `?host=`.
    pub async fn connect(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(Duration::from_secs(10))
            // An idle server should hold few backends: each is about 10 MB of the host.
            .idle_timeout(Duration::from_secs(5))
            .test_before_acquire(false)
            .connect(url)
            .await?;
        Ok(Self { pool })
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Whether a statement gets through.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }
}
