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
