//! A proof that cannot fail proves nothing: for every claim a row is tampered with, in a copy of a
//! real ledger, and `cofferdam prove` has to say no and name that claim.

use crate::support;

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Output;
use std::time::Duration;

use cofferdam_tests::{Home, Server, postgres, superuser_url, tamper, text};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use support::fake_model::make_calls;
use support::{assert_proven, count, receiver, said, texts, until};

/// What somebody with the database in hand might do, and the claim that it breaks.
struct Tampering {
    proof: &'static str,
    /// Statements; `$H` is a hash, of nothing that is stored.
    sql: &'static [&'static str],
}

const OTHER_HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

macro_rules! tamper {
    ($proof:literal: $($sql:expr),+ $(,)?) => { Tampering { proof: $proof, sql: &[$($sql),+] } };
}

/// Drops every key and check of the table named in `$1`, as somebody who hides a duplicate would.
const UNBIND: &str = "DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT conname FROM pg_constraint WHERE conrelid = '$1'::regclass AND contype IN ('u', 'p', 'c') LOOP
    EXECUTE format('ALTER TABLE $1 DROP CONSTRAINT %I CASCADE', c.conname); END LOOP;
  FOR c IN SELECT indexrelid::regclass AS name FROM pg_index WHERE indrelid = '$1'::regclass AND indisunique LOOP
    EXECUTE format('DROP INDEX %s', c.name); END LOOP;
END $$";

/// A task's base, used on record by the task that made it: what the three claims hold of.
const CACHED: &str = "WITH t AS (
    SELECT s.task_key, r.tenant_id, encode(sha256(convert_to(r.tenant_id || E'\nr\n$H', 'UTF8')), 'hex') AS key
      FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id WHERE s.provider <> 'engine' LIMIT 1),
  i AS (
    INSERT INTO app.dependency_cache_index
      (org_id, repo_id, lock_hash, key, host_id, state_dir, digest, bytes, files, created_by, origin)
    SELECT tenant_id, 'r', '$H', key, 'h', '/s', '$H', 1, 1, task_key, 'manual' FROM t RETURNING entry_id),
  u AS (
    INSERT INTO app.dependency_cache_uses (task_key, execution_no, entry_id, origin)
    SELECT task_key, 1, entry_id, 'manual' FROM t, i)
  UPDATE app.sbx_runs s SET response = s.response || jsonb_build_object('cache', jsonb_build_object(
         'outcome', 'hit', 'org', t.tenant_id, 'repo', 'r', 'lockHash', '$H', 'key', t.key, 'digest', '$H'))
    FROM t WHERE s.task_key = t.task_key";

/// What an operator's settlement of one session leaves: its proof holds, until it is tampered with.
const SETTLE: [&str; 3] = [
    "UPDATE app.secure_wipe_evidence SET wipe_status = 'failed' WHERE sandbox_id = (SELECT min(sandbox_id) FROM app.secure_wipe_evidence)",
    "INSERT INTO app.wipe_settlements (sandbox_id, run_id, tenant_id, terminal_state, evidence_look, evidence_digest, actor, key_id, reason, origin) SELECT w.sandbox_id, w.run_id, s.tenant_id, w.terminal_state, w.look, app.evidence_digest(w.evidence), 'ada', 'k', 'why', 'manual' FROM app.secure_wipe_evidence w JOIN app.remote_execution_sessions s USING (sandbox_id) WHERE w.wipe_status = 'failed'",
    "INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason) SELECT tenant_id, key_id, actor, 'session.settle', sandbox_id, reason FROM app.wipe_settlements",
];

