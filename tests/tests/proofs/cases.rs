//! One file: every claim, and what somebody with the database in hand might do that breaks it.

/// What somebody with the database in hand might do, and the claim that it breaks.
pub struct Tampering {
    pub proof: &'static str,
    /// Statements; `$H` is a hash, of nothing that is stored.
    pub sql: &'static [&'static str],
}

macro_rules! tamper {
    ($proof:literal: $($sql:expr),+ $(,)?) => { Tampering { proof: $proof, sql: &[$($sql),+] } };
}

/// A task's base, used on record by the task that made it: what the three claims hold of.
pub const CACHED: &str = "WITH t AS (
    SELECT s.task_key, r.tenant_id, app.cache_source(s.request) AS repo,
           encode(sha256(convert_to(r.tenant_id || E'\n' || app.cache_source(s.request) || E'\n$H', 'UTF8')), 'hex') AS key
      FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id WHERE s.provider <> 'engine' LIMIT 1),
  i AS (
    INSERT INTO app.dependency_cache_index
      (org_id, repo_id, lock_hash, key, host_id, state_dir, digest, bytes, files, created_by, origin)
    SELECT tenant_id, repo, '$H', key, 'h', '/s', '$H', 1, 1, task_key, 'manual' FROM t RETURNING entry_id),
  u AS (
    INSERT INTO app.dependency_cache_uses (task_key, execution_no, entry_id, origin)
    SELECT task_key, 1, entry_id, 'manual' FROM t, i)
  UPDATE app.sbx_runs s SET response = s.response || jsonb_build_object('cache', jsonb_build_object(
         'outcome', 'hit', 'org', t.tenant_id, 'repo', t.repo, 'lockHash', '$H', 'key', t.key, 'digest', '$H'))
    FROM t WHERE s.task_key = t.task_key";

/// What an operator's settlement of one session leaves: its proof holds, until it is tampered with.
pub const SETTLE: [&str; 3] = [
    "UPDATE app.secure_wipe_evidence SET wipe_status = 'failed' WHERE sandbox_id = (SELECT min(sandbox_id) FROM app.secure_wipe_evidence)",
    "INSERT INTO app.wipe_settlements (sandbox_id, run_id, tenant_id, terminal_state, evidence_look, evidence_digest, actor, key_id, reason, origin) SELECT w.sandbox_id, w.run_id, s.tenant_id, w.terminal_state, w.look, app.evidence_digest(w.evidence), 'ada', 'k', 'why', 'manual' FROM app.secure_wipe_evidence w JOIN app.remote_execution_sessions s USING (sandbox_id) WHERE w.wipe_status = 'failed'",
    "INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason) SELECT tenant_id, key_id, actor, 'session.settle', sandbox_id, reason FROM app.wipe_settlements",
];

/// A patch of one new file and one directory that is gone, in the place of an output: its proof holds, until it is tampered
/// with.
pub const BUILT: [&str; 5] = [
    r#"UPDATE app.artifacts a SET kind = 'patch', name = 'patch.json', inline = p.text, sha256 = encode(sha256(convert_to(p.text, 'UTF8')), 'hex'), size = octet_length(p.text)
         FROM (SELECT '{"entries":[{"path":"a \"b\"","post":{"content":"eA==","mode":420,"sha256":"' || encode(sha256('x'), 'hex') || '"}},{"path":"d","pre":{"mode":493}}],"version":1}' AS text) p
        WHERE a.uri = (SELECT min(o.uri) FROM app.artifacts o JOIN app.sbx_runs s USING (task_key) WHERE o.kind = 'stdout' AND s.err_code = 'NONE')"#,
    r#"UPDATE app.artifacts i SET inline = n.text, sha256 = encode(sha256(convert_to(n.text, 'UTF8')), 'hex'), size = octet_length(n.text)
         FROM app.artifacts p, LATERAL (
              SELECT jsonb_set(x.inline::jsonb, '{items}', jsonb_agg(CASE WHEN e ->> 'uri' = p.uri
                       THEN e || jsonb_build_object('sha256', p.sha256, 'kind', 'patch') ELSE e END))::text AS text
                FROM app.artifacts x, jsonb_array_elements(x.inline::jsonb -> 'items') e
               WHERE x.task_key = p.task_key AND x.idx = 0 GROUP BY x.inline) n
        WHERE p.kind = 'patch' AND i.task_key = p.task_key AND i.idx = 0"#,
    r#"INSERT INTO app.patch_history (run_id, task_key, patch_sha256, n, path, pre_mode, post_mode, post_sha256, diff_sha256, origin)
       SELECT a.run_id, a.task_key, a.sha256, v.n, v.path, v.pre, v.post, v.sha, encode(sha256(convert_to(v.diff, 'UTF8')), 'hex'), 'manual'
         FROM app.artifacts a, (SELECT encode(sha256('x'), 'hex') AS x) h,
              LATERAL (VALUES (1, 'a "b"', NULL::integer, 420, h.x, '["a \"b\"",null,[420,"' || h.x || '"]]'),
                              (2, 'd', 493, NULL, NULL, '["d",[493,null],null]')) v(n, path, pre, post, sha, diff)
        WHERE a.kind = 'patch'"#,
    "INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin) SELECT run_id, 'ApplyPatchST', 1, 'ok', jsonb_build_object('patch', sha256, 'entries', 2), 'manual' FROM app.artifacts WHERE kind = 'patch'",
    // What was written over has another size: it is metered as if it had been written so.
    "UPDATE app.usage_parts u SET stored_bytes = u.stored_bytes + x.kept - x.metered
       FROM (SELECT g.tenant_id, g.day, g.kept, (SELECT sum(p.stored_bytes) FROM app.usage_parts p WHERE (p.tenant_id, p.day) = (g.tenant_id, g.day)) AS metered
               FROM (SELECT r.tenant_id, app.usage_day(a.created_at) AS day, sum(a.size) AS kept
                       FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id GROUP BY 1, 2) g) x
      WHERE (u.tenant_id, u.day) = (x.tenant_id, x.day)
        AND u.part = (SELECT min(p.part) FROM app.usage_parts p WHERE (p.tenant_id, p.day) = (x.tenant_id, x.day))",
];

