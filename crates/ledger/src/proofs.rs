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
        claim: "a session ends only with a verified wipe, or by an operator's recorded settlement",
        meaning: "a sandbox is called ended without evidence that it is gone, and nobody decided so",
        sql: "SELECT s.sandbox_id, s.state FROM app.remote_execution_sessions s LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.wipe_status = 'verified' AND w.terminal_state = s.state LEFT JOIN app.wipe_settlements d ON d.sandbox_id = s.sandbox_id AND d.terminal_state = s.state WHERE s.state IN ('COMPLETED','FAILED','CANCELED','ORPHANED') AND w.sandbox_id IS NULL AND d.sandbox_id IS NULL AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.tenant_id = $2)",
    },
    Proof {
        name: "settlements_are_decisions",
        claim: "a session without a verified wipe ended by one audited decision over exactly the failed evidence that is on record",
        meaning: "a settlement has no failed evidence, another one than was decided on, no audit row, or a verified wipe beside it",
        sql: "SELECT d.sandbox_id, d.actor, d.evidence_look, w.wipe_status, s.state FROM app.wipe_settlements d LEFT JOIN app.remote_execution_sessions s ON s.sandbox_id = d.sandbox_id LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = d.sandbox_id AND w.look = d.evidence_look WHERE (s.state IS DISTINCT FROM d.terminal_state OR w.wipe_status IS DISTINCT FROM 'failed' OR encode(sha256(convert_to(w.evidence::text, 'UTF8')), 'hex') IS DISTINCT FROM d.evidence_digest OR EXISTS (SELECT 1 FROM app.secure_wipe_evidence v WHERE v.sandbox_id = d.sandbox_id AND (v.wipe_status = 'verified' OR v.look > d.evidence_look)) OR NOT EXISTS (SELECT 1 FROM app.audit a WHERE a.op = 'session.settle' AND a.target = d.sandbox_id AND a.tenant_id = d.tenant_id AND a.key_id = d.key_id AND a.reason = d.reason)) AND ($1::text IS NULL OR d.run_id = $1) AND ($2::text IS NULL OR d.tenant_id = $2)",
    },
    Proof {
        name: "runs_wait_for_wipes",
        claim: "a run ends by itself only after every one of its sandboxes is provably gone, or settled",
        meaning: "a run ended while a session of it had not",
        sql: "SELECT s.sandbox_id, s.run_id, s.state, r.status FROM app.remote_execution_sessions s JOIN app.runs r ON r.id = s.run_id WHERE r.status IN ('succeeded','failed','retries_exceeded') AND (s.ended_at IS NULL OR s.ended_at > r.finished_at) AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.tenant_id = $2)",
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
        name: "sessions_say_what_they_were",
        claim: "a session names the class and runtime that its sandbox really had",
        meaning: "a session claims another isolation than was enforced",
        sql: "SELECT s.sandbox_id, s.class, s.runtime, s.attestation, x.effective->>'isolationClass' AS enforced, x.effective->>'runtime' AS ran FROM app.remote_execution_sessions s JOIN app.sbx_runs x ON x.task_key = s.task_key AND x.response->>'sandboxRef' = s.sandbox_id WHERE x.effective IS NOT NULL AND s.attestation IS NOT NULL AND (s.class IS DISTINCT FROM x.effective->>'isolationClass' OR s.runtime IS DISTINCT FROM x.effective->>'runtime' OR s.runtime_version IS DISTINCT FROM x.effective->>'runtimeVersion' OR s.attestation->>'class' IS DISTINCT FROM s.class OR s.attestation->>'runtime' IS DISTINCT FROM s.runtime OR s.attestation->>'kernel' IS DISTINCT FROM x.effective->>'kernel') AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.tenant_id = $2)",
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
        name: "open_runs_go_on",
        claim: "a run that is not over is queued, delayed for a time to come, or in the hands of a live worker, and so is each of its tasks",
        meaning: "a run or a task waits for nobody: it will never end",
        sql: "SELECT x.run_id, x.wid AS workflow, w.status AS engine, w.executor_id, e.state, e.heartbeat_at FROM (SELECT r.id AS run_id, r.workflow_id AS wid FROM app.runs r WHERE r.status NOT IN ('succeeded','failed','canceled','retries_exceeded') AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT r.id, s.task_key FROM app.runs r JOIN app.sbx_runs s ON s.run_id = r.id WHERE r.status NOT IN ('succeeded','failed','canceled','retries_exceeded') AND s.response IS NULL AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)) x JOIN dbos.workflow_status w ON w.workflow_uuid = x.wid LEFT JOIN app.executors e ON e.id = w.executor_id WHERE (w.status = 'PENDING' AND CASE WHEN e.id IS NULL THEN w.updated_at < app.ms(clock_timestamp() - interval '1 minute') ELSE coalesce(e.ended_at, e.heartbeat_at) < clock_timestamp() - interval '1 minute' END) OR (w.status = 'DELAYED' AND w.delay_until_epoch_ms < app.ms(clock_timestamp() - interval '1 minute'))",
    },
    Proof {
        name: "succeeded_runs_are_whole",
        claim: "a run succeeded only if the last attempt of each of its tasks did",
        meaning: "a run is called a success although a task failed or is missing",
        sql: "SELECT r.id, l.step_id, l.err_code FROM app.runs r JOIN app.latest_sbx_runs l ON l.run_id = r.id WHERE r.status = 'succeeded' AND l.err_code IS DISTINCT FROM 'NONE' AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT r.id, 'ExecuteST', NULL FROM app.runs r WHERE r.status = 'succeeded' AND NOT EXISTS (SELECT 1 FROM app.run_steps s WHERE s.run_id = r.id AND s.step_id = 'ExecuteST' AND s.status = 'ok') AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "gated_work_was_approved",
        claim: "behind a plan gate nothing was started before exactly this plan was approved, or under a consent that is void",
        meaning: "a task started without consent, before it, under a void one, or for another plan",
        sql: "SELECT s.task_key, e.started_at, p.approved_at, r.plan_digest, p.plan_digest AS approved FROM (SELECT DISTINCT run_id, tenant_id FROM app.human_gates WHERE gate_key LIKE 'approve-plan%') g JOIN app.runs r ON r.id = g.run_id JOIN app.sbx_runs s ON s.run_id = g.run_id JOIN app.sbx_executions e ON e.task_key = s.task_key LEFT JOIN LATERAL (SELECT a.* FROM app.plan_approvals a WHERE a.run_id = g.run_id ORDER BY a.round DESC LIMIT 1) p ON true WHERE (p.run_id IS NULL OR p.approved_at > e.started_at OR p.plan_digest IS DISTINCT FROM r.plan_digest OR EXISTS (SELECT 1 FROM app.plan_consents_void v WHERE v.run_id = p.run_id AND v.round = p.round)) AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2)",
    },
    Proof {
        name: "consents_bind_what_was_asked",
        claim: "a consent is bound to the five digests that its gate showed, unless its approver edited the plan",
        meaning: "a consent is bound to something that nobody was shown",
        sql: "SELECT p.run_id, p.round, p.plan_digest, g.bindings FROM app.plan_approvals p JOIN app.human_gates g ON g.run_id = p.run_id AND g.gate_key = p.gate_key WHERE g.bindings IS NOT NULL AND NOT EXISTS (SELECT 1 FROM app.gate_edits e WHERE e.run_id = p.run_id AND e.gate_key = p.gate_key) AND (p.plan_digest, p.sandbox_digest, p.egress_digest, p.image_digest, p.budget_digest) IS DISTINCT FROM (g.bindings->>'plan', g.bindings->>'sandbox', g.bindings->>'egress', g.bindings->>'image', g.bindings->>'budget') AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2)",
    },
    Proof {
        name: "answers_are_counted_once",
        claim: "every answer that counts is one vote of one key, for one authority, and says what was recorded",
        meaning: "a vote without its answer, an answer without its vote, or one person counted twice",
        sql: "SELECT v.run_id, v.gate_key, v.voter, i.outcome, v.choice FROM app.gate_votes v JOIN app.runs r ON r.id = v.run_id LEFT JOIN app.human_interactions i ON i.id = v.interaction_id WHERE (i.id IS NULL OR i.outcome NOT IN ('accepted','voted') OR i.key_id <> v.voter OR i.run_id <> v.run_id OR i.gate_key <> v.gate_key OR v.choice <> CASE WHEN i.payload->>'choice' = 'yes' OR i.payload->>'approved' = 'true' OR i.payload->>'decision' IN ('yes','approve','approved') THEN 'yes' ELSE 'no' END) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT i.run_id, i.gate_key, i.key_id, i.outcome, NULL FROM app.human_interactions i JOIN app.runs r ON r.id = i.run_id WHERE i.outcome IN ('accepted','voted') AND NOT EXISTS (SELECT 1 FROM app.gate_votes v WHERE v.interaction_id = i.id) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT v.run_id, v.gate_key, v.authority, count(*)::text, NULL FROM app.gate_votes v JOIN app.runs r ON r.id = v.run_id WHERE ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) GROUP BY 1, 2, 3 HAVING count(*) > 1",
    },
    Proof {
        name: "decisions_follow_the_votes",
        claim: "a gate is decided by its quorum or its veto, by people who may, and silence decides as the recipe says",
        meaning: "a gate was decided by too few, by its own submitter, or against its recipe",
        sql: "SELECT g.run_id, g.gate_key, e.value::jsonb->>'decision' AS decision, c.yes, c.no, g.spec FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id JOIN app.intents n ON n.id = r.intent_id JOIN dbos.workflow_events e ON e.workflow_uuid = g.workflow_id AND e.key = 'decision:' || g.gate_key CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE v.choice = 'yes') AS yes, count(*) FILTER (WHERE v.choice = 'no') AS no, bool_or(v.voter IN (r.key_id, n.key_id) OR v.authority IN (r.key_id, n.key_id)) AS own FROM app.gate_votes v WHERE v.run_id = g.run_id AND v.gate_key = g.gate_key) c CROSS JOIN LATERAL (SELECT CASE jsonb_typeof(g.spec) WHEN 'object' THEN g.spec ELSE '{}'::jsonb END AS law) s WHERE ((g.state = 'timed_out' AND (e.value::jsonb->>'decision' = 'yes') IS DISTINCT FROM (coalesce(s.law->'on_timeout'->>'then', 'deny') = 'approve')) OR (g.state IN ('received','resolved') AND e.value::jsonb->>'decision' = 'yes' AND (c.yes < coalesce((s.law->>'quorum')::int, 1) OR (c.no > 0 AND coalesce((s.law->>'veto')::boolean, true)))) OR (g.state IN ('received','resolved') AND e.value::jsonb->>'decision' = 'no' AND c.no < CASE WHEN coalesce((s.law->>'veto')::boolean, true) THEN 1 ELSE coalesce((s.law->>'quorum')::int, 1) END) OR (s.law->>'self_approval' = 'deny' AND c.own)) AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2)",
    },
    Proof {
        name: "delegations_held",
        claim: "who answered in another's place held that other's delegation, or link, at that time",
        meaning: "a vote rests on a delegation that was another's, expired or ended",
        sql: "SELECT v.run_id, v.gate_key, v.voter, v.authority, d.id FROM app.gate_votes v JOIN app.runs r ON r.id = v.run_id LEFT JOIN app.gate_delegations d ON d.id = v.delegation_id LEFT JOIN app.gate_delegation_ends x ON x.delegation_id = d.id WHERE v.voter <> v.authority AND CASE WHEN v.voter LIKE 'link:%' THEN NOT EXISTS (SELECT 1 FROM app.reply_links l WHERE l.interaction_id = v.interaction_id AND l.key_id = v.authority) ELSE (d.id IS NULL OR d.from_key <> v.authority OR d.to_key <> v.voter OR d.tenant_id <> r.tenant_id OR d.expires_at < v.created_at OR d.created_at > v.created_at OR x.ended_at < v.created_at) END AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "edits_are_on_record",
        claim: "an approver's edits are recorded field by field, as they were sent, and the plan that was approved is the edited one",
        meaning: "an edit was applied that nobody sent, or sent and not recorded",
        sql: "SELECT e.run_id, e.gate_key, e.path, e.value, i.payload->'edits' AS sent FROM app.gate_edits e JOIN app.runs r ON r.id = e.run_id LEFT JOIN app.human_interactions i ON i.id = e.interaction_id WHERE (i.id IS NULL OR i.outcome <> 'accepted' OR e.value IS DISTINCT FROM i.payload->'edits'->replace(replace(substr(e.path, 2), '~1', '/'), '~0', '~') OR e.from_value IS NOT DISTINCT FROM e.value) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT p.run_id, p.gate_key, 'plan', to_jsonb(p.plan_digest), NULL FROM app.plan_approvals p JOIN app.runs r ON r.id = p.run_id JOIN app.human_gates g ON g.run_id = p.run_id AND g.gate_key = p.gate_key WHERE EXISTS (SELECT 1 FROM app.gate_edits e WHERE e.run_id = p.run_id AND e.gate_key = p.gate_key) AND NOT EXISTS (SELECT 1 FROM app.artifacts a WHERE a.run_id = p.run_id AND a.kind = 'plan_card' AND a.attempt = p.round + 1 AND a.sha256 = p.plan_digest) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "rounds_follow_void_consents",
        claim: "a gate is asked again only where the consent before it was void, or its edit had no plan",
        meaning: "a second round was opened although the first consent held, or a void consent differs in nothing",
        sql: "SELECT g.run_id, g.gate_key, g.round FROM app.human_gates g WHERE g.round > 1 AND EXISTS (SELECT 1 FROM app.plan_approvals p WHERE p.run_id = g.run_id AND p.round = g.round - 1) AND NOT EXISTS (SELECT 1 FROM app.plan_consents_void v WHERE v.run_id = g.run_id AND v.round = g.round - 1) AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2) UNION ALL SELECT v.run_id, p.gate_key, v.round FROM app.plan_consents_void v JOIN app.runs r ON r.id = v.run_id JOIN app.plan_approvals p ON p.run_id = v.run_id AND p.round = v.round WHERE (v.bindings->>'plan', v.bindings->>'sandbox', v.bindings->>'egress', v.bindings->>'image', v.bindings->>'budget') IS NOT DISTINCT FROM (p.plan_digest, p.sandbox_digest, p.egress_digest, p.image_digest, p.budget_digest) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "escalations_have_a_cause",
        claim: "a gate is escalated once, after its deadline, and by its own workflow",
        meaning: "a gate was escalated early, twice, or without the workflow that does it",
        sql: "SELECT j.run_id, j.gate_key, j.created_at, g.escalated_at FROM app.gate_journal j JOIN app.human_gates g ON g.run_id = j.run_id AND g.gate_key = j.gate_key WHERE j.event = 'escalated' AND (g.escalated_at IS NULL OR j.created_at < g.escalated_at OR g.escalated_at < g.created_at + make_interval(secs => g.ttl_s) OR NOT EXISTS (SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = g.escalation_workflow_id)) AND ($1::text IS NULL OR g.run_id = $1) AND ($2::text IS NULL OR g.tenant_id = $2)",
    },
    Proof {
        name: "tasks_kept_their_egress",
        claim: "every sandbox could reach exactly what its run's egress policy of the phase says",
        meaning: "a task ran with another policy than the one on record, or the one on record was changed",
        sql: "SELECT s.task_key, f.phase, s.effective->f.field AS ran_with, e.policy FROM app.sbx_runs s CROSS JOIN (VALUES ('build', 'buildNet'), ('exec', 'net')) AS f(phase, field) LEFT JOIN app.egress_policy_snapshots e ON e.run_id = s.run_id AND e.phase = f.phase WHERE s.effective IS NOT NULL AND (e.run_id IS NULL OR e.policy_digest <> encode(sha256(convert_to(e.policy::text, 'UTF8')), 'hex') OR NOT EXISTS (SELECT 1 FROM jsonb_array_elements(e.policy) p WHERE p = coalesce(s.effective->f.field, '\"none\"'))) AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
    },
    Proof {
        name: "sandboxed_runs_have_egress_policies",
        claim: "a run with a sandbox has its egress policy of each phase on record",
        meaning: "a run is over whose sandboxes had no recorded egress policy",
        sql: "SELECT r.id, f.phase FROM app.runs r CROSS JOIN (VALUES ('build'), ('exec')) AS f(phase) WHERE r.status IN ('succeeded','failed','canceled','retries_exceeded') AND EXISTS (SELECT 1 FROM app.remote_execution_sessions s WHERE s.run_id = r.id) AND NOT EXISTS (SELECT 1 FROM app.egress_policy_snapshots e WHERE e.run_id = r.id AND e.phase = f.phase) AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "names_were_consented",
        claim: "no sandbox reached a name without a person at the gate, the host's own admin or the organisation's list; a build phase needs it for all but mirrors",
        meaning: "names of a phase have no consent, or another one than is on record",
        sql: "SELECT e.run_id, e.phase, e.source, e.approver, e.policy_version FROM app.egress_policy_snapshots e WHERE e.source <> 'unrecorded' AND app.policy_needs_consent(e.phase, e.policy) AND ((e.source = 'recipe' AND (e.phase = 'exec' OR e.created_at > (SELECT min(m.installed_on) FROM app.schema_migrations m WHERE m.description = '0056_build_names_need_consent'))) OR (e.source <> 'recipe' AND e.approver IS NULL) OR (e.source = 'gate' AND NOT EXISTS (SELECT 1 FROM app.plan_approvals p WHERE p.run_id = e.run_id AND p.approved_by = e.approver AND p.origin <> 'engine-dbos')) OR (e.source = 'host-admin' AND NOT app.was_host_admin(e.approver, e.created_at)) OR (e.source = 'org-policy' AND EXISTS (SELECT 1 FROM jsonb_array_elements(e.policy) l, jsonb_array_elements_text(CASE jsonb_typeof(l) WHEN 'array' THEN l ELSE '[]' END) n WHERE NOT (e.phase = 'build' AND n LIKE '@%') AND NOT EXISTS (SELECT 1 FROM app.dynamic_config c WHERE c.key = e.policy_key AND c.key = 'egress.' || e.phase || '.allowed' AND c.version = e.policy_version AND c.value ? n AND c.tenant_id IN ('*', (SELECT r.tenant_id FROM app.runs r WHERE r.id = e.run_id)))))) AND ($1::text IS NULL OR e.run_id = $1) AND ($2::text IS NULL OR e.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
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
        claim: "no parent waits in its queue while its queue's workers are idle and its tenant has less than its share",
        meaning: "a run has been queued for over a minute although workers are alive and its tenant's share is free",
        sql: "SELECT w.workflow_uuid, w.created_at FROM dbos.workflow_status w JOIN app.runs r ON r.workflow_id = w.workflow_uuid WHERE w.queue_name = 'intentQ' AND w.status = 'ENQUEUED' AND w.updated_at < app.ms(clock_timestamp()) - 60000 AND EXISTS (SELECT 1 FROM app.executors e WHERE e.state = 'live' AND e.heartbeat_at > clock_timestamp() - interval '10 seconds' AND e.started_at < clock_timestamp() - interval '1 minute') AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) AND coalesce(w.queue_partition_key, '') NOT IN (SELECT coalesce(b.queue_partition_key, '') FROM dbos.workflow_status b JOIN app.runs o ON o.workflow_id = b.workflow_uuid AND o.status <> 'waiting_input' WHERE b.queue_name = 'intentQ' AND b.status = 'PENDING' GROUP BY 1 HAVING count(*) >= (SELECT coalesce(q.partition_concurrency, 2147483647) FROM dbos.queues q WHERE q.name = 'intentQ'))",
    },
    Proof {
        name: "partitions_are_named",
        claim: "all fan-out work names its tenant's partition",
        meaning: "work in sbxQ belongs to no partition, or to another run's",
        sql: "SELECT w.workflow_uuid, w.queue_partition_key, r.partition_key FROM dbos.workflow_status w JOIN app.sbx_runs s ON s.task_key = w.workflow_uuid JOIN app.runs r ON r.id = s.run_id WHERE (w.queue_name IS DISTINCT FROM 'sbxQ' OR coalesce(btrim(w.queue_partition_key), '') = '' OR w.queue_partition_key <> r.partition_key) AND w.status <> 'MAX_RECOVERY_ATTEMPTS_EXCEEDED' AND ($1::text IS NULL OR r.id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "cache_keys_hold",
        claim: "a cached base stands once on its host, under the key of its tenant, repository and lock",
        meaning: "a base has two rows, or a key that is not its tenant's",
        sql: "SELECT i.key, i.host_id, count(*) AS rows, min(i.org_id) AS org FROM app.dependency_cache_index i WHERE i.state <> 'evicted' AND ($1::text IS NULL OR i.created_by IN (SELECT task_key FROM app.sbx_runs WHERE run_id = $1)) AND ($2::text IS NULL OR i.org_id = $2) GROUP BY i.host_id, i.state_dir, i.key HAVING count(*) > 1 UNION ALL SELECT i.key, i.host_id, 1, i.org_id FROM app.dependency_cache_index i WHERE i.key <> encode(sha256(convert_to(i.org_id || E'\\n' || i.repo_id || E'\\n' || i.lock_hash, 'UTF8')), 'hex') AND ($1::text IS NULL OR i.created_by IN (SELECT task_key FROM app.sbx_runs WHERE run_id = $1)) AND ($2::text IS NULL OR i.org_id = $2)",
    },
    Proof {
        name: "cache_stays_with_its_tenant",
        claim: "no task ever had, or made, a cached base of another tenant",
        meaning: "dependencies crossed from one tenant to another",
        sql: "SELECT t.task_key, t.entry_id, t.org_id, r.tenant_id FROM (SELECT u.task_key, u.entry_id, i.org_id FROM app.dependency_cache_uses u LEFT JOIN app.dependency_cache_index i ON i.entry_id = u.entry_id UNION ALL SELECT i.created_by, i.entry_id, i.org_id FROM app.dependency_cache_index i) t LEFT JOIN app.sbx_runs s ON s.task_key = t.task_key LEFT JOIN app.runs r ON r.id = s.run_id WHERE t.org_id IS DISTINCT FROM r.tenant_id AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR r.tenant_id = $2 OR t.org_id = $2)",
    },
    Proof {
        name: "cache_hits_are_on_record",
        claim: "every result from a cached base names a base of its own tenant, and that use is on record",
        meaning: "a task ran on dependencies off the record, or on others than it says",
        sql: "SELECT s.task_key, r.tenant_id, s.response #> '{cache}' AS said FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id WHERE s.response #>> '{cache,outcome}' = 'hit' AND NOT EXISTS (SELECT 1 FROM app.dependency_cache_uses u JOIN app.dependency_cache_index i ON i.entry_id = u.entry_id WHERE u.task_key = s.task_key AND i.org_id = r.tenant_id AND i.key = s.response #>> '{cache,key}' AND i.digest = s.response #>> '{cache,digest}' AND s.response #>> '{cache,org}' = r.tenant_id) AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR r.tenant_id = $2)",
    },
    Proof {
        name: "egress_grants_were_decided",
        claim: "a running task used no name beyond its list that a person had not granted to that phase of it",
        meaning: "a name was granted without a decision, or used without a grant",
        sql: "SELECT e.run_id, e.task_key, e.phase, e.name FROM app.egress_grants e LEFT JOIN app.human_interactions i ON i.id = e.interaction_id LEFT JOIN app.egress_asks a ON a.task_key = e.task_key AND a.phase = e.phase AND a.name = e.name LEFT JOIN app.runs r ON r.id = e.run_id WHERE (i.id IS NULL OR i.outcome <> 'accepted' OR i.run_id <> e.run_id OR i.gate_key <> e.gate_key OR a.gate_key IS DISTINCT FROM e.gate_key OR a.run_id IS DISTINCT FROM e.run_id OR i.payload->>'choice' IS DISTINCT FROM 'yes' OR i.payload#>>'{grant,name}' IS DISTINCT FROM e.name OR (i.payload#>>'{grant,until}')::bigint IS DISTINCT FROM app.ms(e.until) OR e.created_at < i.created_at OR e.granted_by <> i.key_id) AND ($1::text IS NULL OR e.run_id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT s.run_id, s.task_key, x->>'phase', x->>'name' FROM app.sbx_runs s CROSS JOIN LATERAL jsonb_array_elements(coalesce(s.effective->'granted', '[]')) x LEFT JOIN app.egress_grants e ON e.task_key = s.task_key AND e.phase = x->>'phase' AND e.name = x->>'name' WHERE (e.task_key IS NULL OR app.ms(e.until) <> (x->>'until')::bigint OR e.gate_key <> x->>'gate' OR e.created_at > s.finished_at) AND ($1::text IS NULL OR s.run_id = $1) AND ($2::text IS NULL OR s.run_id IN (SELECT id FROM app.runs WHERE tenant_id = $2))",
    },
    Proof {
        name: "link_replies_consumed",
        claim: "every reply in a link's name used that link up, in its time and for the plan that it was made for",
        meaning: "somebody answered in a link's name without the link, or a link is called used that answered nothing",
        sql: "SELECT i.run_id, i.gate_key, i.key_id, l.id AS link FROM app.human_interactions i LEFT JOIN app.reply_links l ON l.interaction_id = i.id LEFT JOIN app.runs r ON r.id = i.run_id LEFT JOIN app.plan_approvals p ON p.run_id = i.run_id AND p.key_id = i.key_id AND p.gate_key = i.gate_key AND NOT EXISTS (SELECT 1 FROM app.gate_edits d WHERE d.interaction_id = i.id) WHERE i.key_id LIKE 'link:%' AND (l.id IS NULL OR l.run_id <> i.run_id OR l.gate_key <> i.gate_key OR l.topic <> i.topic OR 'link:' || l.name <> i.key_id OR 'link:' || l.id <> i.dedupe_key OR l.tenant_id <> r.tenant_id OR l.used_at NOT BETWEEN l.created_at AND l.expires_at OR (p.run_id IS NOT NULL AND p.plan_digest IS DISTINCT FROM l.plan_digest)) AND ($1::text IS NULL OR i.run_id = $1) AND ($2::text IS NULL OR r.tenant_id = $2) UNION ALL SELECT l.run_id, l.gate_key, l.name, l.id FROM app.reply_links l WHERE (l.used_at IS NOT NULL OR l.interaction_id IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM app.human_interactions i WHERE i.id = l.interaction_id AND i.key_id = 'link:' || l.name) AND ($1::text IS NULL OR l.run_id = $1) AND ($2::text IS NULL OR l.tenant_id = $2)",
    },
    Proof {
        name: "webhook_deliveries_have_events",
        claim: "what webhooks are told happened, to their own tenant, and is what they asked for",
        meaning: "a delivery tells of something that did not happen, or tells it to the wrong one",
        sql: "SELECT d.id, d.event_type, d.run_id, d.gate_key FROM app.webhook_deliveries d LEFT JOIN app.webhooks w ON w.id = d.webhook_id LEFT JOIN app.runs r ON r.id = d.run_id LEFT JOIN app.human_gates g ON g.run_id = d.run_id AND g.gate_key = d.gate_key AND g.topic = d.topic WHERE (w.id IS NULL OR r.id IS NULL OR r.tenant_id <> w.tenant_id OR NOT d.event_type = ANY (w.events) OR d.body::jsonb->>'type' IS DISTINCT FROM d.event_type OR d.body::jsonb->'data'->>'runId' IS DISTINCT FROM d.run_id OR (d.event_type LIKE 'gate.%' AND (g.run_id IS NULL OR d.occurred_at < g.created_at)) OR (d.event_type = 'gate.decided' AND NOT EXISTS (SELECT 1 FROM app.human_interactions i WHERE i.run_id = d.run_id AND i.gate_key = d.gate_key AND i.outcome = 'accepted')) OR (d.event_type IN ('gate.timed_out','gate.escalated') AND g.escalation_workflow_id IS NULL) OR (d.event_type = 'run.terminal' AND r.finished_at IS NULL AND NOT EXISTS (SELECT 1 FROM app.audit a WHERE a.op IN ('resume','retry') AND a.target = r.workflow_id))) AND ($1::text IS NULL OR d.run_id = $1) AND ($2::text IS NULL OR w.tenant_id = $2)",
    },
    Proof {
        name: "webhook_events_reach_the_outbox",
        claim: "every gate that opened and every run that ended while a webhook asked for it has its delivery",
        meaning: "something happened and a webhook was never told",
        sql: "SELECT w.id, e.type, e.run_id, e.gate_key FROM app.webhooks w JOIN LATERAL (SELECT 'gate.opened' AS type, g.run_id, g.gate_key, g.created_at AS at FROM app.human_gates g WHERE g.tenant_id = w.tenant_id AND ($1::text IS NULL OR g.run_id = $1) UNION ALL SELECT 'run.terminal', r.id, NULL, r.finished_at FROM app.runs r WHERE r.tenant_id = w.tenant_id AND r.finished_at IS NOT NULL AND ($1::text IS NULL OR r.id = $1)) e ON e.type = ANY (w.events) WHERE e.at > w.created_at + interval '10 seconds' AND (w.removed_at IS NULL OR e.at < w.removed_at - interval '10 seconds') AND NOT EXISTS (SELECT 1 FROM app.webhook_deliveries d WHERE d.webhook_id = w.id AND d.event_type = e.type AND d.run_id = e.run_id AND d.gate_key IS NOT DISTINCT FROM e.gate_key) AND ($2::text IS NULL OR w.tenant_id = $2)",
    },
    Proof {
        name: "webhook_events_recorded_once",
        claim: "an event is recorded once for a webhook, and acknowledged once for each time that it was asked for",
        meaning: "an event is recorded twice, or called delivered without an acknowledgement",
        sql: "SELECT d.webhook_id, d.event_id, count(*) AS n FROM app.webhook_deliveries d JOIN app.webhooks w ON w.id = d.webhook_id WHERE ($1::text IS NULL OR d.run_id = $1) AND ($2::text IS NULL OR w.tenant_id = $2) GROUP BY 1, 2 HAVING count(*) > 1 UNION ALL SELECT d.webhook_id, d.event_id, k.n FROM app.webhook_deliveries d JOIN app.webhooks w ON w.id = d.webhook_id CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE a.ok) AS n, count(*) FILTER (WHERE a.ok AND a.attempt = d.attempts) AS last FROM app.webhook_attempts a WHERE a.delivery_id = d.id) k WHERE (k.n > 1 + (SELECT count(*) FROM app.audit x WHERE x.op = 'webhook.replay' AND x.target = d.id) OR (d.state = 'delivered' AND k.last = 0)) AND ($1::text IS NULL OR d.run_id = $1) AND ($2::text IS NULL OR w.tenant_id = $2)",
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
        let mut tx = self.patient().begin().await?;
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
