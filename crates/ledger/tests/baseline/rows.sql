-- A few rows of each family, as today's statements leave them, so that every proof holds: run 1 succeeded in a
-- sandbox behind its gate, run 2 is a dispatch that ended, run 3 is queued, run 4's sandbox was settled by hand.
BEGIN;

-- A task's key is the hash of what its task is.
CREATE FUNCTION pg_temp.task_key(p_n text) RETURNS text LANGUAGE sql AS $$
  SELECT encode(sha256(convert_to(format(
    '{"attempt":1,"intentId":"it_%s","request":{"sandbox":{"cmd":["true"],"envRef":"host","net":"none"}},"runId":"rn_%s","stepId":"ExecuteST:000"}',
    lpad(p_n, 32, '0'), lpad(p_n, 32, '0')), 'UTF8')), 'hex')
$$;

INSERT INTO app.api_keys (key_id, key_hash, tenant_id, roles, groups, label) VALUES
  ('k_admin', repeat('0', 64), 'default', '{admin}', '{}', 'the host''s own'),
  ('k_ann', repeat('1', 64), 'acme', '{submitter}', '{}', NULL),
  ('k_ben', repeat('2', 64), 'acme', '{approver}', '{reviewers}', 'Ben'),
  ('k_cleo', repeat('3', 64), 'acme', '{approver}', '{reviewers}', 'Cleo');
INSERT INTO app.signing_keys (fingerprint) VALUES (repeat('4', 64));
INSERT INTO app.dynamic_config (tenant_id, key, version, value, actor) VALUES
  ('*', 'dispatch.max_spawn_depth', 1, '3', 'k_admin'),
  ('acme', 'quota.blobs_mb', 1, '100', 'k_admin');
INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason) VALUES
  ('acme', 'k_admin', 'Ada', 'session.settle', 'sb00000000000000000004', 'the host burned');
INSERT INTO app.recipes (tenant_id, id, title) VALUES ('acme', 'hello', 'Hello');
INSERT INTO app.recipe_versions (tenant_id, id, v, hash, status, json, is_host_admins) VALUES
  ('acme', 'hello', '1', encode(sha256('{"id":"hello","v":"1"}'), 'hex'), 'stable', '{"id": "hello", "v": "1"}', true);

INSERT INTO app.executors (id, host_id, pid, app_version, state, ended_at) VALUES
  ('ex-0000000000000001', 'h', 1, 'v', 'left', clock_timestamp());
INSERT INTO app.leader (executor_id, term, until) VALUES ('ex-0000000000000001', 7, clock_timestamp());
INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
SELECT 'it_' || lpad(n::text, 32, '0'), 'acme', 'say hello', '{}', '{}', 'k_ann', 'manual'
  FROM generate_series(1, 4) n;
INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, execution_mode, recipe_id, recipe_v, recipe_hash,
                      plan_digest, partition_key, priority, app_version, origin, key_id)
SELECT 'rn_' || lpad(n::text, 32, '0'), 'it_' || lpad(n::text, 32, '0'), 'it_' || lpad(n::text, 32, '0'), 'acme',
       'LOCAL_NATIVE', CASE n WHEN 2 THEN 'dispatch' ELSE 'hello' END, '1', repeat('a', 64),
       encode(sha256(convert_to(repeat('hello', 2000), 'UTF8')), 'hex'), 'acme',
       50, 'v', 'manual', 'k_ann'
  FROM generate_series(1, 4) n;
SELECT app.enqueue(r.workflow_id, 'intent', 'null', 'intentQ', 'acme', 50, NULL, 'v', NULL, 0) FROM app.runs r;
INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin)
SELECT r.id, s, 1, 'ok', '{}', 'engine-dbos' FROM app.runs r, unnest(ARRAY['CompileST','ExecuteST']) s
 WHERE r.id <> 'rn_00000000000000000000000000000003';

-- One task each; the engine's own id of a task is its key.
INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
SELECT r.id, 'ExecuteST:000', pg_temp.task_key(right(r.id, 1)), 1, 'hello', 'container',
       '{"sandbox": {"envRef": "host", "cmd": ["true"], "net": "none"}}', 'engine-dbos'
  FROM app.runs r WHERE r.id <> 'rn_00000000000000000000000000000003';
