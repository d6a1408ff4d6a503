-- An agent that is sent off. The columns are those that orchestrators know; what durability needs
-- besides stands in app.dispatch_runs. Instants are seconds since the epoch. `sandbox_spec` is what was
-- asked of the sandbox, `sandbox_effective` what was enforced.
CREATE TABLE app.dispatches (
  id                 text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
  agent_type         text NOT NULL DEFAULT 'codex',
  status             text NOT NULL DEFAULT 'spawned'
    CHECK (status IN ('spawned','running','completed','failed','timeout','cancelled')),
  project_dir        text NOT NULL,
  prompt_file        text,
  prompt_hash        text,
  output_file        text,
  verdict_file       text,
  pid                bigint,
  exit_code          bigint,
  name               text,
  model              text,
  sandbox            text DEFAULT 'workspace-write',
  timeout_sec        bigint CHECK (timeout_sec > 0),
  turns              bigint NOT NULL DEFAULT 0,
  commands           bigint NOT NULL DEFAULT 0,
  messages           bigint NOT NULL DEFAULT 0,
  input_tokens       bigint NOT NULL DEFAULT 0,
  output_tokens      bigint NOT NULL DEFAULT 0,
  cache_hits         bigint NOT NULL DEFAULT 0,
  created_at         bigint NOT NULL DEFAULT floor(extract(epoch FROM clock_timestamp()))::bigint,
  started_at         bigint,
  completed_at       bigint,
  verdict_status     text,
  verdict_summary    text,
  error_message      text,
  scope_id           text,
  parent_id          text,
  base_repo_commit   text,
  retry_count        bigint NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
  conflict_type      text,
  quarantine_reason  text,
  spawn_depth        bigint NOT NULL DEFAULT 0 CHECK (spawn_depth >= 0),
  parent_dispatch_id text,
  sandbox_spec       jsonb,
  sandbox_effective  jsonb
);
CREATE INDEX dispatches_by_scope ON app.dispatches (scope_id, status) WHERE scope_id IS NOT NULL;

-- Whose a dispatch is, which run is its workflow, and the hash of its spec as it was asked for. An
-- imported dispatch has no run.
CREATE TABLE app.dispatch_runs (
  dispatch_id    text PRIMARY KEY REFERENCES app.dispatches ON DELETE CASCADE,
  tenant_id      text NOT NULL,
  run_id         text UNIQUE REFERENCES app.runs,
  key_id         text NOT NULL,
  origin         text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  spec_canonical text,
  spec_hash      text CHECK (spec_hash ~ '^[a-f0-9]{64}$'),
  request        jsonb,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((spec_canonical IS NULL) = (spec_hash IS NULL))
);
CREATE INDEX dispatch_runs_by_tenant ON app.dispatch_runs (tenant_id, created_at DESC);

CREATE FUNCTION app.dispatch_runs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the origin of dispatch % stays', OLD.dispatch_id USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER dispatch_runs_guard BEFORE UPDATE ON app.dispatch_runs
  FOR EACH ROW EXECUTE FUNCTION app.dispatch_runs_guard();

-- A limit on spawning, or its default. Limits are the operator's: what a tenant sets for itself does not
-- count here. The newest version of a limit counts; a limit that was taken back is the default again.
CREATE FUNCTION app.dispatch_limit(p_key text, p_default bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN (value #>> '{}')::bigint END
                     FROM app.dynamic_config WHERE key = p_key AND tenant_id = '*'
                    ORDER BY version DESC LIMIT 1), p_default)
$$;

-- A child is one deeper than its parent, which belongs to the same tenant; a tenant's scope has a limited
-- number of live dispatches. Spawning within one scope takes turns, so that the limit is exact. Imported rows are
-- history.
CREATE FUNCTION app.dispatch_limits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  d app.dispatches;
  v_parent app.dispatches;
  v_limit bigint;
  v_live bigint;
