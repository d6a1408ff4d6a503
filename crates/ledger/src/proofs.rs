//! Proofs: each claim is a query whose rows contradict it, a file of its own in `proofs/`. An auditor runs a
//! file as it is, by `psql -f`; `prove` runs the same text for one run or one tenant by a wrapper around it.
//!
//! Some claims group by a unique key, so that no row could ever show while the key stands; each of
//! those has a companion that compares the ledger with something else: an effect, the engine's own
//! rows, the bytes behind a hash. Where nothing else says it again, a chain of hashes does: the leader seals the rows that
//! matter a moment after they were written, and `the_chain_holds` compares (decision 0128).
//!
//! Every query yields a column `run_id`. A query whose rows may have no run yields `tenant_id` too.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::proof::{ProofReport, ProofResult, Verdict};
use serde_json::Value;

use crate::Ledger;
use crate::error::{LedgerError, Result};

/// Rows of one proof that are reported; one is enough to fail it.
const MAX_ROWS: usize = 100;

macro_rules! proofs {
    ($($name:literal),+ $(,)?) => {
        /// Every proof in the order of its report: its name and its file.
        pub const PROOFS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../proofs/", $name, ".sql"))),)+];
    };
}

proofs! {
    "run_steps_unique", "artifacts_unique", "sbx_runs_unique", "interactions_unique",
    "decisions_unique", "prompts_unique", "escalations_unique", "opencode_calls_unique",
    "hashes_well_formed", "artifact_bytes_match", "index_lists_every_artifact",
    "terminal_sessions_wiped", "settlements_are_decisions", "runs_wait_for_wipes",
    "wipe_evidence_holds", "executions_have_sessions", "sessions_say_what_they_were",
    "results_were_executed", "tasks_match_engine", "runs_match_engine", "open_runs_go_on",
    "succeeded_runs_are_whole", "gated_work_was_approved", "consents_bind_what_was_asked",
    "answers_are_counted_once", "decisions_follow_the_votes", "delegations_held",
    "edits_are_on_record", "rounds_follow_void_consents", "escalations_have_a_cause",
    "tasks_kept_their_egress", "sandboxed_runs_have_egress_policies", "names_were_consented",
    "accepted_replies_decide", "reply_payloads_match", "parents_do_not_starve",
    "partitions_are_named", "cache_keys_hold", "cache_stays_with_its_tenant",
    "cache_hits_are_on_record", "cache_bases_are_of_their_source", "egress_grants_were_decided", "link_replies_consumed",
    "webhook_deliveries_have_events", "webhook_events_reach_the_outbox",
    "webhook_events_recorded_once", "dispatch_specs_unchanged", "dispatch_effective_at_end",
    "dispatches_match_runs", "model_calls_once", "model_calls_within_budgets",
    "model_grants_were_decided", "live_sandboxes_made_once", "plain_layers_are_sealed", "kept_files_are_there", "patches_are_on_record",
    "builds_are_their_sandboxes", "layers_stay_with_their_tenant", "live_networks_follow_each_other",
    "plans_are_their_digests", "recipes_are_their_hashes", "artifacts_are_in_their_index", "task_keys_hold",
    "results_are_their_raw", "approvals_are_their_replies", "wipe_evidence_is_of_its_time", "dispatches_say_what_ran",
    "applies_say_what_was_approved", "reports_are_of_artifacts",
    "tasks_started_after_their_needs", "gated_tasks_were_agreed", "graphs_are_their_plans", "trees_are_what_was_bound",
    "usage_is_what_ran", "firings_are_once", "content_is_gone_on_record", "erasures_are_whole",
    "the_chain_holds",
}

/// One claim, as its file says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// What it claims.
    pub claim: &'static str,
    /// What a row would mean.
    pub meaning: &'static str,
    /// The query, without the semicolon that ends the file.
    pub sql: &'static str,
}

impl Proof {
    /// Reads a file: two lines of comment, then one query.
    #[must_use]
    pub fn parse(file: &'static str) -> Option<Self> {
        let (claim, rest) = file.strip_prefix("-- Claim: ")?.split_once('\n')?;
        let (meaning, query) = rest.strip_prefix("-- A row means: ")?.split_once('\n')?;
        Some(Self { claim, meaning, sql: query.trim_end().strip_suffix(';')? })
    }

    /// The query around the proof's: `$1` is a run where `by_run`, the next parameter a tenant where
    /// `by_tenant`. A row belongs to the tenant of its run and to the one that it names.
    fn scoped(&self, by_run: bool, by_tenant: bool) -> String {
        let mut conditions = Vec::new();
        if by_run {
            conditions.push("q.run_id = $1".to_owned());
        }
        if by_tenant {
            let tenant = if by_run { 2 } else { 1 };
            conditions.push(format!(
                "${tenant} IN (to_jsonb(q) ->> 'tenant_id', (SELECT r.tenant_id FROM app.runs r WHERE r.id = q.run_id))"
            ));
        }
        let condition = match conditions.is_empty() {
            true => String::new(),
            false => format!(" WHERE {}", conditions.join(" AND ")),
        };
        format!("SELECT to_jsonb(q) FROM (\n{}\n) q{condition} LIMIT {MAX_ROWS}", self.sql)
    }
}

