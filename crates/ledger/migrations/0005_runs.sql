CREATE TABLE app.runs (
  id             text PRIMARY KEY CHECK (id ~ '^rn_[0-9a-f]{32}$'),
  intent_id      text NOT NULL REFERENCES app.intents,
  workflow_id    text NOT NULL UNIQUE,
  tenant_id      text NOT NULL,
  status         text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued','running','waiting_input',
                   'succeeded','failed','canceled','retries_exceeded','repairing')),
  next_action    text NOT NULL DEFAULT 'NONE' CHECK (next_action IN ('APPROVE_PLAN','REPAIR','NONE')),
  execution_mode text NOT NULL CHECK (execution_mode IN ('LOCAL_DOCKER','LOCAL_NATIVE','REMOTE_SANDBOX')),
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

-- Law 6: terminal stays terminal, except by a repair that says so in its transaction and leaves an
-- audit row (`SET LOCAL cofferdam.repair = 'on'`).
CREATE FUNCTION app.runs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status IN ('succeeded','failed','canceled','retries_exceeded')
     AND NEW.status IS DISTINCT FROM OLD.status
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
