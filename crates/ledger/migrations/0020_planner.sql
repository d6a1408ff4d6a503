-- How a prompt ended, where a worker of ours followed it: `answered` (the answer may still not fit its schema),
-- `failed` (the daemon ended the turn), `stalled` (we ended it).
ALTER TABLE app.opencode_calls
  ADD COLUMN outcome text CHECK (outcome IN ('answered','failed','stalled'));

-- Each sandbox that a prompt was sent in: a second one goes on where the first was lost. Only the last may end it.
CREATE TABLE app.prompt_sends (
  op_key     text NOT NULL REFERENCES app.opencode_calls (op_key),
  n          integer NOT NULL CHECK (n >= 1),
  sandbox_id text NOT NULL REFERENCES app.remote_execution_sessions,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (op_key, n),
  UNIQUE (op_key, sandbox_id)
);
CREATE TRIGGER prompt_sends_append_only BEFORE UPDATE OR DELETE ON app.prompt_sends
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What a provider answered within a prompt, written before the agent reads its end: a sandbox that goes on for a lost
-- one is given these answers instead of asking again. `shape`: the model and the roles of the messages since the prompt.
CREATE TABLE app.prompt_answers (
  op_key       text NOT NULL REFERENCES app.opencode_calls (op_key),
  shape        text NOT NULL CHECK (shape ~ '^[a-f0-9]{64}$'),
  call_key     text NOT NULL UNIQUE REFERENCES app.model_calls (op_key),
  status       integer NOT NULL,
  content_type text NOT NULL,
  body         bytea NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (op_key, shape)
);
CREATE TRIGGER prompt_answers_append_only BEFORE UPDATE OR DELETE ON app.prompt_answers
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Whether this sandbox is the one that may send and end a prompt: the last that took it, and not over. Locks the prompt.
CREATE FUNCTION app.prompt_is_held(p_op_key text, p_sandbox text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM app.opencode_calls WHERE op_key = p_op_key FOR UPDATE;
  RETURN coalesce(p_sandbox = (SELECT sandbox_id FROM app.prompt_sends WHERE op_key = p_op_key ORDER BY n DESC LIMIT 1), false)
     AND EXISTS (SELECT 1 FROM app.remote_execution_sessions x
                  WHERE x.sandbox_id = p_sandbox AND NOT app.session_is_over(x.state));
END $$;

-- A sandbox takes a prompt: the row is there before the first send. Only the newest execution of a task may.
--
-- Answers {"lost": true} | {"other": true} (the key stands for another prompt) | {"ended": {..}} | {"sends": n}.
CREATE FUNCTION app.prompt_take(
  p_op_key text, p_run text, p_step text, p_attempt integer, p_session text, p_agent text, p_prompt text,
  p_schema_hash text, p_request jsonb, p_sandbox text)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_place app.remote_execution_sessions;
  v_call  app.opencode_calls;
  v_last  app.prompt_sends;
BEGIN
  SELECT * INTO v_place FROM app.remote_execution_sessions WHERE sandbox_id = p_sandbox FOR SHARE;
  IF NOT FOUND OR app.session_is_over(v_place.state) OR v_place.execution_no <>
     (SELECT max(execution_no) FROM app.sbx_executions WHERE task_key = v_place.task_key) THEN
    RETURN jsonb_build_object('lost', true);
  END IF;
  INSERT INTO app.opencode_calls
    (op_key, run_id, step_id, attempt, session_id, agent, prompt, schema_hash, request, origin)
  VALUES (p_op_key, p_run, p_step, p_attempt, p_session, p_agent, p_prompt, p_schema_hash, p_request, 'engine-dbos')
  ON CONFLICT (op_key) DO NOTHING;
  SELECT * INTO v_call FROM app.opencode_calls WHERE op_key = p_op_key FOR UPDATE;
  IF (v_call.run_id, v_call.prompt, v_call.schema_hash) IS DISTINCT FROM (p_run, p_prompt, p_schema_hash) THEN
    RETURN jsonb_build_object('other', true);
  END IF;
  IF v_call.ended_at IS NOT NULL THEN
    RETURN jsonb_build_object('ended', jsonb_build_object(
      'outcome', v_call.outcome, 'structured', v_call.structured, 'raw', v_call.raw, 'error', v_call.error));
  END IF;
  SELECT * INTO v_last FROM app.prompt_sends WHERE op_key = p_op_key ORDER BY n DESC LIMIT 1;
  IF v_last.sandbox_id IS DISTINCT FROM p_sandbox THEN
    INSERT INTO app.prompt_sends (op_key, n, sandbox_id) VALUES (p_op_key, coalesce(v_last.n, 0) + 1, p_sandbox);
  END IF;
  RETURN jsonb_build_object('sends', coalesce(v_last.n, 0) + 1);
END $$;

-- A task that ends has no prompt on its way.
CREATE FUNCTION app.prompts_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.opencode_calls c
     SET error = 'the task ended before the answer did', outcome = 'failed', ended_at = clock_timestamp()
   WHERE c.run_id = NEW.run_id AND c.ended_at IS NULL AND EXISTS (
     SELECT 1 FROM app.prompt_sends p JOIN app.remote_execution_sessions x USING (sandbox_id)
      WHERE p.op_key = c.op_key AND x.task_key = NEW.task_key);
  RETURN NULL;
END $$;
CREATE TRIGGER sbx_runs_end_prompts AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL AND NEW.request ? 'opencode')
  EXECUTE FUNCTION app.prompts_end();
CREATE TRIGGER sbx_runs_end_planner_asks AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL
    AND NEW.request @? '$.opencode.request.spec.models.budget ? (@.ask == true)')
  EXECUTE FUNCTION app.model_asks_end();

-- What a build changed, file by file: what was there, what is there now, and the hash of the change. The bytes of both
-- are in the artifact with the patch's digest, so each file can be put back alone.
CREATE TABLE app.patch_history (
  run_id       text NOT NULL REFERENCES app.runs,
  task_key     text NOT NULL REFERENCES app.sbx_runs (task_key),
  patch_sha256 text NOT NULL CHECK (patch_sha256 ~ '^[a-f0-9]{64}$'),
  n            integer NOT NULL CHECK (n >= 1),
  path         text NOT NULL CHECK (path <> ''),
  pre_mode     integer,
  pre_sha256   text CHECK (pre_sha256 ~ '^[a-f0-9]{64}$'),
  post_mode    integer,
  post_sha256  text CHECK (post_sha256 ~ '^[a-f0-9]{64}$'),
  diff_sha256  text NOT NULL CHECK (diff_sha256 ~ '^[a-f0-9]{64}$'),
  origin       text NOT NULL DEFAULT 'engine-dbos'
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, patch_sha256, n),
  UNIQUE (run_id, patch_sha256, path),
  CHECK (pre_mode IS NOT NULL OR post_mode IS NOT NULL),
  CHECK (pre_sha256 IS NULL OR pre_mode IS NOT NULL),
  CHECK (post_sha256 IS NULL OR post_mode IS NOT NULL)
);
CREATE TRIGGER patch_history_append_only BEFORE UPDATE OR DELETE ON app.patch_history
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
