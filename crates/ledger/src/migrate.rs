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
        /// Every migration in order: the name of its file, which begins with its version, and its text.
        pub const MIGRATIONS: &[(&str, &str)] =
            &[$(($file, include_str!(concat!("../migrations/", $file, ".sql"))),)+];
    };
}

migrations! {
    "0001_law", "0002_keys", "0003_config", "0004_recipes", "0005_runs", "0006_tasks",
    "0007_artifacts", "0008_sessions", "0009_gates", "0010_reach", "0011_cache", "0012_queues",
    "0013_dispatches", "0014_webhooks", "0015_dispatch_ends", "0016_webhook_events",
    "0017_gate_audit", "0018_secrets", "0019_models", "0020_planner", "0021_live",
    "0022_answers_use_quota", "0023_live_again", "0024_snapshots", "0025_resumes",
    "0026_claims_say_what_is_left", "0027_live_beside", "0028_live_programs",
    "0029_kept_by_pauses", "0030_live_lists", "0031_patch_applies", "0032_templates",
    "0033_live_networks", "0034_template_layers", "0035_lives_begin_at_once",
    "0036_layers_that_rest", "0037_what_proofs_compare", "0038_lives_use_quota",
    "0039_lives_of_who_was_asked", "0040_bases_are_of_their_source", "0041_cache_writes",
    "0042_state_directories", "0043_doors_end_with_their_key", "0044_room_and_open_attempts",
    "0045_adopted_places", "0046_what_waits_says_so", "0047_a_place_is_counted_to_a_bound",
    "0048_classes_and_queues",
    "0049_a_commit_says_what_was_shown",
    "0050_tokens_are_counted",
    "0051_lives_that_ran",
    "0052_lives_have_states",
    "0053_lives_that_are_to_end",
    "0054_lives_follow_one_table",
    "0055_places_of_tasks",
    "0056_test_reports",
    "0057_pages_of_runs",
    "0058_modes_of_artifacts",
    "0059_graphs_of_runs",
    "0060_stored_objects",
    "0061_intent_trees",
    "0062_usage",
    "0063_schedules_and_hooks",
    "0064_retention",
    "0065_names_and_rows_of_triggers",
    "0066_objects_of_a_run",
    "0067_gates_of_graphs",
    "0068_intent_images",
    "0069_sent_trees",
    "0070_intent_refs",
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
        // Through the wires of this one, which goes on.
        let own =
            Self { steady: pool.clone(), patient: pool.clone(), pool, wires: None, ..self.clone() };
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
        let ours = series()?;
        self.baseline_check(&ours).await?;
        dbos::sysdb::migrations::runner::run(self.pool(), "dbos", true)
            .await
            .map_err(|e| LedgerError::Migrate(Box::new(e)))?;
        let mut migrator = Migrator::with_migrations(ours);
        migrator.dangerous_set_table_name("app.schema_migrations");
        migrator.create_schema("app");
        // The lock above covers both series.
        migrator.set_locking(false);
        // A newer binary may have migrated further; an older one goes on with what it knows.
        migrator.set_ignore_missing(true);
        migrator.run(self.pool()).await?;
        self.queues_register().await
    }

    /// Refuses, before anything is changed, a database whose migrations are not ours: the series only ever
    /// grows, so a version that says something else is of another baseline.
    async fn baseline_check(&self, ours: &[Migration]) -> Result<()> {
        let is_ours: Option<String> =
            sqlx::query_scalar("SELECT to_regclass('app.schema_migrations')::text")
                .fetch_one(self.pool())
                .await?;
        if is_ours.is_none() {
            return Ok(());
        }
        let applied: Vec<(i64, Vec<u8>)> =
            sqlx::query_as("SELECT version, checksum FROM app.schema_migrations ORDER BY version")
                .fetch_all(self.pool())
                .await?;
        for (version, checksum) in applied {
            let known = ours.iter().find(|one| one.version == version);
            if known.is_some_and(|one| *one.checksum != checksum[..]) {
                return Err(LedgerError::OtherBaseline { version });
            }
        }
        Ok(())
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

/// Our migrations as the driver takes them; the version is the file's number.
fn series() -> Result<Vec<Migration>> {
    let one = |(name, sql): &(&'static str, &'static str)| {
        let number = name.split('_').next().unwrap_or_default();
        let version = number.parse().map_err(|e| LedgerError::Migrate(Box::new(e)))?;
        let text = AssertSqlSafe((*sql).to_owned()).into_sql_str();
        Ok(Migration::new(version, Cow::Borrowed(*name), MigrationType::Simple, text, false))
    };
    MIGRATIONS.iter().map(one).collect()
}

/// Sandboxes of one host at a time. A sandbox's writable layer is memory, so this bounds memory as
/// much as processors; an operator changes the row.
const SBX_WORKER_CONCURRENCY: i32 = 32;
/// Sandboxes of one tenant at a time over the whole fleet.
const SBX_PARTITION_CONCURRENCY: i32 = 24;
/// Runs of one tenant that the whole fleet works on at a time; those that wait for a person are not counted.
const INTENT_PARTITION_CONCURRENCY: i32 = 128;