/// `$SETTLE` is [`SETTLE`]; `double TABLE [WHERE ..]` is [`UNBIND`] and one row inserted again; `unbind TABLE` alone exists too.
const TAMPERINGS: &[Tampering] = &[
    tamper!("run_steps_unique": "double app.run_steps"),
    tamper!("artifacts_unique": "double app.artifacts"),
    tamper!("sbx_runs_unique": "double app.sbx_runs"),
    tamper!("interactions_unique": "double app.human_interactions"),
    tamper!("decisions_unique": "double dbos.workflow_events WHERE key LIKE 'decision:%'"),
    tamper!("prompts_unique": "double dbos.workflow_events_history WHERE key = 'ui:approve-plan'"),
    tamper!("escalations_unique":
        "unbind dbos.workflow_status",
        "CREATE TEMP TABLE esc AS SELECT * FROM dbos.workflow_status LIMIT 1",
        "UPDATE esc SET workflow_uuid = 'esc:a:b'",
        "INSERT INTO dbos.workflow_status SELECT * FROM esc UNION ALL SELECT * FROM esc",
        "UPDATE app.human_gates SET escalation_workflow_id = 'esc:a:b'"),
    tamper!("opencode_calls_unique":
        "INSERT INTO app.opencode_calls (op_key, run_id, step_id, attempt, session_id, request, origin) SELECT '$H', id, 's', 1, 'x', '{}', 'manual' FROM app.runs LIMIT 1",
        "double app.opencode_calls"),
    tamper!("hashes_well_formed":
        "unbind app.artifacts",
        "UPDATE app.artifacts SET sha256 = upper(sha256) WHERE kind = 'plan_card'"),
    tamper!("hashes_well_formed":
        "unbind app.human_interactions",
        "UPDATE app.human_interactions SET payload_hash = 'sha256:' || payload_hash"),
    tamper!("artifact_bytes_match": "UPDATE app.artifacts SET inline = replace(inline, 'a', 'b') WHERE kind = 'plan_card'"),
    tamper!("artifact_bytes_match": "UPDATE app.artifacts SET size = size + 1 WHERE kind = 'stdout'"),
    tamper!("artifact_bytes_match": "UPDATE app.artifacts SET sha256 = '$H' WHERE kind = 'stdout'"),
    tamper!("artifact_bytes_match": "UPDATE app.blobs SET bytes = bytes || '\\x00'"),
    tamper!("artifact_bytes_match": "DELETE FROM app.blobs"),
    tamper!("index_lists_every_artifact": "DELETE FROM app.artifacts WHERE kind = 'stdout'"),
    tamper!("index_lists_every_artifact": "DELETE FROM app.artifacts WHERE kind = 'artifact_index'"),
    tamper!("index_lists_every_artifact":
        "INSERT INTO app.artifacts SELECT run_id, step_id, task_key, attempt, 99, kind, 'files/planted', uri || '2', inline, sha256, size, origin, created_at FROM app.artifacts WHERE kind = 'stdout'"),
    tamper!("terminal_sessions_wiped": "DELETE FROM app.secure_wipe_evidence"),
    tamper!("terminal_sessions_wiped": "UPDATE app.secure_wipe_evidence SET wipe_status = 'failed'"),
    tamper!("terminal_sessions_wiped": "UPDATE app.secure_wipe_evidence SET terminal_state = 'CANCELED'"),
    tamper!("settlements_are_decisions": "$SETTLE", "DELETE FROM app.audit WHERE op = 'session.settle'"),
    tamper!("settlements_are_decisions": "$SETTLE", "UPDATE app.audit SET reason = 'another' WHERE op = 'session.settle'"),
    tamper!("settlements_are_decisions": "$SETTLE", "UPDATE app.wipe_settlements SET evidence_digest = '$H'"),
    tamper!("settlements_are_decisions": "$SETTLE", "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{reason}', '\"x\"') WHERE wipe_status = 'failed'"),
    tamper!("settlements_are_decisions": "$SETTLE", "UPDATE app.secure_wipe_evidence SET wipe_status = 'verified'"),
    tamper!("settlements_are_decisions": "$SETTLE", "UPDATE app.remote_execution_sessions SET state = 'CANCELED' WHERE sandbox_id IN (SELECT sandbox_id FROM app.wipe_settlements)"),
    tamper!("runs_wait_for_wipes": "UPDATE app.remote_execution_sessions SET ended_at = NULL"),
    tamper!("runs_wait_for_wipes": "UPDATE app.remote_execution_sessions SET ended_at = ended_at + interval '1 hour'"),
    tamper!("wipe_evidence_holds": "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{checks,0,ok}', 'false')"),
    tamper!("wipe_evidence_holds": "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{checks}', '[]')"),
    tamper!("wipe_evidence_holds": "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{sandboxId}', '\"sb00000000000000000000\"')"),
    tamper!("executions_have_sessions": "DELETE FROM app.remote_execution_sessions"),
    tamper!("executions_have_sessions": "DELETE FROM app.sbx_executions WHERE sandbox_id IS NOT NULL"),
    tamper!("executions_have_sessions": "UPDATE app.remote_execution_sessions SET execution_no = 7"),
    tamper!("sessions_say_what_they_were": "UPDATE app.remote_execution_sessions SET class = 'microvm'"),
    tamper!("sessions_say_what_they_were": "UPDATE app.remote_execution_sessions SET runtime = 'another'"),
    tamper!("sessions_say_what_they_were": "UPDATE app.remote_execution_sessions SET attestation = jsonb_set(attestation, '{kernel}', '\"0\"')"),
    tamper!("results_were_executed": "DELETE FROM app.sbx_executions WHERE sandbox_id IS NULL"),
    tamper!("tasks_match_engine": "DELETE FROM dbos.workflow_status WHERE name = 'task'"),
    tamper!("tasks_match_engine": "UPDATE app.sbx_runs SET response = NULL, err_code = NULL"),
    tamper!("runs_match_engine": "UPDATE app.runs SET status = 'failed'"),
    tamper!("runs_match_engine": "UPDATE app.runs SET status = 'canceled'"),
    tamper!("runs_match_engine": "UPDATE app.runs SET status = 'running', finished_at = NULL"),
    tamper!("runs_match_engine": "UPDATE dbos.workflow_status SET status = 'ERROR' WHERE name = 'run'"),
    tamper!("runs_match_engine": "DELETE FROM dbos.workflow_status WHERE name = 'run'"),
    tamper!("runs_match_engine":
        "UPDATE dbos.workflow_status SET status = 'PENDING' WHERE name = 'run'",
        "UPDATE app.runs SET finished_at = finished_at - interval '2 minutes'"),
    tamper!("open_runs_go_on":
        "UPDATE app.runs SET status = 'running', finished_at = NULL",
        "UPDATE app.executors SET heartbeat_at = heartbeat_at - interval '2 minutes', ended_at = ended_at - interval '2 minutes'",
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = (SELECT min(id) FROM app.executors) WHERE name = 'run'"),
    tamper!("open_runs_go_on":
        "UPDATE app.runs SET status = 'running', finished_at = NULL",
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = 'ex-nobody', updated_at = 0 WHERE name = 'run'"),
    tamper!("open_runs_go_on":
        "UPDATE app.runs SET status = 'running', finished_at = NULL",
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = 'ex-nobody', updated_at = 0 WHERE name = 'task'",
        "UPDATE app.sbx_runs SET response = NULL, err_code = NULL"),
    tamper!("open_runs_go_on":
        "UPDATE app.runs SET status = 'running', finished_at = NULL",
        "UPDATE dbos.workflow_status SET status = 'DELAYED', delay_until_epoch_ms = 0 WHERE name = 'run'"),
    tamper!("succeeded_runs_are_whole": "UPDATE app.sbx_runs SET err_code = 'TIMEOUT'"),
    tamper!("succeeded_runs_are_whole": "DELETE FROM app.run_steps WHERE step_id = 'ExecuteST'"),
    tamper!("gated_work_was_approved": "DELETE FROM app.plan_approvals"),
    tamper!("gated_work_was_approved": "UPDATE app.plan_approvals SET approved_at = approved_at + interval '1 hour'"),
    tamper!("gated_work_was_approved": "UPDATE app.plan_approvals SET plan_digest = '$H'"),
    tamper!("gated_work_was_approved": "UPDATE app.runs SET plan_digest = '$H'"),
    tamper!("tasks_kept_their_egress": "UPDATE app.sbx_runs SET effective = jsonb_set(effective, '{net}', '[\"a.example\"]') WHERE effective IS NOT NULL"),
    tamper!("tasks_kept_their_egress": "UPDATE app.sbx_runs SET effective = jsonb_set(effective, '{buildNet}', '[\"a.example\"]') WHERE effective IS NOT NULL"),
    tamper!("tasks_kept_their_egress": "unbind app.egress_policy_snapshots", "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\"]]' WHERE phase = 'build'"),
    tamper!("tasks_kept_their_egress": "unbind app.egress_policy_snapshots", "UPDATE app.egress_policy_snapshots SET policy = policy || '[[\"a.example\"]]'"),
    tamper!("tasks_kept_their_egress": "UPDATE app.egress_policy_snapshots SET policy_digest = '$H'"),
    tamper!("sandboxed_runs_have_egress_policies": "DELETE FROM app.egress_policy_snapshots"),
    tamper!("sandboxed_runs_have_egress_policies": "DELETE FROM app.egress_policy_snapshots WHERE phase = 'exec'"),
    tamper!("names_were_consented": "unbind app.egress_policy_snapshots", "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\"]]', approver = 'ada' WHERE phase = 'build'"),
    tamper!("names_were_consented": "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\", \"@pip\"]]', source = 'gate', approver = 'nobody' WHERE phase = 'build'"),
    tamper!("names_were_consented": "unbind app.egress_policy_snapshots", "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\"]]', approver = 'ada' WHERE phase = 'exec'"),
    tamper!("names_were_consented": "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\"]]', source = 'gate', approver = 'nobody' WHERE phase = 'exec'"),
    tamper!("names_were_consented": "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\"]]', source = 'host-admin', approver = NULL WHERE phase = 'exec'"),
    tamper!("names_were_consented": "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\"]]', source = 'host-admin', approver = 'a-submitter' WHERE phase = 'exec'"),
    tamper!("names_were_consented":
        "INSERT INTO app.dynamic_config (key, version, value, actor) VALUES ('egress.exec.allowed', 1, '[\"b.example\"]', 'sec')",
        "UPDATE app.egress_policy_snapshots SET policy = '[[\"a.example\", \"b.example\"]]', source = 'org-policy', policy_key = 'egress.exec.allowed', policy_version = 1, approver = 'sec' WHERE phase = 'exec'"),
    tamper!("gated_work_was_approved":
        "INSERT INTO app.plan_consents_void (run_id, round, bindings, difference) SELECT run_id, round, '{}', '[]' FROM app.plan_approvals WHERE round = 1 AND approved_by = key_id"),
    tamper!("consents_bind_what_was_asked": "UPDATE app.plan_approvals SET image_digest = '$H'"),
    tamper!("consents_bind_what_was_asked": "UPDATE app.plan_approvals SET budget_digest = NULL"),
    tamper!("consents_bind_what_was_asked": "UPDATE app.human_gates SET bindings = jsonb_set(bindings, '{egress}', '\"$H\"')"),
    tamper!("answers_are_counted_once": "DELETE FROM app.gate_votes"),
    tamper!("answers_are_counted_once": "UPDATE app.gate_votes SET choice = 'no'"),
    tamper!("answers_are_counted_once": "UPDATE app.gate_votes SET voter = 'k_other', authority = 'k_other'"),
    tamper!("answers_are_counted_once": "double app.gate_votes"),
    tamper!("decisions_follow_the_votes": "UPDATE app.gate_votes SET choice = 'no'"),
    tamper!("decisions_follow_the_votes":
        "UPDATE app.human_gates SET spec = jsonb_build_object('key', gate_key, 'quorum', 2)"),
    tamper!("decisions_follow_the_votes":
        "UPDATE app.human_gates SET spec = jsonb_build_object('key', gate_key, 'self_approval', 'deny')"),
    tamper!("decisions_follow_the_votes": "UPDATE app.human_gates SET state = 'timed_out'"),
    tamper!("delegations_held": "unbind app.gate_votes", "UPDATE app.gate_votes SET authority = 'k_boss'"),
    tamper!("delegations_held":
        "unbind app.gate_votes",
        "INSERT INTO app.gate_delegations (tenant_id, from_key, to_key, reason, expires_at) SELECT 'default', 'k_boss', voter, '', now() + interval '1 s' FROM app.gate_votes LIMIT 1",
        "UPDATE app.gate_votes SET authority = 'k_boss', delegation_id = (SELECT max(id) FROM app.gate_delegations)"),
    tamper!("edits_are_on_record":
        "INSERT INTO app.gate_edits SELECT id, 0, run_id, gate_key, 'add', '/n', NULL, '1' FROM app.human_interactions"),
    tamper!("rounds_follow_void_consents":
        "INSERT INTO app.human_gates SELECT (jsonb_populate_record(g, '{\"round\": 2, \"gate_key\": \"approve-plan-r2\"}')).* FROM app.human_gates g"),
    tamper!("rounds_follow_void_consents":
        "INSERT INTO app.plan_consents_void (run_id, round, bindings, difference) SELECT p.run_id, p.round, g.bindings, '[]' FROM app.plan_approvals p JOIN app.human_gates g USING (run_id)"),
    tamper!("escalations_have_a_cause":
        "INSERT INTO app.gate_journal (run_id, gate_key, event, n, detail) SELECT run_id, gate_key, 'escalated', 1, '{}' FROM app.human_gates"),
    tamper!("accepted_replies_decide": "DELETE FROM app.human_interactions"),
    tamper!("accepted_replies_decide":
        "INSERT INTO app.human_interactions OVERRIDING SYSTEM VALUE SELECT id + 100, workflow_id, run_id, gate_key, topic, 'another', payload_hash, payload, origin, outcome, key_id, created_at FROM app.human_interactions"),
    tamper!("reply_payloads_match": "UPDATE app.human_interactions SET payload_hash = '$H'"),
    tamper!("reply_payloads_match": "UPDATE app.human_interactions SET payload = '{\"choice\": \"no\"}'"),
    tamper!("reply_payloads_match":
        "UPDATE dbos.workflow_events SET value = replace(value::text, '\"yes\"', '\"no\"') WHERE key LIKE 'ui:%:result'"),
    tamper!("parents_do_not_starve":
        "UPDATE dbos.workflow_status SET status = 'ENQUEUED', updated_at = updated_at - 120000 WHERE name = 'run'",
        "INSERT INTO app.executors (id, host_id, pid, app_version, started_at) VALUES ('ex-idle', 'h', 1, 'v', now() - interval '1 hour')"),
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_partition_key = NULL WHERE name = 'task'"),
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_partition_key = 'another' WHERE name = 'task'"),
    tamper!("egress_grants_were_decided": "DELETE FROM app.egress_grants"),
    tamper!("egress_grants_were_decided": "UPDATE app.egress_grants SET name = 'other.example'"),
    tamper!("egress_grants_were_decided": "UPDATE app.egress_grants SET until = until + interval '1 hour'"),
    tamper!("egress_grants_were_decided": "UPDATE app.egress_asks SET gate_key = 'another'"),
    tamper!("egress_grants_were_decided": "UPDATE app.human_interactions SET payload = '{\"choice\": \"no\"}' WHERE gate_key = 'egress-1'"),
    tamper!("egress_grants_were_decided":
        "UPDATE app.sbx_runs SET effective = jsonb_set(effective, '{granted,0,name}', '\"another.example\"') WHERE effective ? 'granted'"),
    tamper!("link_replies_consumed": "DELETE FROM app.reply_links"),
    tamper!("link_replies_consumed": "UPDATE app.reply_links SET name = 'Eve'"),
    tamper!("link_replies_consumed": "UPDATE app.reply_links SET expires_at = created_at + interval '1 microsecond'"),
    tamper!("link_replies_consumed": "UPDATE app.reply_links SET plan_digest = '$H'"),
    tamper!("link_replies_consumed": "UPDATE app.human_interactions SET dedupe_key = 'link:another'"),
    tamper!("link_replies_consumed": "UPDATE app.human_interactions SET key_id = 'k_somebody'"),
    tamper!("webhook_deliveries_have_events": "UPDATE app.webhook_deliveries SET gate_key = 'another' WHERE event_type = 'gate.opened'"),
    tamper!("webhook_deliveries_have_events": "UPDATE app.webhook_deliveries SET event_type = 'gate.timed_out' WHERE event_type = 'gate.decided'"),
    tamper!("webhook_deliveries_have_events": "UPDATE app.webhooks SET tenant_id = 'another'"),
    tamper!("webhook_deliveries_have_events": "UPDATE app.webhooks SET events = '{gate.opened}'"),
    tamper!("webhook_deliveries_have_events": "DELETE FROM app.human_interactions"),
    tamper!("webhook_deliveries_have_events": "UPDATE app.webhook_deliveries SET gate_key = 'plan' WHERE event_type = 'run.terminal'"),
    tamper!("webhook_events_reach_the_outbox":
        "UPDATE app.webhooks SET created_at = created_at - interval '1 hour'",
        "DELETE FROM app.webhook_deliveries WHERE event_type = 'gate.opened'"),
    tamper!("webhook_events_reach_the_outbox":
        "UPDATE app.webhooks SET created_at = created_at - interval '1 hour'",
        "DELETE FROM app.webhook_deliveries WHERE event_type = 'run.terminal'"),
    tamper!("webhook_events_recorded_once": "double app.webhook_deliveries"),
    tamper!("webhook_events_recorded_once": "DELETE FROM app.webhook_attempts"),
    tamper!("webhook_events_recorded_once": "UPDATE app.webhook_attempts SET ok = false"),
    tamper!("webhook_events_recorded_once":
        "INSERT INTO app.webhook_attempts SELECT delivery_id, 2, true, 204, NULL, 1, worker, ended_at FROM app.webhook_attempts"),
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_name = 'intentQ' WHERE name = 'task'"),
    tamper!("cache_keys_hold": CACHED, "double app.dependency_cache_index"),
    tamper!("cache_keys_hold":
        CACHED,
        "unbind app.dependency_cache_index",
        "UPDATE app.dependency_cache_index SET repo_id = 'another'"),
    tamper!("cache_stays_with_its_tenant":
        CACHED,
        "unbind app.dependency_cache_index",
        "UPDATE app.dependency_cache_index SET org_id = 'another'"),
    tamper!("cache_stays_with_its_tenant":
        CACHED,
        "INSERT INTO app.dependency_cache_index (org_id, repo_id, lock_hash, key, host_id, state_dir, digest, bytes, files, created_by, origin) SELECT 'zenith', 'r', '$H', encode(sha256(convert_to(E'zenith\\nr\\n$H', 'UTF8')), 'hex'), 'h', '/s', '$H', 1, 1, '$H', 'manual'",
        "INSERT INTO app.dependency_cache_uses (task_key, execution_no, entry_id, origin) SELECT s.task_key, 2, i.entry_id, 'manual' FROM app.sbx_runs s, app.dependency_cache_index i WHERE i.org_id = 'zenith' LIMIT 1"),
    tamper!("cache_hits_are_on_record": CACHED, "DELETE FROM app.dependency_cache_uses"),
    tamper!("cache_hits_are_on_record": CACHED, "UPDATE app.dependency_cache_index SET digest = repeat('0', 64)"),
    tamper!("cache_hits_are_on_record":
        CACHED,
        "UPDATE app.sbx_runs SET response = jsonb_set(response, '{cache,org}', '\"zenith\"') WHERE response ? 'cache'"),
    tamper!("dispatch_specs_unchanged": "UPDATE app.dispatches SET sandbox_spec = '{\"max_turns\": 9}'"),
    tamper!("dispatch_specs_unchanged": "UPDATE app.dispatches SET sandbox_spec = NULL"),
    tamper!("dispatch_specs_unchanged":
        "UPDATE app.dispatches SET sandbox_spec = '{\"max_turns\": 9}'",
        "UPDATE app.dispatch_runs SET spec_canonical = '{\"max_turns\":9}'"),
    tamper!("dispatch_specs_unchanged": "DELETE FROM app.dispatch_runs"),
    tamper!("dispatch_effective_at_end": "UPDATE app.dispatches SET sandbox_effective = NULL"),
    tamper!("dispatch_effective_at_end": "UPDATE app.dispatches SET status = 'running'"),
    tamper!("dispatches_match_runs": "UPDATE app.dispatches SET status = 'spawned', sandbox_effective = NULL"),
    tamper!("dispatches_match_runs": "UPDATE app.dispatches SET sandbox_effective = sandbox_effective || '{\"violations\": [1]}'"),
    tamper!("dispatches_match_runs": "UPDATE app.runs SET status = 'failed' WHERE recipe_id = 'dispatch'"),
    tamper!("live_sandboxes_made_once": "UPDATE app.live_sandboxes SET ended_at = NULL, end_reason = NULL"),
    tamper!("live_sandboxes_made_once": "UPDATE app.live_sandboxes SET sandbox_id = (SELECT min(sandbox_id) FROM app.remote_execution_sessions s WHERE s.run_id <> live_sandboxes.run_id)"),
    tamper!("live_sandboxes_made_once": "UPDATE app.live_sandboxes SET executor_id = 'ex-nobody'"),
    tamper!("live_sandboxes_made_once": "UPDATE app.remote_execution_sessions SET run_id = (SELECT run_id FROM app.live_sandboxes)"),
    tamper!("model_calls_once": "double app.model_calls"),
    tamper!("model_calls_once": "UPDATE app.model_calls SET outcome = NULL, ended_at = NULL"),
    tamper!("model_calls_once": "UPDATE app.model_calls SET tenant_id = 'another'"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_calls SET limits = jsonb_set(limits, '{sandbox,calls}', '0')"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_calls SET limits = jsonb_set(limits, '{sandbox,tokens}', '1')"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_calls SET tokens = tokens + 1 WHERE outcome = 'ok'"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_usage SET calls = calls - 1"),
    tamper!("model_grants_were_decided": "DELETE FROM app.model_grants"),
    tamper!("model_grants_were_decided": "UPDATE app.model_grants SET calls = calls + 1"),
];

/// A task that asks for a name and is granted it.
async fn make_ask(up: &Server) {
    let yaml = "id: asks\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {ask: true, timeout: 60s, run: 'until curl -sf http://wanted.example/; do sleep 0.1; done'}\n";
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let run = header["runId"].as_str().unwrap();
    let gate = format!("/api/runs/{run}/gates/egress-1");
    until("it asks", Duration::from_secs(30), async || up.get(&gate).await.0 == 200).await;
    let grant = json!({"name": "wanted.example", "until": 4_000_000_000_000_i64});
    let reply = json!({"payload": {"choice": "yes", "grant": grant}, "dedupeKey": "k"});
    let (status, body) = up.post(&format!("{gate}/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
}

/// One sandboxed run with bytes that are too many for a row, one engine-only, one behind a gate.
async fn make_runs(up: &Server) -> Vec<String> {
    let big = "id: big\nv: \"1\"\nplan:\n  tasks:\n    - name: big\n      exec: {run: \"head -c 300000 /dev/urandom > big.bin; echo big\", timeout: 30s}\n      artifacts: [big.bin]\n";
    let read = |name: &str| {
        std::fs::read_to_string(cofferdam_tests::repository().join("examples").join(name)).unwrap()
    };
    let mut runs = Vec::new();
    for yaml in [big.to_owned(), read("value.yaml"), read("hello-gated.yaml")] {
        let header = up.run_recipe(&yaml, json!({}), json!({})).await;
        runs.push(text(&header, "runId"));
    }
    let gated = &runs[2];
    up.wait_for(gated, "waiting", |h| h["status"] == "waiting_input").await;
    // Through a link, so that every kind of row is there.
    let links = format!("/api/runs/{gated}/gates/approve-plan/links");
    let (status, link) = up.post(&links, &json!({"for": "Ada", "expiresS": 600})).await;
    assert_eq!(status, 201, "{link}");
    let reply = json!({"payload": {"choice": "yes"}});
    let (status, body) = up.post(link["path"].as_str().unwrap(), &reply).await;
    assert_eq!(status, 200, "{body}");
    for run in &runs {
        assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
    }
    let sent = json!({"agent_type": "command", "prompt": "true\n", "project_dir": "/usr/share",
        "sandbox": "read-only", "sandbox_spec": {"max_turns": 3}});
    let (status, held) = up.post("/api/sandboxes", &json!({"template": "base"})).await;
    assert_eq!(status, 201, "{held}");
    let path = format!("/api/sandboxes/{}", text(&held, "id"));
    assert_eq!(up.request("DELETE", &path, Some(&up.key), None).await.0, 200);
    let (status, made) = up.post("/api/dispatches", &sent).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(up.wait_terminal(made["run_id"].as_str().unwrap()).await["status"], "succeeded");
    runs
}

/// A private database that outlives its server: this process counts as one of its users.
struct Kept {
    /// Given up first, so that the home's own end is the last user's.
    _user: File,
    home: Home,
    url: String,
    runs: Vec<String>,
}

impl Kept {
    async fn with_runs() -> Self {
        let home = Home::new();
        let url = receiver();
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let table = format!("wanted.example={address}");
        let mut up = home.up_with(&["--webhook-private", "--egress-host", &table], &[]);
        let (status, made) = up.post("/api/webhooks", &json!({"url": url})).await;
        assert_eq!(status, 201, "{made}");
        let runs = make_runs(&up).await;
        make_ask(&up).await;
        make_calls(&up).await;
        let sql = up.sql().await;
        let told = "SELECT count(*) FROM app.webhook_deliveries HAVING count(*) >= 8 AND bool_and(state = 'delivered') UNION ALL SELECT 0 LIMIT 1";
        until("all is told", Duration::from_secs(30), async || count(&sql, told).await >= 8).await;
        sql.close().await;
        let url = superuser_url(&home.database_url());
        let user = File::open(home.path().join("database/users.lock")).unwrap();
        user.lock_shared().unwrap();
        up.stop();
        assert!(url.contains("/cofferdam?"), "{url}");
        Self { _user: user, home, url, runs }
    }

    fn database(&self, name: &str) -> String {
        self.url.replacen("/cofferdam?", &format!("/{name}?"), 1)
    }

    /// A copy of everything, for one tampering.
    async fn copy(&self, name: &str) -> (String, PgConnection) {
        let mut admin = PgConnection::connect(&self.database("postgres")).await.unwrap();
        admin
            .execute(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE cofferdam")))
            .await
            .unwrap();
        let url = self.database(name);
        let mut conn = PgConnection::connect(&url).await.unwrap();
        conn.execute("SET session_replication_role = replica").await.unwrap();
        (url, conn)
    }

    fn prove(&self, url: &str, args: &[&str]) -> (Output, Value) {
        let mut all = vec!["--db", url, "prove", "--json"];
        all.extend(args);
        let output = self.home.run(&all);
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
        (output, report)
    }
}

async fn apply(conn: &mut PgConnection, sql: &str) {
    let sql = sql.replace("$H", OTHER_HASH);
    let statements = match sql.split_once(' ') {
        _ if sql == "$SETTLE" => SETTLE.map(str::to_owned).to_vec(),
        Some(("unbind", table)) => vec![UNBIND.replace("$1", table)],
        Some(("double", what)) => {
            let table = what.split(' ').next().unwrap();
            let again =
                format!("INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {what} LIMIT 1");
            vec![UNBIND.replace("$1", table), again]
        }
        _ => vec![sql],
    };
    for statement in statements {
        let done = conn
            .execute(AssertSqlSafe(statement.clone()))
            .await
            .unwrap_or_else(|e| panic!("{statement}: {e}"));
        let writes = ["INSERT", "UPDATE", "DELETE"].iter().any(|verb| statement.starts_with(verb));
        assert!(!writes || done.rows_affected() > 0, "it changed nothing: {statement}");
    }
}

fn rows(report: &Value, proof: &str) -> usize {
    let proofs = report["proofs"].as_array().unwrap();
    let found =
        proofs.iter().find(|p| p["name"] == proof).unwrap_or_else(|| panic!("no proof {proof}"));
    found["rows"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_proof_fails_after_a_row_is_tampered_with() {
    let kept = Kept::with_runs().await;
    let (output, report) = kept.prove(&kept.url, &[]);
    assert_eq!(output.status.code(), Some(0), "{report}");
    let names =
        |proofs: &[&str]| -> BTreeSet<String> { proofs.iter().map(|p| (*p).to_owned()).collect() };
    let claimed: Vec<&str> =
        report["proofs"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    let tampered: Vec<&str> = TAMPERINGS.iter().map(|t| t.proof).collect();
    assert_eq!(
        names(&claimed),
        names(&tampered),
        "every proof has a case, and no case is for nothing"
    );
    let (url, mut conn) = kept.copy("settled").await;
    apply(&mut conn, "$SETTLE").await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "a settlement in good order: {report}");
    conn.close().await.unwrap();
    let mut missed = Vec::new();
    for (n, case) in TAMPERINGS.iter().enumerate() {
        let (url, mut conn) = kept.copy(&format!("case_{n}")).await;
        for sql in case.sql {
            apply(&mut conn, sql).await;
        }
        let (output, report) = kept.prove(&url, &[]);
        let no = output.status.code() == Some(1)
            && report["verdict"] == "NO_GO"
            && rows(&report, case.proof) > 0;
        if !no {
            missed.push(format!("{} after {:?}: {}", case.proof, case.sql, report["verdict"]));
        }
        conn.close().await.unwrap();
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The rows that the cases above tamper with break no claim by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_cached_base_that_is_on_record_breaks_no_claim() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("cached").await;
    apply(&mut conn, CACHED).await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "{report}");
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_finds_with_each_file_what_prove_finds() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("by_file").await;
    for table in ["app.secure_wipe_evidence", "app.plan_approvals", "app.gate_votes"] {
        apply(&mut conn, &format!("DELETE FROM {table}")).await;
    }
    let (_, report) = kept.prove(&url, &[]);
    let proofs = report["proofs"].as_array().unwrap();
    let dir = cofferdam_tests::repository().join("crates/ledger/proofs");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), proofs.len(), "each file is a proof");
    let mut found = 0;
    for proof in proofs {
        let file = dir.join(format!("{}.sql", proof["name"].as_str().unwrap()));
        let by_psql = postgres::psql(&url, &file);
        let rows = proof["rows"].as_array().unwrap();
        let mut runs: Vec<&str> = by_psql.iter().map(|row| row[0].as_str()).collect();
        let mut by_prove: Vec<&str> =
            rows.iter().map(|row| row["run_id"].as_str().unwrap_or("")).collect();
        runs.sort_unstable();
        by_prove.sort_unstable();
        assert_eq!(runs, by_prove, "{}: {by_psql:?}", file.display());
        found += rows.len();
    }
    assert!(found > 3, "{report}");
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_told_which_claim_is_broken_by_what() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("told").await;
    apply(&mut conn, "DELETE FROM app.secure_wipe_evidence").await;
    let output = kept.home.run(&["--db", &url, "prove"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let told =
        "terminal_sessions_wiped: a sandbox is called ended without evidence that it is gone";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("query: SELECT") && text.contains("\"sandbox_id\""), "{text}");
    assert_eq!(text.lines().last(), Some("NO_GO"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_of_one_run_says_nothing_about_another() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("scoped").await;
    let [big, value, gated] = kept.runs.as_slice() else { panic!("three runs") };
    apply(
        &mut conn,
        &format!("DELETE FROM app.artifacts WHERE kind = 'stdout' AND run_id = '{big}'"),
    )
    .await;
    apply(&mut conn, &format!("DELETE FROM app.plan_approvals WHERE run_id = '{gated}'")).await;
    for (run, broken) in [
        (big, Some("index_lists_every_artifact")),
        (value, None),
        (gated, Some("gated_work_was_approved")),
    ] {
        let (output, report) = kept.prove(&url, &["--run", run]);
        assert_eq!(output.status.code(), Some(i32::from(broken.is_some())), "{run}: {report}");
        let found: Vec<&str> = report["proofs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| !p["rows"].as_array().unwrap().is_empty())
            .map(|p| p["name"].as_str().unwrap())
            .collect();
        assert_eq!(found, broken.into_iter().collect::<Vec<_>>(), "{run}");
    }
    let output =
        kept.home.run(&["--db", &url, "prove", "--run", "rn_00000000000000000000000000000000"]);
    assert_eq!(output.status.code(), Some(1), "an unknown run is a no: {}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not found"), "{}", said(&output));
}

#[test]
fn a_fresh_database_proves_everything() {
    assert_proven(&Home::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_sees_the_proofs_of_their_own_tenant_alone() {
    let home = Home::new();
    let up = home.up();
    let mut keys = Vec::new();
    for tenant in ["acme", "zenith"] {
        for roles in [json!(["auditor"]), json!(["submitter"])] {
            keys.push(up.new_key(&json!({"tenant": tenant, "roles": roles})).await.1);
        }
    }
    let [acme, acme_submits, zenith, zenith_submits] = keys.as_slice() else { panic!("four keys") };
    let yaml =
        std::fs::read_to_string(cofferdam_tests::repository().join("examples/value.yaml")).unwrap();
    for submits in [acme_submits, zenith_submits] {
        let (status, header) = up.start_recipe_as(submits, &yaml, json!({}), json!({})).await;
        assert_eq!(status, 201, "{header}");
        let path = format!("/api/runs/{}", header["runId"].as_str().unwrap());
        support::until("the run has ended", std::time::Duration::from_secs(30), async || {
            up.get_as(submits, &path).await.1["durableStatus"] == "SUCCESS"
        })
        .await;
    }
    let sql = up.sql().await;
    let of_acme = texts(&sql, "SELECT id FROM app.runs WHERE tenant_id = 'acme'").await.remove(0);
    let late = format!("UPDATE app.sbx_runs SET err_code = 'TIMEOUT' WHERE run_id = '{of_acme}'");
    tamper(&sql, &late).await;
    let verdict = async |key: &str| {
        let (status, report) = up.get_as(key, "/api/proofs").await;
        assert_eq!(status, 200, "{report}");
        (text(&report, "verdict"), rows(&report, "succeeded_runs_are_whole"))
    };
    assert_eq!(verdict(acme).await, ("NO_GO".into(), 1));
    assert_eq!(verdict(zenith).await, ("GO".into(), 0));
    assert_eq!(verdict(&up.key).await, ("NO_GO".into(), 1), "the host's admin sees every tenant");
    let (status, _) = up.get_as(acme_submits, "/api/proofs").await;
    assert_eq!(status, 403);
    let path = format!("/api/runs/{of_acme}/proofs");
    assert_eq!(up.get_as(zenith, &path).await.0, 404, "another tenant's run");
    let (status, report) = up.get_as(acme, &path).await;
    assert_eq!((status, rows(&report, "succeeded_runs_are_whole")), (200, 1));
}
