-- Schedules and hooks: what starts runs without a caller's key at hand, and each time that one did.

-- A key's consent to runs of one recipe, as it was then. `next_ms`: the next instant of a schedule; `due_ms`: the same with its jitter.
CREATE TABLE app.triggers (
  id          text PRIMARY KEY CHECK (id ~ '^(sc|hk)_[0-9a-f]{32}$'),
  kind        text NOT NULL CHECK (kind IN ('schedule','hook')),
  tenant_id   text NOT NULL,
  name        text NOT NULL CHECK (name <> ''),
  key_id      text NOT NULL,
  recipe_id   text NOT NULL,
  recipe_v    text NOT NULL,
  recipe_hash text NOT NULL CHECK (recipe_hash ~ '^[a-f0-9]{64}$'),
  spec        jsonb NOT NULL,
  state       text NOT NULL DEFAULT 'active' CHECK (state IN ('active','paused','removed')),
  next_ms     bigint,
  due_ms      bigint,
  -- Rows of app.firings: one that is gone is missed.
  firings     bigint NOT NULL DEFAULT 0 CHECK (firings >= 0),
  -- Deliveries whose signature or time was refused: counted, and nothing else of them is kept.
  unsigned    bigint NOT NULL DEFAULT 0 CHECK (unsigned >= 0),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (left(id, 2) = CASE kind WHEN 'schedule' THEN 'sc' ELSE 'hk' END),
  CHECK ((next_ms IS NULL) = (due_ms IS NULL) AND due_ms >= next_ms),
  CHECK (next_ms IS NULL OR (kind = 'schedule' AND state = 'active'))
);
CREATE UNIQUE INDEX triggers_schedule_name ON app.triggers (tenant_id, name) WHERE kind = 'schedule' AND state <> 'removed';
CREATE UNIQUE INDEX triggers_hook_name ON app.triggers (name) WHERE kind = 'hook' AND state <> 'removed';
CREATE INDEX triggers_due ON app.triggers (due_ms) WHERE due_ms IS NOT NULL;

-- What was consented to stays as it is; a trigger that was removed stays so.
CREATE FUNCTION app.trigger_is_its_consent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.id, NEW.kind, NEW.tenant_id, NEW.name, NEW.key_id, NEW.recipe_id, NEW.recipe_v, NEW.recipe_hash, NEW.spec)
     IS DISTINCT FROM
     (OLD.id, OLD.kind, OLD.tenant_id, OLD.name, OLD.key_id, OLD.recipe_id, OLD.recipe_v, OLD.recipe_hash, OLD.spec)
     OR (OLD.state = 'removed' AND NEW.state <> 'removed')
     OR NEW.firings < OLD.firings OR NEW.unsigned < OLD.unsigned THEN
    RAISE EXCEPTION 'trigger % changes more than its state', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER triggers_are_their_consent BEFORE UPDATE ON app.triggers
  FOR EACH ROW EXECUTE FUNCTION app.trigger_is_its_consent();
CREATE TRIGGER triggers_stay BEFORE DELETE ON app.triggers
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- One time that a trigger fired. `event`: the instant of a schedule in UTC, or the id of a delivery, whose body has `digest`.
CREATE TABLE app.firings (
  trigger_id text NOT NULL REFERENCES app.triggers,
  event      text NOT NULL CHECK (event <> ''),
  seq        bigint NOT NULL CHECK (seq >= 1),
  digest     text CHECK (digest ~ '^[a-f0-9]{64}$'),
  state      text NOT NULL CHECK (state IN ('pending','started','skipped','refused')),
  run_id     text UNIQUE REFERENCES app.runs,
  reason     text,
  detail     text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  settled_at timestamptz,
  PRIMARY KEY (trigger_id, event),
  UNIQUE (trigger_id, seq),
  CHECK ((state = 'started') = (run_id IS NOT NULL)),
  CHECK ((state IN ('skipped','refused')) = (reason IS NOT NULL)),
  CHECK ((state = 'pending') = (settled_at IS NULL))
);
CREATE INDEX firings_pending ON app.firings (trigger_id, seq) WHERE state = 'pending';

CREATE FUNCTION app.firing_settles_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state <> 'pending' OR (NEW.trigger_id, NEW.event, NEW.seq, NEW.digest, NEW.created_at)
     IS DISTINCT FROM (OLD.trigger_id, OLD.event, OLD.seq, OLD.digest, OLD.created_at) THEN
    RAISE EXCEPTION 'firing % of trigger % is settled', OLD.event, OLD.trigger_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER firings_settle_once BEFORE UPDATE ON app.firings
  FOR EACH ROW EXECUTE FUNCTION app.firing_settles_once();
CREATE TRIGGER firings_stay BEFORE DELETE ON app.firings
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Whether the run of an earlier firing goes on, or waits at its gate.
CREATE FUNCTION app.trigger_is_busy(p_trigger text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM app.runs r JOIN app.firings f ON f.run_id = r.id
                  WHERE f.trigger_id = p_trigger AND NOT app.is_over(r.status))
$$;