/// A template whose build ran in the sandbox that was killed: its proof holds, until it is tampered with.
pub const TEMPLATE: [&str; 7] = [
    "INSERT INTO app.snapshots (id, tenant_id, live_id, run_id, kind, name, template, place, bytes, sha256, sealed_key, sealed_by, key_id, origin, sealed_at)
     SELECT repeat('t', 20), l.tenant_id, l.id, l.run_id, 'template', 'web', 'web', p.place, p.bytes, '$H', decode(repeat('00', 60), 'hex'), p.sealed_by,
            p.key_id, p.origin, now()
       FROM app.snapshots p, app.live_sandboxes l WHERE l.paused_at IS NULL",
    "INSERT INTO app.templates (id, tenant_id, name, key_id) SELECT repeat('m', 20), tenant_id, 'web', key_id FROM app.snapshots WHERE kind = 'template'",
    "INSERT INTO app.template_builds (id, template_id, tenant_id, key_id, tags, status, live_id, snapshot_id, ended_at)
     SELECT '00000000-0000-0000-0000-000000000000', repeat('m', 20), tenant_id, key_id, ARRAY['default'], 'ready', live_id, id, now()
       FROM app.snapshots WHERE kind = 'template'",
    "INSERT INTO app.template_tags (template_id, tag, build_id) SELECT template_id, 'default', id FROM app.template_builds",
    "INSERT INTO app.snapshots (id, tenant_id, live_id, run_id, kind, name, template, place, bytes, sha256, sealed_key, sealed_by, key_id, origin, sealed_at)
     SELECT repeat('u', 20), tenant_id, live_id, run_id, 'layer', name, template, place, bytes, sha256, sealed_key, sealed_by, key_id, origin, now()
       FROM app.snapshots WHERE kind = 'template'",
    "INSERT INTO app.template_layers (snapshot_id, tenant_id, build_id, key, steps, created_at)
     SELECT s.id, s.tenant_id, b.id, '$H', 1, l.created_at - interval '1 s'
       FROM app.snapshots s, app.template_builds b JOIN app.live_sandboxes l ON l.id = b.live_id WHERE s.kind IN ('layer','template')",
    "UPDATE app.template_builds SET layer_id = repeat('u', 20), cached = 1",
];

/// A patch that was written to a branch, with the receipt that its gate showed: its proof holds, until it is tampered with.
pub const APPLIED: [&str; 2] = [
    "UPDATE app.intents i SET inputs = jsonb_build_object('receipt', 'apply patch sha256:$H' || E'\\nof run ' || o.id || E' (succeeded), task t\\nto repository /r\\nbranch b\\nbase commit ' || repeat('a', 40) || E'\\n')
       FROM app.plan_approvals p, (SELECT min(id) AS id FROM app.runs WHERE id NOT IN (SELECT run_id FROM app.plan_approvals)) o
      WHERE i.id = p.intent_id",
    "INSERT INTO app.patch_applies (approved_in, run_id, step_id, patch_sha256, repo, branch, base, tree_id, key_id, commit_id)
     SELECT p.run_id, o.id, 't', '$H', '/r', 'b', repeat('a', 40), repeat('d', 40), p.key_id,
            app.patch_commit_id(o.id, 't', '$H', p.run_id, repeat('a', 40), app.ms(r.created_at) / 1000, repeat('d', 40), NULL)
       FROM app.plan_approvals p, (SELECT min(id) AS id FROM app.runs WHERE id NOT IN (SELECT run_id FROM app.plan_approvals)) o
       JOIN app.runs r USING (id) LIMIT 1",
];

/// Every run that is at rest, erased as somebody asked: all proofs hold, until a content is put back or an erasure is taken away.
pub const ERASED: [&str; 3] = [
    "SET session_replication_role = origin",
    "SELECT app.erase_runs(ARRAY(SELECT id FROM app.runs), ARRAY(SELECT id FROM app.runs), 'asked', 'k', 'why', 'manual')",
    "SET session_replication_role = replica",
];