SELECT app.enqueue(s.task_key, 'task', 'null', 'sbxQ', 'acme', 50, NULL, 'v', NULL, 0) FROM app.sbx_runs s;
INSERT INTO app.egress_policy_snapshots (run_id, phase, policy, policy_digest, source, origin)
SELECT s.run_id, p, '["none"]', app.policy_digest('["none"]'), 'recipe', 'engine-dbos'
  FROM app.sbx_runs s, unnest(ARRAY['build','exec']) p;

INSERT INTO app.blobs (sha256, bytes) SELECT encode(sha256(b), 'hex'), b FROM (VALUES (convert_to(repeat('hello', 2000), 'UTF8'))) v(b);

-- Run 1's gate: asked, answered and edited by Cleo's delegate Ben, asked again, consented to; and a name that
-- its task asked for.
INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, state, form, spec, plan_digest, bindings,
                             groups, ttl_s, deadline_at, decided_at)
SELECT r.id, r.workflow_id, 'approve-plan', 'human:approve-plan', 'acme', 'resolved', '{}', '{"quorum": 1}', r.plan_digest,
       jsonb_build_object('plan', r.plan_digest, 'sandbox', repeat('c', 64), 'egress', repeat('d', 64),
                          'image', repeat('e', 64), 'budget', repeat('f', 64)),
       '{reviewers}', 3600, clock_timestamp() + interval '1 hour', clock_timestamp()
  FROM app.runs r WHERE r.id = 'rn_00000000000000000000000000000001';
INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, state, form, ttl_s, deadline_at, decided_at)
SELECT r.id, r.workflow_id, 'egress-1', 'human:egress-1', 'acme', 'received', '{}', 3600,
       clock_timestamp() + interval '1 hour', clock_timestamp()
  FROM app.runs r WHERE r.id = 'rn_00000000000000000000000000000001';
INSERT INTO app.gate_delegations (tenant_id, from_key, to_key, group_name, reason, expires_at)
VALUES ('acme', 'k_cleo', 'k_ben', 'reviewers', 'on leave', clock_timestamp() + interval '1 day');
INSERT INTO app.gate_delegations (tenant_id, from_key, to_key, reason, expires_at)
VALUES ('acme', 'k_ben', 'k_cleo', 'one afternoon', clock_timestamp() + interval '1 hour');
INSERT INTO app.gate_delegation_ends (delegation_id, key_id) VALUES (2, 'k_ben');
INSERT INTO app.reply_links (id, tenant_id, run_id, gate_key, topic, digest, name, key_id, expires_at)
VALUES (repeat('5', 32), 'acme', 'rn_00000000000000000000000000000001', 'egress-1', 'human:egress-1', repeat('6', 64), 'mail', 'k_ben',
        clock_timestamp() + interval '1 hour');
INSERT INTO app.human_interactions (workflow_id, run_id, gate_key, topic, dedupe_key, payload_hash, payload, origin, outcome, key_id)
SELECT workflow_id, run_id, gate_key, topic, 'd1', repeat('7', 64),
       CASE gate_key WHEN 'egress-1' THEN '{"choice": "yes", "grant": {"name": "example.org", "until": 4102444800000}}'::jsonb
                     ELSE '{"choice": "yes", "edits": {"form/name": "Ben"}}' END,
       'api-shim', 'accepted', 'k_ben' FROM app.human_gates ORDER BY gate_key;
INSERT INTO app.gate_votes (interaction_id, run_id, gate_key, voter, authority, delegation_id, choice)
SELECT id, run_id, gate_key, 'k_ben', CASE gate_key WHEN 'egress-1' THEN 'k_ben' ELSE 'k_cleo' END,
       CASE gate_key WHEN 'egress-1' THEN NULL ELSE 1 END, 'yes' FROM app.human_interactions;
INSERT INTO app.gate_edits (interaction_id, n, run_id, gate_key, op, path, from_value, value)
SELECT id, 0, run_id, gate_key, 'replace', '/form~1name', '"Ann"', '"Ben"' FROM app.human_interactions
 WHERE gate_key = 'approve-plan';
INSERT INTO app.gate_journal (run_id, gate_key, event, n, detail)
VALUES ('rn_00000000000000000000000000000001', 'approve-plan', 'reminded', 1, '{}');
INSERT INTO app.plan_approvals (run_id, intent_id, plan_digest, approved_by, key_id, origin, gate_key, round,
                                sandbox_digest, egress_digest, image_digest, budget_digest)
