CREATE TABLE app.remote_execution_sessions (
  sandbox_id   text PRIMARY KEY CHECK (sandbox_id ~ '^sb[0-9a-f]{20}$'),
  task_key     text NOT NULL REFERENCES app.sbx_runs (task_key),
  execution_no integer NOT NULL,
  run_id       text NOT NULL REFERENCES app.runs,
  tenant_id    text NOT NULL,
  class        text NOT NULL,
  host_id      text NOT NULL,
  state_dir    text NOT NULL,
  executor_id  text NOT NULL,
  state        text NOT NULL CHECK (state IN ('PROVISIONING','BUILDING','EXECUTING','COLLECTING',
                 'REMOTE_WIPE_VERIFYING','COMPLETED','FAILED','CANCELED','ORPHANED')),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at     timestamptz
);
CREATE INDEX sessions_live ON app.remote_execution_sessions (host_id, executor_id)
  WHERE state IN ('PROVISIONING','BUILDING','EXECUTING','COLLECTING','REMOTE_WIPE_VERIFYING');
CREATE INDEX sessions_by_run ON app.remote_execution_sessions (run_id);

CREATE TABLE app.secure_wipe_evidence (
  sandbox_id     text PRIMARY KEY REFERENCES app.remote_execution_sessions,
  run_id         text NOT NULL,
  task_key       text NOT NULL,
  terminal_state text NOT NULL CHECK (terminal_state IN ('COMPLETED','FAILED','CANCELED','ORPHANED')),
  wipe_timestamp timestamptz NOT NULL,
  wipe_status    text NOT NULL CHECK (wipe_status IN ('verified','failed')),
  reason         text NOT NULL,
  method         text NOT NULL,
  evidence       jsonb NOT NULL,
  origin         text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX wipe_by_run ON app.secure_wipe_evidence (run_id);
CREATE TRIGGER wipe_append_only BEFORE UPDATE OR DELETE ON app.secure_wipe_evidence
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- The law of the wipe: no verified evidence in the same transaction, no terminal state.
CREATE FUNCTION app.sessions_need_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state IN ('COMPLETED','FAILED','CANCELED','ORPHANED') AND NOT EXISTS (
       SELECT 1 FROM app.secure_wipe_evidence e
       WHERE e.sandbox_id = NEW.sandbox_id AND e.wipe_status = 'verified'
         AND e.terminal_state = NEW.state) THEN
    RAISE EXCEPTION 'session % has no verified wipe', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER sessions_need_evidence AFTER INSERT OR UPDATE ON app.remote_execution_sessions
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.sessions_need_evidence();

CREATE FUNCTION app.sessions_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IN ('COMPLETED','FAILED','CANCELED','ORPHANED') AND NEW.state <> OLD.state THEN
    RAISE EXCEPTION 'session % is % and stays so', OLD.sandbox_id, OLD.state USING ERRCODE = 'restrict_violation';
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER sessions_guard BEFORE UPDATE ON app.remote_execution_sessions
  FOR EACH ROW EXECUTE FUNCTION app.sessions_guard();