/// `$ERASED` is [`ERASED`], `$SETTLE` is [`SETTLE`], `$BUILT` [`BUILT`], `$TEMPLATE` [`TEMPLATE`], `$APPLIED` [`APPLIED`]; `double TABLE [WHERE ..]` is `UNBIND` and one row inserted again; `unbind TABLE` alone exists too.
pub const TAMPERINGS: &[Tampering] = &[
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
    tamper!("artifact_bytes_match":
        "INSERT INTO app.stored_objects (id, tenant_id, store, sha256, size, sealed_key, sealed_by) SELECT repeat('0', 32), r.tenant_id, repeat('0', 32), a.sha256, a.size + 1, decode(repeat('00', 60), 'hex'), '$H' FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id WHERE a.kind = 'stdout' LIMIT 1",
        "UPDATE app.artifacts a SET inline = NULL, object_id = o.id FROM app.stored_objects o WHERE a.kind = 'stdout' AND a.sha256 = o.sha256"),
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
    tamper!("usage_is_what_ran": "UPDATE app.usage_parts SET sandbox_ms = sandbox_ms + 1 WHERE sandbox_ms > 0"),
    tamper!("usage_is_what_ran": "UPDATE app.usage_parts SET memory_mb_ms = memory_mb_ms - 1 WHERE memory_mb_ms > 0"),
    tamper!("usage_is_what_ran": "UPDATE app.usage_parts SET day = day - 1 WHERE starts > 0"),
    tamper!("usage_is_what_ran": "UPDATE app.usage_parts SET tenant_id = 'other' WHERE stored_bytes > 0"),
    tamper!("usage_is_what_ran": "UPDATE app.usage_parts SET model_micros = model_micros + 1 WHERE model_calls > 0"),
    tamper!("usage_is_what_ran": "DELETE FROM app.usage_parts WHERE model_calls > 0"),
    tamper!("usage_is_what_ran": "UPDATE app.remote_execution_sessions SET mem_mb = mem_mb + 1"),
    tamper!("usage_is_what_ran": "UPDATE app.remote_execution_sessions SET admitted_at = created_at - interval '1 hour'"),
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
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_name = 'liveQ' WHERE name = 'task'"),
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
    tamper!("cache_bases_are_of_their_source":
        CACHED,
        "unbind app.dependency_cache_index",
        "UPDATE app.dependency_cache_index SET repo_id = 'a-recipe'"),
    tamper!("cache_bases_are_of_their_source":
        CACHED,
        "UPDATE app.sbx_runs SET request = jsonb_set(request, '{sandbox,filesIn}', '[{\"path\": \"/work\", \"uri\": \"host:///srv/other\"}]') WHERE response ? 'cache' AND request ? 'sandbox'"),
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
    tamper!("live_sandboxes_made_once": "UPDATE app.remote_execution_sessions SET run_id = (SELECT run_id FROM app.live_sandboxes WHERE paused_at IS NULL)"),
    tamper!("live_sandboxes_made_once": "UPDATE app.remote_execution_sessions SET run_id = (SELECT run_id FROM app.live_sandboxes WHERE paused_at IS NOT NULL)"),
    tamper!("live_sandboxes_made_once": "DELETE FROM app.snapshots"),
    tamper!("live_sandboxes_made_once": "UPDATE app.snapshots SET sealed_key = NULL, erased_at = now()"),
    tamper!("live_sandboxes_made_once": "UPDATE app.snapshots SET tenant_id = 'another'"),
    tamper!("live_sandboxes_made_once": "UPDATE app.snapshots SET live_id = (SELECT id FROM app.live_sandboxes WHERE paused_at IS NULL)"),
    tamper!("live_sandboxes_made_once": "UPDATE app.live_sandboxes SET snapshot_id = repeat('0', 20) WHERE paused_at IS NOT NULL"),
    tamper!("live_sandboxes_made_once": "UPDATE app.live_sandboxes SET executor_id = 'ex-nobody' WHERE paused_at IS NOT NULL"),
    tamper!("live_sandboxes_made_once": "UPDATE app.live_sandboxes SET ending_at = now() WHERE paused_at IS NOT NULL"),
    tamper!("kept_files_are_there": "UPDATE app.snapshots SET missing_at = now()"),
    tamper!("plain_layers_are_sealed": "UPDATE app.secure_wipe_evidence SET method = 'layer-kept'"),
    tamper!("plain_layers_are_sealed":
        "UPDATE app.snapshots SET plain = 'file system 0:1 id 00', sealed_at = NULL, sha256 = NULL, plain_ended_at = NULL, plain_end = NULL, kind = 'pause', created_at = now() - interval '11 minutes'"),
    tamper!("plain_layers_are_sealed":
        "UPDATE app.snapshots SET plain = 'file system 0:1 id 00', kind = 'pause', plain_ended_at = NULL, plain_end = NULL, sealed_at = now() - interval '71 minutes'"),
    tamper!("plain_layers_are_sealed":
        "UPDATE app.snapshots SET plain = 'file system 0:1 id 00', kind = 'pause', sealed_key = NULL, erased_at = now(), gone_at = now(), plain_ended_at = NULL, plain_end = NULL"),
    tamper!("live_networks_follow_each_other": "INSERT INTO app.live_networks (live_id, n, tenant_id, run_id, sandbox_id, key_id, before, requested, source, policy_version, outcome, observed, cut, settled_at) SELECT l.id, 1, l.tenant_id, l.run_id, l.sandbox_id, l.key_id, '[\"x.example\"]', '\"none\"', 'recipe', NULL, 'in-force', '[]', 0, now() FROM app.live_sandboxes l WHERE l.paused_at IS NULL"),
    tamper!("live_networks_follow_each_other": "INSERT INTO app.live_networks (live_id, n, tenant_id, run_id, sandbox_id, key_id, before, requested, source, policy_version, outcome, observed, cut, settled_at) SELECT l.id, 1, l.tenant_id, l.run_id, l.sandbox_id, l.key_id, l.egress, '[\"x.example\"]', 'host-admin', NULL, NULL, NULL, NULL, NULL FROM app.live_sandboxes l WHERE l.paused_at IS NULL"),
    tamper!("live_networks_follow_each_other": "INSERT INTO app.live_networks (live_id, n, tenant_id, run_id, sandbox_id, key_id, before, requested, source, policy_version, outcome, observed, cut, settled_at) SELECT l.id, 1, l.tenant_id, (SELECT min(id) FROM app.runs r WHERE r.id <> l.run_id), l.sandbox_id, l.key_id, l.egress, '[\"x.example\"]', 'host-admin', NULL, 'in-force', '[\"x.example\"]', 0, now() FROM app.live_sandboxes l WHERE l.paused_at IS NULL"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE", "DELETE FROM app.template_builds"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE", "UPDATE app.template_builds SET tenant_id = 'another'"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE", "UPDATE app.template_builds SET status = 'building', snapshot_id = NULL, ended_at = NULL",
        "DELETE FROM app.template_tags", "DELETE FROM app.snapshots WHERE kind = 'template'"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE",
        "UPDATE app.template_builds SET status = 'error', snapshot_id = NULL, reason = 'x'"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE", "DELETE FROM app.snapshots WHERE kind = 'template'"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE",
        "UPDATE app.template_builds SET live_id = (SELECT id FROM app.live_sandboxes WHERE paused_at IS NOT NULL)"),
    tamper!("builds_are_their_sandboxes": "$TEMPLATE",
        "UPDATE app.snapshots SET sealed_key = NULL, erased_at = now() WHERE kind = 'template'"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.template_layers SET tenant_id = 'another'"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.snapshots SET tenant_id = 'another' WHERE kind = 'layer'"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.snapshots SET kind = 'snapshot' WHERE kind = 'layer'"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE",
        "UPDATE app.snapshots SET live_id = (SELECT id FROM app.live_sandboxes WHERE paused_at IS NOT NULL) WHERE kind = 'layer'"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "DELETE FROM app.template_layers WHERE snapshot_id = repeat('u', 20)"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.template_builds SET snapshot_id = repeat('u', 20)"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.template_builds SET layer_id = repeat('0', 20)"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.template_builds SET cached = 2"),
    tamper!("layers_stay_with_their_tenant": "$TEMPLATE", "UPDATE app.template_layers SET created_at = now() + interval '1 s'"),
    tamper!("model_calls_once": "double app.model_calls"),
    tamper!("model_calls_once": "UPDATE app.model_calls SET outcome = NULL, ended_at = NULL"),
    tamper!("model_calls_once": "UPDATE app.model_calls SET tenant_id = 'another'"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_calls SET limits = jsonb_set(limits, '{sandbox,calls}', '0')"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_calls SET limits = jsonb_set(limits, '{sandbox,tokens}', '1')"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_calls SET tokens = tokens + 1 WHERE outcome = 'ok'"),
    tamper!("model_calls_within_budgets": "UPDATE app.model_usage SET calls = calls - 1"),
    // Paid beyond what was set aside, and every sum says so: the budget was passed all the same.
    tamper!("model_calls_within_budgets":
        "UPDATE app.model_calls SET tokens = 4002340 WHERE op_key = (SELECT min(op_key) FROM app.model_calls WHERE outcome = 'ok')",
        "UPDATE app.model_usage SET tokens = (SELECT sum(tokens) FROM app.model_calls WHERE outcome <> 'refused')"),
    tamper!("model_grants_were_decided": "DELETE FROM app.model_grants"),
    tamper!("model_grants_were_decided": "UPDATE app.model_grants SET calls = calls + 1"),
    tamper!("patches_are_on_record": "$BUILT", "DELETE FROM app.patch_history WHERE path = 'd'"),
    tamper!("patches_are_on_record": "$BUILT", "DELETE FROM app.patch_history"),
    tamper!("patches_are_on_record": "$BUILT", "UPDATE app.patch_history SET post_sha256 = '$H' WHERE n = 1"),
    tamper!("patches_are_on_record": "$BUILT", "UPDATE app.patch_history SET pre_mode = 511 WHERE n = 2"),
    tamper!("patches_are_on_record": "$BUILT", "UPDATE app.patch_history SET diff_sha256 = '$H' WHERE n = 1"),
    tamper!("patches_are_on_record":
        "$BUILT",
        "UPDATE app.patch_history SET path = 'e', diff_sha256 = encode(sha256(convert_to('[\"e\",[493,null],null]', 'UTF8')), 'hex') WHERE n = 2"),
    tamper!("patches_are_on_record": "$BUILT", "INSERT INTO app.patch_history SELECT run_id, task_key, patch_sha256, 3, 'more', pre_mode, pre_sha256, post_mode, post_sha256, diff_sha256, origin, created_at FROM app.patch_history WHERE n = 2"),
    tamper!("patches_are_on_record": "$BUILT", "UPDATE app.artifacts SET inline = replace(inline, 'eA==', 'eQ==') WHERE kind = 'patch'"),
    tamper!("patches_are_on_record":
        "$BUILT",
        "UPDATE app.artifacts SET inline = replace(inline, 'eA==', 'eQ=='), sha256 = encode(sha256(convert_to(replace(inline, 'eA==', 'eQ=='), 'UTF8')), 'hex') WHERE kind = 'patch'",
        "UPDATE app.patch_history SET patch_sha256 = (SELECT sha256 FROM app.artifacts WHERE kind = 'patch')",
        "UPDATE app.run_steps SET output = output || jsonb_build_object('patch', (SELECT sha256 FROM app.artifacts WHERE kind = 'patch')) WHERE step_id = 'ApplyPatchST'"),
    tamper!("patches_are_on_record": "$BUILT", "DELETE FROM app.run_steps WHERE step_id = 'ApplyPatchST'"),
    tamper!("patches_are_on_record": "$BUILT", "UPDATE app.sbx_runs SET err_code = 'TIMEOUT' WHERE task_key = (SELECT min(task_key) FROM app.patch_history)"),
    tamper!("patches_are_on_record":
        "$BUILT",
        "UPDATE app.sbx_runs SET request = jsonb_build_object('patched', jsonb_build_object('patch', 'artifact://another')) WHERE task_key = (SELECT min(task_key) FROM app.patch_history)"),
    tamper!("plans_are_their_digests":
        "UPDATE app.artifacts SET inline = replace(inline, 'echo', 'true') WHERE kind = 'plan_card' AND inline LIKE '%echo%'",
        "UPDATE app.artifacts SET sha256 = encode(sha256(convert_to(inline, 'UTF8')), 'hex'), size = octet_length(inline) WHERE kind = 'plan_card'"),
    tamper!("plans_are_their_digests": "UPDATE app.plan_approvals SET plan_digest = '$H'"),
    tamper!("plans_are_their_digests":
        "UPDATE app.plan_approvals SET plan_digest = '$H'",
        "UPDATE app.human_gates SET plan_digest = '$H', bindings = jsonb_set(bindings, '{plan}', '\"$H\"') WHERE bindings IS NOT NULL",
        "UPDATE app.runs SET plan_digest = '$H'"),
    tamper!("recipes_are_their_hashes": "UPDATE app.recipe_versions SET json = replace(json::text, 'echo', 'true')::jsonb"),
    tamper!("recipes_are_their_hashes": "UPDATE app.recipe_versions SET hash = '$H' WHERE hash = (SELECT min(hash) FROM app.recipe_versions)"),
    tamper!("artifacts_are_in_their_index":
        "UPDATE app.artifacts SET inline = 'forged', sha256 = encode(sha256('forged'), 'hex'), size = 6 WHERE kind = 'stdout'"),
    tamper!("artifacts_are_in_their_index":
        "UPDATE app.artifacts SET inline = 'forged', sha256 = encode(sha256('forged'), 'hex'), size = 6 WHERE kind = 'file'"),
    tamper!("artifacts_are_in_their_index":
        "UPDATE app.artifacts SET kind = 'stderr' WHERE kind = 'stdout'"),
    tamper!("artifacts_are_in_their_index": "UPDATE app.artifacts SET mode = '100755' WHERE kind = 'file'"),
    tamper!("tasks_started_after_their_needs": "UPDATE app.graph_ends SET ended_at = ended_at + interval '1 hour' WHERE name = 'first'"),
    tamper!("tasks_started_after_their_needs": "DELETE FROM app.graph_ends WHERE name = 'first'"),
    tamper!("tasks_started_after_their_needs": "UPDATE app.sbx_executions SET started_at = started_at - interval '1 hour' WHERE task_key = (SELECT task_key FROM app.sbx_runs WHERE step_id = 'ExecuteST:second')"),
    tamper!("tasks_started_after_their_needs": "UPDATE app.sbx_runs SET finished_at = finished_at + interval '1 hour' WHERE step_id = 'ExecuteST:first'"),
    tamper!("tasks_started_after_their_needs": "DELETE FROM app.graph_skips"),
    tamper!("gated_tasks_were_agreed": "DELETE FROM app.graph_answers"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.graph_answers SET choice = 'no'"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.graph_answers SET created_at = created_at + interval '1 hour'"),
    tamper!("gated_tasks_were_agreed": "DELETE FROM app.human_gates WHERE gate_key = 'release'"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.human_gates SET state = 'canceled' WHERE gate_key = 'release'"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.human_gates SET decided_at = decided_at + interval '1 hour' WHERE gate_key = 'release'"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.gate_votes SET choice = 'no' WHERE gate_key = 'release'"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.graph_gates SET digest = '$H'"),
    tamper!("gated_tasks_were_agreed": "UPDATE app.graph_gates SET task_keys = '{}', digest = app.graph_bound_digest(run_id, group_name, '{}')"),
    tamper!("gated_tasks_were_agreed":
        "UPDATE app.artifacts SET sha256 = '$H' WHERE kind = 'file' AND task_key IN (SELECT unnest(task_keys) FROM app.graph_gates)"),
    tamper!("gated_tasks_were_agreed":
        "UPDATE app.sbx_executions SET started_at = started_at - interval '1 hour' WHERE task_key = (SELECT task_key FROM app.sbx_runs WHERE step_id = 'ExecuteST:third')"),
    tamper!("gated_tasks_were_agreed":
        "UPDATE app.sbx_runs SET request = '{\"sandbox\":{\"filesIn\":[{\"uri\":\"artifacts://run/r/step/s/task/$H/**\"}]}}' WHERE step_id = 'ExecuteST:third'"),
    tamper!("gated_tasks_were_agreed": "$ERASED", "UPDATE app.graph_gates SET digest = '$H'"),
    tamper!("graphs_are_their_plans": "UPDATE app.graph_groups SET is_gated = false"),
    tamper!("graphs_are_their_plans": "UPDATE app.human_gates SET spec = '\"other\"' WHERE gate_key = 'release'"),
    tamper!("graphs_are_their_plans": "$ERASED", "UPDATE app.graph_groups SET is_gated = false"),
    tamper!("graphs_are_their_plans": "UPDATE app.graph_groups SET needs = '{}'"),
    tamper!("graphs_are_their_plans": "DELETE FROM app.graph_groups WHERE name = 'sorry'"),
    tamper!("graphs_are_their_plans": "INSERT INTO app.graph_groups (run_id, name, needs, is_late) SELECT run_id, 'more', '{}', false FROM app.graph_groups LIMIT 1"),
    tamper!("graphs_are_their_plans": "DELETE FROM app.graph_tasks WHERE step_id = 'ExecuteST:first'"),
    tamper!("graphs_are_their_plans": "UPDATE app.graph_tasks SET group_name = 'first' WHERE step_id = 'ExecuteST:second'"),
    tamper!("graphs_are_their_plans":
        "DELETE FROM app.graph_ends", "DELETE FROM app.graph_skips", "DELETE FROM app.graph_events", "DELETE FROM app.graph_tasks",
        "DELETE FROM app.graph_groups"),
    tamper!("trees_are_what_was_bound": "UPDATE app.task_trees SET sha256 = '$H'"),
    tamper!("trees_are_what_was_bound": "UPDATE app.intent_trees SET sha256 = '$H'"),
    tamper!("trees_are_what_was_bound": "UPDATE app.task_trees SET source = '/another'"),
    tamper!("trees_are_what_was_bound": "DELETE FROM app.intent_trees"),
    tamper!("trees_are_what_was_bound": "DELETE FROM app.task_trees"),
    tamper!("trees_are_what_was_bound": "DELETE FROM app.task_trees",
        "UPDATE app.sbx_runs SET request = request #- '{sandbox,filesIn,0,tree}'"),
    tamper!("succeeded_runs_are_whole": "UPDATE app.graph_ends SET outcome = 'failed' WHERE name = 'first'"),
    tamper!("graphs_are_their_plans": "$ERASED", "UPDATE app.graph_groups SET needs = '{}' WHERE needs <> '{}'"),
    tamper!("graphs_are_their_plans": "$ERASED", "DELETE FROM app.graph_tasks WHERE step_id = 'ExecuteST:first'"),
    tamper!("content_is_gone_on_record": "$ERASED", "DELETE FROM app.erasures WHERE content = 'prompt'"),
    tamper!("content_is_gone_on_record": "$ERASED", "DELETE FROM app.erasures WHERE content = 'output'"),
    tamper!("content_is_gone_on_record": "UPDATE app.sbx_runs SET request = app.erased_json(request, '{}')"),
    tamper!("content_is_gone_on_record": "UPDATE app.sbx_runs SET response = app.erased_json(response, '{}')"),
    tamper!("content_is_gone_on_record": "UPDATE app.run_steps SET output = app.erased_json(output, '{}') WHERE step_id = 'CompileST'"),
    tamper!("content_is_gone_on_record": "UPDATE app.intents SET inputs = to_jsonb(app.erased_text(inputs::text))"),
    tamper!("content_is_gone_on_record": "UPDATE app.test_reports SET report = app.erased_json(report, '{}')"),
    tamper!("content_is_gone_on_record": "UPDATE app.graph_events SET event = to_jsonb(app.erased_text(event::text))"),
    tamper!("content_is_gone_on_record": "UPDATE app.runs SET erased_at = now()"),
    tamper!("content_is_gone_on_record": "DELETE FROM app.blobs"),
    tamper!("content_is_gone_on_record":
        "INSERT INTO app.stored_objects (id, tenant_id, store, sha256, size, sealed_by, erased_at) SELECT repeat('0', 32), r.tenant_id, repeat('0', 32), a.sha256, a.size, '$H', now() FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id WHERE a.kind = 'stdout' LIMIT 1",
        "UPDATE app.artifacts a SET inline = NULL, object_id = o.id FROM app.stored_objects o WHERE a.kind = 'stdout' AND a.sha256 = o.sha256"),
    tamper!("erasures_are_whole": "$ERASED",
        "UPDATE app.artifacts SET erased_in = NULL, inline = 'x' WHERE kind = 'stdout'"),
    tamper!("erasures_are_whole": "$ERASED",
        "INSERT INTO app.blobs (sha256, bytes) SELECT DISTINCT sha256, 'x'::bytea FROM app.artifacts WHERE kind = 'stdout' ON CONFLICT DO NOTHING"),
    tamper!("erasures_are_whole": "$ERASED",
        "INSERT INTO app.stored_objects (id, tenant_id, store, sha256, size, sealed_key, sealed_by) SELECT repeat('0', 32), r.tenant_id, repeat('0', 32), a.sha256, a.size, decode(repeat('00', 60), 'hex'), '$H' FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id WHERE a.kind = 'stdout' LIMIT 1",
        "UPDATE app.artifacts a SET object_id = o.id FROM app.stored_objects o WHERE a.kind = 'stdout' AND a.sha256 = o.sha256"),
    tamper!("usage_is_what_ran": "$ERASED",
        "UPDATE app.remote_execution_sessions SET mem_mb = mem_mb + 1"),
    tamper!("trees_are_what_was_bound": "$ERASED", "UPDATE app.task_trees SET sha256 = '$H'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.sbx_runs SET request = '{\"cmd\":\"x\"}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.sbx_runs SET response = response - 'erased'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.run_steps SET output = '{}' WHERE step_id = 'CompileST'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.run_steps SET error = 'x' WHERE step_id = 'ExecuteST'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.intents SET inputs = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.intents SET goal = 'x'"),
    tamper!("erasures_are_whole": "$ERASED",
        "INSERT INTO app.run_streams (run_id, key, seq, chunk) SELECT task_key, 'stdout', 0, 'x' FROM app.sbx_runs ON CONFLICT DO NOTHING"),
    tamper!("erasures_are_whole": "$ERASED",
        "INSERT INTO dbos.operation_outputs (workflow_uuid, function_id, output) SELECT workflow_id, 0, 'x' FROM app.runs ON CONFLICT DO NOTHING"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE dbos.workflow_status SET output = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE dbos.workflow_events SET value = '{}' WHERE key LIKE 'decision:%'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.human_gates SET inputs = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.human_interactions SET payload = payload - 'erased'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.plan_approvals SET parts = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.test_reports SET report = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.graph_events SET event = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.runs SET error = 'x'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.dispatch_runs SET request = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.live_sandboxes SET end_reason = 'x' WHERE ended_at IS NOT NULL"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.live_sandboxes SET metadata = '{}'"),
    tamper!("erasures_are_whole": "$ERASED", "UPDATE app.model_calls SET why = 'x'"),
    tamper!("erasures_are_whole":
        "INSERT INTO app.secrets (tenant_id, name, version, hosts, sealed, sealed_by, key_id) VALUES ('default', 's', 1, '{}', decode(repeat('00', 40), 'hex'), '$H', 'k')",
        "INSERT INTO app.erasures (tenant_id, content, secret, cause, key_id, reason, bytes, removed, origin) VALUES ('default', 'secret', 's', 'asked', 'k', 'why', 40, '{\"version\":1}', 'manual')"),
    tamper!("reports_are_of_artifacts": "UPDATE app.test_reports SET sha256 = '$H'"),
    tamper!("reports_are_of_artifacts": "UPDATE app.test_reports SET path = 'big.bin'"),
    tamper!("reports_are_of_artifacts": "UPDATE app.test_reports SET attempt = 2"),
    tamper!("reports_are_of_artifacts": "DELETE FROM app.artifacts WHERE name = 'files/r.tap'"),
    tamper!("reports_are_of_artifacts": "unbind app.test_reports", "UPDATE app.test_reports SET sha256 = NULL"),
    tamper!("reports_are_of_artifacts":
        "UPDATE app.test_reports SET sha256 = NULL, report = report || '{\"fault\":{\"kind\":\"empty\",\"byte\":0}}'"),
    tamper!("reports_are_of_artifacts":
        "INSERT INTO app.test_reports SELECT run_id, step_id, task_key, attempt, 1, 'forged.tap', kind, report, '$H', origin, created_at FROM app.test_reports"),
    tamper!("firings_are_once": "DELETE FROM app.firings"),
    tamper!("firings_are_once": "double app.firings WHERE state = 'started'"),
    tamper!("firings_are_once":
        "UPDATE app.firings SET run_id = (SELECT min(id) FROM app.runs WHERE recipe_id = 'big') WHERE seq = (SELECT min(seq) FROM app.firings WHERE state = 'started')"),
    tamper!("firings_are_once": "unbind app.firings", "UPDATE app.firings SET state = 'skipped' WHERE state = 'started'"),
    tamper!("firings_are_once": "unbind app.firings", "UPDATE app.firings SET run_id = NULL"),
    tamper!("firings_are_once": "UPDATE app.triggers SET key_id = 'k_0000000000000000'"),
    tamper!("firings_are_once": "UPDATE app.triggers SET recipe_hash = '$H'"),
    tamper!("firings_are_once": "UPDATE app.triggers SET firings = firings + 1"),
    tamper!("firings_are_once": "UPDATE app.triggers SET folded = 1"),
    tamper!("firings_are_once": "UPDATE app.runs SET origin = 'webhook-ci' WHERE recipe_id = 'big'"),
    tamper!("firings_are_once": "UPDATE app.runs SET origin = 'api-shim' WHERE recipe_id = 'ticks'"),
    tamper!("task_keys_hold": "UPDATE app.sbx_runs SET request = replace(request::text, 'echo', 'true')::jsonb WHERE request::text LIKE '%echo%'"),
    tamper!("task_keys_hold": "UPDATE app.sbx_runs SET step_id = 'ExecuteST:another' WHERE task_key = (SELECT min(task_key) FROM app.sbx_runs)"),
    tamper!("results_are_their_raw":
        "UPDATE app.sbx_runs SET response = jsonb_set(response, '{exit}', '3') WHERE err_code = 'NONE' AND provider <> 'engine'"),
    tamper!("results_are_their_raw": "UPDATE app.sbx_runs SET response = jsonb_set(response, '{violations}', '[]') WHERE response -> 'violations' <> '[]'"),
    tamper!("results_are_their_raw": "UPDATE app.sbx_runs SET response = response - 'violations' WHERE response -> 'violations' <> '[]'"),
    tamper!("approvals_are_their_replies": "UPDATE app.plan_approvals SET key_id = 'k_0000000000000000'"),
    tamper!("approvals_are_their_replies": "UPDATE app.plan_approvals SET approved_at = approved_at - interval '1 hour'"),
    tamper!("approvals_are_their_replies":
        "UPDATE app.plan_approvals SET key_id = 'k_0000000000000000'",
        "UPDATE app.human_interactions SET key_id = 'k_0000000000000000'"),
    tamper!("approvals_are_their_replies":
        "UPDATE app.plan_approvals SET key_id = 'link:Another'",
        "UPDATE app.gate_votes SET voter = 'link:Another'",
        "UPDATE app.human_interactions SET key_id = 'link:Another'"),
    tamper!("wipe_evidence_is_of_its_time":
        "UPDATE app.secure_wipe_evidence SET wipe_timestamp = wipe_timestamp - interval '1 day', created_at = created_at - interval '1 day', evidence = jsonb_set(evidence, '{wipedAtMs}', to_jsonb((evidence ->> 'wipedAtMs')::bigint - 86400000))"),
    tamper!("wipe_evidence_is_of_its_time":
        "UPDATE app.secure_wipe_evidence SET wipe_timestamp = wipe_timestamp - interval '1 day', evidence = jsonb_set(evidence, '{wipedAtMs}', to_jsonb((evidence ->> 'wipedAtMs')::bigint - 86400000))"),
    tamper!("wipe_evidence_is_of_its_time": "UPDATE app.secure_wipe_evidence SET wipe_timestamp = wipe_timestamp - interval '1 minute'"),
    tamper!("wipe_evidence_is_of_its_time":
        "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{checks}', jsonb_build_array(evidence -> 'checks' -> 0))"),
    tamper!("dispatches_say_what_ran": "UPDATE app.dispatches SET exit_code = 9"),
    tamper!("dispatches_say_what_ran": "UPDATE app.dispatches SET prompt_hash = repeat('a', 16)"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET branch = 'main'"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET base = repeat('c', 40)"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET patch_sha256 = repeat('c', 64)"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET commit_id = repeat('c', 40)"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET tree_id = repeat('c', 40)"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET repo = '/another'"),
    tamper!("applies_say_what_was_approved": "$APPLIED", "UPDATE app.patch_applies SET step_id = 'u'"),
    tamper!("the_chain_holds": "SELECT app.chain_seal(100000)", "DELETE FROM app.audit WHERE id = (SELECT min(id) FROM app.audit)"),
    tamper!("the_chain_holds": "SELECT app.chain_seal(100000)", "UPDATE app.audit SET actor = 'another' WHERE id = (SELECT max(id) FROM app.audit)"),
    tamper!("the_chain_holds": "SELECT app.chain_seal(100000)", "UPDATE app.api_keys SET roles = ARRAY['admin', 'operator']"),
    tamper!("the_chain_holds": "SELECT app.chain_seal(100000)", "DELETE FROM app.runs WHERE id = (SELECT min(id) FROM app.runs)"),
    tamper!("the_chain_holds": "SELECT app.chain_seal(100000)", "DELETE FROM app.live_sandboxes"),
    tamper!("the_chain_holds": "SELECT app.chain_seal(100000)", "DELETE FROM app.snapshots"),
    tamper!("the_chain_holds":
        "SELECT app.chain_seal(100000)",
        "DELETE FROM app.audit WHERE id = (SELECT min(id) FROM app.audit)",
        "DELETE FROM app.ledger_chain WHERE kind = 'audit' AND seq = 1"),
    tamper!("the_chain_holds":
        "SELECT app.chain_seal(100000)",
        "UPDATE app.plan_approvals SET approved_by = 'another'",
        "UPDATE app.ledger_chain c SET row_digest = app.row_digest(d.content) FROM app.chained d WHERE d.kind = c.kind AND d.row_key = c.row_key"),
];
