-- One row a task attempt; `response` is written once, when the effect has been observed.
CREATE TABLE app.sbx_runs (
  run_id      text NOT NULL REFERENCES app.runs,
  step_id     text NOT NULL,
  task_key    text NOT NULL UNIQUE CHECK (task_key ~ '^[a-f0-9]{64}$'),
  attempt     integer NOT NULL CHECK (attempt >= 1),
  task_name   text NOT NULL,
  provider    text NOT NULL CHECK (provider IN ('container','gvisor','microvm','remote','docker','engine')),
  request     jsonb NOT NULL,
  response    jsonb,
  err_code    text CHECK (err_code IN ('NONE','BOOT_FAIL','CMD_NONZERO','TIMEOUT','OOM','NET_FAIL',
                'UPLOAD_FAIL','DOWNLOAD_FAIL')),
  metrics     jsonb,
  effective   jsonb,
  canceled    boolean NOT NULL DEFAULT false,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  PRIMARY KEY (run_id, step_id, attempt),
  CHECK ((response IS NULL) = (err_code IS NULL))
);

CREATE FUNCTION app.sbx_runs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.response IS NOT NULL OR NEW.task_key <> OLD.task_key
     OR NEW.request <> OLD.request OR NEW.attempt <> OLD.attempt THEN
    RAISE EXCEPTION 'sbx_runs % is append-only', OLD.task_key USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER sbx_runs_guard BEFORE UPDATE OR DELETE ON app.sbx_runs
  FOR EACH ROW EXECUTE FUNCTION app.sbx_runs_guard();

CREATE VIEW app.latest_sbx_runs AS
  SELECT DISTINCT ON (run_id, step_id) * FROM app.sbx_runs ORDER BY run_id, step_id, attempt DESC;

-- Each physical start, so that a re-execution after a crash is never hidden.
CREATE TABLE app.sbx_executions (
  task_key     text NOT NULL REFERENCES app.sbx_runs (task_key),
  execution_no integer NOT NULL CHECK (execution_no >= 1),
  worker       text NOT NULL,
  sandbox_id   text,
  started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, execution_no)
);
CREATE TRIGGER sbx_executions_append_only BEFORE UPDATE OR DELETE ON app.sbx_executions
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Calls of a model's provider, each once.
CREATE TABLE app.opencode_calls (
  op_key     text NOT NULL UNIQUE CHECK (op_key ~ '^[a-f0-9]{64}$'),
  run_id     text NOT NULL REFERENCES app.runs,
  step_id    text NOT NULL,
  attempt    integer NOT NULL CHECK (attempt >= 1),
  session_id text NOT NULL,
  request    jsonb NOT NULL,
  response   jsonb,
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Writes a round's attempts and the run's egress policies and queues the attempts' workflows, together. A replay
-- writes nothing.
--
-- An attempt that only keeps a text needs no worker of its own: its end (`p_values`) and its artifacts come along,
-- and it is over when it is written. It is queued like the others where its end may not count: the worker is not
-- alive any more, the run was canceled, or the tenant may store nothing more. Returns the keys that are over.
CREATE FUNCTION app.round_enqueue(p_run text, p_parent text, p_partition text, p_priority integer, p_version text,
                                  p_executor text, p_quota_mb bigint, p_tasks jsonb, p_snapshots jsonb,
                                  p_values jsonb, p_artifacts jsonb)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_now bigint := app.ms(clock_timestamp());
  v_kept text[] := '{}';
BEGIN
  INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
  SELECT p_run, x.step_id, x.task_key, x.attempt, x.task_name, x.provider, x.request, 'engine-dbos'
    FROM jsonb_to_recordset(p_tasks) AS x(step_id text, task_key text, attempt integer, task_name text,
                                          provider text, request jsonb)
  ON CONFLICT DO NOTHING;
  INSERT INTO app.egress_policy_snapshots
    (run_id, phase, policy, policy_digest, source, policy_key, policy_version, approver, origin)
  SELECT p_run, x.phase, x.policy, app.policy_digest(x.policy), x.source, x.policy_key, x.policy_version,
         x.approver, 'engine-dbos'
    FROM jsonb_to_recordset(p_snapshots) AS x(phase text, policy jsonb, source text, policy_key text,
                                              policy_version integer, approver text)
  ON CONFLICT DO NOTHING;
  IF p_values <> '[]'
     AND EXISTS (SELECT 1 FROM app.executors e WHERE e.id = p_executor AND e.state = 'live' FOR SHARE)
     AND NOT EXISTS (SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = p_parent AND w.status = 'CANCELLED')
     AND (SELECT app.blobs_over_quota(r.tenant_id, p_quota_mb) FROM app.runs r WHERE r.id = p_run) IS NULL THEN
    WITH kept AS (
      INSERT INTO dbos.workflow_status (workflow_uuid, status, name, inputs, output, queue_name, queue_partition_key,
        priority, application_version, application_name, serialization, created_at, updated_at, started_at_epoch_ms,
        completed_at, executor_id, recovery_attempts, parent_workflow_id)
      SELECT v.task_key, 'SUCCESS', 'task', 'null', v.output, 'sbxQ', p_partition, p_priority, p_version, 'cofferdam',
             'rust_serde', v_now, v_now, v_now, v_now, p_executor, 1, p_parent
        FROM jsonb_to_recordset(p_values) AS v(task_key text, output text)
      ON CONFLICT (workflow_uuid) DO NOTHING RETURNING workflow_uuid)
    SELECT coalesce(array_agg(workflow_uuid), '{}') INTO v_kept FROM kept;
    INSERT INTO app.sbx_executions (task_key, execution_no, worker)
    SELECT k, 1, p_executor FROM unnest(v_kept) k;
    UPDATE app.sbx_runs s
       SET response = v.response, err_code = v.err_code, metrics = v.metrics, finished_at = clock_timestamp()
      FROM jsonb_to_recordset(p_values) AS v(task_key text, response jsonb, err_code text, metrics jsonb)
     WHERE s.task_key = v.task_key AND s.task_key = ANY (v_kept);
    INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
    SELECT p_run, s.step_id, s.task_key, s.attempt, a.idx, a.kind, a.name, a.uri, a.inline, a.sha256, a.size, 'engine-dbos'
      FROM jsonb_to_recordset(p_artifacts) AS a(task_key text, idx integer, kind text, name text, uri text,
                                                inline text, sha256 text, size bigint)
      JOIN app.sbx_runs s ON s.task_key = a.task_key
     WHERE s.task_key = ANY (v_kept);
  END IF;
  -- One that is over has its workflow already.
  PERFORM app.enqueue(x.task_key, 'task', 'null', 'sbxQ', p_partition, p_priority, NULL, p_version, p_parent, 0)
     FROM jsonb_to_recordset(p_tasks) AS x(task_key text) WHERE NOT x.task_key = ANY (v_kept);
  RETURN v_kept;
END $$;
