-- A sandbox that its tenant holds: created, extended, killed. Each is the one task of its run; the row ends in the
-- commit that ends that task, or with its run where no task began. `timeout_ms` counts from the start; `ends_at` is the
-- database's clock. The token of its agent is kept as a hash, and its environment not at all.
CREATE TABLE app.live_sandboxes (
  id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{20}$'),
  tenant_id   text NOT NULL CHECK (tenant_id <> ''),
  run_id      text NOT NULL UNIQUE REFERENCES app.runs,
  key_id      text NOT NULL,
  template    text NOT NULL CHECK (template <> ''),
  metadata    jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'object'),
  egress      jsonb NOT NULL,
  timeout_ms  bigint NOT NULL CHECK (timeout_ms > 0),
  dedup       text CHECK (dedup <> ''),
  token_hash  text CHECK (token_hash ~ '^[a-f0-9]{64}$'),
  executor_id text,
  sandbox_id  text REFERENCES app.remote_execution_sessions,
  limits      jsonb,
  started_at  timestamptz,
  ends_at     timestamptz,
  ended_at    timestamptz,
  end_reason  text,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (tenant_id, dedup),
  CHECK (num_nulls(started_at, ends_at, token_hash, executor_id, sandbox_id, limits) IN (0, 6)),
  CHECK ((ended_at IS NULL) = (end_reason IS NULL))
);
CREATE INDEX live_sandboxes_by_tenant ON app.live_sandboxes (tenant_id, created_at DESC, id) WHERE ended_at IS NULL;

-- A sandbox starts once and ends once; what was asked for stays.
CREATE FUNCTION app.live_sandboxes_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL
     OR (NEW.id, NEW.tenant_id, NEW.run_id, NEW.key_id, NEW.template, NEW.metadata, NEW.egress, NEW.timeout_ms,
         NEW.dedup, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.run_id, OLD.key_id, OLD.template, OLD.metadata, OLD.egress, OLD.timeout_ms,
         OLD.dedup, OLD.created_at)
     OR OLD.started_at IS NOT NULL
        AND (NEW.started_at, NEW.token_hash, NEW.executor_id, NEW.sandbox_id, NEW.limits)
            IS DISTINCT FROM (OLD.started_at, OLD.token_hash, OLD.executor_id, OLD.sandbox_id, OLD.limits) THEN
    RAISE EXCEPTION 'live_sandboxes % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER live_sandboxes_guard BEFORE UPDATE OR DELETE ON app.live_sandboxes
  FOR EACH ROW EXECUTE FUNCTION app.live_sandboxes_guard();

CREATE FUNCTION app.live_ends_with_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.live_sandboxes SET ended_at = clock_timestamp(),
         end_reason = coalesce(NEW.response->>'cause', CASE WHEN NEW.canceled THEN 'canceled' ELSE 'ended' END)
   WHERE run_id = NEW.run_id AND ended_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER live_ends_with_task AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL AND NEW.task_name = 'hold')
  EXECUTE FUNCTION app.live_ends_with_task();

-- A run that is canceled before its task began has nothing to wait for.
CREATE FUNCTION app.live_ends_with_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.live_sandboxes SET ended_at = clock_timestamp(), end_reason = coalesce(NEW.error, NEW.status)
   WHERE run_id = NEW.id AND ended_at IS NULL
     AND NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = NEW.id AND s.response IS NULL);
  RETURN NULL;
END $$;
CREATE TRIGGER live_ends_with_run AFTER UPDATE OF status ON app.runs
  FOR EACH ROW WHEN (app.is_over(NEW.status) AND NEW.recipe_id = 'sandbox')
  EXECUTE FUNCTION app.live_ends_with_run();