SELECT r.id, r.intent_id, CASE n WHEN 2 THEN r.plan_digest ELSE b.sha256 END, 'Ben', 'k_ben', 'api-shim',
       CASE n WHEN 1 THEN 'approve-plan' END, n,
       repeat('c', 64), repeat('d', 64), repeat('e', 64), repeat('f', 64)
  FROM app.runs r, app.blobs b, generate_series(1, 2) n WHERE r.id = 'rn_00000000000000000000000000000001';
INSERT INTO app.plan_consents_void (run_id, round, bindings, difference)
VALUES ('rn_00000000000000000000000000000001', 1, jsonb_build_object('plan', repeat('8', 64)), '{"plan": "changed"}');
INSERT INTO app.egress_asks (run_id, task_key, phase, name, gate_key)
VALUES ('rn_00000000000000000000000000000001', pg_temp.task_key('1'), 'exec', 'example.org', 'egress-1');
INSERT INTO app.egress_grants (run_id, task_key, phase, name, gate_key, interaction_id, granted_by, until)
SELECT run_id, pg_temp.task_key('1'), 'exec', 'example.org', gate_key, id, key_id, to_timestamp(4102444800)
  FROM app.human_interactions WHERE gate_key = 'egress-1';

-- The dispatch of run 2, and one that was imported.
INSERT INTO app.dispatches (id, project_dir, name, sandbox_spec, scope_id) VALUES
  ('disp0001', '/work', 'reviewer', '{"access_mode": "read-only"}', 's');
INSERT INTO app.dispatch_runs (dispatch_id, tenant_id, run_id, key_id, origin, spec_canonical, spec_hash, request)
SELECT 'disp0001', 'acme', 'rn_00000000000000000000000000000002', 'k_ann', 'manual', c, encode(sha256(convert_to(c, 'UTF8')), 'hex'), '{}'
  FROM (VALUES ('{"access_mode":"read-only"}')) v(c);
INSERT INTO app.dispatches (id, status, project_dir) VALUES ('disp0002', 'completed', '/elsewhere');
INSERT INTO app.dispatch_runs (dispatch_id, tenant_id, key_id, origin) VALUES ('disp0002', 'acme', 'k_ann', 'external');
INSERT INTO app.webhooks (id, tenant_id, url, events, key_id)
VALUES ('wh_' || repeat('0', 32), 'acme', 'https://hooks.example.org/', '{gate.opened,run.terminal}', 'k_ann');

-- The tasks start, answer, and their sandboxes end.
INSERT INTO app.sbx_executions (task_key, execution_no, worker, sandbox_id)
SELECT task_key, 1, 'ex-0000000000000001', 'sb' || lpad(right(run_id, 1), 20, '0') FROM app.sbx_runs;
INSERT INTO app.remote_execution_sessions (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir,
                                           executor_id, state)
SELECT e.sandbox_id, e.task_key, 1, s.run_id, 'acme', 'container', 'h', '/state', e.worker, 'REMOTE_WIPE_VERIFYING'
  FROM app.sbx_executions e JOIN app.sbx_runs s USING (task_key);
INSERT INTO app.secure_wipe_evidence (sandbox_id, run_id, task_key, terminal_state, wipe_timestamp, wipe_status, reason, method,
                                      evidence, origin)
SELECT sandbox_id, run_id, task_key, CASE WHEN run_id LIKE '%4' THEN 'FAILED' ELSE 'COMPLETED' END, t.at,
       CASE WHEN run_id LIKE '%4' THEN 'failed' ELSE 'verified' END, 'finished', 'overlay',
       jsonb_build_object('sandboxId', sandbox_id, 'wipedAtMs', app.ms(t.at), 'checks', (
         SELECT jsonb_agg(jsonb_build_object('kind', kind, 'ok', run_id NOT LIKE '%4'))
           FROM unnest(ARRAY['mount', 'sentinel', 'runtime-state', 'directory']) kind)), 'engine-dbos'
  FROM app.remote_execution_sessions, (SELECT clock_timestamp() AS at) t;
UPDATE app.remote_execution_sessions SET wipe_looks = 1;
INSERT INTO app.wipe_settlements (sandbox_id, run_id, tenant_id, terminal_state, evidence_look, evidence_digest, actor, key_id,
                                  reason, origin)
SELECT sandbox_id, run_id, 'acme', terminal_state, look, app.evidence_digest(evidence), 'Ada', 'k_admin', 'the host burned', 'api-shim'
  FROM app.secure_wipe_evidence WHERE wipe_status = 'failed';
INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
SELECT s.run_id, s.step_id, s.task_key, 1, 0, 'artifact_index', 'index.json', 'cofferdam:' || s.task_key || '/0', i,
       encode(sha256(convert_to(i, 'UTF8')), 'hex'), octet_length(i), 'engine-dbos'
  FROM app.sbx_runs s, app.blobs b,
       LATERAL (SELECT jsonb_build_object('items', jsonb_build_array(jsonb_build_object('kind', 'stdout', 'uri',
                  'cofferdam:' || s.task_key || '/1', 'sha256', b.sha256)))::text) v(i);
INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, sha256, size, origin)
SELECT s.run_id, s.step_id, s.task_key, 1, 1, 'stdout', 'stdout', 'cofferdam:' || s.task_key || '/1', b.sha256, octet_length(b.bytes),
       'engine-dbos'
  FROM app.sbx_runs s, app.blobs b;
INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, sha256, size, origin)
SELECT r.id, 'CompileST', repeat('b', 64), 2, 0, 'plan_card', 'plan.json', 'cofferdam:plan/' || r.id, b.sha256,
       octet_length(b.bytes), 'engine-dbos' FROM app.blobs b, app.runs r;
INSERT INTO app.dependency_cache_index (org_id, repo_id, lock_hash, key, host_id, state_dir, digest, bytes, files, created_by, origin)
SELECT 'acme', 'r', repeat('a', 64), encode(sha256(convert_to(E'acme\nr\n' || repeat('a', 64), 'UTF8')), 'hex'), 'h', '/state',
       repeat('b', 64), 1, 1, pg_temp.task_key('1'), 'engine-dbos';
INSERT INTO app.dependency_cache_uses (task_key, execution_no, entry_id, origin) VALUES (pg_temp.task_key('1'), 1, 1, 'engine-dbos');
INSERT INTO app.opencode_calls (op_key, run_id, step_id, attempt, session_id, request, origin)
VALUES (repeat('1', 64), 'rn_00000000000000000000000000000002', 'ExecuteST:000', 1, 's', '{}', 'engine-dbos');
INSERT INTO app.run_streams (run_id, key, seq, chunk) VALUES (pg_temp.task_key('1'), 'stdout', 0, 'hello');
UPDATE app.sbx_runs s SET response = jsonb_build_object('exit', 0, 'stdout', 'hello', 'sandboxRef', e.sandbox_id, 'errCode', 'NONE',
         'taskKey', s.task_key), err_code = 'NONE', effective = '{"net": "none", "buildNet": "none"}', finished_at = clock_timestamp()
  FROM app.sbx_executions e WHERE e.task_key = s.task_key;
UPDATE app.remote_execution_sessions s SET state = w.terminal_state, ended_at = clock_timestamp()
  FROM app.secure_wipe_evidence w WHERE w.sandbox_id = s.sandbox_id;

-- The runs end, and the engine says so too. Run 4 was retried once.
INSERT INTO app.run_retries (run_id, n, from_step, key_id, origin)
VALUES ('rn_00000000000000000000000000000004', 1, 'ExecuteST', 'k_ann', 'api-shim');
UPDATE app.runs SET status = 'succeeded', finished_at = clock_timestamp(), last_step = 'ExecuteST'
 WHERE id <> 'rn_00000000000000000000000000000003';
UPDATE app.dispatches SET status = 'completed', exit_code = 0, completed_at = floor(extract(epoch FROM clock_timestamp()))::bigint,
       sandbox_effective = '{"schema_version": 1, "started": false, "working_dir": "/work", "access_mode": "read-only",
         "enforce": false, "egress_observed": {"allowed": "none", "refused": 0},
         "peaks": {"mem_mb": 0, "wall_ms": 0, "cpu_ms": 0}, "violations": [], "violations_unlisted": 0}'
 WHERE id = 'disp0001';
UPDATE dbos.workflow_status SET status = 'SUCCESS', output = 'null'
 WHERE workflow_uuid <> 'it_00000000000000000000000000000003';
INSERT INTO app.webhook_attempts (delivery_id, attempt, ok, status, wall_ms, worker)
SELECT id, 1, true, 200, 12, 'ex-0000000000000001' FROM app.webhook_deliveries;
UPDATE app.webhook_deliveries SET state = 'delivered', attempts = 1, next_at = NULL, ended_at = clock_timestamp();

DROP FUNCTION pg_temp.task_key(text);
COMMIT;
