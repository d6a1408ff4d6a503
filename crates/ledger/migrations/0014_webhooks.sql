-- Who hears of what. The secret is in no row: it is derived from the installation's signing key.
CREATE TABLE app.webhooks (
  id         text PRIMARY KEY CHECK (id ~ '^wh_[0-9a-f]{32}$'),
  tenant_id  text NOT NULL CHECK (tenant_id <> ''),
  url        text NOT NULL CHECK (url ~ '^https?://' AND length(url) <= 2048),
  events     text[] NOT NULL CHECK (cardinality(events) >= 1 AND cardinality(events) <= 7 AND events <@ ARRAY[
               'gate.opened','gate.reminded','gate.decided','gate.timed_out','gate.escalated',
               'gate.canceled','run.terminal']),
  label      text,
  key_id     text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  removed_at timestamptz
);
CREATE INDEX webhooks_by_tenant ON app.webhooks (tenant_id) WHERE removed_at IS NULL;

-- The outbox: a row is inserted by the very transaction that makes the event. It holds what was true then; the sender
-- makes the body of it, and none of it changes.
CREATE TABLE app.webhook_deliveries (
  id          text PRIMARY KEY CHECK (id ~ '^msg_[0-9a-f]{32}$'),
  webhook_id  text NOT NULL REFERENCES app.webhooks,
  event_type  text NOT NULL,
  event_id    text NOT NULL CHECK (event_id ~ '^[a-f0-9]{64}$'),
  run_id      text NOT NULL REFERENCES app.runs,
  gate_key    text,
  topic       text,
  occurred_at timestamptz NOT NULL,
  workflow_id text NOT NULL,
  -- Of a gate's event.
  plan_digest            text,
  gate_created_at        timestamptz,
  deadline_at            timestamptz,
  escalation_workflow_id text,
  decision               text CHECK (length(decision) <= 64),
  asked_name             text CHECK (length(asked_name) <= 256),
  -- Of a run's end.
  intent_id   text,
  run_status  text,
  recipe_id   text,
  recipe_v    text,
  finished_at timestamptz,
  state       text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending','delivered','dead')),
  attempts    integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  round_start integer NOT NULL DEFAULT 0 CHECK (round_start BETWEEN 0 AND attempts),
  next_at     timestamptz DEFAULT clock_timestamp(),
  last_status integer,
  last_error  text CHECK (length(last_error) <= 200),
  ended_at    timestamptz,
  UNIQUE (webhook_id, event_id),
  CHECK (CASE event_type WHEN 'run.terminal'
         THEN num_nulls(intent_id, run_status, recipe_id, recipe_v, finished_at) = 0
         ELSE num_nulls(gate_key, topic, gate_created_at, deadline_at) = 0 END),
  CHECK ((state = 'pending') = (next_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_due ON app.webhook_deliveries (next_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_by_webhook ON app.webhook_deliveries (webhook_id, occurred_at DESC);
CREATE INDEX webhook_deliveries_by_run ON app.webhook_deliveries (run_id);

CREATE FUNCTION app.webhook_deliveries_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Only how far it is moves.
  IF TG_OP = 'DELETE' OR to_jsonb(NEW) - ARRAY['state','attempts','round_start','next_at','last_status','last_error','ended_at']
     IS DISTINCT FROM to_jsonb(OLD) - ARRAY['state','attempts','round_start','next_at','last_status','last_error','ended_at'] THEN
    RAISE EXCEPTION 'a delivery keeps its event' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER webhook_deliveries_guard BEFORE UPDATE OR DELETE ON app.webhook_deliveries
  FOR EACH ROW EXECUTE FUNCTION app.webhook_deliveries_guard();

-- What came of each attempt whose end was seen. An attempt without a row was cut off by a crash.
CREATE TABLE app.webhook_attempts (
  delivery_id text NOT NULL REFERENCES app.webhook_deliveries,
  attempt     integer NOT NULL,
  ok          boolean NOT NULL,
  status      integer,
  error       text CHECK (length(error) <= 200),
  wall_ms     bigint NOT NULL,
  worker      text NOT NULL,
  ended_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (delivery_id, attempt)
);
CREATE TRIGGER webhook_attempts_append_only BEFORE UPDATE OR DELETE ON app.webhook_attempts
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- The dead letters.
CREATE VIEW app.webhook_dead_letters AS
  SELECT d.id, d.webhook_id, w.tenant_id, d.event_type, d.run_id, d.gate_key, d.occurred_at, d.attempts,
         d.last_status, d.last_error, d.ended_at
    FROM app.webhook_deliveries d JOIN app.webhooks w ON w.id = d.webhook_id WHERE d.state = 'dead';