BEGIN
  IF NEW.run_id IS NULL THEN
    RETURN NEW;
  END IF;
  SELECT * INTO d FROM app.dispatches WHERE id = NEW.dispatch_id;
  IF d.parent_id IS NOT NULL THEN
    SELECT p.* INTO v_parent FROM app.dispatches p JOIN app.dispatch_runs r ON r.dispatch_id = p.id
     WHERE p.id = d.parent_id AND r.tenant_id = NEW.tenant_id;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the parent dispatch was not found' USING ERRCODE = 'CF003';
    END IF;
    IF d.spawn_depth <> v_parent.spawn_depth + 1 THEN
      RAISE EXCEPTION 'a child is one deeper than its parent' USING ERRCODE = 'restrict_violation';
    END IF;
  ELSIF d.spawn_depth <> 0 THEN
    RAISE EXCEPTION 'a dispatch without a parent has depth 0' USING ERRCODE = 'restrict_violation';
  END IF;
  v_limit := app.dispatch_limit('dispatch.max_spawn_depth', 5);
  IF d.spawn_depth > v_limit THEN
    RAISE EXCEPTION 'spawn depth %, the limit is %', d.spawn_depth, v_limit USING ERRCODE = 'CF001';
  END IF;
  IF d.scope_id IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('cofferdam.scope.' || NEW.tenant_id || '/' || d.scope_id, 0));
    v_limit := app.dispatch_limit('dispatch.max_live_per_scope', 256);
    SELECT count(*) INTO v_live FROM app.dispatches o JOIN app.dispatch_runs r ON r.dispatch_id = o.id
     WHERE o.scope_id = d.scope_id AND r.tenant_id = NEW.tenant_id AND o.status IN ('spawned','running')
       AND o.id <> d.id;
    IF v_live >= v_limit THEN
      RAISE EXCEPTION 'the scope has % live dispatches, the limit is %', v_live, v_limit USING ERRCODE = 'CF002';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER dispatch_limits BEFORE INSERT ON app.dispatch_runs
  FOR EACH ROW EXECUTE FUNCTION app.dispatch_limits();

-- Every dispatch has an owner.
CREATE FUNCTION app.dispatches_are_owned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM app.dispatch_runs r WHERE r.dispatch_id = NEW.id) THEN
    RAISE EXCEPTION 'dispatch % belongs to nobody', NEW.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER dispatches_are_owned AFTER INSERT ON app.dispatches
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.dispatches_are_owned();

-- What was asked for never changes; what was enforced is written once, together with the end; an end
-- stays.
CREATE FUNCTION app.dispatches_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.sandbox_effective IS NOT NULL AND NOT app.dispatch_is_over(NEW.status) THEN
      RAISE EXCEPTION 'dispatch % has an effective policy before its end', NEW.id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF NOT app.dispatch_is_over(OLD.status) THEN
      RAISE EXCEPTION 'dispatch % is still %', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
  END IF;
  IF NEW.sandbox_spec IS DISTINCT FROM OLD.sandbox_spec THEN
    RAISE EXCEPTION 'dispatch % keeps the sandbox_spec that it was created with', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  IF ROW(NEW.id, NEW.agent_type, NEW.project_dir, NEW.prompt_hash, NEW.sandbox, NEW.scope_id, NEW.parent_id,
         NEW.spawn_depth, NEW.parent_dispatch_id, NEW.created_at)
     IS DISTINCT FROM
     ROW(OLD.id, OLD.agent_type, OLD.project_dir, OLD.prompt_hash, OLD.sandbox, OLD.scope_id, OLD.parent_id,
         OLD.spawn_depth, OLD.parent_dispatch_id, OLD.created_at) THEN
    RAISE EXCEPTION 'dispatch % keeps its identity', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  IF app.dispatch_is_over(OLD.status) AND NEW.status <> OLD.status THEN
    RAISE EXCEPTION 'dispatch % is % and stays so', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
  END IF;
  IF NEW.sandbox_effective IS DISTINCT FROM OLD.sandbox_effective AND (
       OLD.sandbox_effective IS NOT NULL OR app.dispatch_is_over(OLD.status)
       OR NOT app.dispatch_is_over(NEW.status)) THEN
    RAISE EXCEPTION 'the sandbox_effective of dispatch % is written once, with its end', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER dispatches_guard BEFORE INSERT OR UPDATE OR DELETE ON app.dispatches
  FOR EACH ROW EXECUTE FUNCTION app.dispatches_guard();
