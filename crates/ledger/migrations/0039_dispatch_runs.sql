-- Whose a dispatch is, what run is its workflow, and the hash of its spec as it was asked for. An
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

-- Limits on spawning, as rows that an operator may change: the newest version counts.
CREATE FUNCTION app.dispatch_limit(p_key text, p_default bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT (value #>> '{}')::bigint FROM app.dynamic_config
                    WHERE key = p_key AND jsonb_typeof(value) = 'number' ORDER BY version DESC LIMIT 1), p_default)
$$;

-- A child is one deeper than its parent, which is the same tenant's; a tenant's scope has so many live
-- dispatches. Spawning within one scope takes turns, so that the limit is exact. Imported rows are history.
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

-- No dispatch without an owner.
CREATE FUNCTION app.dispatches_are_owned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM app.dispatch_runs r WHERE r.dispatch_id = NEW.id) THEN
    RAISE EXCEPTION 'dispatch % belongs to nobody', NEW.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER dispatches_are_owned AFTER INSERT ON app.dispatches
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.dispatches_are_owned();
