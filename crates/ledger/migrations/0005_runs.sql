-- What was asked for.
CREATE TABLE app.intents (
  id          text PRIMARY KEY CHECK (id ~ '^(it_[0-9a-f]{32}|ih_[0-9a-f]{64})$'),
  tenant_id   text NOT NULL,
  goal        text NOT NULL,
  inputs      jsonb NOT NULL,
  constraints jsonb NOT NULL,
  connectors  jsonb,
  intent_hash text CHECK (intent_hash ~ '^[a-f0-9]{64}$'),
  key_id      text NOT NULL,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER intents_append_only BEFORE UPDATE OR DELETE ON app.intents
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- `asked_by`: the key that asked for a repetition (a fork, or a run that was resumed); NULL for a first run.
CREATE TABLE app.runs (
  id             text PRIMARY KEY CHECK (id ~ '^rn_[0-9a-f]{32}$'),
  intent_id      text NOT NULL REFERENCES app.intents,
  workflow_id    text NOT NULL UNIQUE,
  tenant_id      text NOT NULL,
  status         text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued','running','waiting_input',
                   'succeeded','failed','canceled','retries_exceeded','repairing')),
  next_action    text NOT NULL DEFAULT 'NONE' CHECK (next_action IN ('APPROVE_PLAN','REPAIR','NONE')),
  execution_mode text NOT NULL CHECK (execution_mode IN ('LOCAL_DOCKER','LOCAL_NATIVE','REMOTE_SANDBOX')),
  -- Where its sandboxes are to be, where its request says so.
  mode_wanted    text CHECK (mode_wanted IN ('LOCAL_DOCKER','LOCAL_NATIVE','REMOTE_SANDBOX')),
  recipe_id      text NOT NULL,
  recipe_v       text NOT NULL,
  recipe_hash    text NOT NULL CHECK (recipe_hash ~ '^[a-f0-9]{64}$'),
  intent_hash    text CHECK (intent_hash ~ '^[a-f0-9]{64}$'),
  plan_digest    text CHECK (plan_digest ~ '^[a-f0-9]{64}$'),
  trace_id       text,
  budget         jsonb,
  timeout_ms     bigint,
  partition_key  text NOT NULL CHECK (btrim(partition_key) <> ''),
  priority       integer NOT NULL,
  last_step      text,
  error          text,
  retry_count    integer NOT NULL DEFAULT 0,
  retry_of       text REFERENCES app.runs,
  asked_by       text,
  app_version    text NOT NULL,
  key_id         text NOT NULL,
  origin         text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at    timestamptz
);
CREATE INDEX runs_by_tenant ON app.runs (tenant_id, created_at DESC);
CREATE INDEX runs_by_intent ON app.runs (intent_id, retry_count);
-- The leader looks every few seconds for open runs that no worker would end.
CREATE INDEX runs_open ON app.runs (workflow_id) WHERE NOT app.is_over(status);

-- Law 6: terminal stays terminal, except by a repair that says so in its transaction and leaves an
-- audit row (`SET LOCAL cofferdam.repair = 'on'`).
CREATE FUNCTION app.runs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF app.is_over(OLD.status) AND NEW.status IS DISTINCT FROM OLD.status
     AND coalesce(current_setting('cofferdam.repair', true), '') <> 'on' THEN
    RAISE EXCEPTION 'run % is % and stays so', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
  END IF;
  IF NEW.id <> OLD.id OR NEW.intent_id <> OLD.intent_id OR NEW.workflow_id <> OLD.workflow_id
     OR NEW.tenant_id <> OLD.tenant_id OR NEW.recipe_hash <> OLD.recipe_hash THEN
    RAISE EXCEPTION 'run % keeps its identity', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER runs_guard BEFORE UPDATE ON app.runs FOR EACH ROW EXECUTE FUNCTION app.runs_guard();

CREATE TABLE app.run_steps (
  run_id      text NOT NULL REFERENCES app.runs,
  step_id     text NOT NULL,
  attempt     integer NOT NULL CHECK (attempt >= 1),
  status      text NOT NULL CHECK (status IN ('ok','failed','canceled')),
  output      jsonb,
  error       text,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, step_id, attempt)
);
CREATE TRIGGER run_steps_append_only BEFORE UPDATE OR DELETE ON app.run_steps
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Latest wins: what a reader wants to see of an append-only history.
CREATE VIEW app.latest_run_steps AS
  SELECT DISTINCT ON (run_id, step_id) * FROM app.run_steps ORDER BY run_id, step_id, attempt DESC;

-- A retry is the same run again, from its first step without success: one row for each time that it was
-- asked for. The workflow passes each of its recorded failures as often as there are rows.
CREATE TABLE app.run_retries (
  run_id     text NOT NULL REFERENCES app.runs,
  n          integer NOT NULL CHECK (n >= 1),
  from_step  text NOT NULL CHECK (from_step IN ('CompileST','DecideST','ExecuteST')),
  key_id     text NOT NULL,
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, n)
);
CREATE TRIGGER run_retries_append_only BEFORE UPDATE OR DELETE ON app.run_retries
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Output while it happens: an adjunct, never truth. `run_id` is a run's id for `status`, a task's key
-- for `stdout` and `stderr`.
CREATE TABLE app.run_streams (
  run_id     text NOT NULL,
  key        text NOT NULL CHECK (key IN ('status','stdout','stderr')),
  seq        integer NOT NULL CHECK (seq >= 0),
  chunk      text NOT NULL,
  -- Bytes of the stream up to the end of the chunk, so that another worker goes on behind it.
  upto       bigint CHECK (upto >= 0),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, key, seq)
);

-- The status lines of a run follow its status, whichever statement writes it. The writer holds the run's
-- row, so two lines never take one place.
CREATE FUNCTION app.status_line() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.run_streams (run_id, key, seq, chunk)
  SELECT NEW.id, 'status', count(*)::int, NEW.status
    FROM app.run_streams WHERE run_id = NEW.id AND key = 'status';
  RETURN NULL;
END $$;
CREATE TRIGGER status_line_first AFTER INSERT ON app.runs
  FOR EACH ROW EXECUTE FUNCTION app.status_line();
CREATE TRIGGER status_line_next AFTER UPDATE OF status ON app.runs
  FOR EACH ROW WHEN (NEW.status IS DISTINCT FROM OLD.status) EXECUTE FUNCTION app.status_line();
