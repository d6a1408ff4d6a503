-- Ended runs as one sandboxed task each leaves them, `$RUNS` of them, of the tenant `$TENANT`, one a second until an hour ago. Of a
-- superuser: no trigger counts, seals or tells of them.
SET session_replication_role = replica;
CREATE TEMP TABLE old AS
  SELECT n, md5('i' || n || '$TENANT') AS h, encode(sha256(convert_to('k' || n || '$TENANT', 'UTF8')), 'hex') AS k,
         encode(sha256(convert_to('b' || n || '$TENANT', 'UTF8')), 'hex') AS b,
         clock_timestamp() - interval '1 hour' - make_interval(secs => $RUNS - n) AS at
    FROM generate_series(1, $RUNS) n;
INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin, created_at)
  SELECT 'it_' || h, '$TENANT', 'goal ' || n, jsonb_build_object('prompt', repeat('word ' || n || ' ', 20)), '{}', 'k', 'manual', at FROM old;
INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash, partition_key,
    priority, app_version, origin, key_id, created_at, updated_at, finished_at, last_step)
  SELECT 'rn_' || h, 'it_' || h, 'it_' || h, '$TENANT', 'succeeded', 'LOCAL_NATIVE', 'old', '1', repeat('0', 64), '$TENANT', 1, 'v', 'manual',
         'k', at, at, at, 'ExecuteST' FROM old;
INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin, finished_at)
  SELECT 'rn_' || h, s, 1, 'ok', jsonb_build_object('ok', 1, 'tasks', repeat('x', 100)), 'manual', at FROM old, unnest(ARRAY['CompileST','ExecuteST']) s;
INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, response, err_code, metrics, effective, origin,
    created_at, finished_at)
  SELECT 'rn_' || h, 'ExecuteST:t', k, 1, 't', 'container', jsonb_build_object('sandbox', jsonb_build_object('cmd', repeat('echo ' || n || '; ', 40))),
         jsonb_build_object('exit', 0, 'errCode', 'NONE', 'sandboxRef', 'sb' || left(h, 20), 'stdout', repeat('line ' || n || E'\n', 60)),
         'NONE', '{"wallMs":20}', '{"net":"none"}', 'manual', at, at FROM old;
INSERT INTO app.sbx_executions (task_key, execution_no, worker, sandbox_id, started_at) SELECT k, 1, 'w', 'sb' || left(h, 20), at FROM old;
INSERT INTO app.egress_policy_snapshots (run_id, phase, policy, policy_digest, source, origin)
  SELECT 'rn_' || h, p, '["none"]', app.policy_digest('["none"]'), 'recipe', 'manual' FROM old, unnest(ARRAY['build','exec']) p;
INSERT INTO app.remote_execution_sessions (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir, executor_id, state,
    created_at, ended_at)
  SELECT 'sb' || left(h, 20), k, 1, 'rn_' || h, '$TENANT', 'container', 'h', '/', 'e', 'COMPLETED', at, at FROM old;
INSERT INTO app.secure_wipe_evidence (sandbox_id, run_id, task_key, terminal_state, wipe_timestamp, wipe_status, reason, method, evidence, origin)
  SELECT 'sb' || left(h, 20), 'rn_' || h, k, 'COMPLETED', at, 'verified', 'done', 'unmount', '{"checks":[]}', 'manual' FROM old;
INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin, created_at)
  SELECT 'rn_' || h, a.step, k, 1, a.idx, a.kind, a.name, 'artifact://run/rn_' || h || '/step/' || a.step || '/task/' || k || '/' || a.name,
         CASE WHEN a.kind <> 'file' THEN repeat(a.name || ' ' || n || ' ', 30) END, CASE WHEN a.kind = 'file' THEN b ELSE md5(a.name || n) || md5(a.name) END,
         600, 'manual', at
    FROM old, (VALUES ('CompileST', 0, 'plan_card', 'plan.json'), ('ExecuteST:t', 0, 'artifact_index', 'index.json'),
                      ('ExecuteST:t', 1, 'stdout', 'stdout.log'), ('ExecuteST:t', 2, 'stderr', 'stderr.log'),
                      ('ExecuteST:t', 3, 'timings', 'metrics.json'), ('ExecuteST:t', 4, 'raw', 'raw.json'),
                      ('ExecuteST:t', 5, 'file', 'files/out.bin')) a(step, idx, kind, name);
INSERT INTO app.blobs (sha256, bytes, created_at) SELECT b, decode(repeat(b, 100), 'hex'), at FROM old;
INSERT INTO app.run_streams (run_id, key, seq, chunk, upto, created_at)
  SELECT 'rn_' || h, 'status', s, 'running', NULL, at FROM old, generate_series(0, 2) s
  UNION ALL SELECT k, 'stdout', 0, repeat('line ' || n || E'\n', 60), 900, at FROM old;
INSERT INTO dbos.workflow_status (workflow_uuid, status, name, inputs, output, queue_name, executor_id, created_at, updated_at, completed_at,
    parent_workflow_id, application_name)
  SELECT 'it_' || h, 'SUCCESS', 'run', 'null', 'null', 'intentQ', 'e', app.ms(at), app.ms(at), app.ms(at), NULL, 'cofferdam' FROM old
  UNION ALL SELECT k, 'SUCCESS', 'task', 'null', 'null', 'sbxQ', 'e', app.ms(at), app.ms(at), app.ms(at), 'it_' || h, 'cofferdam' FROM old;
INSERT INTO dbos.operation_outputs (workflow_uuid, function_id, function_name, output)
  SELECT 'it_' || h, s, 'step' || s, repeat('{"text":"' || n || '"}', 10) FROM old, generate_series(0, 6) s;
INSERT INTO app.blob_usage_parts (tenant_id, part, bytes) VALUES ('$TENANT', 0, $RUNS * 600::bigint);
DROP TABLE old;
SET session_replication_role = DEFAULT;
ANALYZE;
