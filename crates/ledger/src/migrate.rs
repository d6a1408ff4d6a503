//! Forward-only migrations: the engine's own, then ours. Running twice is harmless, and two
//! processes that start together take turns.

use std::borrow::Cow;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, SqlSafeStr};

use crate::error::{LedgerError, Result};
use crate::{APP_VERSION, Ledger};

macro_rules! migrations {
    ($($file:literal),+ $(,)?) => {
        /// Every migration in order: the name of its file and its text. The version is the position, from 1.
        pub const MIGRATIONS: &[(&str, &str)] =
            &[$(($file, include_str!(concat!("../migrations/", $file, ".sql"))),)+];
    };
}

migrations! {
    "0001_law", "0002_api_keys", "0003_intents", "0004_recipes", "0005_runs", "0006_run_steps",
    "0007_artifacts", "0008_sbx_runs", "0009_sessions", "0010_gates", "0011_opencode_calls",
    "0012_run_streams", "0013_executors", "0014_audit", "0015_dynamic_config", "0016_views",
    "0017_claim", "0018_enqueue", "0019_dependency_cache", "0020_dependency_cache_uses",
    "0021_config_by_tenant", "0022_config_key", "0023_wipe_looks", "0024_wipe_settlements",
    "0025_egress_policy_snapshots", "0026_session_facts", "0027_gate_law", "0028_approval_rounds",
    "0029_key_groups", "0030_gate_delegations", "0031_gate_votes", "0032_interaction_outcomes",
    "0033_gate_edits", "0034_gate_journal", "0037_dispatches", "0038_dispatch_sandbox_columns",
    "0039_dispatch_runs", "0040_dispatch_rules", "0041_dispatch_settle", "0042_webhooks",
    "0043_webhook_events", "0044_signing_keys", "0045_reply_links", "0046_egress_asks",
    "0047_egress_grants", "0048_asks_end_with_their_task", "0050_dispatch_limits_are_the_hosts",
    "0052_no_auth_is_not_the_hosts_admin", "0053_artifacts_of_any_path", "0056_build_names_need_consent",
    "0058_reach_of_edited_plans", "0059_blob_usage", "0061_claims_are_fenced", "0062_leader_lease",
    "0063_open_runs", "0064_artifacts_by_task", "0065_reach_of_recipes",
    "0066_reach_of_whoever_asks_again", "0067_texts_use_the_quota", "0068_database_place", "0069_gate_events_say_more",
    "0070_run_retries", "0071_gate_audit_and_origins", "0072_stable_recipes", "0073_claims_cost_the_same",
    "0075_reach_of_retried_runs",
}

/// The advisory lock that makes concurrent starters take turns over both migration series.
const LOCK: i64 = 0x00c0_ffe2_da37;
/// One holds the lock while the others work.
const MIGRATION_CONNECTIONS: u32 = 3;
/// How long a starter waits for its turn: all migrations of both series take well under a second.
const TURN: Duration = Duration::from_secs(120);

impl Ledger {
    /// Brings the engine's schema and ours up to date.
    ///
    /// On connections of its own, closed afterwards: a backend that has migrated knows the whole
    /// catalog and keeps 5 MB more than one that serves.
    pub async fn migrate(&self) -> Result<()> {
        // An index over many rows says nothing for a while.
        let options = self.patient().connect_options().as_ref().clone();
        let pool = PgPoolOptions::new()
            .max_connections(MIGRATION_CONNECTIONS)
            .connect_with(options)
            .await?;
        let own = Self { steady: pool.clone(), patient: pool.clone(), pool, ..self.clone() };
        let outcome = own.migrate_in_turn().await;
        // The lock falls with its connection.
        own.close().await;
        outcome
    }

    async fn migrate_in_turn(&self) -> Result<()> {
        let mut lock = self.pool().acquire().await?;
        self.migration_turn(&mut lock).await?;
        let outcome = self.migrate_locked().await;
        sqlx::query("SELECT pg_advisory_unlock($1)").bind(LOCK).execute(&mut *lock).await?;
        outcome
    }

    /// Asks again and again instead of waiting in the database: a waiting statement is a transaction,
    /// and the engine's `CREATE INDEX CONCURRENTLY` waits for every transaction to end, so the one
    /// that migrates would wait for the one that waits for it.
    async fn migration_turn(&self, lock: &mut sqlx::PgConnection) -> Result<()> {
        let waited = Stopwatch::start();
        loop {
            let held: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
                .bind(LOCK)
                .fetch_one(&mut *lock)
                .await?;
            if held {
                return Ok(());
            }
            if waited.elapsed() > TURN {
                return Err(LedgerError::Migrate(
                    "another process has been migrating for too long".into(),
                ));
            }
            clock::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn migrate_locked(&self) -> Result<()> {
        dbos::sysdb::migrations::runner::run(self.pool(), "dbos", true)
            .await
            .map_err(|e| LedgerError::Migrate(Box::new(e)))?;
        let mut migrator = Migrator::with_migrations(
            (1_i64..)
                .zip(MIGRATIONS)
                .map(|(version, (name, sql))| {
                    let text = AssertSqlSafe((*sql).to_owned()).into_sql_str();
                    Migration::new(
                        version,
                        Cow::Borrowed(*name),
                        MigrationType::Simple,
                        text,
                        false,
                    )
                })
                .collect(),
        );
        migrator.dangerous_set_table_name("app.schema_migrations");
        migrator.create_schema("app");
        // The lock above covers both series.
        migrator.set_locking(false);
        // A newer binary may have migrated further; an older one goes on with what it knows.
        migrator.set_ignore_missing(true);
        migrator.run(self.pool()).await?;
        self.queues_register().await
    }

    /// Registers the queues once; their limits are rows that an operator may change while it runs.
    async fn queues_register(&self) -> Result<()> {
        sqlx::query(
            "INSERT INTO dbos.queues (name, worker_concurrency, priority_enabled, partition_queue,
                                      partition_concurrency, application_name)
             VALUES ('intentQ', NULL, true, false, $3, 'cofferdam'),
                    ('controlQ', NULL, true, false, NULL, 'cofferdam'),
                    ('sbxQ', $1, true, true, $2, 'cofferdam')
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(SBX_WORKER_CONCURRENCY)
        .bind(SBX_PARTITION_CONCURRENCY)
        .bind(INTENT_PARTITION_CONCURRENCY)
        .execute(self.pool())
        .await?;
        tracing::debug!(version = APP_VERSION, "the schema is current");
        Ok(())
    }
}

/// Sandboxes of one host at a time. A sandbox's writable layer is memory, so this bounds memory as
/// much as processors; an operator changes the row.
const SBX_WORKER_CONCURRENCY: i32 = 32;
/// Sandboxes of one tenant at a time over the whole fleet.
const SBX_PARTITION_CONCURRENCY: i32 = 24;
/// Runs of one tenant that the whole fleet works on at a time; those that wait for a person are not counted.
const INTENT_PARTITION_CONCURRENCY: i32 = 128;
