//! Proofs: each claim is a query whose rows contradict it. An auditor can rerun every text as it is.
//!
//! Some claims group by a unique key, so that no row could ever show while the key stands; each of
//! those has a companion that compares the ledger with something else: an effect, the engine's own
//! rows, the bytes behind a hash.

use cofferdam_contracts::proof::{ProofReport, ProofResult, Verdict};
use serde_json::Value;

use crate::Ledger;
use crate::error::Result;

/// Rows of one proof that are reported; one is enough to fail it.
const MAX_ROWS: usize = 100;

/// One claim.
#[derive(Debug, Clone, Copy)]
pub struct Proof {
    /// Its name.
    pub name: &'static str,
    /// What it claims.
    pub claim: &'static str,
    /// What a row would mean.
    pub meaning: &'static str,
    /// The query. `$1` is a run's id, or NULL for all; `$2` is a tenant, or NULL for all.
    pub sql: &'static str,
}

/// Every proof.
pub const PROOFS: &[Proof] = &[
    Proof {
        name: "run_steps_unique",
        claim: "a step's attempt is recorded once",
        meaning: "a step attempt has two rows",
        sql: "SELECT run_id, step_id, attempt, count(*) FROM app.run_steps WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) GROUP BY 1, 2, 3 HAVING count(*) > 1",
    },
    Proof {
        name: "artifacts_unique",
        claim: "an artifact's place is taken once",
        meaning: "two artifacts stand at one place",
        sql: "SELECT run_id, step_id, task_key, attempt, idx, count(*) FROM app.artifacts WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) GROUP BY 1, 2, 3, 4, 5 HAVING count(*) > 1",
    },
    Proof {
        name: "sbx_runs_unique",
        claim: "one effect, one key",
        meaning: "a task key stands for two effects",
        sql: "SELECT task_key, count(*) FROM app.sbx_runs WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) GROUP BY 1 HAVING count(*) > 1",
    },
    Proof {
        name: "interactions_unique",
        claim: "a reply counts once",
        meaning: "a reply was recorded twice",
        sql: "SELECT workflow_id, gate_key, topic, dedupe_key, count(*) FROM app.human_interactions WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) GROUP BY 1, 2, 3, 4 HAVING count(*) > 1",
    },
    Proof {
        name: "decisions_unique",
        claim: "a gate is decided once",
        meaning: "a gate has two decisions",
        sql: "SELECT e.workflow_uuid, e.key, count(*) FROM dbos.workflow_events e JOIN app.runs r ON r.workflow_id = e.workflow_uuid WHERE e.key LIKE 'decision:%' AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) GROUP BY 1, 2 HAVING count(*) > 1",
    },
    Proof {
        name: "prompts_unique",
        claim: "a prompt is emitted once",
        meaning: "a gate has a phantom prompt",
        sql: "SELECT h.workflow_uuid, h.key, count(*) FROM dbos.workflow_events_history h JOIN app.runs r ON r.workflow_id = h.workflow_uuid WHERE h.key LIKE 'ui:%' AND h.key NOT LIKE '%:result' AND h.key NOT LIKE '%:audit' AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) GROUP BY 1, 2 HAVING count(*) > 1",
    },
    Proof {
        name: "escalations_unique",
        claim: "a gate escalates once",
        meaning: "a gate has two escalations",
        sql: "SELECT w.workflow_uuid, count(*) FROM dbos.workflow_status w JOIN app.human_gates g ON g.escalation_workflow_id = w.workflow_uuid WHERE w.workflow_uuid LIKE 'esc:%' AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2) GROUP BY 1 HAVING count(*) > 1",
    },
    Proof {
        name: "opencode_calls_unique",
        claim: "a provider operation is recorded once",
        meaning: "an operation key stands for two calls",
        sql: "SELECT op_key, count(*) FROM app.opencode_calls WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) GROUP BY 1 HAVING count(*) > 1",
    },
    Proof {
        name: "hashes_well_formed",
        claim: "every hash is 64 hex digits",
        meaning: "an artifact or a reply has a hash that is none",
        sql: "SELECT 'artifact' AS what, uri AS id, sha256 AS hash FROM app.artifacts WHERE sha256 !~ '^[a-f0-9]{64}$' AND ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) UNION ALL SELECT 'interaction', workflow_id || ' ' || gate_key || ' ' || dedupe_key, payload_hash FROM app.human_interactions WHERE payload_hash !~ '^[a-f0-9]{64}$' AND ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
    },
    Proof {
        name: "artifact_bytes_match",
        claim: "every artifact's bytes have the recorded hash and size",
        meaning: "stored bytes were changed or are missing",
        sql: "SELECT a.uri, a.sha256, encode(sha256(coalesce(convert_to(a.inline, 'UTF8'), b.bytes)), 'hex') AS actual FROM app.artifacts a LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL WHERE ($1::text IS NULL OR a.run_id = $1) AND ($2::text IS NULL OR a.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) AND (coalesce(convert_to(a.inline, 'UTF8'), b.bytes) IS NULL OR encode(sha256(coalesce(convert_to(a.inline, 'UTF8'), b.bytes)), 'hex') <> a.sha256 OR octet_length(coalesce(convert_to(a.inline, 'UTF8'), b.bytes)) <> a.size)",
    },
    Proof {
        name: "index_lists_every_artifact",
        claim: "a finished task's index lists exactly its artifacts",
        meaning: "an artifact was added to, or lost from, a finished task",
        sql: "SELECT s.task_key, count(a.idx) AS artifacts, jsonb_array_length((SELECT i.inline::jsonb->'items' FROM app.artifacts i WHERE i.task_key = s.task_key AND i.idx = 0 AND i.inline IS NOT NULL)) AS listed FROM app.sbx_runs s LEFT JOIN app.artifacts a ON a.task_key = s.task_key AND a.idx > 0 WHERE s.response IS NOT NULL AND NOT (s.canceled AND s.response->>'sandboxRef' = '') AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2)) GROUP BY s.task_key HAVING NOT EXISTS (SELECT 1 FROM app.artifacts i WHERE i.task_key = s.task_key AND i.idx = 0) OR count(a.idx) <> coalesce((SELECT jsonb_array_length(i.inline::jsonb->'items') FROM app.artifacts i WHERE i.task_key = s.task_key AND i.idx = 0 AND i.inline IS NOT NULL), count(a.idx))",
    },
    Proof {
        name: "terminal_sessions_wiped",
        claim: "a session ends only with a verified wipe",
        meaning: "a sandbox is called ended without evidence that it is gone",
        sql: "SELECT s.sandbox_id, s.state FROM app.remote_execution_sessions s LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.wipe_status = 'verified' AND w.terminal_state = s.state WHERE s.state IN ('COMPLETED','FAILED','CANCELED','ORPHANED') AND w.sandbox_id IS NULL AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.tenant_id = $2)",
    },
    Proof {
        name: "wipe_evidence_holds",
        claim: "verified evidence has checks, and every check passed",
        meaning: "evidence says verified although a check failed, or nothing was checked",
        sql: "SELECT w.sandbox_id, w.evidence->'checks' AS checks FROM app.secure_wipe_evidence w WHERE w.wipe_status = 'verified' AND (coalesce(jsonb_array_length(w.evidence->'checks'), 0) = 0 OR EXISTS (SELECT 1 FROM jsonb_array_elements(w.evidence->'checks') c WHERE (c->>'ok') IS DISTINCT FROM 'true') OR w.evidence->>'sandboxId' IS DISTINCT FROM w.sandbox_id) AND ($1::text IS NULL OR w.run_id = $1) AND ($2::text IS NULL OR w.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
    },
    Proof {
        name: "executions_have_sessions",
        claim: "every physical start of a sandbox has its session",
        meaning: "a sandbox was started off the record, or a start was erased",
        sql: "SELECT coalesce(e.task_key, s.task_key) AS task_key, e.execution_no, e.sandbox_id AS started, s.sandbox_id AS session FROM app.sbx_executions e FULL JOIN app.remote_execution_sessions s ON s.sandbox_id = e.sandbox_id WHERE (e.sandbox_id IS NOT NULL OR s.sandbox_id IS NOT NULL) AND (s.sandbox_id IS NULL OR e.task_key IS NULL OR e.execution_no <> s.execution_no OR e.task_key <> s.task_key) AND ($1::text IS NULL OR coalesce(s.run_id, (SELECT x.run_id FROM app.sbx_runs x WHERE x.task_key = e.task_key)) = $1) AND ($2::text IS NULL OR coalesce(s.tenant_id, (SELECT r.tenant_id FROM app.sbx_runs x JOIN app.runs r ON r.id = x.run_id WHERE x.task_key = e.task_key)) = $2)",
    },
    Proof {
        name: "results_were_executed",
        claim: "every result comes from a recorded start",
        meaning: "a task has a result although it was never started",
        sql: "SELECT s.task_key, s.err_code FROM app.sbx_runs s WHERE s.response IS NOT NULL AND NOT s.canceled AND NOT EXISTS (SELECT 1 FROM app.sbx_executions e WHERE e.task_key = s.task_key) AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
    },
    Proof {
        name: "tasks_match_engine",
        claim: "every task attempt is a workflow of the engine, and a finished workflow has its result",
        meaning: "the engine and the ledger disagree about a task",
        sql: "SELECT s.task_key, w.status, s.err_code FROM app.sbx_runs s LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key WHERE (w.workflow_uuid IS NULL OR (w.status IN ('SUCCESS','ERROR','MAX_RECOVERY_ATTEMPTS_EXCEEDED') AND s.response IS NULL)) AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
    },
    Proof {
        name: "runs_match_engine",
        claim: "a terminal run and its workflow agree",
        meaning: "the ledger says one thing and the engine another",
        sql: "SELECT r.id, r.status, w.status AS engine FROM app.runs r LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id WHERE (w.workflow_uuid IS NULL OR (r.status = 'succeeded' AND w.status NOT IN ('SUCCESS','PENDING','ENQUEUED')) OR (r.status IN ('failed','retries_exceeded') AND w.status NOT IN ('ERROR','PENDING','ENQUEUED','MAX_RECOVERY_ATTEMPTS_EXCEEDED')) OR (r.status = 'canceled' AND w.status <> 'CANCELLED') OR (r.status IN ('queued','running','waiting_input','repairing') AND w.status IN ('SUCCESS','ERROR','CANCELLED','MAX_RECOVERY_ATTEMPTS_EXCEEDED')) OR (r.finished_at < clock_timestamp() - interval '1 minute' AND w.status IN ('PENDING','ENQUEUED') AND r.status IN ('succeeded','failed','retries_exceeded'))) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "succeeded_runs_are_whole",
        claim: "a run succeeded only if the last attempt of each of its tasks did",
        meaning: "a run is called a success although a task failed or is missing",
        sql: "SELECT r.id, l.step_id, l.err_code FROM app.runs r JOIN app.latest_sbx_runs l ON l.run_id = r.id WHERE r.status = 'succeeded' AND l.err_code IS DISTINCT FROM 'NONE' AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT r.id, 'ExecuteST', NULL FROM app.runs r WHERE r.status = 'succeeded' AND NOT EXISTS (SELECT 1 FROM app.run_steps s WHERE s.run_id = r.id AND s.step_id = 'ExecuteST' AND s.status = 'ok') AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "gated_work_was_approved",
        claim: "behind a plan gate nothing was started before exactly this plan was approved",
        meaning: "a task started without consent, before it, or for another plan",
        sql: "SELECT s.task_key, e.started_at, p.approved_at, r.plan_digest, p.plan_digest AS approved FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id JOIN app.sbx_runs s ON s.run_id = g.run_id JOIN app.sbx_executions e ON e.task_key = s.task_key LEFT JOIN app.plan_approvals p ON p.run_id = g.run_id WHERE g.gate_key LIKE 'approve-plan%' AND (p.run_id IS NULL OR p.approved_at > e.started_at OR p.plan_digest IS DISTINCT FROM r.plan_digest) AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2)",
    },
    Proof {
        name: "accepted_replies_decide",
        claim: "a gate accepts at most one reply, and every published decision has one or a timeout",
        meaning: "a gate took two answers, or a decision came from nowhere",
        sql: "SELECT g.workflow_id, g.gate_key, count(i.id) AS accepted, g.state FROM app.human_gates g LEFT JOIN app.human_interactions i ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key AND i.topic = g.topic AND i.outcome = 'accepted' WHERE ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2) GROUP BY g.workflow_id, g.gate_key, g.state HAVING count(i.id) > 1 OR (count(i.id) = 0 AND g.state <> 'timed_out' AND EXISTS (SELECT 1 FROM dbos.workflow_events e WHERE e.workflow_uuid = g.workflow_id AND e.key = 'decision:' || g.gate_key)) OR (count(i.id) = 0 AND g.state IN ('received','resolved'))",
    },
    Proof {
        name: "reply_payloads_match",
        claim: "every decision acted on the reply that was recorded, and carries its hash",
        meaning: "what the workflow acted on is not what was recorded",
        sql: "SELECT g.workflow_id, g.gate_key, i.payload_hash, e.value::jsonb->>'payloadHash' AS acted_on, i.payload, e.value::jsonb->'payload' AS acted_on_payload FROM app.human_gates g JOIN app.human_interactions i ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key AND i.outcome = 'accepted' JOIN dbos.workflow_events e ON e.workflow_uuid = g.workflow_id AND e.key = 'ui:' || g.gate_key || ':result' WHERE (e.value::jsonb->>'payloadHash' IS DISTINCT FROM i.payload_hash OR e.value::jsonb->'payload' IS DISTINCT FROM i.payload) AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2)",
    },
    Proof {
        name: "parents_do_not_starve",
        claim: "no parent waits in its queue while its queue's workers are idle",
        meaning: "a run has been queued for over a minute although workers are alive",
        sql: "SELECT w.workflow_uuid, w.created_at FROM dbos.workflow_status w JOIN app.runs r ON r.workflow_id = w.workflow_uuid WHERE w.queue_name = 'intentQ' AND w.status = 'ENQUEUED' AND w.updated_at < app.ms(clock_timestamp()) - 60000 AND EXISTS (SELECT 1 FROM app.executors e WHERE e.state = 'live' AND e.heartbeat_at > clock_timestamp() - interval '10 seconds' AND e.started_at < clock_timestamp() - interval '1 minute') AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "partitions_are_named",
        claim: "all fan-out work names its tenant's partition",
        meaning: "work in sbxQ belongs to no partition, or to another run's",
        sql: "SELECT w.workflow_uuid, w.queue_partition_key, r.partition_key FROM dbos.workflow_status w JOIN app.sbx_runs s ON s.task_key = w.workflow_uuid JOIN app.runs r ON r.id = s.run_id WHERE (w.queue_name IS DISTINCT FROM 'sbxQ' OR coalesce(btrim(w.queue_partition_key), '') = '' OR w.queue_partition_key <> r.partition_key) AND w.status <> 'MAX_RECOVERY_ATTEMPTS_EXCEEDED' AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "dispatch_specs_unchanged",
        claim: "a dispatch's sandbox_spec is the one that it was created with",
        meaning: "what was asked for was changed afterwards",
        sql: "SELECT d.id, m.spec_hash, d.sandbox_spec FROM app.dispatches d LEFT JOIN app.dispatch_runs m ON m.dispatch_id = d.id WHERE (m.dispatch_id IS NULL OR (d.sandbox_spec IS NULL) <> (m.spec_hash IS NULL) OR d.sandbox_spec IS DISTINCT FROM m.spec_canonical::jsonb OR encode(sha256(convert_to(m.spec_canonical, 'UTF8')), 'hex') IS DISTINCT FROM m.spec_hash) AND ($1::text IS NULL OR m.run_id = $1) AND ($2::text IS NULL OR m.tenant_id = $2)",
    },
    Proof {
        name: "dispatch_effective_at_end",
        claim: "a dispatch with a spec has an effective policy if and only if it is over",
        meaning: "an end without what was enforced, or what was enforced before an end",
        sql: "SELECT d.id, d.status, d.sandbox_effective IS NOT NULL AS effective FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id WHERE ((d.sandbox_effective IS NOT NULL AND d.status NOT IN ('completed','failed','timeout','cancelled')) OR (m.run_id IS NOT NULL AND d.status IN ('completed','failed','timeout','cancelled') AND (d.sandbox_effective IS NULL) <> (d.sandbox_spec IS NULL))) AND ($1::text IS NULL OR m.run_id = $1) AND ($2::text IS NULL OR m.tenant_id = $2)",
    },
    Proof {
        name: "dispatches_match_runs",
        claim: "a dispatch is over when its run is and every attempt has answered, and agrees with it",
        meaning: "a dispatch and its run disagree",
        sql: "SELECT d.id, d.status, r.status AS run_status FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id JOIN app.runs r ON r.id = m.run_id WHERE ((d.status = 'completed' AND r.status <> 'succeeded') OR (d.status IN ('spawned','running') AND (r.status = 'succeeded' OR (r.status IN ('failed','canceled','retries_exceeded') AND NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL)))) OR (d.sandbox_effective IS NOT NULL AND EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response ? 'agent') AND NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND (s.response #> '{agent,effective}' = d.sandbox_effective OR NOT s.response ? 'agent')))) AND ($1::text IS NULL OR m.run_id = $1) AND ($2::text IS NULL OR m.tenant_id = $2)",
    },
];

impl Ledger {
    /// Runs every proof, for one run or all, for one tenant or all, on one snapshot of the database.
    pub async fn prove(&self, run: Option<&str>, tenant: Option<&str>) -> Result<ProofReport> {
        let mut tx = self.pool().begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .execute(&mut *tx)
            .await?;
        let mut proofs = Vec::with_capacity(PROOFS.len());
        for proof in PROOFS {
            let text = format!("SELECT to_jsonb(q) FROM ({}) q LIMIT {MAX_ROWS}", proof.sql);
            let rows: Vec<Value> = sqlx::query_scalar(sqlx::AssertSqlSafe(text))
                .bind(run)
                .bind(tenant)
                .fetch_all(&mut *tx)
                .await?;
            proofs.push(ProofResult {
                name: proof.name.to_owned(),
                claim: proof.claim.to_owned(),
                meaning: proof.meaning.to_owned(),
                sql: proof.sql.to_owned(),
                rows,
            });
        }
        let verdict =
            if proofs.iter().all(|p| p.rows.is_empty()) { Verdict::Go } else { Verdict::NoGo };
        Ok(ProofReport { schema_version: 1, verdict, proofs })
    }
}