/// All proofs as one script for `psql` alone: it reads one moment, prints a line for each proof and the verdict, and ends with an
/// error at NO_GO.
#[must_use]
pub fn script() -> String {
    let mut text = format!(
        "-- Every proof of Cofferdam {}, for PostgreSQL's own client:\n\
         --   psql \"$(cofferdam db)\" -f proofs.sql\n\
         -- A line for each proof: rows that contradict it, its name, its claim. Exit 0 GO; exit 3 NO_GO, or a query that fails.\n\
         \\set ON_ERROR_STOP on\n\
         BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;\n\
         \\set broken 0\n",
        env!("CARGO_PKG_VERSION")
    );
    for (name, file) in PROOFS {
        // Each file parses, as a test holds; one that did not would be reported by the script.
        let Some(proof) = Proof::parse(file) else {
            text.push_str(&format!("\\warn {name} is not a proof\n"));
            continue;
        };
        let quoted = |words: &str| words.replace('\\', "\\\\").replace('\'', "''");
        text.push_str(&format!(
            "\n-- {name}: {}\n-- A row means: {}\n\
             SELECT count(*) AS found, :broken + least(count(*), 1) AS broken FROM (\n{}\n) q \\gset\n\
             \\echo :found ' {name}: {}'\n",
            proof.claim,
            proof.meaning,
            proof.sql,
            quoted(proof.claim),
        ));
    }
    text.push_str(
        "\nCOMMIT;\nSELECT :broken = 0 AS go \\gset\n\\if :go\n\\echo GO\n\\else\n\\echo NO_GO\n\
         DO $$ BEGIN RAISE EXCEPTION 'NO_GO: rows contradict a claim; run its query from this file to see them'; END $$;\n\
         \\endif\n",
    );
    text
}

/// Rows that one look of the leader seals: a database that is migrated has more, and gets them sealed bit by bit.
const SEALED_AT_ONCE: i64 = 2_000;

/// How long connections are given up that a database which ended has left, and how often.
const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

impl Ledger {
    /// Seals what was written since the last time, so that a proof sees when it is gone or changed, and folds the usage of days that
    /// are over. For the leader.
    pub async fn seal(&self) -> Result<i64> {
        let sealed = sqlx::query_scalar(
            "SELECT sealed FROM (SELECT app.chain_seal($1) AS sealed, app.usage_fold($1)) s",
        )
        .bind(SEALED_AT_ONCE);
        Ok(sealed.fetch_one(self.patient()).await?)
    }

    /// All proofs read one moment. Connections of a database that ended meanwhile are found broken by their first statement, and
    /// each is given up.
    async fn snapshot(&self) -> Result<sqlx::Transaction<'_, sqlx::Postgres>> {
        let begin = async || -> Result<_> {
            let mut tx = self.patient().begin().await?;
            sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                .execute(&mut *tx)
                .await?;
            Ok(tx)
        };
        let waited = Stopwatch::start();
        loop {
            match begin().await {
                Err(LedgerError::Unavailable(_)) if waited.elapsed() < PATIENCE => {
                    clock::sleep(AGAIN).await;
                }
                begun => return begun,
            }
        }
    }

    /// Runs every proof, for one run or all, for one tenant or all, on one snapshot of the database.
    pub async fn prove(&self, run: Option<&str>, tenant: Option<&str>) -> Result<ProofReport> {
        let mut tx = self.snapshot().await?;
        let mut proofs = Vec::with_capacity(PROOFS.len());
        for (name, file) in PROOFS {
            let unread = || LedgerError::Row { what: "proof", why: (*name).to_owned() };
            let proof = Proof::parse(file).ok_or_else(unread)?;
            let text = proof.scoped(run.is_some(), tenant.is_some());
            let mut query = sqlx::query_scalar(sqlx::AssertSqlSafe(text));
            for scope in [run, tenant].into_iter().flatten() {
                query = query.bind(scope);
            }
            let rows: Vec<Value> = query.fetch_all(&mut *tx).await?;
            proofs.push(ProofResult {
                name: (*name).to_owned(),
                claim: proof.claim.to_owned(),
                meaning: proof.meaning.to_owned(),
                sql: proof.sql.to_owned(),
                rows,
            });
        }
        let verdict =
            if proofs.iter().all(|p| p.rows.is_empty()) { Verdict::Go } else { Verdict::NoGo };
        Ok(ProofReport { schema_version: 1, verdict, proofs, objects: None })
    }
}
